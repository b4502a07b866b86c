package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/gpulab/gpulab/internal/nfs"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/wireguard"
)

// machinePorts are for other machines and for pods, not for people.
var machinePorts = []int{6443, 10250}

// podBridge is the interface on which this machine's pods are.
const podBridge = "cni0"

// probeFirewall asks the machine's rules what they would do with packets that
// a lab needs. It tells only of what is dropped for sure.
func probeFirewall(h host, opts Options) []Finding {
	if !h.isRoot() {
		return []Finding{{Probe: "firewall", State: Unseen, Seen: "Only root can see the rules of the firewall."}}
	}
	w, err := h.readFirewall()
	if err != nil {
		return []Finding{{
			Probe: "firewall", State: Unseen,
			Seen: fmt.Sprintf("The rules of the firewall cannot be read: %v.", err),
			Mend: "Run `apt-get install iptables nftables`.",
		}}
	}
	var findings []Finding
	if opts.Joined != nil {
		opts.Ports, opts.ServicePorts, opts.NotebookPorts = nil, nil, nil // people and pods ask the head
	}
	if blocked, where := w.blockedPeople(h.outward(), opts); len(blocked) > 0 {
		findings = append(findings, Finding{
			Probe: "firewall", State: Fail,
			Seen:  fmt.Sprintf("%s drops connections from other computers to %s.", w.name(), portList(blocked)),
			Means: "People cannot reach the lab's pages, notebooks or files.",
			Mend:  w.openPorts(where, texts(blocked)...),
		})
	}
	if at, blocked := w.blockedRange(h.outward(), opts, opts.NotebookPorts); blocked {
		called, open := rangeWords(opts.NotebookPorts)
		findings = append(findings, Finding{
			Probe: "firewall", State: Fail,
			Seen:  fmt.Sprintf("%s drops connections from other computers to notebooks (%s).", w.name(), called),
			Means: "Notebooks open on this machine alone.",
			Mend:  w.openPorts(at, open),
		})
	}
	if at, blocked := w.blockedRange(h.outward(), opts, opts.ServicePorts); blocked {
		called, open := rangeWords(opts.ServicePorts)
		findings = append(findings, Finding{
			Probe: "firewall", State: Warn,
			Seen:  fmt.Sprintf("%s drops connections from other computers to the services of notebooks (%s).", w.name(), called),
			Means: "A service that somebody publishes opens on this machine alone.",
			Mend:  w.openPorts(at, open) + " `servicePorts: off` in the configuration is for a lab without services.",
		})
	}
	if dir, where := w.blockedPods(h.outward(), opts); dir != "" {
		findings = append(findings, Finding{
			Probe: "firewall", State: Fail,
			Seen:  fmt.Sprintf("%s drops what notebooks send %s.", w.name(), dir),
			Means: "Notebooks find no names, reach neither the hub nor the internet, or do not start at all.",
			Mend:  w.openPods(where),
		})
	}
	if opts.Joined != nil {
		findings = append(findings, w.betweenMachines(h.outward(), opts.Encrypt, 10250)...)
	} else if lab, err := h.ask(); err == nil && lab.Nodes > 1 {
		ports := []int{cmp.Or(opts.NodesPort, 8444), 6443, 10250}
		if opts.ServeNFS {
			ports = append(ports, nfs.Port)
		}
		findings = append(findings, w.betweenMachines(h.outward(), opts.Encrypt, ports...)...)
	}
	if findings == nil {
		return []Finding{{Probe: "firewall", State: OK,
			Seen: "No rule is seen that would drop what people or notebooks send."}}
	}
	return findings
}

// walls are the rules of both kinds.
type walls struct {
	ip  iptables
	nft nftables
}

func (h host) readFirewall() (walls, error) {
	w := walls{}
	save, err := h.output(h.ctx, "iptables-save")
	if err != nil {
		return w, err
	}
	rules, err := h.output(h.ctx, "nft", "-j", "list", "ruleset")
	if err != nil {
		return w, err
	}
	w.ip = parseIptables(save)
	w.nft, err = parseNftables(rules)
	return w, err
}

// block says where a packet ends.
type block struct {
	iptables string    // the built-in chain, "" when it is not there
	nft      *nftChain // otherwise
}

func (w walls) blocking(p packet) (block, bool) {
	if w.ip.blocks(p) {
		return block{iptables: strings.ToUpper(p.hook)}, true
	}
	if chain := w.nft.blocking(p); chain != nil {
		return block{nft: chain}, true
	}
	return block{}, false
}

// blockedPeople returns the ports of the lab that nobody outside reaches.
func (w walls) blockedPeople(outward string, opts Options) (ports []int, where block) {
	for _, port := range opts.Ports {
		if slices.Contains(machinePorts, port) {
			continue
		}
		if at, blocked := w.blocking(fromPeople(outward, opts, port)); blocked {
			ports, where = append(ports, port), at
		}
	}
	return ports, where
}

// blockedRange reports whether other computers do not reach the first or the last port
// of a range. It takes the ports between to be like these.
func (w walls) blockedRange(outward string, opts Options, ports []int) (block, bool) {
	if len(ports) == 0 {
		return block{}, false
	}
	for _, port := range []int{ports[0], ports[len(ports)-1]} {
		if at, blocked := w.blocking(fromPeople(outward, opts, port)); blocked {
			return at, true
		}
	}
	return block{}, false
}

// rangeWords writes a range of ports for people, and as firewalls take it.
func rangeWords(ports []int) (called, open string) {
	first, last := ports[0], ports[len(ports)-1]
	if first == last {
		return "port " + strconv.Itoa(first), strconv.Itoa(first)
	}
	return fmt.Sprintf("ports %d to %d", first, last), fmt.Sprintf("%d:%d", first, last)
}

// fromPeople is what another computer sends to a port of the lab.
func fromPeople(outward string, opts Options, port int) packet {
	p := packet{hook: "input", in: outward, protocol: "tcp", port: port}
	p.to, _ = netip.ParseAddr(opts.Address)
	return p
}

// blockedPods returns which way of notebooks is closed, "" for none.
func (w walls) blockedPods(outward string, opts Options) (direction string, where block) {
	type way struct {
		packet
		name string
	}
	var ways []way
	for i, port := range opts.Ports {
		if i > 0 && port != 6443 {
			continue // the first is that of the pages, which the hub asks
		}
		ways = append(ways, way{
			packet{hook: "input", in: podBridge, protocol: "tcp", port: port, service: true}, "to this machine",
		})
	}
	for _, way := range append(ways, []way{
		{packet{hook: "forward", in: podBridge, out: podBridge, protocol: "udp", port: 53, service: true},
			"to one another and to the lab's name server"},
		{packet{hook: "forward", in: podBridge, out: outward, protocol: "tcp", port: 443},
			"to other machines and the internet"},
	}...) {
		if at, blocked := w.blocking(way.packet); blocked {
			return way.name, at
		}
	}
	return "", block{}
}

// betweenMachines looks at what the machines of a pool send to one another.
func (w walls) betweenMachines(outward string, encrypted bool, ports ...int) []Finding {
	tunnel := wireguard.TunnelPort(encrypted)
	var packets []packet
	for _, port := range ports {
		packets = append(packets, packet{hook: "input", in: outward, protocol: "tcp", port: port})
	}
	for _, p := range append(packets, packet{hook: "input", in: outward, protocol: "udp", port: tunnel}) {
		if at, blocked := w.blocking(p); blocked {
			return []Finding{{
				Probe: "firewall", State: Fail,
				Seen:  fmt.Sprintf("%s drops what other machines of the pool send to port %d (%s).", w.name(), p.port, p.protocol),
				Means: "Notebooks on one machine do not start, or reach nothing on the others.",
				Mend:  w.openPorts(at, texts(ports)...) + fmt.Sprintf(" The same for port %d of UDP.", tunnel),
			}}
		}
	}
	return nil
}

// outward returns the interface that the default route leaves by, "" for none.
func (h host) outward() string {
	for line := range strings.Lines(h.read("/proc/self/net/route")) {
		if f := strings.Fields(line); len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" {
			return f[0]
		}
	}
	return ""
}

func (w walls) ufw() bool       { return w.ip.has("ufw-") }
func (w walls) firewalld() bool { return w.nft.has("firewalld") }

// name is what people call the firewall.
func (w walls) name() string {
	switch {
	case w.ufw():
		return "The firewall ufw"
	case w.firewalld():
		return "The firewall firewalld"
	}
	return "A rule of the firewall"
}

// openPorts is how people get in, to ports such as 443 and 8500:8699.
func (w walls) openPorts(where block, ports ...string) string {
	dashed := strings.Split(strings.ReplaceAll(strings.Join(ports, " "), ":", "-"), " ")
	switch {
	case w.ufw():
		return "Run `" + each(ports, "ufw allow %s/tcp", " && ") + "`."
	case w.firewalld():
		return "Run `firewall-cmd --permanent " + each(dashed, "--add-port=%s/tcp", " ") + " && firewall-cmd --reload`."
	case where.nft != nil:
		return fmt.Sprintf("Run `nft insert rule %s tcp dport '{ %s }' accept`, and write the same into "+
			"/etc/nftables.conf if it is to last.",
			where.nft.place(), strings.Join(dashed, ", "))
	}
	return fmt.Sprintf("Run `iptables -I INPUT -p tcp -m multiport --dports %s -j ACCEPT`, and the same where the "+
		"other rules come from if it is to last.", strings.Join(ports, ","))
}

// openPods is how notebooks get out.
func (w walls) openPods(where block) string {
	switch {
	case w.ufw():
		return "Run `ufw allow in on cni0 && ufw route allow in on cni0 && ufw route allow out on cni0`."
	case w.firewalld():
		return "Run `firewall-cmd --permanent --zone=trusted --add-interface=cni0 --add-interface=flannel.1 " +
			"--add-interface=flannel-wg && firewall-cmd --reload`."
	case where.nft != nil && where.nft.hook == "forward":
		return fmt.Sprintf("Run `nft insert rule %[1]s iifname cni0 accept && nft insert rule %[1]s oifname cni0 accept`, "+
			"and write the same into /etc/nftables.conf if it is to last.", where.nft.place())
	case where.nft != nil:
		return fmt.Sprintf("Run `nft insert rule %s iifname cni0 accept`, and write the same into /etc/nftables.conf if "+
			"it is to last.", where.nft.place())
	case where.iptables == "FORWARD":
		return "Run `iptables -I FORWARD -i cni0 -j ACCEPT && iptables -I FORWARD -o cni0 -j ACCEPT`, and the same where " +
			"the other rules come from if it is to last."
	}
	return "Run `iptables -I INPUT -i cni0 -j ACCEPT`, and the same where the other rules come from if it is to last."
}

// place names the chain as nft takes it.
func (c *nftChain) place() string { return c.family + " " + c.table + " " + c.name }

// each writes each port in the form, with something between.
func each(ports []string, form, between string) string {
	var parts []string
	for _, port := range ports {
		parts = append(parts, fmt.Sprintf(form, port))
	}
	return strings.Join(parts, between)
}

func texts(ports []int) []string {
	var texts []string
	for _, port := range ports {
		texts = append(texts, strconv.Itoa(port))
	}
	return texts
}

// portList writes ports as people do: port 443, ports 443 and 8443.
func portList(ports []int) string {
	if len(ports) == 1 {
		return "port " + strconv.Itoa(ports[0])
	}
	return "ports " + units.List(texts(ports))
}
