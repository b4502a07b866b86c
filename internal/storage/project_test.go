package storage

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// quotaDisk is a file system of its own with project quotas, on a loop device.
func quotaDisk(t *testing.T, kind string, option string, format ...string) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 400<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(format[0], append(format[1:], image)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", format, err, out)
	}
	at := open(t)
	if out, err := exec.Command("mount", "-t", kind, "-o", "loop,"+option, image, at).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", at).CombinedOutput(); err != nil {
			t.Errorf("umount: %v\n%s", err, out)
		}
	})
	if err := os.Chmod(at, 0o711); err != nil {
		t.Fatal(err)
	}
	return at
}

// kernelHas ends a test, loudly, that this kernel cannot run. A kernel that does not tell how it was built has to.
func kernelHas(t *testing.T, option string) {
	t.Helper()
	config, err := exec.Command("zcat", "/proc/config.gz").Output()
	if err == nil && !strings.Contains(string(config), "\n"+option+"=") {
		t.Skipf("SKIPPED: this kernel was built without %s; project quotas were NOT tested here", option)
	}
}

// Where the file system keeps project quotas, it refuses more than the limit, whoever's home it is and whatever is in it.
func TestProjectQuotasOnExt4(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: project quotas need root")
	}
	kernelHas(t, "CONFIG_QFMT_V2")
	testProjects(t, quotaDisk(t, "ext4", "prjquota", "mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota"))
}

func TestProjectQuotasOnXFS(t *testing.T) {
	kinds, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("mkfs.xfs"); err != nil || !strings.Contains(string(kinds), "\txfs\n") && exec.Command("modprobe", "xfs").Run() != nil || os.Geteuid() != 0 {
		t.Skip("SKIPPED: XFS needs root, mkfs.xfs (apt-get install xfsprogs) and a kernel that knows it; project quotas on XFS were NOT tested here")
	}
	kernelHas(t, "CONFIG_XFS_QUOTA")
	testProjects(t, quotaDisk(t, "xfs", "prjquota", "mkfs.xfs", "-q"))
}

func testProjects(t *testing.T, disk string) {
	l := newTestLab(t)
	l.cfg.HomesDir = filepath.Join(disk, "homes")
	if !l.Kept() && !projectsOn(disk) {
		t.Fatal("the project quotas of the disk are not seen")
	}
	home, _ := l.place(t, "ben", "")
	cleos, _ := l.place(t, "cleo", "")
	// There before the limit was.
	l.can(t, "ben", 0, "cd "+home.Path+" && mkdir -p a/b && head -c 5000000 /dev/zero >a/b/old && ln -s /etc/passwd link && mkfifo pipe")
	l.limit["ben"] = 20 << 20
	for range 2 {
		if err := l.keepProjects(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	state, err := l.HomeState(t.Context(), l.of["ben"])
	if err != nil || !state.Kept || state.Over || state.Size == nil || state.Size.Bytes < 5000000 || state.Size.Bytes > 6000000 {
		t.Fatalf("%+v %+v, %v", state, state.Size, err)
	}
	l.can(t, "ben", 0, "cd "+home.Path+" && head -c 10000000 /dev/zero >a/b/more")
	l.cannot(t, "ben", 0, "cd "+home.Path+" && head -c 10000000 /dev/zero >a/b/much")
	l.cannot(t, "ben", 0, "cd "+home.Path+" && head -c 10000000 /dev/zero >>a/b/old")
	state, err = l.HomeState(t.Context(), l.of["ben"])
	if err != nil || state.Size.Bytes > 20<<20 || state.Size.Bytes < 19<<20 {
		t.Errorf("%+v, %v", state.Size, err)
	}
	// What df shows.
	var size unix.Statfs_t
	if err := unix.Statfs(home.Path, &size); err != nil || size.Blocks*uint64(size.Bsize) != 20<<20 {
		t.Errorf("df shows a home of %d bytes, %v", size.Blocks*uint64(size.Bsize), err)
	}
	if text, err := l.notice(t, l.of["ben"]); err != nil || !strings.Contains(text, "full") {
		t.Errorf("%q, %v", text, err)
	}
	// A full home of this kind is not closed, takes the places of new folders, and its owner can make room.
	l.create(t, NewFolder{Name: "vision-data", Kind: Group, Groups: []string{"vision"}})
	if _, opened := l.launch(t, "ben"); opened.HomeReadOnly {
		t.Error("a home that the file system keeps is only read")
	}
	if err := l.keepHomes(t.Context()); err != nil || len(l.ended) != 0 {
		t.Errorf("ended %v, %v", l.ended, err)
	}
	l.can(t, "cleo", 0, "cd "+cleos.Path+" && head -c 30000000 /dev/zero >hers")
	// Files do not leave the count, nor enter somebody else's, by links or moves.
	l.cannot(t, "ben", 0, "ln "+home.Path+"/a/b/old /proc/self/cwd/../"+strings.TrimPrefix(disk, "/")+"/x")
	if err := os.Link(filepath.Join(cleos.Path, "hers"), filepath.Join(home.Path, "hers")); err == nil {
		t.Error("a file is in two people's counts")
	}
	l.can(t, "ben", 0, "cd "+home.Path+" && rm a/b/more a/b/much && head -c 9000000 /dev/zero >a/b/again")
	// So many files, and no more; who is at that limit can still make room, and gpulab has some for itself.
	l.files["ben"] = 100
	if err := l.keepProjects(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.cannot(t, "ben", 0, "cd "+home.Path+" && mkdir many && for i in $(seq 200); do : >many/$i || exit 1; done")
	if state, err = l.HomeState(t.Context(), l.of["ben"]); err != nil || !state.Over || state.Size.Files != 100 {
		t.Errorf("%+v %+v, %v", state, state.Size, err)
	}
	if text, err := l.notice(t, l.of["ben"]); err != nil || !strings.Contains(text, "100 of 100 files and folders") {
		t.Errorf("%q, %v", text, err)
	}
	l.create(t, NewFolder{Name: "vision-more", Kind: Group, Groups: []string{"vision"}})
	l.launch(t, "ben")
	l.can(t, "ben", 0, "cd "+home.Path+" && rm -r many && : >one")
	delete(l.files, "ben")
	if err := l.keepProjects(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.can(t, "ben", 0, "cd "+home.Path+" && mkdir many && for i in $(seq 200); do : >many/$i || exit 1; done && rm -r many")
	// A larger limit, and none.
	l.limit["ben"] = 60 << 20
	if err := l.keepProjects(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.can(t, "ben", 0, "cd "+home.Path+" && head -c 40000000 /dev/zero >large")
	delete(l.limit, "ben")
	if err := l.keepProjects(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.can(t, "ben", 0, "cd "+home.Path+" && head -c 80000000 /dev/zero >huge")
}

// On a file system without them nothing is kept, and nothing fails.
func TestNoProjectQuotas(t *testing.T) {
	l := newTestLab(t)
	l.limit["ben"] = 1 << 20
	if err := l.keepProjects(t.Context()); err != nil {
		t.Error(err)
	}
	if l.Kept() {
		t.Skip("SKIPPED: the file system of the temporary folder has project quotas on")
	}
}
