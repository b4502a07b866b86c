package config

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"

	"github.com/gpulab/gpulab/internal/webca"
)

// localNameForm is a label of the domain name system.
var localNameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// LocalName is the first part of the name ending in .local by which people on the local network reach the lab, or off.
type LocalName string

// UnmarshalJSON accepts the name with its ending, too.
func (n *LocalName) UnmarshalJSON(data []byte) error {
	*n = LocalName(strings.TrimSuffix(strings.ToLower(strings.TrimSuffix(text(data), ".")), ".local"))
	return nil
}

// On reports whether the lab has a name on the local network.
func (n LocalName) On() bool { return n != LocalName(Off) }

func (n LocalName) check() error {
	if localNameForm.MatchString(string(n)) {
		return nil
	}
	return fmt.Errorf("localName is %q; it may be letters a to z, digits and single hyphens, such as gpulab for "+
		"gpulab.local, or off", string(n))
}

// wildcardBase is what may follow "*.": two labels or more.
var wildcardBase = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// LongestLabel is the longest label in front of a base, with its dot.
const LongestLabel = "n65535."

// OwnNames returns the entries of names without a *.
func (c *Config) OwnNames() []string {
	return slices.DeleteFunc(slices.Clone(c.Names), func(name string) bool { return strings.Contains(name, "*") })
}

// Wildcards returns the names below which each person's notebooks have a name: lab.example.org for the entry
// *.lab.example.org.
func (c *Config) Wildcards() (bases []string) {
	for _, name := range c.Names {
		if base, ok := strings.CutPrefix(name, "*."); ok {
			bases = append(bases, strings.ToLower(base))
		}
	}
	slices.Sort(bases)
	return slices.Compact(bases)
}

func (c *Config) checkWildcards() error {
	for _, name := range c.Names {
		if strings.Contains(strings.TrimPrefix(name, "*."), "*") {
			return fmt.Errorf("names holds %q, but a * may only be the whole first part, as in *.lab.example.org", name)
		}
	}
	own := map[string]bool{}
	for _, name := range c.OwnNames() {
		own[strings.ToLower(name)] = true
	}
	for _, base := range c.Wildcards() {
		suffix, _ := publicsuffix.PublicSuffix(base)
		_, err := netip.ParseAddr(base)
		switch {
		case err == nil:
			return fmt.Errorf("names holds *.%s, but there are no names below an address; give the lab a name first", base)
		case !strings.Contains(base, ".") || suffix == base:
			return fmt.Errorf("names holds *.%s, but the names below %s belong to many; write the lab's own, as "+
				"*.lab.example.org", base, base)
		case strings.HasSuffix(base, ".local"):
			return fmt.Errorf("names holds *.%s, but no name server answers for names ending in .local; leave it out: "+
				"notebooks have ports there", base)
		case !wildcardBase.MatchString(base) || len(LongestLabel+base) > 253:
			return fmt.Errorf("names holds *.%s, but %q is no name for a computer; names with other letters need their "+
				"xn-- form",
				base, base)
		case !own[base]:
			return fmt.Errorf("names holds *.%s, but not %s, where people open the pages; add that too: names: [%s, \"*.%s\"]",
				base, base, base, base)
		}
	}
	return nil
}

// Uncovered names a wildcard name that the certificate from another authority does not cover; empty for none.
func (c *Config) Uncovered(own *webca.Own) string {
	for _, base := range c.Wildcards() {
		if own.For(base) != nil && own.For(LongestLabel+base) == nil {
			return fmt.Sprintf("the certificate that tls names does not cover *.%s, so notebooks there show the lab's own "+
				"certificate", base)
		}
	}
	return ""
}
