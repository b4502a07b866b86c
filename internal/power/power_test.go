package power

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// busConfig is a bus on which everybody may do everything, as root may on the
// system's.
const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path=%s</listen>
  <auth>EXTERNAL</auth>
  <policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy>
</busconfig>`

// startBus starts Debian's D-Bus on a socket of the test's own.
func startBus(t *testing.T) (address string) {
	t.Helper()
	program, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Fatal("there is no dbus-daemon: run packaging/prerequisites.sh test")
	}
	folder, err := os.MkdirTemp("/tmp", "bus") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	socket, config := filepath.Join(folder, "bus"), filepath.Join(folder, "bus.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, busConfig, socket), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config-file", config, "--nofork", "--nopidfile", "--nosyslog")
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("dbus-daemon: %s", said.String())
		}
	})
	waitUntil(t, "the bus answers", func() bool {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return "unix:path=" + socket
}

// logind is a login1 service that hands out locks as the real one does: a lock
// is one end of a pipe, and holds until everybody has closed the other.
type logind struct {
	conn *dbus.Conn

	mu     sync.Mutex
	refuse string
	locks  []*lock
}

type lock struct {
	what, who, why, mode string
	open                 atomic.Bool
}

// Inhibit is org.freedesktop.login1.Manager.Inhibit.
func (l *logind) Inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refuse != "" {
		return 0, dbus.NewError(l.refuse, []any{"Permission denied"})
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	k := &lock{what: what, who: who, why: why, mode: mode}
	k.open.Store(true)
	ours, theirs := os.NewFile(uintptr(ends[0]), "lock"), os.NewFile(uintptr(ends[1]), "lock")
	go func() {
		_, _ = ours.Read(make([]byte, 1)) // until the last one of the other end is closed
		k.open.Store(false)
		_ = ours.Close()
	}()
	l.locks = append(l.locks, k)
	// The library sends a copy once this returns; ours must not stay open.
	time.AfterFunc(500*time.Millisecond, func() { _ = theirs.Close() })
	return dbus.UnixFD(ends[1]), nil
}

// answer has it refuse with this name of an error; "" is to refuse nobody.
func (l *logind) answer(refuse string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = refuse
}

func (l *logind) held() []*lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*lock
	for _, k := range l.locks {
		if k.open.Load() {
			list = append(list, k)
		}
	}
	return list
}

func startLogind(t *testing.T, bus string) *logind {
	t.Helper()
	conn, err := dbus.Connect(bus)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	l := &logind{conn: conn}
	if err := conn.Export(l, loginPath, "org.freedesktop.login1.Manager"); err != nil {
		t.Fatal(err)
	}
	if reply, err := conn.RequestName(loginName, dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("the name on the bus: %v %v", reply, err)
	}
	return l
}

func waitUntil(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not after 30 s: %s", what)
		}
	}
}

// keep runs a keeper until the test ends, or stop is called.
func keep(t *testing.T, cfg Config) (k *Keeper, stop func()) {
	t.Helper()
	cfg.Every, cfg.Retry, cfg.Log = 10*time.Millisecond, 20*time.Millisecond, slog.New(slog.DiscardHandler)
	k = New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return k, stop
}

// notebooks is how many of them run.
func notebooks(n *atomic.Int64) func(context.Context) (int, error) {
	return func(context.Context) (int, error) { return int(n.Load()), nil }
}

// TestStayAwake: while notebooks run, and only then, logind holds a lock of ours.
func TestStayAwake(t *testing.T) {
	bus := startBus(t)
	login := startLogind(t, bus)
	var n atomic.Int64
	k, stop := keep(t, Config{Busy: notebooks(&n), Bus: bus})
	time.Sleep(100 * time.Millisecond)
	if got := login.held(); len(got) != 0 || k.State().Held {
		t.Fatalf("without notebooks %d locks are held, state %+v", len(got), k.State())
	}
	n.Store(2)
	waitUntil(t, "a lock is held", func() bool { return len(login.held()) == 1 && k.State().Held })
	got := login.held()[0]
	if got.what != "sleep:idle:handle-lid-switch" || got.who != "gpulab" || got.why != "2 notebooks run" || got.mode != "block" {
		t.Errorf("the lock is %s by %s because %s, mode %s", got.what, got.who, got.why, got.mode)
	}
	// The copies in flight are gone, and it still holds.
	time.Sleep(time.Second)
	if len(login.held()) != 1 {
		t.Fatal("the lock was let go while notebooks run")
	}
	n.Store(0)
	waitUntil(t, "the lock is let go", func() bool { return len(login.held()) == 0 && !k.State().Held })

	n.Store(1)
	waitUntil(t, "it is held again", func() bool { return len(login.held()) == 1 })
	stop()
	waitUntil(t, "it ends with gpulab", func() bool { return len(login.held()) == 0 })
}

// TestRestart: while gpulab is started again, the lock holds that was kept, also when
// it is not known yet what runs; then the next gpulab's own takes its place.
func TestRestart(t *testing.T) {
	bus := startBus(t)
	login := startLogind(t, bus)
	var store keptLock
	t.Cleanup(func() { store.keep(nil) })
	var n atomic.Int64
	n.Store(1)
	_, stop := keep(t, Config{Busy: notebooks(&n), Bus: bus, Keep: store.keep})
	waitUntil(t, "a lock is held", func() bool { return len(login.held()) == 1 })
	time.Sleep(time.Second) // the copies in flight are gone
	stop()
	time.Sleep(100 * time.Millisecond)
	first := login.held()
	if len(first) != 1 {
		t.Fatalf("%d locks are held while nobody runs", len(first))
	}

	var known atomic.Bool
	var asked atomic.Int64
	busy := func(context.Context) (int, error) {
		asked.Add(1)
		if !known.Load() {
			return 0, errors.New("starting")
		}
		return int(n.Load()), nil
	}
	k, stop := keep(t, Config{Busy: busy, Bus: bus, Kept: store.copy(t), Keep: store.keep})
	waitUntil(t, "it was asked", func() bool { return asked.Load() > 3 })
	if got := login.held(); len(got) != 1 || got[0] != first[0] || k.State() != (State{Held: true}) {
		t.Fatalf("before it is known what runs %d locks are held, state %+v", len(got), k.State())
	}
	known.Store(true)
	waitUntil(t, "its own is held alone", func() bool { got := login.held(); return len(got) == 1 && got[0] != first[0] })
	if k.State() != (State{Held: true, Notebooks: 1}) {
		t.Errorf("state %+v", k.State())
	}
	time.Sleep(time.Second)
	stop()
	time.Sleep(100 * time.Millisecond)
	if got := login.held(); len(got) != 1 {
		t.Fatalf("%d locks are held after the second, too", len(got))
	}

	// Where nothing is to keep it awake any more, that counts at once.
	known.Store(false)
	k, stop = keep(t, Config{Busy: busy, Bus: bus, Kept: store.copy(t), Keep: store.keep, Policy: Never})
	waitUntil(t, "nothing holds it", func() bool { return len(login.held()) == 0 && !k.State().Held })
	stop()
	known.Store(true)
	k, stop = keep(t, Config{Busy: busy, Bus: bus, Keep: store.keep})
	waitUntil(t, "its own is held", func() bool { return k.State().Held })
	time.Sleep(time.Second)
	stop()

	// The notebook ended meanwhile.
	n.Store(0)
	k, _ = keep(t, Config{Busy: busy, Bus: bus, Kept: store.copy(t), Keep: store.keep})
	waitUntil(t, "nothing holds it", func() bool { return len(login.held()) == 0 && !k.State().Held })
}

// keptLock is kept outside of a keeper, as systemd does.
type keptLock struct {
	mu   sync.Mutex
	lock *os.File
}

func (s *keptLock) keep(lock *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock != nil {
		_ = s.lock.Close()
		s.lock = nil
	}
	if lock == nil {
		return
	}
	if fd, err := unix.FcntlInt(lock.Fd(), unix.F_DUPFD_CLOEXEC, 0); err == nil {
		s.lock = os.NewFile(uintptr(fd), "kept")
	}
}

// copy is what the next one gets of it.
func (s *keptLock) copy(t *testing.T) *os.File {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		t.Fatal("no lock was kept")
	}
	fd, err := unix.FcntlInt(s.lock.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "copy")
}

// TestUnknownIsAsBefore: while nobody knows how many notebooks run, nothing changes.
func TestUnknownIsAsBefore(t *testing.T) {
	bus := startBus(t)
	login := startLogind(t, bus)
	var unknown atomic.Bool
	var asked atomic.Int64
	keep(t, Config{Bus: bus, Busy: func(context.Context) (int, error) {
		asked.Add(1)
		if unknown.Load() {
			return 0, errors.New("the database is busy")
		}
		return 1, nil
	}})
	waitUntil(t, "a lock is held", func() bool { return len(login.held()) == 1 })
	unknown.Store(true)
	before := asked.Load()
	waitUntil(t, "it was asked again", func() bool { return asked.Load() > before+10 })
	if len(login.held()) != 1 {
		t.Error("the lock was let go")
	}
}

// TestLogindAgain: a logind that was started anew knows nothing of the lock.
func TestLogindAgain(t *testing.T) {
	bus := startBus(t)
	first := startLogind(t, bus)
	var n atomic.Int64
	n.Store(1)
	k, _ := keep(t, Config{Busy: notebooks(&n), Bus: bus})
	waitUntil(t, "a lock is held", func() bool { return len(first.held()) == 1 })
	if err := first.conn.Close(); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "nothing holds it", func() bool { return !k.State().Held })
	if p := k.State().Problem; p != "" {
		t.Errorf("without logind: %s", p)
	}
	second := startLogind(t, bus)
	waitUntil(t, "the new one holds it", func() bool { return len(second.held()) == 1 && k.State().Held })
}

func TestPolicies(t *testing.T) {
	bus := startBus(t)
	login := startLogind(t, bus)
	var n atomic.Int64
	n.Store(1)
	k, stop := keep(t, Config{Busy: notebooks(&n), Bus: bus, Policy: LidOpen})
	waitUntil(t, "a lock is held", func() bool { return len(login.held()) == 1 && k.State().Held })
	if got := login.held()[0]; got.what != "sleep:idle" || got.why != "a notebook runs" || !k.State().LidCloses {
		t.Errorf("the lock is %s because %s, state %+v", got.what, got.why, k.State())
	}
	stop()
	waitUntil(t, "it is let go", func() bool { return len(login.held()) == 0 })
	k, _ = keep(t, Config{Busy: notebooks(&n), Bus: bus, Policy: Never})
	waitUntil(t, "it has looked", func() bool { return k.State().Notebooks == 1 })
	if len(login.held()) != 0 || k.State().Held || k.State().Problem != "" {
		t.Errorf("turned off, it holds %d locks, state %+v", len(login.held()), k.State())
	}
}

// TestNobodyAndRefused: where nothing puts a machine to sleep there is nothing
// to say; where logind refuses, there is.
func TestNobodyAndRefused(t *testing.T) {
	var n atomic.Int64
	n.Store(1)
	bus := startBus(t) // without logind
	for _, at := range []string{"unix:path=/nowhere/bus", bus} {
		k, stop := keep(t, Config{Busy: notebooks(&n), Bus: at})
		waitUntil(t, "it has looked", func() bool { return k.State().Notebooks == 1 })
		if s := k.State(); s.Held || s.Problem != "" {
			t.Errorf("%s: %+v", at, s)
		}
		stop()
	}
	login := startLogind(t, bus)
	login.answer("org.freedesktop.DBus.Error.AccessDenied")
	k, _ := keep(t, Config{Busy: notebooks(&n), Bus: bus})
	waitUntil(t, "it says so", func() bool { return strings.Contains(k.State().Problem, "Permission denied") })
	login.answer("")
	waitUntil(t, "it is held once logind allows it", func() bool { return k.State().Held && k.State().Problem == "" })
}

// clock is a machine's clocks that a test puts to sleep.
type clock struct {
	mu     sync.Mutex
	wall   time.Time
	asleep time.Duration
}

func (c *clock) now() (time.Time, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall, c.asleep
}

func (c *clock) pass(wall, asleep time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall, c.asleep = c.wall.Add(wall), c.asleep+asleep
}

// TestSlept: what the two clocks make of a night, of a moment, and of a clock
// that is set.
func TestSlept(t *testing.T) {
	c := &clock{wall: time.Date(2026, 11, 20, 22, 10, 0, 0, time.UTC), asleep: 3 * time.Hour} // of last week
	var got []Sleep
	k := New(Config{Busy: func(context.Context) (int, error) { return 0, nil }, Clock: c.now, Slept: func(s Sleep) { got = append(got, s) }, Log: slog.New(slog.DiscardHandler)})
	_, before := c.now()
	look := func() { before = k.lookForSleep(before) }
	look()
	c.pass(9*time.Hour+53*time.Minute+time.Second, 9*time.Hour+53*time.Minute)
	look()
	look()
	c.pass(time.Hour, 0) // awake, or set by hand
	look()
	c.pass(time.Second, time.Second)
	look()
	if len(got) != 1 {
		t.Fatalf("sleeps: %v, want one", got)
	}
	if want := time.Date(2026, 11, 20, 22, 10, 1, 0, time.UTC); !got[0].From.Equal(want) || got[0].Lasted() != 9*time.Hour+53*time.Minute {
		t.Errorf("asleep from %s for %s, want from %s", got[0].From, got[0].Lasted(), want)
	}
}

func TestSystemClock(t *testing.T) {
	_, first := SystemClock()
	_, second := SystemClock()
	if first < 0 || second-first > time.Second || second < first-time.Millisecond {
		t.Errorf("slept for %s, then for %s", first, second)
	}
}
