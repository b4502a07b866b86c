package transfer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A folder goes in and back, keeps times and the right to be run, and is left alone the second time.
func TestFolderThereAndBack(t *testing.T) {
	l, here := newTestLab(t), t.TempDir()
	src := filepath.Join(here, "data")
	a, b := put(t, filepath.Join(src, "a.bin"), 3<<20), put(t, filepath.Join(src, "sub/ä b.txt"), 100)
	put(t, filepath.Join(src, "empty"), 0)
	run := filepath.Join(src, "run.sh")
	put(t, run, 10)
	if err := errors.Join(os.Chmod(run, 0o755), os.Mkdir(filepath.Join(src, "nothing"), 0o755)); err != nil {
		t.Fatal(err)
	}
	s := l.upload(t, Options{Recursive: true}, "deep/copy", src)
	if s.Copied != 4 || s.Unchanged != 0 || s.Folders != 4 || s.Bytes != int64(len(a)+len(b)+10) || len(s.Failed)+len(s.Skipped) != 0 {
		t.Errorf("%+v", s)
	}
	want(t, l.path("deep/copy/a.bin"), a)
	want(t, l.path("deep/copy/sub/ä b.txt"), b)
	if info, err := os.Stat(l.path("deep/copy/run.sh")); err != nil || info.Mode().Perm()&0o111 == 0 || info.ModTime().Unix() != 1_700_000_000 {
		t.Errorf("%v %v", info, err)
	}
	if all := names(t, l.path("deep/copy")); len(all) != 6 || !all["nothing"] {
		t.Errorf("%v", all)
	}
	// The same line again makes no copy in the copy.
	s = l.upload(t, Options{Recursive: true, Check: true}, "deep/copy", src)
	if s.Copied != 0 || s.Unchanged != 4 || s.Folders != 0 || s.Bytes != 0 {
		t.Errorf("again: %+v", s)
	}
	l.upload(t, Options{Recursive: true}, "", src)
	want(t, l.path("data/a.bin"), a)

	back := t.TempDir()
	s = l.download(t, Options{Recursive: true, Check: true}, back+"/", "deep/copy")
	if s.Copied != 4 {
		t.Errorf("back: %+v", s)
	}
	want(t, filepath.Join(back, "copy/a.bin"), a)
	want(t, filepath.Join(back, "copy/sub/ä b.txt"), b)
	if info, err := os.Stat(filepath.Join(back, "copy/run.sh")); err != nil || info.Mode().Perm()&0o100 == 0 || info.ModTime().Unix() != 1_700_000_000 {
		t.Errorf("%v %v", info, err)
	}
	if s = l.download(t, Options{Recursive: true}, back+"/", "deep/copy"); s.Unchanged != 4 || s.Copied != 0 {
		t.Errorf("back again: %+v", s)
	}
	l.download(t, Options{}, filepath.Join(back, "other.bin"), "deep/copy/a.bin")
	want(t, filepath.Join(back, "other.bin"), a)
	l.download(t, Options{}, filepath.Join(back, "copy"), "deep/copy/sub/ä b.txt") // a folder that is there
	want(t, filepath.Join(back, "copy", "ä b.txt"), b)
}

// File names that are not UTF-8, as on older systems, are copied and compared like any other.
func TestNamesThatAreNoUTF8(t *testing.T) {
	l, here := newTestLab(t), t.TempDir()
	src, back := filepath.Join(here, "old"), filepath.Join(here, "back")
	const name = "caf\xe9\n.csv"
	text := put(t, filepath.Join(src, name), 5)
	l.upload(t, Options{Recursive: true, Check: true}, "old", src)
	if s := l.upload(t, Options{Recursive: true, Check: true}, "old", src); s.Unchanged != 1 || len(s.Failed) != 0 {
		t.Errorf("again: %+v", s)
	}
	if s := l.download(t, Options{Recursive: true, Check: true}, back, "old"); s.Copied != 1 || len(s.Failed) != 0 {
		t.Errorf("back: %+v", s)
	}
	want(t, filepath.Join(back, name), text)
}

// Files from before 1970 and after 2106 are copied once, there and back.
func TestTimesThatSFTPCannotHold(t *testing.T) {
	l, here := newTestLab(t), t.TempDir()
	src, back := filepath.Join(here, "old"), filepath.Join(here, "back")
	for name, c := range map[string]struct{ at, want string }{
		"mac":    {"1904-01-01T00:00:00Z", "1970-01-01T00:00:00Z"},
		"apollo": {"1969-07-20T20:17:40Z", "1970-01-01T00:00:00Z"},
		"half":   {"2026-02-03T04:05:06.789Z", "2026-02-03T04:05:06Z"},
		"signed": {"2040-01-01T00:00:00Z", "2040-01-01T00:00:00Z"},
		"far":    {"2107-01-01T00:00:00Z", "2106-02-07T06:28:15Z"},
	} {
		at, err := time.Parse(time.RFC3339Nano, c.at)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(src, name)
		put(t, path, 100)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		defer func() {
			for _, copied := range []string{l.path("old/" + name), filepath.Join(back, name)} {
				if info, err := os.Stat(copied); err != nil || info.ModTime().UTC().Format(time.RFC3339Nano) != c.want {
					t.Errorf("%s from %s: %v %v, want %s", copied, c.at, info.ModTime().UTC(), err, c.want)
				}
			}
		}()
	}
	if s := l.upload(t, Options{Recursive: true}, "old", src); s.Copied != 5 {
		t.Errorf("%+v", s)
	}
	if s := l.upload(t, Options{Recursive: true}, "old", src); s.Copied != 0 || s.Unchanged != 5 {
		t.Errorf("again: %+v", s)
	}
	if s := l.download(t, Options{Recursive: true}, back, "old"); s.Copied != 5 {
		t.Errorf("back: %+v", s)
	}
	if s := l.download(t, Options{Recursive: true}, src, "old/"); s.Copied != 0 {
		t.Errorf("back over the originals: %+v", s)
	}
}

// A connection that is cut again and again is opened again, and the copies are whole.
func TestLostConnections(t *testing.T) {
	l, here := newTestLab(t), t.TempDir()
	files := map[string][]byte{}
	for _, name := range []string{"a", "b", "c"} {
		files[name] = put(t, filepath.Join(here, "data", name), 24<<20)
	}
	l.cutAfter.Store(20 << 20)
	said := &notes{}
	s := l.upload(t, Options{Recursive: true, Note: said.add}, "data", filepath.Join(here, "data"))
	if l.cuts.Load() == 0 || s.Reopened == 0 || s.Copied != 3 || len(s.Failed) != 0 {
		t.Fatalf("%d cuts: %+v %q", l.cuts.Load(), s, said.list)
	}
	for name, text := range files {
		want(t, l.path("data/"+name), text)
	}
	if all := names(t, l.path("data")); len(all) != 3 {
		t.Errorf("left over: %v", all)
	}
	if len(said.list) == 0 || !strings.Contains(said.list[0], "connection to the lab was lost") {
		t.Errorf("said %q", said.list)
	}
	back := t.TempDir()
	s = l.download(t, Options{Recursive: true}, back+"/", "data")
	if s.Reopened == 0 || s.Copied != 3 {
		t.Errorf("back: %+v", s)
	}
	for name, text := range files {
		want(t, filepath.Join(back, "data", name), text)
	}
}

// What was interrupted goes on where it stopped, in a new run, in both directions.
func TestGoesOn(t *testing.T) {
	l, here := newTestLab(t), t.TempDir()
	const size = 64 << 20
	text := put(t, filepath.Join(here, "big"), size)
	interrupt := func(r *Run, copying func(context.Context) (Summary, error)) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			for r.Progress().Done < size/2 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		s, err := copying(ctx)
		if err == nil || s.Copied != 0 {
			t.Fatalf("it was not interrupted: %+v", s)
		}
	}
	r := l.run(Options{})
	interrupt(r, func(ctx context.Context) (Summary, error) {
		return r.Upload(ctx, []string{filepath.Join(here, "big")}, "big")
	})
	if _, err := os.Stat(l.path("big")); err == nil {
		t.Fatal("a file that is not complete has its name")
	}
	// An incomplete copy of an older source is of no use.
	old := l.path("big.00000000.partial")
	if err := os.WriteFile(old, text[:100], 0o644); err != nil {
		t.Fatal(err)
	}
	s := l.upload(t, Options{}, "big", filepath.Join(here, "big"))
	if s.Kept < size/4 || s.Bytes > size*3/4 || s.Kept+s.Bytes != size {
		t.Errorf("it began anew: %+v", s)
	}
	want(t, l.path("big"), text)

	back := t.TempDir()
	r = l.run(Options{})
	interrupt(r, func(ctx context.Context) (Summary, error) { return r.Download(ctx, []string{"big"}, back+"/") })
	s = l.download(t, Options{}, back+"/", "big")
	if s.Kept < size/4 || s.Kept+s.Bytes != size {
		t.Errorf("back: %+v", s)
	}
	want(t, filepath.Join(back, "big"), text)
}

// Another version of the source is never put together with what is left of the first; what is left goes away.
func TestChangedSource(t *testing.T) {
	l, here := newTestLab(t), t.TempDir()
	src := filepath.Join(here, "data")
	first := put(t, filepath.Join(src, "x"), 1000)
	e, err := disk{}.stat(t.Context(), filepath.Join(src, "x"))
	if err != nil {
		t.Fatal(err)
	}
	stale := l.path("data/" + partialName(e, "x"))
	put(t, stale, 500)
	second := append([]byte("newer"), first...)
	if err := os.WriteFile(filepath.Join(src, "x"), second, 0o644); err != nil {
		t.Fatal(err)
	}
	put(t, l.path("data/x.txt"), 3) // somebody's own
	put(t, l.path("data/x.notes.partial"), 3)
	l.upload(t, Options{Recursive: true}, "data", src)
	want(t, l.path("data/x"), second)
	if all := names(t, l.path("data")); len(all) != 3 || !all["x.txt"] || !all["x.notes.partial"] {
		t.Errorf("%v", all)
	}
	// Replaced by what differs.
	if err := os.WriteFile(filepath.Join(src, "x"), []byte("third"), 0o644); err != nil {
		t.Fatal(err)
	}
	l.upload(t, Options{Recursive: true}, "data", src)
	want(t, l.path("data/x"), []byte("third"))
}

// With checksums, damage is found: in what is there already, and in what is left of an earlier run.
func TestCheck(t *testing.T) {
	l, here := newTestLab(t), t.TempDir()
	src := filepath.Join(here, "x")
	text := put(t, src, 20<<20)
	l.upload(t, Options{Check: true}, "x", src)
	damage := func(path string) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("damaged"), 1000); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Close(), os.Chtimes(path, info.ModTime(), info.ModTime())); err != nil {
			t.Fatal(err)
		}
	}
	damage(l.path("x"))
	if s := l.upload(t, Options{}, "x", src); s.Unchanged != 1 {
		t.Errorf("without: %+v", s)
	}
	if s := l.upload(t, Options{Check: true}, "x", src); s.Copied != 1 {
		t.Errorf("with: %+v", s)
	}
	want(t, l.path("x"), text)
	e, err := disk{}.stat(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	part := l.path(partialName(e, "x"))
	if err := errors.Join(os.Remove(l.path("x")), os.WriteFile(part, text[:10<<20], 0o644)); err != nil {
		t.Fatal(err)
	}
	damage(part)
	if s := l.upload(t, Options{Check: true}, "x", src); s.Copied != 1 {
		t.Errorf("%+v", s)
	}
	want(t, l.path("x"), text)
	back := filepath.Join(here, "back")
	l.download(t, Options{Check: true}, back, "x")
	damage(back)
	if s := l.download(t, Options{Check: true}, back, "x"); s.Copied != 1 {
		t.Errorf("back: %+v", s)
	}
	want(t, back, text)
}

// Links are what was asked for, and what is no file is left out and said.
func TestLinksAndOthers(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Fatal("this test makes links and pipes as Unix has them")
	}
	l, here := newTestLab(t), t.TempDir()
	src := filepath.Join(here, "data")
	text := put(t, filepath.Join(src, "a"), 100)
	err := errors.Join(os.Symlink("a", filepath.Join(src, "link")), os.Symlink("/nowhere", filepath.Join(src, "broken")),
		os.Symlink(".", filepath.Join(src, "loop")), syscall.Mkfifo(filepath.Join(src, "pipe"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	said := &notes{}
	s := l.upload(t, Options{Recursive: true, Note: said.add}, "copy", src)
	if s.Copied != 1 || s.Links != 3 || len(s.Skipped) != 1 || len(s.Failed) != 0 {
		t.Errorf("%+v", s)
	}
	if to, err := os.Readlink(l.path("copy/broken")); err != nil || to != "/nowhere" {
		t.Errorf("%q %v", to, err)
	}
	if len(said.list) != 1 || !strings.Contains(said.list[0], "pipe was left out: it is a named pipe") {
		t.Errorf("said %q", said.list)
	}
	if s = l.upload(t, Options{Recursive: true}, "copy", src); s.Links != 0 || s.Unchanged != 4 {
		t.Errorf("again: %+v", s)
	}
	s = l.upload(t, Options{Recursive: true, Links: LinksSkip}, "skipped", src)
	if s.Links != 0 || len(s.Skipped) != 4 {
		t.Errorf("%+v", s)
	}
	if err := os.Remove(filepath.Join(src, "loop")); err != nil {
		t.Fatal(err)
	}
	s = l.upload(t, Options{Recursive: true, Links: LinksFollow}, "followed", src)
	if s.Copied != 2 || s.Links != 0 || len(s.Failed) != 1 {
		t.Errorf("%+v", s)
	}
	want(t, l.path("followed/link"), text)
	// What is named itself is followed.
	l.upload(t, Options{}, "named", filepath.Join(src, "link"))
	want(t, l.path("named"), text)
}

// What cannot be copied is told, the rest goes on.
func TestFailures(t *testing.T) {
	l, here := newTestLab(t), t.TempDir()
	src := filepath.Join(here, "data")
	text := put(t, filepath.Join(src, "good"), 100)
	put(t, filepath.Join(src, "taken"), 100)
	put(t, filepath.Join(src, "folder/x"), 100)
	if err := os.MkdirAll(l.path("data/taken"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.path("data/folder"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	said := &notes{}
	s := l.upload(t, Options{Recursive: true, Note: said.add}, "data", src)
	if s.Copied != 1 || len(s.Failed) != 2 || len(said.list) != 2 {
		t.Errorf("%+v %q", s, said.list)
	}
	want(t, l.path("data/good"), text)
	for what, tc := range map[string]struct {
		from []string
		to   string
		says string
	}{
		"a folder without -r": {[]string{src}, "x", "copy it with -r"},
		"nothing there":       {[]string{filepath.Join(here, "none")}, "x", "none"},
		"two into a file":     {[]string{filepath.Join(src, "good"), filepath.Join(src, "taken")}, "data/good", "several things go into a folder"},
	} {
		_, err := l.run(Options{}).Upload(t.Context(), tc.from, tc.to)
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := l.run(Options{}).Download(t.Context(), []string{"none"}, here+"/"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
	l.refuse.Store(true)
	if _, err := l.run(Options{}).Upload(t.Context(), []string{filepath.Join(src, "good")}, "x"); err == nil || !strings.Contains(err.Error(), "suspended") {
		t.Errorf("refused: %v", err)
	}
}

// A lab that is gone for good is given up after a while, with what to do next.
func TestPatience(t *testing.T) {
	l, here := newTestLab(t), t.TempDir()
	put(t, filepath.Join(here, "big"), 64<<20)
	l.cutAfter.Store(8 << 20)
	r := l.run(Options{Patience: 1500 * time.Millisecond})
	go func() {
		for l.cuts.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		_ = l.ln.Close()
	}()
	began := time.Now()
	_, err := r.Upload(t.Context(), []string{filepath.Join(here, "big")}, "big")
	if err == nil || !strings.Contains(err.Error(), "run the same line again") {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("given up after %s", took)
	}
}

// A link that an earlier copy made leads no later one out of the folder.
func TestNothingIsWrittenElsewhere(t *testing.T) {
	l, here := newTestLab(t), t.TempDir()
	outside := filepath.Join(here, "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(here, "inside")
	if err := errors.Join(os.Mkdir(l.path("data"), 0o755), os.Symlink(outside, l.path("data/x"))); err != nil {
		t.Fatal(err)
	}
	l.download(t, Options{Recursive: true}, inside+"/", "data")
	if to, err := os.Readlink(filepath.Join(inside, "data/x")); err != nil || to != outside {
		t.Fatalf("%q %v", to, err)
	}
	if err := os.Remove(l.path("data/x")); err != nil {
		t.Fatal(err)
	}
	put(t, l.path("data/x/authorized_keys"), 10)
	s := l.download(t, Options{Recursive: true}, inside+"/", "data")
	if len(s.Failed) != 1 || len(names(t, outside)) != 0 {
		t.Errorf("%+v, outside: %v", s, names(t, outside))
	}
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{"a": true, "ä b": true, "...": true, "": false, ".": false, "..": false, "a/b": false, "/": false, "a\x00": false} {
		if err := checkName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
	e := entry{size: 5, mtime: time.Unix(10, 0)}
	for _, name := range []string{"a", strings.Repeat("ä", 127), strings.Repeat("x", 255)} {
		p := partialName(e, name)
		if len(p) > 255 || !partialPattern.MatchString(p) || p == partialName(entry{size: 6, mtime: e.mtime}, name) || p != partialName(e, name) {
			t.Errorf("%q for %q", p, name)
		}
		if strings.ToValidUTF8(p, "?") != p {
			t.Errorf("%q is cut in the middle of a letter", p)
		}
	}
	if !isPartialOf(partialName(e, "a"), "a") || isPartialOf("a.partial", "a") || isPartialOf("ab.00000000.partial", "a") {
		t.Error("a partial is not told from other files")
	}
}

func FuzzCheckName(f *testing.F) {
	f.Add("a")
	f.Add("../x")
	f.Add(`..\x`)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, name string) {
		if checkName(name) != nil {
			return
		}
		if filepath.Dir(filepath.Join(dir, name)) != dir {
			t.Fatalf("%q leads out of its folder", name)
		}
	})
}
