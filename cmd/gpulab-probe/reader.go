//go:build cgo

package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpulab/gpulab/internal/gpu"
)

// reader reads one GPU.
type reader struct {
	driver *driver
	index  int
	first  chan struct{} // closed after the first read

	mu    sync.Mutex
	last  gpu.GPU
	began time.Time // of the read in progress, zero if there is none
	xid   *uint64

	// handle is written once, before found is closed.
	handle nvml.Device
	found  chan struct{}

	// Only the reading goroutine touches these.
	identified bool
	utilSince  uint64          // newest sample of process utilisation, µs
	missing    map[string]bool // functions that were looked up
}

func newReader(d *driver, index int) *reader {
	return &reader{
		driver: d, index: index, first: make(chan struct{}), found: make(chan struct{}), missing: make(map[string]bool),
		last: gpu.GPU{Device: gpu.Device{Index: index, Simulated: d.simulated}},
	}
}

// run reads the GPU again and again.
func (r *reader) run(interval time.Duration) {
	for n := 0; ; n++ {
		r.mu.Lock()
		r.began = time.Now()
		r.mu.Unlock()

		g := r.read()

		r.mu.Lock()
		pause := interval - time.Since(r.began)
		r.last, r.began = g, time.Time{}
		r.mu.Unlock()
		if n == 0 {
			close(r.first)
		}
		time.Sleep(max(pause, interval/10))
	}
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

// read asks everything once.
func (r *reader) read() gpu.GPU {
	g := gpu.GPU{Device: r.last.Device}
	if g.Error = r.identify(&g.Device); g.Error != "" {
		return g
	}
	readLoad(r.handle, &g.Reading)
	readMemory(r.driver, r.handle, &g)
	readPower(r.handle, &g)
	if gone := r.checkAlive(); gone != "" {
		g.Reading = gpu.Reading{Error: gone}
		return g
	}
	g.Processes = r.processes()
	return g
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
		d.PCIBusID = fmt.Sprintf("%08X:%02X:%02X.0", pci.Domain, pci.Bus, pci.Device)
	}
	if major, minor, ret := h.GetCudaComputeCapability(); ret == nvml.SUCCESS {
		d.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
	}
	if mode, _, ret := h.GetMigMode(); ret == nvml.SUCCESS {
		d.MIG = mode == nvml.DEVICE_MIG_ENABLE
	}
	r.handle = h
	r.identified = true
	close(r.found)
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
		return fmt.Sprintf("GPU %d has fallen off the bus: reboot the machine, and if it happens again, look at the card's power and slot.", r.index)
	case nvml.ERROR_RESET_REQUIRED:
		return fmt.Sprintf("GPU %d needs a reset: stop what uses it and run nvidia-smi --gpu-reset -i %d.", r.index, r.index)
	default:
		return fmt.Sprintf("GPU %d cannot be read: %s (NVML error %d).", r.index, nvml.ErrorString(ret), ret)
	}
}
