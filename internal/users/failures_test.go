package users

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
)

func failed(t *testing.T, s *Service) []audit.Entry {
	t.Helper()
	log, err := s.AuditLog().List(t.Context(), audit.Filter{Limit: 100000})
	if err != nil {
		t.Fatal(err)
	}
	var list []audit.Entry
	for i := range log {
		if e := log[len(log)-1-i]; strings.HasPrefix(e.Action, "sign-in.failed") {
			list = append(list, e)
		}
	}
	return list
}

func TestFailedSignInsAreRecorded(t *testing.T) {
	s, _ := newTest(t)
	ada := create(t, s, "ada", RoleMember)
	gus := create(t, s, "gus", RoleMember)
	if err := s.Suspend(t.Context(), gus.ID); err != nil {
		t.Fatal(err)
	}
	for _, try := range [][2]string{{"Ada", "wrong"}, {"gus", goodPassword}, {"hunter2isMyPassword", "wrong"}, {"eve", "wrong"}} {
		if _, err := s.Authenticate(t.Context(), try[0], try[1], "192.0.2.7"); err == nil {
			t.Fatal("signed in")
		}
	}
	var got []string
	for _, e := range failed(t, s) {
		if e.Actor != "system" || e.Remote != "192.0.2.7" {
			t.Errorf("%+v", e)
		}
		got = append(got, e.Target+": "+e.Detail)
	}
	if text := strings.Join(got, "; "); text != "ada: wrong password; gus: the account is suspended; : a name that nobody has; : a name that nobody has" {
		t.Error(text)
	}
	n, last, err := s.log.FailedSignIns(t.Context(), ada.Handle, s.now().Add(-time.Hour))
	if err != nil || n != 1 || last == nil || last.Remote != "192.0.2.7" {
		t.Errorf("%d %+v %v", n, last, err)
	}
}

// What people type where the name belongs may be their password.
func TestNoMistypedPasswordInTheLog(t *testing.T) {
	s, c := newTest(t)
	for range 200 {
		_, _ = s.Authenticate(t.Context(), "my-secret-password", "x", "192.0.2.7")
		c.add(time.Second)
	}
	c.add(time.Hour)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	log, err := s.AuditLog().List(t.Context(), audit.Filter{Limit: 1000})
	if err != nil || len(log) == 0 {
		t.Fatal(len(log), err)
	}
	for _, e := range log {
		if strings.Contains(fmt.Sprint(e), "secret") {
			t.Errorf("%+v", e)
		}
	}
}

// An account that is guessed at has a few entries a minute and one that sums up the rest, and none is lost.
func TestGuessingOneAccount(t *testing.T) {
	s, c := newTest(t)
	create(t, s, "ada", RoleMember)
	const tries = 300
	for i := range tries {
		if _, err := s.Authenticate(t.Context(), "ada", "wrong", fmt.Sprintf("192.0.2.%d", i%200)); err == nil {
			t.Fatal("signed in")
		}
	}
	c.add(time.Minute)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	list := failed(t, s)
	if len(list) != failuresEach+1 {
		t.Fatalf("%d entries: %+v", len(list), list)
	}
	last := list[failuresEach]
	if last.Action != "sign-in.failed-often" || last.Target != "ada" || !strings.HasPrefix(last.Detail, fmt.Sprintf("%d more failed sign-ins", tries-failuresEach)) {
		t.Errorf("%+v", last)
	}
	if err := s.Sweep(t.Context()); err != nil || len(failed(t, s)) != len(list) {
		t.Errorf("it was summed up twice, %v", err)
	}
	// The next minute begins anew.
	_, err := s.Authenticate(t.Context(), "ada", "wrong", "192.0.2.1")
	wantErr(t, err, ErrBadCredentials)
	if list := failed(t, s); list[len(list)-1].Action != "sign-in.failed" {
		t.Errorf("%+v", list[len(list)-1])
	}
}

// A day of guessing with ever new names from ever new addresses writes little, and the count is right.
func TestGuessingCannotFillTheDisk(t *testing.T) {
	f, now := newFailures(), time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	entries, counted := 0, 0
	count := func(list []audit.Entry) {
		for _, e := range list {
			entries++
			n := 1
			if e.Action == "sign-in.failed-often" {
				if _, err := fmt.Sscanf(e.Detail, "%d more failed", &n); err != nil {
					t.Fatalf("%+v", e)
				}
			}
			counted += n
		}
	}
	const tries = 24 * 3600 * 10
	for i := range tries {
		count(f.add(failure{handle: fmt.Sprintf("user-%d", i%5000), remote: fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255), why: "wrong password"}, now))
		now = now.Add(100 * time.Millisecond)
		if len(f.windows) > maxTracked {
			t.Fatal("memory is not bounded")
		}
	}
	count(f.flush(now, true))
	if most := failuresBurst + 24*3600/20 + 24*6 + 2; entries > most || entries < most/2 {
		t.Errorf("%d entries for %d tries, at most %d are meant", entries, tries, most)
	}
	if counted != tries {
		t.Errorf("%d of %d tries are in the log", counted, tries)
	}
}

func TestMemoryOfFailuresIsBounded(t *testing.T) {
	f, now := newFailures(), time.Now()
	for i := range maxTracked + 100 {
		f.add(failure{remote: fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255), why: "a name that nobody has"}, now)
	}
	if len(f.windows) != maxTracked || f.rest.n == 0 {
		t.Errorf("%d windows, %d elsewhere", len(f.windows), f.rest.n)
	}
}

// What was not yet summed up is when gpulab ends.
func TestFailuresAreSummedUpAtTheEnd(t *testing.T) {
	s, _ := newTest(t)
	create(t, s, "ada", RoleMember)
	for range 9 {
		if _, err := s.Authenticate(t.Context(), "ada", "wrong", ""); err == nil || errors.Is(err, ErrNotFound) {
			t.Fatal(err)
		}
	}
	s.note(t.Context(), s.failures.flush(s.now(), true)...)
	list := failed(t, s)
	if last := list[len(list)-1]; !strings.HasPrefix(last.Detail, "4 more failed sign-ins") {
		t.Errorf("%+v", last)
	}
}
