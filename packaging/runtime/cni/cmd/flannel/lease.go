package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// lease is what flannel leased for this node, as it writes it for others to
// read: shell variables, one a line.
type lease struct {
	networks []netip.Prefix // of the whole cluster, IPv4 then IPv6
	subnets  []netip.Prefix // of this node, IPv4 then IPv6
	mtu      int            // bytes; 0 if flannel did not say
	masks    bool           // flannel itself masquerades traffic that leaves the cluster
}

// readLease reads flannel's file. Its error wraps fs.ErrNotExist while flannel
// has not written one.
func readLease(path string) (lease, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return lease{}, fmt.Errorf("read flannel's lease: %w", err)
	}
	l, err := parseLease(string(text))
	if err != nil {
		return lease{}, fmt.Errorf("read flannel's lease in %s: %w", path, err)
	}
	return l, nil
}

func parseLease(text string) (lease, error) {
	var l lease
	var errs []error
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if err := l.set(key, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	if len(l.subnets) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("it names no FLANNEL_SUBNET"))
	}
	return l, errors.Join(errs...)
}

// hasIPv6 tells whether containers get IPv6 addresses from flannel.
func (l *lease) hasIPv6() bool {
	return slices.ContainsFunc(l.subnets, func(p netip.Prefix) bool { return p.Addr().Is6() })
}

// set takes one variable over; unknown ones are flannel's business.
func (l *lease) set(key, value string) (err error) {
	switch key {
	case "FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK":
		l.networks, err = appendPrefixes(l.networks, value)
	case "FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET":
		l.subnets, err = appendPrefixes(l.subnets, value)
	case "FLANNEL_MTU":
		l.mtu, err = strconv.Atoi(value)
	case "FLANNEL_IPMASQ":
		l.masks, err = strconv.ParseBool(value)
	}
	return err
}

// appendPrefixes reads a comma-separated list. Flannel names a subnet by the
// bridge's address in it (10.42.0.1/24), host-local wants the network.
func appendPrefixes(list []netip.Prefix, value string) ([]netip.Prefix, error) {
	for _, one := range strings.Split(value, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(one))
		if err != nil {
			return list, err
		}
		list = append(list, prefix.Masked())
	}
	return list, nil
}
