package hoststat

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestThisMachine holds the readings against what other programs say.
func TestThisMachine(t *testing.T) {
	h, err := New()
	if err != nil {
		t.Fatal(err)
	}
	r, err := h.Read()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.CPUs) < runtime.NumCPU() {
		t.Errorf("%d processors, and this program may use %d", len(r.CPUs), runtime.NumCPU())
	}
	for _, c := range r.CPUs {
		if c.User+c.System+c.Idle <= 0 {
			t.Errorf("processor %d has done nothing since the start: %+v", c.Number, c)
		}
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	if boot := float64(time.Now().Unix() - info.Uptime); r.Boot == nil || math.Abs(*r.Boot-boot) > 5 {
		t.Errorf("the machine started at %v, want about %.0f", r.Boot, boot)
	}
	if total, want := r.Memory["MemTotal"], float64(info.Totalram)*float64(info.Unit); math.Abs(total-want) > want/50 {
		t.Errorf("MemTotal is %.0f, want about %.0f", total, want)
	}
	if a := r.Memory["MemAvailable"]; a <= 0 || a > r.Memory["MemTotal"] {
		t.Errorf("MemAvailable is %.0f of %.0f", a, r.Memory["MemTotal"])
	}
	if r.Load == nil || r.Kernel == nil {
		t.Fatalf("no load or no kernel: %+v", r)
	}
	if out, err := exec.Command("uname", "-r").Output(); err != nil || r.Kernel.Release != strings.TrimSpace(string(out)) {
		t.Errorf("the kernel is %q, want %q (%v)", r.Kernel.Release, out, err)
	}
	root := slices.IndexFunc(r.Filesystems, func(f Filesystem) bool { return f.MountPoint == "/" })
	if root < 0 {
		t.Fatalf("no file system at /: %+v", r.Filesystems)
	}
	out, err := exec.Command("df", "--block-size=1", "--output=size", "/").Output()
	if err != nil {
		t.Fatal(err)
	}
	if size, _ := strconv.ParseFloat(strings.Fields(string(out))[1], 64); r.Filesystems[root].Size != size {
		t.Errorf("the size of / is %.0f, df says %.0f", r.Filesystems[root].Size, size)
	}
	if !slices.ContainsFunc(r.Interfaces, func(i Interface) bool { return i.Name == "lo" }) {
		t.Errorf("no loopback: %+v", r.Interfaces)
	}
}

// write makes a file and its folders.
func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

const mountinfo = `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:5 / /dev rw - devtmpfs udev rw
24 22 0:20 / /run rw - tmpfs tmpfs rw
25 22 8:2 / /srv/two\040words ro - xfs /dev/sdb1 ro
26 22 0:40 / /mnt/far rw - nfs4 server:/export rw
27 22 8:1 /var/lib/gpulab/homes/1 /var/lib/kubelet/pods/11/volumes/home rw - ext4 /dev/sda1 rw
28 22 0:50 / /run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/1/rootfs rw - overlay overlay rw
29 22 0:51 / /run/k3s/containerd/shm rw - tmpfs shm rw
30 22 7:0 / /snap/core/1 ro - squashfs /dev/loop0 ro
31 22 8:3 / /data rw - ext4 /dev/sdc1 rw
32 31 8:4 / /data rw - ext4 /dev/sdd1 rw
33 22 0:60 / /proc rw - proc proc rw
34 22 8:1 /srv/shared /home/shared rw - ext4 /dev/sda1 rw
35 22 0:70 /@home /home rw - btrfs /dev/sde1 rw
`

const netdev = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 10 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0
  eth0: 1000 7 1 2 0 0 0 0 500 5 3 4 0 0 0 0
  cni0: 9 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0
vethab12: 9 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0
flannel.1: 9 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0
br-0123456789ab: 9 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0
br-lan: 9 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0
`

const diskstats = `   8       0 sda 10 0 20 3000 40 0 60 7000 0 1500 0
   8       1 sda1 10 0 20 30 40 0 50 60 0 70 80
   7       0 loop0 10 0 20 30 40 0 50 60 0 70 80
 259       0 nvme0n1 1 0 2 3 4 0 5 6 0 7 8
 259       1 nvme0n1p1 1 0 2 3 4 0 5 6 0 7 8
 253       0 dm-0 1 0 2 3 4 0 5 6 0 7 8
`

// machine is one whose tables hold what matters.
func machine(t *testing.T) *Host {
	t.Helper()
	dir := t.TempDir()
	proc, sys := filepath.Join(dir, "proc"), filepath.Join(dir, "sys")
	write(t, proc+"/stat", "cpu  100 0 200 300 0 0 0 0 0 0\ncpu1 50 0 100 150 5 6 7 8 0 0\ncpu0 50 1 100 150 0 0 0 0 0 0\nbtime 1700000000\n")
	write(t, proc+"/loadavg", "0.50 1.25 2.00 1/100 4242\n")
	write(t, proc+"/meminfo", "MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:  600 kB\n")
	write(t, proc+"/1/mountinfo", mountinfo)
	write(t, proc+"/diskstats", diskstats)
	write(t, proc+"/self/net/dev", netdev)
	write(t, proc+"/net/dev", netdev)
	for _, part := range []string{"sda1", "nvme0n1p1"} {
		write(t, filepath.Join(sys, "class/block", part, "partition"), "1\n")
	}
	h, err := open(proc, sys)
	if err != nil {
		t.Fatal(err)
	}
	h.statfs = func(_ string, buf *unix.Statfs_t) error {
		*buf = unix.Statfs_t{Bsize: 4096, Blocks: 1000, Bfree: 500, Bavail: 400, Files: 100, Ffree: 90}
		return nil
	}
	return h
}

func TestContainersAreLeftOut(t *testing.T) {
	r, err := machine(t).Read()
	if err != nil {
		t.Fatal(err)
	}
	var points, disks, interfaces []string
	for _, f := range r.Filesystems {
		points = append(points, f.Device+" "+f.MountPoint)
	}
	for _, d := range r.Disks {
		disks = append(disks, d.Device)
	}
	for _, i := range r.Interfaces {
		interfaces = append(interfaces, i.Name)
	}
	if want := []string{"/dev/sda1 /", "tmpfs /run", "/dev/sdb1 /srv/two words", "/dev/sdd1 /data", "/dev/sde1 /home"}; !slices.Equal(points, want) {
		t.Errorf("file systems %q, want %q", points, want)
	}
	if want := []string{"sda", "nvme0n1", "dm-0"}; !slices.Equal(disks, want) {
		t.Errorf("disks %q, want %q", disks, want)
	}
	if want := []string{"br-lan", "eth0", "lo"}; !slices.Equal(interfaces, want) {
		t.Errorf("interfaces %q, want %q", interfaces, want)
	}
	if f := r.Filesystems[2]; !f.ReadOnly || f.Type != "xfs" || f.Size != 4096000 || f.Free != 2048000 || f.Available != 1638400 || f.Files != 100 || f.FilesFree != 90 {
		t.Errorf("a file system is %+v", f)
	}
	if d := r.Disks[0]; d != (Disk{Device: "sda", Reads: 10, Writes: 40, ReadBytes: 20 * 512, WrittenBytes: 60 * 512, ReadSeconds: 3, WriteSeconds: 7, BusySeconds: 1.5}) {
		t.Errorf("a disk is %+v", d)
	}
	want := Interface{Name: "eth0", ReceivedBytes: 1000, SentBytes: 500, ReceivedPackets: 7, SentPackets: 5, ReceiveErrors: 1, SendErrors: 3, ReceiveDropped: 2, SendDropped: 4}
	if i := r.Interfaces[1]; i != want {
		t.Errorf("an interface is %+v", i)
	}
	if c := r.CPUs[1]; c != (CPU{Number: 1, User: .5, System: 1, Idle: 1.5, IOWait: .05, IRQ: .06, SoftIRQ: .07, Stolen: .08}) {
		t.Errorf("a processor is %+v", c)
	}
	if _, there := r.Memory["SwapTotal"]; there || r.Memory["MemAvailable"] != 600*1024 || *r.Boot != 1.7e9 || *r.Load != (Load{.5, 1.25, 2}) {
		t.Errorf("memory %v, boot %v, load %v", r.Memory, *r.Boot, *r.Load)
	}
}

// A disk that never answers costs one reading a second, later ones nothing,
// and nothing else is lost.
func TestFilesystemThatHangs(t *testing.T) {
	h := machine(t)
	answer, healthy := make(chan struct{}), h.statfs
	h.statfs = func(path string, buf *unix.Statfs_t) error {
		switch path {
		case "/data":
			<-answer
		case "/home":
			return errors.New("input/output error")
		}
		return healthy(path, buf)
	}
	failed := func() []string {
		r, err := h.Read()
		if err != nil {
			t.Fatal(err)
		}
		var points []string
		for _, f := range r.Filesystems {
			if f.Failed {
				points = append(points, f.MountPoint)
			} else if f.Size != 4096000 {
				t.Errorf("%s has size %v", f.MountPoint, f.Size)
			}
		}
		return points
	}
	want := []string{"/data", "/home"}
	if got := failed(); !slices.Equal(got, want) {
		t.Fatalf("failed are %v, want %v", got, want)
	}
	begin := time.Now()
	if got := failed(); !slices.Equal(got, want) || time.Since(begin) > patience/2 {
		t.Errorf("the second time, after %v: %v", time.Since(begin), got)
	}
	close(answer)
	for range 100 {
		if slices.Equal(failed(), []string{"/home"}) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("a file system that answers again is still given up")
}

// What cannot be read is missing, and the rest is there.
func TestPartsThatAreMissing(t *testing.T) {
	h := machine(t)
	proc := filepath.Join(filepath.Dir(h.sys), "proc")
	for _, name := range []string{"stat", "diskstats", "meminfo"} {
		if err := os.Remove(filepath.Join(proc, name)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := h.Read()
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("the error is %v", err)
	}
	if r.CPUs != nil || r.Boot != nil || r.Disks != nil || r.Memory != nil {
		t.Errorf("something was made up: %+v", r)
	}
	if r.Load == nil || len(r.Interfaces) != 3 || len(r.Filesystems) != 5 {
		t.Errorf("something is lost: %+v", r)
	}
}
