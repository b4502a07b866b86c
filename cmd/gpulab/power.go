package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/power"
	"github.com/gpulab/gpulab/internal/units"
)

// machineAsleep is how long this machine has slept since it was booted.
func machineAsleep() time.Duration {
	_, asleep := power.SystemClock()
	return asleep
}

// newPower is what keeps this machine awake. When it slept is in its history,
// the last time also in memory.
func (l *appliance) newPower(ctx context.Context) *power.Keeper {
	events, err := l.history.Events(ctx, history.EventFilter{
		Node: l.id.NodeName, Kind: history.EventAsleep, From: time.Now().Add(-sleptShown), Limit: 1,
	})
	if err == nil && len(events) == 1 { // history says itself what is wrong with it
		l.asleep.Store(&power.Sleep{From: events[0].First, To: events[0].Last})
	}
	return power.New(power.Config{
		Policy: power.Policy(l.cfg.StayAwake), Busy: l.runningNotebooks,
		Kept: l.outlived.take(stayAwakeLock), Keep: keepLock,
		Slept: func(s power.Sleep) {
			l.asleep.Store(&s)
			l.history.Slept(l.id.NodeName, s.From, s.To)
		},
	})
}

// runningNotebooks counts those that would stand still if the machine slept.
func (l *appliance) runningNotebooks(ctx context.Context) (int, error) {
	parts := l.attached.Load()
	if parts == nil {
		return 0, errStarting
	}
	active, err := parts.notebooks.Active(ctx)
	if err != nil {
		return 0, err
	}
	n := 0
	for i := range active {
		if active[i].State == notebooks.Running || active[i].State == notebooks.Starting {
			n++
		}
	}
	return n, nil
}

// sleptShown is how long people are told that the machine was asleep.
const sleptShown = 24 * time.Hour

// machineNotes is what everybody should know of this machine, a sentence each.
func (l *appliance) machineNotes() []string {
	var notes []string
	if head := l.stayHome(); head != "" {
		notes = append(notes, "Notebooks start on "+head+" only: homes are on its own disk.")
	}
	if text := stayingAwake(l.power.State()); text != "" {
		notes = append(notes, text)
	}
	if s, ok := l.lastSleep(); ok {
		notes = append(notes, "This machine was asleep "+s+". That time counts for nobody.")
	}
	return notes
}

// lastSleep says when this machine slept last, if that was lately: also before
// gpulab was started again.
func (l *appliance) lastSleep() (string, bool) {
	s := l.asleep.Load()
	if s == nil || time.Since(s.To) > sleptShown {
		return "", false
	}
	return units.FromTo(s.From.Local(), s.To.Local()), true
}

func stayingAwake(s power.State) string {
	if !s.Held {
		return ""
	}
	text := "This machine stays awake while " + countRuns(s.Notebooks)
	if s.LidCloses {
		text += " and its lid is open"
	}
	return text + "."
}

func countRuns(notebooks int) string {
	switch notebooks {
	case 0:
		return "gpulab starts" // and keeps it awake for what ran before
	case 1:
		return "1 notebook runs"
	}
	return fmt.Sprintf("%d notebooks run", notebooks)
}

// sleepComponent says whether the machine may fall asleep, and when it did.
func (l *appliance) sleepComponent() ctl.Component {
	c := ctl.Component{Name: "sleep", State: ctl.OK}
	switch s := l.power.State(); {
	case s.Problem != "":
		c.State, c.Detail = ctl.Warning, fmt.Sprintf("this machine may fall asleep while %s: %s", countRuns(s.Notebooks),
			s.Problem)
		c.NextStep = "see `journalctl -u systemd-logind`; `stayAwake: off` in /etc/gpulab/config.yaml leaves it to the system"
	case s.Held:
		c.Detail = fmt.Sprintf("this machine stays awake while %s", countRuns(s.Notebooks))
		if s.LidCloses {
			c.Detail += " and its lid is open"
		}
	case power.Policy(l.cfg.StayAwake) == power.Never:
		c.State, c.Detail = ctl.Off, "whether this machine sleeps is left to the system (stayAwake: off)"
	default:
		c.Detail = "nothing keeps this machine awake"
	}
	if s, ok := l.lastSleep(); ok {
		c.Detail += "; it was asleep " + s
	}
	return c
}
