package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/notebooks"
)

// maxServicePorts is how many ports services may have: each that is in use is a
// listening socket.
const maxServicePorts = 2000

// servicePorts are the ports of the head that services can have: "8500-8699",
// or off for none.
func (c *Config) servicePorts() ([]int, error) {
	if strings.TrimSpace(string(c.ServicePorts)) == servicePortsOff {
		return nil, nil
	}
	return portRange("servicePorts", string(c.ServicePorts), maxServicePorts, c.fixedPorts())
}

// fixedPorts are the ports of the head that have one use, with the key that sets each.
func (c *Config) fixedPorts() map[int]string {
	ports := map[int]string{c.HTTPSPort: "httpsPort", c.HubPort: "hubPort", c.NodesPort: "nodesPort", 6443: "Kubernetes", 10250: "Kubernetes"}
	if c.HTTPPort != nil { // nil before the defaults are set
		ports[*c.HTTPPort] = "httpPort"
	}
	return ports
}

// otherPorts returns a function that reports whether the head serves something other than its pages at a port. No link to
// the pages leads to such a port.
func (c *Config) otherPorts() func(port int) bool {
	ports := c.fixedPorts()
	// loadConfig has told of errors in them.
	services, _ := c.servicePorts()
	notebooks, _ := c.notebookPorts()
	files, _ := c.Files.Listen.port()
	for _, p := range slices.Concat(services, notebooks, []int{files}) {
		ports[p] = "another"
	}
	delete(ports, c.HTTPSPort)
	delete(ports, c.HubPort) // many people forward the pages as 8443, and HubPort shows no content of notebooks or services
	return func(port int) bool { return ports[port] != "" }
}

// portRange reads two ports such as 8500-8699. Errors name the key.
func portRange(key, text string, most int, others map[int]string) ([]int, error) {
	from, to, isRange := strings.Cut(strings.TrimSpace(text), "-")
	if !isRange {
		to = from
	}
	low, err := strconv.Atoi(strings.TrimSpace(from))
	high, err2 := strconv.Atoi(strings.TrimSpace(to))
	if err != nil || err2 != nil || low < 1024 || high > 32767 || low > high {
		example := "8500-8699, or off"
		if key == notebookPortsKey {
			example = defaultNotebookPorts[0]
		}
		return nil, fmt.Errorf("%s is %q; it may be two ports from 1024 to 32767 such as %s", key, text, example)
	}
	if high-low >= most {
		return nil, fmt.Errorf("%s is %q, but %d ports are the most", key, text, most)
	}
	var ports []int
	for p := low; p <= high; p++ {
		if other := others[p]; other != "" {
			return nil, fmt.Errorf("%s is %q, but port %d in it is that of %s", key, text, p, other)
		}
		ports = append(ports, p)
	}
	return ports, nil
}

const servicePortsOff = "off"

// ServicePorts are ports of the head, as two numbers, or off.
type ServicePorts string

// UnmarshalJSON takes the word off, which is false in YAML, and a single number.
func (s *ServicePorts) UnmarshalJSON(data []byte) error {
	switch text := string(data); text {
	case "false":
		*s = servicePortsOff
	default:
		*s = ServicePorts(strings.Trim(text, `"`))
	}
	return nil
}

// portFree reports whether nobody listens on a port of the head.
func portFree(port int) bool {
	ln, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	_ = ln.Close()
	return true
}

// serviceDoors listens on the ports of services, on the tailnet too: each is an origin of its own.
type serviceDoors struct {
	services *notebooks.Service
	proxy    *notebooks.Proxy
	lab      *appliance
	open     map[int]func() // closes it
	trouble  map[int]string // what was said of ports that cannot be had
}

// run keeps the ports of those services open that have not ended, until ctx does.
func (d *serviceDoors) run(ctx context.Context) error {
	d.open, d.trouble = map[int]func(){}, map[int]string{}
	changes := d.services.Subscribe(ctx)
	defer func() {
		for _, shut := range d.open {
			shut()
		}
	}()
	for {
		if err := d.keep(ctx); err != nil && ctx.Err() == nil {
			slog.Error("the ports of services are not kept", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changes:
		}
	}
}

func (d *serviceDoors) keep(ctx context.Context) error {
	ports, err := d.services.Doors(ctx)
	if err != nil {
		return err
	}
	wanted := map[int]bool{}
	for _, port := range ports {
		wanted[port] = true
		if d.open[port] != nil {
			continue
		}
		ln, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
		if err != nil {
			if why := err.Error(); d.trouble[port] != why {
				d.trouble[port] = why
				slog.Error("a service cannot be reached", "err", explainListen("the service of this address", port, err))
			}
			continue
		}
		delete(d.trouble, port)
		srv := d.server(port, d.lab.certs.GetCertificate)
		shut := d.lab.serviceOnTailnet(port, func() *http.Server { return d.server(port, d.lab.tailnet.GetCertificate) })
		d.open[port] = func() {
			_ = srv.Close()
			shut()
		}
		go func() { _ = srv.ServeTLS(limitPerAddress(ln, connectionsPerAddress, nil), "", "") }()
	}
	for port, shut := range d.open {
		if !wanted[port] {
			shut()
			delete(d.open, port)
		}
	}
	return nil
}

func (d *serviceDoors) server(port int, certs func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *http.Server {
	srv := d.proxy.Server()
	srv.Handler = cookies.Limit(d.proxy.Door(port))
	// HTTP/1.1 only, as on the notebooks' port: WebSockets need it.
	srv.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certs, NextProtos: []string{"http/1.1"}}
	srv.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	return srv
}
