// Command flannel is the CNI plugin that connects pods to the network flannel
// has set up on this node. It makes no interface itself: it reads the subnet
// that flannel leased for the node and has the bridge plugin, with host-local
// addresses, do the work. Notebooks it guards from their first moment, see
// guard.go. It limits what a pod's user namespace takes from the kernel, see
// userlimits.go.
//
// It exists because flannel's own plugin lives in a module that cannot be
// fetched at any version. It understands the same configuration (subnetFile,
// dataDir, ipam, delegate) and keeps what it delegated in dataDir, so that a
// pod can be taken down when the lease is gone or has changed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Check: check, Del: del},
		// Later versions of the specification ask for STATUS and GC, which
		// k3s never calls: it writes version 1.0.0.
		version.PluginSupports("0.3.1", "0.4.0", "1.0.0"),
		"flannel: delegates to bridge within the node's leased subnet")
}

// add connects one container and remembers how. When the delegate fails the
// record stays: the runtime answers a failed ADD with DEL, which needs it.
func add(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	lease, err := readLease(conf.SubnetFile)
	if err != nil {
		return noLease(err)
	}
	delegate, err := conf.delegateTo(lease)
	if err != nil {
		return err
	}
	if err := conf.record(args).save(delegate); err != nil {
		return err
	}
	if err := limitUsers(args.Netns, userLimits); err != nil {
		return err
	}
	if !lease.hasIPv6() {
		if err := withoutIPv6(args.Netns); err != nil {
			return err
		}
	}
	result, err := invoke.DelegateAdd(context.Background(), delegate.plugin(), delegate.json(), nil)
	if err != nil {
		return fmt.Errorf("have %s connect container %s: %w", delegate.plugin(), args.ContainerID, err)
	}
	if !lease.hasIPv6() && delegate.plugin() == "bridge" {
		if err := bridgeWithoutIPv6(delegate.bridge()); err != nil {
			return err
		}
	}
	if err := guard(args.Args, result, lease.networks); err != nil {
		return err
	}
	return types.PrintResult(result, conf.CNIVersion)
}

// check asks the delegate whether the container is still connected the way it
// was set up, which may be by another lease than today's.
func check(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	delegate, err := conf.record(args).load()
	if err != nil {
		return fmt.Errorf("container %s was not connected by this plugin: %w", args.ContainerID, err)
	}
	conf.passOn(delegate)
	return invoke.DelegateCheck(context.Background(), delegate.plugin(), delegate.json(), nil)
}

// del disconnects one container. It may be called again and again, also for a
// container that was never connected, and after a reboot, when flannel has no
// lease yet: whatever is not there any more counts as taken down.
func del(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	record := conf.record(args)
	delegate, err := record.load()
	if errors.Is(err, fs.ErrNotExist) {
		delegate, err = conf.delegateFromLease()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	if err != nil {
		return err
	}
	conf.passOn(delegate)
	if err := invoke.DelegateDel(context.Background(), delegate.plugin(), delegate.json(), nil); err != nil {
		return fmt.Errorf("have %s disconnect container %s: %w", delegate.plugin(), args.ContainerID, err)
	}
	return record.remove()
}

// noLease turns a missing lease into the error that the runtime retries later.
func noLease(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return types.NewError(types.ErrTryAgainLater, "flannel has no subnet for this node yet", err.Error())
	}
	return err
}
