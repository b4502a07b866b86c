package embedk8s

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// twoDisks is a machine whose data folder is on another disk than the rest.
type twoDisks struct {
	t         *testing.T
	m         ground
	f         follower
	data      string
	dir, from string // what Kubernetes uses, and the part of the data folder
	podsRun   bool
}

func newTwoDisks(t *testing.T, f follower) *twoDisks {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	root := t.TempDir()
	d := &twoDisks{t: t, m: ground{root}, f: f, data: filepath.Join(root, "srv/lab")}
	d.dir, d.from = d.m.at(f, d.data)
	mount := func(dir string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			t.Skip("nothing can be mounted here: ", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	}
	mount(root)
	if err := unix.Mount("", root, "", unix.MS_SHARED, ""); err != nil { // the kubelet's folder must be on such a mount
		t.Fatal(err)
	}
	mount(filepath.Join(root, "srv"))
	if err := os.MkdirAll(d.data, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.reboot)
	return d
}

func (d *twoDisks) try() error { return d.m.follow(d.f, d.data, func() bool { return !d.podsRun }) }

// follow is what a start of gpulab does.
func (d *twoDisks) follow() {
	d.t.Helper()
	if err := d.try(); err != nil {
		d.t.Fatal(err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(d.dir))
	if err != nil || len(mounts) != 1 || !sameFile(d.dir, d.from) {
		d.t.Fatalf("%s is mounted %d times, and shows %s: %v, %v", d.dir, len(mounts), d.from, sameFile(d.dir, d.from), err)
	}
}

// reboot is what a restart of the machine does, and a version of gpulab that mounts nothing does not undo.
func (d *twoDisks) reboot() {
	for unix.Unmount(d.dir, unix.MNT_DETACH) == nil {
	}
}

func (d *twoDisks) write(base, path, text string) {
	d.t.Helper()
	path = filepath.Join(base, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o640)); err != nil {
		d.t.Fatal(err)
	}
}

// has compares the files in a folder.
func (d *twoDisks) has(base string, want map[string]string) {
	d.t.Helper()
	got := map[string]string{}
	_ = filepath.WalkDir(base, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(base, path)
		got[name] = string(text)
		return err
	})
	if !maps.Equal(got, want) {
		d.t.Errorf("in %s is %v, want %v", base, got, want)
	}
}

// says checks what Strays lists.
func (d *twoDisks) says(want ...Stray) {
	d.t.Helper()
	got, err := d.m.strays(d.data)
	for i := range want {
		want[i].Dir, want[i].Part = d.dir, d.from
	}
	if err != nil || !slices.Equal(got, want) {
		d.t.Errorf("strays: %+v %v, want %+v", got, err, want)
	}
}

// onBoth runs a test for each folder that follows.
func onBoth(t *testing.T, test func(d *twoDisks)) {
	for _, f := range followers {
		t.Run(filepath.Base(f.part), func(t *testing.T) { test(newTwoDisks(t, f)) })
	}
}

// What pods write goes to the data folder's disk, if that is another one. A reset removes all of it.
func TestFollow(t *testing.T) {
	onBoth(t, func(d *twoDisks) {
		if err := d.m.follow(d.f, filepath.Join(d.m.root, "var"), func() bool { return true }); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(d.m.root, "var", d.f.part)); err == nil {
			d.t.Error("on one disk, it has moved")
		}
		d.says()
		d.follow()
		d.podsRun = true
		d.follow() // as after a restart of gpulab
		d.write(d.dir, "log", "x")
		d.has(d.from, map[string]string{"log": "x"})
		d.says()
		if err := unix.Mount(d.from, d.dir, "", unix.MS_BIND, ""); err != nil {
			d.t.Fatal(err)
		}
		if err := d.m.unfollow(d.data); err != nil {
			d.t.Fatal(err)
		}
		if _, err := os.Stat(d.from); err == nil {
			d.t.Error("after a reset it is still there")
		}
		if mount, err := lastMount(d.dir); err != nil || mount != nil {
			d.t.Errorf("after a reset it is mounted: %v %v", mount, err)
		}
		d.has(d.dir, map[string]string{})
	})
}

// A rollback to a version that mounts nothing, a restart of the machine and an upgrade lose no file.
func TestFollowAfterRollback(t *testing.T) {
	onBoth(t, func(d *twoDisks) {
		d.follow()
		d.write(d.dir, "one/0.log", "before")
		d.write(d.dir, "two/a", "before")
		d.write(d.dir, "two/kind", "a file")
		d.reboot() // the earlier version runs
		d.write(d.dir, "two/a", "after")
		d.write(d.dir, "two/kind/b", "after")
		d.write(d.dir, "three/0.log", "after")
		at := time.Date(2024, 5, 6, 7, 8, 9, 10, time.UTC)
		log := filepath.Join(d.dir, "three/0.log")
		if err := errors.Join(os.Chown(log, 20001, 20001), os.Chtimes(log, at, at)); err != nil {
			d.t.Fatal(err)
		}
		d.says(Stray{Here: true, Kept: true})
		d.podsRun = true // an upgrade ends no pod
		if err := d.try(); !errors.Is(err, errInUse) {
			d.t.Errorf("while pods use the files: %v", err)
		}
		d.has(d.dir, map[string]string{"two/a": "after", "two/kind/b": "after", "three/0.log": "after"})
		d.podsRun = false
		pod := filepath.Join(d.dir, "three/volume") // one that is still mounted is a sign of a pod, too
		if err := errors.Join(os.Mkdir(pod, 0o755), unix.Mount("tmpfs", pod, "tmpfs", 0, "")); err != nil {
			d.t.Fatal(err)
		}
		if err := d.try(); !errors.Is(err, errInUse) {
			d.t.Errorf("while a pod's volume is mounted: %v", err)
		}
		if err := errors.Join(unix.Unmount(pod, 0), os.Remove(pod)); err != nil {
			d.t.Fatal(err)
		}
		all := map[string]string{"one/0.log": "before", "two/a": "after", "two/a.~1~": "before", "two/kind/b": "after",
			"two/kind.~1~": "a file", "three/0.log": "after"}
		for range 2 {
			d.follow()
			d.has(d.dir, all)
			d.says()
			d.reboot()
			d.has(d.dir, map[string]string{})
		}
		info, err := os.Stat(filepath.Join(d.from, "three/0.log"))
		if err != nil || info.Sys().(*syscall.Stat_t).Uid != 20001 || !info.ModTime().Equal(at) {
			d.t.Errorf("owner or time of a file has changed: %+v %v", info, err)
		}
		// The same once more: the second copy of one name gets the next number.
		d.write(d.dir, "two/a", "later")
		d.follow()
		all["two/a"], all["two/a.~2~"] = "later", "after"
		d.has(d.dir, all)
	})
}

// An interruption at any step of the move loses no file, and makes no second one.
func TestFollowInterrupted(t *testing.T) {
	onBoth(t, func(d *twoDisks) {
		at := time.Date(2024, 5, 6, 7, 8, 9, 10, time.UTC)
		write := func(base, path, text string) {
			d.write(base, path, text)
			if err := os.Chtimes(filepath.Join(base, path), at, at); err != nil {
				d.t.Fatal(err)
			}
		}
		write(d.dir, "one/a", "a")
		write(d.dir, "one/b", "b")
		write(d.from+".moving", "one/a", "") // while it was copied
		d.follow()
		d.has(d.dir, map[string]string{"one/a": "a", "one/b": "b"})
		d.reboot()
		write(d.dir, "one/a", "a") // all of it was copied, part of it removed, and part of it merged
		write(d.from+".moved", "one/a", "a")
		write(d.from+".moved", "two/c", "c")
		d.follow()
		d.has(d.dir, map[string]string{"one/a": "a", "one/b": "b", "two/c": "c"})
		for _, left := range []string{".moving", ".moved"} {
			if _, err := os.Lstat(d.from + left); err == nil {
				d.t.Errorf("%s is left", left)
			}
		}
		// Too little room: nothing changes.
		d.reboot()
		large := strings.Repeat("x", 1<<20)
		write(d.dir, "large", large)
		if err := unix.Mount("tmpfs", filepath.Join(d.m.root, "srv"), "tmpfs", unix.MS_REMOUNT, "size=1m"); err != nil {
			d.t.Fatal(err)
		}
		if err := d.try(); err == nil || !strings.Contains(err.Error(), "make room") {
			d.t.Errorf("without room: %v", err)
		}
		d.has(d.dir, map[string]string{"large": large})
	})
}

// What was there before gpulab came is not moved: a reset would delete it.
func TestFollowLeavesWhatWasThere(t *testing.T) {
	onBoth(t, func(d *twoDisks) {
		d.write(d.dir, "theirs", "x")
		if err := d.m.claim(d.data); err != nil {
			d.t.Fatal(err)
		}
		if err := d.try(); err == nil || !strings.Contains(err.Error(), "from before gpulab") {
			d.t.Errorf("%v", err)
		}
		d.has(d.dir, map[string]string{"theirs": "x"})
		d.says(Stray{Here: true, Foreign: true})
		if err := os.RemoveAll(d.dir); err != nil {
			d.t.Fatal(err)
		}
		d.follow()
	})
}

// A reset by an earlier version deletes the folder and leaves it mounted. Nothing can be made in it.
func TestFollowAfterAnEarlierReset(t *testing.T) {
	onBoth(t, func(d *twoDisks) {
		d.follow()
		d.write(d.dir, "log", "x")
		if err := os.RemoveAll(filepath.Join(d.data, "k3s")); err != nil {
			d.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d.dir, "log"), nil, 0o600); err == nil {
			d.t.Fatal("this shows nothing: a file can be made")
		}
		d.says(Stray{Lost: true})
		d.follow()
		d.says()
		d.write(d.dir, "log", "new")
		// Another data folder than before: its files stay in it, and go on being used while pods run.
		old := d.from
		d.data = filepath.Join(d.m.root, "srv/other")
		if err := os.MkdirAll(d.data, 0o755); err != nil {
			d.t.Fatal(err)
		}
		_, d.from = d.m.at(d.f, d.data)
		d.says(Stray{Lost: true})
		d.podsRun = true
		if err := d.try(); !errors.Is(err, errInUse) {
			d.t.Errorf("while pods run: %v", err)
		}
		d.podsRun = false
		d.follow()
		d.has(d.dir, map[string]string{})
		d.has(old, map[string]string{"log": "new"})
		// A reset removes the mount of a folder that is gone, too.
		if err := errors.Join(os.RemoveAll(filepath.Join(d.data, "k3s")), d.m.unfollow(d.data)); err != nil {
			d.t.Fatal(err)
		}
		if mount, err := lastMount(d.dir); err != nil || mount != nil {
			d.t.Errorf("after a reset it is mounted: %v %v", mount, err)
		}
	})
}

// gpulab mounts nothing where somebody has mounted a disk for the kubelet, nor where the
// kubelet would hide what is mounted below its folder.
func TestMayFollow(t *testing.T) {
	at := func(point, optional string) *mountinfo.Info {
		return &mountinfo.Info{Mountpoint: point, Optional: optional}
	}
	for name, c := range map[string]struct {
		mounts []*mountinfo.Info
		want   bool
	}{
		"one disk":            {[]*mountinfo.Info{at("/", "shared:1")}, true},
		"not shared":          {[]*mountinfo.Info{at("/", "")}, false},
		"a disk for it":       {[]*mountinfo.Info{at("/", "shared:1"), at("/var/lib/kubelet", "shared:2")}, false},
		"there already":       {[]*mountinfo.Info{at("/", "shared:1"), at("/var/lib/kubelet/pods", "shared:2")}, false},
		"another for /var":    {[]*mountinfo.Info{at("/", ""), at("/var", "shared:1")}, true},
		"another, not shared": {[]*mountinfo.Info{at("/", "shared:1"), at("/var", "")}, false},
	} {
		if got := mayFollow(c.mounts, PodFiles, kubeletDir, true); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
