package users

import (
	"fmt"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
)

// Failed sign-ins are recorded, but whoever guesses must not fill the disk or bury everything else: each
// account has failuresEach entries a minute, then one that sums up the rest of it. All accounts together
// share failuresBurst entries at once and one more every failuresEvery; what goes beyond is summed up every
// failuresSum. So a year of guessing with ever new names writes 1.6 million entries, some hundred megabytes.
const (
	failuresEach  = 5
	failuresBurst = 60
	failuresEvery = 20 * time.Second
	failuresSum   = 10 * time.Minute

	lookEvery = 5 * time.Second
)

// A failure is a sign-in that did not work.
type failure struct {
	handle string // of the account; empty for a name that nobody has: it may be a mistyped password
	remote string
	why    string
}

// failures decides which failed sign-ins become entries of the audit log.
type failures struct {
	mu      sync.Mutex
	windows map[string]*failureWindow
	looked  time.Time // when windows were last looked through
	tokens  float64
	filled  time.Time
	rest    failureSum // what no window has room for
	summed  time.Time  // when rest was last recorded
}

type failureWindow struct {
	start   time.Time
	written int
	more    failureSum
}

// failureSum counts what was not recorded one by one.
type failureSum struct {
	n    int
	last failure
}

func newFailures() *failures {
	return &failures{windows: map[string]*failureWindow{}, tokens: failuresBurst}
}

// add counts a failure and returns what is to be recorded now.
func (f *failures) add(failed failure, now time.Time) []audit.Entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	entries := f.due(now, false)
	key := failed.handle
	if key == "" {
		key = "from " + remoteKey(failed.remote) // no handle has a space
	}
	w := f.windows[key]
	switch {
	case w == nil && len(f.windows) >= maxTracked:
		f.rest.add(failed, 1)
		return entries
	case w == nil:
		w = &failureWindow{start: now}
		f.windows[key] = w
	}
	if w.written < failuresEach && f.take(now) {
		w.written++
		return append(entries, failed.entry())
	}
	w.more.add(failed, 1)
	return entries
}

// flush returns what is to be recorded of windows that are over; of all, at the end.
func (f *failures) flush(now time.Time, all bool) []audit.Entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.due(now, all)
}

func (f *failures) due(now time.Time, all bool) []audit.Entry {
	var entries []audit.Entry
	if since := now.Sub(f.looked); !all && since >= 0 && since < lookEvery {
		return nil // a flood must not look through all windows each time
	}
	f.looked = now
	for key, w := range f.windows {
		if !all && now.Sub(w.start) < time.Minute {
			continue
		}
		delete(f.windows, key)
		switch {
		case w.more.n == 0:
		case f.take(now):
			entries = append(entries, w.more.entry())
		default:
			f.rest.add(w.more.last, w.more.n)
		}
	}
	if f.rest.n > 0 && (all || now.Sub(f.summed) >= failuresSum) {
		rest := f.rest.entry()
		rest.Target = ""
		entries = append(entries, rest)
		f.rest, f.summed = failureSum{}, now
	}
	return entries
}

// take takes the right to write one entry, if there is one.
func (f *failures) take(now time.Time) bool {
	if passed := now.Sub(f.filled); passed > 0 {
		f.tokens = min(failuresBurst, f.tokens+float64(passed)/float64(failuresEvery))
		f.filled = now
	}
	if f.tokens < 1 {
		return false
	}
	f.tokens--
	return true
}

func (s *failureSum) add(last failure, n int) {
	s.n += n
	s.last = last
}

func (f failure) entry() audit.Entry {
	return audit.Entry{Actor: "system", Action: "sign-in.failed", Target: f.handle, Detail: f.why, Remote: f.remote}
}

func (s failureSum) entry() audit.Entry {
	return audit.Entry{Actor: "system", Action: "sign-in.failed-often", Target: s.last.handle,
		Detail: fmt.Sprintf("%s; the last one: %s", plural(s.n, "more failed sign-in"), s.last.why), Remote: s.last.remote}
}
