package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"
)

// Where flannel leaves its lease and where connected containers are
// remembered, unless the configuration says otherwise.
const (
	defaultSubnetFile = "/run/flannel/subnet.env"
	defaultDataDir    = "/var/lib/cni/flannel"
)

// conf is the plugin's configuration, as the runtime passes it on stdin.
type conf struct {
	CNIVersion    string          `json:"cniVersion"`
	Name          string          `json:"name"`
	SubnetFile    string          `json:"subnetFile"`
	DataDir       string          `json:"dataDir"`
	IPAM          map[string]any  `json:"ipam"`
	Delegate      delegate        `json:"delegate"`
	RuntimeConfig json.RawMessage `json:"runtimeConfig"`
	PrevResult    json.RawMessage `json:"prevResult"`
}

// delegate is the configuration of the plugin that does the work. It stays a
// map because it may hold anything that plugin understands.
type delegate map[string]any

func parseConf(stdin []byte) (*conf, error) {
	c := &conf{SubnetFile: defaultSubnetFile, DataDir: defaultDataDir}
	if err := json.Unmarshal(stdin, c); err != nil {
		return nil, fmt.Errorf("read the flannel network configuration: %w", err)
	}
	for _, key := range []string{"name", "cniVersion", "ipam"} {
		if _, there := c.Delegate[key]; there {
			return nil, fmt.Errorf("the delegate's %q is set by flannel, remove it from the network configuration", key)
		}
	}
	if kind, there := c.Delegate["type"]; there {
		if name, ok := kind.(string); !ok || name == "" {
			return nil, errors.New("the delegate's type must be the name of a plugin")
		}
	}
	return c, nil
}

// delegateTo makes the delegate's configuration for a lease. What the
// configuration says itself wins over what is derived here.
func (c *conf) delegateTo(l lease) (delegate, error) {
	d := delegate{}
	for key, value := range c.Delegate {
		d[key] = value
	}
	d["cniVersion"], d["name"] = c.CNIVersion, c.Name
	d.setDefault("type", "bridge")
	// Somebody has to masquerade what leaves the cluster, but only once.
	d.setDefault("ipMasq", !l.masks)
	if l.mtu > 0 {
		d.setDefault("mtu", l.mtu)
	}
	if d.plugin() == "bridge" {
		d.setDefault("isGateway", true)
	}
	ipam, err := c.addresses(l)
	if err != nil {
		return nil, err
	}
	d["ipam"] = ipam
	c.passOn(d)
	return d, nil
}

// delegateFromLease is delegateTo with today's lease.
func (c *conf) delegateFromLease() (delegate, error) {
	l, err := readLease(c.SubnetFile)
	if err != nil {
		return nil, err
	}
	return c.delegateTo(l)
}

// addresses makes the address part: this node's subnets, and routes through
// the bridge to every other node's.
func (c *conf) addresses(l lease) (map[string]any, error) {
	ipam := map[string]any{"type": "host-local"}
	for key, value := range c.IPAM {
		ipam[key] = value
	}
	var ranges []any
	for _, subnet := range l.subnets {
		ranges = append(ranges, []any{map[string]any{"subnet": subnet.String()}})
	}
	ipam["ranges"] = ranges

	routes, ok := ipam["routes"].([]any)
	if ipam["routes"] != nil && !ok {
		return nil, errors.New("ipam.routes must be a list of routes")
	}
	for _, network := range l.networks {
		routes = append(routes, map[string]any{"dst": network.String()})
	}
	ipam["routes"] = routes
	return ipam, nil
}

// passOn hands over what belongs to this one call rather than to the network.
func (c *conf) passOn(d delegate) {
	for key, value := range map[string]json.RawMessage{"runtimeConfig": c.RuntimeConfig, "prevResult": c.PrevResult} {
		if len(value) > 0 {
			d[key] = value
		}
	}
}

// record is the place where this call's container is remembered.
func (c *conf) record(args *skel.CmdArgs) record {
	return record{dir: c.DataDir, name: args.ContainerID + "-" + args.IfName}
}

func (d delegate) setDefault(key string, value any) {
	if _, there := d[key]; !there {
		d[key] = value
	}
}

// plugin is the name of the delegate's program.
func (d delegate) plugin() string {
	name, _ := d["type"].(string)
	return name
}

// bridge is the name of the bridge that the bridge plugin makes or takes.
func (d delegate) bridge() string {
	if name, _ := d["bridge"].(string); name != "" {
		return name
	}
	return "cni0"
}

// json encodes the configuration. It was made from JSON values only, so it
// always can.
func (d delegate) json() []byte {
	text, err := json.Marshal(d)
	if err != nil {
		panic(fmt.Sprintf("encode a delegate made of JSON values: %v", err))
	}
	return text
}
