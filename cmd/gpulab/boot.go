package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
)

// boot is the way from nothing to a lab that is ready, as people watch it:
// named stages in a fixed order, some of which run side by side.
type boot struct {
	mu      sync.Mutex
	state   ctl.Boot
	began   map[string]time.Time
	changed chan struct{} // closed and replaced at every change
}

func newBoot(serving, inputs string, stages ...string) *boot {
	b := &boot{
		began: map[string]time.Time{}, changed: make(chan struct{}),
		state: ctl.Boot{Serving: serving, Inputs: inputs, Try: 1},
	}
	for _, s := range stages {
		b.state.Stages = append(b.state.Stages, ctl.Stage{Name: s, State: "waiting"})
	}
	return b
}

// stage is a handle for what one stage reports.
type stage struct {
	b    *boot
	name string
}

// say tells what the stage is doing, or why it takes long.
func (s *stage) say(format string, args ...any) {
	s.b.update(s.name, func(st *ctl.Stage) { st.Detail = fmt.Sprintf(format, args...) })
}

// changed notes that the stage did something.
func (s *stage) changed() { s.b.update(s.name, func(st *ctl.Stage) { st.Changed = true }) }

// do runs one stage. Its error ends the try and is what people read; a stage
// that is called off because another failed has not begun.
func (b *boot) do(name string, fn func(*stage) error) error {
	b.mu.Lock()
	b.began[name] = time.Now()
	b.mu.Unlock()
	b.update(name, func(s *ctl.Stage) { s.State = "active" })
	err := fn(&stage{b, name})
	b.update(name, func(s *ctl.Stage) {
		s.State = "done"
		s.Elapsed = time.Since(b.began[name])
		switch {
		case errors.Is(err, context.Canceled):
			s.State, s.Detail = "waiting", ""
		case err != nil:
			s.State, s.Detail = "failed", err.Error()
		}
		slog.Info("start", "stage", name, "state", s.State, "took", s.Elapsed.Round(time.Millisecond), "detail", s.Detail)
	})
	return err
}

func (b *boot) update(name string, fn func(*ctl.Stage)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.state.Stages {
		if b.state.Stages[i].Name == name {
			fn(&b.state.Stages[i])
		}
	}
	b.wake()
}

// finish marks the end of the way.
func (b *boot) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state.Ready, b.state.Before = true, ""
	slog.Info("the lab is ready", "try", b.state.Try)
	b.wake()
}

// failed marks the end of a try, and says when the next one begins.
func (b *boot) failed(err error, next time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state.Failed, b.state.Next = err.Error(), next
	slog.Error("the lab did not become ready; trying again", "err", err, "try", b.state.Try, "next",
		next.Format(time.TimeOnly))
	b.wake()
}

// again begins another try.
func (b *boot) again() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state.Before, b.state.Failed, b.state.Next = b.state.Failed, "", time.Time{}
	b.state.Try++
	for i := range b.state.Stages {
		if s := &b.state.Stages[i]; s.State == "failed" {
			s.State, s.Detail, s.Elapsed = "waiting", "", 0
		}
	}
	b.wake()
}

// wake tells watchers; the lock is held.
func (b *boot) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// now returns the state and a channel that closes at the next change.
func (b *boot) now() (ctl.Boot, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.state
	out.Stages = append([]ctl.Stage(nil), b.state.Stages...)
	for i, s := range out.Stages {
		if s.State == "active" {
			out.Stages[i].Elapsed = time.Since(b.began[s.Name])
		}
	}
	return out, b.changed
}

// watch calls fn with every change until the way or a try of it ends, and at
// least twice a second, so that running stages count.
func (b *boot) watch(ctx context.Context, fn func(ctl.Boot) error) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		state, changed := b.now()
		if err := fn(state); err != nil {
			return err
		}
		if state.Ready || state.Failed != "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-tick.C:
		}
	}
}
