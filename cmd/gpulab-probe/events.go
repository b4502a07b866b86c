//go:build cgo

package main

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpulab/gpulab/internal/gpu"
)

// listen passes the GPU's XID errors on. Each GPU has an event set of its own,
// so that one whose driver hangs cannot silence the others.
func (r *reader) listen(tell func(gpu.XIDEvent)) {
	<-r.found
	types, ret := r.handle.GetSupportedEventTypes()
	if ret != nvml.SUCCESS || types&nvml.EventTypeXidCriticalError == 0 {
		return
	}
	set, ret := r.driver.nvml.EventSetCreate()
	if ret != nvml.SUCCESS {
		return
	}
	if ret := r.handle.RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS {
		_ = set.Free()
		return
	}
	for {
		event, ret := set.Wait(1000)
		switch ret {
		case nvml.SUCCESS:
			r.noteXID(event.EventData, tell)
		case nvml.ERROR_TIMEOUT:
		default: // e.g. the GPU is lost: come back later, it may too
			time.Sleep(time.Second)
		}
	}
}

func (r *reader) noteXID(xid uint64, tell func(gpu.XIDEvent)) {
	r.mu.Lock()
	r.xid = &xid
	e := gpu.XIDEvent{Time: time.Now(), UUID: r.last.UUID, Index: r.index, XID: xid}
	r.mu.Unlock()
	tell(e)
}
