package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// userNamespace is a user namespace with a network namespace in it, as containerd
// makes them for a pod: its users are others outside. It is the process that
// keeps them.
func userNamespace(t *testing.T) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making namespaces needs root: run this test with sudo")
	}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 2974154752, Size: 65536}}
	keeper := exec.Command("sleep", "60")
	keeper.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, UidMappings: ids, GidMappings: ids}
	if err := keeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = keeper.Process.Kill()
		_ = keeper.Wait()
	})
	return keeper
}

// inside runs a program as that user of the namespace.
func inside(t *testing.T, keeper *exec.Cmd, uid string, args ...string) string {
	t.Helper()
	out, err := exec.Command("nsenter", append([]string{"--target", fmt.Sprint(keeper.Process.Pid), "--user", "--setuid", uid, "--setgid", uid, "--"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// hoard opens inotify instances, and then watches in one of them, until the
// kernel refuses.
const hoard = `import ctypes, os
libc = ctypes.CDLL(None)
kept = []
while (one := libc.inotify_init1(0)) >= 0: kept.append(one)
names = sorted("/proc/self/task/%d/net/" % os.getpid() + n for n in os.listdir("/proc/self/net"))
watches = sum(libc.inotify_add_watch(kept[0], n.encode(), 2) >= 0 for n in names)
print(len(kept), min(watches, 9))`

func TestUserNamespaceIsLimited(t *testing.T) {
	keeper := userNamespace(t)
	limits := map[string]int{"/proc/sys/user/max_inotify_instances": 7, "/proc/sys/user/max_inotify_watches": 3, "/proc/sys/user/max_nothing": 1}
	if err := limitUsers(fmt.Sprintf("/proc/%d/ns/net", keeper.Process.Pid), limits); err != nil {
		t.Fatal(err)
	}
	if got := inside(t, keeper, "20001", "python3", "-c", hoard); got != "7 3" {
		t.Errorf("instances and watches that a pod gets: %s, want 7 3", got)
	}
	// Nobody in the pod changes them: none of its processes has a capability.
	const raise = `echo 99 2>&1 >/proc/sys/user/max_inotify_instances || true`
	if got := inside(t, keeper, "20001", "sh", "-c", raise); !strings.Contains(got, "ermission denied") {
		t.Errorf("a user of the pod changes the limit: %q", got)
	}
}

func TestMachinesUsersAreNotLimited(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("opening network namespaces needs root: run this test with sudo")
	}
	limits := map[string]int{"/nowhere/to/be/written": 1}
	if err := limitUsers("/proc/self/ns/net", limits); err != nil {
		t.Error(err)
	}
}

// The limits are there when the plugin has connected the pod, before which it has
// no process.
func TestPodIsLimitedWhenItIsConnected(t *testing.T) {
	h := newHost(t)
	h.lease(someLease)
	keeper := userNamespace(t)
	h.mustRun("mount", "--bind", fmt.Sprintf("/proc/%d/ns/net", keeper.Process.Pid), "/run/netns/"+h.containerNet)
	defer h.mustRun("umount", "/run/netns/"+h.containerNet)
	h.mustCall("ADD", h.conf(""), "K8S_POD_NAMESPACE=user-ada")
	defer h.mustCall("DEL", h.conf(""), "K8S_POD_NAMESPACE=user-ada")
	for path, most := range userLimits {
		if got := inside(t, keeper, "0", "cat", path); got != fmt.Sprint(most) {
			t.Errorf("%s is %s, want %d", path, got, most)
		}
	}
}
