package gpu

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpulab/gpulab/internal/units"
)

// crowdedFrom is the share of a GPU's memory from which the people on it are
// told: what is left is less than a model's next step may ask for.
const crowdedFrom = 0.9

// Crowded tells somebody who shares the GPU that its memory is nearly full, and
// who has how much of it; "" while it is not, or they are alone on it. A GPU's
// MIG instances have memory of their own, which nobody shares.
func (g *GPU) Crowded(handle string) string {
	return g.CrowdedBriefly(handle, math.MaxInt)
}

// CrowdedBriefly is Crowded in at most so many characters, if these are enough
// for a sentence: oneself and who has most are named first, the others counted.
func (g *GPU) CrowdedBriefly(handle string, most int) string {
	people := g.crowd(handle)
	if people == nil {
		return ""
	}
	text := fmt.Sprintf("The memory of GPU %d is nearly full: %s of %s (%s). A program that asks for more fails.",
		g.Index, units.Bytes(*g.MemoryUsed), units.Bytes(*g.MemoryTotal), strings.Join(people, ", "))
	for named := len(people); named > 0 && utf8.RuneCountInString(text) > most; named-- {
		who := strings.Join(people[:named], ", ")
		if others := len(people) - named; others > 0 {
			who += fmt.Sprintf(" and %d more", others)
		}
		text = fmt.Sprintf("The memory of GPU %d is nearly full, %s of %s: %s.", g.Index, units.Bytes(*g.MemoryUsed),
			units.Bytes(*g.MemoryTotal), who)
	}
	return text
}

// crowd lists who has how much of a GPU's memory, which is nearly full and which
// somebody shares, beginning with them and who has most; nil otherwise.
func (g *GPU) crowd(handle string) []string {
	if len(g.Instances) > 0 || g.MemoryUsed == nil || g.MemoryTotal == nil ||
		float64(*g.MemoryUsed) < crowdedFrom*float64(*g.MemoryTotal) {
		return nil
	}
	people := map[string]*float64{} // what each is known to have; nil where that is not known
	for _, h := range g.Holders {
		people[h.User] = nil
	}
	for _, one := range TakenBy(g, inWords) {
		people[one.By] = one.KnownMemory()
	}
	delete(people, "")
	if _, here := people[handle]; !here || len(people) < 2 {
		return nil
	}
	has := func(name string) float64 {
		if m := people[name]; m != nil {
			return *m
		}
		return -1
	}
	names := slices.SortedFunc(maps.Keys(people), func(a, b string) int {
		switch handle { // oneself first
		case a:
			return -1
		case b:
			return 1
		}
		return cmp.Or(cmp.Compare(has(b), has(a)), strings.Compare(a, b))
	})
	for i, name := range names {
		memory := "not known how much"
		if m := people[name]; m != nil {
			memory = units.Bytes(uint64(*m))
		}
		if name == handle {
			name = "you"
		}
		names[i] = name + " " + memory
	}
	return names
}

// inWords names whom a process belongs to.
func inWords(p *Process) (name string, known bool) {
	name = p.Pod.User
	if name == "" && p.UnixUser != "" && p.Pod == (PodRef{}) {
		name = p.UnixUser + " (outside gpulab)"
	}
	return name, name != ""
}
