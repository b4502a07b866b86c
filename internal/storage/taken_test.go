package storage

import (
	"context"
	"testing"
)

// A folder gets two GIDs that the machine does not use.
func TestFoldersAvoidNumbersOfTheMachine(t *testing.T) {
	l := newTestLab(t)
	l.cfg.Taken = func(_ context.Context, number int) bool { return number == firstGID+1 || number == firstGID+4 }
	for i, gid := range []int{firstGID + 2, firstGID + 6, firstGID + 8} {
		if f := l.create(t, NewFolder{Name: "folder-" + string(rune('a'+i)), Kind: Dataset}); f.GID != gid {
			t.Errorf("%s has %d, want %d", f.Name, f.GID, gid)
		}
	}
}
