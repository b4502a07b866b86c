package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/gpulab/gpulab/assets"
	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/supervise"
)

func haveBundle() error {
	if _, ok := assets.Bundle(); !ok {
		return embedk8s.ErrNoBundle
	}
	return nil
}

// startService makes sure that a daemon of this very program, configuration
// and images runs, and says whether it had to start one. A daemon whose start
// failed is replaced by one that tries again.
func startService(ctx context.Context, a *app, cfg config.Config) (bool, error) {
	inputs, err := cfg.Inputs()
	if err != nil {
		return false, err
	}
	return startDaemon(ctx, a, cfg, inputs)
}

// startDaemon is startService for a daemon that is known by what it was started
// with.
func startDaemon(ctx context.Context, a *app, cfg config.Config, inputs string) (bool, error) {
	exe, err := os.Executable()
	if err != nil {
		return false, err
	}
	running, current := daemonState(ctx, a, exe, inputs)
	if running && current {
		return false, nil
	}
	if haveSystemd() {
		front, err := frontProgram(cfg)
		if err != nil {
			return false, err
		}
		if err := (systemd{"/"}).start(ctx, invocation{front, a.configPath, a.socket}); err != nil {
			return false, err
		}
		return true, waitDaemon(ctx, a, nil, "journalctl -u gpulab")
	}
	// One that does not answer may be on its way out.
	if err := stopDaemon(ctx, a); err != nil {
		return false, err
	}
	return true, startDetached(ctx, a, cfg, exe)
}

// errEnough ends a watch after its first message.
var errEnough = errors.New("enough")

// daemonState tells whether a daemon answers, and whether it is the one that
// would be started now.
func daemonState(ctx context.Context, a *app, exe, inputs string) (running, current bool) {
	var b ctl.Boot
	if err := a.client().WatchBoot(ctx, func(now ctl.Boot) error {
		b = now
		return errEnough
	}); !errors.Is(err, errEnough) {
		return false, false
	}
	pid, err := daemonPID(a)
	if err != nil || b.Failed != "" || b.Inputs != inputs {
		return true, false
	}
	mine, err1 := os.Stat(exe)
	theirs, err2 := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	return true, err1 == nil && err2 == nil && os.SameFile(mine, theirs)
}

// daemonPID reads who holds the daemon's lock. A daemon that is ending holds it
// when its socket is closed already; a number left by one that is gone may be
// another program's by now.
func daemonPID(a *app) (int, error) {
	f, err := os.Open(a.socket + ".pid")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		return 0, errors.New("no daemon runs")
	}
	var pid int
	if _, err := fmt.Fscan(f, &pid); err != nil || pid < 2 {
		return 0, errors.New("the daemon's process number is not known")
	}
	return pid, nil
}

// stopDaemon ends the running daemon in order; pods keep running.
func stopDaemon(ctx context.Context, a *app) error {
	pid, err := daemonPID(a)
	if err != nil {
		return nil //nolint:nilerr // no daemon
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return nil //nolint:nilerr // it is gone
	}
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err := syscall.Kill(pid, 0); err != nil {
			return nil //nolint:nilerr // gone
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return fmt.Errorf("the running gpulab (process %d) did not end within 60 s; end it and try again", pid)
}

// startDetached starts a daemon where there is no systemd.
func startDetached(ctx context.Context, a *app, cfg config.Config, exe string) error {
	path := logPath(cfg)
	log, err := supervise.OpenLog(path)
	if err != nil {
		return fmt.Errorf("the log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(exe, "serve", "--config", a.configPath, "--socket", a.socket)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.Env = withoutProxy(os.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var before int64
	if info, err := log.Stat(); err == nil {
		before = info.Size()
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("gpulab could not be started: %w", err)
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		ended <- fmt.Errorf("gpulab could not start: %s (%w; whole log: %s)", lastWords(path, before), err, path)
	}()
	return waitDaemon(ctx, a, ended, path)
}

// keepOwnLog keeps the log small that a daemon without systemd writes to.
func keepOwnLog(ctx context.Context, cfg config.Config) {
	mine, err := os.Stderr.Stat()
	if err != nil {
		return
	}
	if log, err := os.Stat(logPath(cfg)); err == nil && os.SameFile(mine, log) {
		supervise.KeepLogSmall(logPath(cfg), ctx.Done())
	}
}

// waitDaemon waits for the daemon's socket.
func waitDaemon(ctx context.Context, a *app, ended <-chan error, log string) error {
	deadline := time.After(60 * time.Second)
	for {
		if _, err := a.client().Status(ctx); err == nil {
			return nil
		} else if !errors.Is(err, ctl.ErrNotRunning) && ctx.Err() == nil {
			return err
		}
		select {
		case err := <-ended:
			return err
		case <-deadline:
			return fmt.Errorf("gpulab did not answer within 60 s; see %s", log)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// lastWords returns what the daemon wrote from offset on, without its own name
// before the sentence that ended it.
func lastWords(path string, offset int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return ""
	}
	data, _ := io.ReadAll(io.LimitReader(f, 64<<10))
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.TrimPrefix(lines[len(lines)-1], "gpulab: ")
}
