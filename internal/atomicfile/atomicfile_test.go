package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := Write(path, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	is(t, path, "one", 0o600)
	if err := Write(path, []byte("two"), 0o644); err != nil {
		t.Fatal(err)
	}
	is(t, path, "two", 0o644)
	alone(t, dir)

	if err := Write(filepath.Join(dir, "missing", "file"), nil, 0o600); err == nil {
		t.Error("a file in a folder that is not there was written")
	}
}

func TestWriteReplacesALink(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "file")
	if err := os.Symlink(other, path); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("own"), 0o600); err != nil {
		t.Fatal(err)
	}
	is(t, path, "own", 0o600)
	is(t, other, "other", 0o600)
}

func TestAFileThatCannotBeWrittenStaysAsItWas(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "folder")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new"), 0o600); err == nil {
		t.Error("a folder was replaced by a file")
	}
	alone(t, dir)
}

// TestReadersMeetAWholeFile reads a file while it is written again and again.
func TestReadersMeetAWholeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	contents := []string{strings.Repeat("a", 1<<16), strings.Repeat("b", 1<<15)}
	if err := Write(path, []byte(contents[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := range 50 {
			if err := Write(path, []byte(contents[i%2]), 0o600); err != nil {
				t.Error(err)
			}
		}
	})
	done := make(chan struct{})
	go func() { writer.Wait(); close(done) }()
	for {
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if s := string(got); s != contents[0] && s != contents[1] {
			t.Fatalf("read %d bytes of neither content", len(s))
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

func TestUpdate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	path := filepath.Join(dir, "file")
	for _, c := range []struct {
		text       string
		mode, then fs.FileMode
		changed    bool
	}{{"one", 0o600, 0o600, true}, {"one", 0o644, 0o600, false}, {"two", 0o644, 0o644, true}} {
		changed, err := Update(path, []byte(c.text), c.mode, 0o700)
		if err != nil || changed != c.changed {
			t.Errorf("%q: changed %t, %v; want %t", c.text, changed, err, c.changed)
		}
		is(t, path, c.text, c.then)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("folder: %v, %v", info.Mode(), err)
	}
	alone(t, dir)
}

func is(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != text || info.Mode() != mode {
		t.Errorf("%s is %q with %v, want %q with %v", path, got, info.Mode(), text, mode)
	}
}

// alone checks that nothing but one entry is left in the folder.
func alone(t *testing.T, dir string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 1 {
		t.Errorf("left in the folder: %v, %v", list, err)
	}
}
