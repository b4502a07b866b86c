package simdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Run keeps the simulated GPUs alive until ctx ends: it rewrites their state
// once a second. It fails at once if root is not installed or another Run has
// it. Without Run the GPUs stay as they were last.
func Run(ctx context.Context, root string) error {
	unlock, err := lockRoot(root)
	if err != nil {
		return err
	}
	defer unlock()
	k, err := newKernel(root)
	if err != nil {
		return fmt.Errorf("the simulated driver in %s cannot run: %w", root, err)
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	failing := false
	for {
		err := k.step(time.Now())
		if err != nil && !failing { // once, not once a second
			slog.Warn("the simulated GPUs could not be moved", "root", root, "err", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// kernel is the simulated driver's kernel side.
type kernel struct {
	root   string
	state  state
	models []*gpuModel
	scan   *scanner
	script scriptReader
	last   time.Time
}

func newKernel(root string) (*kernel, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	k := &kernel{root: root, last: time.Now(), script: scriptReader{path: ScriptFile(root)}}
	if k.state, err = readState(StateFile(root)); err != nil {
		return nil, fmt.Errorf("%w: install it first", err)
	}
	if k.state.pidNamespace, err = os.Readlink("/proc/self/ns/pid"); err != nil {
		return nil, err
	}
	forgetOldLog(KernelLog(root))
	var uuids []string
	for i := range k.state.gpus {
		k.models = append(k.models, newGPUModel(&k.state.gpus[i]))
		uuids = append(uuids, k.state.gpus[i].uuid)
	}
	k.scan, err = newScanner(root, uuids)
	return k, err
}

// step moves everything to now and writes it down.
func (k *kernel) step(now time.Time) error {
	dt := min(now.Sub(k.last), 5*time.Second) // a machine that slept has not worked
	k.last = now
	users, scanErr := k.scan.scan(now, dt)
	timeline, scriptErr := k.script.read()
	faults, faultErr := readFaults(faultsFile(k.root))
	if faultErr == nil {
		k.state.replay(timeline, faults, now)
	}
	limits, limitsErr := readLimits(limitsDir(k.root))
	for i, m := range k.models {
		k.state.gpus[i].limits = limits[k.state.gpus[i].uuid]
		var on []user
		for _, u := range users {
			if slices.Contains(u.gpus, i) {
				on = append(on, u)
			}
		}
		m.step(&k.state.gpus[i], on, dt)
	}
	// The driver logs an error before it tells of it.
	logErr := writeKernelLog(KernelLog(k.root), k.state.logged, k.state.gpus)
	k.state.logged = nil
	return errors.Join(scanErr, scriptErr, faultErr, limitsErr, logErr, writeState(StateFile(k.root), k.state))
}

// lockRoot makes sure that one process at a time writes the state.
func lockRoot(root string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(stateDir(root), "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the simulated driver is not installed in %s: %w", root, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("another process runs the simulated driver in %s already", root)
	}
	return func() { _ = f.Close() }, nil
}
