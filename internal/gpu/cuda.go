package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Requirement is what a container image asks of the machine's GPUs and their
// driver. The zero value asks for nothing.
type Requirement struct {
	// every must hold; each is met by one of its alternatives.
	every [][]alternative
}

// An alternative holds when all its conditions do.
type alternative []condition

type condition struct {
	property string // one of properties
	operator string // one of operators
	version  version
	text     string // the value as written; all there is of a brand
}

// What a condition can be about.
const (
	propertyCUDA   = "cuda"   // the newest CUDA version the driver offers
	propertyDriver = "driver" // the driver's own version
	propertyArch   = "arch"   // the GPU's compute capability
	propertyBrand  = "brand"  // the GPU's family, such as tesla
)

// operators in the order in which they are looked for: the longer first.
var operators = []string{">=", "<=", "!=", ">", "<", "="}

// Asks tells whether anything is asked for.
func (r Requirement) Asks() bool { return len(r.every) > 0 }

// Environment of an image that says what it asks for, as NVIDIA's container
// toolkit reads it.
const (
	requirePrefix  = "NVIDIA_REQUIRE_"
	requireCUDA    = requirePrefix + "CUDA"
	requireJetPack = requirePrefix + "JETPACK" // of other hardware
	disableRequire = "NVIDIA_DISABLE_REQUIRE"
	cudaVersion    = "CUDA_VERSION"
)

// maxRequirement bounds what is read of an image's conditions, in bytes.
// NVIDIA's own images have some 3 kB.
const maxRequirement = 64 << 10

// RequirementOf reads an image's environment ("NAME=value" each). An image
// without such variables asks for nothing. What cannot be read is an error.
func RequirementOf(env []string) (Requirement, error) {
	values := map[string]string{}
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		values[name] = strings.TrimSpace(value)
	}
	if off, err := strconv.ParseBool(values[disableRequire]); err == nil && off {
		return Requirement{}, nil
	}
	var names []string
	for name, value := range values {
		if strings.HasPrefix(name, requirePrefix) && !strings.HasPrefix(name, requireJetPack) && value != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var r Requirement
	for _, name := range names {
		clause, err := parseRequirement(values[name])
		if err != nil {
			return Requirement{}, fmt.Errorf("the image's %s cannot be read: %w", name, err)
		}
		if len(clause) > 0 {
			r.every = append(r.every, clause)
		}
	}
	if values[requireCUDA] != "" || values[cudaVersion] == "" {
		return r, nil
	}
	made, err := parseVersion(values[cudaVersion])
	if err != nil {
		return Requirement{}, fmt.Errorf("the image's %s cannot be read: %w", cudaVersion, err)
	}
	r.every = append(r.every, []alternative{{{property: propertyCUDA, operator: ">=", version: leastCUDA(made)}}})
	return r, nil
}

// leastCUDA is the oldest CUDA version whose drivers run programs made with
// this one. From CUDA 11 on that is the first of the same major version: "CUDA
// Compatibility", chapter "Minor Version Compatibility",
// https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
func leastCUDA(made version) version {
	if made.part(0) >= 11 {
		return version{made.part(0), 0}
	}
	return version{made.part(0), made.part(1)}
}

// parseRequirement reads NVIDIA's notation: alternatives apart by spaces, the
// conditions of each by commas.
func parseRequirement(text string) ([]alternative, error) {
	if len(text) > maxRequirement {
		return nil, fmt.Errorf("it is longer than %d bytes", maxRequirement)
	}
	var clause []alternative
	for _, part := range strings.Fields(text) {
		var all alternative
		for _, term := range strings.Split(part, ",") {
			if term == "" {
				continue
			}
			c, err := parseCondition(term)
			if err != nil {
				return nil, err
			}
			all = append(all, c)
		}
		if len(all) > 0 {
			clause = append(clause, all)
		}
	}
	return clause, nil
}

func parseCondition(term string) (condition, error) {
	at := strings.IndexAny(term, "<>=!")
	if at < 0 {
		return condition{}, fmt.Errorf("%q compares nothing", term)
	}
	c := condition{property: term[:at]}
	rest := term[at:]
	i := slices.IndexFunc(operators, func(op string) bool { return strings.HasPrefix(rest, op) })
	if i < 0 {
		return condition{}, fmt.Errorf("%q compares in no known way", term)
	}
	c.operator, c.text = operators[i], rest[len(operators[i]):]
	switch c.property {
	case propertyBrand:
		if c.text == "" || c.operator != "=" && c.operator != "!=" {
			return condition{}, fmt.Errorf("%q names no brand", term)
		}
		return c, nil
	case propertyCUDA, propertyDriver, propertyArch:
		var err error
		if c.version, err = parseVersion(c.text); err != nil {
			return condition{}, fmt.Errorf("%q: %w", term, err)
		}
		return c, nil
	}
	return condition{}, fmt.Errorf("%q is about %q, which gpulab does not know", term, c.property)
}

// version is a version's numbers; one that is left out counts as 0.
type version []int

var errVersion = errors.New("a version is written as 12, 12.4 or 12.4.1")

func parseVersion(text string) (version, error) {
	parts := strings.Split(text, ".")
	if len(parts) > 4 {
		return nil, errVersion
	}
	v := make(version, len(parts))
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 31)
		if err != nil {
			return nil, errVersion
		}
		v[i] = int(n)
	}
	return v, nil
}

func (v version) part(i int) int {
	if i < len(v) {
		return v[i]
	}
	return 0
}

func (v version) compare(w version) int {
	for i := range max(len(v), len(w)) {
		if c := cmp.Compare(v.part(i), w.part(i)); c != 0 {
			return c
		}
	}
	return 0
}

// String writes at least two numbers, as people say CUDA's versions.
func (v version) String() string {
	text := fmt.Sprintf("%d.%d", v.part(0), v.part(1))
	for i := 2; i < len(v); i++ {
		text += fmt.Sprintf(".%d", v[i])
	}
	return text
}

// answer is whether something holds. In this order "and" is the least of all
// answers, and "or" the greatest.
type answer int

const (
	no answer = iota
	unknown
	yes
)

// holds judges a condition for one GPU of a machine.
func (c condition) holds(driver, cuda, arch string) answer {
	have := "" // of a brand: the probe does not tell it
	switch c.property {
	case propertyCUDA:
		have = cuda
	case propertyDriver:
		have = driver
	case propertyArch:
		have = arch
	}
	v, err := parseVersion(have)
	if err != nil {
		return unknown
	}
	is, ok := v.compare(c.version), false
	switch c.operator {
	case ">=":
		ok = is >= 0
	case ">":
		ok = is > 0
	case "<=":
		ok = is <= 0
	case "<":
		ok = is < 0
	case "=":
		ok = is == 0
	case "!=":
		ok = is != 0
	}
	if ok {
		return yes
	}
	return no
}

// judge says whether an image runs on one GPU of a machine.
func (r Requirement) judge(driver, cuda, arch string) answer {
	all := yes
	for _, clause := range r.every {
		anyOf := no
		for _, a := range clause {
			holds := yes
			for _, c := range a {
				holds = min(holds, c.holds(driver, cuda, arch))
			}
			anyOf = max(anyOf, holds)
		}
		all = min(all, anyOf)
	}
	return all
}

// judgeMachine says whether it runs on any GPU of a machine.
func (r Requirement) judgeMachine(s Snapshot, driver, cuda string) answer {
	best := no
	for i := range s.GPUs {
		best = max(best, r.judge(driver, cuda, s.GPUs[i].ComputeCapability))
	}
	if len(s.GPUs) == 0 {
		best = r.judge(driver, cuda, "")
	}
	return best
}

// Obstacle says in a sentence or two for people why an image cannot work on a
// machine, "" where it can or where that cannot be told. image is its name as
// people know it.
func (r Requirement) Obstacle(image string, s Snapshot) string {
	return r.ObstacleTo("The image "+image, s)
}

// ObstacleTo is Obstacle for anything else; what begins a sentence.
func (r Requirement) ObstacleTo(what string, s Snapshot) string {
	if r.judgeMachine(s, s.DriverVersion, s.CUDAVersion) != no {
		return ""
	}
	has := fmt.Sprintf("the driver of this machine (%s) offers %s", s.DriverVersion, s.CUDAVersion)
	if r.about(propertyDriver) || r.about(propertyArch) || s.CUDAVersion == "" {
		has = "this machine has driver " + s.DriverVersion
		if s.CUDAVersion != "" {
			has += " with CUDA " + s.CUDAVersion
		}
		if r.about(propertyArch) && len(s.GPUs) > 0 {
			has += " and a GPU of compute capability " + cmp.Or(s.GPUs[0].ComputeCapability, "?")
		}
	}
	const newest = "999999"
	next := "Choose another notebook."
	if r.judgeMachine(s, newest, newest) != no {
		next = "Ask an administrator to update the NVIDIA driver, or choose another notebook."
	}
	return fmt.Sprintf("%s needs %s; %s. %s", what, r, has, next)
}

// String says what is asked for, "" for nothing.
func (r Requirement) String() string {
	var words []string
	for _, clause := range r.shown() {
		var either []string
		for _, a := range clause {
			var both []string
			for _, c := range a {
				both = append(both, c.String())
			}
			either = append(either, strings.Join(both, " with "))
		}
		words = append(words, strings.Join(either, ", or "))
	}
	return strings.Join(words, "; and ")
}

// shown leaves out the alternatives that only say which older drivers of which
// brands will do too: NVIDIA's own images list dozens of them.
func (r Requirement) shown() [][]alternative {
	shown := slices.Clone(r.every)
	for i, clause := range shown {
		for _, a := range clause {
			if len(a) == 1 && a[0].property == propertyCUDA {
				shown[i] = []alternative{a}
				break
			}
		}
	}
	return shown
}

func (r Requirement) about(property string) bool {
	for _, clause := range r.shown() {
		for _, a := range clause {
			if slices.ContainsFunc(a, func(c condition) bool { return c.property == property }) {
				return true
			}
		}
	}
	return false
}

// String says it as people do: "CUDA 12.4 or newer".
func (c condition) String() string {
	name := map[string]string{propertyCUDA: "CUDA ", propertyDriver: "driver ", propertyArch: "compute capability ",
		propertyBrand: "a GPU of the brand "}[c.property]
	value := c.text
	if c.property == propertyCUDA {
		value = c.version.String()
	}
	return map[string]string{
		">=": name + value + " or newer", ">": name + "newer than " + value,
		"<=": name + value + " or older", "<": name + "older than " + value,
		"=": name + value, "!=": name + "other than " + value,
	}[c.operator]
}
