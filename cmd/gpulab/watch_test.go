package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

func TestWatchView(t *testing.T) {
	use, gib := 70.0, uint64(3<<30)
	s := gpu.Snapshot{Node: "box", Time: time.Now(), DriverVersion: "580.1", Simulated: true, GPUs: []gpu.GPU{
		{Device: gpu.Device{Index: 0, Name: "A100", Simulated: true}, Reading: gpu.Reading{Utilization: &use, Processes: []gpu.Process{
			{PID: 7, Name: "py\x1b[2Jthon", SMUtilization: &use, MemoryUsed: &gib, Pod: gpu.PodRef{UID: "x", User: "ada", Notebook: "gpu"}},
			{PID: 8, UnixUser: "zoe"},
		}}},
		{Device: gpu.Device{Index: 1}, Reading: gpu.Reading{Error: "GPU 1 has fallen off the bus."}},
		{Device: gpu.Device{Index: 2}, Withheld: "zoe uses it outside gpulab."},
	}}
	text := watchView([]gpu.Snapshot{s})
	for _, want := range []string{"box, driver 580.1, simulated", "ada/gpu", "70 %", "3 GiB", "py?[2Jthon", "zoe (outside gpulab)", "fallen off the bus", "GPU 2 is not lent out: zoe"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "\x1b") {
		t.Error("a program's name reaches the terminal as a command")
	}
}

func TestDrawFitsTheScreen(t *testing.T) {
	var b bytes.Buffer
	if err := draw(&b, strings.Repeat(strings.Repeat("ä", 100)+"\n", 50), 40, 10); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(strings.TrimPrefix(b.String(), homeCursor), clearRest), "\n")
	if len(lines) != 10 || lines[9] != "" || !strings.HasPrefix(lines[8], "…") {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
	for _, line := range lines[:8] {
		if n := len([]rune(strings.TrimSuffix(line, clearLine))); n != 40 {
			t.Errorf("a line has %d characters", n)
		}
	}
}
