package gpu

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpulab/gpulab/internal/units"
)

// crowdedFrom is the share of a GPU's memory from which the people on it are
// told: what is left is less than a model's next step may ask for.
const crowdedFrom = 0.9

// Crowded tells somebody who shares the GPU that its memory is nearly full, and
// who has how much of it; "" while it is not, or they are alone on it. A GPU's
// MIG instances have memory of their own, which nobody shares.
func (g *GPU) Crowded(handle string) string {
	if len(g.Instances) > 0 || g.MemoryUsed == nil || g.MemoryTotal == nil || float64(*g.MemoryUsed) < crowdedFrom*float64(*g.MemoryTotal) {
		return ""
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
		return ""
	}
	names := slices.SortedFunc(maps.Keys(people), func(a, b string) int {
		switch handle { // oneself first
		case a:
			return -1
		case b:
			return 1
		}
		return strings.Compare(a, b)
	})
	for i, name := range names {
		has := "not known how much"
		if m := people[name]; m != nil {
			has = units.Bytes(uint64(*m))
		}
		if name == handle {
			name = "you"
		}
		names[i] = name + " " + has
	}
	return fmt.Sprintf("The memory of GPU %d is nearly full: %s of %s (%s). A program that asks for more fails.",
		g.Index, units.Bytes(*g.MemoryUsed), units.Bytes(*g.MemoryTotal), strings.Join(names, ", "))
}

// inWords names whom a process belongs to.
func inWords(p *Process) (name string, known bool) {
	name = p.Pod.User
	if name == "" && p.UnixUser != "" && p.Pod == (PodRef{}) {
		name = p.UnixUser + " (outside gpulab)"
	}
	return name, name != ""
}
