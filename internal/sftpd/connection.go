package sftpd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/gpulab/gpulab/internal/peers"
	"github.com/gpulab/gpulab/internal/users"
)

// maxTries of passwords and keys in one connection: programs offer every key they have before they ask for a
// password. What passwords somebody may try at all is for Accounts to say.
const maxTries = 20

// sessionsEach is how many sessions one connection may have open.
const sessionsEach = 4

// connection is one that signed in.
type connection struct {
	server *Server
	net    net.Conn
	ssh    *ssh.ServerConn
	access users.FilesAccess
	since  time.Time
	remote string
	client string
	moved  atomic.Int64 // unix time of the last data, in nanoseconds

	mu       sync.Mutex
	ended    bool
	sessions map[*session]bool
}

// handle takes one connection from its first byte to its last.
func (s *Server) handle(ctx context.Context, c net.Conn, leave func()) {
	defer leave()
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	_ = c.SetDeadline(time.Now().Add(s.cfg.Limits.SignIn))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	address, _ := peers.Address(c.RemoteAddr().String())
	conn := &connection{server: s, net: c, remote: address.String(), sessions: map[*session]bool{}}
	var channels <-chan ssh.NewChannel
	var requests <-chan *ssh.Request
	var err error
	if conn.ssh, channels, requests, err = ssh.NewServerConn(c, conn.config(ctx)); err != nil {
		return // whatever it was, the other end knows, and failed sign-ins are in the audit log
	}
	leave()
	_ = c.SetDeadline(time.Time{})
	conn.since, conn.client = time.Now(), clientWords(conn.ssh.ClientVersion())
	conn.touch()
	defer conn.end()
	go ssh.DiscardRequests(requests) // forwarding of ports, above all
	if err := s.register(conn); err != nil {
		conn.turnAway(channels, err)
		return
	}
	defer s.unregister(conn)
	// Whoever was suspended while they signed in was not yet counted when connections were closed for it.
	if err := s.cfg.Accounts.StillForFiles(ctx, conn.access); err != nil {
		return
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { conn.watch(ctx) })
	watching.Go(func() { conn.keepAlive(ctx) })
	conn.serve(ctx, channels)
}

// clientWords is what a program calls itself, short and harmless.
func clientWords(version []byte) string {
	name := strings.TrimPrefix(string(version), "SSH-2.0-")
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, name)
	return name[:min(len(name), 60)]
}

// config is how one connection signs in. Each has its own, since it carries who that is.
func (c *connection) config(ctx context.Context) *ssh.ServerConfig {
	accounts := c.server.cfg.Accounts
	config := &ssh.ServerConfig{
		ServerVersion: "SSH-2.0-gpulab",
		MaxAuthTries:  maxTries,
		PasswordCallback: func(meta ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
			access, err := accounts.SignInForFiles(ctx, meta.User(), string(password), c.remote)
			if err != nil {
				return nil, c.refused(err)
			}
			c.access = access
			return &ssh.Permissions{}, nil
		},
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			ok, err := accounts.KeyForFiles(ctx, meta.User(), key.Marshal())
			if err != nil {
				return nil, c.refused(err)
			}
			if !ok {
				return nil, errors.New("not a key of that account")
			}
			return &ssh.Permissions{}, nil
		},
		VerifiedPublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey, p *ssh.Permissions,
			_ string) (*ssh.Permissions, error) {
			access, err := accounts.SignInForFilesByKey(ctx, meta.User(), key.Marshal(), c.remote)
			if err != nil {
				return nil, c.refused(err)
			}
			c.access = access
			return p, nil
		},
	}
	config.AddHostKey(c.server.cfg.HostKey)
	return config
}

// refused tells the person why, where there is more to say than that it was wrong.
func (c *connection) refused(err error) error {
	text, ok := users.Message(err)
	switch {
	case !ok:
		c.server.cfg.Log.Error("a sign-in for files", "err", err)
		return errors.New("the lab cannot check it at the moment")
	case errors.Is(err, users.ErrBadCredentials):
		return err
	}
	return &ssh.BannerError{Err: err, Message: text + "\r\n"}
}

// turnAway says why there is no room, in the answer to the first thing that the client wants.
func (c *connection) turnAway(channels <-chan ssh.NewChannel, why error) {
	select {
	case ch, ok := <-channels:
		if ok {
			_ = ch.Reject(ssh.ResourceShortage, why.Error())
			// The answer is under way; the client hangs up on it.
			select {
			case <-channels:
			case <-time.After(2 * time.Second):
			}
		}
	case <-time.After(10 * time.Second):
	}
}

// serve opens sessions until the connection ends.
func (c *connection) serve(ctx context.Context, channels <-chan ssh.NewChannel) {
	var sessions sync.WaitGroup
	defer sessions.Wait()
	defer c.end()
	for ch := range channels {
		if ch.ChannelType() != "session" {
			_ = ch.Reject(ssh.Prohibited, "This lab takes files only.")
			continue
		}
		session := &session{connection: c}
		if err := c.add(session); err != nil {
			_ = ch.Reject(ssh.ResourceShortage, err.Error())
			continue
		}
		channel, requests, err := ch.Accept()
		if err != nil {
			c.remove(session)
			continue
		}
		sessions.Go(func() {
			defer c.remove(session)
			session.serve(ctx, channel, requests)
		})
	}
}

func (c *connection) add(s *session) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ended:
		return refusal("The connection is ending.")
	case len(c.sessions) >= sessionsEach:
		return tooMany("This connection has %d sessions, and that is the most.", len(c.sessions))
	}
	c.sessions[s] = true
	return nil
}

func (c *connection) remove(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sessions, s)
}

// end ends the connection and what runs for it, at once. It may be called any number of times.
func (c *connection) end() {
	c.mu.Lock()
	c.ended = true
	for s := range c.sessions {
		s.stop()
	}
	c.mu.Unlock()
	_ = c.net.Close()
}

func (c *connection) touch() { c.moved.Store(time.Now().UnixNano()) }

// watch ends a connection that moves nothing any more, or whose person may not be here any more.
func (c *connection) watch(ctx context.Context) {
	limits := c.server.cfg.Limits
	tick := time.NewTicker(min(limits.Recheck, limits.Idle))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := c.server.cfg.Accounts.StillForFiles(ctx, c.access)
		_, gone := users.Message(err)
		if gone || time.Since(time.Unix(0, c.moved.Load())) > limits.Idle {
			c.end()
			return
		}
		c.recheckPlaces(ctx)
	}
}

// recheckPlaces ends sessions that show what their person may not see any more.
func (c *connection) recheckPlaces(ctx context.Context) {
	places, err := c.server.cfg.Places(ctx, c.access.User)
	if err != nil {
		return // asked again soon
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.sessions {
		if s.shows(places) {
			continue
		}
		s.say("What you may use in the lab has changed. Connect again.")
		s.stop()
	}
}

// keepAlive ends a connection whose other end does not answer any more, such as a laptop that was closed.
func (c *connection) keepAlive(ctx context.Context) {
	tick := time.NewTicker(c.server.cfg.Limits.Alive)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		answered := make(chan error, 1)
		go func() {
			_, _, err := c.ssh.SendRequest("keepalive@openssh.com", true, nil)
			answered <- err
		}()
		select {
		case <-ctx.Done():
			return
		case err := <-answered:
			if err != nil {
				c.end()
				return
			}
		case <-time.After(c.server.cfg.Limits.Alive):
			c.end()
			return
		}
	}
}

// String names a connection in the log.
func (c *connection) String() string {
	return fmt.Sprintf("%s from %s", c.access.User.Handle, c.remote)
}
