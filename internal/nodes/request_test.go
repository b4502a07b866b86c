package nodes

import (
	"crypto/sha256"
	"errors"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestNumber(t *testing.T) {
	sum := func(s string) [sha256.Size]byte { return sha256.Sum256([]byte(s)) }
	a, k, m, h := sum("authority"), sum("key"), Nonce(sum("machine")), Nonce(sum("head"))
	number := Number(a, k, m, h)
	if !regexp.MustCompile(`^[0-9]{6}$`).MatchString(number) || number != Number(a, k, m, h) {
		t.Errorf("%q", number)
	}
	// All of it counts.
	for what, other := range map[string]string{
		"authority": Number(sum("x"), k, m, h), "key": Number(a, sum("x"), m, h),
		"machine's nonce": Number(a, k, Nonce(sum("x")), h), "head's nonce": Number(a, k, m, Nonce(sum("x"))),
	} {
		if other == number {
			t.Errorf("another %s, and the same number", what)
		}
	}
	if Commitment(k, m) == Commitment(k, h) || Commitment(k, m) == Commitment(a, m) {
		t.Error("a commitment is to a key and a nonce")
	}
	seen := map[string]bool{}
	for range 2000 {
		seen[Number(a, k, NewNonce(), NewNonce())] = true
	}
	if len(seen) < 1980 {
		t.Errorf("of 2000 numbers only %d differ", len(seen))
	}
}

// asks is a machine that asks and has shown its nonce.
func asks(t *testing.T, r *Requests, name, address string) (id, number string, key [sha256.Size]byte) {
	t.Helper()
	key = sha256.Sum256([]byte(name))
	nonce := NewNonce()
	id, head, _, err := r.Ask(Request{Name: name, Address: address}, key, Commitment(key, nonce))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Reveal(id, nonce); err != nil {
		t.Fatal(err)
	}
	return id, Number(r.authority, key, nonce, head), key
}

func TestRequests(t *testing.T) {
	r := NewRequests(sha256.Sum256([]byte("authority")))
	now := time.Now()
	r.now = func() time.Time { return now }
	id, number, key := asks(t, r, "b", "10.0.0.2")
	if list := r.List(); len(list) != 1 || list[0].Number != number || list[0].Name != "b" || !list[0].Expires.Equal(now.Add(10*time.Minute)) {
		t.Fatalf("%+v, not %s", list, number)
	}
	if state, code, err := r.Answer(id); state != RequestWaiting || code != "" || err != nil {
		t.Error(state, code, err)
	}
	code := newCode(r.authority, door)
	var made atomic.Int32
	invite := func(forKey [sha256.Size]byte) (Code, error) {
		if forKey != key {
			t.Error("the code is made for another key than that of the request")
		}
		made.Add(1)
		time.Sleep(50 * time.Millisecond)
		return code, nil
	}
	if _, err := r.Accept("12345", invite); !errors.Is(err, ErrRequestUnknown) {
		t.Errorf("another number: %v", err)
	}
	if _, err := r.Accept(number, func([sha256.Size]byte) (Code, error) { return Code{}, errors.New("not now") }); err == nil || len(r.List()) != 1 {
		t.Errorf("after a code could not be made the machine waits on: %v", err)
	}
	// However many accept it at once, it is accepted once.
	var well atomic.Int32
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, err := r.Accept(number, invite); err == nil {
				well.Add(1)
			} else if !errors.Is(err, ErrRequestUnknown) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if well.Load() != 1 || made.Load() != 1 {
		t.Errorf("accepted %d times, %d codes", well.Load(), made.Load())
	}
	if state, got, err := r.Answer(id); state != RequestAccepted || got != code.String() || err != nil {
		t.Error(state, got, err)
	}
	other := sha256.Sum256([]byte("other"))

	id, number, _ = asks(t, r, "c", "10.0.0.3")
	if _, err := r.Refuse(number); err != nil {
		t.Error(err)
	}
	if _, err := r.Accept(number, invite); !errors.Is(err, ErrRequestUnknown) {
		t.Errorf("refused, then accepted: %v", err)
	}
	if state, _, err := r.Answer(id); state != RequestRefused || err != nil {
		t.Error(state, err)
	}

	// Who shows another nonce than it was bound to has had its try.
	nonce := NewNonce()
	id, _, _, err := r.Ask(Request{Name: "d", Address: "10.0.0.4"}, other, Commitment(other, nonce))
	if err != nil || len(r.List()) != 0 {
		t.Errorf("seen before it has a number: %+v, %v", r.List(), err)
	}
	if err := r.Reveal(id, NewNonce()); !errors.Is(err, ErrCommitment) {
		t.Error(err)
	}
	if err := r.Reveal(id, nonce); !errors.Is(err, ErrRequestGone) {
		t.Errorf("a second try: %v", err)
	}

	id, number, _ = asks(t, r, "e", "10.0.0.5")
	if !r.Pending() {
		t.Error("a machine waits, and none is pending")
	}
	now = now.Add(RequestLife)
	if r.Pending() {
		t.Error("after ten minutes a request is still pending")
	}
	if _, err := r.Accept(number, invite); !errors.Is(err, ErrRequestUnknown) {
		t.Errorf("after ten minutes: %v", err)
	}
	if _, _, err := r.Answer(id); !errors.Is(err, ErrRequestGone) {
		t.Errorf("after ten minutes: %v", err)
	}
}

// A flood takes nobody's place, and little memory.
func TestFlood(t *testing.T) {
	r := NewRequests(sha256.Sum256([]byte("authority")))
	now := time.Now()
	r.now = func() time.Time { return now }
	_, number, _ := asks(t, r, "b", "10.0.0.2")
	taken := 0
	for i := range 10_000 {
		address := "10.0.1." + string(rune('0'+i%10))
		if i%2 == 0 {
			address = anyAddress()
		}
		if _, _, _, err := r.Ask(Request{Name: "x", Address: address}, [32]byte{}, [32]byte{}); err == nil {
			taken++
		} else if !errors.Is(err, ErrFlooded) {
			t.Fatal(err)
		}
	}
	if taken >= mostRequests || len(r.list) > mostRequests {
		t.Errorf("%d of a flood wait, %d in all", taken, len(r.list))
	}
	if list := r.List(); len(list) != 1 || list[0].Number != number {
		t.Errorf("the machine that asked before is gone: %+v", list)
	}
	now = now.Add(RequestLife)
	asks(t, r, "c", "10.0.0.3")
}

// anyAddress is an address that nobody else has.
func anyAddress() string { n := NewNonce(); return string(n[:]) }
