package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// resolverFiles are where k3s looks for name servers that pods can use.
var resolverFiles = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// NamesPart is the part of a running gpulab that tells what this probe found.
const NamesPart = "name servers"

// usualOutside is asked for where nothing else is known that pods look for.
const usualOutside = "pypi.org"

// slowName is how long a name may take before people notice.
const slowName = time.Second

// mendNames ends what there is to do about name servers.
const mendNames = "; then `gpulab doctor resolver`."

// probeResolver asks the name servers that pods ask, for a name outside and for the
// same in each search domain. A server on the machine's own loopback, as that of
// systemd-resolved or dnsmasq, is out of a pod's reach.
func probeResolver(h host, opts Options) []Finding {
	var local, six []string
	var from string
	var conf resolvConf
	for _, from = range resolverFiles {
		conf = readResolvConf(h.read(from))
		local, six = append(local, conf.loopback...), append(six, conf.six...)
		if len(conf.usable) > 0 {
			break
		}
	}
	servers := conf.usable
	if opts.Joined != nil && opts.Joined.NameServer.IsValid() {
		// Pods here ask the head's cluster, whatever this machine itself asks.
		servers, from = []netip.Addr{opts.Joined.NameServer}, "the pool's own"
	}
	if len(servers) == 0 {
		return []Finding{noNameServer(local, six)}
	}
	return append(h.tryNames(servers, conf.search, from, opts), h.tryLabels(servers, opts)...)
}

// tryLabels asks whether names of notebooks lead where the lab's own name does. A lab's
// name that the server does not know, or knows for IPv6 alone, says nothing.
func (h host) tryLabels(servers []netip.Addr, opts Options) (findings []Finding) {
	for _, base := range opts.Wildcards {
		label := "n1." + base
		var own, labelled reply
		for _, server := range servers {
			if own = h.askName(server, base); own.known() {
				labelled = h.askName(server, label)
				break
			}
		}
		if !own.address.IsValid() || !labelled.known() || labelled.address == own.address {
			continue
		}
		f := Finding{
			Probe: "resolver", State: Warn,
			Seen:  fmt.Sprintf("The name server knows no address of %s.", label),
			Means: fmt.Sprintf("Notebooks do not open for people who use %s.", base),
			Mend: fmt.Sprintf("Add a record *.%s with the address %s, or take *.%s out of `names` and run `gpulab init`%s",
				base, own.address, base, mendNames),
		}
		if labelled.address.IsValid() {
			f.Seen = fmt.Sprintf("The name server sends %s to %s, and %s to %s.", label, labelled.address, base, own.address)
		}
		findings = append(findings, f)
	}
	return findings
}

func noNameServer(local, six []string) Finding {
	finding := Finding{
		Probe: "resolver", State: Warn,
		Seen:  "This machine has no name server.",
		Means: "Notebooks find no names on the internet: pip and git fail in them. Without a network that is as it must be.",
		Mend: "With a network: run `echo nameserver 192.0.2.53 > /etc/resolv.conf`, with the address of your network's " +
			"name server; then `gpulab doctor resolver`.",
	}
	switch {
	case len(six) > 0:
		finding.Seen = "The only name servers have IPv6 (" + six[0] + "), and notebooks do not."
		finding.Mend = "Put a name server with IPv4 into the network's settings, or into /etc/resolv.conf; then `gpulab " +
			"doctor resolver`."
	case len(local) > 0:
		finding.Seen = "The only name server is on this machine itself (" + local[0] + ")."
		finding.Mend = "Run `apt-get install systemd-resolved && systemctl enable --now systemd-resolved`, which also " +
			"writes down the network's own servers; or put one of those into /etc/resolv.conf."
	}
	return finding
}

// tryNames says what pods get from these servers and search domains.
func (h host) tryNames(servers []netip.Addr, search []string, from string, opts Options) []Finding {
	outside := cmp.Or(opts.Outside, usualOutside)
	replies := make([]reply, len(servers))
	together(len(servers), func(i int) { replies[i] = h.askName(servers[i], outside) })
	var findings []Finding
	works := -1 // the first server that answers
	for i := range replies {
		if works < 0 && replies[i].known() {
			works = i
		}
	}
	for i, r := range replies {
		if f, bad := r.finding(servers[i], outside, works >= 0, opts); bad {
			findings = append(findings, f)
		}
	}
	if works < 0 {
		return findings
	}
	within := make([]reply, len(search))
	together(len(search), func(i int) { within[i] = h.askName(servers[works], outside+"."+search[i]) })
	for i, r := range within {
		if f, bad := r.findingIn(search[i], outside, servers[works], replies[works]); bad {
			findings = append(findings, f)
		}
	}
	if findings != nil {
		return findings
	}
	seen := fmt.Sprintf("Name servers that notebooks can use: %s (%s).", joined(servers), from)
	if a := replies[works].address; a.IsValid() {
		seen += fmt.Sprintf(" Notebooks get %s for %s.", a, outside)
	}
	if len(search) > 0 {
		seen += " They look for names in " + strings.Join(search, ", ") + " only after the name as it is written."
	}
	return []Finding{{Probe: "resolver", State: OK, Seen: seen}}
}

// together calls f for each of n at the same time.
func together(n int, f func(int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

func joined(servers []netip.Addr) string {
	var list []string
	for _, s := range servers {
		list = append(list, s.String())
	}
	return strings.Join(list, ", ")
}

// finding is what is wrong with a server that gave this reply to the plain question.
func (r reply) finding(server netip.Addr, outside string, others bool, opts Options) (f Finding, bad bool) {
	f = Finding{
		Probe: "resolver", State: Warn,
		Means: "Notebooks start, run and save, but find no names outside the lab: pip and git fail in them.",
		Mend:  "Look at this machine's network, or put another name server into its settings" + mendNames,
	}
	if others {
		f.Means = "Notebooks ask the other name servers too, but names can take seconds."
	}
	if opts.Joined != nil {
		f.Mend = "Look at the head: `gpulab doctor resolver` there, and `gpulab doctor stream` here."
	}
	switch {
	case r.err != nil:
		f.Seen = fmt.Sprintf("The name server %s does not answer.", server)
	case !r.known():
		f.Seen = fmt.Sprintf("The name server %s fails to look up %s (%s).", server, outside, rcodeName(r.code))
	case !r.address.IsValid():
		if len(opts.Proxies) > 0 {
			return f, false // the proxy looks names up
		}
		f.Seen = fmt.Sprintf("The name server %s knows no %s.", server, outside)
		f.Means = "pip and git in notebooks do not reach the internet. In a closed network that is as it must be."
	case r.took > slowName:
		f.Seen = fmt.Sprintf("The name server %s took %.1f s to look up %s.", server, r.took.Seconds(), outside)
		f.Means = "Notebooks start, run and save, but pip, git and whatever else looks up a name in them waits that long."
	default:
		return f, false
	}
	return f, true
}

// findingIn is what is wrong with a search domain, of which this is the reply when it
// was asked for the same name there; plain is the reply without it.
func (r reply) findingIn(domain, outside string, server netip.Addr, plain reply) (f Finding, bad bool) {
	f = Finding{Probe: "resolver", State: Warn}
	switch {
	case r.address.IsValid():
		f.Seen = fmt.Sprintf("The search domain %s has an address for %s.%s (%s): it answers for every name.", domain,
			outside, domain, r.address)
		f.Means = fmt.Sprintf("In notebooks, a name that does not exist leads to %s.", r.address)
		if plain.address.IsValid() {
			f.Means += fmt.Sprintf(" Names that exist are not affected: notebooks ask for them as they are written first, "+
				"and get %s for %s.", plain.address, outside)
		} else {
			f.Means += fmt.Sprintf(" %s is such a name here.", outside)
		}
		f.Mend = fmt.Sprintf("Take %s out of the search domains in this machine's network settings or /etc/resolv.conf%s",
			domain, mendNames)
	case r.err != nil || !r.known():
		why := "does not answer"
		if r.err == nil {
			why = "fails (" + rcodeName(r.code) + ")"
		}
		f.Seen = fmt.Sprintf("The name server %s %s when it is asked for a name in the search domain %s.", server, why,
			domain)
		f.Means = "In notebooks, names that do not exist take longer to fail. Others are not affected."
		f.Mend = fmt.Sprintf("If nobody needs %s, take it out of the search domains in this machine's network settings or "+
			"/etc/resolv.conf%s", domain, mendNames)
	default:
		return f, false
	}
	return f, true
}

// resolvConf is what a resolv.conf says, as far as pods are concerned.
type resolvConf struct {
	usable        []netip.Addr // name servers that pods reach
	loopback, six []string     // name servers they do not: on loopback, and those with IPv6
	search        []string     // search domains, in order
}

func readResolvConf(text string) (c resolvConf) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0:
		case f[0] == "search": // the last one counts
			c.search = nil
			for _, domain := range f[1:] {
				if domain = strings.TrimSuffix(domain, "."); domain != "" {
					c.search = append(c.search, domain)
				}
			}
		case f[0] == "nameserver" && len(f) > 1:
			switch addr, err := netip.ParseAddr(f[1]); {
			case err == nil && addr.Is4() && !addr.IsLoopback() && !addr.IsUnspecified():
				c.usable = append(c.usable, addr)
			case err == nil && addr.Is6() && !addr.IsLoopback() && !addr.IsUnspecified():
				c.six = append(c.six, f[1])
			default:
				c.loopback = append(c.loopback, f[1])
			}
		}
	}
	return c
}

// reply is what a name server said when it was asked for an IPv4 address.
type reply struct {
	code    dnsmessage.RCode
	address netip.Addr // not valid where there is none
	took    time.Duration
	err     error // there was no reply
}

// known says that the server could tell: there is such a name, or there is not.
func (r reply) known() bool {
	return r.err == nil && (r.code == dnsmessage.RCodeSuccess || r.code == dnsmessage.RCodeNameError)
}

func rcodeName(code dnsmessage.RCode) string {
	switch code {
	case dnsmessage.RCodeServerFailure:
		return "SERVFAIL"
	case dnsmessage.RCodeRefused:
		return "REFUSED"
	}
	return fmt.Sprintf("error %d", code)
}
