package supervise

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// record is what PIDFile holds: enough to tell our child from a stranger that
// got the same process number later.
type record struct {
	PID int `json:"pid"`
	// Start is the process's start time in clock ticks since boot
	// (proc_pid_stat(5), field 22).
	Start string `json:"start"`
	// Boot tells reboots apart.
	Boot string `json:"boot"`
	// Command identifies Path, Args and environment.
	Command string `json:"command"`
}

// process is a running child, own or adopted.
type process struct {
	pid   int
	since time.Time
	done  chan struct{}
	err   error
}

func (p *process) exit() error { return p.err }

// stop ends the process: SIGTERM, then after timeout SIGKILL.
func (p *process) stop(group bool, timeout time.Duration) {
	target := p.pid
	if group {
		target = -p.pid
	}
	_ = syscall.Kill(target, syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(timeout):
		_ = syscall.Kill(target, syscall.SIGKILL)
		<-p.done
	}
	if group { // whatever of the group outlived its leader
		_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	}
}

// settleLeftover adopts or ends the process a killed owner left behind.
func (c *Child) settleLeftover() (*process, error) {
	if c.spec.PIDFile == "" {
		return nil, nil
	}
	data, err := os.ReadFile(c.spec.PIDFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.spec.Name, err)
	}
	var r record
	if json.Unmarshal(data, &r) != nil || r.Boot != bootID() || startTicks(r.PID) != r.Start || r.Start == "" {
		removeFile(c.spec.PIDFile)
		return nil, nil
	}
	p := watch(r.PID)
	if c.spec.Adopt && r.Command == c.command() {
		slog.Info("taking over the running process", "child", c.spec.Name, "pid", r.PID)
		return p, nil
	}
	slog.Info("ending the process an earlier run left behind", "child", c.spec.Name, "pid", r.PID)
	p.stop(c.spec.KillGroup, c.spec.StopTimeout)
	removeFile(c.spec.PIDFile)
	return nil, nil
}

// watch observes a process that is not our child.
func watch(pid int) *process {
	start := startTicks(pid)
	p := &process{
		pid: pid, since: startTime(start), done: make(chan struct{}),
		err: errors.New("ended (it was started by an earlier run, so its exit code is unknown)"),
	}
	go func() {
		defer close(p.done)
		for startTicks(pid) == start && start != "" {
			time.Sleep(200 * time.Millisecond)
		}
	}()
	return p
}

// record writes PIDFile atomically.
func (c *Child) record(pid int) error {
	if c.spec.PIDFile == "" {
		return nil
	}
	data, err := json.Marshal(record{PID: pid, Start: startTicks(pid), Boot: bootID(), Command: c.command()})
	if err != nil {
		return err
	}
	tmp := c.spec.PIDFile + ".tmp"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, c.spec.PIDFile)
}

// command is a digest of what the child is started with.
func (c *Child) command() string {
	sum := sha256.Sum256([]byte(strings.Join(append(append([]string{c.spec.Path}, c.spec.Args...), c.spec.Env...),
		"\x00")))
	return hex.EncodeToString(sum[:8])
}

// startTicks returns field 22 of /proc/PID/stat, "" when there is no such
// process or it is a zombie.
func startTicks(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The command name, in parentheses, may hold anything: count from its end.
	rest := string(data[strings.LastIndexByte(string(data), ')')+1:])
	f := strings.Fields(rest)
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return ""
	}
	return f[19]
}

// startTime is when a process with these startTicks began, by the clock of now.
func startTime(ticks string) time.Time {
	const perSecond = 100 // USER_HZ, which is the same on every Linux that Go runs on
	now := time.Now()
	var up unix.Timespec // since boot, as the ticks are
	n, err := strconv.ParseInt(ticks, 10, 64)
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return now
	}
	return now.Add(time.Duration(n)*time.Second/perSecond - time.Duration(up.Nano()))
}

func bootID() string {
	data, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data))
}

func removeFile(path string) {
	if path == "" {
		return
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		slog.Warn("a process file could not be removed", "path", path, "err", err)
	}
}
