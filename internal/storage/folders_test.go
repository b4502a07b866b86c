package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/users"
)

// hostFolder is a folder of the machine as it may be shown: only root can change what its path leads to.
func hostFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/srv", "gpulab-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "file"), []byte("data\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestRefusedFolders(t *testing.T) {
	l := newTestLab(t)
	l.create(t, NewFolder{Name: "taken", Kind: Dataset})
	l.create(t, NewFolder{Name: "deleted", Kind: Dataset})
	if _, err := l.Delete(t.Context(), "deleted"); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		n    NewFolder
		kind error
		says string
	}{
		{NewFolder{Name: "", Kind: Dataset}, ErrName, "2 to 30"},
		{NewFolder{Name: "a", Kind: Dataset}, ErrName, "2 to 30"},
		{NewFolder{Name: "../etc", Kind: Dataset}, ErrName, "cannot be"},
		{NewFolder{Name: "a/b", Kind: Dataset}, ErrName, "cannot be"},
		{NewFolder{Name: "Upper", Kind: Dataset}, ErrName, "cannot be"},
		{NewFolder{Name: "two--hyphens", Kind: Dataset}, ErrName, "cannot be"},
		{NewFolder{Name: "line\nbreak", Kind: Dataset}, ErrName, "cannot be"},
		{NewFolder{Name: strings.Repeat("a", 31), Kind: Dataset}, ErrName, "cannot be"},
		{NewFolder{Name: "taken", Kind: Dataset}, ErrTaken, "already"},
		{NewFolder{Name: "deleted", Kind: Dataset}, ErrTaken, "can come back"},
		{NewFolder{Name: "xx", Kind: "bucket"}, ErrKind, "no kind"},
		{NewFolder{Name: "xx", Kind: Group}, ErrGroup, "for one group"},
		{NewFolder{Name: "xx", Kind: HandIn, Groups: []string{"vision"}, Others: Read}, ErrGroup, "its group alone"},
		{NewFolder{Name: "xx", Kind: Group, Groups: []string{"none"}}, ErrGroup, "no group"},
		{NewFolder{Name: "xx", Kind: Group, Groups: []string{"vision"}, Guests: "all"}, ErrKind, "Guests"},
		{NewFolder{Name: "xx", Kind: Group, Groups: []string{"vision"}, Others: Write}, ErrKind, "only members"},
		{NewFolder{Name: "xx", Kind: Dataset, Others: None}, ErrGroup, "Nobody"},
		{NewFolder{Name: "xx", Kind: Dataset, Path: "/srv"}, ErrPath, "Only a folder"},
		{NewFolder{Name: "xx", Kind: Host}, ErrPath, "Say which"},
		{NewFolder{Name: "xx", Kind: Dataset, Note: "a\x1b[2J"}, ErrName, "one line"},
	} {
		_, err := l.Create(t.Context(), test.n)
		if text, ok := users.Message(err); !errors.Is(err, test.kind) || !ok || !strings.Contains(text, test.says) {
			t.Errorf("%+v: %v", test.n, err)
		}
	}
	list, err := os.ReadDir(l.cfg.FoldersDir)
	if err != nil || len(list) != 2 {
		t.Errorf("on disk: %v, %v", list, err)
	}
}

// A folder of the machine is shown only where nobody but root can make its path lead elsewhere, and never what
// belongs to the machine itself.
func TestHostFolders(t *testing.T) {
	l := newTestLab(t)
	data := hostFolder(t)
	inside := filepath.Join(data, "inside")
	link, file, theirs, below := data+"-link", filepath.Join(data, "file"), filepath.Join(data, "theirs"), filepath.Join(data, "theirs", "below")
	for _, err := range []error{os.Mkdir(inside, 0o755), os.Symlink(inside, link), os.MkdirAll(below, 0o755), os.Chown(theirs, l.of["ben"].UID, l.of["ben"].UID)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Remove(link) })
	trap := data + "-trap"
	if err := os.Symlink("/etc", trap); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(trap) })
	for path, says := range map[string]string{
		"/": "belongs to the machine", "/etc": "belongs to the machine", "/etc/ssl": "belongs to the machine", "/proc": "belongs", "/sys/kernel": "belongs", "/dev": "belongs",
		"/root": "belongs", "/run": "belongs", "/var/run": "belongs", "/var": "belongs", "/var/lib": "belongs", l.cfg.DataDir: "belongs", l.cfg.HomesDir: "",
		"/tmp": "belongs", trap: "belongs", "srv": "whole path", data + "/none": "no folder", file: "not a folder", below: "Others than root", "/srv/../etc": "belongs",
	} {
		_, err := l.Create(t.Context(), NewFolder{Name: "xx", Kind: Host, Path: path})
		if text, ok := users.Message(err); !errors.Is(err, ErrPath) || !ok || !strings.Contains(text, says) {
			t.Errorf("%s: %v", path, err)
		}
	}
	// Whose the folder itself is does not matter.
	l.create(t, NewFolder{Name: "theirs", Kind: Host, Path: theirs})
	f := l.create(t, NewFolder{Name: "archive", Kind: Host, Path: link})
	if f.Path != inside || f.GID != 0 {
		t.Errorf("%+v", f)
	}
	p, there := l.place(t, "dan", "archive")
	if !there || p.Path != inside || !p.ReadOnly || p.GID != 0 {
		t.Errorf("%+v", p)
	}
	if err := os.Remove(inside); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", inside); err != nil {
		t.Fatal(err)
	}
	if p, there := l.place(t, "dan", "archive"); there {
		t.Errorf("what it leads to now is shown: %+v", p)
	}
	if CanMapIDs("/proc") {
		t.Error("/proc is said to take mapped user IDs")
	}
	if !CanMapIDs(data) {
		t.Error("the file system of /srv is said not to take mapped user IDs")
	}
}

// Who has a folder with a mount in it cannot have user IDs of their own: its files would be nobody's. So it is with a
// home, as long as the mount is there.
func TestMountedIn(t *testing.T) {
	l := newTestLab(t)
	data := t.TempDir()
	shared := filepath.Join(data, "a b") // which the kernel's table escapes
	if err := os.MkdirAll(filepath.Join(shared, "disk"), 0o755); err != nil {
		t.Fatal(err)
	}
	mount := func(at string) (unmount func()) {
		if err := unix.Mount("tmpfs", at, "tmpfs", 0, "size=1m"); err != nil {
			t.Fatal(err)
		}
		unmount = sync.OnceFunc(func() {
			if err := unix.Unmount(at, 0); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(unmount)
		return unmount
	}
	is := func(when string, want bool, folder string) {
		t.Helper()
		mounts, err := mountinfo.GetMounts(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := mountedIn(mounts, folder); got != want {
			t.Errorf("%s: %t", when, got)
		}
	}
	is("nothing is mounted", false, shared)
	unmount := mount(shared)
	is("the folder is a mount itself", false, shared)
	is("the folder is a mount of another one", true, data)
	is("beside", false, t.TempDir())
	unmount()

	opened := func(when string, want bool) {
		t.Helper()
		if _, o := l.launch(t, "ben"); o.HostUsers != want {
			t.Errorf("%s: %t", when, o.HostUsers)
		}
	}
	opened("a home as others", false)
	disk := filepath.Join(l.Home(l.of["ben"].ID), "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	unmount = mount(disk)
	opened("a home with a mount", true)
	unmount()
	opened("a home as others again", false)
}

// A kernel that can give user IDs is asked for them.
func TestOwnUserIDs(t *testing.T) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		t.Fatal(err)
	}
	can := (major > 6 || major == 6 && minor >= 3) && !procCovered(mounts)
	if got := OwnUserIDs(); got != can && (got || os.Geteuid() == 0) {
		t.Errorf("on Linux %d.%d it is said to be %t", major, minor, got)
	}
}

// User namespaces are not for a machine whose /proc is covered, as a container's.
func TestProcCovered(t *testing.T) {
	const usual = "22 28 0:21 / /proc rw,nosuid - proc proc rw\n30 22 0:26 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw\n31 22 0:27 / /proc/fs/nfsd rw - nfsd nfsd rw\n40 28 0:30 / /processes rw - tmpfs tmpfs rw\n"
	for text, want := range map[string]bool{usual: false, usual + "50 22 0:40 /proc/cpuinfo /proc/cpuinfo rw - fuse.lxcfs lxcfs rw\n": true} {
		mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		if procCovered(mounts) != want {
			t.Errorf("%s is said to cover it: %t", text, !want)
		}
	}
}

// A deleted folder comes back as it was for 30 days; then its files go, and those of a folder of the machine stay.
func TestDeleteAndPurge(t *testing.T) {
	l := newTestLab(t)
	now := time.Now()
	l.now = func() time.Time { return now }
	data := hostFolder(t)
	f := l.create(t, NewFolder{Name: "vision-data", Kind: Group, Groups: []string{"vision"}})
	host := l.create(t, NewFolder{Name: "archive", Kind: Host, Path: data})
	p, _ := l.place(t, "ben", f.Name)
	l.can(t, "ben", p.GID, "echo kept >"+p.Path+"/file; ln -s "+data+" "+p.Path+"/link")
	for _, name := range []string{f.Name, host.Name} {
		if _, err := l.Delete(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Delete(t.Context(), name); !errors.Is(err, ErrState) {
			t.Errorf("deleted twice: %v", err)
		}
	}
	now = now.Add(Kept - time.Minute)
	if err := l.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := l.Undelete(t.Context(), f.Name); err != nil || got.Deleted != nil || got.GID != f.GID {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := l.Undelete(t.Context(), f.Name); !errors.Is(err, ErrState) {
		t.Errorf("brought back twice: %v", err)
	}
	if got := l.can(t, "ben", p.GID, "cat "+p.Path+"/file"); got != "kept" {
		t.Errorf("it came back with %q", got)
	}
	launch, _ := l.launch(t, "ben")
	if _, err := l.Delete(t.Context(), f.Name); err != nil {
		t.Fatal(err)
	}
	now = now.Add(Kept + time.Minute)
	if err := l.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(p.Path, "file")); err != nil {
		t.Errorf("it was deleted under a notebook that has it open: %v", err)
	}
	if _, err := l.store.DB().Exec("UPDATE launches SET state = 'ended' WHERE id = ?", launch); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.watch(t.Context()), l.sweep(t.Context())); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(l.cfg.FoldersDir); err != nil || len(left) != 0 {
		t.Errorf("left on disk: %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(data, "file")); err != nil {
		t.Errorf("a file of the machine is gone: %v", err)
	}
	if _, err := l.Undelete(t.Context(), f.Name); !errors.Is(err, ErrNotFound) {
		t.Errorf("a purged folder comes back: %v", err)
	}
	again := l.create(t, NewFolder{Name: "vision-data", Kind: Group, Groups: []string{"vision"}})
	if again.GID <= f.GID || again.ID == f.ID {
		t.Errorf("the numbers of %+v are given again to %+v", f, again)
	}
}

func TestSetAccess(t *testing.T) {
	l := newTestLab(t)
	l.create(t, NewFolder{Name: "vision-data", Kind: Group, Groups: []string{"vision"}})
	l.create(t, NewFolder{Name: "imagenet", Kind: Dataset})
	if _, err := l.SetAccess(t.Context(), "vision-data", Change{Groups: []string{"audio"}}); !errors.Is(err, ErrGroup) {
		t.Errorf("another group: %v", err)
	}
	if f, err := l.SetAccess(t.Context(), "vision-data", Change{Guests: new(None), Others: new(Read), Note: new("for all")}); err != nil || f.Guests != None || f.Others != Read || f.Note != "for all" {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := l.SetAccess(t.Context(), "imagenet", Change{Others: new(None)}); !errors.Is(err, ErrGroup) {
		t.Errorf("a dataset for nobody: %v", err)
	}
	if _, err := l.SetAccess(t.Context(), "imagenet", Change{Others: new(None), Groups: []string{"vision"}}); err != nil {
		t.Fatal(err)
	}
	if _, there := l.place(t, "dan", "imagenet"); there {
		t.Error("somebody outside the group sees it")
	}
	if _, there := l.place(t, "gus", "imagenet"); !there {
		t.Error("somebody in the group does not see it")
	}
}
