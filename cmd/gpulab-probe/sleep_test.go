//go:build cgo

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/packaging/simdriver"
	"github.com/gpulab/gpulab/packaging/simdriver/simtest"
)

// device writes what the kernel shows about a PCI device, by attribute.
func device(t *testing.T, sysfs, address string, attributes map[string]string) {
	t.Helper()
	for name, value := range attributes {
		path := filepath.Join(sysfs, "bus/pci/devices", address, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func isAsleep(g gpu.GPU) string {
	if !g.Asleep {
		return "it is not asleep: " + dump(g)
	}
	return ""
}

// A card that is asleep is not asked: here it would hang if it were.
func TestSleepingGPUIsNotWoken(t *testing.T) {
	t.Parallel()
	root, sysfs := simtest.Start(t, 2), t.TempDir()
	p := start(t, simdriver.Library(root), "-sysfs", sysfs)
	p.gpuReads(t, 1, well)
	device(t, sysfs, "0000:22:00.0", map[string]string{"power/runtime_status": "suspended"})
	p.gpuReads(t, 1, isAsleep)
	simtest.Inject(t, root, "gpu 1 hang")
	time.Sleep(2500 * time.Millisecond) // more than the fault and the patience take
	s, _ := p.snapshot()
	want := gpu.Reading{Asleep: true}
	if got := s.GPUs[1]; !reflect.DeepEqual(got.Reading, want) || got.UUID == "" || well(s.GPUs[0]) != "" {
		t.Errorf("asleep: %s, the other: %s", dump(got), dump(s.GPUs[0]))
	}
	device(t, sysfs, "0000:22:00.0", map[string]string{"power/runtime_status": "active"})
	p.gpuReads(t, 1, fails("has not answered for"))
	simtest.Inject(t, root, "gpu 1 ok")
	p.gpuReads(t, 1, well)
}

// One that sleeps when the probe starts has not said its name yet.
func TestStartBesideASleepingGPU(t *testing.T) {
	t.Parallel()
	root, sysfs := simtest.Start(t, 2), t.TempDir()
	for address, attributes := range map[string]map[string]string{
		"0000:00:02.0": {"vendor": "0x8086", "class": "0x030000"},
		"0000:21:00.0": {"vendor": "0x10de", "class": "0x030000", "power/runtime_status": "active"},
		"0000:21:00.1": {"vendor": "0x10de", "class": "0x040300", "power/runtime_status": "suspended"}, // its sound
		"0000:22:00.0": {"vendor": "0x10de", "class": "0x030200", "power/runtime_status": "suspended"},
	} {
		device(t, sysfs, address, attributes)
	}
	p := start(t, simdriver.Library(root), "-sysfs", sysfs)
	p.gpuReads(t, 1, isAsleep)
	p.gpuReads(t, 0, well)
	if g := p.gpu(1); g.UUID != "" || g.PCIBusID != "00000000:22:00.0" || g.Error != "" {
		t.Errorf("asleep: %s", dump(g))
	}
	device(t, sysfs, "0000:22:00.0", map[string]string{"power/runtime_status": "active"})
	p.gpuReads(t, 1, well)
}

// A card that may sleep is left alone while it has nothing to do.
func TestRest(t *testing.T) {
	sysfs, address := t.TempDir(), "0000:01:00.0"
	now := time.Unix(1000, 0)
	idle := gpu.GPU{Device: gpu.Device{PCIBusID: "00000000:01:00.0"}, Reading: gpu.Reading{Utilization: new(float64)}}
	busy := idle
	busy.Processes = []gpu.Process{{PID: 7}}
	r := &reader{tree: pciTree{sysfs: sysfs}, pace: pace{restAfter: 30 * time.Second, rest: 20 * time.Second}}
	read := func(after time.Duration, g gpu.GPU) bool {
		now = now.Add(after)
		r.rest(&g, now)
		return now.Before(r.restUntil)
	}
	device(t, sysfs, address, map[string]string{"power/control": "on"})
	var got []bool
	got = append(got, read(0, idle), read(time.Hour, idle))
	device(t, sysfs, address, map[string]string{"power/control": "auto"})
	got = append(got, read(0, idle), read(29*time.Second, idle), read(time.Second, idle), read(20*time.Second, idle), read(20*time.Second, busy), read(time.Second, idle))
	if want := []bool{false, false, false, false, true, true, false, false}; !slices.Equal(got, want) {
		t.Errorf("rests %v, want %v", got, want)
	}
	if left := r.restUntil.Sub(now); left > 0 {
		t.Errorf("it rests %v more after work", left)
	}
}

// Ubuntu's packages let every card sleep; the driver keeps most awake all the same.
func TestSleeps(t *testing.T) {
	const address = "0000:01:00.0"
	tree := pciTree{sysfs: t.TempDir(), procfs: t.TempDir()}
	device(t, tree.sysfs, address, map[string]string{"power/control": "auto"})
	idle := gpu.GPU{Device: gpu.Device{PCIBusID: "00000000:01:00.0"}, Reading: gpu.Reading{Utilization: new(float64)}}
	// rests tells whether it is left alone after as long without work as that takes.
	rests := func() bool {
		r, now := &reader{tree: tree, pace: pace{restAfter: 30 * time.Second, rest: 20 * time.Second}}, time.Unix(1000, 0)
		r.rest(&idle, now)
		r.rest(&idle, now.Add(30*time.Second))
		return !r.restUntil.IsZero()
	}
	if !rests() {
		t.Error("a driver that does not say: it is never left alone")
	}
	folder := filepath.Join(tree.procfs, "driver/nvidia/gpus", address)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for status, want := range map[string]bool{
		"Enabled (fine-grained)": true, "Enabled (coarse-grained)": true,
		"Disabled by default": false, "Disabled": false, "Not supported": false, "?": false,
	} {
		// As an H100 with driver 580 says it.
		text := "Runtime D3 status:          " + status + "\nVideo Memory:               Active\n\nGPU Hardware Support:\n Video Memory Self Refresh: Not Supported\n"
		if err := os.WriteFile(filepath.Join(folder, "power"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if rests() != want {
			t.Errorf("%s: %v", status, !want)
		}
	}
}

// While it is left alone the last reading stands.
func TestRestingGPUIsNotAsked(t *testing.T) {
	t.Parallel()
	root, sysfs := simtest.Start(t, 1), t.TempDir()
	device(t, sysfs, "0000:21:00.0", map[string]string{"power/control": "auto", "power/runtime_status": "active"})
	p := start(t, simdriver.Library(root), "-sysfs", sysfs, "-rest-after", "200ms", "-rest", "4s")
	p.gpuReads(t, 0, well)
	time.Sleep(400 * time.Millisecond)
	before := p.gpu(0)
	time.Sleep(2200 * time.Millisecond) // the simulated card's power has moved twice
	if now := p.gpu(0); *now.Power != *before.Power {
		t.Errorf("it was asked: %v W became %v W", *before.Power, *now.Power)
	}
	p.gpuReads(t, 0, func(g gpu.GPU) string {
		if *g.Power == *before.Power {
			return fmt.Sprintf("it is never asked again: %v W", *g.Power)
		}
		return ""
	})
}

func TestBoundDevices(t *testing.T) {
	sysfs := t.TempDir()
	for _, name := range []string{"0000:41:00.0", "0000:01:00.0", "bind", "new_id"} {
		if err := os.MkdirAll(filepath.Join(sysfs, "bus/pci/drivers/nvidia", name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if got := (pciTree{sysfs: sysfs}).bound(); !slices.Equal(got, []string{"0000:01:00.0", "0000:41:00.0"}) {
		t.Errorf("bound: %q", got)
	}
	if got := (pciTree{}).bound(); got != nil {
		t.Errorf("without a tree: %q", got)
	}
}
