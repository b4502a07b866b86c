package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

// sockets are listening sockets that outlive gpulab: systemd keeps them while it
// starts gpulab again (its file descriptor store, sd_notify(3)), so that whoever
// calls meanwhile waits a moment instead of being refused. JupyterLab tells
// people whose call was refused that their notebook does not run.
type sockets struct{ kept map[string]*os.File }

// keptSockets takes what systemd kept of the gpulab before.
func keptSockets() sockets {
	s := sockets{map[string]*os.File{}}
	for _, f := range activation.Files(true) {
		s.kept[f.Name()] = f
	}
	return s
}

// listen listens at a TCP address, and lets systemd keep the socket.
func (s sockets) listen(address string) (net.Listener, error) {
	name := socketName(address)
	if f := s.kept[name]; f != nil {
		delete(s.kept, name)
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
	if err := keepSocket(name, ln.(*net.TCPListener)); err != nil {
		slog.Warn("a restart will refuse connections for a moment", "address", address, "err", err)
	}
	return ln, nil
}

// giveUpRest closes what nobody has listened on: the configuration has changed.
func (s sockets) giveUpRest() {
	for name, f := range s.kept {
		giveUp(name)
		_ = f.Close()
		delete(s.kept, name)
	}
}

func giveUp(name string) { notify("FDSTOREREMOVE=1\nFDNAME=" + name) }

// socketName is an address as the store takes names: without a colon.
func socketName(address string) string { return "tcp" + strings.ReplaceAll(address, ":", "_") }

// keepSocket hands a socket to systemd; without systemd it does nothing.
func keepSocket(name string, ln *net.TCPListener) error {
	to := os.Getenv("NOTIFY_SOCKET")
	if to == "" {
		return nil
	}
	raw, err := ln.SyscallConn()
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
		sent = unix.Sendmsg(conn, []byte("FDSTORE=1\nFDNAME="+name), unix.UnixRights(int(fd)), &unix.SockaddrUnix{Name: to}, 0)
	})
	return errors.Join(err, sent)
}
