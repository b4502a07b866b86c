package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// userLimits are what one pod with a user namespace may have of what the kernel
// counts per user. It is charged to root too: without limits one pod takes all
// there is from Kubernetes and from every other pod. internal/room makes the
// machine's own limits large enough for all pods together.
var userLimits = map[string]int{
	"/proc/sys/user/max_inotify_instances": 128, // the kernel's default for a user
	"/proc/sys/user/max_inotify_watches":   65536,
}

// limitUsers sets the limits in the user namespace that owns the container's
// network namespace, where that is not the machine's. The container has no
// process yet, and none of its processes will have the right to change them.
func limitUsers(netns string, limits map[string]int) error {
	network, err := os.Open(netns)
	if err != nil {
		return fmt.Errorf("open the container's network namespace: %w", err)
	}
	defer network.Close()
	fd, err := unix.IoctlRetInt(int(network.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		return fmt.Errorf("find the container's user namespace: %w", err)
	}
	owner := os.NewFile(uintptr(fd), "user namespace")
	defer owner.Close()
	theirs, err := owner.Stat()
	if err != nil {
		return fmt.Errorf("look at the container's user namespace: %w", err)
	}
	ours, err := os.Stat("/proc/self/ns/user")
	if err != nil {
		return fmt.Errorf("look at the machine's user namespace: %w", err)
	}
	if os.SameFile(theirs, ours) {
		return nil // such a pod is charged to its person's own user ID alone
	}
	// The kernel lets only a program with one thread into a user namespace, which no
	// Go program is. A kernel without a file has no inotify to limit.
	args := []string{"--user=/proc/self/fd/3", "--", "/bin/sh", "-ec",
		`while [ $# -gt 0 ]; do [ ! -e "$1" ] || echo "$2" >"$1"; shift 2; done`, "limits"}
	for path, most := range limits {
		args = append(args, path, strconv.Itoa(most))
	}
	command := exec.Command("nsenter", args...)
	command.ExtraFiles = []*os.File{owner}
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("limit the container's user namespace (needs nsenter of util-linux): %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
