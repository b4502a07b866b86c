package main

import (
	"context"
	"log/slog"
	"net"
	"strconv"

	"golang.org/x/sync/errgroup"

	"github.com/gpulab/gpulab/internal/notebooks"
)

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
