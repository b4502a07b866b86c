//go:build e2e

package jupyterlab

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"sync"
	"sync/atomic"
	"time"
)

// line is the way from the person's computer to the server.
type line struct {
	cut  atomic.Bool // nothing passes
	slow atomic.Bool // what the server says comes late
	last atomic.Bool // the answer to the next save is the last thing that passes
	// unread is how many times a file that is asked for with its content does not come.
	unread atomic.Int32
	// status is what every request is answered with, as the lab does in the server's stead; 0 for none.
	status atomic.Int32
	// held is whether a file that is asked for without its content waits, as at a lab that is being started anew.
	held    atomic.Bool
	waits   atomic.Int32 // how many have waited
	deaf    atomic.Bool  // kernels' connections do not pass
	mute    atomic.Bool  // what kernels say waits
	saved   atomic.Int32 // how many files were saved
	mu      sync.Mutex
	ends    []net.Conn
	kernels []net.Conn // ends of kernels' connections
}

// serve passes connections on to a socket.
func (l *line) serve(listener net.Listener, socket string) {
	for {
		in, err := listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("unix", socket)
		if err != nil {
			_ = in.Close()
			continue
		}
		if l.cut.Load() {
			_, _ = in.Close(), out.Close()
			continue
		}
		if status := l.status.Load(); status != 0 {
			_ = out.Close()
			go refuse(in, int(status))
			continue
		}
		l.mu.Lock()
		l.ends = append(l.ends, in, out)
		l.mu.Unlock()
		var kernel atomic.Bool
		go func() { _, _ = io.Copy(in, late{out, l, &kernel}); _ = in.Close() }()
		go func() { _, _ = io.Copy(out, &saves{Conn: in, line: l, kernel: &kernel}); _ = out.Close() }()
	}
}

// refuse answers one request with a status.
func refuse(c net.Conn, status int) {
	defer c.Close()
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", status, http.StatusText(status))
}

var (
	savesFile = regexp.MustCompile(`^PUT \S*/api/contents/`)
	readsFile = regexp.MustCompile(`^GET \S*/api/contents/\S*\.ipynb\?\S*content=1`)
	looksAt   = regexp.MustCompile(`^GET \S*/api/contents/\S*\.ipynb\?\S*content=0`)
	toKernel  = regexp.MustCompile(`^GET \S*/api/kernels/\S*/channels`)
)

// saves is a connection on which it is noticed that something is saved.
type saves struct {
	net.Conn
	line   *line
	kernel *atomic.Bool // whether it is a kernel's connection
	last   bool         // this is the last thing that passes
}

func (c *saves) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if savesFile.Match(p[:n]) {
		c.line.saved.Add(1)
	}
	switch {
	case readsFile.Match(p[:n]) && c.line.unread.Load() > 0:
		c.line.unread.Add(-1)
		return 0, io.EOF
	case looksAt.Match(p[:n]) && c.line.held.Load():
		for c.line.waits.Add(1); c.line.held.Load(); {
			time.Sleep(10 * time.Millisecond)
		}
	case toKernel.Match(p[:n]):
		if c.line.deaf.Load() {
			return 0, io.EOF
		}
		c.kernel.Store(true)
		c.line.mu.Lock()
		c.line.kernels = append(c.line.kernels, c.Conn)
		c.line.mu.Unlock()
	case savesFile.Match(p[:n]) && c.line.last.CompareAndSwap(true, false):
		c.last = true
		c.line.cut.Store(true)
	case c.line.cut.Load() && (!c.last || bytes.HasPrefix(p[:n], []byte("GET "))):
		return 0, io.EOF
	}
	return n, err
}

// late is a connection that is read from late while its line is slow.
type late struct {
	net.Conn
	line   *line
	kernel *atomic.Bool // whether it is a kernel's connection
}

func (c late) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.line.slow.Load() {
		time.Sleep(700 * time.Millisecond)
	}
	for c.kernel.Load() && c.line.mute.Load() {
		time.Sleep(10 * time.Millisecond)
	}
	return n, err
}

// dropAll ends every connection.
func (l *line) dropAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range l.ends {
		_ = end.Close()
	}
	l.ends = nil
}

// dropKernels ends the connections to kernels, and lets no more pass.
func (l *line) dropKernels() {
	l.deaf.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range l.kernels {
		_ = end.Close()
	}
	l.kernels = nil
}
