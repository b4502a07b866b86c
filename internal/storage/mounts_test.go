package storage

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/users"
)

func (l *testLab) watched(t *testing.T) map[int64]string {
	t.Helper()
	l.mu.Lock()
	clear(l.ended)
	l.mu.Unlock()
	if err := l.watch(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	ended := map[int64]string{}
	for id, why := range l.ended {
		ended[id] = why
	}
	return ended
}

// Who loses a folder, or the right to write in it, loses the notebooks that have it open, and only these.
func TestWhoLosesAFolderLosesItsNotebooks(t *testing.T) {
	l := newTestLab(t)
	before, opened := l.launch(t, "ben")
	if len(opened.Mounts) != 0 {
		t.Errorf("%+v", opened)
	}
	l.create(t, NewFolder{Name: "vision-data", Kind: Group, Groups: []string{"vision"}})
	l.create(t, NewFolder{Name: "exercises", Kind: HandIn, Groups: []string{"vision"}})
	l.create(t, NewFolder{Name: "imagenet", Kind: Dataset})
	ben, opened := l.launch(t, "ben")
	cleo, _ := l.launch(t, "cleo")
	dan, _ := l.launch(t, "dan")
	var names []string
	for _, m := range opened.Mounts {
		names = append(names, m.Name+" "+m.Claim)
	}
	if got := strings.Join(names, ", "); got != "exercises part-2, imagenet folder-3, vision-data folder-1" {
		t.Errorf("mounted: %s", got)
	}
	if ended := l.watched(t); len(ended) != 0 {
		t.Errorf("ended without a reason: %v", ended)
	}
	if err := l.people.RemoveMember(t.Context(), "vision", l.of["ben"].ID); err != nil {
		t.Fatal(err)
	}
	if ended := l.watched(t); len(ended) != 1 || !strings.Contains(ended[ben], "you may no longer use the shared folder exercises") {
		t.Errorf("ended: %v", ended)
	}
	if l.why[ben] != LostFolder {
		t.Errorf("because of %v", l.why[ben])
	}
	l.end(t, ben)
	// Less is a loss, too.
	if err := l.people.Change(t.Context(), l.of["cleo"].ID, users.Change{Role: new(users.RoleGuest)}); err != nil {
		t.Fatal(err)
	}
	if ended := l.watched(t); len(ended) != 1 || !strings.Contains(ended[cleo], "vision-data") {
		t.Errorf("ended: %v", ended)
	}
	l.end(t, cleo)
	if ended := l.watched(t); len(ended) != 0 {
		t.Errorf("ended: %v", ended)
	}
	// More is none.
	if err := l.people.SetMember(t.Context(), "vision", l.of["dan"].ID, false); err != nil {
		t.Fatal(err)
	}
	if ended := l.watched(t); len(ended) != 0 {
		t.Errorf("ended: %v", ended)
	}
	if _, err := l.Delete(t.Context(), "imagenet"); err != nil {
		t.Fatal(err)
	}
	if ended := l.watched(t); len(ended) != 1 || !strings.Contains(ended[dan], "was deleted") {
		t.Errorf("ended: %v", ended)
	}
	l.end(t, dan)
	l.watched(t)
	var left int
	if err := l.store.DB().QueryRow("SELECT (SELECT count(*) FROM launch_folders) + (SELECT count(*) FROM launch_homes WHERE launch_id <> ?)", before).Scan(&left); err != nil || left != 0 {
		t.Errorf("noted of notebooks that have ended: %d, %v", left, err)
	}
}

// What a job had open in its last run is not a loss while it waits for the next, and does not count there.
func TestWhoWaitsHasNothingOpen(t *testing.T) {
	l := newTestLab(t)
	l.create(t, NewFolder{Name: "vision-data", Kind: Group, Groups: []string{"vision"}})
	id, _ := l.launch(t, "ben")
	state := func(now string) {
		t.Helper()
		if _, err := l.store.DB().Exec("UPDATE launches SET state = ? WHERE id = ?", now, id); err != nil {
			t.Fatal(err)
		}
	}
	state("waiting")
	if err := l.people.Change(t.Context(), l.of["ben"].ID, users.Change{Role: new(users.RoleGuest)}); err != nil {
		t.Fatal(err)
	}
	if ended := l.watched(t); len(ended) != 0 {
		t.Errorf("ended while it waits: %v", ended)
	}
	state("starting")
	l.opensReadOnly(t, id, "ben")
	if ended := l.watched(t); len(ended) != 0 {
		t.Errorf("ended for what an earlier run had: %v", ended)
	}
}

// opensReadOnly opens a launch's folders as its owner may use them now: one, which they may read.
func (l *testLab) opensReadOnly(t *testing.T, launch int64, handle string) {
	t.Helper()
	u, err := l.people.ByID(t.Context(), l.of[handle].ID)
	if err != nil {
		t.Fatal(err)
	}
	if opened, err := l.Open(t.Context(), launch, u); err != nil || len(opened.Mounts) != 1 || !opened.Mounts[0].ReadOnly {
		t.Fatalf("%+v, %v", opened, err)
	}
}

func (l *testLab) end(t *testing.T, launch int64) {
	t.Helper()
	if _, err := l.store.DB().Exec("UPDATE launches SET state = 'ended' WHERE id = ?", launch); err != nil {
		t.Fatal(err)
	}
}

// A start that is asked for twice may run with what it was given first.
func TestOpenTwiceKeepsTheWider(t *testing.T) {
	l := newTestLab(t)
	l.create(t, NewFolder{Name: "vision-data", Kind: Group, Groups: []string{"vision"}})
	id, _ := l.launch(t, "ben")
	if err := l.people.Change(t.Context(), l.of["ben"].ID, users.Change{Role: new(users.RoleGuest)}); err != nil {
		t.Fatal(err)
	}
	l.opensReadOnly(t, id, "ben")
	if ended := l.watched(t); len(ended) != 1 {
		t.Errorf("ended: %v", ended)
	}
}

// The places where folders appear lose nobody's files and lead nowhere.
func TestMountPoints(t *testing.T) {
	l := newTestLab(t)
	home, _ := l.place(t, "ben", "")
	outside := open(t)
	l.can(t, "ben", 0, "cd "+home.Path+" && ln -s "+outside+" shared")
	l.create(t, NewFolder{Name: "vision-data", Kind: Group, Groups: []string{"vision"}})
	l.launch(t, "ben")
	look := func(name string) (os.FileInfo, error) { return os.Lstat(filepath.Join(home.Path, name)) }
	if info, err := look("shared/vision-data"); err != nil || !info.IsDir() || owner(info) != 0 {
		t.Errorf("the mount point: %v, %v", info, err)
	}
	if info, err := look("shared.yours-1"); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("what was in the way: %v, %v", info, err)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
		t.Errorf("made outside of the home: %v, %v", left, err)
	}
	l.cannot(t, "ben", 0, "touch "+home.Path+"/shared/x")
	l.cannot(t, "ben", 0, "touch "+home.Path+"/shared/vision-data/x")
	if err := l.people.RemoveMember(t.Context(), "vision", l.of["ben"].ID); err != nil {
		t.Fatal(err)
	}
	l.launch(t, "ben")
	if _, err := look("shared/vision-data"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mount point of a folder that is gone: %v", err)
	}

	// Somebody who had a folder of that name keeps it, and what is in it.
	home, _ = l.place(t, "cleo", "")
	l.can(t, "cleo", 0, "mkdir -p "+home.Path+"/shared/vision-data && echo mine >"+home.Path+"/shared/vision-data/file && ln -s /etc "+home.Path+"/shared/exercises")
	l.create(t, NewFolder{Name: "exercises", Kind: HandIn, Groups: []string{"vision"}})
	l.launch(t, "cleo")
	if got, err := os.ReadFile(filepath.Join(home.Path, "shared/vision-data.yours-1/file")); err != nil || string(got) != "mine\n" {
		t.Errorf("%q, %v", got, err)
	}
	if info, err := os.Lstat(filepath.Join(home.Path, "shared/exercises")); err != nil || !info.IsDir() {
		t.Errorf("%v, %v", info, err)
	}
	l.launch(t, "cleo") // again changes nothing
	if _, err := os.Lstat(filepath.Join(home.Path, "shared/vision-data.yours-2")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
