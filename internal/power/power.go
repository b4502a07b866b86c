// Package power keeps this machine awake while notebooks run on it, as far as
// the system lets it, and notices when it has slept all the same: a laptop is
// closed, or somebody insists.
//
// It imports no other package of gpulab. A machine without systemd-logind, such
// as a container, is left alone: there is nothing that would put it to sleep.
package power

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Policy says what keeps a machine awake while notebooks run.
type Policy string

// The policies.
const (
	// Always keeps it awake, with its lid closed too.
	Always Policy = "notebooks"
	// LidOpen lets it sleep when its lid is closed.
	LidOpen Policy = "lid-open"
	// Never leaves it to the system.
	Never Policy = "off"
)

// Clock tells the time of the day, and how long the machine has slept since it
// was booted.
type Clock func() (wall time.Time, asleep time.Duration)

// SystemClock reads the kernel's clocks: one of them goes on while the machine
// sleeps, the other does not.
func SystemClock() (wall time.Time, asleep time.Duration) {
	var awake, all unix.Timespec
	// In this order: what passes in between would look like a little sleep.
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake) != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &all) != nil {
		return time.Now(), 0
	}
	return time.Now(), time.Duration(all.Nano() - awake.Nano())
}

// Sleep is a time in which the machine slept.
type Sleep struct{ From, To time.Time }

// Lasted is how long it was. The clocks that people read may have been set
// meanwhile, so To is when it woke, and From what follows from that.
func (s Sleep) Lasted() time.Duration { return s.To.Sub(s.From) }

// Config describes a Keeper. Busy is needed, the zero value of everything else works.
type Config struct {
	// Busy is how many notebooks run. It is asked every few seconds.
	Busy func(context.Context) (int, error)
	// Kept is the lock of a keeper before this one that outlived it: it holds until
	// it is known how many notebooks run, but no longer than a start may take. Nil for
	// none.
	Kept *os.File
	// Keep is given every lock, so that a copy of it can outlive this process, and nil
	// when there is none any more.
	Keep func(lock *os.File)
	// Policy says what keeps the machine awake. Default Always.
	Policy Policy
	// Slept is told of every sleep, soon after it.
	Slept func(Sleep)
	// Bus is the address of the system's D-Bus. Default: where the environment
	// or the standard says.
	Bus string
	// Clock is the machine's. Default SystemClock.
	Clock Clock
	// Every is how often it looks. Default 1 s.
	Every time.Duration
	// Retry is how long it waits after trouble with logind. Default 15 s.
	Retry time.Duration
	// Log is where changes are told. Default slog.Default().
	Log *slog.Logger
}

// State is what keeps the machine awake now.
type State struct {
	// Held says that it is kept awake, for so many notebooks; for none yet by a lock
	// that was kept.
	Held      bool
	Notebooks int
	// LidCloses says that closing its lid lets it sleep all the same.
	LidCloses bool
	// Problem is why it is not kept awake although notebooks run; "" where it
	// is, or where nothing puts it to sleep.
	Problem string
}

// Keeper keeps the machine awake. Its methods may be called from any goroutine.
type Keeper struct {
	cfg Config

	mu    sync.Mutex
	state State
}

// New returns a keeper that does nothing until Run.
func New(cfg Config) *Keeper {
	if cfg.Policy == "" {
		cfg.Policy = Always
	}
	if cfg.Keep == nil {
		cfg.Keep = func(*os.File) {}
	}
	if cfg.Slept == nil {
		cfg.Slept = func(Sleep) {}
	}
	if cfg.Clock == nil {
		cfg.Clock = SystemClock
	}
	if cfg.Every == 0 {
		cfg.Every = time.Second
	}
	if cfg.Retry == 0 {
		cfg.Retry = 15 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Keeper{cfg: cfg, state: State{Held: cfg.Kept != nil}}
}

// State tells what is so now.
func (k *Keeper) State() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state
}

func (k *Keeper) change(fn func(*State)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fn(&k.state)
}

// keptFor is how long it may be unknown what runs while a kept lock holds.
const keptFor = 15 * time.Minute

// shortest is the least that counts as sleep.
const shortest = 2 * time.Second

// Run keeps the machine awake and watches for sleep until ctx ends; then the
// machine may sleep as far as gpulab goes, unless somebody keeps the lock.
func (k *Keeper) Run(ctx context.Context) error {
	held, began := kept(k.cfg.Kept), time.Now()
	defer func() { held.release() }()
	_, before := k.cfg.Clock()
	var retryAt time.Time
	tick := time.NewTicker(k.cfg.Every)
	defer tick.Stop()
	for {
		before = k.lookForSleep(before)
		if held != nil && held.lost() {
			k.cfg.Log.Warn("the system does not keep this machine awake any more; asking again")
			held = k.letGo(held)
		}
		if held != nil && held.isKept() && (k.cfg.Policy == Never || time.Since(began) > keptFor) {
			held = k.letGo(held)
			k.change(func(st *State) { st.Held = false })
		}
		held, retryAt = k.settle(ctx, held, retryAt)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// lookForSleep tells of the sleep since the last look, and returns how long the
// machine has slept by now.
func (k *Keeper) lookForSleep(before time.Duration) time.Duration {
	wall, asleep := k.cfg.Clock()
	lasted := asleep - before
	if lasted < shortest {
		return min(before, asleep) // what is too short adds up
	}
	s := Sleep{From: wall.Add(-lasted).UTC(), To: wall.UTC()}
	k.cfg.Log.Info("this machine was asleep", "from", s.From, "to", s.To, "lasted", lasted.Round(time.Second))
	k.cfg.Slept(s)
	return asleep
}

// settle takes hold of the machine or lets it go, as the notebooks want it.
func (k *Keeper) settle(ctx context.Context, held *inhibitor, retryAt time.Time) (*inhibitor, time.Time) {
	busy, err := k.cfg.Busy(ctx)
	if err != nil {
		return held, retryAt // as before: it is not known
	}
	if busy == 0 || k.cfg.Policy == Never {
		if held != nil {
			k.cfg.Log.Info("this machine may sleep")
		}
		held = k.letGo(held)
		k.change(func(st *State) { st.Held, st.Notebooks, st.Problem = false, busy, "" })
		return held, time.Time{}
	}
	if (held == nil || held.isKept()) && !time.Now().Before(retryAt) {
		var fresh *inhibitor
		fresh, err = inhibit(ctx, k.cfg.Bus, k.cfg.Policy, whyAwake(busy))
		switch {
		case err == nil:
			held.release() // now, so that it never was without one
			held = fresh
			k.cfg.Keep(held.lock)
			k.cfg.Log.Info("this machine stays awake", "notebooks", busy, "policy", k.cfg.Policy)
		case errors.Is(err, errNobody):
			held = k.letGo(held)
		default:
			k.cfg.Log.Warn("this machine cannot be kept awake", "err", err)
		}
		problem := ""
		if err != nil {
			retryAt = time.Now().Add(k.cfg.Retry)
			if held == nil && !errors.Is(err, errNobody) {
				problem = err.Error()
			}
		}
		k.change(func(st *State) { st.Problem = problem })
	}
	k.change(func(st *State) {
		st.Held, st.Notebooks, st.LidCloses = held != nil, busy, k.cfg.Policy == LidOpen
	})
	return held, retryAt
}

// letGo has nothing keep the machine awake.
func (k *Keeper) letGo(held *inhibitor) *inhibitor {
	if held != nil {
		held.release()
		k.cfg.Keep(nil)
	}
	return nil
}

// whyAwake is what `systemd-inhibit --list` shows.
func whyAwake(notebooks int) string {
	if notebooks == 1 {
		return "a notebook runs"
	}
	return fmt.Sprintf("%d notebooks run", notebooks)
}
