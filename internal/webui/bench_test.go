package webui

import (
	"context"
	"hash/maphash"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

// oneFleet is a fleet that stands still.
type oneFleet []gpu.Snapshot

func (f oneFleet) Snapshots() []gpu.Snapshot                     { return append([]gpu.Snapshot(nil), f...) }
func (f oneFleet) Subscribe(context.Context) <-chan gpu.Snapshot { return nil }

// BenchmarkGPUPage is what viewers of the GPU page cost each second before the
// network, with sixteen GPUs and two minutes of history.
func BenchmarkGPUPage(b *testing.B) {
	for _, viewers := range []int{1, 500} {
		b.Run(strconv.Itoa(viewers), func(b *testing.B) { benchmarkGPUPage(b, viewers) })
	}
}

func benchmarkGPUPage(b *testing.B, viewers int) {
	now := time.Now()
	total, used, value := uint64(40<<30), uint64(20<<30), 63.0
	snapshot := gpu.Snapshot{Node: "gpu-box", Time: now}
	for i := range 16 {
		snapshot.GPUs = append(snapshot.GPUs, gpu.GPU{
			Device:  gpu.Device{UUID: "GPU-" + strconv.Itoa(i), Index: i, Name: "NVIDIA A100-SXM4-40GB", MemoryTotal: &total, PowerLimit: &value},
			Reading: gpu.Reading{Utilization: &value, MemoryUsed: &used, Power: &value, Temperature: &value, Processes: []gpu.Process{{PID: 1, Name: "python"}}},
		})
	}
	fleet := oneFleet{snapshot}
	s := &Server{cfg: Config{Fleet: fleet}, trends: newTrends(), now: func() time.Time { return now }, board: board{fleet: fleet}}
	for back := 120; back >= 0; back-- {
		past := snapshot
		past.Time = now.Add(-time.Duration(back) * time.Second)
		s.trends.add(past)
	}
	view := s.gpusParts(visitor{})
	out := &discard{header: http.Header{}}
	for b.Loop() {
		s.board.turn()
		for range viewers {
			t := s.board.now()
			list, err := view(b.Context(), t)
			if err != nil {
				b.Fatal(err)
			}
			shape := maphash.String(hashSeed, list[0].shape) // the page has the frame
			stream := eventStream{w: out, control: http.NewResponseController(out), view: "gpus", sent: map[string]uint64{list[0].id: shape}}
			if err := stream.send(b.Context(), t, list); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(out.bytes)/float64(b.N*viewers), "bytes/page")
}

// discard is a response that nobody reads.
type discard struct {
	header http.Header
	bytes  int
}

func (d *discard) Header() http.Header { return d.header }
func (d *discard) WriteHeader(int)     {}
func (d *discard) Flush()              {}
func (d *discard) Write(text []byte) (int, error) {
	d.bytes += len(text)
	return len(text), nil
}
