package main

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gpulab/gpulab/internal/hoststat"
	"github.com/gpulab/gpulab/internal/nodeapi"
)

// hostEvery is how often a machine looks how busy it is. A file system that
// hangs takes a second of it, which nothing else waits for.
const hostEvery = 5 * time.Second

// hostWatch knows how busy this machine is.
type hostWatch struct {
	host   *hoststat.Host
	dir    string // with gpulab's data
	latest atomic.Pointer[nodeapi.Host]
}

// run looks until ctx ends.
func (w *hostWatch) run(ctx context.Context) error {
	for {
		r, err := w.host.Read()
		if err != nil {
			slog.Debug("how busy this machine is, is known in part only", "err", err)
		}
		w.latest.Store(summary(r, w.dir))
		if !sleep(ctx, hostEvery) {
			return nil
		}
	}
}

// summary is what of a reading is told of a machine.
func summary(r hoststat.Reading, dir string) *nodeapi.Host {
	h := &nodeapi.Host{CPUs: len(r.CPUs)}
	if r.Load != nil {
		h.Load = r.Load.Over1
	}
	if total, ok := r.Memory["MemTotal"]; ok {
		h.MemoryTotal, h.MemoryUsed = int64(total), int64(total-r.Memory["MemAvailable"])
	}
	longest := -1
	for _, f := range r.Filesystems {
		within := f.MountPoint == "/" || f.MountPoint == dir || strings.HasPrefix(dir, f.MountPoint+"/")
		if within && !f.Failed && len(f.MountPoint) > longest {
			longest = len(f.MountPoint)
			h.DiskTotal, h.DiskFree = int64(f.Size), int64(f.Available)
		}
	}
	return h
}
