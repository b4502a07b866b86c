package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/store"
)

// A lab comes back in the place of another, which is set aside; the other's cluster goes.
func TestThereAndBack(t *testing.T) {
	archive := newLab(t, "saved").save(t)
	m, totals, err := Verify(t.Context(), bytes.NewReader(archive))
	must(t, err)
	if m.Format != Format || m.Version != "1.2.3" || m.Lab != "Test lab" || m.Schema == 0 || !m.Homes || m.History || totals.Entries < 8 || totals.LeftOut != 0 {
		t.Errorf("%+v %+v", m, totals)
	}
	l := newLab(t, "before")
	write(t, filepath.Join(l.data, "homes", "7", "letter"), "somebody else's", 0o600)
	write(t, filepath.Join(l.data, "something", "unknown"), "?", 0o600)
	placed, err := l.restore(t.Context(), archive)
	must(t, err)
	l.all(t, "saved")
	if len(placed.Aside) != 1 {
		t.Fatalf("%+v", placed)
	}
	for path, want := range map[string]bool{
		"k3s": false, "hub": false, "homes/7": false, "identity.json": true, stageFolder: false, "something": false,
	} {
		if exists(filepath.Join(l.data, path)) != want {
			t.Errorf("%s is there: %v", path, !want)
		}
	}
	for _, path := range []string{"gpulab.db", "tls/ca.key", "metrics-token", "homes/1/mark", "homes/7/letter", "something/unknown", "etc/config.yaml", "etc/university.secret"} {
		if !exists(filepath.Join(placed.Aside[0], path)) {
			t.Errorf("%s is not set aside", path)
		}
	}
	if info, err := os.Stat(placed.Aside[0]); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if exists(l.config+".restore") || exists(l.config+".restored") {
		t.Error("the journal is left")
	}
	for path, mode := range map[string]fs.FileMode{"gpulab.db": 0o600, "tls/ca.key": 0o600, "tls/ca.crt": 0o644, "metrics-token": 0o600} {
		if info, err := os.Stat(filepath.Join(l.data, path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
}

// Into an empty place, the same.
func TestIntoNothing(t *testing.T) {
	archive := newLab(t, "saved").save(t)
	dir := t.TempDir()
	l := &testLab{dir: dir, data: filepath.Join(dir, "data"), config: filepath.Join(dir, "etc", "config.yaml")}
	placed, err := l.restore(t.Context(), archive)
	if err != nil || len(placed.Aside) != 0 {
		t.Fatalf("%+v, %v", placed, err)
	}
	l.all(t, "saved")
}

// Homes that belong to the restored lab stay where the backup has none; no other does, and none of the backup's that
// the restored lab does not know comes.
func TestKeepHomes(t *testing.T) {
	from := newLab(t, "saved")
	write(t, filepath.Join(from.data, "homes", "9", "forged"), "", 0o600)
	var out bytes.Buffer
	_, _, err := Create(t.Context(), from.source(9), &out, quiet)
	must(t, err)
	l := newLab(t, "before")
	write(t, filepath.Join(l.data, "homes", "2", "letter"), "of somebody new", 0o600)
	stage, err := NewStage(t.Context(), l.data)
	must(t, err)
	_, _, err = stage.Unpack(t.Context(), &out, accept, func(string, int64) {})
	must(t, err)
	p := l.placing()
	p.Keep = func(part string, id int64, _ fs.FileInfo) bool { return part == "homes" }
	placed, err := stage.Place(t.Context(), p)
	must(t, err)
	if placed.Kept != 1 || !exists(filepath.Join(l.data, "homes", "1", "mark")) || exists(filepath.Join(l.data, "homes", "2")) || exists(filepath.Join(l.data, "homes", "9")) {
		t.Errorf("%+v", placed)
	}
	if !exists(filepath.Join(placed.Aside[0], "homes", "2", "letter")) {
		t.Error("a home is lost")
	}
}

// Homes that are mounted from another folder of the same file system cannot be moved out of there.
func TestRestoreIntoABindMount(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	archive := newLab(t, "saved").save(t)
	l := newLab(t, "before")
	homes, elsewhere := filepath.Join(l.data, "homes"), filepath.Join(l.dir, "elsewhere")
	must(t, os.Rename(homes, elsewhere))
	must(t, os.Mkdir(homes, 0o711))
	must(t, unix.Mount(elsewhere, homes, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(homes, 0) })
	placed, err := l.restore(t.Context(), archive)
	must(t, err)
	if data, err := os.ReadFile(filepath.Join(elsewhere, "1", "mark")); err != nil || string(data) != "saved" {
		t.Errorf("the restored home has %q, %v", data, err)
	}
	if !slices.ContainsFunc(placed.Aside, func(dir string) bool { return exists(filepath.Join(dir, "1", "mark")) }) {
		t.Errorf("the home that was there is in none of %v", placed.Aside)
	}
}

// A restore that goes on while the disk with the homes is away does not take them for restored.
func TestRestoreGoesOnWithoutADisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	archive := newLab(t, "saved").save(t)
	l := newLab(t, "before")
	homes := filepath.Join(l.data, "homes")
	must(t, os.RemoveAll(homes))
	must(t, os.Mkdir(homes, 0o711))
	disk := filepath.Join(l.dir, "disk")
	must(t, os.Mkdir(disk, 0o711))
	must(t, unix.Mount("disk", disk, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(disk, 0) })
	must(t, unix.Mount(disk, homes, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(homes, 0) })
	write(t, filepath.Join(homes, "1", "mark"), "before", 0o600)

	stage, err := NewStage(t.Context(), l.data)
	must(t, err)
	_, _, err = stage.Unpack(t.Context(), bytes.NewReader(archive), accept, func(string, int64) {})
	must(t, err)
	must(t, stage.decide(t.Context(), l.placing()))
	must(t, unix.Unmount(homes, 0))
	for range 2 {
		if _, _, err := Finish(t.Context(), l.placing().Journal); err == nil || !strings.Contains(err.Error(), "is a disk not mounted?") {
			t.Fatalf("without the disk: %v", err)
		}
	}
	must(t, unix.Mount(disk, homes, "", unix.MS_BIND, ""))
	_, was, err := Finish(t.Context(), l.placing().Journal)
	must(t, err)
	if !was {
		t.Error("the journal was gone")
	}
	l.all(t, "saved")
}

// What a home may hold comes back as it was; what cannot is named.
func TestTree(t *testing.T) {
	l := newLab(t, "x")
	home := filepath.Join(l.data, "homes", "1")
	at := func(path string) string { return filepath.Join(home, path) }
	write(t, at("a/b/c/deep"), "deep", 0o640)
	write(t, at("empty"), "", 0o400)
	write(t, at("nobody"), "x", 0)
	write(t, at("new\nline \xff\x80 é"), "a name", 0o644)
	write(t, at(strings.Repeat("n", 255)), "long", 0o755)
	write(t, at("a.b"), "sorts between a and a/b", 0o644)
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB
	must(t, os.WriteFile(at("large"), large, 0o600))
	for name, target := range map[string]string{"absolute": "/etc/shadow", "dangling": "no/where", "up": "../../..", "to-a": "a", "strange": "x\ny"} {
		must(t, os.Symlink(target, at(name)))
	}
	must(t, os.Link(at("a/b/c/deep"), at("zz-second name")))
	must(t, os.Link(at("a/b/c/deep"), at("a/third")))
	sparse, err := os.Create(at("sparse"))
	must(t, err)
	must(t, sparse.Truncate(1<<40))
	for _, offset := range []int64{0, 10 << 20, 1<<40 - 5} {
		_, err := sparse.WriteAt([]byte("data!"), offset)
		must(t, err)
	}
	must(t, sparse.Close())
	must(t, os.Truncate(at("empty"), 0))
	holes, err := os.Create(at("only holes"))
	must(t, err)
	must(t, errors.Join(holes.Truncate(1<<30), holes.Close()))
	must(t, unix.Setxattr(at("large"), "user.comment", []byte("\x00binary\xff="), 0))
	acl := []byte{2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 7, 0, 255, 255, 255, 255, 8, 0, 5, 0, 97, 234, 0, 0, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255}
	for _, name := range []string{aclAccess, aclDefault} {
		must(t, unix.Setxattr(at("a/b"), name, acl, 0))
	}
	must(t, os.Chmod(at("a"), 0o770|fs.ModeSetgid))
	must(t, os.Mkdir(at("sticky"), 0o700))
	must(t, os.Chmod(at("sticky"), 0o777|fs.ModeSticky))
	if os.Geteuid() == 0 {
		must(t, os.Chown(home, 20000, 20000))
		must(t, os.Chmod(home, 0o700))
		must(t, os.Lchown(at("dangling"), 20000, 20001))
		must(t, os.Chown(at("large"), 20000, 60000))
	}
	old := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
	for _, name := range []string{"large", "sparse", "a/b/c", "a/b", "a"} {
		must(t, os.Chtimes(at(name), old, old))
	}
	want := treeOf(t, home)
	// What is not saved.
	must(t, unix.Mkfifo(at("pipe"), 0o600))
	socket, err := net.Listen("unix", at("socket"))
	must(t, err)
	defer socket.Close()
	write(t, at("suid"), "runs as its owner", 0o755|fs.ModeSetuid)
	deep := at("deeper")
	for range maxDepth + 5 {
		deep = filepath.Join(deep, "d")
	}
	must(t, os.MkdirAll(deep, 0o700))

	noted := map[string]string{}
	var out bytes.Buffer
	_, totals, err := Create(t.Context(), l.source(1), &out, Watch{Step: quiet.Step, Note: func(path, why string) { noted[path] = why }})
	must(t, err)
	if len(noted) != 4 || noted["homes/1/pipe"] != "it is a pipe" || noted["homes/1/socket"] != "it is a socket" || noted["homes/1/suid"] == "" || totals.LeftOut != 4 {
		t.Errorf("%d left out, %v", totals.LeftOut, noted)
	}
	if out.Len() > 1<<20 {
		t.Errorf("%d bytes for some holes and repetitions", out.Len())
	}
	l2 := &testLab{dir: t.TempDir()}
	l2.data, l2.config = filepath.Join(l2.dir, "data"), filepath.Join(l2.dir, "etc", "config.yaml")
	_, err = l2.restore(t.Context(), out.Bytes())
	must(t, err)
	home = filepath.Join(l2.data, "homes", "1")
	if info, err := os.Stat(at("suid")); err != nil || info.Mode() != 0o755 {
		t.Errorf("suid: %v, %v", info.Mode(), err)
	}
	must(t, errors.Join(os.Remove(at("suid")), os.RemoveAll(at("deeper"))))
	got := treeOf(t, home)
	delete(got, ".") // its time changed just now
	delete(want, ".")
	if !reflect.DeepEqual(got, want) {
		for path := range want {
			if got[path] != want[path] {
				t.Errorf("%q:\n got %s\nwant %s", path, got[path], want[path])
			}
			delete(got, path)
		}
		for path := range got {
			t.Errorf("%q is there", path)
		}
	}
	var st unix.Stat_t
	must(t, unix.Stat(at("sparse"), &st))
	if st.Blocks*512 > 1<<20 {
		t.Errorf("the holes take %d bytes", st.Blocks*512)
	}
	var first, second unix.Stat_t
	must(t, errors.Join(unix.Stat(at("a/third"), &first), unix.Stat(at("zz-second name"), &second)))
	if first.Ino != second.Ino || first.Nlink != 3 {
		t.Errorf("the names are no longer of one file: %d %d, %d names", first.Ino, second.Ino, first.Nlink)
	}
}

// treeOf describes everything below a folder.
func treeOf(t *testing.T, root string) map[string]string {
	t.Helper()
	found := map[string]string{}
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		text := fmt.Sprintf("mode %o owner %d:%d modified %d.%09d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
		switch {
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += " to " + target
		case d.Type().IsRegular():
			text += fmt.Sprintf(" size %d names %d", st.Size, st.Nlink)
			if st.Size < 1<<28 {
				data, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				text += fmt.Sprintf(" content %.40q %d", data, len(bytes.Trim(data, "0")))
			} else {
				end := make([]byte, 5)
				f, err := os.Open(path)
				if err != nil {
					return err
				}
				if _, err := f.ReadAt(end, st.Size-5); err != nil {
					return err
				}
				text += fmt.Sprintf(" ends %q", end)
				if err := f.Close(); err != nil {
					return err
				}
			}
		}
		if d.Type() != fs.ModeSymlink {
			list, value := make([]byte, 4096), make([]byte, 4096)
			n, err := unix.Listxattr(path, list)
			if err != nil {
				return err
			}
			for name := range strings.SplitSeq(string(list[:n]), "\x00") {
				if name != "" {
					n, err := unix.Getxattr(path, name, value)
					if err != nil {
						return err
					}
					text += fmt.Sprintf(" %s=%q", name, value[:n])
				}
			}
		}
		found[rel] = text
		return nil
	}))
	return found
}

// Somebody who changes files, and swaps folders for links that lead out, while they are saved gets nothing but their
// own into the backup, which is whole.
func TestHostileMeanwhile(t *testing.T) {
	l := newLab(t, "x")
	secret := filepath.Join(l.dir, "secret")
	write(t, filepath.Join(secret, "key"), "the secret of somebody else", 0o600)
	home := filepath.Join(l.data, "homes", "1")
	write(t, filepath.Join(home, "folder", "key"), "own", 0o600)
	write(t, filepath.Join(home, "grows"), "", 0o600)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			_ = os.Rename(filepath.Join(home, "folder"), filepath.Join(home, "aside"))
			_ = os.Symlink(secret, filepath.Join(home, "folder"))
			_ = os.Remove(filepath.Join(home, "folder"))
			_ = os.Rename(filepath.Join(home, "aside"), filepath.Join(home, "folder"))
			_ = os.WriteFile(filepath.Join(home, "grows"), bytes.Repeat([]byte("x"), i%100000), 0o600)
			_ = os.Remove(filepath.Join(home, "file"))
			_ = os.Symlink(filepath.Join(secret, "key"), filepath.Join(home, "file"))
			_ = os.Remove(filepath.Join(home, "file"))
			_ = unix.Mkfifo(filepath.Join(home, "file"), 0o600)
		}
	}()
	for range 15 {
		var out bytes.Buffer
		_, _, err := Create(t.Context(), l.source(1), &out, quiet)
		must(t, err)
		if err := contains(t, out.Bytes(), "the secret of somebody else"); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	<-done
}

// contains is an error where a text is in an archive, or that is not whole.
func contains(t *testing.T, archive []byte, text string) error {
	t.Helper()
	stage, err := NewStage(t.Context(), t.TempDir())
	must(t, err)
	if _, _, err := stage.Unpack(t.Context(), bytes.NewReader(archive), accept, func(string, int64) {}); err != nil {
		return err
	}
	return filepath.WalkDir(stage.at["homes"], func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(data), text) {
			err = fmt.Errorf("%s holds it", path)
		}
		return err
	})
}

// Two backups at once: the second is told so. What one that was killed left goes.
func TestOneAtATime(t *testing.T) {
	l := newLab(t, "x")
	write(t, filepath.Join(l.data, workFolder, "gpulab.db"), "left behind", 0o600)
	_, done, err := workIn(l.data)
	must(t, err)
	if _, _, err := Create(t.Context(), l.source(), &bytes.Buffer{}, quiet); !errors.Is(err, ErrBusy) {
		t.Errorf("%v", err)
	}
	done()
	l.save(t)
	if exists(filepath.Join(l.data, workFolder)) {
		t.Error("copies are left")
	}
}

// The history is in it where it was asked for.
func TestHistory(t *testing.T) {
	l := newLab(t, "x")
	src := l.source(1)
	src.History = true
	var out bytes.Buffer
	m, _, err := Create(t.Context(), src, &out, quiet)
	must(t, err)
	if _, metrics := store.Known(); m.HistorySchema != metrics {
		t.Errorf("schema %d, want %d", m.HistorySchema, metrics)
	}
	if _, _, err := Verify(t.Context(), &out); err != nil {
		t.Error(err)
	}
}

func TestTarget(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lab")
	put := func(text string, replace, commit bool) error {
		target, err := NewTarget(path, replace)
		if err != nil {
			return err
		}
		defer target.Close()
		if _, err := target.WriteString(text); err != nil || !commit {
			return err
		}
		return target.Commit(replace)
	}
	must(t, put("one", false, true))
	if err := put("two", false, true); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("%v", err)
	}
	must(t, put("broken off", true, false))
	if data, _ := os.ReadFile(path); string(data) != "one" {
		t.Errorf("%q", data)
	}
	must(t, put("three", true, true))
	data, _ := os.ReadFile(path)
	info, err := os.Stat(path)
	if err != nil || string(data) != "three" || info.Mode().Perm() != 0o600 {
		t.Errorf("%q %v %v", data, info.Mode(), err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("%v", left)
	}
	must(t, os.Remove(path))
	must(t, os.Symlink("/etc/passwd", path))
	if err := put("x", true, true); err == nil || !strings.Contains(err.Error(), "is no file") {
		t.Errorf("a link was followed: %v", err)
	}
	// Somebody else was quicker.
	must(t, os.Remove(path))
	target, err := NewTarget(path, false)
	must(t, err)
	defer target.Close()
	write(t, path, "theirs", 0o600)
	if err := target.Commit(false); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("%v", err)
	}
}

func TestInterrupted(t *testing.T) {
	l := newLab(t, "x")
	ctx, stop := context.WithCancel(t.Context())
	n := 0
	_, _, err := Create(ctx, l.source(1), &bytes.Buffer{}, Watch{Note: quiet.Note, Step: func(string, int64) {
		if n++; n == 5 {
			stop()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	archive := l.save(t)
	if _, err := l.restore(ctx, archive); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	l.all(t, "x")
}

// Some file systems know no second names: there the file is renamed, and takes nobody's place either.
func TestTargetWithoutLinks(t *testing.T) {
	dir := t.TempDir()
	path, meanwhile := filepath.Join(dir, "lab"), filepath.Join(dir, "meanwhile")
	write(t, meanwhile, "ours", 0o600)
	write(t, path, "theirs", 0o600)
	target := &Target{path: path, named: meanwhile}
	if err := target.rename(); !errors.Is(err, fs.ErrExist) || target.named == "" {
		t.Errorf("%v", err)
	}
	must(t, os.Remove(path))
	must(t, target.rename())
	if data, _ := os.ReadFile(path); string(data) != "ours" || target.named != "" {
		t.Errorf("%q, %q", data, target.named)
	}
}
