package config

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// The types of values. Each is parsed when the file is read and keeps its text, so that the file is written back as its
// author wrote it. A text that cannot be parsed is kept, too: Check reports it with its key, which the parser does not
// know.

// text returns the text of a scalar. YAML reads the word off as false.
func text(data []byte) string {
	var word string
	switch string(data) {
	case "null":
		return ""
	case "false":
		return string(Off)
	}
	if json.Unmarshal(data, &word) == nil {
		return word
	}
	return string(data)
}

// Word is one of a few words, such as off.
type Word string

// Off turns a feature off.
const Off Word = "off"

// UnmarshalJSON accepts the word off without quotation marks.
func (w *Word) UnmarshalJSON(data []byte) error {
	*w = Word(text(data))
	return nil
}

// value is a value with its text.
type value[T any] struct {
	Value T
	text  string
	wrong bool // the text cannot be parsed
}

// MarshalJSON returns the text.
func (v value[T]) MarshalJSON() ([]byte, error) { return json.Marshal(v.text) }

// String returns the text.
func (v value[T]) String() string { return v.text }

// IsZero reports whether the key is absent. A value of 0 is not.
func (v value[T]) IsZero() bool { return v.text == "" }

// Duration is a length of time: 30m, 168h or 0.
type Duration struct{ value[time.Duration] }

// newDuration parses a duration.
func newDuration(text string) Duration {
	d, err := time.ParseDuration(text)
	return Duration{value[time.Duration]{d, text, err != nil && text != ""}}
}

// durationOf writes a duration without the units that are 0: 30m rather than 30m0s.
func durationOf(d time.Duration) Duration {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = text[:len(text)-2]
	}
	if strings.HasSuffix(text, "h0m") {
		text = text[:len(text)-2]
	}
	return newDuration(text)
}

// UnmarshalJSON accepts the number 0, too.
func (d *Duration) UnmarshalJSON(data []byte) error {
	*d = newDuration(text(data))
	return nil
}

// within reports a value that is no duration between two bounds.
func (d Duration) within(key string, least, most time.Duration, example string) error {
	if d.wrong || d.Value < least || d.Value > most {
		return fmt.Errorf("%s is %q; it may be %s to %s, such as %s", key, d.text, durationOf(least), durationOf(most),
			example)
	}
	return nil
}

// Size is an amount of memory or disk space: 20Gi, or 0.
type Size struct{ value[resource.Quantity] }

// newSize parses a size.
func newSize(text string) Size {
	q, err := resource.ParseQuantity(text)
	return Size{value[resource.Quantity]{q, text, err != nil && text != ""}}
}

// UnmarshalJSON accepts a plain number of bytes, too.
func (s *Size) UnmarshalJSON(data []byte) error {
	*s = newSize(text(data))
	return nil
}

// Bytes returns the size in bytes.
func (s Size) Bytes() int64 { return s.Value.Value() }

// within reports a value that is no size between two bounds; 0 is allowed where zero says what it does.
func (s Size) within(key string, least, most int64, zero, example string) error {
	if !s.wrong && (s.Bytes() >= least && s.Bytes() <= most || zero != "" && s.Value.IsZero()) {
		return nil
	}
	bounds := fmt.Sprintf("it may be %s to %s, such as %s", inBytes(least), inBytes(most), example)
	if most == math.MaxInt64 {
		bounds = fmt.Sprintf("it may be %s or more, such as %s", inBytes(least), example)
	}
	if zero != "" {
		bounds += ", or 0 to " + zero
	}
	return fmt.Errorf("%s is %q; %s", key, s.text, bounds)
}

func inBytes(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }

// Prefix is a network such as 10.1.2.0/24, or a single machine.
type Prefix struct{ value[netip.Prefix] }

// newPrefix parses a network or an address.
func newPrefix(text string) Prefix {
	network, err := netip.ParsePrefix(text)
	if addr, notAddress := netip.ParseAddr(text); notAddress == nil && addr.Zone() == "" {
		network, err = netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	return Prefix{value[netip.Prefix]{network, text, err != nil}}
}

// UnmarshalJSON accepts an address, too.
func (n *Prefix) UnmarshalJSON(data []byte) error {
	*n = newPrefix(text(data))
	return nil
}

// check reports a network with an address inside it, which could mean either.
func (n Prefix) check(key string) error {
	switch {
	case n.wrong:
		return fmt.Errorf("%s holds %q, but a network is written as 10.1.2.0/24, and one machine as 10.1.2.3", key, n.text)
	case n.Value != n.Value.Masked():
		return fmt.Errorf("%s holds %s, which is a machine and a network at once; write %s or %s",
			key, n.text, n.Value.Masked(), n.Value.Addr())
	}
	return nil
}

// Prefixes returns networks as Go's own type.
func Prefixes(list []Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, n := range list {
		out = append(out, n.Value)
	}
	return out
}

// Ports are consecutive ports of the head, such as 8500-8699, a single one, or off.
type Ports struct{ value[portRange] }

// portRange is a range of ports; zero for off.
type portRange struct{ low, high int }

// newPorts parses a range of ports.
func newPorts(text string) Ports {
	text = strings.TrimSpace(text)
	if text == "" || text == string(Off) {
		return Ports{value[portRange]{text: text}}
	}
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	low, err := strconv.Atoi(strings.TrimSpace(from))
	high, err2 := strconv.Atoi(strings.TrimSpace(to))
	wrong := err != nil || err2 != nil || low < leastPort || high > mostPort || low > high
	return Ports{value[portRange]{portRange{low, high}, text, wrong}}
}

// UnmarshalJSON accepts a single number, too.
func (p *Ports) UnmarshalJSON(data []byte) error {
	*p = newPorts(text(data))
	return nil
}

// List returns the ports; nil for off.
func (p Ports) List() []int {
	if p.wrong || p.Value.low == 0 {
		return nil
	}
	list := make([]int, 0, p.Value.high-p.Value.low+1)
	for port := p.Value.low; port <= p.Value.high; port++ {
		list = append(list, port)
	}
	return list
}

// Day is a day such as 2026-10-12, at midnight in the machine's time zone.
type Day struct{ value[time.Time] }

// newDay parses a day.
func newDay(text string) Day {
	day, err := time.ParseInLocation(time.DateOnly, text, time.Local)
	return Day{value[time.Time]{day, text, err != nil && text != ""}}
}

// UnmarshalJSON accepts a text alone.
func (d *Day) UnmarshalJSON(data []byte) error {
	*d = newDay(text(data))
	return nil
}
