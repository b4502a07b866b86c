package users

import (
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/peers"
)

// A policy says how tries at a password get slower and then stop.
type policy struct {
	free    int           // tries without any wait
	lockAt  int           // this many and the door is locked
	maxWait time.Duration // the longest wait before that; it doubles from one second
	lock    time.Duration
	forget  time.Duration // without a try, everything is forgotten
}

// One account is a narrow target. One address may be a whole class behind a router, so it is allowed
// more, but somebody who tries one password with every name meets it.
var (
	handlePolicy = policy{free: 5, lockAt: 20, maxWait: time.Minute, lock: 15 * time.Minute, forget: time.Hour}
	remotePolicy = policy{free: 30, lockAt: 100, maxWait: time.Minute, lock: 15 * time.Minute, forget: time.Hour}
	// What strangers ask for fills a list that an admin reads.
	signUpPolicy = policy{free: 40, lockAt: 60, maxWait: time.Minute, lock: time.Hour, forget: time.Hour}
	// Programs that ask for a token and were not confirmed; a class asks from one address.
	devicePolicy = policy{free: 60, lockAt: 120, maxWait: time.Minute, lock: 15 * time.Minute, forget: time.Hour}
)

const (
	// maxTracked bounds the memory of each counter.
	maxTracked = 16384
	// insideAtOnce is how many tries one address may have under way: half of all that may wait for a hash.
	insideAtOnce = hashesWaiting / 2
)

// signInLimits counts tries by account and by remote address. It is kept in memory only: a restart of
// gpulab forgives, and nobody but root can cause one.
type signInLimits struct {
	handles, remotes *counter
	joins, signUps   *counter // by address
	tokens           *counter // wrong access tokens by remote address
	outside          *counter // failed sign-ins with outside accounts by remote address
	devices          *counter // programs that ask for a token, by remote address
	userCodes        *counter // codes of such programs that do not fit, by account
}

func newSignInLimits() *signInLimits {
	return &signInLimits{
		handles:   newCounter(handlePolicy, ""),
		remotes:   newCounter(remotePolicy, ""),
		joins:     newCounter(remotePolicy, "Too many invitations that do not work were tried from your address."),
		signUps:   newCounter(signUpPolicy, "Too many people have asked for an account from your address."),
		tokens:    newCounter(remotePolicy, "Too many access tokens from this address were not valid."),
		outside:   newCounter(remotePolicy, "Too many sign-ins that do not work came from your address."),
		devices:   newCounter(devicePolicy, "Too many programs have asked to sign in from your address."),
		userCodes: newCounter(handlePolicy, "Too many codes that do not fit were tried with your account."),
	}
}

// take begins a try, or says how long to wait instead. The account counts it before its outcome is known, so
// that many at once cannot slip through; the address once it has failed, for behind one may sit a class that
// signs in at the same moment. locked says that this try locked the account.
func (l *signInLimits) take(handle, remote string, now time.Time) (refused *RateError, locked bool) {
	wait, locked := l.handles.take(handle, now)
	if wait > 0 {
		return &RateError{RetryAfter: wait}, locked
	}
	if refused := l.remotes.enter(remoteKey(remote), now); refused != nil {
		l.handles.giveBack(handle)
		return refused, false
	}
	return nil, locked
}

// succeed forgets the account's wrong tries. Those of the address stay: an attacker may own an account.
func (l *signInLimits) succeed(handle, remote string, now time.Time) {
	l.handles.clear(handle)
	l.remotes.leave(remoteKey(remote), false, now)
}

// fail counts the try against the address; the account has counted it already.
func (l *signInLimits) fail(remote string, now time.Time) {
	l.remotes.leave(remoteKey(remote), true, now)
}

// abandon takes back a try that came to no outcome.
func (l *signInLimits) abandon(handle, remote string, now time.Time) {
	l.handles.giveBack(handle)
	l.remotes.leave(remoteKey(remote), false, now)
}

// remoteKey puts all addresses that one household or laptop can choose freely under one key.
func remoteKey(remote string) string {
	if of, ok := peers.Neighbourhood(remote); ok {
		return of.String()
	}
	return clip(remote, 64)
}

type tries struct {
	n      int
	inside int // begun, with no outcome yet; see enter
	last   time.Time
	until  time.Time // no try before this
}

type counter struct {
	policy policy
	why    string // the sentence of a refusal; empty where it is about passwords
	mu     sync.Mutex
	tries  map[string]*tries
}

func newCounter(p policy, why string) *counter {
	return &counter{policy: p, why: why, tries: map[string]*tries{}}
}

// take counts a try, whatever comes of it, and returns how long to wait instead, or 0.
func (c *counter) take(key string, now time.Time) (wait time.Duration, locked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count(c.entry(key, now), now)
}

// try is take for what is refused with a sentence; nil where it is not.
func (c *counter) try(key string, now time.Time) error {
	if wait, _ := c.take(key, now); wait > 0 {
		return &RateError{RetryAfter: wait, why: c.why}
	}
	return nil
}

// enter begins a try that is counted only if it fails: leave must follow, unless it is refused. No key has more than
// insideAtOnce of them at a time, so that one cannot keep others waiting, nor try much before it is counted.
func (c *counter) enter(key string, now time.Time) *RateError {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.entry(key, now)
	if now.Before(t.until) {
		wait, _ := c.count(t, now)
		return &RateError{RetryAfter: wait, why: c.why}
	}
	if t.inside >= insideAtOnce {
		return &RateError{RetryAfter: busyWait, busy: true}
	}
	t.inside++
	t.last = now
	return nil
}

// leave ends what enter began.
func (c *counter) leave(key string, failed bool, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.entry(key, now)
	t.inside = max(0, t.inside-1)
	if failed {
		c.count(t, now)
	}
}

func (c *counter) count(t *tries, now time.Time) (wait time.Duration, locked bool) {
	t.last = now
	if t.n >= c.policy.lockAt {
		if now.Before(t.until) {
			return t.until.Sub(now), false
		}
		t.n = c.policy.free // after a lock the waits begin at once
	}
	refused := now.Before(t.until)
	t.n++ // a try during the wait counts too: otherwise hammering would cost nothing
	if until := now.Add(c.policy.wait(t.n)); until.After(t.until) {
		t.until = until
	}
	locked = t.n >= c.policy.lockAt
	if refused {
		return t.until.Sub(now), locked
	}
	return 0, locked
}

func (p policy) wait(n int) time.Duration {
	switch {
	case n >= p.lockAt:
		return p.lock
	case n < p.free:
		return 0
	}
	if shift := n - p.free; shift < 20 {
		return min(time.Second<<shift, p.maxWait)
	}
	return p.maxWait
}

func (c *counter) giveBack(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.tries[key]; t != nil && t.n > 0 {
		t.n--
		t.until = t.last.Add(c.policy.wait(t.n))
	}
}

func (c *counter) clear(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.tries, key)
}

func (c *counter) entry(key string, now time.Time) *tries {
	t := c.tries[key]
	if t == nil {
		if len(c.tries) >= maxTracked {
			c.makeRoom(now)
		}
		t = &tries{}
		c.tries[key] = t
	} else if c.stale(t, now) {
		*t = tries{}
	}
	return t
}

func (c *counter) stale(t *tries, now time.Time) bool {
	return now.Sub(t.last) > c.policy.forget && !now.Before(t.until)
}

// makeRoom drops what is forgotten anyway, else the entry with the fewest tries among a random few.
func (c *counter) makeRoom(now time.Time) {
	for key, t := range c.tries {
		if c.stale(t, now) {
			delete(c.tries, key)
		}
	}
	if len(c.tries) < maxTracked {
		return
	}
	victim, fewest, looked := "", 0, 0
	for key, t := range c.tries {
		if looked == 0 || t.n < fewest {
			victim, fewest = key, t.n
		}
		if looked++; looked == 64 {
			break
		}
	}
	delete(c.tries, victim)
}
