package webca

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Own is a certificate that somebody else has signed, in files that somebody else
// renews. Its methods may be called from any goroutine, and of a nil one too: it is
// good for no name.
type Own struct {
	cert, key string

	mu      sync.RWMutex
	pair    *tls.Certificate // nil until the files were whole once
	seen    [2]time.Time     // when the files were written that pair is from
	trouble string           // with the files as they are now
}

// OpenOwn reads a certificate, with those that lead to its authority behind it, and
// its key from two PEM files. With an error it is good for no name until somebody mends
// the files.
func OpenOwn(cert, key string) (*Own, error) {
	o := &Own{cert: cert, key: key}
	o.Look()
	if o.trouble != "" {
		return o, errors.New(o.trouble)
	}
	return o, nil
}

// read takes the files' certificate over, if they are whole.
func (o *Own) read() error {
	seen, err := o.written()
	if err != nil {
		return fmt.Errorf("the lab's own certificate: %w", err)
	}
	pair, err := tls.LoadX509KeyPair(o.cert, o.key)
	if err != nil {
		return fmt.Errorf("the lab's own certificate in %s, with the key in %s: %s", o.cert, o.key,
			strings.TrimPrefix(err.Error(), "tls: "))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pair, o.seen, o.trouble = &pair, seen, ""
	return nil
}

func (o *Own) written() (at [2]time.Time, err error) {
	for i, path := range []string{o.cert, o.key} {
		info, err := os.Stat(path)
		if err != nil {
			return at, err
		}
		at[i] = info.ModTime()
	}
	return at, nil
}

// Look takes over what has been written since, and tells whether there was something.
// Files that are not whole, because somebody is just writing them, change nothing.
func (o *Own) Look() (changed bool) {
	if o == nil {
		return false
	}
	at, err := o.written()
	o.mu.RLock()
	same := err == nil && at == o.seen
	o.mu.RUnlock()
	if same {
		return false
	}
	if err := o.read(); err != nil {
		o.mu.Lock()
		o.trouble = err.Error()
		o.mu.Unlock()
		return false
	}
	return true
}

// For is the certificate for a name, nil where it is not for that one.
func (o *Own) For(name string) *tls.Certificate {
	if o == nil || name == "" {
		return nil
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.pair == nil || o.pair.Leaf.VerifyHostname(name) != nil {
		return nil
	}
	return o.pair
}

// Names are the names in it, but for those with a *.
func (o *Own) Names() []string {
	if o == nil {
		return nil
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.pair == nil {
		return nil
	}
	names := slices.Clone(o.pair.Leaf.DNSNames)
	for _, address := range o.pair.Leaf.IPAddresses {
		names = append(names, address.String())
	}
	return slices.DeleteFunc(names, func(name string) bool { return strings.Contains(name, "*") })
}

// Until is when it runs out; zero without one.
func (o *Own) Until() time.Time {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.pair == nil {
		return time.Time{}
	}
	return o.pair.Leaf.NotAfter
}

// Trouble says why browsers do not take it at a time, or why the files as they are
// now cannot be used; "" if neither.
func (o *Own) Trouble(now time.Time) string {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.pair == nil {
		return o.trouble
	}
	switch leaf := o.pair.Leaf; {
	case now.After(leaf.NotAfter):
		return fmt.Sprintf("the lab's own certificate in %s ran out on %s", o.cert, leaf.NotAfter.Format(time.DateOnly))
	case now.Before(leaf.NotBefore):
		return fmt.Sprintf("the lab's own certificate in %s is good from %s on", o.cert, leaf.NotBefore.Format(time.DateOnly))
	}
	return o.trouble
}
