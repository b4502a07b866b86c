// Package sftpd lets people bring files in and out over SFTP: a server for the SSH protocol that offers the
// subsystem sftp and nothing else, no shell, no commands, no forwarding.
//
// The server speaks SSH and decides who comes in. Each session's files are served by a process of its own
// (Child), in a mount namespace in which only that person's places exist, under the person's UID and without
// any right beyond it. So what keeps somebody to their own files is the kernel, not a check of paths here.
//
// Only cmd/gpulab may import it.
package sftpd

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/gpulab/gpulab/internal/peers"
	"github.com/gpulab/gpulab/internal/users"
)

// Accounts decide who comes in; users.Service implements it.
type Accounts interface {
	SignInForFiles(ctx context.Context, handle, secret, remote string) (users.FilesAccess, error)
	KeyForFiles(ctx context.Context, handle string, key []byte) (bool, error)
	SignInForFilesByKey(ctx context.Context, handle string, key []byte, remote string) (users.FilesAccess, error)
	StillForFiles(ctx context.Context, access users.FilesAccess) error
	OnSessionsEnded(func(userID int64, sessionID string))
	OnSignedOutElsewhere(func(userID int64))
}

// Place is a folder of this machine that somebody sees.
type Place struct {
	// Name is the folder's below "shared"; "" is the home.
	Name string `json:"name"`
	// Path is the folder on this machine.
	Path string `json:"path"`
	// ReadOnly places are mounted so. In a home it means that it is full: reading and deleting is possible still.
	ReadOnly bool `json:"readOnly"`
	// GID is a group that the person needs for the place beside their own, 0 for none.
	GID int `json:"gid"`
}

// Config wires a Server. Accounts, Places, HostKey and Command are required.
type Config struct {
	Accounts Accounts
	// Places lists what somebody sees, the home first, and makes sure that it is there.
	Places func(ctx context.Context, u users.User) ([]Place, error)
	// HostKey is how clients know the lab again; see LoadHostKey.
	HostKey ssh.Signer
	// Command runs Child in a process of its own.
	Command []string
	Log     *slog.Logger
	Limits  Limits
}

// Limits bound what the server takes, whatever comes. Zero values are the usual ones.
type Limits struct {
	// Waiting connections have not signed in yet: all, and those of one address.
	Waiting, WaitingEach int
	// Open connections have: all, and those of one person.
	Open, OpenEach int
	// SignIn is how long a connection has to sign in.
	SignIn time.Duration
	// Idle is how long a connection may stay without moving data.
	Idle time.Duration
	// Recheck is how often the server asks whether somebody may still be here, and where.
	Recheck time.Duration
	// Alive is how long a client has to answer that it is still there.
	Alive time.Duration
}

func (l Limits) orUsual() Limits {
	usual := Limits{Waiting: 200, WaitingEach: 40, Open: 96, OpenEach: 8, SignIn: 90 * time.Second,
		Idle: 30 * time.Minute, Recheck: 5 * time.Second, Alive: time.Minute}
	set := func(of *int, to int) {
		if *of == 0 {
			*of = to
		}
	}
	last := func(of *time.Duration, to time.Duration) {
		if *of == 0 {
			*of = to
		}
	}
	set(&l.Waiting, usual.Waiting)
	set(&l.WaitingEach, usual.WaitingEach)
	set(&l.Open, usual.Open)
	set(&l.OpenEach, usual.OpenEach)
	last(&l.SignIn, usual.SignIn)
	last(&l.Idle, usual.Idle)
	last(&l.Recheck, usual.Recheck)
	last(&l.Alive, usual.Alive)
	return l
}

// Server serves SFTP. Its methods may be called from any goroutine.
type Server struct {
	cfg     Config
	waiting *peers.Gate
	starter *starter

	mu   sync.Mutex
	open map[*connection]bool
}

// New makes a server; Serve runs it.
func New(cfg Config) (*Server, error) {
	if cfg.Accounts == nil || cfg.Places == nil || cfg.HostKey == nil || len(cfg.Command) == 0 {
		return nil, errors.New("sftpd: Accounts, Places, HostKey and Command are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Limits = cfg.Limits.orUsual()
	s := &Server{
		cfg: cfg, waiting: peers.NewGate(cfg.Limits.Waiting, cfg.Limits.WaitingEach), starter: newStarter(),
		open: map[*connection]bool{},
	}
	cfg.Accounts.OnSessionsEnded(func(userID int64, sessionID string) {
		if sessionID == "" { // of all there are
			s.Close(userID)
		}
	})
	cfg.Accounts.OnSignedOutElsewhere(func(userID int64) { s.Close(userID) })
	return s, nil
}

// Serve takes connections from ln until ctx ends, then ends them all and closes ln. It is called once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	running.Go(s.starter.run)
	defer running.Wait()
	defer s.starter.stop()
	var connections sync.WaitGroup
	defer connections.Wait()
	defer cancel()
	context.AfterFunc(ctx, func() { _ = ln.Close() })
	for {
		c, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			// Such as too many open files: it passes.
			s.cfg.Log.Warn("a connection for files was not taken", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		leave, ok := s.waiting.Enter(c.RemoteAddr().String())
		if !ok {
			_ = c.Close()
			continue
		}
		connections.Go(func() { s.handle(ctx, c, leave) })
	}
}

// Connection is one that is open, for its owner to recognise.
type Connection struct {
	Since  time.Time
	Remote string // the address, without port
	Client string // what the program calls itself, such as "OpenSSH_9.2"
	Way    string // by which they signed in, in words
}

// Connections lists what somebody has open, the oldest first.
func (s *Server) Connections(userID int64) []Connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []Connection{}
	for c := range s.open {
		if c.access.User.ID == userID {
			list = append(list, Connection{Since: c.since, Remote: c.remote, Client: c.client, Way: c.access.Way})
		}
	}
	slices.SortFunc(list, func(a, b Connection) int { return a.Since.Compare(b.Since) })
	return list
}

// Count is how many connections are open.
func (s *Server) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// Close ends all connections of a person at once, with what runs for them, and says how many there were.
func (s *Server) Close(userID int64) int {
	s.mu.Lock()
	var theirs []*connection
	for c := range s.open {
		if c.access.User.ID == userID {
			theirs = append(theirs, c)
		}
	}
	s.mu.Unlock()
	for _, c := range theirs {
		c.end()
	}
	return len(theirs)
}

// register counts a connection that signed in; the error is for its person.
func (s *Server) register(c *connection) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	each := 0
	for other := range s.open {
		if other.access.User.ID == c.access.User.ID {
			each++
		}
	}
	switch {
	case each >= s.cfg.Limits.OpenEach:
		return tooMany("You have %d connections for files open, and that is the most. Close one, or let your program use "+
			"fewer at once.", each)
	case len(s.open) >= s.cfg.Limits.Open:
		return tooMany("The lab has %d connections for files open, and that is the most. Try again in a few minutes.",
			len(s.open))
	}
	s.open[c] = true
	return nil
}

func (s *Server) unregister(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}
