package sftpd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// The subsystems: the files themselves, and checksums of them for `gpulab cp --check`.
const (
	subsystemSFTP = "sftp"
	subsystemSums = "gpulab-sums"
)

// session is one channel: it becomes one subsystem, served by a child.
type session struct {
	connection *connection

	mu      sync.Mutex
	places  []Place
	child   *child
	stopped bool
	stderr  io.Writer
}

// draining is how long a child has to write what it has received. Ending it at once could leave holes in a file,
// and who goes on from the file's size would never fill them.
const draining = 5 * time.Second

// serve answers what the client asks of the channel until it closes.
func (s *session) serve(ctx context.Context, channel ssh.Channel, requests <-chan *ssh.Request) {
	defer func() { _ = channel.Close() }()
	s.mu.Lock()
	s.stderr = channel.Stderr()
	s.mu.Unlock()
	var running sync.WaitGroup
	defer running.Wait()
	defer s.stop()
	started := false
	for r := range requests {
		switch {
		case r.Type == "subsystem" && !started && asks(r, subsystemSFTP, subsystemSums):
			started = true
			_ = r.Reply(true, nil)
			running.Go(func() {
				code := s.run(ctx, channel, payloadString(r))
				_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{code}))
				_ = channel.Close()
			})
		default: // shell, exec, pty-req, env, x11-req, auth-agent-req@openssh.com, …
			_ = r.Reply(false, nil)
		}
	}
}

// asks reports whether a request's text is one of these.
func asks(r *ssh.Request, names ...string) bool { return slices.Contains(names, payloadString(r)) }

// payloadString is the one string that a request carries, "" for anything else.
func payloadString(r *ssh.Request) string {
	var payload struct{ Text string }
	if err := ssh.Unmarshal(r.Payload, &payload); err != nil {
		return ""
	}
	return payload.Text
}

// say writes a line for the person at the other end.
func (s *session) say(text string) {
	s.mu.Lock()
	w := s.stderr
	s.mu.Unlock()
	if w != nil {
		_, _ = io.WriteString(w, text+"\r\n")
	}
}

// shows reports whether the places that the session shows are these.
func (s *session) shows(places []Place) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.places == nil || slices.Equal(s.places, places)
}

// stop takes nothing more from the client and ends the child; one that has not started will not.
func (s *session) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.child != nil && !s.stopped {
		_ = s.child.in.Close()
		process := s.child.cmd.Process
		time.AfterFunc(draining, func() { _ = process.Kill() })
	}
	s.stopped = true
}

// run serves a subsystem by a child until one of both ends, and returns the exit status for the client.
func (s *session) run(ctx context.Context, channel ssh.Channel, subsystem string) uint32 {
	c := s.connection
	user := c.access.User
	places, err := c.server.cfg.Places(ctx, user)
	if err != nil || len(places) == 0 {
		c.server.cfg.Log.Error("the places of a connection for files", "who", c.String(), "err", err)
		s.say("Your files cannot be opened at the moment. Try again in a minute; if it stays so, tell an admin of the lab.")
		return 1
	}
	spec, err := json.Marshal(Spec{Handle: user.Handle, UID: user.UID, Subsystem: subsystem, Places: places})
	if err != nil {
		return 1
	}
	child, err := s.start(spec, places)
	if errors.Is(err, context.Canceled) {
		return 0 // the client has gone meanwhile
	}
	if err != nil {
		c.server.cfg.Log.Error("a session for files did not start", "who", c.String(), "err", err)
		s.say("Your files cannot be opened at the moment. Try again in a minute; if it stays so, tell an admin of the lab.")
		return 1
	}
	defer child.close()
	go func() {
		c.pump(child.in, channel)
		_ = child.in.Close() // there is nothing more to do, and the child ends when it is done
	}()
	c.pump(channel, child.out)
	_, _ = io.Copy(io.Discard, child.out) // of a client that is gone: nothing may block the child
	_ = channel.CloseWrite()
	return s.wait(child)
}

// wait waits for a child whose output has ended.
func (s *session) wait(child *child) uint32 {
	timer := time.AfterFunc(draining, func() { _ = child.cmd.Process.Kill() })
	defer timer.Stop()
	err := child.cmd.Wait()
	s.mu.Lock()
	stopped := s.stopped
	s.mu.Unlock()
	if err == nil || stopped {
		return 0
	}
	s.connection.server.cfg.Log.Error("a session for files failed", "who", s.connection.String(), "err", err, "said",
		strings.TrimSpace(child.said.String()))
	s.say("The lab could not go on with your files. Try again; if it stays so, tell an admin of the lab.")
	return 1
}

// pump copies until one side ends.
func (c *connection) pump(to io.Writer, from io.Reader) {
	buffer := make([]byte, 128<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			c.touch()
			if _, werr := to.Write(buffer[:n]); werr != nil {
				return
			}
			c.touch()
		}
		if err != nil {
			return
		}
	}
}

// child is a running Child.
type child struct {
	cmd  *exec.Cmd
	in   *os.File // its standard input
	out  *os.File // its standard output
	said *tail
}

func (c *child) close() {
	_ = c.in.Close()
	_ = c.out.Close()
}

// start starts a child with its spec on file descriptor 3.
func (s *session) start(spec []byte, places []Place) (*child, error) {
	var ends []*os.File
	pipe := func() (r, w *os.File, err error) {
		r, w, err = os.Pipe()
		ends = append(ends, r, w)
		return r, w, err
	}
	stdin, in, err := pipe()
	var out, stdout, about, tell *os.File
	if err == nil {
		out, stdout, err = pipe()
	}
	if err == nil {
		about, tell, err = pipe()
	}
	c := &child{in: in, out: out, said: &tail{}}
	if err == nil {
		command := s.connection.server.cfg.Command
		c.cmd = exec.Command(command[0], command[1:]...)
		c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = stdin, stdout, c.said
		c.cmd.ExtraFiles = []*os.File{about}
		// A server's own environment is nobody's business; little memory does for what it does.
		c.cmd.Env = []string{"GOMEMLIMIT=96MiB", "GOMAXPROCS=2"}
		c.cmd.Dir = "/"
		c.cmd.SysProcAttr = isolation()
		c.cmd.WaitDelay = 5 * time.Second
		err = s.launch(c, places)
	}
	if err != nil {
		for _, f := range ends {
			if f != nil {
				_ = f.Close()
			}
		}
		return nil, err
	}
	for _, f := range []*os.File{stdin, stdout, about} {
		_ = f.Close()
	}
	go func() { // the pipe holds less than a long list of places
		_, _ = tell.Write(spec)
		_ = tell.Close()
	}()
	return c, nil
}

// launch starts a child unless the session has been stopped meanwhile.
func (s *session) launch(c *child, places []Place) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return context.Canceled
	}
	if err := s.connection.server.starter.start(c.cmd); err != nil {
		return err
	}
	s.child, s.places = c, places
	return nil
}

// tail keeps the first of what is written to it.
type tail struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if room := 4<<10 - t.text.Len(); room > 0 {
		t.text.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
