// Package room makes a machine's kernel settings large enough for all pods at
// once. The kernel counts some things for the whole machine; each pod has a limit
// of its own, and what is left must do for the machine itself. embedk8s raises
// the settings, the doctor checks them.
package room

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Pods is how many pods a machine runs at most: the kubelet's default.
const Pods = 110

// What one pod may have. The CNI plugin sets Instances and Watches
// (packaging/runtime/cni/cmd/flannel/userlimits.go), containerd Terminals, for
// each container.
const (
	Instances = 128
	Watches   = 65536
	Terminals = 64
)

// neighbours is how many addresses a pod can look for in its own network, a /24.
const neighbours = 254

// Setting is one number of the kernel's.
type Setting struct {
	Name  string // as sysctl(8) writes it
	What  string // what there are so many of, in the plural
	Least uint64
}

// Settings are the numbers that must be at least so large.
func Settings() []Setting {
	return []Setting{
		{"fs.inotify.max_user_instances", "inotify instances", Pods*Instances + 2048},
		{"fs.inotify.max_user_watches", "inotify watches", Pods*Watches + 1<<20},
		// 1024 are the kernel's own reserve for the machine's terminals.
		{"kernel.pty.max", "terminals", Pods*Terminals + 2*1024},
		{"net.ipv4.neigh.default.gc_thresh3", "addresses of neighbours", Pods*neighbours + 4096},
		// These two only count: what they count is charged to the pod's memory, which
		// has a limit. systemd sets the first, too, on most machines.
		{"fs.file-max", "open files", 1<<63 - 1},
		{"fs.aio-max-nr", "asynchronous requests", 1 << 30},
	}
}

func (s Setting) path(root string) string {
	return filepath.Join(root, "proc/sys", strings.ReplaceAll(s.Name, ".", "/"))
}

// Now reads the setting. Its error wraps fs.ErrNotExist where this kernel, or a
// network namespace that is not the machine's first, has no such setting.
func (s Setting) Now(root string) (uint64, error) {
	text, err := os.ReadFile(s.path(root))
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

// Small returns the settings that are smaller than they should be.
func Small(root string) []Setting {
	var small []Setting
	for _, s := range Settings() {
		if now, err := s.Now(root); err == nil && now < s.Least {
			small = append(small, s)
		}
	}
	return small
}

// Raise raises the settings that are too small and leaves the others alone.
func Raise(root string) error {
	var errs []error
	for _, s := range Small(root) {
		err := os.WriteFile(s.path(root), []byte(strconv.FormatUint(s.Least, 10)), 0o644)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("raise %s to %d: %w", s.Name, s.Least, err))
		}
	}
	return errors.Join(errs...)
}
