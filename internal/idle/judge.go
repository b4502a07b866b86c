package idle

import "time"

// row is what the database has of a notebook.
type row struct {
	launch        int64
	looked, began time.Time
	seen          [5]time.Time // in the order of Kinds
	opened        time.Time    // when somebody was seen to use it first, zero for never
	state         State
	cause         Cause
	reason        string
	warned, ends  time.Time
	until         time.Time
	extensions    int
	wantedLaunch  int64
	wantedBy      string
}

// The places in seen.
const (
	seenGPU = iota
	seenCPU
	seenKernel
	seenTerminal
	seenNetwork
)

// begin is the row of a notebook that is seen for the first time.
func begin(n Notebook, now time.Time) row {
	at := n.Ready
	if at.IsZero() || at.After(now) {
		at = now
	}
	r := row{launch: n.Launch, looked: now, began: at, state: Free}
	for i := range r.seen {
		r.seen[i] = at
	}
	return r
}

// sight is what a look at a notebook has found.
type sight struct {
	watched           bool // it could be measured; if not, no time has passed
	browsed           bool // by a browser, so far
	gpu, cpu, network bool // at work since the last look
	claims            *Claims
}

// tooLong is how long after a look the next one may come for the time in between to count.
const tooLong = 90 * time.Second

// look takes a sight into account.
func (r *row) look(now time.Time, s sight) {
	passed := now.Sub(r.looked)
	switch {
	case passed < 0: // somebody has set the clock back: all times with it
		r.shift(passed)
	case !s.watched || passed > tooLong:
		r.shift(passed)
	}
	r.looked = now
	defer r.open(s.browsed, now)
	if !s.watched {
		return
	}
	for i, at := range [5]bool{seenGPU: s.gpu, seenCPU: s.cpu, seenNetwork: s.network} {
		if at {
			r.seen[i] = now
		}
	}
	if s.claims == nil || now.Sub(r.measured()) > believed {
		return
	}
	if s.claims.KernelBusy {
		r.seen[seenKernel] = now
	}
	r.claim(seenKernel, s.claims.Kernel, now)
	r.claim(seenTerminal, s.claims.Terminal, now)
}

// open notes that a notebook has come into use: in a browser, or by a program with its owner's token. Its server alone
// takes processors and network, too.
func (r *row) open(browsed bool, now time.Time) {
	if r.opened.IsZero() && (browsed || later(r.seen[seenGPU], r.seen[seenKernel], r.seen[seenTerminal]).After(r.began)) {
		r.opened = now
	}
}

// forgotten tells whether a notebook that was waited for has not been opened. Its own page opens it at once, and it may
// take a moment.
func (r *row) forgotten(n Notebook, now time.Time) bool {
	return n.Waited && r.opened.IsZero() && n.Policy.Unopened > 0 && now.Sub(r.began) >= n.Policy.Unopened/10
}

// claim believes a time that is neither in the future nor before what is known.
func (r *row) claim(kind int, at, now time.Time) {
	if at.After(now) {
		at = now
	}
	if at.After(r.seen[kind]) {
		r.seen[kind] = at
	}
}

// shift takes time out that did not count.
func (r *row) shift(by time.Duration) {
	move := func(t *time.Time) {
		if !t.IsZero() {
			*t = t.Add(by)
		}
	}
	for i := range r.seen {
		move(&r.seen[i])
	}
	for _, t := range []*time.Time{&r.began, &r.opened, &r.ends, &r.until} {
		move(t)
	}
}

// measured is when something was last measured from outside.
func (r *row) measured() time.Time {
	return later(r.seen[seenGPU], r.seen[seenCPU], r.seen[seenNetwork])
}

// used is when the notebook was last used, by the measure of a policy.
func (r *row) used(p Policy) time.Time {
	if p.Unused > 0 && r.looked.Sub(r.seen[seenGPU]) >= p.Unused {
		return r.seen[seenGPU]
	}
	return later(r.seen[:]...)
}

func later(times ...time.Time) (latest time.Time) {
	for _, t := range times {
		if t.After(latest) {
			latest = t
		}
	}
	return latest
}

// holding is the row as others see it.
func (r *row) holding(n Notebook) Holding {
	h := Holding{Notebook: n, State: r.state, Cause: r.cause, Seen: map[Kind]time.Time{}, IdleSince: r.used(n.Policy),
		Since:  r.began,
		Warned: r.warned, Ends: r.ends, Until: r.until, Extensions: r.extensions, WantedBy: r.wantedBy,
		WantedLaunch: r.wantedLaunch}
	for i, k := range Kinds() {
		h.Seen[k] = r.seen[i]
	}
	if r.forgotten(n, r.looked) {
		h.Forgotten, h.IdleSince = true, r.began
	}
	h.Idle, h.Unused = r.looked.Sub(h.IdleSince), r.looked.Sub(r.seen[seenGPU])
	return h
}

// rates compares two measurements of a pod; known is false where nothing new was measured.
func rates(before, now Usage) (cpu, network, known bool) {
	passed := now.At.Sub(before.At)
	if before.At.IsZero() || passed < time.Second || now.CPU < before.CPU {
		return false, false, false
	}
	cores := float64(now.CPU-before.CPU) / float64(passed)
	bytes := float64(now.Bytes-before.Bytes) / passed.Seconds()
	return cores >= busyCores, bytes >= busyBytes, true
}
