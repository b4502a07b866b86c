package storage

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// size lets somebody's home be of a size, and measures it.
func (l *testLab) size(t *testing.T, handle string, bytes int) {
	t.Helper()
	home, _ := l.place(t, handle, "")
	file := filepath.Join(home.Path, "ballast")
	if err := os.RemoveAll(file); err != nil {
		t.Fatal(err)
	}
	if bytes > 0 {
		fill(t, file, bytes)
	}
	if err := l.measure(t.Context(), target{ofHome, l.of[handle].ID}); err != nil {
		t.Fatal(err)
	}
}

// A home is warned of at 80 and 95 %; at 100 % new notebooks only read it, and those that write have a while.
func TestFullHome(t *testing.T) {
	l := newTestLab(t)
	now := time.Now()
	l.now = func() time.Time { return now }
	ben := l.of["ben"]
	notice := func() string {
		text, err := l.notice(t, ben)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	keep := func() {
		if err := l.keepHomes(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	l.size(t, "ben", 9<<20)
	if got := notice(); got != "" {
		t.Errorf("without a limit: %q", got)
	}
	l.limit["ben"] = 100 << 20
	for bytes, want := range map[int]string{79 << 20: "", 82 << 20: "is getting full: 82 MiB of 100 MiB (for everybody)", 96 << 20: "is nearly full"} {
		l.size(t, "ben", bytes)
		if got := notice(); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%d: %q", bytes, got)
		}
		if _, opened := l.launch(t, "ben"); opened.HomeReadOnly {
			t.Errorf("%d: the home is only read", bytes)
		}
	}
	writes, _ := l.launch(t, "ben")
	l.size(t, "ben", 101<<20)
	keep()
	if got := notice(); !strings.Contains(got, "is full") || !strings.Contains(got, now.Add(time.Hour).Local().Format("15:04")) {
		t.Errorf("%q", got)
	}
	reads, opened := l.launch(t, "ben")
	if !opened.HomeReadOnly {
		t.Error("a new notebook writes in a full home")
	}
	if home, _ := l.place(t, "ben", ""); !home.ReadOnly {
		t.Error("files are brought into a full home")
	}
	now = now.Add(time.Hour - time.Second)
	keep()
	if len(l.ended) != 0 {
		t.Errorf("ended before the grace period is over: %v", l.ended)
	}
	now = now.Add(2 * time.Second)
	keep()
	if l.ended[writes] == "" || l.why[writes] != FullHome || l.ended[reads] != "" {
		t.Errorf("ended: %v", l.ended)
	}
	// Room again: nothing is held against its owner.
	clear(l.ended)
	l.size(t, "ben", 1<<20)
	keep()
	now = now.Add(2 * time.Hour)
	keep()
	if len(l.ended) != 0 || notice() != "" {
		t.Errorf("ended %v, notice %q", l.ended, notice())
	}
	if _, opened := l.launch(t, "ben"); opened.HomeReadOnly {
		t.Error("a home with room is only read")
	}
	if home, _ := l.place(t, "ben", ""); home.ReadOnly {
		t.Error("no files can be brought into a home with room")
	}
}

// Where the file system does not keep it, the number of files is measured like the size.
func TestHomeWithTooManyFiles(t *testing.T) {
	l := newTestLab(t)
	l.files["ben"] = 4 // and the home itself is one
	home, _ := l.place(t, "ben", "")
	l.can(t, "ben", 0, "cd "+home.Path+" && : >one && : >two")
	look := func() (HomeState, string) {
		t.Helper()
		if err := l.measure(t.Context(), target{ofHome, l.of["ben"].ID}); err != nil {
			t.Fatal(err)
		}
		state, err := l.HomeState(t.Context(), l.of["ben"])
		if err != nil {
			t.Fatal(err)
		}
		text, err := l.notice(t, l.of["ben"])
		if err != nil {
			t.Fatal(err)
		}
		return state, text
	}
	if state, text := look(); state.Over || text != "" {
		t.Errorf("%+v %+v %q", state, state.Size, text)
	}
	l.can(t, "ben", 0, "cd "+home.Path+" && mkdir more && : >more/three")
	state, text := look()
	if !state.Over || state.Kept || !strings.Contains(text, "of 4 files and folders (for everybody)") {
		t.Errorf("%+v %+v %q", state, state.Size, text)
	}
	if _, opened := l.launch(t, "ben"); !opened.HomeReadOnly {
		t.Error("a new notebook writes in a full home")
	}
}

// A limit below what there is gives a while, too; a home that nobody has measured is not full.
func TestHomeOfUnknownSize(t *testing.T) {
	l := newTestLab(t)
	l.limit["ben"] = 0
	state, err := l.HomeState(t.Context(), l.of["ben"])
	if err != nil || state.Size != nil || state.Over {
		t.Errorf("%+v, %v", state, err)
	}
}

// What is in use, new, or was left by a notebook is measured, and nothing else.
func TestWhatIsMeasured(t *testing.T) {
	l := newTestLab(t)
	now := time.Now()
	l.now = func() time.Time { return now }
	stale := func() map[target]bool {
		list, err := l.stale(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		of := map[target]bool{}
		for _, x := range list {
			of[x] = true
		}
		return of
	}
	f := l.create(t, NewFolder{Name: "vision-data", Kind: Group, Groups: []string{"vision"}})
	if got := stale(); len(got) != 7 {
		t.Errorf("of a new lab: %v", got)
	}
	if err := l.measureAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := stale(); len(got) != 0 {
		t.Errorf("at once again: %v", got)
	}
	id, _ := l.launch(t, "ben")
	l.watched(t)
	now = now.Add(DefaultMeasureEvery + time.Second)
	if got := stale(); len(got) != 2 || !got[target{ofHome, l.of["ben"].ID}] || !got[target{ofFolder, f.ID}] {
		t.Errorf("in use: %v", got)
	}
	if err := l.measureAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.end(t, id)
	l.watched(t)
	if got := stale(); len(got) != 2 {
		t.Errorf("after a notebook: %v", got)
	}
	if err := l.measureAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	now = now.Add(atLeastEvery + time.Second)
	if got := stale(); len(got) != 7 {
		t.Errorf("a day later: %v", got)
	}
	size, err := l.HomeSize(t.Context(), l.of["dan"].ID)
	if err != nil || size == nil || size.Bytes != 0 {
		t.Errorf("a home that nobody has used: %+v, %v", size, err)
	}
}

// What its owner deletes on the page is gone, and nothing else is.
func TestClear(t *testing.T) {
	l := newTestLab(t)
	home, _ := l.place(t, "ben", "")
	ben := l.of["ben"]
	outside := open(t)
	fill(t, filepath.Join(outside, "kept", "file"), 1)
	fill(t, filepath.Join(l.cfg.HomesDir, "other"), 1)
	l.create(t, NewFolder{Name: "vision-data", Kind: Group, Groups: []string{"vision"}})
	l.launch(t, "ben")
	l.can(t, "ben", 0, "cd "+home.Path+" && mkdir -p work/data && echo x >work/data/file && echo x >'odd name' && mkdir sealed && chmod 500 sealed && "+
		"ln -s "+outside+" out && ln -s "+outside+"/kept work/out && ln -s work inside && ln -s .. up")
	for _, bad := range []string{"", ".", "..", "/", "/etc/passwd", "../other", "work/../../other", "out/kept", "out/kept/file", "work/out/file", "up/other", "nothing", "work//data",
		"shared", "shared/vision-data", "shared/../work", "a\x00b", "./work"} {
		err := l.Clear(t.Context(), ben, bad)
		if _, ok := users.Message(err); !ok {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, good := range []string{"odd name", "work/out", "out", "inside/data", "sealed", "work"} {
		if err := l.Clear(t.Context(), ben, good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
		if _, err := os.Lstat(filepath.Join(home.Path, good)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%q is there: %v", good, err)
		}
	}
	for _, path := range []string{filepath.Join(outside, "kept", "file"), filepath.Join(l.cfg.HomesDir, "other"), filepath.Join(home.Path, "shared", "vision-data")} {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := l.Clear(t.Context(), l.of["dan"], "file"); err == nil {
		t.Error("something was deleted in a home that is not there")
	}
}

// Run does all of it by itself.
func TestRun(t *testing.T) {
	l := newTestLab(t)
	l.create(t, NewFolder{Name: "vision-data", Kind: Group, Groups: []string{"vision"}})
	id, _ := l.launch(t, "ben")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	if err := l.people.RemoveMember(ctx, "vision", l.of["ben"].ID); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		l.mu.Lock()
		why := l.ended[id]
		l.mu.Unlock()
		sizes, err := l.HomeSizes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if why != "" && len(sizes) == 6 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("ended %q, %d homes measured", why, len(sizes))
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
