package main

import (
	"runtime"
	"slices"
	"testing"
)

func TestWanted(t *testing.T) {
	own, mac := target{runtime.GOOS, runtime.GOARCH}, target{"darwin", "arm64"}
	if got := wanted(false, nil); len(got) != len(targets) {
		t.Errorf("without -own, %d of %d systems are built", len(got), len(targets))
	}
	if got := wanted(true, nil); !slices.Equal(got, []target{own}) {
		t.Errorf("in a new checkout %v are built, want %v", got, own)
	}
	before := []build{{File: mac.file()}, {File: "gpulab-plan9-amd64"}}
	if got := wanted(true, before); !slices.Equal(got, []target{own, mac}) {
		t.Errorf("where Mac's was built before, %v are built", got)
	}
}
