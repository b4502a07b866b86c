package webui

import (
	"context"
	"io"
	"strconv"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

// oneFleet is a fleet that stands still.
type oneFleet []gpu.Snapshot

func (f oneFleet) Snapshots() []gpu.Snapshot                     { return append([]gpu.Snapshot(nil), f...) }
func (f oneFleet) Subscribe(context.Context) <-chan gpu.Snapshot { return nil }

// BenchmarkGPUPage is what one viewer of the GPU page costs each second, with
// sixteen GPUs and two minutes of history.
func BenchmarkGPUPage(b *testing.B) {
	now := time.Now()
	total, used, value := uint64(40<<30), uint64(20<<30), 63.0
	snapshot := gpu.Snapshot{Node: "gpu-box", Time: now}
	for i := range 16 {
		snapshot.GPUs = append(snapshot.GPUs, gpu.GPU{
			Device:  gpu.Device{UUID: "GPU-" + strconv.Itoa(i), Index: i, Name: "NVIDIA A100-SXM4-40GB", MemoryTotal: &total, PowerLimit: &value},
			Reading: gpu.Reading{Utilization: &value, MemoryUsed: &used, Power: &value, Temperature: &value, Processes: []gpu.Process{{PID: 1, Name: "python"}}},
		})
	}
	s := &Server{cfg: Config{Fleet: oneFleet{snapshot}}, trends: newTrends(), now: func() time.Time { return now }}
	for back := 120; back >= 0; back-- {
		past := snapshot
		past.Time = now.Add(-time.Duration(back) * time.Second)
		s.trends.add(past)
	}
	view := s.gpusParts(visitor{})
	counter := &counting{}
	for b.Loop() {
		list, err := view(b.Context(), false)
		if err != nil {
			b.Fatal(err)
		}
		for _, p := range list {
			if p.shape != "" {
				continue
			}
			if err := p.body.Render(b.Context(), counter); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(counter.bytes)/float64(b.N), "bytes/page")
}

type counting struct{ bytes int }

func (c *counting) Write(text []byte) (int, error) {
	c.bytes += len(text)
	return io.Discard.Write(text)
}
