package users

import (
	"maps"
	"math"
	"strings"
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

// Nobody may lock an account for others. So what a stranger does counts mostly against the stranger: wrong passwords
// and refused tries count for their address together with the account (pairPolicy). For the account itself only
// passwords count that were looked at, and the wait stays short.
var (
	// knownPolicy is for one browser that somebody has signed in with before, and for one session that confirms its
	// password.
	knownPolicy = policy{free: 5, lockAt: 20, maxWait: time.Minute, lock: 15 * time.Minute, forget: time.Hour}
	// pairPolicy is for one account from one address.
	pairPolicy = policy{free: 5, lockAt: 20, maxWait: time.Minute, lock: 5 * time.Minute, forget: time.Hour}
	// accountPolicy is for one account from everywhere: against guessing from many addresses.
	accountPolicy = policy{free: 5, lockAt: math.MaxInt, maxWait: 30 * time.Second, forget: time.Hour}
	// remotePolicy is for one address, where a failure harms nobody's account.
	remotePolicy = policy{free: 30, lockAt: 100, maxWait: time.Minute, lock: 15 * time.Minute, forget: time.Hour}
	// What strangers ask for fills a list that an admin reads.
	signUpPolicy = policy{free: 40, lockAt: 60, maxWait: time.Minute, lock: time.Hour, forget: time.Hour}
	// Programs that ask for a token and were not confirmed; a class asks from one address.
	devicePolicy = policy{free: 60, lockAt: 120, maxWait: time.Minute, lock: 15 * time.Minute, forget: time.Hour}
)

const (
	// maxTracked bounds the memory of each counter.
	maxTracked = 16384
	// freshTries is up to how many tries an address is preferred to one that has tried more at the same account.
	freshTries = 5
	// preferred is how much longer the others wait.
	preferred = 15 * time.Second
	// sprayedAt is how many failures make an address suspicious, counting at most freshTries for each name: one person who
	// guesses must not do it alone, nor a class that mistypes.
	sprayedAt = 100
	// From a suspicious address, every name waits: before its first try, and after that doubling up to sprayedMost.
	sprayedFirst, sprayedAgain, sprayedMost = 10 * time.Second, 30 * time.Second, 5 * time.Minute
	// notedEvery is after how many wrong passwords from everywhere the log says that an account is guessed at.
	notedEvery = 20

	// insideAtOnce is how many tries one address may have under way: half of all that may wait for a hash.
	insideAtOnce = hashesWaiting / 2
)

// signInLimits counts tries by account and by remote address. It is kept in memory only: a restart of
// gpulab forgives, and nobody but root can cause one.
type signInLimits struct {
	accounts, remotes, pairs *counter // passwords by account, by address, and by both
	known                    *counter // passwords by known browser
	joins, signUps           *counter // by address; those that join only wait after invitations that do not work
	tokens                   *counter // wrong access tokens by remote address
	outside                  *counter // failed sign-ins with outside accounts by browser or account
	devices                  *counter // programs that ask for a token, by remote address
	userCodes                *counter // codes of such programs that do not fit, by account
}

func newSignInLimits() *signInLimits {
	return &signInLimits{
		accounts:  newCounter(accountPolicy, ""),
		remotes:   newCounter(policy{free: sprayedAt, lockAt: math.MaxInt, forget: time.Hour}, ""),
		pairs:     newCounter(pairPolicy, ""),
		known:     newCounter(knownPolicy, ""),
		joins:     newCounter(remotePolicy, "Too many invitations that do not work were tried from your address."),
		signUps:   newCounter(signUpPolicy, "Too many people have asked for an account from your address."),
		tokens:    newCounter(remotePolicy, "Too many access tokens from this address were not valid."),
		outside:   newCounter(remotePolicy, "Too many sign-ins that do not work came from this browser."),
		devices:   newCounter(devicePolicy, "Too many programs have asked to sign in from your address."),
		userCodes: newCounter(knownPolicy, "Too many codes that do not fit were tried with your account."),
	}
}

// An attempt is one password for one name.
type attempt struct {
	handle, remote string
	known          string // the counter of a known browser; empty for others
	counts         bool   // whether a failure counts for the address as a whole
}

func (a attempt) pair() string { return remoteKey(a.remote) + pairEnd(a.handle) }

// pairEnd ends the keys of an account's pairs; no handle holds a zero.
func pairEnd(handle string) string { return "\x00" + strings.ReplaceAll(handle, "\x00", "") }

// take begins an attempt, or says how long to wait instead. Most counters count it before its outcome is known, so
// that many at once cannot slip through; the address once it has failed, for behind one may sit a class that signs in
// at the same moment. often says that the log should tell of it.
func (l *signInLimits) take(a *attempt, now time.Time) (refused *RateError, often bool) {
	if a.known != "" {
		wait, locked := l.known.take(a.known, now)
		if wait > 0 {
			return &RateError{RetryAfter: wait, known: true}, locked
		}
		return nil, locked
	}
	address := remoteKey(a.remote)
	wait, n, locked := l.pairs.takePair(a.pair(), l.remotes.reached(address, sprayedAt, now), now)
	a.counts = n <= freshTries
	if wait == 0 {
		later := time.Duration(0)
		if n > freshTries {
			later = preferred
		}
		wait, often = l.accounts.takeIfOpen(a.handle, later, now)
	}
	if wait > 0 {
		if a.counts {
			l.remotes.failed(address, now)
		}
		return &RateError{RetryAfter: wait}, often || locked
	}
	if refused := l.remotes.enter(address, now); refused != nil {
		l.accounts.giveBack(a.handle)
		l.pairs.giveBack(a.pair())
		return refused, false
	}
	return nil, often || locked
}

// succeed forgets the account's wrong tries, here and in general. Those of the address stay: an attacker may own an
// account. What others did elsewhere is not forgotten for a known browser, which did not have to wait for it.
func (l *signInLimits) succeed(a attempt, now time.Time) {
	if a.known != "" {
		l.known.clear(a.known)
		return
	}
	l.accounts.clear(a.handle)
	l.pairs.clear(a.pair())
	l.remotes.leave(remoteKey(a.remote), false, now)
}

// fail counts the attempt against the address; the other counters have counted it already.
func (l *signInLimits) fail(a attempt, now time.Time) {
	if a.known == "" {
		l.remotes.leave(remoteKey(a.remote), a.counts, now)
	}
}

// abandon takes back an attempt that came to no outcome.
func (l *signInLimits) abandon(a attempt, now time.Time) {
	if a.known != "" {
		l.known.giveBack(a.known)
		return
	}
	l.accounts.giveBack(a.handle)
	l.pairs.giveBack(a.pair())
	l.remotes.leave(remoteKey(a.remote), false, now)
}

// forgive forgets the wrong tries at an account that has a new password.
func (l *signInLimits) forgive(handle string) {
	l.accounts.clear(handle)
	l.pairs.clearEnd(pairEnd(handle))
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

// takeIfOpen is take for what others can count, too: what is refused neither counts nor makes the wait longer. later
// is added to the wait. often is true for every notedEvery-th.
func (c *counter) takeIfOpen(key string, later time.Duration, now time.Time) (wait time.Duration, often bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.entry(key, now)
	if wait := t.until.Add(later).Sub(now); !t.until.IsZero() && wait > 0 {
		return wait, false
	}
	c.count(t, now)
	return 0, t.n%notedEvery == 0
}

// takePair is take for one account from one address. From a suspicious address the first try waits, too.
func (c *counter) takePair(key string, suspicious bool, now time.Time) (wait time.Duration, n int, locked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.entry(key, now)
	if suspicious && t.n == 0 {
		wait = sprayedFirst
		t.until = now.Add(wait)
		t.n, t.last = 1, now
		return wait, t.n, false
	}
	wait, locked = c.count(t, now)
	if suspicious && wait == 0 {
		until := now.Add(min(sprayedAgain<<min(max(0, t.n-2), 10), sprayedMost))
		if until.After(t.until) {
			t.until = until
		}
	}
	return wait, t.n, locked
}

// reached tells whether at least n were counted.
func (c *counter) reached(key string, n int, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entry(key, now).n >= n
}

// failed counts what needs no enter.
func (c *counter) failed(key string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count(c.entry(key, now), now)
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
	if t.inside >= insideAtOnce {
		return &RateError{RetryAfter: busyWait, busy: true}
	}
	t.inside++
	t.last = now
	return nil
}

// waits refuses who has failed too often. It counts nothing else.
func (c *counter) waits(key string, now time.Time) *RateError {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.entry(key, now)
	if !now.Before(t.until) {
		return nil
	}
	wait, _ := c.count(t, now)
	return &RateError{RetryAfter: wait, why: c.why}
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
	case n < p.free || p.maxWait == 0:
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

// clearEnd forgets all keys with that end.
func (c *counter) clearEnd(end string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.tries, func(key string, _ *tries) bool { return strings.HasSuffix(key, end) })
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
