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

// Duration is a length of time: 30m, 168h or 0.
type Duration struct {
	time.Duration
	text  string
	wrong bool
}

// newDuration parses a duration.
func newDuration(text string) Duration {
	d := Duration{text: text}
	var err error
	if d.Duration, err = time.ParseDuration(text); err != nil {
		d.wrong = text != ""
	}
	return d
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

// MarshalJSON returns the text.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.text) }

// String returns the text.
func (d Duration) String() string { return d.text }

// IsZero reports whether the key is absent. A duration of 0 is not.
func (d Duration) IsZero() bool { return d.text == "" }

// within reports a value that is no duration between two bounds. The example completes "write it as".
func (d Duration) within(key string, least, most time.Duration, example string) error {
	if d.wrong || d.Duration < least || d.Duration > most {
		return fmt.Errorf("%s is %q; it may be %s to %s, such as %s", key, d.text, durationOf(least), durationOf(most),
			example)
	}
	return nil
}

// Size is an amount of memory or disk space: 20Gi, or 0.
type Size struct {
	resource.Quantity
	text  string
	wrong bool
}

// newSize parses a size.
func newSize(text string) Size {
	s := Size{text: text}
	if q, err := resource.ParseQuantity(text); err == nil {
		s.Quantity = q
	} else {
		s.wrong = text != ""
	}
	return s
}

// UnmarshalJSON accepts a plain number of bytes, too.
func (s *Size) UnmarshalJSON(data []byte) error {
	*s = newSize(text(data))
	return nil
}

// MarshalJSON returns the text.
func (s Size) MarshalJSON() ([]byte, error) { return json.Marshal(s.text) }

// String returns the text.
func (s Size) String() string { return s.text }

// IsZero reports whether the key is absent. A size of 0 is not.
func (s Size) IsZero() bool { return s.text == "" }

// Bytes returns the size in bytes.
func (s Size) Bytes() int64 { return s.Value() }

// within reports a value that is no size between two bounds; 0 is allowed where zero says what it does.
func (s Size) within(key string, least, most int64, zero, example string) error {
	if !s.wrong && (s.Bytes() >= least && s.Bytes() <= most || zero != "" && s.Sign() == 0) {
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
type Prefix struct {
	netip.Prefix
	text  string
	wrong bool
}

// newPrefix parses a network or an address.
func newPrefix(text string) Prefix {
	n := Prefix{text: text}
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		n.Prefix = netip.PrefixFrom(addr, addr.BitLen())
		return n
	}
	var err error
	if n.Prefix, err = netip.ParsePrefix(text); err != nil {
		n.wrong = true
	}
	return n
}

// UnmarshalJSON accepts an address, too.
func (n *Prefix) UnmarshalJSON(data []byte) error {
	*n = newPrefix(text(data))
	return nil
}

// MarshalJSON returns the text.
func (n Prefix) MarshalJSON() ([]byte, error) { return json.Marshal(n.text) }

// String returns the text.
func (n Prefix) String() string { return n.text }

// check reports a network with an address inside it, which could mean either.
func (n Prefix) check(key string) error {
	switch {
	case n.wrong:
		return fmt.Errorf("%s holds %q, but a network is written as 10.1.2.0/24, and one machine as 10.1.2.3", key, n.text)
	case n.Prefix != n.Masked():
		return fmt.Errorf("%s holds %s, which is a machine and a network at once; write %s or %s",
			key, n.text, n.Masked(), n.Addr())
	}
	return nil
}

// Prefixes returns networks as Go's own type.
func Prefixes(list []Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, n := range list {
		out = append(out, n.Prefix)
	}
	return out
}

// Ports are consecutive ports of the head, such as 8500-8699, a single one, or off.
type Ports struct {
	low, high int // 0 for off
	text      string
	wrong     bool
}

// newPorts parses a range of ports.
func newPorts(text string) Ports {
	text = strings.TrimSpace(text)
	p := Ports{text: text}
	if text == "" || text == string(Off) {
		return p
	}
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	var err, err2 error
	p.low, err = strconv.Atoi(strings.TrimSpace(from))
	p.high, err2 = strconv.Atoi(strings.TrimSpace(to))
	p.wrong = err != nil || err2 != nil || p.low < leastPort || p.high > mostPort || p.low > p.high
	return p
}

// UnmarshalJSON accepts a single number, too.
func (p *Ports) UnmarshalJSON(data []byte) error {
	*p = newPorts(text(data))
	return nil
}

// MarshalJSON returns the text.
func (p Ports) MarshalJSON() ([]byte, error) { return json.Marshal(p.text) }

// String returns the text.
func (p Ports) String() string { return p.text }

// IsZero reports whether the key is absent.
func (p Ports) IsZero() bool { return p.text == "" }

// List returns the ports; nil for off.
func (p Ports) List() []int {
	if p.wrong || p.low == 0 {
		return nil
	}
	list := make([]int, 0, p.high-p.low+1)
	for port := p.low; port <= p.high; port++ {
		list = append(list, port)
	}
	return list
}

// Day is a day such as 2026-10-12, at midnight in the machine's time zone.
type Day struct {
	time.Time
	text  string
	wrong bool
}

// newDay parses a day.
func newDay(text string) Day {
	d := Day{text: text}
	if text == "" {
		return d
	}
	var err error
	if d.Time, err = time.ParseInLocation(time.DateOnly, text, time.Local); err != nil {
		d.wrong = true
	}
	return d
}

// UnmarshalJSON accepts a text alone.
func (d *Day) UnmarshalJSON(data []byte) error {
	*d = newDay(text(data))
	return nil
}

// MarshalJSON returns the text.
func (d Day) MarshalJSON() ([]byte, error) { return json.Marshal(d.text) }

// String returns the text.
func (d Day) String() string { return d.text }

// IsZero reports whether the key is absent.
func (d Day) IsZero() bool { return d.text == "" }
