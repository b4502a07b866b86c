package tailnet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"tailscale.com/ipn"
	"tailscale.com/tsnet"
)

// funnelAgain is how long a funnel that could not be opened waits for its next try.
const funnelAgain = time.Minute

// Funnel opens the doors that have a Public to everybody on the internet, or closes them again. It is kept over
// restarts, and ends with Down and Logout. Whether the tailnet allows it is asked before anything changes.
func (s *Service) Funnel(ctx context.Context, on bool) error {
	end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	s.mu.Lock()
	w, n := s.wanted, s.node
	s.mu.Unlock()
	if on {
		if err := s.mayFunnel(n); err != nil {
			return err
		}
	}
	if w.Funnel == on && (on || w == (wanted{})) {
		return nil // closed anew, it is kept, should that have failed before
	}
	w.Funnel = on
	if !on { // first, for a full disk must not keep the lab open
		s.want(w)
		if n != nil {
			n.funnel.end()
		}
	}
	if err := w.save(s.cfg.Dir); err != nil {
		return err
	}
	s.want(w)
	return nil
}

func (s *Service) want(w wanted) {
	s.mu.Lock()
	s.wanted = w
	s.mu.Unlock()
}

var errNotIn = &Error{Text: "the lab is not in its tailnet; turn that on first"}

// mayFunnel says why there can be no funnel.
func (s *Service) mayFunnel(n *node) error {
	ports := s.publicPorts()
	switch {
	case len(ports) == 0:
		return &Error{Text: "the configuration lets nobody in without the tailnet (`tailnet.signIn: require`), so there " +
			"is nothing to open to the internet"}
	case n == nil:
		return errNotIn
	}
	st := n.last()
	if st == nil || st.BackendState != "Running" || st.Self == nil {
		return errNotIn
	}
	for _, port := range ports {
		if err := ipn.CheckFunnelAccess(port, st.Self); err != nil {
			return &Error{Text: fmt.Sprintf("the tailnet does not allow it: %v; an admin of the tailnet gives this machine "+
				"the attribute funnel in its access controls", err)}
		}
	}
	return nil
}

func (s *Service) publicPorts() (ports []uint16) {
	for _, d := range s.cfg.Doors {
		if d.Public != nil {
			ports = append(ports, uint16(d.Port)) //nolint:gosec // a port
		}
	}
	return ports
}

// funnel is how a node stands on the public internet.
type funnel struct {
	mu   sync.Mutex
	open bool
	err  error         // why it is not
	stop func()        // ends what is open, or being opened; nil for nothing
	done chan struct{} // closed when that has ended
}

// begin takes note of what is opened, unless nobody wants it any more.
func (f *funnel) begin(stop func(), wanted func() bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !wanted() {
		return false
	}
	f.stop, f.done = stop, make(chan struct{})
	return true
}

// ended takes note that nothing is open any more.
func (f *funnel) ended(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.done)
	f.stop, f.open, f.err = nil, false, err
}

func (f *funnel) opened() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open, f.err = true, nil
}

// end ends what is open, and waits for it.
func (f *funnel) end() {
	f.mu.Lock()
	stop, done := f.stop, f.done
	f.err = nil
	f.mu.Unlock()
	if stop != nil {
		stop()
		<-done
	}
}

func (f *funnel) state() (open bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open, f.err
}

// keepFunnel opens the lab to the internet for as long as somebody wants that.
func (n *node) keepFunnel(ctx context.Context) {
	var failed time.Time
	for ctx.Err() == nil {
		_, err := n.funnel.state()
		if n.service.now().Funnel && n.joined() && (err == nil || time.Since(failed) > funnelAgain) {
			n.runFunnel(ctx)
			failed = time.Now()
		}
		sleep(ctx, time.Second)
	}
}

// runFunnel answers the internet until ctx ends, somebody ends it, or it breaks.
func (n *node) runFunnel(ctx context.Context) {
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	if !n.funnel.begin(cancel, func() bool { return n.service.now().Funnel }) {
		return
	}
	err := n.answerInternet(limited)
	if limited.Err() != nil || errors.Is(err, errRenamed) {
		err = nil
	}
	if err != nil {
		n.service.cfg.Log.Warn("the lab is not open to the internet", "err", err)
	}
	n.funnel.ended(err)
}

// errRenamed ends a funnel, which is for one name of the lab; it is opened again at once.
var errRenamed = errors.New("the lab has another name in its tailnet")

func (n *node) answerInternet(ctx context.Context) error {
	if err := n.service.mayFunnel(n); err != nil {
		return err
	}
	name := n.certDomain()
	defer n.clearFunnel()
	g, ctx := errgroup.WithContext(ctx)
	err := func() error {
		for _, d := range n.service.cfg.Doors {
			if d.Public == nil {
				continue
			}
			l, err := n.listenFunnel(ctx, d.Port)
			if err != nil {
				return err
			}
			g.Go(func() error {
				defer l.end()
				return d.Public(ctx, l)
			})
		}
		n.funnel.opened()
		for ctx.Err() == nil {
			if now := n.certDomain(); now != "" && now != name {
				return errRenamed
			}
			if n.joined() {
				if err := n.service.mayFunnel(n); err != nil {
					return err
				}
			}
			sleep(ctx, time.Second)
		}
		return nil
	}()
	if err != nil {
		g.Go(func() error { return err })
	}
	return g.Wait()
}

// clearFunnel tells the tailnet that nothing is open. The library keeps it in its files otherwise, where a killed
// process has left it too.
func (n *node) clearFunnel() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := n.local.SetServeConfig(ctx, &ipn.ServeConfig{}); err != nil {
		n.service.cfg.Log.Warn("the tailnet was not told that the lab is closed to the internet", "err", err)
	}
}

// listenFunnel opens a port. The library may wait for the control server for longer than anybody wants it to.
func (n *node) listenFunnel(ctx context.Context, port int) (*publicListener, error) {
	type opened struct {
		net.Listener
		err error
	}
	done := make(chan opened, 1)
	go func() {
		l, err := n.server.ListenFunnel("tcp", ":"+strconv.Itoa(port), tsnet.FunnelOnly(), tsnet.FunnelTLSConfig(&tls.Config{
			MinVersion: tls.VersionTLS12, GetCertificate: n.service.GetCertificate, NextProtos: []string{"http/1.1"}}))
		done <- opened{l, err}
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return nil, fmt.Errorf("port %d: %w", port, o.err)
		}
		return &publicListener{Listener: o.Listener, conns: map[*publicConn]struct{}{}}, nil
	case <-ctx.Done():
		go func() {
			if o := <-done; o.err == nil {
				_ = o.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// publicListener takes connections from the internet, and ends them with itself, WebSockets too.
type publicListener struct {
	net.Listener
	mu    sync.Mutex
	conns map[*publicConn]struct{} // nil once it has ended
}

// publicConn is a connection of somebody on the internet, whose address it has in place of the relay's.
type publicConn struct {
	net.Conn
	listener *publicListener
	from     netip.AddrPort
}

// Accept implements net.Listener.
func (l *publicListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &publicConn{Conn: conn, listener: l}
		if over, ok := conn.(*tls.Conn); ok {
			if f, ok := over.NetConn().(*ipn.FunnelConn); ok {
				c.from = f.Src
			}
		}
		l.mu.Lock()
		taken := l.conns != nil && c.from.IsValid()
		if taken {
			l.conns[c] = struct{}{}
		}
		l.mu.Unlock()
		if taken {
			return c, nil
		}
		_ = conn.Close()
	}
}

func (l *publicListener) end() {
	_ = l.Close()
	l.mu.Lock()
	conns := l.conns
	l.conns = nil
	l.mu.Unlock()
	for c := range conns {
		_ = c.Conn.Close()
	}
}

// RemoteAddr implements net.Conn.
func (c *publicConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.from) }

// Close implements net.Conn.
func (c *publicConn) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.conns, c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
