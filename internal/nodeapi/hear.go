package nodeapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/nodes"
)

// Limits of what one machine may tell.
const (
	mostGPUs     = 64
	mostFeatures = 64
	mostEvents   = 1000
	mostImages   = 256
	mostVersions = 1000 // of environments, and pods with their programs
	// A machine reports every second. What has waited on the way comes at once,
	// and may be small; who goes on like that is cut off.
	linesPerSecond = 50
	linesBurst     = 2000
	// What is handed on of it. Of readings in between, the newest counts.
	reportsPerSecond = 4
	reportsBurst     = 8
)

// hear takes what a machine tells until the stream ends. Readings that the head
// is too busy for give way to newer ones.
func (h *handler) hear(ctx context.Context, r *http.Request, n nodes.Node, l *live) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = r.Body.Close() })
	in := &inbox{wake: make(chan struct{}, 1)}
	read := make(chan error, 1)
	go func() {
		err := in.fill(r, n, l)
		close(in.wake)
		read <- err
	}()
	err := h.handOn(ctx, n, in)
	cancel() // ends the reading, too
	if read := <-read; err == nil {
		err = read
	}
	if l := (*lieError)(nil); errors.As(err, &l) {
		h.Head.Refused(context.WithoutCancel(ctx), n.Name, r.RemoteAddr, err.Error())
	}
	return err
}

// lieError is a stream that no machine of ours sends.
type lieError struct{ error }

func (h *handler) handOn(ctx context.Context, n nodes.Node, in *inbox) error {
	limit, seen := rate.NewLimiter(reportsPerSecond, reportsBurst), time.Now()
	for range in.wake {
		report := in.take()
		if report == nil {
			continue
		}
		if err := h.Head.Report(ctx, n, *report); err != nil {
			return &lieError{err}
		}
		if time.Since(seen) > time.Minute {
			seen = time.Now()
			if err := h.Registry.Saw(ctx, n.ID, n.Address, n.Version); err != nil {
				return err
			}
		}
		if limit.Wait(ctx) != nil {
			return nil
		}
	}
	return nil
}

// inbox holds the newest report that was not handed on yet.
type inbox struct {
	wake chan struct{} // has room for one; closed when nothing comes any more

	mu      sync.Mutex
	pending *Report
}

func (in *inbox) take() *Report {
	in.mu.Lock()
	defer in.mu.Unlock()
	r := in.pending
	in.pending = nil
	return r
}

func (in *inbox) put(r *Report) {
	in.mu.Lock()
	if in.pending != nil {
		r.Snapshot = r.Snapshot.After(in.pending.Snapshot, mostEvents)
	}
	in.pending = r
	in.mu.Unlock()
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// fill reads reports until the stream ends, or is not believed.
func (in *inbox) fill(r *http.Request, n nodes.Node, l *live) error {
	lines := bufio.NewScanner(r.Body)
	lines.Buffer(make([]byte, 16<<10), longLine)
	limit, clock := rate.NewLimiter(linesPerSecond, linesBurst), &clock{}
	for lines.Scan() {
		l.hear()
		if !limit.Allow() {
			return &lieError{fmt.Errorf("the machine %s sent more readings than one can have", n.Name)}
		}
		report := &Report{}
		if err := json.Unmarshal(lines.Bytes(), report); err != nil {
			return &lieError{fmt.Errorf("the machine %s sent what is no reading; %w", n.Name, err)}
		}
		if report.Kind != "" {
			continue
		}
		if err := believable(n, report); err != nil {
			return &lieError{err}
		}
		now := time.Now()
		report.ClockOff = clock.set(&report.Snapshot, now)
		tidy(report, now.Add(clockTolerance))
		in.put(report)
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return &lieError{fmt.Errorf("the machine %s sent a reading of more than %d kB", n.Name, longLine/1000)}
	}
	return lines.Err()
}

// believable refuses what a machine cannot know or be.
func believable(n nodes.Node, r *Report) error {
	s := &r.Snapshot
	switch {
	case s.Node != n.Name:
		return fmt.Errorf("the machine %s spoke for %.60q, and machines speak for themselves only", n.Name, s.Node)
	case len(s.GPUs) > mostGPUs:
		return fmt.Errorf("the machine %s told of %d GPUs, more than one can have", n.Name, len(s.GPUs))
	case len(r.Features) > mostFeatures:
		return fmt.Errorf("the machine %s told of %d features, more than GPUs have", n.Name, len(r.Features))
	case r.Images != nil && len(r.Images.Have) > mostImages:
		return fmt.Errorf("the machine %s told of %d images, more than a lab has", n.Name, len(r.Images.Have))
	case r.Environments != nil && max(len(r.Environments.Have), len(r.Environments.Uses)) > mostVersions:
		return fmt.Errorf("the machine %s told of more environments than a lab has, or than it can use", n.Name)
	}
	return nil
}

// clock compares a machine's clock with the head's, by which all is told. A
// reading may be late, but never early: the least difference of the latest few
// is the clocks', but for the shortest way.
type clock struct {
	recent [8]time.Duration
	n      int
}

// clockTolerance is the difference that is left alone: ways take time.
const clockTolerance = 2 * time.Second

// furthestClock is how far a clock can be off: one whose battery is empty begins in 1970.
const furthestClock = 100 * 365 * 24 * time.Hour

// set puts a reading, which came at now, on the head's clock, and returns how
// far the machine's is ahead of that; 0 where it does not matter.
func (c *clock) set(s *gpu.Snapshot, now time.Time) (ahead time.Duration) {
	// With an error, the time is of the readings before.
	if s.Time.IsZero() || s.Error != "" && !s.Time.After(now.Add(clockTolerance)) {
		return 0
	}
	if now.Sub(s.Time).Abs() > furthestClock {
		s.Time = now // no difference of clocks can be worked out
	}
	c.recent[c.n%len(c.recent)] = now.Sub(s.Time)
	c.n++
	behind := c.recent[0]
	for _, d := range c.recent[:min(c.n, len(c.recent))] {
		behind = min(behind, d)
	}
	if behind.Abs() <= clockTolerance {
		return 0
	}
	s.Time = s.Time.Add(behind)
	for i := range s.Events {
		s.Events[i].Time = s.Events[i].Time.Add(behind)
	}
	return -behind
}
