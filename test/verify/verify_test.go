//go:build cgo

package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/packaging/simdriver"
	"github.com/gpulab/gpulab/packaging/simdriver/simtest"
)

func TestMain(m *testing.M) { simtest.Main(m) }

// The whole run on simulated GPUs says that they are simulated, and where it
// cannot look.
func TestRecord(t *testing.T) {
	root := simtest.Start(t, 2)
	library := simdriver.Library(root)
	t.Setenv("LD_LIBRARY_PATH", library[:strings.LastIndex(library, "/")])
	v := verification{ctx: t.Context(), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), library: library,
		probe: simtest.Probe(t), gpulab: "/nowhere/gpulab", smi: root + "/usr/bin/nvidia-smi"}
	path, err := v.write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if v.failed > 0 || !strings.HasSuffix(path, "/2026-01-02-simulated-gpu-24gb.md") {
		t.Errorf("%d checks failed, %s", v.failed, path)
	}
	for _, want := range []string{"# 2 × Simulated GPU 24GB, 2 January 2026", "simulated: this record proves nothing", "| nvidia-smi says the same | ok |",
		"| CUDA computes | ok | a simulated GPU", "a lab on this machine | not tried |", "Temperature 3"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
}

func TestCompare(t *testing.T) {
	total, hot := uint64(24<<30), 40.0
	s := gpu.Snapshot{GPUs: []gpu.GPU{{Device: gpu.Device{UUID: "GPU-a", MemoryTotal: &total}, Reading: gpu.Reading{Temperature: &hot}}}}
	for lines, wrong := range map[string]string{
		"GPU-a, 24576, 43\n":              "",
		"GPU-a, 24576, [N/A]\n":           "",
		"GPU-b, 24576, 43\n":              "the probe does not",
		"GPU-a, 24000, 43\n":              "24000 MiB",
		"GPU-a, 24576, 60\n":              "60 °C",
		"":                                "knows 0 GPUs",
		"No devices were found\n":         "printed",
		"GPU-a, 24576, 43\nGPU-c, 1, 2\n": "GPU-c",
	} {
		err := compare(s, lines)
		if (err == nil) != (wrong == "") || err != nil && !strings.Contains(err.Error(), wrong) {
			t.Errorf("%q: %v, want %q", lines, err, wrong)
		}
	}
}
