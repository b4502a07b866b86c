package diskspace

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	gib = 1 << 30
	tib = 1 << 40
)

func TestJudge(t *testing.T) {
	of := func(free, total uint64) space { return space{free: free, used: total - free} }
	files := func(free uint64) space {
		s := of(50*gib, 100*gib)
		s.files, s.filesFree = 6_000_000, free
		return s
	}
	for _, c := range []struct {
		name string
		s    space
		was  Level
		want Level
	}{
		{"half empty", of(50*gib, 100*gib), Fine, Fine},
		{"85 % used", of(15*gib, 100*gib), Fine, Fine},
		{"more than 85 %", of(15*gib-1, 100*gib), Fine, Notice},
		{"more than 95 %", of(5*gib-1, 100*gib), Fine, Refusing},
		{"nothing free", of(0, 100*gib), Fine, Full},
		{"the last MiB of a small disk", of(3<<20, 8*gib), Refusing, Full},
		{"a very large disk at 90 %", of(10*tib, 100*tib), Fine, Fine},
		{"a very large disk with 499 GiB free", of(499*gib, 100*tib), Fine, Notice},
		{"a very large disk with 99 GiB free", of(99*gib, 100*tib), Notice, Refusing},
		{"a little better is not well yet", of(16*gib, 100*gib), Notice, Notice},
		{"well again", of(17*gib, 100*gib), Notice, Fine},
		{"refusing goes on for a little", of(5*gib+gib/4, 100*gib), Refusing, Refusing},
		{"refusing ends", of(6*gib, 100*gib), Refusing, Notice},
		{"emptied at once", of(90*gib, 100*gib), Full, Fine},
		{"few files left", files(800_000), Fine, Notice},
		{"very few files left", files(150_000), Fine, Refusing},
		{"no file left", files(10), Fine, Full},
		{"many files left", files(2_000_000), Fine, Fine},
		{"no limit of files", of(50*gib, 100*gib), Refusing, Fine},
		{"read-only", space{free: 50 * gib, used: 50 * gib, readOnly: true}, Fine, ReadOnly},
		{"written again", of(50*gib, 100*gib), ReadOnly, Fine},
		{"written again, and nearly full", of(4*gib, 100*gib), ReadOnly, Refusing},
		{"empty answer", space{}, Fine, Fine},
	} {
		if got := judge(c.s, c.was); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// Places on one file system are told of together, and the worst one decides.
func TestFilesystems(t *testing.T) {
	on := map[string]space{
		"/lab":       {device: 1, free: 50 * gib, used: 50 * gib},
		"/lab/homes": {device: 2, free: 4 * gib, used: 96 * gib},
		"/lab/k3s":   {device: 1, free: 50 * gib, used: 50 * gib},
	}
	broken := ""
	look := func(path string) (space, error) {
		if path == broken {
			return space{}, errors.New("the disk is gone")
		}
		return on[path], nil
	}
	changed := 0
	w := newWatch(Config{Changed: func() { changed++ }, Log: quiet(), Places: []Place{{"databases", "/lab"}, {"homes", "/lab/homes"}, {"images", "/lab/k3s"}}}, look)
	list := w.Filesystems()
	if len(list) != 2 || list[0].Path != "/lab" || strings.Join(list[0].Holds, " ") != "databases images" || list[0].Level != Fine ||
		list[1].Level != Refusing || list[1].Percent() != 96 || list[1].Free != 4*gib {
		t.Fatalf("%+v", list)
	}
	if got, want := w.Refusal(), "The disk with homes is 96 % full: 4 GiB of 100 GiB are free. Nothing new starts"; !strings.HasPrefix(got, want) {
		t.Errorf("refused with %q", got)
	}
	on["/lab/homes"] = space{device: 2, free: 40 * gib, used: 60 * gib}
	if w.lookOnce(1); w.Refusal() != "" || changed != 1 {
		t.Errorf("with room again: %q, told %d times", w.Refusal(), changed)
	}
	on["/lab/homes"] = space{device: 2, free: 40 * gib, used: 60 * gib, readOnly: true}
	if w.lookOnce(1); !strings.Contains(w.Refusal(), "can only be read") {
		t.Errorf("read-only: %q", w.Refusal())
	}
	broken = "/lab/homes"
	w.lookOnce(1)
	if f := w.Filesystems()[1]; !f.Silent || f.Level != ReadOnly || !strings.Contains(f.Words(), "does not answer") {
		t.Errorf("a disk that is gone: %+v", f)
	}
	text, err := json.Marshal(w.Filesystems()[1])
	if err != nil || !strings.Contains(string(text), `"level":"read-only"`) {
		t.Errorf("%s, %v", text, err)
	}
	var back Filesystem
	if err := json.Unmarshal(text, &back); err != nil || back.Level != ReadOnly {
		t.Errorf("%+v, %v", back, err)
	}
}

func TestFewFiles(t *testing.T) {
	f := Filesystem{Holds: []string{"databases", "homes", "images"}, Level: Refusing, Free: 50 * gib, Used: 50 * gib, FilesFree: 7, Files: 9}
	if got, want := f.Words(), "The disk with databases, homes and images has room for 7 more files of 9, whatever their size."; got != want {
		t.Errorf("%q", got)
	}
}

// A disk that never answers holds up nobody who asks, nor the end.
func TestHangs(t *testing.T) {
	var hang atomic.Bool
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	w := newWatch(Config{Log: quiet(), Places: []Place{{"databases", "/lab"}, {"homes", "/nfs"}}}, func(path string) (space, error) {
		if path == "/nfs" && hang.Load() {
			<-release
		}
		return space{device: uint64(path[1]), free: 50 * gib, used: 50 * gib}, nil
	})
	hang.Store(true)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		_ = w.Run(ctx)
		close(done)
	}()
	later := time.Now().Add(time.Minute)
	w.mu.Lock()
	w.now = func() time.Time { return later }
	w.mu.Unlock()
	w.lookOnce(0)
	if list := w.Filesystems(); list[0].Silent || !list[1].Silent {
		t.Errorf("%+v", list)
	}
	stop()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
}

// smallDisk mounts a file system of that many MiB, with these options of tmpfs.
func smallDisk(t *testing.T, mib string, options ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, strings.Join(append(options, "size="+mib+"m"), ",")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill writes until there is no room at all.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, block := range []int{1 << 20, 4096} {
		for err = nil; err == nil; _, err = f.Write(make([]byte, block)) {
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

// What is held back comes to whoever writes when the disk is full, in steps, and is held back again when there is room.
func TestReserve(t *testing.T) {
	dir := smallDisk(t, "200")
	w := New(Config{Log: quiet(), Places: []Place{{"databases", filepath.Join(dir, "gpulab")}}})
	held := func() uint64 {
		n, err := w.reserve.size()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	// The folder is not there yet.
	if f := w.Worst(); f.Level != Fine || held() != 0 {
		t.Fatalf("%+v, %d held back", f, held())
	}
	if err := os.Mkdir(filepath.Join(dir, "gpulab"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.lookOnce(0)
	const want = 2 << 20
	if held() != want {
		t.Fatalf("%d bytes are held back, want %d", held(), want)
	}
	ballast := filepath.Join(dir, "ballast")
	for step := 3; step >= 0; step-- {
		fill(t, ballast)
		if level := w.lookOnce(0); level != Full {
			t.Errorf("full, it is %s", level)
		}
		if held() != uint64(step)*want/4 {
			t.Errorf("after step %d, %d bytes are held back", 4-step, held())
		}
		if err := os.WriteFile(filepath.Join(dir, "gpulab", "db"), make([]byte, want/5), 0o600); err != nil {
			t.Errorf("the database: %v", err)
		}
		if f := w.Worst(); f.Free != 0 || f.Percent() != 100 {
			t.Errorf("it says %+v", f)
		}
	}
	fill(t, ballast)
	if w.lookOnce(0) != Full { // there is nothing more to give
		t.Error("it is not full")
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if level := w.lookOnce(0); level != Fine || held() != want {
		t.Errorf("emptied, it is %s with %d bytes held back", level, held())
	}
}

// Where no more files can be made, some come to the databases in steps, as bytes do.
func TestReserveOfFiles(t *testing.T) {
	dir := smallDisk(t, "200", "nr_inodes=20000")
	w := New(Config{Log: quiet(), Places: []Place{{"databases", dir}}})
	held := func() uint64 {
		n, err := w.files.count()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const want = 200
	if f := w.Worst(); f.Level != Fine || held() != want || f.FilesFree < 19000 {
		t.Fatalf("%+v, %d files are held back", f, held())
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.Mkdir(ballast, 0o700); err != nil {
		t.Fatal(err)
	}
	n := 0
	for step := 3; step >= 0; step-- {
		for ; ; n++ {
			if err := os.WriteFile(filepath.Join(ballast, strconv.Itoa(n)), nil, 0o600); errors.Is(err, unix.ENOSPC) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if level := w.lookOnce(0); level != Full {
			t.Errorf("full, it is %s", level)
		}
		if held() != uint64(step)*want/4 {
			t.Errorf("after step %d, %d files are held back", 4-step, held())
		}
		if err := os.WriteFile(filepath.Join(dir, "db-"+strconv.Itoa(step)), nil, 0o600); err != nil {
			t.Errorf("the database: %v", err)
		}
		if f := w.Worst(); f.FilesFree != 0 || !strings.Contains(f.Words(), "has room for 0 more files") {
			t.Errorf("it says %+v: %s", f, f.Words())
		}
	}
	if err := os.RemoveAll(ballast); err != nil {
		t.Fatal(err)
	}
	if level := w.lookOnce(0); level != Fine || held() != want {
		t.Errorf("emptied, it is %s with %d files held back", level, held())
	}
}

// A start on a full disk has room before anything is opened.
func TestReserveAtStart(t *testing.T) {
	dir := smallDisk(t, "200")
	New(Config{Log: quiet(), Places: []Place{{"databases", dir}}})
	fill(t, filepath.Join(dir, "ballast"))
	w := New(Config{Log: quiet(), Places: []Place{{"databases", dir}}})
	if err := os.WriteFile(filepath.Join(dir, "db"), make([]byte, 100<<10), 0o600); err != nil {
		t.Error(err)
	}
	if w.Worst().Level != Full {
		t.Errorf("%+v", w.Worst())
	}
}

// What lies in place of the reserve is not touched.
func TestReserveIsSomethingElse(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	if err := errors.Join(os.Mkdir(data, 0o700), os.Symlink(secret, filepath.Join(data, reserveFile))); err != nil {
		t.Fatal(err)
	}
	w := New(Config{Log: quiet(), Places: []Place{{"databases", data}}})
	w.lookOnce(0)
	if got, err := os.ReadFile(secret); err != nil || string(got) != "precious" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestSuits(t *testing.T) {
	if err := Suits(filepath.Join(t.TempDir(), "not", "there", "yet")); err != nil {
		t.Error(err)
	}
	for magic, want := range map[int64]string{
		unix.NFS_SUPER_MAGIC: "NFS", unix.CIFS_SUPER_MAGIC: "SMB", unix.SMB2_SUPER_MAGIC: "SMB", unix.CEPH_SUPER_MAGIC: "Ceph",
		0x0bd00bd0: "Lustre", unix.FUSE_SUPER_MAGIC: "fuse.sshfs",
	} {
		err := suits("/lab", &unix.Statfs_t{Type: magic}, func() string { return "fuse.sshfs" })
		var unfit *UnfitError
		if !errors.As(err, &unfit) || unfit.Type != want || !strings.Contains(err.Error(), "/lab is on a file system of the type "+want) {
			t.Errorf("%x: %v, want %s", magic, err, want)
		}
	}
	for magic, mounted := range map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.FUSE_SUPER_MAGIC: "fuseblk"} {
		if err := suits("/lab", &unix.Statfs_t{Type: magic}, func() string { return mounted }); err != nil {
			t.Errorf("%s: %v", mounted, err)
		}
	}
}

// A real file system over FUSE, as sshfs makes them. Root is not let in, and nobody has to serve it.
func TestSuitsFUSE(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a file system")
	}
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skip("this kernel has no FUSE: ", err)
	}
	defer device.Close()
	dir := t.TempDir()
	raw, err := device.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var mounted error
	err = raw.Control(func(fd uintptr) {
		mounted = unix.Mount("host:/srv", dir, "fuse.sshfs", unix.MS_NODEV|unix.MS_NOSUID, "fd="+number(fd)+",rootmode=40000,user_id=65534,group_id=65534")
	})
	if err := errors.Join(err, mounted); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	var unfit *UnfitError
	if err := Suits(filepath.Join(dir)); !errors.As(err, &unfit) || unfit.Type != "fuse.sshfs" && unfit.Type != "FUSE" {
		t.Errorf("%v", err)
	}
}

func number(n uintptr) string {
	text, _ := json.Marshal(n)
	return string(text)
}

func TestSuitsReadOnly(t *testing.T) {
	dir := smallDisk(t, "1")
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := Suits(filepath.Join(dir, "gpulab")); err == nil || !strings.Contains(err.Error(), "mounted read-only") {
		t.Errorf("%v", err)
	}
	if s, err := lookAt(dir); err != nil || !s.readOnly {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestMeasured(t *testing.T) {
	dir := t.TempDir()
	write := func(path string, size int) {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, size), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("images/a", 3<<20)
	write("images/b/c", 1<<20)
	write("metrics.db", 1<<20)
	write("metrics.db-wal", 6<<20)
	write("pods/uid/volume-subpaths/home", 9<<20)
	if err := os.Link(filepath.Join(dir, "images/a"), filepath.Join(dir, "images/again")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/", filepath.Join(dir, "images/root")); err != nil {
		t.Fatal(err)
	}
	parts, err := Measured(t.Context(), []Part{
		{Name: "images", Path: filepath.Join(dir, "images")}, {Name: "history", Path: filepath.Join(dir, "metrics.db*")},
		{Name: "homes", Path: "", Bytes: 5 << 20}, {Name: "pods", Path: filepath.Join(dir, "pods")}, {Name: "none", Path: filepath.Join(dir, "none")},
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	mib := map[string]uint64{}
	for _, p := range parts {
		names = append(names, p.Name)
		mib[p.Name] = p.Bytes >> 20
	}
	if got := strings.Join(names, " "); got != "history homes images pods none" {
		t.Errorf("order: %s", got)
	}
	if mib["history"] != 7 || mib["images"] != 4 || mib["homes"] != 5 || mib["pods"] != 0 || mib["none"] != 0 {
		t.Errorf("%v MiB", mib)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Measured(ended, parts); !errors.Is(err, context.Canceled) {
		t.Errorf("after its end: %v", err)
	}
	if _, err := Measured(t.Context(), []Part{{Path: "["}}); err == nil {
		t.Error("a broken pattern is taken")
	}
}
