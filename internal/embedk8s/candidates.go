package embedk8s

import (
	"net/netip"
	"regexp"
)

// Candidate is an address at which people may reach this machine.
type Candidate struct {
	Address   netip.Addr
	Interface string
}

// bridges are interfaces to virtual machines and containers on this machine: nobody comes in there.
var bridges = regexp.MustCompile(`^(docker|br-[0-9a-f]{6,}|virbr|lxcbr|lxdbr|vmnet|vboxnet|podman|veth|cali|weave)`)

// Candidates are the addresses at which people may reach this machine, FindAddress's choice first.
func Candidates() ([]Candidate, error) {
	n, err := lookAround()
	if err != nil {
		return nil, err
	}
	return n.candidates()
}

func (n surroundings) candidates() ([]Candidate, error) {
	first, iface, err := n.find("")
	if err != nil {
		return nil, err
	}
	out := []Candidate{{first, iface}}
	for _, name := range n.ifaces {
		for _, a := range n.addrs[name] {
			if a != first && !bridges.MatchString(name) {
				out = append(out, Candidate{a, name})
			}
		}
	}
	return out, nil
}
