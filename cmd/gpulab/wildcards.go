package main

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"

	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/webca"
)

// wildcardBase is what may stand behind "*.": two labels or more.
var wildcardBase = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// longestLabel is the longest that comes before a base, with its dot.
const longestLabel = "n65535."

// ownNames are the entries of names without a *.
func (c *Config) ownNames() []string {
	return slices.DeleteFunc(slices.Clone(c.Names), func(name string) bool { return strings.Contains(name, "*") })
}

// wildcards are the names below which each person's notebooks have one of their own:
// lab.example.org for the entry *.lab.example.org.
func (c *Config) wildcards() (bases []string) {
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
	for _, name := range c.ownNames() {
		own[strings.ToLower(name)] = true
	}
	for _, base := range c.wildcards() {
		suffix, _ := publicsuffix.PublicSuffix(base)
		_, err := netip.ParseAddr(base)
		switch {
		case err == nil:
			return fmt.Errorf("names holds *.%s, but there are no names below an address; give the lab a name first", base)
		case !strings.Contains(base, ".") || suffix == base:
			return fmt.Errorf("names holds *.%s, but the names below %s belong to many; write the lab's own, as *.lab.example.org", base, base)
		case strings.HasSuffix(base, ".local"):
			return fmt.Errorf("names holds *.%s, but no name server answers for names ending in .local; leave it out: notebooks have ports there", base)
		case !wildcardBase.MatchString(base) || len(longestLabel+base) > 253:
			return fmt.Errorf("names holds *.%s, but %q is no name for a computer; names with other letters need their xn-- form", base, base)
		case !own[base]:
			return fmt.Errorf("names holds *.%s, but not %s, where people open the pages; add that too: names: [%s, \"*.%s\"]", base, base, base, base)
		}
	}
	return nil
}

// uncovered says of which wildcard names the lab's own certificate knows nothing, "" for none.
func (c *Config) uncovered(own *webca.Own) string {
	for _, base := range c.wildcards() {
		if own.For(base) != nil && own.For(longestLabel+base) == nil {
			return fmt.Sprintf("the certificate that tls names does not cover *.%s, so notebooks there show the lab's own certificate", base)
		}
	}
	return ""
}

// openLabels gives notebooks names where the lab has a wildcard name.
func (l *appliance) openLabels() error {
	bases := l.cfg.wildcards()
	if len(bases) == 0 {
		return nil
	}
	key, err := loadLabelKey(l.cfg.DataDir)
	if err != nil {
		return err
	}
	l.labels = notebooks.NewLabels(bases, l.cfg.HTTPSPort, []byte(key), l.people.SessionByID)
	l.origins.UseLabels(l.labels)
	return nil
}
