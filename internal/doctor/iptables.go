package doctor

import (
	"slices"
	"strings"
)

// iptables is the filter table as iptables-save prints it.
type iptables struct {
	policy map[string]string     // by built-in chain: ACCEPT or DROP
	chains map[string][][]string // rules, each as its words
}

// parseIptables reads what iptables-save prints. Other tables than filter
// decide over nothing that is asked here.
func parseIptables(save string) iptables {
	t := iptables{policy: map[string]string{}, chains: map[string][][]string{}}
	inFilter := false
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		switch words := splitWords(line); {
		case strings.HasPrefix(line, "*"):
			inFilter = line == "*filter"
		case !inFilter || len(words) < 2:
		case strings.HasPrefix(line, ":"):
			t.policy[words[0][1:]] = words[1]
			t.chains[words[0][1:]] = nil
		case words[0] == "-A":
			t.chains[words[1]] = append(t.chains[words[1]], words[2:])
		}
	}
	return t
}

// splitWords splits a line at spaces, but for those in quotes.
func splitWords(line string) []string {
	var words []string
	var word strings.Builder
	quoted, any := false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && quoted && i+1 < len(line):
			i++
			word.WriteByte(line[i])
		case c == '"':
			quoted, any = !quoted, true
		case c == ' ' && !quoted:
			if any {
				words = append(words, word.String())
			}
			word.Reset()
			any = false
		default:
			word.WriteByte(c)
			any = true
		}
	}
	if any {
		words = append(words, word.String())
	}
	return words
}

// has tells whether the table has a chain whose name begins so.
func (t iptables) has(prefix string) bool {
	for name := range t.chains {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// blocks reports whether the packet surely does not get through.
func (t iptables) blocks(p packet) bool {
	chain := strings.ToUpper(p.hook)
	switch verdict, open := t.walk(chain, p, 0); verdict {
	case drops:
		return !open
	case passes:
		return !open && t.policy[chain] == "DROP"
	}
	return false
}

// walk goes through a chain. open tells that a rule which may fit would let the
// packet through.
func (t iptables) walk(chain string, p packet, depth int) (v verdict, open bool) {
	if depth > 30 {
		return accepts, true
	}
	for _, rule := range t.chains[chain] {
		fits, target, isGoto := matchRule(rule, p)
		if fits == no {
			continue
		}
		did := passes
		switch target {
		case "ACCEPT", "NFQUEUE", "QUEUE":
			did = accepts
		case "DROP", "REJECT":
			did = drops
		case "RETURN":
			if fits == yes {
				return passes, open
			}
		default:
			if _, known := t.chains[target]; known {
				inner, within := t.walk(target, p, depth+1)
				did, open = inner, open || within
				if isGoto && fits == yes && did == passes {
					return passes, open
				}
			}
		}
		switch {
		case did == passes:
		case fits == yes:
			return did, open
		case did == accepts:
			open = true
		}
	}
	return passes, open
}

// matchRule says whether a rule is about the packet, and what it does then.
func matchRule(words []string, p packet) (fits sure, target string, isGoto bool) {
	fits = yes
	negated := false
	for i := 0; i < len(words); i++ {
		option := words[i]
		if option == "!" {
			negated = true
			continue
		}
		value := ""
		if i+1 < len(words) && takesValue(option) {
			i++
			value = words[i]
		}
		var m sure
		switch option {
		case "-j":
			target, m = value, yes
		case "-g":
			target, isGoto, m = value, true, yes
		case "-i":
			m = matchesName(p.in, value, "+")
		case "-o":
			m = matchesName(p.out, value, "+")
		case "-p":
			m = certain(value == "all" || value == p.protocol)
		case "--dport":
			m = p.portIn(value, ":")
		case "--dports":
			m = no
			for _, part := range strings.Split(value, ",") {
				m = max(m, p.portIn(part, ":"))
			}
		case "--ctstate", "--state":
			m = isNew(strings.Split(value, ","))
		case "-d":
			m = p.toAddress(value)
		case "-s":
			m = p.from(value)
		case "--dst-type":
			m = perhaps
			if p.hook == "input" {
				m = certain(value == "LOCAL")
			}
		case "-m":
			m = yes
			// These say nothing without an option of theirs, which is looked at.
			if !slices.Contains([]string{"comment", "tcp", "udp", "conntrack", "state", "multiport", "addrtype"}, value) {
				m = perhaps
			}
		case "--comment", "--reject-with", "--log-prefix", "--log-level", "--log-tcp-options", "--log-ip-options", "--syn":
			m = yes
		default:
			m = perhaps
		}
		if negated {
			m, negated = m.not(), false
		}
		fits = fits.and(m)
	}
	return fits, target, isGoto
}

// takesValue tells options with a value from those without.
func takesValue(option string) bool {
	return strings.HasPrefix(option, "-") && !slices.Contains([]string{
		"--syn", "--log-tcp-options", "--log-ip-options", "--rcheck", "--update", "--set", "--rsource", "--rdest", "--loose",
		"--limit-iface-in", "--random", "--random-fully",
	}, option)
}
