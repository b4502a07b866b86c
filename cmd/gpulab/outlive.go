package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

// outliving are open files that outlive gpulab: systemd keeps them while it starts
// gpulab again (its file descriptor store, sd_notify(3)). With its listening sockets,
// whoever calls meanwhile waits a moment instead of being refused; JupyterLab tells
// people whose call was refused that their notebook does not run. With the lock that
// keeps it awake, the machine does not fall asleep meanwhile.
type outliving struct{ kept map[string]*os.File }

// stayAwakeLock is the name under which systemd keeps that lock.
const stayAwakeLock = "stay-awake"

// whatOutlived takes what systemd kept of the gpulab before. It can be had once.
func whatOutlived() outliving {
	o := outliving{map[string]*os.File{}}
	for _, f := range activation.Files(true) {
		if _, twice := o.kept[f.Name()]; twice { // it ended between keeping one and giving up the other
			_ = f.Close()
			continue
		}
		o.kept[f.Name()] = f
	}
	return o
}

// take is what was kept under a name, or nil. It is the caller's then.
func (o outliving) take(name string) *os.File {
	f := o.kept[name]
	delete(o.kept, name)
	return f
}

// listen listens at a TCP address, and lets systemd keep the socket.
func (o outliving) listen(address string) (net.Listener, error) {
	name := socketName(address)
	if f := o.take(name); f != nil {
		defer f.Close()
		ln, err := net.FileListener(f)
		if err == nil {
			return ln, nil
		}
		slog.Warn("a socket that systemd kept is of no use", "address", address, "err", err)
		giveUp(name)
	}
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	if err := keepFile(name, ln.(*net.TCPListener)); err != nil {
		slog.Warn("a restart will refuse connections for a moment", "address", address, "err", err)
	}
	return ln, nil
}

// giveUpRest closes what nobody has taken: the configuration has changed.
func (o outliving) giveUpRest() {
	for name, f := range o.kept {
		giveUp(name)
		_ = f.Close()
		delete(o.kept, name)
	}
}

func giveUp(name string) { notify("FDSTOREREMOVE=1\nFDNAME=" + name) }

// keepLock lets systemd keep the lock that keeps the machine awake, and no other;
// nil is for none.
func keepLock(lock *os.File) {
	giveUp(stayAwakeLock)
	if lock == nil {
		return
	}
	if err := keepFile(stayAwakeLock, lock); err != nil {
		slog.Warn("the machine may fall asleep while gpulab is started again", "err", err)
	}
}

// socketName is an address as the store takes names: without a colon.
func socketName(address string) string { return "tcp" + strings.ReplaceAll(address, ":", "_") }

// keepFile hands an open file to systemd; without systemd it does nothing.
func keepFile(name string, file syscall.Conn) error {
	to := os.Getenv("NOTIFY_SOCKET")
	if to == "" {
		return nil
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	// A connection of package net's sends no files once it is connected.
	conn, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("a socket to systemd: %w", err)
	}
	defer unix.Close(conn)
	var sent error
	err = raw.Control(func(fd uintptr) {
		sent = unix.Sendmsg(conn, []byte("FDSTORE=1\nFDNAME="+name), unix.UnixRights(int(fd)), &unix.SockaddrUnix{Name: to},
			0)
	})
	return errors.Join(err, sent)
}
