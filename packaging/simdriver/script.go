package simdriver

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// step is one line of a script; doc.go describes them.
type step struct {
	at     time.Duration // after the script's beginning
	gpu    int           // -1: the driver as a whole
	verb   string
	number uint64        // error, count of rows or pages, or a process's number
	times  uint64        // how often an XID is repeated
	pid    uint64        // of the process whose XID it is, 0: not known
	logged bool          // the XID stands in the kernel's log and NVML does not tell
	kind   string        // corrected, uncorrected
	words  []string      // what else was said, in order
	from   float64       // percent
	to     float64       // percent
	over   time.Duration // from from to to
	length time.Duration // 0: for good
	load   exactLoad
}

// exactLoad is what a process takes of a GPU because somebody said so.
type exactLoad struct {
	sm       int    // percent
	memory   uint64 // bytes
	graphics bool
	part     int // the instance of a GPU in MIG mode, counted from 1; 0: none
}

// verb is one thing a line can say.
type verb struct {
	example string
	parse   func(*step, *words) error
}

var verbs = map[string]verb{
	"init":        {"init 18", func(s *step, w *words) error { return w.number(&s.number, 0, 999) }},
	"ok":          {"gpu 0 ok", nothing},
	"lost":        {"gpu 0 lost", nothing},
	"hang":        {"gpu 0 hang", nothing},
	"removed":     {"gpu 0 removed", nothing},
	"fail":        {"gpu 0 fail 999", func(s *step, w *words) error { return w.number(&s.number, 1, 999) }},
	"xid":         {"gpu 0 xid 31 times 10000 by 4711 python3", parseXID},
	"use":         {"gpu 0 use 30..90 over 60s for 2m", parseUse},
	"process":     {"gpu 0 process 4711 sm 70 memory 4GiB for 60s", parseProcess},
	"ecc":         {"gpu 0 ecc uncorrected 1", parseKind},
	"remapped":    {"gpu 0 remapped uncorrected 1 pending", parseRemapped},
	"retired":     {"gpu 0 retired 3 pending", parseRetired},
	"throttle":    {"gpu 0 throttle temperature power", parseThrottle},
	"recovery":    {"gpu 0 recovery reset", parseRecovery},
	"persistence": {"gpu 0 persistence off", func(s *step, w *words) error { return w.oneOf(&s.words, "on", "off") }},
	"limits":      {"gpu 0 limits off", func(s *step, w *words) error { return w.oneOf(&s.words, "on", "off") }},
	"lists":       {"gpu 0 lists off", func(s *step, w *words) error { return w.oneOf(&s.words, "on", "off") }},
	"mig":         {"gpu 0 mig 1g.6gb 2g.12gb", parseMIG},
}

// words are those of a line that have not been read yet.
type words []string

func (w *words) take() string {
	if len(*w) == 0 {
		return ""
	}
	word := (*w)[0]
	*w = (*w)[1:]
	return word
}

func (w *words) accept(word string) bool {
	if len(*w) == 0 || (*w)[0] != word {
		return false
	}
	*w = (*w)[1:]
	return true
}

func (w *words) number(to *uint64, low, high uint64) error {
	word := w.take()
	n, err := strconv.ParseUint(word, 10, 64)
	if err != nil || n < low || n > high {
		return fmt.Errorf("%q is no number from %d to %d", word, low, high)
	}
	*to = n
	return nil
}

// duration reads "KEYWORD TIME" if it is there.
func (w *words) duration(keyword string, to *time.Duration) error {
	if !w.accept(keyword) {
		return nil
	}
	word := w.take()
	d, err := time.ParseDuration(word)
	if err != nil || d < 0 {
		return fmt.Errorf("%q after %q is no time such as 5s or 2m", word, keyword)
	}
	*to = d
	return nil
}

func (w *words) oneOf(to *[]string, choices ...string) error {
	word := w.take()
	if !slices.Contains(choices, word) {
		return fmt.Errorf("%q is none of %s", word, strings.Join(choices, ", "))
	}
	*to = append(*to, word)
	return nil
}

func nothing(*step, *words) error { return nil }

func parseXID(s *step, w *words) error {
	s.times = 1
	if err := w.number(&s.number, 1, 65535); err != nil {
		return err
	}
	if w.accept("times") {
		if err := w.number(&s.times, 1, 1_000_000); err != nil {
			return err
		}
	}
	if w.accept("by") {
		if err := w.number(&s.pid, 1, 1<<22); err != nil {
			return err
		}
		if len(*w) == 0 {
			return errors.New("the program's name is missing")
		}
		s.words = []string{w.take()}
	}
	s.logged = w.accept("logged")
	return nil
}

func parseUse(s *step, w *words) error {
	word := w.take()
	low, high, ramp := strings.Cut(word, "..")
	if !ramp {
		high = low
	}
	if !percent(low, &s.from) || !percent(high, &s.to) {
		return fmt.Errorf("%q is no percentage such as 50 or 30..90", word)
	}
	if err := w.duration("over", &s.over); err != nil {
		return err
	}
	if ramp != (s.over > 0) {
		return errors.New("a range needs \"over\" and a time, a single percentage does not")
	}
	return w.duration("for", &s.length)
}

func percent(word string, to *float64) bool {
	v, err := strconv.ParseFloat(word, 64)
	*to = v
	return err == nil && v >= 0 && v <= 100
}

func parseProcess(s *step, w *words) error {
	if err := w.number(&s.number, 1, 1<<22); err != nil {
		return err
	}
	if w.accept("ends") {
		s.words = []string{"ends"}
		return nil
	}
	for _, part := range []string{"sm", "memory"} {
		if !w.accept(part) {
			return fmt.Errorf("%q is missing", part)
		}
		if err := s.load.set(part, w.take()); err != nil {
			return err
		}
	}
	s.load.graphics = w.accept("graphics")
	if w.accept("instance") {
		var index uint64
		if err := w.number(&index, 0, maxInstances-1); err != nil {
			return err
		}
		s.load.part = int(index) + 1
	}
	return w.duration("for", &s.length)
}

// set takes one part of a load, "sm" or "memory".
func (l *exactLoad) set(part, value string) error {
	switch part {
	case "sm":
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 || n > 100 {
			return fmt.Errorf("%q is no share from 0 to 100 percent", value)
		}
		l.sm = n
	case "memory":
		return l.setMemory(value)
	default:
		return fmt.Errorf("%q is neither sm nor memory", part)
	}
	return nil
}

func (l *exactLoad) setMemory(value string) error {
	for unit, bytes := range map[string]float64{"MiB": 1 << 20, "GiB": 1 << 30} {
		digits, has := strings.CutSuffix(value, unit)
		if n, err := strconv.ParseFloat(digits, 64); has && err == nil && n >= 0 && n*bytes < math.MaxInt64 {
			l.memory = uint64(n * bytes)
			return nil
		}
	}
	return fmt.Errorf("%q is no size such as 512MiB or 4GiB", value)
}

// loadVariable is the environment variable by which a program asks for an
// exact load.
const loadVariable = "GPULAB_SIMULATED_LOAD"

// parseLoad reads the value of loadVariable, such as "sm=70 memory=4GiB".
func parseLoad(text string) (exactLoad, error) {
	var l exactLoad
	for _, word := range strings.Fields(text) {
		part, value, _ := strings.Cut(word, "=")
		if err := l.set(part, value); err != nil {
			return l, fmt.Errorf("%s=%q: %w; write e.g. \"sm=70 memory=4GiB\"", loadVariable, text, err)
		}
	}
	return l, nil
}

// parseKind reads "corrected N" or "uncorrected N".
func parseKind(s *step, w *words) error {
	kind := w.take()
	if kind != "corrected" && kind != "uncorrected" {
		return fmt.Errorf("%q is neither corrected nor uncorrected", kind)
	}
	s.kind = kind
	return w.number(&s.number, 1, 1_000_000_000)
}

func parseRemapped(s *step, w *words) error {
	if err := parseKind(s, w); err != nil {
		return err
	}
	return w.rest(&s.words, "pending", "failed")
}

func parseRetired(s *step, w *words) error {
	if err := w.number(&s.number, 0, 64); err != nil {
		return err
	}
	return w.rest(&s.words, "pending")
}

// rest reads all words that are left; each must be one of the choices.
func (w *words) rest(to *[]string, choices ...string) error {
	for len(*w) > 0 {
		if err := w.oneOf(to, choices...); err != nil {
			return err
		}
	}
	return nil
}

// throttles are NVML's bits for what keeps clocks down.
var throttles = map[string]uint64{
	"clocks": 0x2, "power": 0x4, "hardware": 0x8, "sync": 0x10, "temperature": 0x20, "brake": 0x80, "display": 0x100,
}

func parseThrottle(s *step, w *words) error {
	if w.accept("none") {
		return nil
	}
	if len(*w) == 0 {
		return errors.New("the reason is missing")
	}
	return w.rest(&s.words, "brake", "clocks", "display", "hardware", "power", "sync", "temperature")
}

// recoveries are what the driver can ask for, in NVML's order.
var recoveries = []string{"none", "reset", "reboot", "drain", "drain-and-reset"}

func parseRecovery(s *step, w *words) error { return w.oneOf(&s.words, recoveries...) }

var migProfile = regexp.MustCompile(`^[1-7]g\.([0-9]{1,3})gb$`)

// parseMIG reads the sizes of the instances, or "off": a card that could be split.
func parseMIG(s *step, w *words) error {
	if w.accept("off") {
		return nil
	}
	for len(*w) > 0 {
		profile := w.take()
		if !migProfile.MatchString(profile) {
			return fmt.Errorf("%q is neither \"off\" nor a size such as 1g.6gb", profile)
		}
		s.words = append(s.words, profile)
	}
	if len(s.words) == 0 || len(s.words) > maxInstances {
		return fmt.Errorf("%d instances, but there can be 1 to %d", len(s.words), maxInstances)
	}
	return nil
}

// maxInstances is how many parts a GPU in MIG mode has at most.
const maxInstances = 7

// parseStep reads one line.
func parseStep(line string) (step, error) {
	w := words(strings.Fields(line))
	s, err := w.step()
	if err != nil {
		return step{}, fmt.Errorf("%q: %w", strings.TrimSpace(line), err)
	}
	return s, nil
}

func (w *words) step() (step, error) {
	s := step{gpu: -1}
	if err := w.duration("at", &s.at); err != nil {
		return s, err
	}
	if w.accept("gpu") {
		var n uint64
		if err := w.number(&n, 0, MaxGPUs-1); err != nil {
			return s, err
		}
		s.gpu = int(n)
	}
	s.verb = w.take()
	v, known := verbs[s.verb]
	if !known || strings.HasPrefix(v.example, "gpu") != (s.gpu >= 0) {
		return s, fmt.Errorf("it is neither \"init\" and a number nor \"gpu\", a number and one of %s", strings.Join(gpuVerbs(), ", "))
	}
	err := v.parse(&s, w)
	if err == nil && len(*w) > 0 {
		err = fmt.Errorf("%q is too much", strings.Join(*w, " "))
	}
	if err != nil {
		return s, fmt.Errorf("%w; write e.g. %q", err, v.example)
	}
	return s, nil
}

func gpuVerbs() []string {
	var names []string
	for name := range verbs {
		if name != "init" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// parseScript reads a whole script and sorts it by time. The steps are those
// that could be read; the error names every line that could not.
func parseScript(text string) ([]step, error) {
	var steps []step
	var bad []error
	n := 0
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		if strings.TrimSpace(line) == "" {
			continue
		}
		s, err := parseStep(line)
		if err != nil {
			bad = append(bad, fmt.Errorf("line %d: %w", n, err))
			continue
		}
		steps = append(steps, s)
	}
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.at - b.at) })
	return steps, errors.Join(bad...)
}
