// Package tailnettest is a tailnet for tests: tailscale's own control server for tests, a relay and STUN, all at one
// address of this machine, and machines that visit.
//
// Only tests may import it.
package tailnettest

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"tailscale.com/derp/derpserver"
	"tailscale.com/net/netns"
	"tailscale.com/net/stun/stuntest"
	"tailscale.com/tailcfg"
	"tailscale.com/tsnet"
	"tailscale.com/tstest/integration/testcontrol"
	"tailscale.com/types/key"
	"tailscale.com/types/logger"
	"tailscale.com/types/nettype"
)

// Domain is what names in the tailnet end with.
const Domain = "tail-test.ts.net"

// Control is the control server with what belongs to it. Fields of Server may be set before the first machine comes.
type Control struct {
	*testcontrol.Server
	URL string

	web *httptest.Server
}

// Start starts one at an address of this machine and a TCP port, 0 for any.
func Start(tb testing.TB, address, port string) *Control {
	tb.Helper()
	netns.SetEnabled(false) // the way to the machine itself is no default route
	c := &Control{Server: &testcontrol.Server{
		DERPMap: relay(tb, address), Logf: logger.Discard,
		MagicDNSDomain: Domain, // and no DNSConfig: with one it offers certificates, of an authority in the internet
	}}
	l, err := net.Listen("tcp", net.JoinHostPort(address, port))
	if err != nil {
		tb.Fatal(err)
	}
	c.web = &httptest.Server{Listener: l, Config: &http.Server{Handler: c.Server}}
	c.Server.HTTPTestServer = c.web
	c.web.Start()
	tb.Cleanup(c.web.Close)
	c.URL = c.web.URL
	return c
}

// relay starts what passes packets on between machines that do not reach each other, and what tells them their address.
func relay(tb testing.TB, address string) *tailcfg.DERPMap {
	tb.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		tb.Fatal(err)
	}
	derp := derpserver.New(key.NewNode(), logger.Discard)
	web := &httptest.Server{Listener: l, Config: &http.Server{Handler: derpserver.Handler(derp),
		ErrorLog:     logger.StdLogger(logger.Discard),
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}}} // its protocol takes HTTP/1.1 over
	web.StartTLS()
	stun, stop := stuntest.ServeWithPacketListener(tb, nettype.Std{})
	tb.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
		_ = derp.Close()
		stop()
	})
	return &tailcfg.DERPMap{Regions: map[int]*tailcfg.DERPRegion{1: {RegionID: 1, RegionCode: "test",
		Nodes: []*tailcfg.DERPNode{{
			Name: "1", RegionID: 1, HostName: address, IPv4: address, IPv6: "none", STUNPort: stun.Port, STUNTestIP: address,
			DERPPort: l.Addr().(*net.TCPAddr).Port, InsecureForTests: true,
		}}}}}
}

// AllowFunnel makes the control server give machines that come from now on certificates, and the right to be open to
// the internet at the ports. Every machine may be a relay of Funnel.
func (c *Control) AllowFunnel(ports string) {
	c.DNSConfig = &tailcfg.DNSConfig{Proxied: true}
	c.SetGlobalAppCaps(tailcfg.PeerCapMap{tailcfg.PeerCapabilityIngress: nil})
	c.DefaultNodeCapabilities = &tailcfg.NodeCapMap{
		tailcfg.CapabilityHTTPS: nil, tailcfg.NodeAttrFunnel: nil,
		tailcfg.CapabilityFunnelPorts + "?ports=" + tailcfg.NodeCapability(ports): nil,
	}
}

// Stop makes the control server be away, for good.
func (c *Control) Stop() {
	c.web.CloseClientConnections()
	_ = c.web.Listener.Close()
}

// Named finds the machine with a name; nil while there is none.
func (c *Control) Named(name string) *tailcfg.Node {
	list := c.AllNodes()
	i := slices.IndexFunc(list, func(n *tailcfg.Node) bool { return n.Hostinfo.Valid() && n.Hostinfo.Hostname() == name })
	if i < 0 {
		return nil
	}
	return list[i]
}

// Login is what the control server calls the owner of a machine.
func (c *Control) Login(tb testing.TB, n *tailcfg.Node) string {
	tb.Helper()
	answer, err := c.MapResponse(&tailcfg.MapRequest{NodeKey: n.Key})
	if err != nil || answer == nil {
		tb.Fatalf("who owns %s: %v", n.Name, err)
	}
	for _, p := range answer.UserProfiles {
		if p.ID == n.User {
			return p.LoginName
		}
	}
	tb.Fatalf("nobody owns %s", n.Name)
	return ""
}

// Visitor is a machine of the tailnet.
type Visitor struct {
	*tsnet.Server
	Address string
}

// Visit brings a machine into the tailnet, and waits until it is there.
func (c *Control) Visit(tb testing.TB, name string) *Visitor {
	tb.Helper()
	v := &Visitor{Server: &tsnet.Server{Dir: filepath.Join(tb.TempDir(), name), Hostname: name, ControlURL: c.URL,
		Logf: logger.Discard, UserLogf: logger.Discard}}
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	status, err := v.Up(ctx)
	if err != nil {
		tb.Fatalf("%s does not get into the tailnet: %v", name, err)
	}
	tb.Cleanup(func() { _ = v.Close() })
	v.Address = status.TailscaleIPs[0].String()
	return v
}

// FromInternet connects to a port of the lab as somebody on the internet does through Funnel, whose relay the visitor
// is. The connection's other end sees the address from.
func (v *Visitor) FromInternet(ctx context.Context, lab *tailcfg.Node, from netip.AddrPort,
	target string) (net.Conn, error) {
	services := lab.Hostinfo.Services()
	i := slices.IndexFunc(services.AsSlice(), func(s tailcfg.Service) bool { return s.Proto == tailcfg.PeerAPI4 })
	if i < 0 {
		return nil, errors.New("the lab takes nothing from relays")
	}
	at := net.JoinHostPort(lab.Addresses[0].Addr().String(), strconv.Itoa(int(services.At(i).Port)))
	conn, err := v.Dial(ctx, "tcp", at)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(conn, "POST /v0/ingress HTTP/1.1\r\nHost: %s\r\nContent-Length: 0\r\nTailscale-Ingress-Src: "+
		"%s\r\nTailscale-Ingress-Target: %s\r\n\r\n", at, from, target)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	r := bufio.NewReader(conn)
	answer, err := http.ReadResponse(r, &http.Request{Method: http.MethodPost})
	if err == nil {
		if answer.StatusCode != http.StatusSwitchingProtocols {
			why, _ := io.ReadAll(answer.Body)
			err = fmt.Errorf("the lab answers the relay with %s: %s", answer.Status, why)
		}
		_ = answer.Body.Close()
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return readerConn{conn, r}, nil
}

type readerConn struct {
	net.Conn
	r *bufio.Reader
}

// Read implements net.Conn.
func (c readerConn) Read(p []byte) (int, error) { return c.r.Read(p) }

// Slow is the control server's address by a way on which all that it says comes late, and then in small pieces.
func (c *Control) Slow(tb testing.TB, late time.Duration) (url string) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	tb.Cleanup(func() {
		cancel()
		_ = l.Close()
		group.Wait()
	})
	group.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() { passSlowly(ctx, conn, c.web.Listener.Addr().String(), late) })
		}
	})
	return "http://" + l.Addr().String()
}

// passSlowly passes a connection on until either end closes it, or ctx ends.
func passSlowly(ctx context.Context, from net.Conn, to string, late time.Duration) {
	defer from.Close()
	there, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer there.Close()
	defer context.AfterFunc(ctx, func() { _, _ = from.Close(), there.Close() })()
	go func() {
		_, _ = io.Copy(there, from)
		_ = there.Close()
	}()
	type piece struct {
		data []byte
		due  time.Time
	}
	pieces := make(chan piece, 1000)
	go func() {
		defer close(pieces)
		for {
			data := make([]byte, 256)
			n, err := there.Read(data)
			if err != nil {
				return
			}
			select {
			case pieces <- piece{data[:n], time.Now().Add(late)}:
			case <-ctx.Done():
				return
			}
		}
	}()
	for p := range pieces {
		select {
		case <-time.After(max(time.Until(p.due), 10*time.Millisecond)):
		case <-ctx.Done():
			return
		}
		if _, err := from.Write(p.data); err != nil {
			return
		}
	}
}
