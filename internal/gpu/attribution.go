package gpu

import (
	"bytes"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Pods tells which pods run on this node. The one who watches the cluster
// provides it; its methods are called once a second and must not block.
type Pods interface {
	// ByUID finds a pod by its UID.
	ByUID(uid string) (PodRef, bool)
	// ByName finds a pod by its name, and tells when it started: the zero time
	// if it has not.
	ByName(namespace, name string) (ref PodRef, started time.Time, ok bool)
}

// noPods is used before there is a cluster.
type noPods struct{}

func (noPods) ByUID(string) (PodRef, bool)                     { return PodRef{}, false }
func (noPods) ByName(string, string) (PodRef, time.Time, bool) { return PodRef{}, time.Time{}, false }

// podUID matches a pod's part of a control group's path, whichever driver made
// it: kubepods-burstable-pod1b4e_….slice (systemd) or kubepods/burstable/pod1b4e-…
// (cgroupfs), below a group "kubepods" that may itself lie below others. Mirror pods have a hash of 32 digits for a
// UID.
var podUID = regexp.MustCompile(`/kubepods[./-].*?` +
	`pod([0-9a-f]{8}[_-][0-9a-f]{4}[_-][0-9a-f]{4}[_-][0-9a-f]{4}[_-][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?:/|$)`)

// PodUIDs is podUIDs for those who know processes by other ways than a GPU.
func PodUIDs(cgroup []byte) []string { return podUIDs(cgroup) }

// podUIDs returns the UIDs in the content of /proc/PID/cgroup, outermost
// first, each once. A cluster inside a pod has more than one. Below user.slice anybody may name groups as they like.
func podUIDs(cgroup []byte) []string {
	var uids []string
	seen := make(map[string]bool)
	for line := range bytes.Lines(cgroup) {
		if pods := bytes.Index(line, []byte("/kubepods")); pods >= 0 &&
			bytes.Contains(line[:pods+1], []byte("/user.slice/")) {
			continue
		}
		for _, m := range podUID.FindAllSubmatch(bytes.TrimSpace(line), -1) {
			uid := strings.ReplaceAll(string(m[1]), "_", "-")
			if !seen[uid] {
				seen[uid] = true
				uids = append(uids, uid)
			}
		}
	}
	return uids
}

// attribution leads processes back to who started them. What it has read about
// a process it keeps as long as a GPU is used by it: reading anew which of a
// hundred processes is whose, every second, would cost more than all the rest.
// It is for one goroutine.
type attribution struct {
	procRoot string
	pods     Pods
	known    map[int]*origin // by PID
	round    uint64
}

// origin is what is known about a process.
type origin struct {
	// folder is its folder in /proc, held open: it stays this process's when
	// its number is used again, and is empty then.
	folder int
	name   string
	user   string
	uids   []string
	asked  time.Time // when the above were read
	round  uint64    // in which it was last seen
}

// askAgain is how long what /proc says about a running process is believed.
// Few change their name, user or control group while they run.
const askAgain = time.Minute

func newAttribution(procRoot string, pods Pods) *attribution {
	return &attribution{procRoot: procRoot, pods: pods, known: make(map[int]*origin)}
}

// complete adds to each process of the GPUs its name, its user and its pod. A
// process that has ended meanwhile keeps what was known about it.
func (a *attribution) complete(gpus []GPU, now time.Time) {
	a.round++
	for i := range gpus {
		for k := range gpus[i].Processes {
			p := &gpus[i].Processes[k]
			if o := a.origin(p.PID, now); o != nil {
				p.Name, p.UnixUser, p.Pod = o.name, o.user, podOf(a.pods, o.uids)
			}
		}
	}
	for pid, o := range a.known {
		if o.round != a.round {
			a.forget(pid)
		}
	}
}

// origin returns what is known about a process, nil for one nothing is known about.
func (a *attribution) origin(pid int, now time.Time) *origin {
	o := a.known[pid]
	if o != nil && o.round == a.round {
		return o // it uses another GPU too
	}
	runs := o != nil && unix.Faccessat(o.folder, "stat", unix.F_OK, 0) == nil
	if !runs {
		// It has ended, and perhaps its number is another's; or it is new.
		folder, err := unix.Open(filepath.Join(a.procRoot, strconv.Itoa(pid)), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if runs = err == nil; runs {
			a.forget(pid)
			o = &origin{folder: folder}
			a.known[pid] = o
		}
	}
	if o == nil {
		return nil
	}
	o.round = a.round
	if age := now.Sub(o.asked); runs && (age >= askAgain || age < 0) {
		o.asked = now
		o.ask()
	}
	return o
}

func (a *attribution) forget(pid int) {
	if o := a.known[pid]; o != nil {
		_ = unix.Close(o.folder)
		delete(a.known, pid)
	}
}

func (a *attribution) forgetAll() {
	for pid := range a.known {
		a.forget(pid)
	}
}

// ask reads name, user and control groups. What cannot be read stays as it was.
func (o *origin) ask() {
	if comm, err := o.read("comm"); err == nil {
		o.name = strings.TrimSpace(string(comm))
	}
	if status, err := o.read("status"); err == nil {
		o.user = unixUser(status)
	}
	if cgroup, err := o.read("cgroup"); err == nil {
		o.uids = podUIDs(cgroup)
	}
}

func (o *origin) read(name string) ([]byte, error) {
	fd, err := unix.Openat(o.folder, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 64<<10))
}

// podOf returns the outermost pod the cluster knows. A pod it does not know
// (yet) is still a pod: its UID is kept.
func podOf(pods Pods, uids []string) PodRef {
	for _, uid := range uids {
		if ref, ok := pods.ByUID(uid); ok {
			return ref
		}
	}
	if len(uids) > 0 {
		return PodRef{UID: uids[0]}
	}
	return PodRef{}
}

// unixUser finds the effective user in /proc/PID/status: its name, or its
// number if this host has no name for it.
func unixUser(status []byte) string {
	for line := range bytes.Lines(status) {
		fields := bytes.Fields(line)
		if len(fields) < 3 || string(fields[0]) != "Uid:" {
			continue
		}
		id := string(fields[2])
		if u, err := user.LookupId(id); err == nil {
			return u.Username
		}
		return id
	}
	return ""
}
