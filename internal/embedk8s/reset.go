package embedk8s

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/moby/sys/mountinfo"

	"github.com/gpulab/gpulab/internal/lxcfs"
)

// Reset takes the k3s of this data folder and everything it made off this machine:
// processes, pods, mounts, interfaces, packet filter rules, sets and files. Where
// that k3s has never run here, as with the data folder of a restore, nothing outside
// the data folder is touched; where the machine has another lab's Kubernetes, Reset
// refuses (see Made). The caller has made sure that no other Kubernetes runs.
// It may be run again after an interruption. Our own data directory is the caller's
// to delete; with keepNode, k3s goes on from it later as the node that it was, and
// what somebody has mounted in it, such as a disk for homes, stays. Without, it is
// unmounted, so that it is not deleted. step is called with what is being removed.
func Reset(ctx context.Context, dataDir string, cgroupRoot string, keepNode bool, step func(string)) error {
	dataDir = resolved(dataDir) // as the kernel names what runs from it and is mounted in it
	here := ground{"/"}
	made, err := here.made(dataDir)
	if err != nil {
		return err
	}
	kept, err := before(dataDir)
	if err != nil {
		return err
	}
	step("ending k3s")
	endProcesses(ctx, func(p proc) bool {
		return strings.HasPrefix(p.exe, filepath.Join(dataDir, "bin")+"/") && p.name() == "k3s"
	}, 20*time.Second)
	step("ending pods")
	// Shims first: a shim would report and clean up what we are about to end.
	endProcesses(ctx, func(p proc) bool {
		return strings.HasPrefix(p.exe, filepath.Join(dataDir, "bin")+"/")
	}, 2*time.Second)
	if !made {
		if err := lxcfs.Stop(); err != nil {
			return err
		}
		err := unmountAll(func(path string) bool { return !keepNode && strings.HasPrefix(path, dataDir+"/") })
		// An earlier reset kept this folder for somebody's namespace, which may be gone by now.
		// With nothing in it, it is of no use to anybody: who makes the next one mounts it again.
		err = errors.Join(err, unshareNetns())
		_ = os.Remove(netnsDir)
		return err
	}
	killCgroups(ctx, cgroupRoot)
	stopSlices(ctx)
	step("removing mounts")
	if err := lxcfs.Stop(); err != nil {
		return err
	}
	err = unmountAll(func(path string) bool { return goes(path, dataDir, keepNode) })
	err = errors.Join(err, here.unfollow(dataDir), unmountKubelet())
	step("removing network interfaces and rules")
	removeNetwork(ctx)
	step("removing files")
	err = errors.Join(err, here.removeShared(kept, keepNode))
	matches, _ := filepath.Glob("/run/netns/cni-*")
	for _, m := range matches {
		err = errors.Join(err, os.Remove(m))
	}
	err = errors.Join(err, unshareNetns())
	// The socket folder is shared with a containerd of the machine's own.
	if entries, rerr := os.ReadDir("/run/containerd/s"); rerr == nil && !foreignContainerd() {
		for _, e := range entries {
			err = errors.Join(err, os.RemoveAll(filepath.Join("/run/containerd/s", e.Name())))
		}
		_ = os.RemoveAll("/run/containerd/fifo")
	}
	// What runc keeps of Kubernetes' containers; others have other folders.
	err = errors.Join(err, os.RemoveAll("/run/containerd/runc/k8s.io"))
	_ = os.Remove("/run/cdi/k8s.device-plugin.nvidia.com-gpu.json")
	// Each only if nobody else keeps something in it.
	for _, dir := range []string{
		"/run/containerd/s", "/run/containerd/runc", "/run/containerd", "/run/cdi", "/run/netns", "/run/nvidia/mps/shm",
		"/run/nvidia/mps", "/run/nvidia",
	} {
		_ = os.Remove(dir)
	}
	removeCgroups(cgroupRoot)
	if err != nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	return here.released(dataDir, keepNode)
}

// goes tells whether a mount is to be removed.
func goes(path, dataDir string, keepNode bool) bool {
	ours := dataDir
	if keepNode {
		ours = filepath.Join(dataDir, "k3s/agent/containerd")
	}
	for _, root := range []string{"/run/k3s", "/var/lib/kubelet", "/var/lib/cni", ours} {
		if strings.HasPrefix(path, root+"/") {
			return true
		}
	}
	return strings.HasPrefix(path, "/run/netns/cni-")
}

// removeContents removes a folder; where it is a mount point (a disk of its
// own), only what is in it.
func removeContents(dir string) error {
	err := os.RemoveAll(dir)
	if errors.Is(err, syscall.EBUSY) {
		entries, rerr := os.ReadDir(dir)
		if rerr == nil && len(entries) == 0 {
			return nil
		}
	}
	return err
}

type proc struct {
	pid int
	exe string
	cmd []string
}

// name is the base name the process was started under, which for k3s's
// containerd differs from its program's.
func (p proc) name() string {
	if len(p.cmd) == 0 {
		return filepath.Base(p.exe)
	}
	return filepath.Base(p.cmd[0])
}

// processes lists the processes in our mount namespace: those of containers
// and of other test hosts have paths that mean something else.
func processes() []proc {
	self, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return nil
	}
	entries, _ := os.ReadDir("/proc")
	var out []proc
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if ns, err := os.Readlink(filepath.Join("/proc", e.Name(), "ns/mnt")); err != nil || ns != self {
			continue
		}
		exe, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err != nil {
			continue
		}
		cmd, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		out = append(out, proc{
			pid, strings.TrimSuffix(exe, " (deleted)"), strings.Split(strings.TrimRight(string(cmd), "\x00"), "\x00"),
		})
	}
	return out
}

// endProcesses sends SIGTERM to the processes that match, waits up to grace
// and sends SIGKILL to the rest.
func endProcesses(ctx context.Context, match func(proc) bool, grace time.Duration) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		found := false
		for _, p := range processes() {
			if match(p) {
				found = true
				_ = syscall.Kill(p.pid, sig)
			}
		}
		if !found {
			return
		}
		for end := time.Now().Add(grace); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			if !anyProcess(match) {
				return
			}
		}
	}
}

func anyProcess(match func(proc) bool) bool {
	for _, p := range processes() {
		if match(p) {
			return true
		}
	}
	return false
}

// foreignContainerd tells whether a containerd that is not ours runs here.
func foreignContainerd() bool {
	return anyProcess(func(p proc) bool { return filepath.Base(p.exe) == "containerd" })
}

// podCgroups lists the control groups that hold pods, in every hierarchy.
func podCgroups(cgroupRoot string) []string {
	var out []string
	for _, pattern := range []string{"/sys/fs/cgroup/*", "/sys/fs/cgroup"} {
		for _, name := range []string{"kubepods", "kubepods.slice"} {
			m, _ := filepath.Glob(filepath.Join(pattern, cgroupRoot, name))
			out = append(out, m...)
		}
	}
	return out
}

// killCgroups kills whatever runs in pods until nothing does.
func killCgroups(ctx context.Context, cgroupRoot string) {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) &&
		ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		left := podProcesses(cgroupRoot)
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// stopSlices has systemd forget the slices in which the kubelet put pods, where
// it did: their control groups and what is set for them.
func stopSlices(ctx context.Context) {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return
	}
	out, err := exec.CommandContext(ctx, "systemctl", "list-units", "--all", "--plain", "--no-legend",
		"kubepods*.slice").Output()
	stop := []string{"stop"}
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		stop = append(stop, name)
	}
	if err == nil && len(stop) > 1 {
		err = exec.CommandContext(ctx, "systemctl", stop...).Run()
	}
	if err != nil {
		slog.Warn("systemd keeps slices of pods, which do no harm", "err", err)
	}
}

func removeCgroups(cgroupRoot string) {
	for _, root := range podCgroups(cgroupRoot) {
		var dirs []string
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- {
			_ = syscall.Rmdir(dirs[i])
		}
	}
	// k3s makes a group of its own for its children on some machines.
	m, _ := filepath.Glob("/sys/fs/cgroup/*/k3s")
	for _, d := range append(m, "/sys/fs/cgroup/k3s") {
		_ = syscall.Rmdir(d)
	}
}

// unmountAll removes the mounts that match, deepest first.
func unmountAll(match func(string) bool) error {
	for range 20 { // mounts may be stacked
		paths, err := mountsBelow("")
		if err != nil {
			return err
		}
		paths = slices.DeleteFunc(paths, func(p string) bool { return !match(p) })
		if len(paths) == 0 {
			return nil
		}
		sort.Slice(paths, func(i, j int) bool { return len(paths[i]) > len(paths[j]) })
		for _, p := range paths {
			if err := syscall.Unmount(p, 0); err != nil {
				// Hidden below a later mount of the folder, of no use to anybody else?
				if errors.Is(err, syscall.EINVAL) && strings.HasPrefix(p, netnsDir+"/") && syscall.Unmount(netnsDir, 0) == nil {
					break
				}
				// A shared one may have gone with another.
				if err := syscall.Unmount(p, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
					slog.Warn("a mount could not be removed", "path", p, "err", err)
				}
			}
		}
	}
	return errors.New("some mounts could not be removed; see `findmnt`, close what uses them and run `gpulab reset` again")
}

// kubeletDir is the kubelet's folder. Where the root's mounts are not shared, as
// in some containers, the kubelet mounts it over itself; a disk of its own that
// somebody has mounted there is left alone.
const kubeletDir = "/var/lib/kubelet"

func unmountKubelet() error {
	for {
		mounts, err := mountinfo.GetMounts(nil)
		if err != nil {
			return err
		}
		if !overItself(mounts, kubeletDir) {
			return nil
		}
		if err := syscall.Unmount(kubeletDir, 0); err != nil {
			return fmt.Errorf("unmount %s: %w", kubeletDir, err)
		}
	}
}

// overItself tells whether a folder's last mount shows that very folder.
func overItself(mounts []*mountinfo.Info, path string) bool {
	byID := map[int]*mountinfo.Info{}
	var last *mountinfo.Info
	for _, m := range mounts {
		byID[m.ID] = m
		if m.Mountpoint == path {
			last = m
		}
	}
	if last == nil || byID[last.Parent] == nil {
		return false
	}
	parent := byID[last.Parent]
	inside, err := filepath.Rel(parent.Mountpoint, path)
	return err == nil && last.Major == parent.Major && last.Minor == parent.Minor &&
		last.Root == filepath.Join(parent.Root, inside)
}

// removeNetwork removes interfaces, packet filter rules and sets. Each command
// may fail on a machine that never had the thing.
func removeNetwork(ctx context.Context) {
	run := func(stdin []byte, name string, args ...string) []byte {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Stdin = bytes.NewReader(stdin)
		out, err := cmd.Output()
		if err != nil {
			slog.Debug("clean-up command", "cmd", name, "args", args, "err", err)
		}
		return out
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		saved := run(nil, family+"-save")
		if cleaned, changed := withoutOurRules(string(saved)); changed {
			run([]byte(cleaned), family+"-restore")
		}
	}
	if err := removeGuard(); err != nil {
		slog.Debug("clean-up of the notebooks' guard", "err", err)
	}
	for _, link := range podLinks(string(run(nil, "ip", "-oneline", "link", "show", "master", "cni0"))) {
		run(nil, "ip", "link", "delete", link)
	}
	for set := range strings.FieldsSeq(string(run(nil, "ipset", "list", "-name"))) {
		if strings.HasPrefix(set, "KUBE-") || strings.HasPrefix(set, "inet6:KUBE-") {
			run(nil, "ipset", "destroy", set)
		}
	}
}

// removeGuard removes the table by which the network plugin guards notebooks
// (packaging/runtime/cni/cmd/flannel/guard.go).
func removeGuard() error {
	kernel, err := nftables.New()
	if err != nil {
		return err
	}
	kernel.DelTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "gpulab"})
	return kernel.Flush()
}

// podLinks lists the interfaces k3s made: the bridge, the tunnel, and the
// host's ends of pods' cables, which are ports of the bridge. The kernel is
// asked, not /sys: in a container that may show another network.
func podLinks(ports string) []string {
	var out []string
	for line := range strings.Lines(ports) { // 7: veth12@if2: <...
		if f := strings.Fields(line); len(f) > 1 {
			name, _, _ := strings.Cut(strings.TrimSuffix(f[1], ":"), "@")
			out = append(out, name)
		}
	}
	links, _ := net.Interfaces()
	for _, l := range links {
		if l.Name == "cni0" || strings.HasPrefix(l.Name, "flannel") || l.Name == "kube-ipvs0" {
			out = append(out, l.Name)
		}
	}
	return out
}

// ourChains are the prefixes of the chains k3s's parts make.
var ourChains = []string{"KUBE-", "CNI-", "FLANNEL-", "CNI:"}

// podNetwork is the name of the pods' network in the comments of the CNI plugins' rules.
const podNetwork = `name: \"cbr0\"`

// withoutOurRules drops k3s's chains and rules from the output of
// iptables-save and says whether there were any.
func withoutOurRules(saved string) (string, bool) {
	var out strings.Builder
	changed := false
	theirs, ours := cniChains(saved)
	for line := range strings.Lines(saved) {
		mine := strings.Contains(line, "flanneld") || strings.Contains(line, "kube-router") ||
			strings.Contains(line, "KUBE-ROUTER")
		for _, c := range ourChains {
			mine = mine || strings.Contains(line, " "+c) || strings.HasPrefix(line, ":"+c)
		}
		if mine && theirs && strings.Contains(line, "CNI-") {
			mine = strings.Contains(line, podNetwork) ||
				slices.ContainsFunc(strings.Fields(strings.TrimPrefix(line, ":")), func(word string) bool { return ours[word] })
		}
		if mine {
			changed = true
			continue
		}
		out.WriteString(line)
	}
	return out.String(), changed
}

// cniChains tells whether others than k3s, such as Podman, have rules of CNI plugins here, and which of the chains are
// those of our pods.
func cniChains(saved string) (theirs bool, ours map[string]bool) {
	ours = map[string]bool{}
	for line := range strings.Lines(saved) {
		_, target, jumps := strings.Cut(strings.TrimSpace(line), " -j ")
		if !jumps || !strings.Contains(line, `name: \"`) {
			continue
		}
		if !strings.Contains(line, podNetwork) {
			theirs = true
		} else if strings.HasPrefix(target, "CNI-") {
			ours[target] = true
		}
	}
	return theirs, ours
}

// CgroupRoot returns the cgroup-root among kubelet arguments, "" for the top.
func CgroupRoot(kubeletArgs []string) string {
	for _, a := range kubeletArgs {
		if root, ok := strings.CutPrefix(a, "cgroup-root="); ok {
			return root
		}
	}
	return ""
}

// resolved is where a folder really is, without links; a folder that is not there is where its name says.
func resolved(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return filepath.Clean(dir)
}

// RemoveFiles deletes gpulab's data directory, or something in it. What is mounted in it
// belongs to somebody else, such as all homes of a lab: while there is any, nothing is deleted.
func RemoveFiles(dir string) error {
	real := resolved(dir)
	if dir == "" || real == "/" {
		return fmt.Errorf("%q is not a data directory", dir)
	}
	mounts, err := mountsBelow(real)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("%s is still mounted in what is to be deleted; take it out with `umount %s` and try again: "+
			"nothing has been deleted", mounts[0], mounts[0])
	}
	err = removeContents(real)
	if real != filepath.Clean(dir) {
		err = errors.Join(err, os.RemoveAll(dir)) // the link that led there
	}
	return err
}

// mountsBelow are the places below a folder where something is mounted.
func mountsBelow(dir string) (paths []string, err error) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	for _, m := range mounts {
		if m.Mountpoint != dir {
			paths = append(paths, m.Mountpoint)
		}
	}
	return paths, err
}
