package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAptLockRoundTrip(t *testing.T) {
	lock := aptLock{"libc6": "2.36-9+deb12u14", "openssh-client": "1:9.2p1-2"}
	day := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	text := lock.format("base", day)
	if !strings.Contains(text, "2026-11-21") {
		t.Errorf("the lock has no date:\n%s", text)
	}
	got, err := parseAptLock(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got["openssh-client"] != "1:9.2p1-2" {
		t.Errorf("read back: %v", got)
	}
}

func TestAptLockRefusesNonsense(t *testing.T) {
	for _, text := range []string{"libc6", "libc6 1 2", "libc6 1\nlibc6 2"} {
		if lock, err := parseAptLock(strings.NewReader(text)); err == nil {
			t.Errorf("%q was read as %v", text, lock)
		}
	}
}

func TestDriftNamesEveryDifference(t *testing.T) {
	lock := aptLock{"same": "1", "newer": "1", "dropped": "1"}
	got := lock.drift(aptLock{"same": "1", "newer": "2", "added": "3"})
	want := []string{
		"added 3 is not in the lock",
		"newer is 2, locked 1, which Debian no longer serves",
		"dropped 1 is locked, but nothing needs it",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if d := lock.drift(lock); len(d) > 0 {
		t.Errorf("no difference, but %q", d)
	}
}

func TestPreferencesPinExactly(t *testing.T) {
	got := aptLock{"b": "2~1", "a": "1:1"}.preferences()
	want := "Package: a\nPin: version 1:1\nPin-Priority: 1001\n\nPackage: b\nPin: version 2~1\nPin-Priority: 1001\n\n"
	if got != want {
		t.Errorf("got\n%s", got)
	}
}
