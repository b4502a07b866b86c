package api

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limits are how often one token may ask. An address may ask without a token five times as often: a whole class may
// share one.
type Limits struct {
	PerSecond float64 // 0 is 10
	Burst     int     // at once; 0 is 100
}

func (l Limits) orUsual() Limits {
	if l.PerSecond == 0 {
		l.PerSecond = 10
	}
	if l.Burst == 0 {
		l.Burst = 100
	}
	return l
}

func (l Limits) forAddresses() Limits { return Limits{l.PerSecond * 5, l.Burst * 5} }

const (
	// maxBuckets bounds the memory of the limiter; rounds of it are forgotten at once.
	maxBuckets = 8192
	// bucketLife is how long a bucket is kept that nobody takes from: it is full by then.
	bucketLife = 2 * time.Minute
)

// limitError says that somebody asks too often.
type limitError struct{ wait time.Duration }

func (e *limitError) Error() string { return "asked too often" }

// seconds to wait, rounded up so that nobody comes back too early.
func (e *limitError) seconds() int { return int(math.Ceil(e.wait.Seconds())) }

// A limiter bounds how often each of many may ask.
type limiter struct {
	limits  Limits
	mu      sync.Mutex
	buckets map[string]*bucket
}

type bucket struct {
	tokens *rate.Limiter
	used   time.Time
}

func newLimiter(l Limits) *limiter { return &limiter{limits: l, buckets: map[string]*bucket{}} }

// take counts a question; a *limitError where it is one too many.
func (l *limiter) take(key string, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[key]
	if b == nil {
		if len(l.buckets) >= maxBuckets {
			l.makeRoom(now)
		}
		b = &bucket{tokens: rate.NewLimiter(rate.Limit(l.limits.PerSecond), l.limits.Burst)}
		l.buckets[key] = b
	}
	b.used = now
	reserved := b.tokens.ReserveN(now, 1)
	if wait := reserved.DelayFrom(now); wait > 0 {
		reserved.CancelAt(now)
		return &limitError{wait}
	}
	return nil
}

// makeRoom forgets who has not asked for a while, else everybody: a flood of addresses must not fill the memory.
func (l *limiter) makeRoom(now time.Time) {
	for key, b := range l.buckets {
		if now.Sub(b.used) > bucketLife {
			delete(l.buckets, key)
		}
	}
	if len(l.buckets) >= maxBuckets {
		clear(l.buckets)
	}
}
