package tailnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"tailscale.com/client/local"
	"tailscale.com/ipn/ipnstate"
	"tailscale.com/tsnet"
)

// node is the lab in its tailnet from one start to its end.
type node struct {
	service *Service
	server  *tsnet.Server
	local   *local.Client
	doors   []net.Listener
	ctx     context.Context // ends with it
	cancel  context.CancelFunc
	done    chan struct{} // closed when everything has ended
	cert    certificate
	funnel  funnel

	mu     sync.Mutex
	status *ipnstate.Status // as seen last; nil before
	in     bool             // it was joined since it was started
}

// newNode starts the library, which contacts the control server by itself, however long that takes.
func (s *Service) newNode(authKey string) (*node, error) {
	w := s.now()
	n := &node{service: s, done: make(chan struct{}), server: &tsnet.Server{
		Dir: s.cfg.Dir, Hostname: w.Hostname, ControlURL: w.LoginServer, AuthKey: authKey, UserLogf: silent, Logf: silent,
	}}
	var err error
	if n.local, err = n.server.LocalClient(); err != nil {
		return nil, err
	}
	for _, d := range s.cfg.Doors {
		l, err := n.listen(d.Port)
		if err != nil {
			return nil, errors.Join(err, n.server.Close())
		}
		n.doors = append(n.doors, l)
	}
	n.ctx, n.cancel = context.WithCancel(s.ctx)
	go n.run(n.ctx)
	return n, nil
}

// listen opens a port by IPv4 alone, which a tailnet gives every machine: by IPv6 all of them are of one network, and
// would be bounded together as one visitor.
func (n *node) listen(port int) (net.Listener, error) {
	l, err := n.server.Listen("tcp4", ":"+strconv.Itoa(port))
	if err != nil {
		return nil, fmt.Errorf("port %d on the tailnet: %w", port, err)
	}
	return l, nil
}

// How often the library is asked how it stands.
const (
	lookSoon = 250 * time.Millisecond // while something is to happen
	lookSome = 5 * time.Second
)

func (n *node) run(ctx context.Context) {
	defer close(n.done)
	var group sync.WaitGroup
	for i, d := range n.service.cfg.Doors {
		group.Go(func() {
			if err := d.Serve(ctx, n.doors[i]); err != nil && ctx.Err() == nil {
				n.service.cfg.Log.Error("a door on the tailnet is closed", "port", d.Port, "err", err)
			}
		})
	}
	group.Go(func() { n.keepCertificate(ctx) })
	group.Go(func() { n.keepFunnel(ctx) })
	for ctx.Err() == nil {
		n.look(ctx)
		pause := lookSoon
		if n.joined() {
			pause = lookSome
		}
		sleep(ctx, pause)
	}
	group.Wait()
	_ = n.server.Close()
}

// end ends everything and waits for it.
func (n *node) end() {
	n.cancel()
	<-n.done
}

// look notes how the library stands.
func (n *node) look(ctx context.Context) {
	st, err := n.local.StatusWithoutPeers(ctx)
	if err != nil {
		return // ctx ends, or the library does
	}
	n.mu.Lock()
	n.status = st
	n.in = n.in || st.BackendState == "Running"
	n.mu.Unlock()
	if n.joined() && ctx.Err() == nil {
		n.service.rename(namesOf(st))
	}
}

func (n *node) last() *ipnstate.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.status
}

// joined tells whether the lab is reached on the tailnet.
func (n *node) joined() bool {
	st := n.last()
	return st != nil && st.BackendState == "Running"
}

// asks tells whether somebody has been asked to let the lab in.
func (n *node) asks() bool {
	st := n.last()
	return st != nil && st.AuthURL != ""
}

// forget makes the control server forget the lab, and tells whether it did.
func (n *node) forget(ctx context.Context) bool {
	for ctx.Err() == nil {
		switch {
		case n.joined():
			return n.local.Logout(ctx) == nil
		case n.asks():
			return true // it was not let in
		}
		sleep(ctx, lookSoon)
	}
	return false
}

// wasIn tells whether the lab has been in the tailnet since it was started.
func (n *node) wasIn() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.in
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
