//go:build deb && vm

package deb

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestVM is TestMachine's story in a virtual machine: with a kernel of Debian's
// own, control groups version 2 and AppArmor, and from the apt repository.
func TestVM(t *testing.T) {
	packages, newer, served := current(t), t.TempDir(), filepath.Join(t.TempDir(), "apt")
	buildVersion(t, newer, newerVersion)
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

func without(lines []string, part string) (kept []string) {
	for _, line := range lines {
		if !strings.Contains(line, part) {
			kept = append(kept, line)
		}
	}
	return kept
}
