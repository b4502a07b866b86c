// Package discover lets machines of one local network find a gpulab head, by
// multicast DNS (RFC 6762, RFC 6763).
//
// Nothing that is found is trusted: anybody on the network can announce
// anything. It says where to ask; who answers there, people find out by the
// number of package nodes.
package discover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/mdns"
)

// service is gpulab's kind of service.
const service = "_gpulab._tcp"

// mostText bounds, in bytes, what a head says of itself.
const mostText = 120

// Announcement is what a head tells the network.
type Announcement struct {
	Lab     string // its name
	Head    string // the head's name as a machine
	Version string // of gpulab
	ID      string // letters and digits that no other head has
	Port    int    // of its door for machines
}

// Place is an interface towards the local network, with an address on it.
type Place struct {
	Interface string
	Address   netip.Addr
}

// Announce answers those who look for heads, on the given interfaces alone,
// until stop is called.
func Announce(a Announcement, places []Place) (stop func(), err error) {
	byInterface := map[string][]net.IP{}
	for _, p := range places {
		byInterface[p.Interface] = append(byInterface[p.Interface], p.Address.AsSlice())
	}
	var servers []*mdns.Server
	stop = func() {
		for _, s := range servers {
			_ = s.Shutdown()
		}
	}
	var errs []error
	for name, addresses := range byInterface {
		s, err := serve(a, name, addresses)
		if err != nil {
			errs = append(errs, fmt.Errorf("announce the lab on %s: %w", name, err))
			continue
		}
		servers = append(servers, s)
	}
	return stop, errors.Join(errs...)
}

func serve(a Announcement, name string, addresses []net.IP) (*mdns.Server, error) {
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	text := []string{"lab=" + cut(a.Lab), "head=" + cut(a.Head), "version=" + cut(a.Version)}
	zone, err := mdns.NewMDNSService("gpulab-"+a.ID, service, "", "gpulab-"+a.ID+".local.", a.Port, addresses, text)
	if err != nil {
		return nil, err
	}
	return mdns.NewServer(&mdns.Config{Zone: zone, Iface: iface, Logger: log.New(io.Discard, "", 0)})
}

// cut keeps a text short, and whole characters of it.
func cut(text string) string {
	if len(text) > mostText {
		text = text[:mostText]
	}
	return strings.ToValidUTF8(text, "")
}

// Found is a head that says it is there.
type Found struct {
	Lab     string         `json:"lab"`
	Head    string         `json:"head"`
	Version string         `json:"version"`
	Door    netip.AddrPort `json:"door"`
}

// mostFound bounds how many heads are listed.
const mostFound = 32

// Find looks for heads on the given interfaces, for as long as it is told. They
// are in the order of their labs' names.
func Find(ctx context.Context, interfaces []string, patience time.Duration) ([]Found, error) {
	var mu sync.Mutex
	found := map[netip.AddrPort]Found{}
	var wait sync.WaitGroup
	errs := make([]error, len(interfaces))
	for i, name := range interfaces {
		wait.Go(func() {
			errs[i] = query(ctx, name, patience, func(f Found) {
				mu.Lock()
				defer mu.Unlock()
				if len(found) < mostFound {
					found[f.Door] = f
				}
			})
		})
	}
	wait.Wait()
	out := []Found{}
	for _, f := range found {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b Found) int {
		if c := strings.Compare(a.Lab, b.Lab); c != 0 {
			return c
		}
		return a.Door.Compare(b.Door)
	})
	if len(out) > 0 {
		return out, nil
	}
	return out, errors.Join(errs...)
}

func query(ctx context.Context, name string, patience time.Duration, fn func(Found)) error {
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	entries := make(chan *mdns.ServiceEntry, 4*mostFound)
	err = mdns.QueryContext(ctx, &mdns.QueryParam{
		Service: service, Domain: "local", Timeout: patience, Interface: iface, Entries: entries,
		DisableIPv6: true, Logger: log.New(io.Discard, "", 0),
	})
	close(entries)
	for e := range entries {
		if f, ok := parse(e); ok {
			fn(f)
		}
	}
	if err != nil {
		return fmt.Errorf("look for heads on %s: %w", name, err)
	}
	return nil
}

// parse takes what a head says, cut to size.
func parse(e *mdns.ServiceEntry) (f Found, ok bool) {
	address, ok := netip.AddrFromSlice(e.AddrV4)
	if !ok || e.Port < 1 || e.Port > 65535 || !strings.Contains(e.Name, service) {
		return f, false
	}
	f.Door = netip.AddrPortFrom(address.Unmap(), uint16(e.Port))
	for _, field := range e.InfoFields {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "lab":
			f.Lab = cut(value)
		case "head":
			f.Head = cut(value)
		case "version":
			f.Version = cut(value)
		}
	}
	return f, f.Lab != "" || f.Head != ""
}
