package main

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// fakeGetent makes a getent that knows these lines, by database, and is as slow as asked.
func fakeGetent(t *testing.T, passwd, group, first string) {
	t.Helper()
	dir := t.TempDir()
	mustDo(t, os.WriteFile(filepath.Join(dir, "passwd"), []byte(passwd), 0o600))
	mustDo(t, os.WriteFile(filepath.Join(dir, "group"), []byte(group), 0o600))
	script := "#!/bin/sh\n" + first + "\ndatabase=$1; shift; all=0\nfor n; do grep \"^[^:]*:[^:]*:$n:\" '" + dir + "'/$database || all=2; done\nexit $all\n"
	mustDo(t, os.WriteFile(filepath.Join(dir, "getent"), []byte(script), 0o755)) //nolint:gosec // it is to be run
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// The lab gives nobody a UID or GID that the machine already uses.
func TestNumbersOfTheMachineAreNotGiven(t *testing.T) {
	fakeGetent(t, "prof:x:20000:20000::/:/bin/sh\nprof2:x:20003:100::/:/bin/sh\n", "lab:x:20002:\n", "")
	st, err := store.Open(t.Context(), t.TempDir())
	mustDo(t, err)
	defer func() { _ = st.Close() }()
	people := users.New(st.DB())
	people.AvoidNumbers(newHostNumbers().taken)
	for i, uid := range []int{20001, 20004, 20005, 20006} {
		u, err := people.Create(t.Context(), users.NewUser{Handle: "member" + string(rune('a'+i))})
		if err != nil || u.UID != uid {
			t.Errorf("member %d has %d, %v, want %d", i, u.UID, err, uid)
		}
	}
}

// A directory that does not answer keeps nobody out, and is not asked again for a while.
func TestNumbersWithoutADirectory(t *testing.T) {
	asked := filepath.Join(t.TempDir(), "asked")
	fakeGetent(t, "", "", "echo once >> '"+asked+"'; exec sleep 60")
	n := newHostNumbers()
	for number := range 100 {
		if n.taken(t.Context(), 20000+number) {
			t.Errorf("%d is taken", 20000+number)
		}
	}
	if got, err := os.ReadFile(asked); err != nil || string(got) != "once\n" {
		t.Errorf("a silent directory was asked: %q, %v", got, err)
	}
}

// Many numbers of a slow directory take a bounded time, because the database is being written meanwhile.
func TestNumbersOfASlowDirectory(t *testing.T) {
	at, asks := time.Now(), 0
	n := &hostNumbers{now: func() time.Time { return at }, look: func(_ context.Context, _ string, numbers []string) (map[int]bool, error) {
		asks++
		at = at.Add(time.Second)
		used := map[int]bool{}
		for _, text := range numbers {
			number, err := strconv.Atoi(text)
			mustDo(t, err)
			used[number] = true
		}
		return used, nil
	}}
	uid := users.FirstUID
	for uid <= users.LastUID && n.taken(t.Context(), uid) {
		uid++
	}
	if most := int(numbersTotal / time.Second); asks != most || uid != users.FirstUID+most/2*numbersAtOnce+1 {
		t.Errorf("asked %d times, and %d is free", asks, uid)
	}
	if at = at.Add(numbersBelieve); !n.taken(t.Context(), uid) {
		t.Error("a minute later, the directory is not asked again")
	}
}

// A request that is cancelled says nothing about the directory.
func TestNumbersOfACancelledRequest(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	n := &hostNumbers{now: time.Now, look: func(ctx context.Context, _ string, _ []string) (map[int]bool, error) {
		cancel()
		return map[int]bool{20000: true}, ctx.Err()
	}}
	n.taken(cancelled, 20000)
	if !n.taken(t.Context(), 20000) {
		t.Error("after a cancelled request, the machine is not asked")
	}
}

// An answer counts for a while; then the machine is asked again.
func TestNumbersAreAskedForAgain(t *testing.T) {
	at, asks, known := time.Now(), 0, map[int]bool{}
	n := &hostNumbers{now: func() time.Time { return at }, look: func(_ context.Context, database string, numbers []string) (map[int]bool, error) {
		if database == "passwd" {
			asks++
		}
		return known, nil
	}}
	for number := range 70 {
		n.taken(t.Context(), 20000+number)
	}
	if asks != 2 {
		t.Errorf("70 numbers were asked for %d times", asks)
	}
	known[20001] = true
	if at = at.Add(numbersBelieve); !n.taken(t.Context(), 20001) || asks != 3 {
		t.Errorf("a minute later it is not taken, after %d times", asks)
	}
}
