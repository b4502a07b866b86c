package power

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// logind's names on the bus.
const (
	loginName = "org.freedesktop.login1"
	loginPath = "/org/freedesktop/login1"
	inhibitIn = "org.freedesktop.login1.Manager.Inhibit"
)

// errNobody says that nothing on this machine puts it to sleep.
var errNobody = errors.New("this machine has no systemd-logind")

// systemBus is where D-Bus is unless the environment says otherwise.
const systemBus = "unix:path=/run/dbus/system_bus_socket"

// answerTime is how long logind may take.
const answerTime = 10 * time.Second

// inhibitor is a lock of logind's: it holds as long as its file is open somewhere, and
// so ends with this process, however that ends, unless somebody has a copy.
type inhibitor struct {
	conn *dbus.Conn // nil for a kept one
	lock *os.File
	// gone is closed when logind, who would have to honour the lock, is not the
	// same any more.
	gone chan struct{}
}

// kept is a lock that was asked for by another process; nil if there is none.
func kept(lock *os.File) *inhibitor {
	if lock == nil {
		return nil
	}
	return &inhibitor{lock: lock}
}

// isKept tells whether the lock is that of another process. Whether logind is still
// the one that gave it is not known then.
func (in *inhibitor) isKept() bool { return in.conn == nil }

// inhibit asks logind to keep the machine awake.
func inhibit(ctx context.Context, bus string, policy Policy, why string) (*inhibitor, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := connect(bus)
	if err != nil {
		return nil, err
	}
	in := &inhibitor{conn: conn, gone: make(chan struct{})}
	if err := in.watch(ctx); err != nil {
		in.release()
		return nil, err
	}
	what := "sleep:idle:handle-lid-switch"
	if policy == LidOpen {
		what = "sleep:idle"
	}
	var fd dbus.UnixFD
	err = conn.Object(loginName, loginPath).CallWithContext(ctx, inhibitIn, 0, what, "gpulab", why, "block").Store(&fd)
	if err != nil {
		in.release()
		return nil, explain(err)
	}
	in.lock = os.NewFile(uintptr(fd), "inhibitor")
	return in, nil
}

func connect(bus string) (*dbus.Conn, error) {
	if bus == "" {
		bus = os.Getenv("DBUS_SYSTEM_BUS_ADDRESS")
	}
	if bus == "" {
		bus = systemBus
	}
	if path, isPath := strings.CutPrefix(bus, "unix:path="); isPath {
		path, _, _ = strings.Cut(path, ",")
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return nil, errNobody
		}
	}
	conn, err := dbus.Connect(bus)
	if err != nil {
		return nil, fmt.Errorf("the system's D-Bus cannot be reached: %w", err)
	}
	return conn, nil
}

// watch closes in.gone when logind goes away or another takes its place.
func (in *inhibitor) watch(ctx context.Context) error {
	err := in.conn.AddMatchSignalContext(ctx, dbus.WithMatchSender("org.freedesktop.DBus"),
		dbus.WithMatchInterface("org.freedesktop.DBus"), dbus.WithMatchMember("NameOwnerChanged"),
		dbus.WithMatchArg(0, loginName))
	if err != nil {
		return fmt.Errorf("the system's D-Bus does not answer: %w", err)
	}
	signals := make(chan *dbus.Signal, 16) // closed with the connection
	in.conn.Signal(signals)
	go func() {
		defer close(in.gone)
		for s := range signals {
			// The service may be started by our own call: then there was none before.
			if before, ok := argument(s, 1); ok && before != "" {
				return
			}
		}
	}()
	return nil
}

func argument(s *dbus.Signal, i int) (string, bool) {
	if s.Name != "org.freedesktop.DBus.NameOwnerChanged" || len(s.Body) <= i {
		return "", false
	}
	text, ok := s.Body[i].(string)
	return text, ok
}

// lost tells whether the lock does not hold any more.
func (in *inhibitor) lost() bool {
	select {
	case <-in.gone:
		return true
	default:
		return false
	}
}

// release lets the machine sleep. A nil one holds nothing.
func (in *inhibitor) release() {
	if in == nil {
		return
	}
	if in.lock != nil {
		_ = in.lock.Close()
	}
	if in.conn != nil {
		_ = in.conn.Close()
	}
}

// explain tells a machine without logind from one whose logind refuses.
func explain(err error) error {
	var refused dbus.Error
	if errors.As(err, &refused) {
		switch refused.Name {
		case "org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner",
			"org.freedesktop.DBus.Error.Spawn.ExecFailed", "org.freedesktop.systemd1.NoSuchUnit",
			"org.freedesktop.DBus.Error.Spawn.ServiceNotFound":
			return errNobody
		}
	}
	return fmt.Errorf("systemd-logind refused to keep this machine awake: %w", err)
}
