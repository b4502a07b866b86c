package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/gpulab/gpulab/internal/notebooks"
)

const (
	notebookPortsKey = "notebookPorts"
	// maxNotebookPorts bounds the listening sockets: each person who has had a
	// notebook has one.
	maxNotebookPorts = 5000
)

// defaultNotebookPorts are for a configuration that names none: the first that
// leaves its other ports alone.
var defaultNotebookPorts = []string{"21000-21999", "23000-23999", "25000-25999", "27000-27999"}

// NotebookPorts are ports of the head, as two numbers.
type NotebookPorts string

// UnmarshalJSON takes a single number, too.
func (n *NotebookPorts) UnmarshalJSON(data []byte) error {
	*n = NotebookPorts(strings.Trim(string(data), `"`))
	return nil
}

// notebookPorts are the ports of the head from which each person gets one.
func (c *Config) notebookPorts() ([]int, error) {
	taken := c.fixedPorts()
	services, err := c.servicePorts()
	if err != nil {
		return nil, err
	}
	for _, p := range services {
		taken[p] = "a service (servicePorts)"
	}
	ports, err := portRange(notebookPortsKey, string(c.NotebookPorts), maxNotebookPorts, taken)
	if err != nil {
		return nil, fmt.Errorf("%w; notebooks need ports of their own", err)
	}
	return ports, nil
}

// DefaultNotebookPorts is the range of a configuration that names none.
func (c Config) DefaultNotebookPorts() NotebookPorts {
	for _, text := range defaultNotebookPorts {
		tried := c
		tried.NotebookPorts = NotebookPorts(text)
		if _, err := tried.notebookPorts(); err == nil {
			return tried.NotebookPorts
		}
	}
	return NotebookPorts(defaultNotebookPorts[0]) // check says what is in its way
}

// servesNotebooks reports whether a port leads to notebooks.
func (l *appliance) servesNotebooks(port int) bool {
	_, personal := l.origins.Owner(port)
	return personal || port == l.cfg.HubPort
}

// openNotebookPorts listens on the port of each person who has one, on the tailnet
// too, and on those assigned later. One that another program has taken costs its
// person their notebooks, not the lab its start.
func (l *appliance) openNotebookPorts(ctx context.Context, g *errgroup.Group) {
	open := func(port int) {
		d := door{"the notebooks of a person", port, true, notebooks.AtPort(port, l.starting(l.labs)), l.proxies, true, nil}
		ln, err := l.outlived.listen(net.JoinHostPort("", strconv.Itoa(port)))
		if err != nil {
			slog.Error("a person's notebooks cannot be reached", "err", explainListen(d.what, port, err))
			return
		}
		closeOnTailnet := l.tailnet.Open(l.tailnetDoor(d))
		context.AfterFunc(ctx, closeOnTailnet)
		g.Go(func() error { return d.serve(ctx, d.server(l.certs.GetCertificate), ln) })
	}
	for _, port := range l.origins.Ports() {
		open(port)
	}
	l.origins.OnAssigned(open)
}
