package doctor

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// nftables is the ruleset as `nft -j list ruleset` prints it.
type nftables struct {
	chains map[nftName]*nftChain
}

type nftName struct{ family, table, name string }

type nftChain struct {
	nftName
	hook, policy string // "" for chains that only others lead to
	rules        [][]map[string]json.RawMessage
}

// parseNftables reads the tables that filter IPv4 packets, but for those of
// iptables, which iptables-save shows better, and those of gpulab and
// Kubernetes themselves.
func parseNftables(text string) (nftables, error) {
	set := nftables{chains: map[nftName]*nftChain{}}
	var list struct {
		Nftables []struct {
			Chain *struct{ Family, Table, Name, Type, Hook, Policy string }
			Rule  *struct {
				Family, Table, Chain string
				Expr                 []map[string]json.RawMessage
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return set, fmt.Errorf("the rules of nftables: %w", err)
	}
	for _, item := range list.Nftables {
		if c := item.Chain; c != nil && filtersHere(c.Family, c.Table) {
			name := nftName{c.Family, c.Table, c.Name}
			chain := &nftChain{nftName: name, policy: c.Policy}
			if c.Type == "filter" {
				chain.hook = c.Hook
			}
			set.chains[name] = chain
		}
	}
	for _, item := range list.Nftables {
		if r := item.Rule; r != nil {
			if chain := set.chains[nftName{r.Family, r.Table, r.Chain}]; chain != nil {
				chain.rules = append(chain.rules, r.Expr)
			}
		}
	}
	// iptables has put its chains where nft shows them too.
	for name := range set.chains {
		if slices.Contains([]string{"INPUT", "FORWARD", "OUTPUT"}, name.name) && name.family == "ip" &&
			name.table == "filter" {
			set.forget(name.family, name.table)
		}
	}
	return set, nil
}

func filtersHere(family, table string) bool {
	return (family == "ip" || family == "inet") && table != "gpulab" && !strings.HasPrefix(table, "kube-") &&
		!strings.HasPrefix(table, "flannel")
}

func (s nftables) forget(family, table string) {
	for name := range s.chains {
		if name.family == family && name.table == table {
			delete(s.chains, name)
		}
	}
}

// blocking returns the chain in which the packet surely ends, nil when it gets
// through or nobody can tell. Every chain at a hook must let it through.
func (s nftables) blocking(p packet) *nftChain {
	for _, chain := range s.chains {
		if chain.hook != p.hook {
			continue
		}
		v, open := s.walk(chain, p, 0)
		if !open && (v == drops || v == passes && chain.policy == "drop") {
			return chain
		}
	}
	return nil
}

// has tells whether there is a table of that name.
func (s nftables) has(table string) bool {
	for name := range s.chains {
		if name.table == table {
			return true
		}
	}
	return false
}

// walk goes through a chain. open tells that a rule which may fit would let the
// packet through.
func (s nftables) walk(chain *nftChain, p packet, depth int) (v verdict, open bool) {
	if depth > 30 {
		return accepts, true
	}
	for _, rule := range chain.rules {
		fits := yes
		for _, statement := range rule {
			for kind, value := range statement {
				switch kind {
				case "match":
					fits = fits.and(p.matches(value))
				case "counter", "log", "comment", "mangle", "notrack", "xt_comment", "masquerade", "dnat", "snat":
				case "vmap":
					fits = fits.and(perhaps) // which of its entries is looked at below
				case "accept", "drop", "reject", "queue", "return", "jump", "goto":
				default:
					fits = fits.and(perhaps)
				}
			}
		}
		if fits == no {
			continue
		}
		for _, statement := range rule {
			did, within, ended := s.decide(chain, statement, p, depth)
			open = open || within
			switch {
			case ended && fits == yes:
				return did, open
			case did == accepts:
				open = true
			case did == drops && fits == yes:
				return did, open
			}
		}
	}
	return passes, open
}

// decide does what one statement says. ended: nothing after it counts.
func (s nftables) decide(chain *nftChain, statement map[string]json.RawMessage, p packet,
	depth int) (v verdict, open, ended bool) {
	for kind, value := range statement {
		switch kind {
		case "accept", "queue":
			return accepts, false, true
		case "drop", "reject":
			return drops, false, true
		case "return":
			return passes, false, true
		case "jump", "goto":
			var to struct{ Target string }
			_ = json.Unmarshal(value, &to)
			next := s.chains[nftName{chain.family, chain.table, to.Target}]
			if next == nil {
				return accepts, true, true
			}
			v, open = s.walk(next, p, depth+1)
			return v, open, kind == "goto" || v != passes
		case "vmap":
			return s.lookUp(chain, value, p, depth)
		}
	}
	return passes, false, false
}

// lookUp finds the packet in a map from what it is to what becomes of it.
func (s nftables) lookUp(chain *nftChain, value json.RawMessage, p packet, depth int) (v verdict, open, ended bool) {
	var m struct {
		Key  json.RawMessage
		Data struct{ Set [][]json.RawMessage }
	}
	if json.Unmarshal(value, &m) != nil || len(m.Data.Set) == 0 {
		return accepts, true, false // a named map: nobody knows
	}
	for _, entry := range m.Data.Set {
		if len(entry) != 2 {
			continue
		}
		var then map[string]json.RawMessage
		_ = json.Unmarshal(entry[1], &then)
		fits := p.compares(m.Key, entry[0])
		if fits == no {
			continue
		}
		did, within, _ := s.decide(chain, then, p, depth)
		open = open || within
		switch {
		case fits == yes && did != passes:
			return did, open, true
		case did == accepts:
			open = true
		}
	}
	return passes, open, false
}

// matches answers one condition of a rule.
func (p packet) matches(value json.RawMessage) sure {
	var m struct {
		Op          string
		Left, Right json.RawMessage
	}
	if json.Unmarshal(value, &m) != nil {
		return perhaps
	}
	fits := p.compares(m.Left, m.Right)
	switch m.Op {
	case "==", "in":
		return fits
	case "!=":
		return fits.not()
	}
	return perhaps
}

// compares tells whether what left names of the packet is right, or in it.
func (p packet) compares(left, right json.RawMessage) sure {
	var what struct {
		Meta    *struct{ Key string }
		Payload *struct{ Protocol, Field string }
		Ct      *struct{ Key string }
	}
	if json.Unmarshal(left, &what) != nil {
		return perhaps
	}
	var is func(value string) sure
	switch {
	case what.Ct != nil && what.Ct.Key == "state":
		is = func(value string) sure { return isNew([]string{value}) }
	case what.Ct != nil && what.Ct.Key == "status":
		is = func(value string) sure { return certain(value == "dnat" && p.service) }
	case what.Meta != nil:
		is = p.meta(what.Meta.Key)
	case what.Payload != nil:
		is = p.payload(what.Payload.Protocol, what.Payload.Field)
	}
	if is == nil {
		return perhaps
	}
	best := no
	for _, value := range nftValues(right) {
		best = max(best, is(value))
	}
	return best
}

func (p packet) meta(key string) func(string) sure {
	switch key {
	case "iifname", "iif":
		return func(v string) sure { return matchesName(p.in, v, "*") }
	case "oifname", "oif":
		return func(v string) sure { return matchesName(p.out, v, "*") }
	case "l4proto":
		return func(v string) sure { return certain(v == p.protocol) }
	case "nfproto":
		return func(v string) sure { return certain(v == "ipv4") }
	case "protocol":
		return func(v string) sure { return certain(v == "ip") }
	case "pkttype":
		return func(v string) sure { return certain(v == "host") }
	}
	return nil
}

func (p packet) payload(protocol, field string) func(string) sure {
	switch {
	case protocol == "ip6" || protocol == "icmp" || protocol == "icmpv6":
		return func(string) sure { return no }
	case (protocol == "tcp" || protocol == "udp") && protocol != p.protocol:
		return func(string) sure { return no }
	case field == "dport":
		return func(v string) sure { return p.portIn(v, "-") }
	case protocol == "ip" && field == "protocol":
		return func(v string) sure { return certain(v == p.protocol) }
	case protocol == "ip" && field == "daddr":
		return p.toAddress
	case protocol == "ip" && field == "saddr":
		return p.from
	}
	return nil
}

// nftValues writes what stands right of a condition as words: a number, a name,
// several of them, "80-90" for a range, "10.0.0.0/8" for a network. What is
// kept elsewhere, in a named set, is "@name" and fits nothing for sure.
func nftValues(raw json.RawMessage) []string {
	var list []json.RawMessage
	var number json.Number
	var text string
	var object struct {
		Set    []json.RawMessage
		Range  []json.RawMessage
		Prefix *struct {
			Addr string
			Len  int
		}
		Elem *struct{ Val json.RawMessage }
	}
	switch {
	case json.Unmarshal(raw, &text) == nil:
		return []string{text}
	case json.Unmarshal(raw, &number) == nil:
		return []string{number.String()}
	case json.Unmarshal(raw, &list) == nil:
	case json.Unmarshal(raw, &object) != nil:
		return []string{"@"}
	case object.Prefix != nil:
		return []string{fmt.Sprintf("%s/%d", object.Prefix.Addr, object.Prefix.Len)}
	case len(object.Range) == 2:
		return []string{strings.Join(nftValues(object.Range[0]), "") + "-" + strings.Join(nftValues(object.Range[1]), "")}
	case object.Elem != nil:
		return nftValues(object.Elem.Val)
	default:
		list = object.Set
	}
	var values []string
	for _, item := range list {
		values = append(values, nftValues(item)...)
	}
	return values
}
