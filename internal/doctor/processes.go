package doctor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// process is a program that runs on this machine, in our network namespace.
type process struct {
	pid  int
	name string // as in /proc/PID/comm
	exe  string // "" when it cannot be read
}

// listProcesses returns the programs that share our network namespace: those
// of a container or a test host next door can neither take our ports nor our
// pods.
func listProcesses(root string) ([]process, error) {
	own, _ := os.Readlink(filepath.Join(root, "proc/self/ns/net"))
	folders, err := filepath.Glob(filepath.Join(root, "proc/[0-9]*"))
	if err != nil {
		return nil, err
	}
	var list []process
	for _, folder := range folders {
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil {
			continue
		}
		if netns, err := os.Readlink(folder + "/ns/net"); err == nil && netns != own {
			continue
		}
		comm, err := os.ReadFile(folder + "/comm")
		if err != nil {
			continue // it ended meanwhile
		}
		exe, _ := os.Readlink(folder + "/exe")
		list = append(list, process{
			pid:  pid,
			name: strings.TrimSpace(string(comm)),
			// The kernel marks a program whose file an upgrade has replaced.
			exe: strings.TrimSuffix(exe, " (deleted)"),
		})
	}
	return list, nil
}

// unitOf returns the systemd service that a program belongs to, "" for none.
func (h host) unitOf(pid int) string {
	for line := range strings.Lines(h.read("/proc/" + strconv.Itoa(pid) + "/cgroup")) {
		unit := filepath.Base(strings.TrimSpace(line))
		if strings.HasSuffix(unit, ".service") && !strings.HasPrefix(unit, "user@") {
			return unit
		}
	}
	return ""
}

// ours reports whether the program is gpulab or was staged by it.
func (p process) ours(dataDir string) bool {
	if filepath.Base(p.exe) == "gpulab" {
		return true
	}
	if dataDir == "" {
		return false
	}
	if real, err := filepath.EvalSymlinks(dataDir); err == nil && strings.HasPrefix(p.exe, real+"/") {
		return true // the kernel names programs by where they really are
	}
	return strings.HasPrefix(p.exe, filepath.Clean(dataDir)+"/")
}

// holds reports whether the program has one of the sockets open, given by inode.
func (p process) holds(root string, inodes map[string]bool) bool {
	folder := filepath.Join(root, "proc", strconv.Itoa(p.pid), "fd")
	entries, err := os.ReadDir(folder)
	if err != nil {
		return false
	}
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(folder, entry.Name()))
		if err != nil {
			continue
		}
		inode, found := strings.CutPrefix(target, "socket:[")
		if found && inodes[strings.TrimSuffix(inode, "]")] {
			return true
		}
	}
	return false
}
