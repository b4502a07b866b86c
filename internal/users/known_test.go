package users

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func remember(t *testing.T, s *Service, u User, name, before string) string {
	t.Helper()
	value, err := s.KnownBrowser(t.Context(), u.ID, name, before)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// Strangers who guess at an account, without end and from everywhere, keep nobody out: a browser that somebody has signed
// in with before signs in at once, one that is new within a minute, from its own address.
func TestStrangersLockNobodyOut(t *testing.T) {
	s, c := newTest(t)
	ada := create(t, s, "ada", RoleAdmin)
	browser := remember(t, s, ada, "ada", "")
	for round := range 200 {
		for range 3 {
			_, _ = s.Authenticate(t.Context(), "ada", "a guess", "203.0.113.9")
			_, _ = s.Authenticate(t.Context(), "ada", "a guess", "2001:db8:9::9")
		}
		if round%20 == 0 {
			// Also from the same network as the strangers.
			for _, from := range []string{"192.0.2.1", "203.0.113.9"} {
				if _, err := s.AuthenticateIn(t.Context(), "ada", goodPassword, from, browser); err != nil {
					t.Fatalf("round %d: a known browser at %s: %v", round, from, err)
				}
			}
		}
		c.add(5 * time.Second)
	}
	var rate *RateError
	_, err := s.Authenticate(t.Context(), "ada", goodPassword, "192.0.2.1")
	if errors.As(err, &rate) {
		if rate.RetryAfter > accountPolicy.maxWait {
			t.Errorf("an unknown browser is told to wait %v", rate.RetryAfter)
		}
		// The strangers go on until it is over.
		for range int(rate.RetryAfter / time.Second) {
			_, _ = s.Authenticate(t.Context(), "ada", "a guess", "203.0.113.9")
			c.add(time.Second)
		}
		c.add(time.Second - 1)
		_, err = s.Authenticate(t.Context(), "ada", goodPassword, "192.0.2.1")
	}
	if err != nil {
		t.Errorf("an unknown browser: %v", err)
	}
}

// What is refused counts for who sent it. So an address that hammers is held back soon, and looks at few passwords.
func TestRefusedTriesCountForTheAddress(t *testing.T) {
	s, c := newTest(t)
	create(t, s, "ada", RoleMember)
	looked := 0
	for range 15 * 60 {
		if _, err := s.Authenticate(t.Context(), "ada", "a guess", "203.0.113.9"); errors.Is(err, ErrBadCredentials) {
			looked++
		}
		c.add(time.Second)
	}
	if looked > 20 {
		t.Errorf("%d passwords were looked at in a quarter of an hour", looked)
	}
	// Other names from there: each name that was refused counts too.
	for i := range 20 {
		for range freshTries {
			_, _ = s.Authenticate(t.Context(), fmt.Sprintf("name-%d", i), "a guess", "203.0.113.9")
		}
	}
	if !s.limits.remotes.reached(remoteKey("203.0.113.9"), sprayedAt, c.now()) {
		t.Error("an address that tried twenty names is not suspicious")
	}
}

// Distributed guessing stays slow: from ever new addresses two passwords a minute are looked at.
func TestDistributedGuessingIsSlow(t *testing.T) {
	s, c := newTest(t)
	create(t, s, "ada", RoleMember)
	looked := 0
	for i := range 600 {
		if _, err := s.Authenticate(t.Context(), "ada", "a guess", fmt.Sprintf("2001:db8:%x::1", i)); errors.Is(err, ErrBadCredentials) {
			looked++
		}
		c.add(time.Second)
	}
	if looked > 5+6+20 {
		t.Errorf("%d passwords were looked at in ten minutes", looked)
	}
}

// A class behind one router signs in with new browsers and mistypes, and one of it guesses at a classmate's account.
func TestOneStudentLocksNoClassOut(t *testing.T) {
	const router, class = "192.0.2.1", 30
	s, c := newTest(t)
	for i := range class {
		create(t, s, fmt.Sprintf("student%d", i), RoleMember)
	}
	for range 500 {
		_, _ = s.Authenticate(t.Context(), "student0", "a guess", router)
	}
	for i := 1; i < class; i++ {
		for range 3 {
			_, err := s.Authenticate(t.Context(), fmt.Sprintf("student%d", i), "mistyped", router)
			wantErr(t, err, ErrBadCredentials)
		}
	}
	for i := 1; i < class; i++ {
		if _, err := s.Authenticate(t.Context(), fmt.Sprintf("student%d", i), goodPassword, router); err != nil {
			t.Errorf("student %d: %v", i, err)
		}
	}
	// Even where the guesser tries names without end, the others wait seconds.
	for i := range 500 {
		_, _ = s.Authenticate(t.Context(), fmt.Sprintf("guess-%d", i), "a guess", router)
	}
	for i := 1; i < class; i++ {
		_, _ = s.Authenticate(t.Context(), fmt.Sprintf("student%d", i), goodPassword, router)
	}
	c.add(sprayedFirst)
	for i := 1; i < class; i++ {
		if _, err := s.Authenticate(t.Context(), fmt.Sprintf("student%d", i), goodPassword, router); err != nil {
			t.Errorf("student %d, next to somebody who tries all names: %v", i, err)
		}
	}
}

// A known browser has a counter of its own, which is limited, too.
func TestKnownBrowserIsLimited(t *testing.T) {
	s, c := newTest(t)
	ada := create(t, s, "ada", RoleMember)
	one, two := remember(t, s, ada, "ada", ""), remember(t, s, ada, "ada", "")
	looked := 0
	for range 40 {
		if _, err := s.AuthenticateIn(t.Context(), "ada", "a guess", "203.0.113.9", one); errors.Is(err, ErrBadCredentials) {
			looked++
		}
	}
	if looked != knownPolicy.free {
		t.Errorf("%d passwords were looked at", looked)
	}
	_, err := s.AuthenticateIn(t.Context(), "ada", goodPassword, "192.0.2.1", one)
	wantErr(t, err, ErrTooManyTries)
	for what, value := range map[string]string{"another known browser": two, "an unknown browser": ""} {
		if _, err := s.AuthenticateIn(t.Context(), "ada", goodPassword, "192.0.2.1", value); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	c.add(knownPolicy.lock)
	if _, err := s.AuthenticateIn(t.Context(), "ada", goodPassword, "192.0.2.1", one); err != nil {
		t.Errorf("later: %v", err)
	}
}

// The value holds for one account, until its password changes or it is suspended.
func TestKnownBrowserIsBound(t *testing.T) {
	s, _ := newTest(t)
	create(t, s, "root-ada", RoleAdmin)
	is := func(want bool, name, value string) {
		t.Helper()
		got, err := s.knownAs(t.Context(), name, value)
		if err != nil || (got != "") != want {
			t.Errorf("%s is known as %q, %v", name, got, err)
		}
	}
	is(false, "ada", "1.AAAAAAAAAAAAAAAA.AAAA") // before there is a key
	ada, ben := create(t, s, "ada", RoleMember), create(t, s, "ben", RoleMember)
	value := remember(t, s, ada, "Ada ", "")
	is(true, "ada", value)
	is(false, "ben", value)
	both := remember(t, s, ben, "ben", value)
	is(true, "ada", both)
	is(true, "ben", both)
	if again := remember(t, s, ada, "ada", both); !strings.HasPrefix(again, value+"~") {
		t.Errorf("signing in again changes %s to %s", value, again)
	}
	parts := strings.Split(value, ".")
	for _, forged := range []string{"", "~", ".", "..", "1..", strings.Repeat("x", 5000), fmt.Sprint(ben.ID) + value[strings.Index(value, "."):],
		parts[0] + ".AAAAAAAAAAAAAAAA." + parts[2], "0" + value, "+" + value, value[:len(value)-1], value + "A", parts[0] + "." + parts[1] + "."} {
		is(false, "ada", forged)
		is(false, "ben", forged)
	}
	many := both
	for i := range 20 {
		u := create(t, s, fmt.Sprintf("student%d", i), RoleMember)
		many = remember(t, s, u, u.Handle, many)
	}
	if n := strings.Count(many, "~") + 1; n != knownMost || len(many) > knownLength {
		t.Errorf("a browser keeps %d accounts in %d bytes", n, len(many))
	}
	is(true, "student19", many)
	is(false, "ada", many)

	for what, end := range map[string]func() error{
		"own password changed": func() error { return s.ChangePassword(t.Context(), ada.ID, goodPassword, "another good password", "") },
		"password set":         func() error { return s.SetPassword(t.Context(), ada.ID, goodPassword) },
		"suspended":            func() error { return s.Suspend(t.Context(), ada.ID) },
		"suspended and back":   func() error { return errors.Join(s.Suspend(t.Context(), ada.ID), s.Resume(t.Context(), ada.ID)) },
		"removed and back":     func() error { return errors.Join(s.Remove(t.Context(), ada.ID), s.Undelete(t.Context(), ada.ID)) },
	} {
		t.Run(what, func(t *testing.T) {
			if err := errors.Join(s.Resume(t.Context(), ada.ID), s.SetPassword(t.Context(), ada.ID, goodPassword)); err != nil {
				t.Fatal(err)
			}
			value := remember(t, s, ada, "ada", remember(t, s, ben, "ben", ""))
			if err := end(); err != nil {
				t.Fatal(err)
			}
			is(false, "ada", value)
			is(true, "ben", value)
		})
	}
	is(true, "ben", both)
}

// Who is signed in confirms their password whatever strangers do.
func TestStrangersAndTheOwnPassword(t *testing.T) {
	s, _ := newTest(t)
	ada := create(t, s, "ada", RoleMember)
	for i := range 300 {
		_, _ = s.Authenticate(t.Context(), "ada", "a guess", fmt.Sprintf("203.0.113.%d", i%100))
	}
	if err := s.ConfirmPassword(t.Context(), ada.ID, goodPassword, "203.0.113.1"); err != nil {
		t.Error(err)
	}
}

// Twenty wrong passwords at once from one address keep nobody out elsewhere.
func TestABurstLocksNobodyOut(t *testing.T) {
	s, c := newTest(t)
	create(t, s, "ada", RoleAdmin)
	for range 25 {
		_, _ = s.Authenticate(t.Context(), "ada", "a guess", "203.0.113.9")
	}
	c.add(time.Second)
	if _, err := s.Authenticate(t.Context(), "ada", goodPassword, "192.0.2.1"); err != nil {
		t.Error(err)
	}
}

// Somebody of a directory may be called what another is called here. Signing in with that name makes them no counters for
// the other's password, of which they could have as many as they sign in with new browsers.
func TestKnownBrowserOfANamesake(t *testing.T) {
	s, c := newTest(t)
	create(t, s, "ada", RoleAdmin)
	s.UseDirectories(&book{people: map[string]string{"ada": "another ada's"}})
	o := theirs("ada")
	o.Provider, o.Realm = "directory", "ldap:ou=people"
	namesake, err := s.JoinOutside(t.Context(), o, "ada-2", "")
	if err != nil {
		t.Fatal(err)
	}
	looked := 0
	for range 60 {
		if u, err := s.Authenticate(t.Context(), "ada", "another ada's", "203.0.113.9"); err == nil && u != namesake {
			t.Fatalf("%+v", u)
		}
		browser := remember(t, s, namesake, "ada", "")
		for range 4 {
			if _, err := s.AuthenticateIn(t.Context(), "ada", "a guess", "203.0.113.9", browser); errors.Is(err, ErrBadCredentials) {
				looked++
			}
		}
		c.add(time.Second)
	}
	if looked > 20 {
		t.Errorf("%d passwords of another account were looked at in a minute", looked)
	}
}
