//go:build deb

package deb

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// TestPackageRollback is the life of a machine whose upgrade somebody takes back, and
// makes again, with a kernel at work all the while.
//
//test:about packaging/deb internal/upgrade
func TestPackageRollback(t *testing.T) {
	packages := quick(t)
	newer := newer(t, newerVersion, "newer-form", func() string { return lab.Newer(t, newerVersion) })
	l := &life{machine: boot(t)}
	l.put(packages, "/old")
	l.put(newer, "/new")
	l.install, l.upgrade = "apt-get -q -y install /old/*.deb", "apt-get -q -y install /new/*.deb"
	older := ""
	l.tell(t, []chapter{
		{"install", (*life).installed},
		{"first cell", (*life).firstCell},
		{"restart", func(l *life) { older = l.inUse(); l.restarted() }},
		{"upgrade", (*life).upgraded},
		{"downgrade", (*life).downgrade},
		{"rollback", func(l *life) { l.change("gpulab rollback --yes", older) }},
		{"forth again", func(l *life) { l.change("gpulab rollback --yes", newerVersion) }},
		{"killed", func(l *life) { l.killedRollbacks(older) }},
		{"reinstall", func(l *life) { l.reinstall(older) }},
		{"purge", (*life).purged},
	})
}

// inUse is the version of the gpulab that serves the lab.
func (l *life) inUse() string {
	l.t.Helper()
	return l.run(`gpulab status --json | sed -n 's/^  "version": "\(.*\)",$/\1/p'`)
}

// downgrade: a package that could not read the database is refused before
// anything changes, with the way that leads back.
func (l *life) downgrade() {
	processes := l.run(notebooks)
	out, err := l.try("apt-get -q -y --allow-downgrades install /old/*.deb")
	if err == nil || !strings.Contains(out, "sudo gpulab rollback") {
		l.t.Errorf("a downgrade: %v\n%s", err, out)
	}
	l.run(l.upgrade) // apt may have unpacked the images
	l.ready(time.Minute)
	if now := l.inUse(); now != newerVersion {
		l.t.Errorf("after a refused downgrade gpulab %s serves the lab", now)
	}
	l.sameNotebooks(processes)
	l.longestPause("a refused downgrade")
}

// change has a command lead to a version, while the kernel counts.
func (l *life) change(script, to string) {
	l.t.Helper()
	processes := l.run(notebooks)
	began := time.Now()
	l.t.Log(l.run(script))
	l.t.Logf("changed after %s", time.Since(began).Round(time.Second))
	l.ready(time.Minute)
	if now := l.inUse(); now != to {
		l.t.Errorf("gpulab %s serves the lab, want %s", now, to)
	}
	l.longestPause("the way to " + to)
	l.sameNotebooks(processes)
	if bad := l.run("dpkg --audit; dpkg --verify gpulab gpulab-images"); bad != "" {
		l.t.Errorf("the packages are not whole:\n%s", bad)
	}
}

// killedRollbacks: all of gpulab and k3s is killed at random moments of a
// rollback or the way forth. The next start has one of both versions.
func (l *life) killedRollbacks(older string) {
	processes := l.run(notebooks)
	l.browser = l.browser.Overwrites()
	for range 6 {
		ctx, cancel := context.WithCancel(context.Background())
		command := l.command(ctx, "gpulab rollback --yes")
		if err := command.Start(); err != nil {
			l.t.Fatal(err)
		}
		after := time.Duration(rand.Int64N(int64(l.patience(8 * time.Second))))
		time.Sleep(after)
		l.run("pkill -KILL -x 'gpulab|k3s|k3s-server|containerd' || true")
		_ = command.Wait()
		cancel()
		l.run("systemctl reset-failed gpulab; systemctl start gpulab")
		l.ready(2 * time.Minute)
		now := l.inUse()
		l.t.Logf("killed after %s: gpulab %s", after.Round(10*time.Millisecond), now)
		if now != older && now != newerVersion {
			l.t.Errorf("gpulab %s serves the lab", now)
		}
		l.longestPause("a killed rollback")
	}
	l.sameNotebooks(processes)
}

// reinstall: whoever installs a version wants that one, also after a rollback.
func (l *life) reinstall(older string) {
	if l.inUse() == newerVersion {
		l.change("gpulab rollback --yes", older)
	}
	if out := l.run("gpulab version"); !strings.Contains(out, "gpulab "+newerVersion) || !strings.Contains(out, "runs gpulab "+older) {
		l.t.Errorf("after a rollback gpulab version says:\n%s", out)
	}
	l.change("apt-get -q -y install --reinstall /new/*.deb", newerVersion)
}
