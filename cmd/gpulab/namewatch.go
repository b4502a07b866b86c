package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/doctor"
)

// How often name servers are asked: one that works, and one that does not.
const (
	namesEvery = time.Minute
	namesRetry = 15 * time.Second
)

// nameWatch knows whether notebooks can look up names outside the lab. No start waits
// for it; its zero value knows nothing yet.
type nameWatch struct {
	last atomic.Pointer[ctl.Component]
}

// run asks from time to time, in the doctor's words.
func (w *nameWatch) run(ctx context.Context, look func(context.Context) []doctor.Finding) error {
	for {
		now := namesComponent(look(ctx))
		if ctx.Err() != nil {
			return nil
		}
		before := w.last.Swap(&now)
		if now.State != ctl.OK && (before == nil || before.Detail != now.Detail) {
			slog.Warn("name servers do not work as they should", "why", now.Detail)
		}
		pause := namesEvery
		if now.State != ctl.OK {
			pause = namesRetry
		}
		if !sleep(ctx, pause) {
			return nil
		}
	}
}

// component is what was seen last; none before the first answer.
func (w *nameWatch) component() []ctl.Component {
	if c := w.last.Load(); c != nil {
		return []ctl.Component{*c}
	}
	return nil
}

// lookAtNames runs the doctor's probe of name servers on this machine.
func lookAtNames(a *app) func(context.Context) []doctor.Finding {
	return func(ctx context.Context) (found []doctor.Finding) {
		opts := doctorOptions(a)
		probes := slices.DeleteFunc(doctor.ProbesFor(opts.Joined != nil), func(p doctor.Probe) bool {
			return p.Name != "resolver"
		})
		doctor.Run(ctx, probes, opts, doctor.Watcher{Done: func(_ doctor.Probe, list []doctor.Finding) { found = list }})
		return found
	}
}

// namesComponent is what the doctor found, as a part of the lab. It is a warning at
// most: the lab works without names.
func namesComponent(found []doctor.Finding) ctl.Component {
	c := ctl.Component{Name: doctor.NamesPart, State: ctl.OK}
	var all, bad []string
	for _, f := range found {
		all = append(all, f.Seen)
		if f.State != doctor.OK {
			bad = append(bad, f.Seen)
		}
	}
	c.Detail = strings.TrimSuffix(strings.Join(all, " "), ".")
	if bad != nil {
		c.State, c.Detail = ctl.Warning, strings.TrimSuffix(strings.Join(bad, " "), ".")
		c.NextStep = "`gpulab doctor resolver` says what that means and what to do"
	}
	return c
}
