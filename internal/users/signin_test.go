package users

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alexedwards/argon2id"
	"github.com/gpulab/gpulab/internal/audit"
)

func TestCheckPassword(t *testing.T) {
	for _, tc := range []struct {
		password string
		ok       bool
	}{
		{goodPassword, true},
		{"größenwahnsinnig-9", true},
		{strings.Repeat("abcde", 51) + "x", true},
		{"nine char", false},
		{"ääääääääää", false},
		{strings.Repeat("abcde", 51) + "xy", false},
		{"", false},
		{"aaaaaaaaaaaaaa", false},
		{"1234567890", false},
		{"Password123!", false},
		{"!!qwertyuiop!!", false},
		{"correcthorsebatterystaple", false},
		{"Ada-Lovelace", false},
		{"ada-lovelace99", false},
		{"gpulabgpulab1", false},
		{"broken \xff\xfe bytes", false},
	} {
		err := CheckPassword(tc.password, "ada-lovelace")
		if (err == nil) != tc.ok {
			t.Errorf("CheckPassword(%.40q) = %v, want ok = %v", tc.password, err, tc.ok)
		}
		if err != nil {
			wantErr(t, err, ErrPasswordWeak)
			if tc.password != "" && strings.Contains(err.Error(), tc.password) {
				t.Errorf("the sentence repeats the password: %q", err)
			}
		}
	}
}

func TestAuthenticate(t *testing.T) {
	s, _ := newTest(t)
	ada := create(t, s, "ada", RoleMember)
	if _, err := s.Create(t.Context(), NewUser{Handle: "fresh"}); err != nil {
		t.Fatal(err)
	}
	sue := create(t, s, "sue", RoleMember)
	if err := s.Suspend(t.Context(), sue.ID); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, handle, password string
		want                   error
	}{
		{"right", "ada", goodPassword, nil},
		{"case and spaces of the handle", " Ada ", goodPassword, nil},
		{"wrong", "ada", "violet tractor 91 hum", ErrBadCredentials},
		{"empty", "ada", "", ErrBadCredentials},
		{"unknown", "nobody-here", goodPassword, ErrBadCredentials},
		{"never chose one", "fresh", "", ErrBadCredentials},
		{"endless", "ada", strings.Repeat("x", 1<<20), ErrBadCredentials},
		{"endless handle", strings.Repeat("x", 1<<20), "x", ErrBadCredentials},
		{"injection", "ada' --", goodPassword, ErrBadCredentials},
		{"suspended, right", "sue", goodPassword, ErrSuspended},
		{"suspended, wrong", "sue", "wrong", ErrBadCredentials},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u, err := s.Authenticate(t.Context(), tc.handle, tc.password, "")
			if tc.want != nil {
				wantErr(t, err, tc.want)
				return
			}
			if err != nil || u != ada {
				t.Errorf("%+v, %v", u, err)
			}
		})
	}
}

// The same letters typed as one code point or two are the same password.
func TestPasswordFromAnotherKeyboard(t *testing.T) {
	s, _ := newTest(t)
	u := create(t, s, "ada", RoleMember)
	if err := s.SetPassword(t.Context(), u.ID, "gru\u0308ne Wiese 17"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Authenticate(t.Context(), "ada", "gr\u00fcne Wiese 17", ""); err != nil {
		t.Error(err)
	}
}

// Whoever guesses at one account from one address stops there for minutes.
func TestTwentyWrongPasswords(t *testing.T) {
	s, c := newTest(t)
	create(t, s, "ada", RoleMember)
	refused := 0
	for i := range 20 {
		_, err := s.Authenticate(t.Context(), "ada", "wrong password", fmt.Sprintf("2001:db8::%x", i+1))
		var rate *RateError
		switch {
		case errors.As(err, &rate):
			refused++
		case !errors.Is(err, ErrBadCredentials):
			t.Fatalf("try %d: %v", i+1, err)
		}
	}
	if refused != 15 {
		t.Errorf("%d of 20 tries at once were refused", refused)
	}
	c.add(time.Minute)
	_, right := s.Authenticate(t.Context(), "ada", goodPassword, "2001:db8::1")
	_, wrong := s.Authenticate(t.Context(), "ada", "wrong password", "2001:db8::1")
	var rate *RateError
	if !errors.As(right, &rate) || rate.RetryAfter != 4*time.Minute {
		t.Fatalf("right password while locked: %v", right)
	}
	if right.Error() != wrong.Error() {
		t.Errorf("the sentences differ: %q, %q", right, wrong)
	}
	for _, part := range []string{"4 minutes", "browser that you signed in with before", "one-time link", "gpulab user passwd"} {
		if !strings.Contains(right.Error(), part) {
			t.Errorf("%q lacks %q", right, part)
		}
	}
	wantErr(t, right, ErrTooManyTries)
	log, err := s.AuditLog().List(t.Context(), audit.Filter{Action: "sign-in.locked"})
	if err != nil || len(log) != 1 || log[0].Target != "ada" {
		t.Errorf("audit: %+v, %v", log, err)
	}
	c.add(4 * time.Minute)
	if _, err := s.Authenticate(t.Context(), "ada", goodPassword, "2001:db8::1"); err != nil {
		t.Errorf("after the lock: %v", err)
	}
	// Forgotten with the success: five new mistakes are free.
	for range 4 {
		_, err := s.Authenticate(t.Context(), "ada", "wrong", "2001:db8::1")
		wantErr(t, err, ErrBadCredentials)
	}
}

// Guessing from many addresses makes unknown browsers wait for up to half a minute and no longer.
func TestWaitGrows(t *testing.T) {
	s, c := newTest(t)
	create(t, s, "ada", RoleMember)
	var waits []int
	for i := range 12 {
		_, err := s.Authenticate(t.Context(), "ada", "wrong", fmt.Sprintf("192.0.2.%d", i))
		wantErr(t, err, ErrBadCredentials)
		s.limits.accounts.mu.Lock()
		wait := s.limits.accounts.tries["ada"].until.Sub(c.now())
		s.limits.accounts.mu.Unlock()
		waits = append(waits, int(max(wait, 0)/time.Second))
		c.add(max(wait, 0))
	}
	if got := fmt.Sprint(waits); got != "[0 0 0 0 1 2 4 8 16 30 30 30]" {
		t.Errorf("waits in seconds: %s", got)
	}
	c.add(2 * time.Hour)
	if refused, _ := s.limits.take(&attempt{handle: "ada"}, c.now()); refused != nil {
		t.Errorf("after two quiet hours: %v", refused)
	}
}

// One address trying one password with many names is stopped; another address is not.
func TestOneAddressManyNames(t *testing.T) {
	s, _ := newTest(t)
	create(t, s, "ada", RoleMember)
	refused := false
	for i := range 150 {
		_, err := s.Authenticate(t.Context(), fmt.Sprintf("guess-%d", i), "wrong", fmt.Sprintf("2001:db8::%x", i+1))
		refused = refused || errors.Is(err, ErrTooManyTries)
	}
	if !refused {
		t.Error("150 names from one network were never refused")
	}
	_, err := s.Authenticate(t.Context(), "ada", goodPassword, "2001:db8::ffff")
	wantErr(t, err, ErrTooManyTries)
	if _, err := s.Authenticate(t.Context(), "ada", goodPassword, "2001:db8:1::1"); err != nil {
		t.Errorf("another network: %v", err)
	}
}

// Tries that run at the same time cannot all slip through before the first one is counted.
func TestParallelTriesAreCounted(t *testing.T) {
	s, _ := newTest(t)
	create(t, s, "ada", RoleMember)
	var mu sync.Mutex
	evaluated := 0
	var wg sync.WaitGroup
	for range 60 {
		wg.Go(func() {
			if _, err := s.Authenticate(t.Context(), "ada", "wrong", ""); errors.Is(err, ErrBadCredentials) {
				mu.Lock()
				evaluated++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if evaluated > accountPolicy.free {
		t.Errorf("%d passwords were tried at once", evaluated)
	}
}

// A class behind one router signs in at the same moment: nobody is refused, and nothing is held against it.
func TestAClassSignsInAtOnce(t *testing.T) {
	s, _ := newTest(t)
	const class = 120
	for i := range class {
		create(t, s, fmt.Sprintf("student%d", i), RoleMember)
	}
	for range hashesAtOnce { // until all are there
		s.hasher.slots <- struct{}{}
	}
	var wg sync.WaitGroup
	for i := range class {
		wg.Go(func() {
			if _, err := s.Authenticate(t.Context(), fmt.Sprintf("student%d", i), goodPassword, "192.0.2.1"); err != nil {
				t.Errorf("student %d: %v", i, err)
			}
		})
	}
	for s.hasher.waiting.Load() < class {
		time.Sleep(time.Millisecond)
	}
	for range hashesAtOnce {
		<-s.hasher.slots
	}
	wg.Wait()
}

// One address cannot keep everybody else waiting, nor try many passwords before the first one is counted.
func TestTriesOfOneAddressAtOnceAreBounded(t *testing.T) {
	s, _ := newTest(t)
	create(t, s, "ada", RoleMember)
	for range hashesAtOnce {
		s.hasher.slots <- struct{}{}
	}
	var busy, wrong atomic.Int32
	var wg sync.WaitGroup
	for i := range 2 * insideAtOnce {
		wg.Go(func() {
			_, err := s.Authenticate(t.Context(), fmt.Sprintf("guess-%d", i), "wrong", "192.0.2.1")
			switch {
			case errors.Is(err, ErrTooManyTries):
				busy.Add(1)
			case errors.Is(err, ErrBadCredentials):
				wrong.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	for busy.Load() < insideAtOnce {
		time.Sleep(time.Millisecond)
	}
	wg.Go(func() {
		if _, err := s.Authenticate(t.Context(), "ada", goodPassword, "192.0.2.2"); err != nil {
			t.Errorf("somebody elsewhere: %v", err)
		}
	})
	for s.hasher.waiting.Load() <= insideAtOnce {
		time.Sleep(time.Millisecond)
	}
	for range hashesAtOnce {
		<-s.hasher.slots
	}
	wg.Wait()
	if n := wrong.Load(); n != insideAtOnce {
		t.Errorf("%d passwords were tried at once, want %d", n, insideAtOnce)
	}
	if _, err := s.Authenticate(t.Context(), "ada", goodPassword, "192.0.2.1"); !errors.Is(err, ErrTooManyTries) {
		t.Errorf("after so many failures the address goes on: %v", err)
	}
}

func TestANewPasswordUnlocks(t *testing.T) {
	s, _ := newTest(t)
	u := create(t, s, "ada", RoleMember)
	for range 25 {
		_, _ = s.Authenticate(t.Context(), "ada", "wrong", "")
	}
	token, err := s.CreateLink(t.Context(), Link{Purpose: PurposePassword, UserID: &u.ID}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.RedeemLink(t.Context(), token, "", "", "another fine sentence 7"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Authenticate(t.Context(), "ada", "another fine sentence 7", ""); err != nil {
		t.Error(err)
	}
}

func TestCountersAreBounded(t *testing.T) {
	c := newCounter(knownPolicy, "")
	now := time.Unix(1e9, 0)
	for range 25 {
		c.take("victim", now)
	}
	for i := range maxTracked + 500 {
		c.take(fmt.Sprint("noise", i), now)
	}
	if len(c.tries) > maxTracked {
		t.Errorf("%d entries", len(c.tries))
	}
	if wait, _ := c.take("victim", now); wait == 0 {
		t.Error("noise made a locked account forget")
	}
	for i := range maxTracked {
		c.take(fmt.Sprint("later", i), now.Add(3*time.Hour))
	}
	if len(c.tries) > maxTracked {
		t.Errorf("%d entries later", len(c.tries))
	}
}

func TestRemoteKey(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.7": "192.0.2.7/32", "192.0.2.7:5555": "192.0.2.7/32", "::ffff:192.0.2.7": "192.0.2.7/32", "2001:db8:0:0:1::9": "2001:db8::/64",
		"[2001:db8::9]:443": "2001:db8::/64", "fe80::1%eth0": "fe80::/64", "": "", "junk": "junk",
	} {
		if got := remoteKey(remote); got != want {
			t.Errorf("remoteKey(%q) = %q, want %q", remote, got, want)
		}
	}
}

// An unknown name, and an account without password, cost the same hash as a known one. (Timing them would
// tell the same on an idle machine only.)
func TestEveryTryCostsAHash(t *testing.T) {
	s, _ := newTest(t)
	create(t, s, "ada", RoleMember)
	if _, err := s.Create(t.Context(), NewUser{Handle: "fresh"}); err != nil {
		t.Fatal(err)
	}
	params, _, _, err := argon2id.DecodeHash(s.hasher.nobody)
	if err != nil || *params != quick {
		t.Errorf("the stand-in hash has %+v, %v", params, err)
	}
	for range hashesAtOnce { // now nobody can hash
		s.hasher.slots <- struct{}{}
	}
	for _, handle := range []string{"ada", "fresh", "nobody-here", "../x"} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := s.Authenticate(ctx, handle, "wrong", "")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: answered without a hash: %v", handle, err)
		}
		cancel()
	}
}

// The real parameters, once: at least OWASP's 19 MiB and 2 passes, and no more than the bound allows.
func TestRealParameters(t *testing.T) {
	p := passwordParams
	if p.Memory < 19<<10 || p.Iterations < 2 || uint64(p.Memory)<<10*hashesAtOnce > 64<<20 {
		t.Errorf("%+v, %d at once", p, hashesAtOnce)
	}
	h := newHasher(p)
	encoded, err := h.hash(t.Context(), goodPassword)
	if err != nil {
		t.Fatal(err)
	}
	if ok, outdated, err := h.verify(t.Context(), goodPassword, encoded); !ok || outdated || err != nil {
		t.Errorf("ok %v, outdated %v, %v", ok, outdated, err)
	}
}

func TestHasherQueue(t *testing.T) {
	h := newHasher(quick)
	for range hashesAtOnce {
		h.slots <- struct{}{}
	}
	h.waiting.Store(hashesAtOnce)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range hashesWaiting {
		wg.Go(func() {
			if _, err := h.hash(ctx, "x"); !errors.Is(err, context.Canceled) {
				t.Errorf("waiting: %v", err)
			}
		})
	}
	for h.waiting.Load() < hashesAtOnce+hashesWaiting {
		time.Sleep(time.Millisecond)
	}
	_, err := h.hash(t.Context(), "x")
	wantErr(t, err, ErrTooManyTries)
	cancel()
	wg.Wait()
	if n := h.waiting.Load(); n != hashesAtOnce {
		t.Errorf("%d still counted", n)
	}
}

func TestOldHashesAreRenewed(t *testing.T) {
	s, c := newTest(t)
	create(t, s, "ada", RoleMember)
	better := quick
	better.Iterations++
	s = newService(s.db, better, c.now)
	for range 2 {
		if _, err := s.Authenticate(t.Context(), "ada", goodPassword, ""); err != nil {
			t.Fatal(err)
		}
	}
	var encoded string
	if err := s.db.QueryRow("SELECT password_hash FROM users").Scan(&encoded); err != nil || !strings.Contains(encoded, "t=2,") {
		t.Errorf("%s, %v", encoded, err)
	}
}
