package main

import (
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/deviceplugin"
	"github.com/gpulab/gpulab/internal/fleet"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/store"
)

func TestFindGPU(t *testing.T) {
	one := func(uuid string, index int) gpu.GPU {
		return gpu.GPU{Device: gpu.Device{UUID: uuid, Index: index}}
	}
	snapshots := []gpu.Snapshot{
		{Node: "a", GPUs: []gpu.GPU{one("GPU-11112222-a", 0), one("GPU-11113333-b", 1)}},
		{Node: "b", Title: "Vision/2", GPUs: []gpu.GPU{one("GPU-44445555-c", 0)}},
	}
	for which, want := range map[string]string{
		"1": "GPU-11113333-b", "GPU-11112222-a": "GPU-11112222-a", "GPU-4444": "GPU-44445555-c",
		"a/0": "GPU-11112222-a", "b/0": "GPU-44445555-c", "Vision/2/0": "GPU-44445555-c", "b/1": `there is no GPU "b/1"`, "/0": "there is no GPU", "a/": "there is no GPU",
		"0": `"0" names 2 GPUs`, "GPU-1111": "names 2 GPUs", "7": `there is no GPU "7"`, "": "there is no GPU", "GPU-": "there is no GPU",
	} {
		g, err := findGPU(snapshots, which)
		got := g.UUID
		if err != nil {
			got = err.Error()
		}
		if got != want && (err == nil || !strings.Contains(got, want)) {
			t.Errorf("%q: got %q, want %q", which, got, want)
		}
	}
}

// What was decided about a GPU holds for the next daemon too, and the monitor's
// own snapshot is not written to.
func TestLendingAnyway(t *testing.T) {
	db, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	next := func() (*lending, *fleet.Fleet) {
		f := fleet.New()
		l, err := newLending(t.Context(), db, deviceplugin.New(deviceplugin.Config{Dir: t.TempDir()}), f, 1)
		if err != nil {
			t.Fatal(err)
		}
		return l, f
	}
	snapshot := gpu.Snapshot{GPUs: []gpu.GPU{{Device: gpu.Device{UUID: "GPU-a"}}}}
	for i, want := range []bool{true, true, false} {
		l, f := next()
		if i != 1 {
			if err := l.set(t.Context(), "GPU-a", want); err != nil {
				t.Fatal(err)
			}
		}
		l.publish(snapshot)
		if got := f.Snapshots()[0].GPUs[0].LentAnyway; got != want || snapshot.GPUs[0].LentAnyway {
			t.Errorf("step %d: lent anyway %v, want %v", i, got, want)
		}
	}
}

// A GPU that is split into instances is lent to nobody: there is no way into a
// container for the whole of it.
func TestLendingOfSplitGPU(t *testing.T) {
	db, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	f := fleet.New()
	l, err := newLending(t.Context(), db, deviceplugin.New(deviceplugin.Config{Dir: t.TempDir()}), f, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mig  bool
		want string
	}{
		{true, "It is split into instances (MIG), which are not lent out. `nvidia-smi -i 3 -mig 0` and a reboot make it whole again."},
		{false, "It was split into instances (MIG), and is lent out again once the machine has been rebooted."},
	} {
		l.publish(gpu.Snapshot{GPUs: []gpu.GPU{
			{Device: gpu.Device{UUID: "GPU-a", MIG: c.mig, Index: 3}},
			{Device: gpu.Device{UUID: "GPU-b", MIG: c.mig}, Holders: []gpu.Holder{{}}},
			{Device: gpu.Device{UUID: "GPU-c"}},
		}})
		for i, want := range []string{c.want, "", ""} {
			if got := f.Snapshots()[0].GPUs[i].Withheld; got != want {
				t.Errorf("GPU %d: %q, want %q", i, got, want)
			}
		}
	}
}

// Beside a GPU that is lost NVIDIA's plugin must not be started anew, whatever came after.
func TestFailedSentence(t *testing.T) {
	l := newObedientLending(nil, nil, 1)
	const off, reboot = 79, 154
	for _, c := range []struct {
		uuid string
		xid  uint64
		lost bool
	}{{"GPU-a", off, true}, {"GPU-a", reboot, true}, {"GPU-b", reboot, false}} {
		g := gpu.GPU{Device: gpu.Device{UUID: c.uuid}}
		g.XID = &c.xid
		l.remember(&g)
		if said := failedSentence(&g, l.lost[c.uuid]); strings.Contains(said, "rollout restart") == c.lost {
			t.Errorf("%s with XID %d: %s", c.uuid, c.xid, said)
		}
	}
}
