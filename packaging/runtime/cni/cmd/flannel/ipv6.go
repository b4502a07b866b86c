package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containernetworking/plugins/pkg/ns"
)

// Where the kernel keeps what holds for interfaces; of the network namespace
// that the reading thread is in.
const ipv6Settings = "/proc/sys/net/ipv6/conf"

// withoutIPv6 keeps the container's interfaces that are still to come from
// giving themselves link-local addresses. Containers on one bridge would reach
// each other and the node by these, past every rule: where the cluster has
// IPv4 only, so have its network policies. The loopback interface keeps ::1.
func withoutIPv6(container string) error {
	err := ns.WithNetNSPath(container, func(ns.NetNS) error { return switchOff("default") })
	if err != nil {
		return fmt.Errorf("keep the container without IPv6: %w", err)
	}
	return nil
}

// bridgeWithoutIPv6 is the same for the node's own end.
func bridgeWithoutIPv6(bridge string) error {
	if err := switchOff(bridge); err != nil {
		return fmt.Errorf("keep the bridge %s without IPv6: %w", bridge, err)
	}
	return nil
}

func switchOff(interfaces string) error {
	err := os.WriteFile(filepath.Join(ipv6Settings, interfaces, "disable_ipv6"), []byte("1"), 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // this kernel has no IPv6
	}
	return err
}
