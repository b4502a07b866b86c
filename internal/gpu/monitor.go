package gpu

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/supervise"
)

// MonitorConfig describes a Monitor. ProbePath is needed, the zero value of
// everything else works.
type MonitorConfig struct {
	// Node is the name of this node, put into every snapshot.
	Node string
	// ProbePath is the program gpulab-probe.
	ProbePath string
	// Library is the path of libnvidia-ml.so.1; empty leaves finding it to the
	// dynamic linker.
	Library string
	// Cgroups is where control groups are mounted; empty is /sys/fs/cgroup.
	Cgroups string
	// Interval is the time between two samples. Default 0.9 s: with the way to the
	// pages, no value is on any of them later than a second after it changed.
	Interval time.Duration
	// Pods tells about the pods of this node. Nil: there is no cluster.
	Pods Pods
	// Holders tells who has been given which GPU. Nil: nobody has.
	Holders Holders
	// Publish receives each snapshot, about one for each interval. It must
	// return quickly: the probe's output is read by the same goroutine.
	Publish func(Snapshot)
	// LogFile and PIDFile are given to the supervised probe.
	LogFile, PIDFile string
}

// Holders tells which pods the kubelet has given a GPU, or a MIG instance, to, by
// its UUID. It is asked once a second for each and must not block.
type Holders interface {
	Of(uuid string) []Holder
}

type nobody struct{}

func (nobody) Of(string) []Holder { return nil }

// Monitor watches the GPUs of this machine: it keeps the probe running,
// completes its samples, and publishes them. While the probe is down or silent
// it publishes the last readings with the time they were taken and an Error
// that says what is wrong.
type Monitor struct {
	cfg    MonitorConfig
	child  *supervise.Child
	owners *attribution // used by the goroutine that reads the probe's output

	mu       sync.Mutex
	latest   Snapshot
	have     bool
	started  time.Time
	heard    time.Time // when the probe last wrote a sample
	nonsense string    // what it has written since instead
	devices  map[string]Device
	parts    map[string][]Instance // what GPUs in MIG mode consist of, by the GPU's UUID
}

// NewMonitor returns a monitor that does nothing until Run.
func NewMonitor(cfg MonitorConfig) *Monitor {
	if cfg.Interval == 0 {
		cfg.Interval = 900 * time.Millisecond
	}
	if cfg.Pods == nil {
		cfg.Pods = noPods{}
	}
	if cfg.Holders == nil {
		cfg.Holders = nobody{}
	}
	if cfg.Publish == nil {
		cfg.Publish = func(Snapshot) {}
	}
	m := &Monitor{
		cfg: cfg, devices: make(map[string]Device), parts: make(map[string][]Instance),
		owners: newAttribution("/proc", cfg.Pods),
	}
	args := []string{"-interval", cfg.Interval.String()}
	if cfg.Library != "" {
		args = append(args, "-lib", cfg.Library)
	}
	if cfg.Cgroups != "" {
		args = append(args, "-cgroups", cfg.Cgroups)
	}
	m.child = supervise.New(supervise.Spec{
		Name: "GPU probe", Path: cfg.ProbePath, Args: args, Stdout: m.sample,
		LogFile: cfg.LogFile, PIDFile: cfg.PIDFile, KillGroup: true, HoldStdin: true, StopTimeout: 2 * time.Second,
	})
	return m
}

// Run watches until ctx ends. The error is nil after an orderly stop.
func (m *Monitor) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	m.mu.Lock()
	m.started = time.Now()
	m.mu.Unlock()
	var tasks sync.WaitGroup
	tasks.Go(func() { m.watchSilence(ctx) })
	err := m.child.Run(ctx)
	cancel()
	tasks.Wait()
	m.owners.forgetAll()
	return err
}

// Latest returns the newest snapshot; false before the first.
func (m *Monitor) Latest() (Snapshot, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.latest, m.have
}

// Probe returns what the probe's process is doing.
func (m *Monitor) Probe() supervise.State { return m.child.State() }

// Restart starts the probe anew, for a driver that has changed.
func (m *Monitor) Restart() { m.child.Restart() }

// sample takes one line of the probe's output.
func (m *Monitor) sample(line []byte) {
	var s Snapshot
	err := json.Unmarshal(line, &s)
	if err == nil && s.Time.IsZero() {
		err = errors.New("it has no time")
	}
	if err != nil {
		m.refuse(line, err)
		return
	}
	s.Node = m.cfg.Node
	m.mu.Lock()
	m.heard, m.nonsense = time.Now(), ""
	m.identify(&s)
	m.mu.Unlock()
	m.owners.complete(s.GPUs, time.Now())
	m.findHolders(s.GPUs)
	m.publish(s)
}

// findHolders adds who has been given each GPU, or one of its MIG instances.
func (m *Monitor) findHolders(gpus []GPU) {
	for i := range gpus {
		g := &gpus[i]
		g.Holders = m.cfg.Holders.Of(g.UUID)
		for _, in := range g.Instances {
			for _, h := range m.cfg.Holders.Of(in.UUID) {
				h.Instance = in.UUID
				g.Holders = append(g.Holders, h)
			}
		}
	}
}

// refuse notes a line that is no sample, and logs the first of several.
func (m *Monitor) refuse(line []byte, err error) {
	const enough = 40
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.nonsense == "" {
		slog.Warn("the GPU probe wrote a line that is no sample", "err", err, "bytes", len(line), "begins",
			string(line[:min(len(line), enough)]))
	}
	m.nonsense = fmt.Sprintf("the GPU probe writes what is no sample, last a line of %d bytes", len(line))
}

// identify fills in what a GPU is where the probe could not ask it, and keeps
// showing a GPU that the driver has ceased to report. m.mu is held.
func (m *Monitor) identify(s *Snapshot) {
	reported := make(map[string]bool)
	for _, g := range s.GPUs {
		reported[g.UUID] = true
	}
	for i := range s.GPUs {
		d := &s.GPUs[i].Device
		if d.UUID == "" {
			m.recall(d, reported)
			reported[d.UUID] = true
		}
		if d.UUID != "" {
			m.devices[d.UUID] = *d
		}
	}
	for _, uuid := range slices.Sorted(maps.Keys(m.devices)) {
		if d := m.devices[uuid]; !reported[uuid] {
			s.GPUs = append(s.GPUs, GPU{Device: d, Reading: Reading{
				Error: fmt.Sprintf("GPU %d is no longer reported by the driver.", d.Index),
			}})
		}
	}
	for i := range s.GPUs {
		m.recallParts(&s.GPUs[i])
	}
	// The others may have got new numbers: those that are there come first.
	slices.SortStableFunc(s.GPUs, func(a, b GPU) int { return cmp.Compare(a.Index, b.Index) })
}

// recallParts keeps saying of what a GPU in MIG mode consists while it cannot be
// read: who holds it is known by that. m.mu is held.
func (m *Monitor) recallParts(g *GPU) {
	if g.Error == "" {
		m.parts[g.UUID] = g.Instances
		return
	}
	if g.Instances != nil {
		return
	}
	for _, in := range m.parts[g.UUID] {
		in.MemoryUsed = nil
		g.Instances = append(g.Instances, in)
	}
}

// recall finds the GPU that a nameless one was, by its place in the machine or,
// where not even that is known, by its number.
func (m *Monitor) recall(d *Device, reported map[string]bool) {
	for _, uuid := range slices.Sorted(maps.Keys(m.devices)) {
		known := m.devices[uuid]
		if reported[uuid] || d.PCIBusID != "" && d.PCIBusID != known.PCIBusID || d.PCIBusID == "" && d.Index != known.Index {
			continue
		}
		known.Index = d.Index
		*d = known
		return
	}
}

func (m *Monitor) publish(s Snapshot) {
	m.mu.Lock()
	m.latest, m.have = s, true
	m.mu.Unlock()
	m.cfg.Publish(s)
}

// watchSilence publishes what is wrong while no samples come.
func (m *Monitor) watchSilence(ctx context.Context) {
	tick := time.NewTicker(m.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if s, silent := m.silent(now); silent {
				m.publish(s)
			}
		}
	}
}

// silent returns the snapshot for a probe that has not been heard for a while.
func (m *Monitor) silent(now time.Time) (Snapshot, bool) {
	patience := max(3*m.cfg.Interval, 3*time.Second)
	m.mu.Lock()
	heard, s, nonsense := m.heard, m.latest, m.nonsense
	since := heard
	if since.IsZero() {
		since = m.started
	}
	m.mu.Unlock()

	reason := m.stopped()
	// A driver that cannot be asked need not be waited for.
	if now.Sub(since) < patience && (reason == "" || !heard.IsZero()) {
		return Snapshot{}, false
	}
	if reason == "" && nonsense != "" {
		reason = sentence(nonsense)
	}
	if reason == "" {
		reason = fmt.Sprintf("The GPU probe has been silent for %d s.", int(now.Sub(since).Seconds()))
	}
	s.Node, s.Error, s.Events, s.EventsDropped = m.cfg.Node, reason, nil, 0
	s.GPUs = slices.Clone(s.GPUs)
	m.findHolders(s.GPUs)
	return s, true
}

// stopped says why the probe does not run, "" if it does.
func (m *Monitor) stopped() string {
	state := m.child.State()
	if state.Running || state.Restarts == 0 && state.LastExit == "" {
		return ""
	}
	// Killed, it has not said why: the last line is about something else then.
	if lines := m.child.LastLines(1); len(lines) == 1 && strings.HasPrefix(state.LastExit, "exit status ") {
		if said, ok := strings.CutPrefix(lines[0], "gpulab-probe: "); ok {
			return sentence(said)
		}
	}
	return sentence("the GPU probe has stopped (" + state.LastExit + ") and is started again")
}

// sentence writes an error for people: with a capital letter and a full stop.
func sentence(s string) string {
	s = strings.TrimRight(s, ".")
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:] + "."
}
