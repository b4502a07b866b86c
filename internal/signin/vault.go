package signin

import (
	"crypto/rand"
	"crypto/subtle"
	"sync"
	"time"
)

// Vault keeps values for a short while, each for one browser and one use. It lives in memory: a restart of gpulab in
// between costs a click.
type Vault[T any] struct {
	ttl      time.Duration
	most     int // of all; the oldest makes room
	mostEach int // from one address; so that nobody can push everybody else's out
	now      func() time.Time

	mu   sync.Mutex
	kept map[string]kept[T]
}

type kept[T any] struct {
	value           T
	browser, remote string
	until           time.Time
}

// NewVault makes one.
func NewVault[T any](ttl time.Duration, most, mostEach int) *Vault[T] {
	return &Vault[T]{ttl: ttl, most: most, mostEach: mostEach, now: time.Now, kept: map[string]kept[T]{}}
}

// Put keeps a value for a browser, which must not be empty, and returns the key to it.
func (v *Vault[T]) Put(value T, browser, remote string) (key string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.now()
	var oldest, oldestThere string
	there := 0
	for k, e := range v.kept {
		if !now.Before(e.until) {
			delete(v.kept, k)
			continue
		}
		if oldest == "" || e.until.Before(v.kept[oldest].until) {
			oldest = k
		}
		if e.remote == remote {
			there++
			if oldestThere == "" || e.until.Before(v.kept[oldestThere].until) {
				oldestThere = k
			}
		}
	}
	switch {
	case there >= v.mostEach:
		delete(v.kept, oldestThere)
	case len(v.kept) >= v.most:
		delete(v.kept, oldest)
	}
	key = rand.Text()
	v.kept[key] = kept[T]{value: value, browser: browser, remote: remote, until: now.Add(v.ttl)}
	return key
}

// Take returns a value once, to the browser that it was kept for. Another browser changes nothing.
func (v *Vault[T]) Take(key, browser string) (T, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	value, ok := v.look(key, browser)
	if ok {
		delete(v.kept, key)
	}
	return value, ok
}

// Look returns a value and keeps it.
func (v *Vault[T]) Look(key, browser string) (T, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.look(key, browser)
}

func (v *Vault[T]) look(key, browser string) (none T, ok bool) {
	e, found := v.kept[key]
	if !found || browser == "" || subtle.ConstantTimeCompare([]byte(e.browser), []byte(browser)) != 1 ||
		!v.now().Before(e.until) {
		return none, false
	}
	return e.value, true
}
