package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/wireguard"
)

// groupMembers tells who is in a group, for the network rules.
func groupMembers(people *users.Service) func(context.Context, string) ([]string, error) {
	return func(ctx context.Context, group string) ([]string, error) {
		members, err := people.Members(ctx, group)
		if errors.Is(err, users.ErrGroupNotFound) {
			return nil, nil
		}
		var handles []string
		for i := range members {
			handles = append(handles, members[i].Handle)
		}
		return handles, err
	}
}

// entrances are this machine's addresses on the two interfaces that lead to
// pods: k3s's bridge to those here, flannel's to those of other machines.
func (l *appliance) entrances() ([]netip.Addr, error) {
	var out []netip.Addr
	for _, name := range []string{"cni0", wireguard.OpenLink, wireguard.Link} {
		iface, err := net.InterfaceByName(name)
		if err != nil {
			continue // not there before the first pod
		}
		addrs, err := iface.Addrs()
		if err != nil {
			return nil, fmt.Errorf("the addresses of %s: %w", name, err)
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && l.id.ClusterCIDR.Contains(p.Addr()) {
				out = append(out, p.Addr())
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out, nil
}
