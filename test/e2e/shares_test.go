//go:build e2e

package e2e

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// sharedByKernel are ways to take what the kernel counts per machine or per user.
const sharedByKernel = `import ctypes, errno, json, os, resource
libc = ctypes.CDLL(None, use_errno=True)
held, timers, queues = [], [], []
class Queue(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("flags", "most", "size", "now")] + [("rest", ctypes.c_long * 4)]
def terminal():
    held.extend(os.openpty())
def instance():
    fd = libc.inotify_init1(0)
    if fd < 0: raise OSError(ctypes.get_errno(), "")
    held.append(fd)
def queue():
    name = b"/taken-%d" % len(queues)
    fd = libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, ctypes.byref(Queue(0, 10, 8192, 0)))
    if fd < 0: raise OSError(ctypes.get_errno(), "")
    held.append(fd)
    queues.append(name)
def timer():
    one = ctypes.c_void_p()
    if libc.timer_create(0, None, ctypes.byref(one)) < 0: raise OSError(ctypes.get_errno(), "")
    timers.append(one)
def take(one, most):
    for taken in range(most):
        try: one()
        except OSError: return taken
    return most
def refused(number, *args):
    return "done" if libc.syscall(number, *args) >= 0 else errno.errorcode[ctypes.get_errno()]
def free():
    for fd in held: os.close(fd)
    for one in timers: libc.timer_delete(one)
    for name in queues: libc.mq_unlink(name)`

// takeAll takes all that there is, with the tools above, and keeps it.
const takeAll = sharedByKernel + `
taken = {
    "Terminals": take(terminal, 4000), "Instances": take(instance, 1000),
    "Queues": take(queue, 20), "Timers": take(timer, 200000), "Core": resource.getrlimit(resource.RLIMIT_CORE)[1],
}
room = ctypes.create_string_buffer(256)
calls = {
    "keys": refused(248, b"user", b"mine", b"x", 1, -2), "a keyring": refused(250, 0, -3, 1),
    "io_uring": refused(425, 8, room), "perf": refused(298, room, 0, -1, -1, 0), "a BPF map": refused(321, 0, room, 72),
    "fanotify": refused(300, 0x200, 0), "a user namespace": refused(272, 0x10000000), "a time namespace": refused(272, 0x80),
}
print(json.dumps({"Taken": taken, "Calls": calls}))`

// takeSome is what a program of the machine needs.
const takeSome = sharedByKernel + `
print(take(terminal, 8), take(instance, 32), take(queue, 4), take(timer, 100))
free()`

// takeLocks takes more locks on files than a pod may have, in a process of its own, and prints how that one ended.
const takeLocks = `import subprocess, sys
print(subprocess.run([sys.executable, "-c", """
import fcntl, os, struct, tempfile, time
files = [tempfile.TemporaryFile() for _ in range(300)]
for f in files:
    for i in range(500):
        fcntl.fcntl(f, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 2 * i, 1, 0))
time.sleep(60)
"""]).returncode)`

// testKernelShares: one notebook, with a user namespace or without, takes nothing
// from the machine or from others of what the kernel counts.
func testKernelShares(t *testing.T, a *appliance) {
	type taken struct{ Terminals, Instances, Queues, Timers, Core int }
	of := map[string]*kernel{adminHandle: a.first.in(t), guestHandle: a.second.in(t)}
	for who, k := range of {
		var got struct {
			Taken taken
			Calls map[string]string
		}
		text := k.run(t, takeAll)
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		n := got.Taken
		if n.Terminals == 0 || n.Terminals > 64 || n.Queues != 1 || n.Timers == 0 || n.Timers > 1024 || n.Core != 0 {
			t.Errorf("%s takes %+v", who, n)
		}
		own := a.MustGpulab(a.ctx, "kubectl", "get", "pods", "-n", "user-"+who, "-l", "gpulab.dev/notebook", "-o", "jsonpath={.items[*].spec.hostUsers}") == "false"
		t.Logf("%s, with a user namespace: %v, takes %+v", who, own, n)
		if n.Instances == 0 || own && n.Instances > 128 {
			t.Errorf("%s, with a user namespace: %v, takes %d inotify instances", who, own, n.Instances)
		}
		for what, end := range got.Calls {
			if !slices.Contains([]string{"EPERM", "EACCES", "ENOSYS"}, end) {
				t.Errorf("%s asks for %s: %s, want it refused", who, what, end)
			}
		}
	}
	if got := strings.TrimSpace(a.MustRun(a.ctx, "python3", "-c", takeSome)); got != "8 32 4 100" {
		t.Errorf("with two notebooks at their limits, the machine's root gets (terminals, inotify instances, queues, timers) %s", got)
	}
	for _, k := range of {
		k.run(t, "free()")
	}
	for who, k := range of {
		if got := k.run(t, takeLocks); got != "-9" {
			t.Errorf("a process of %s with 150000 locks on files ends with %s, want it killed", who, got)
		}
	}
	t.Run("containerd's own default is the one we start from", func(t *testing.T) {
		read := func(text string) (spec map[string]any) {
			t.Helper()
			if err := json.Unmarshal([]byte(text), &spec); err != nil {
				t.Fatal(err)
			}
			// What we set, and what containerd sets for each container.
			delete(spec, "ociVersion")
			delete(spec, "hooks")
			delete(spec["process"].(map[string]any), "rlimits")
			delete(spec["linux"].(map[string]any), "cgroupsPath")
			for _, m := range spec["mounts"].([]any) {
				m := m.(map[string]any)
				if options, ok := m["options"].([]any); ok {
					m["options"] = slices.DeleteFunc(options, func(o any) bool { return o == "max=64" })
				}
			}
			return spec
		}
		ours := read(a.MustRun(a.ctx, "cat", "/var/lib/gpulab/container.json"))
		theirs := read(a.MustRun(a.ctx, "/var/lib/gpulab/bin/current/ctr", "oci", "spec"))
		if !reflect.DeepEqual(ours, theirs) {
			t.Errorf("containers are made of\n%v\nand containerd would make them of\n%v", ours, theirs)
		}
	})
}
