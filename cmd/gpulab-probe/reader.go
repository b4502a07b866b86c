//go:build cgo

package main

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpulab/gpulab/internal/gpu"
)

// pace is how often a GPU is asked.
type pace struct {
	interval  time.Duration // between two readings
	slow      time.Duration // between two looks at what hardly changes
	restAfter time.Duration // how long a card that may sleep has no work before it is left alone,
	rest      time.Duration // and for how long it then is
}

// reader reads one GPU. Whoever calls its methods has claimed it, except for
// latest.
type reader struct {
	driver  *driver
	index   int
	pace    pace
	tree    pciTree
	tell    func(gpu.XIDEvent)
	first   chan struct{} // closed after the first read
	claimed atomic.Bool

	mu    sync.Mutex
	last  gpu.GPU
	began time.Time // of the call in progress, zero if there is none
	xid   *uint64

	handle     nvml.Device
	identified bool
	errors     errorEvents
	slow       slowly
	utilSince  uint64 // newest sample of process utilisation, µs
	idleSince  time.Time
	restUntil  time.Time
	round      uint64 // the last in which it was read
}

func newReader(d *driver, index int, p pace, tree pciTree, tell func(gpu.XIDEvent)) *reader {
	return &reader{
		driver: d, index: index, pace: p, tree: tree, tell: tell, first: make(chan struct{}),
		last: gpu.GPU{Device: gpu.Device{Index: index, Simulated: d.simulated}},
	}
}

// claim calls ask, which asks the driver and may never return, unless somebody
// does so already.
func (r *reader) claim(ask func(now time.Time)) {
	if !r.claimed.CompareAndSwap(false, true) {
		return
	}
	defer r.claimed.Store(false)
	now := time.Now()
	r.mu.Lock()
	r.began = now
	r.mu.Unlock()
	ask(now)
	r.mu.Lock()
	r.began = time.Time{}
	r.mu.Unlock()
}

// once takes a sample, if there is none of this round yet.
func (r *reader) once(round uint64) {
	r.claim(func(now time.Time) {
		if r.round == round {
			return
		}
		first := r.round == 0
		r.round = round
		g := r.read(now)
		r.mu.Lock()
		r.last = g
		r.mu.Unlock()
		if first {
			close(r.first)
		}
	})
}

// latest returns the newest reading, or what the GPU is and since when it has
// been silent.
func (r *reader) latest(now time.Time, patience time.Duration) gpu.GPU {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.last
	g.XID = r.xid
	if waited := now.Sub(r.began); !r.began.IsZero() && waited > patience {
		g.Reading = gpu.Reading{Error: silence(r.index, waited), XID: r.xid}
	}
	return g
}

// read asks for one sample.
func (r *reader) read(now time.Time) gpu.GPU {
	g := gpu.GPU{Device: r.last.Device}
	if r.asleep(&g.Device) {
		g.Asleep = true
		r.idleSince, r.restUntil = time.Time{}, time.Time{}
		return g
	}
	if now.Before(r.restUntil) {
		return r.last
	}
	if g.Error = r.identify(&g.Device); g.Error != "" {
		return g
	}
	r.readErrors(now)
	r.readSlowly(&g.Device, now)
	g.Health, g.Instances = r.slow.health, r.instancesNow()
	r.driver.readLoad(r.handle, &g.Reading)
	r.driver.readBody(r.handle, &g.Reading)
	g.PCIeReceived, g.PCIeSent = r.slow.received, r.slow.sent
	g.MemoryTotal, g.MemoryUsed = r.driver.memory(r.handle)
	if gone := r.checkAlive(); gone != "" {
		r.slow.due = time.Time{} // once it is back
		return gpu.GPU{Device: r.last.Device, Reading: gpu.Reading{Error: gone}}
	}
	g.Processes, g.ProcessesUnknown = r.processes()
	r.rest(&g, now)
	return g
}

// awake says whether the GPU may be asked beside its samples.
func (r *reader) awake(now time.Time) bool {
	return r.identified && !r.last.Asleep && r.last.Error == "" && !now.Before(r.restUntil)
}

// identify gets hold of the GPU and learns what it is, once. It returns "", or
// a sentence that says why it could not.
func (r *reader) identify(d *gpu.Device) string {
	if r.identified {
		return ""
	}
	h, ret := r.driver.nvml.DeviceGetHandleByIndex(r.index)
	if ret != nvml.SUCCESS {
		return r.failure(ret)
	}
	uuid, ret := h.GetUUID()
	if ret != nvml.SUCCESS {
		return r.failure(ret)
	}
	d.UUID = uuid
	if name, ret := h.GetName(); ret == nvml.SUCCESS {
		d.Name = name
	}
	if pci, ret := h.GetPciInfo(); ret == nvml.SUCCESS {
		d.PCIBusID = busID(pci.Domain, pci.Bus, pci.Device)
	}
	if r.driver.known["nvmlDeviceGetCudaComputeCapability"] {
		if major, minor, ret := h.GetCudaComputeCapability(); ret == nvml.SUCCESS {
			d.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
		}
	}
	r.handle = h
	r.identified = true
	return ""
}

// checkAlive tells a GPU that has none of the readings from one that is gone:
// every other failure only leaves its own reading out.
func (r *reader) checkAlive() string {
	if _, ret := r.handle.GetUUID(); ret != nvml.SUCCESS {
		return r.failure(ret)
	}
	return ""
}

// failure says what an error about the whole GPU means.
func (r *reader) failure(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST:
		return fmt.Sprintf("GPU %d has fallen off the bus: reboot the machine, and if it happens again, look at the "+
			"card's power and slot.", r.index)
	case nvml.ERROR_RESET_REQUIRED:
		return fmt.Sprintf("GPU %d needs a reset: stop what uses it and run nvidia-smi --gpu-reset -i %d.", r.index, r.index)
	default:
		return fmt.Sprintf("GPU %d cannot be read: %s (NVML error %d).", r.index, nvml.ErrorString(ret), ret)
	}
}
