package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

const (
	// aliveEvery is how often the other end is asked whether it is there, aliveFor how long it may take to answer:
	// a network that is gone says nothing by itself.
	aliveEvery = 15 * time.Second
	aliveFor   = 30 * time.Second
	// maxWait is the longest time between two tries to connect.
	maxWait = 20 * time.Second
)

// link is the connection to the lab, which may come and go.
type link struct {
	dial     Dial
	patience time.Duration
	note     func(string)
	reopened atomic.Int64
	lost     atomic.Bool

	mu       sync.Mutex // held while it is opened, so that all wait for one try
	current  *wire
	closed   bool
	failures int       // since something worked
	worked   time.Time // the last time
}

// wire is one connection that is open.
type wire struct {
	ssh  *ssh.Client
	sftp *sftp.Client
	gone chan struct{} // closed when it is
	sums *sums
}

func newLink(dial Dial, patience time.Duration, note func(string)) *link {
	return &link{dial: dial, patience: patience, note: note}
}

// do does something over a connection, and does it again over the next one where the connection was lost: so it must
// be something that may be done twice.
func (l *link) do(ctx context.Context, f func(*sftp.Client) error) error {
	return l.with(ctx, func(w *wire) error { return f(w.sftp) })
}

func (l *link) with(ctx context.Context, f func(*wire) error) error {
	for {
		w, err := l.open(ctx)
		if err != nil {
			return err
		}
		err = f(w)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil || !w.broke(err) {
			l.fine()
			return err
		}
		l.drop(w)
	}
}

// fine notes that the connection works.
func (l *link) fine() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures, l.worked = 0, time.Now()
}

// moved notes that data moves; it is cheap.
func (l *link) moved() {
	if l.mu.TryLock() {
		l.failures, l.worked = 0, time.Now()
		l.mu.Unlock()
	}
}

// broke tells an error of the connection from one of a file.
func (w *wire) broke(err error) bool {
	for _, lost := range []error{
		sftp.ErrSSHFxConnectionLost, sftp.ErrSSHFxNoConnection, io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed,
	} {
		if errors.Is(err, lost) {
			return true
		}
	}
	var status *sftp.StatusError
	var network *net.OpError
	switch {
	case errors.As(err, &network):
		return true
	case errors.As(err, &status), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return false
	}
	select {
	case <-w.gone:
		return true
	default:
		return false
	}
}

// open returns the connection that is open, or opens one; it tries for as long as there is patience.
func (l *link) open(ctx context.Context) (*wire, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case l.closed:
			return nil, net.ErrClosed
		case l.current != nil:
			return l.current, nil
		}
		if l.failures > 0 {
			if time.Since(l.worked) > l.patience {
				return nil, &Refusal{fmt.Errorf("the connection to the lab was lost and did not come back within %s; run the "+
					"same line again, and it goes on where it stopped", l.patience)}
			}
			if err := pause(ctx, min(200*time.Millisecond<<min(l.failures-1, 10), maxWait)); err != nil {
				return nil, err
			}
		}
		w, err := l.connect(ctx)
		var refusal *Refusal
		switch {
		case err == nil:
			if l.worked.IsZero() {
				l.worked = time.Now()
			} else {
				l.reopened.Add(1)
			}
			l.current = w
			l.lost.Store(false)
			return w, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.As(err, &refusal), l.worked.IsZero():
			return nil, &Refusal{err}
		}
		l.failures++
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

func (l *link) connect(ctx context.Context) (*wire, error) {
	conn, err := l.dial(ctx)
	if err != nil {
		return nil, err
	}
	// Hanging up is the only way to end a question that nobody answers.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	timer := time.AfterFunc(aliveFor, func() { _ = conn.Close() })
	defer timer.Stop()
	client, err := sftp.NewClient(conn)
	if err != nil {
		_ = conn.Close()
		var refused *ssh.OpenChannelError
		if errors.As(err, &refused) && refused.Reason != ssh.ConnectionFailed {
			return nil, fmt.Errorf("%s", refused.Message)
		}
		return nil, err
	}
	w := &wire{ssh: conn, sftp: client, gone: make(chan struct{})}
	go func() {
		_ = client.Wait()
		_ = conn.Close()
		close(w.gone)
	}()
	go w.keepAlive()
	return w, nil
}

// keepAlive hangs up when the other end does not answer any more.
func (w *wire) keepAlive() {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.gone:
			return
		case <-tick.C:
		}
		answered := make(chan struct{})
		go func() {
			_, _, _ = w.ssh.SendRequest("keepalive@openssh.com", true, nil)
			close(answered)
		}()
		select {
		case <-w.gone:
			return
		case <-answered:
		case <-time.After(aliveFor):
			_ = w.ssh.Close()
			return
		}
	}
}

// drop forgets a connection that was lost, unless somebody else did.
func (l *link) drop(w *wire) {
	_ = w.ssh.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != w {
		return
	}
	l.current = nil
	if l.failures == 0 && !l.closed {
		l.note("The connection to the lab was lost; trying again.")
	}
	l.failures++
	l.lost.Store(true)
}

func (l *link) close() {
	// Whoever opens holds the lock, and is told by its context.
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.current != nil {
		_ = l.current.ssh.Close()
	}
}
