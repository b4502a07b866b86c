package discover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/pion/logging"
	"github.com/pion/mdns/v2"
	"golang.org/x/net/ipv4"
)

// Times of asking whether a name is free, as RFC 6762 has them in section 8.1.
const (
	probeEvery    = 250 * time.Millisecond
	probePatience = 3 * probeEvery
)

// mostNames bounds how many names are tried that others have.
const mostNames = 9

// HostName is a name ending in .local for which this machine answers.
type HostName struct {
	Name  string
	Taken netip.Addr // who has the name that was wanted, if it is another one
	conn  *mdns.Conn
}

// Close ends the answers.
func (h *HostName) Close() error { return h.conn.Close() }

// Claim answers for label.local on the given interfaces, or, where another
// machine does already, for label-2.local and so on. own are the addresses of this
// machine: that another program on it answers with one of them hurts nobody.
func Claim(ctx context.Context, label string, interfaces []string, own []netip.Addr) (*HostName, error) {
	var on []net.Interface
	for _, name := range interfaces {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("the interface %s: %w", name, err)
		}
		on = append(on, *i)
	}
	if len(on) == 0 {
		return nil, errors.New("this machine has no interface towards a local network")
	}
	h := &HostName{}
	for n := 1; n <= mostNames; n++ {
		h.Name = label + ".local"
		if n > 1 {
			h.Name = label + "-" + strconv.Itoa(n) + ".local"
		}
		other, err := whoHas(ctx, h.Name, on)
		if err != nil {
			return nil, err
		}
		if !other.IsValid() || slices.Contains(own, other) {
			h.conn, err = speak(on, mdns.WithLocalNames(h.Name), mdns.WithCacheRefresh(false))
			return h, err
		}
		if n == 1 {
			h.Taken = other
		}
	}
	return nil, fmt.Errorf("%s.local to %s are names of other machines", label, h.Name)
}

// whoHas asks who answers for a name; nobody is not an error.
func whoHas(ctx context.Context, name string, on []net.Interface) (netip.Addr, error) {
	conn, err := speak(on, mdns.WithQueryInterval(probeEvery))
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	limited, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	_, address, err := conn.QueryAddr(limited, name)
	if err != nil {
		return netip.Addr{}, ctx.Err()
	}
	return address.Unmap(), nil
}

func speak(on []net.Interface, options ...mdns.ServerOption) (*mdns.Conn, error) {
	address, err := net.ResolveUDPAddr("udp4", mdns.DefaultAddressIPv4)
	if err != nil {
		return nil, err
	}
	socket, err := net.ListenUDP("udp4", address)
	if err != nil {
		return nil, fmt.Errorf("multicast DNS: %w", err)
	}
	quiet := &logging.DefaultLoggerFactory{Writer: io.Discard, DefaultLogLevel: logging.LogLevelDisabled}
	conn, err := mdns.NewServer(ipv4.NewPacketConn(socket), nil,
		append(options, mdns.WithInterfaces(on...), mdns.WithIncludeLoopback(true), mdns.WithLoggerFactory(quiet))...)
	if err != nil {
		_ = socket.Close()
		return nil, fmt.Errorf("multicast DNS: %w", err)
	}
	return conn, nil
}
