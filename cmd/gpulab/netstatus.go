package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/tenancy"
	"github.com/gpulab/gpulab/internal/users"
)

// ownMachines is said of what stays closed although it is allowed.
const ownMachines = "It lies within the lab's own machines, pods and services, which stay closed."

// network is what notebooks may reach, and what keeps them from it.
func (l *appliance) network(ctx context.Context) ctl.Network {
	n := ctl.Network{Allow: []ctl.Allowed{}}
	forbidden, err := l.forbidden()
	if err != nil {
		forbidden = nil // nothing is told to be closed that may be open
	}
	for _, a := range l.cfg.Network.Allow {
		d := a.Destination()
		n.Allow = append(n.Allow, ctl.Allowed{
			Name: d.Name, To: written(d.To), Ports: d.Ports, Groups: d.Groups, Problem: l.notOpen(ctx, d, forbidden),
		})
	}
	if l.proxy == nil || l.proxy.host == "" {
		return n
	}
	n.Proxy = &ctl.Proxy{URL: l.cfg.Network.Proxy, Addresses: []string{}}
	for _, p := range l.proxy.addresses() {
		n.Proxy.Addresses = append(n.Proxy.Addresses, p.Addr().String())
		if _, open := tenancy.Without(netip.PrefixFrom(p.Addr(), 32), forbidden); !open {
			n.Proxy.Problem = ownMachines
		}
	}
	if err := l.proxy.problem(); err != nil {
		n.Proxy.Problem = fmt.Sprintf("Its name cannot be looked up: %v.", err)
	}
	return n
}

func (l *appliance) notOpen(ctx context.Context, d tenancy.Destination, forbidden []netip.Prefix) string {
	if _, open := tenancy.Without(d.To, forbidden); !open {
		return ownMachines
	}
	for _, group := range d.Groups {
		if _, err := l.people.Members(ctx, group); errors.Is(err, users.ErrGroupNotFound) {
			return fmt.Sprintf("There is no group %s.", group)
		}
	}
	return ""
}

// written leaves /32 out, as people do.
func written(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func networkComponent(n ctl.Network) ctl.Component {
	c := ctl.Component{Name: "network", State: ctl.OK, Detail: "notebooks reach the internet and no private address"}
	if len(n.Allow) > 0 {
		c.Detail = fmt.Sprintf("notebooks reach the internet and what network.allow names (%d)", len(n.Allow))
	}
	if n.Proxy != nil {
		c.Detail += "; proxy " + n.Proxy.URL
	}
	if problems := n.Problems(); len(problems) > 0 {
		c.State, c.Detail = ctl.Warning, strings.Join(problems, " ")
		c.NextStep = "correct network in /etc/gpulab/config.yaml, then run `gpulab init`"
	}
	return c
}
