package hoststat

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

var (
	// containers are network interfaces that containers and virtual machines
	// come and go with.
	containers = regexp.MustCompile(`^(veth|cni|flannel|cali|docker|kube-|vnet|tap)|^br-[0-9a-f]{12}$`)

	unwantedDisk = regexp.MustCompile(`^(loop|z?ram|fd|sr)\d+$`)

	// inContainers are folders below which a container engine mounts.
	inContainers = regexp.MustCompile(`^/(proc|sys|dev|run/(k3s|containerd|docker|netns|credentials|user)|` +
		`var/lib/(kubelet|docker|containers|containerd))(/|$)|/k3s/agent/containerd/|/kubelet/pods/`)
)

// wanted tells a file system that holds somebody's files on this machine.
// What other machines serve is left out: it is theirs, and asking for its size
// may hang for as long as the network does.
func wanted(m *procfs.MountInfo) bool {
	switch {
	case m.MountPoint == "/":
		return true
	case inContainers.MatchString(m.MountPoint), m.FSType == "squashfs":
		return false
	case m.Root != "/" && m.FSType != "btrfs":
		return false // a folder of one that is mounted elsewhere
	}
	return strings.HasPrefix(m.Source, "/dev/") || m.FSType == "tmpfs" || m.FSType == "zfs"
}

// filesystems reads the mounts of the machine, not of this process's own view.
func (h *Host) filesystems(r *Reading) error {
	mounts, err := h.proc.GetProcMounts(1)
	if err != nil {
		if mounts, err = h.proc.GetMounts(); err != nil {
			return fmt.Errorf("the mounted file systems: %w", err)
		}
	}
	list := []Filesystem{}
	for _, m := range mounts {
		m.MountPoint, m.Source = unescape(m.MountPoint), unescape(m.Source)
		if !wanted(m) {
			continue
		}
		_, ro := m.Options["ro"]
		// What is mounted over another hides it.
		list = slices.DeleteFunc(list, func(f Filesystem) bool { return f.MountPoint == m.MountPoint })
		list = append(list, Filesystem{Device: m.Source, MountPoint: m.MountPoint, Type: m.FSType, ReadOnly: ro})
	}
	h.measure(list)
	r.Filesystems = list
	return nil
}

// patience is how long all file systems together may take to answer.
const patience = time.Second

// measure asks every file system for its size. One on a disk that has failed
// may never answer: it is given up for this reading, and not asked again until
// it has answered the first time.
func (h *Host) measure(list []Filesystem) {
	h.measuring.Lock()
	defer h.measuring.Unlock()
	type answer struct {
		index int
		stat  unix.Statfs_t
		err   error
	}
	answers := make(chan answer, len(list))
	asked := 0
	for i := range list {
		list[i].Failed = true
		point := list[i].MountPoint
		h.mu.Lock()
		stuck := h.stuck[point]
		h.stuck[point] = true
		h.mu.Unlock()
		if stuck {
			continue
		}
		asked++
		go func() {
			a := answer{index: i}
			a.err = h.statfs(point, &a.stat)
			h.mu.Lock()
			delete(h.stuck, point)
			h.mu.Unlock()
			answers <- a
		}()
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for range asked {
		select {
		case a := <-answers:
			if a.err == nil {
				f, block := &list[a.index], float64(a.stat.Bsize)
				f.Failed = false
				f.Size, f.Free, f.Available = float64(a.stat.Blocks)*block, float64(a.stat.Bfree)*block,
					float64(a.stat.Bavail)*block
				f.Files, f.FilesFree = float64(a.stat.Files), float64(a.stat.Ffree)
			}
		case <-limit.C:
			return
		}
	}
}

// unescape reads a name in the kernel's table of mounts, which writes blanks
// and line ends in octal.
func unescape(s string) string { return octal.Replace(s) }

var octal = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
