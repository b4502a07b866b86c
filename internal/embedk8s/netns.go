package embedk8s

import (
	"errors"
	"fmt"
	"os"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// netnsDir is where containerd and ip-netns(8) keep network namespaces.
const netnsDir = "/run/netns"

// shareNetns makes the folder of network namespaces a shared mount of its own,
// as ip-netns(8) does when it first makes one there. Done later, by an
// administrator's `ip netns add` beside running pods, it would hide the mounts
// that containerd has made below it, which then could not be removed any more.
func shareNetns() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return fmt.Errorf("the folder of network namespaces: %w", err)
	}
	mounted, err := mountinfo.Mounted(netnsDir)
	if err != nil {
		return err
	}
	if entries, err := os.ReadDir(netnsDir); err != nil || !mounted && len(entries) > 0 {
		return err // there are pods from before: too late
	}
	if !mounted {
		if err := unix.Mount(netnsDir, netnsDir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("the folder of network namespaces: %w", err)
		}
	}
	if err := unix.Mount("", netnsDir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share the folder of network namespaces: %w", err)
	}
	return nil
}

// unshareNetns undoes shareNetns where nobody else has a namespace there.
func unshareNetns() error {
	for {
		entries, err := os.ReadDir(netnsDir)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil || len(entries) > 0 {
			return err
		}
		if mounted, err := mountinfo.Mounted(netnsDir); err != nil || !mounted {
			return err
		}
		if err := unix.Unmount(netnsDir, 0); err != nil {
			return fmt.Errorf("the folder of network namespaces: %w", err)
		}
	}
}
