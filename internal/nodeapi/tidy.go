package nodeapi

import (
	"time"
	"unicode/utf8"

	"github.com/gpulab/gpulab/internal/gpu"
)

// Limits of what a reading is made of. What is beyond them is left out: pages, the history and notices go by readings,
// whatever machine they are of.
const (
	mostProcesses = 256 // of one GPU; pods that hold it, too
	mostInstances = 64
	mostKills     = 1000
	longestName   = 200     // bytes
	longestReason = 1000    // bytes, of a sentence
	largestNumber = 1e15    // in any unit
	largestCount  = 1 << 53 // which JSON can tell exactly
	largestMemory = 1 << 50 // bytes
)

// tidy leaves out of a report what no machine can mean.
func tidy(r *Report, now time.Time) {
	s := &r.Snapshot
	for _, text := range []*string{&s.DriverVersion, &s.CUDAVersion} {
		clip(text, longestName)
	}
	clip(&s.Error, longestReason)
	s.Title, s.Cordoned = "", "" // the head's to say
	for i := range s.GPUs {
		tidyGPU(&s.GPUs[i])
	}
	s.Events, s.EventsDropped = s.Events[:min(len(s.Events), mostEvents)], max(s.EventsDropped, 0)
	for i := range s.Events {
		e := &s.Events[i]
		clip(&e.UUID, longestName)
		clip(&e.Program, longestName)
		if e.XID > largestCount {
			e.XID = 0
		}
		if e.Time.After(now) || !e.Time.IsZero() && e.Time.Before(now.Add(-furthestClock)) {
			e.Time = now
		}
	}
	if h := r.Host; h != nil {
		h.CPUs, h.Load = within(h.CPUs, 1<<16), within(h.Load, 1<<20)
		for _, n := range []*int64{&h.MemoryTotal, &h.MemoryUsed, &h.DiskTotal, &h.DiskFree} {
			*n = within(*n, largestMemory<<10)
		}
	}
	if i := r.Images; i != nil {
		clipAll(i.Have)
		clip(&i.Loading, longestName)
		clip(&i.Failed, longestReason)
		i.Done, i.Total = within(i.Done, largestMemory), within(i.Total, largestMemory)
	}
	if e := r.Environments; e != nil {
		clipAll(e.Have)
		clip(&e.Loading, longestName)
		clip(&e.Failed, longestReason)
		e.Done = within(e.Done, largestMemory)
		for i := range e.Uses {
			clip(&e.Uses[i].ID, longestName)
			clip(&e.Uses[i].Pod, longestName)
		}
	}
	if len(r.MemoryKills) > mostKills {
		r.MemoryKills = nil
	}
}

func tidyGPU(g *gpu.GPU) {
	for _, text := range []*string{
		&g.UUID, &g.Name, &g.PCIBusID, &g.ComputeCapability, &g.MemoryLimits, &g.Health.Recovery,
	} {
		clip(text, longestName)
	}
	clip(&g.Device.UUID, longestName)
	clip(&g.Reading.Error, longestReason)
	clip(&g.Withheld, longestReason)
	g.Slots, g.Index = within(g.Slots, 1<<10), within(g.Index, 1<<16)
	for _, n := range []**float64{
		&g.PowerLimit, &g.SMClockMax, &g.MemoryClockMax, &g.PCIeGenerationMax, &g.PCIeWidthMax, &g.Utilization,
		&g.MemoryUtilization, &g.Encoder, &g.Decoder,
		&g.Power, &g.Energy, &g.Temperature, &g.MemoryTemperature, &g.Fan, &g.SMClock, &g.MemoryClock, &g.PCIeGeneration,
		&g.PCIeWidth, &g.PCIeReceived, &g.PCIeSent,
	} {
		known(n, largestNumber)
	}
	for _, n := range []**float64{&g.Utilization, &g.MemoryUtilization, &g.Encoder, &g.Decoder} {
		known(n, 100)
	}
	for _, n := range []**float64{
		&g.Power, &g.PowerLimit, &g.Temperature, &g.MemoryTemperature, &g.Fan, &g.SMClock, &g.MemoryClock, &g.SMClockMax,
		&g.MemoryClockMax,
	} {
		known(n, 100_000)
	}
	h := &g.Health
	for _, n := range []**uint64{
		&h.ECCCorrected, &h.ECCUncorrected, &h.RemappedCorrectable, &h.RemappedUncorrectable, &h.RetiredPages, &g.XID,
	} {
		known(n, largestCount)
	}
	known(&g.MemoryTotal, largestMemory)
	known(&g.MemoryUsed, largestMemory)
	g.Throttle = g.Throttle[:min(len(g.Throttle), 16)]
	clipAll(g.Throttle)
	g.Instances = g.Instances[:min(len(g.Instances), mostInstances)]
	for i := range g.Instances {
		in := &g.Instances[i]
		clip(&in.UUID, longestName)
		clip(&in.Profile, longestName)
		known(&in.MemoryTotal, largestMemory)
		known(&in.MemoryUsed, largestMemory)
		in.Index, in.Slices, in.SlicesOf = within(in.Index, 1<<10), within(in.Slices, 1<<10), within(in.SlicesOf, 1<<10)
	}
	g.Processes = g.Processes[:min(len(g.Processes), mostProcesses)]
	for i := range g.Processes {
		p := &g.Processes[i]
		for _, text := range []*string{&p.Name, &p.Instance, &p.UnixUser, &p.Pod.UID} {
			clip(text, longestName)
		}
		known(&p.MemoryUsed, largestMemory)
		known(&p.SMUtilization, 100)
	}
	g.Holders = g.Holders[:min(len(g.Holders), mostProcesses)]
	for i := range g.Holders {
		h := &g.Holders[i]
		for _, text := range []*string{&h.Namespace, &h.Name, &h.UID, &h.Container, &h.Instance} {
			clip(text, longestName)
		}
	}
}

// clip cuts a text to so many bytes.
func clip(text *string, most int) {
	if len(*text) <= most {
		return
	}
	at := most
	for at > 0 && !utf8.RuneStart((*text)[at]) {
		at--
	}
	*text = (*text)[:at]
}

func clipAll(list []string) {
	for i := range list {
		clip(&list[i], longestName)
	}
}

type number interface{ int | int64 | uint64 | float64 }

// known makes a reading unknown that is out of its range. One that rounding put a little above counts as the most.
func known[N number](n **N, most N) {
	switch {
	case *n == nil:
	case **n < 0, **n > most+most/10:
		*n = nil
	case **n > most:
		*n = &most
	}
}

// within is a number, or 0 where it is out of its range.
func within[N number](n, most N) N {
	if n < 0 || n > most {
		return 0
	}
	return n
}
