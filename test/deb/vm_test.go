//go:build deb && vm

package deb

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// TestVM is TestMachine's story in a virtual machine: with a kernel of Debian's
// own, control groups version 2 and AppArmor, and from the apt repository.
func TestVM(t *testing.T) {
	packages, newer, served := current(t), anotherVersion(t), filepath.Join(t.TempDir(), "apt")
	key := newKey(t)
	url := "http://" + visitorAddress + ":8080"
	makeRepository(t, packages, served, key, url)
	l := &life{machine: bootVM(t, []emulator{kvm, emulated})}
	server := exec.Command(l.onVisitor()[0], append(l.onVisitor()[1:], "python3", "-m", "http.server", "--bind", visitorAddress, "--directory", served, "8080")...)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	l.put(filepath.Join(served, filepath.Base(sources)), sources)
	l.install = "apt-get -q update && apt-get -q -y install gpulab"
	l.upgrade = "apt-get -q update && apt-get -q -y upgrade"
	l.tell(t, []chapter{
		{"control groups version 2", func(l *life) { l.run("test -e /sys/fs/cgroup/cgroup.controllers") }},
		{"install", (*life).installed},
		{"first cell", (*life).firstCell},
		{"restart", (*life).restarted},
		{"a newer version is published", func(l *life) { makeRepository(l.t, newer, served, key, url) }},
		{"upgrade", (*life).upgraded},
		{"reboot", (*life).rebooted},
		{"rollback", (*life).rolledBack},
		{"a notebook without a GPU", (*life).withoutGPU},
		{"purge", func(l *life) {
			l.run("rm -f " + sources)
			l.before["files"] = without(l.before["files"], sources)
			l.purged()
		}},
	})
}

// rolledBack: back to the version before, with a kernel at work.
func (l *life) rolledBack() {
	l.startClock()
	processes := l.run(notebooks)
	l.run("gpulab rollback --yes")
	l.ready(time.Minute)
	l.longestPause("a rollback")
	l.sameNotebooks(processes)
	if out := l.run("gpulab version"); !strings.Contains(out, "since a rollback") {
		l.t.Errorf("after a rollback there is %s", out)
	}
}

// withoutGPU: a notebook without a GPU has user IDs of its own where the kernel can
// give them, and what runs out of memory in it ends alone.
func (l *life) withoutGPU() {
	b := l.browser
	b.Open(pages + "/")
	b.Launch(pages, "cpu", "Plain")
	b.WaitJupyterLab(notebooksAt, handle)
	kernel := lab.NewKernel(b)
	if out := kernel.Run("print(6 * 7)"); out != "42" {
		l.t.Errorf("a cell printed %q", out)
	}
	shares := l.run("gpulab kubectl -n user-" + handle + " get pods -l gpulab.dev/notebook=plain -o 'jsonpath={.items[*].spec.hostUsers}'")
	maps := strings.Fields(kernel.Run("print(open('/proc/self/uid_map').read())"))
	own := len(maps) == 3 && maps[1] != "0"
	can := l.run(`printf '6.3\n%s\n' "$(uname -r)" | sort -VC && echo yes || echo no`) == "yes"
	if own != can || shares != fmt.Sprint(!can) {
		l.t.Errorf("on a kernel that can give user IDs (%t), the notebook has its own: %t; it is to share them: %q", can, own, shares)
	}
	// Its limit is made smaller, since the machine is small, too.
	l.run(`group=$(cut -d: -f3 /proc/$(pgrep -n -f '[i]pykernel_launcher')/cgroup); echo 900M >/sys/fs/cgroup$group/memory.max`)
	if out := kernel.Run("import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'x = bytearray(1 << 30)']).returncode)"); out != "-9" {
		l.t.Errorf("a program that ran out of memory ended with %q", out)
	}
	if out := kernel.Run("print('still here')"); out != "still here" {
		l.t.Errorf("after a program ran out of memory a cell printed %q", out)
	}
}

func without(lines []string, part string) (kept []string) {
	for _, line := range lines {
		if !strings.Contains(line, part) {
			kept = append(kept, line)
		}
	}
	return kept
}
