package idle

import (
	"cmp"
	"maps"
	"slices"
)

// candidate is a notebook whose GPUs nobody uses.
type candidate struct {
	launch int64
	node   string
	gpus   int
	warned bool
	anyway bool // it goes whether somebody waits or not
	idle   int64
}

// match says which of the candidates serve whom: for those who wait, in their order, as few as it takes. Those that are
// warned already come first, so that no warning wanders; then those that have been idle longest. Nobody is asked for a
// GPU where one is free, and a machine on which not enough comes together loses none; neither does one that is kept for
// somebody else.
func match(q Queue, list []candidate) map[int64]Waiting {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b candidate) int {
		return cmp.Or(compareBool(b.anyway, a.anyway), compareBool(b.warned, a.warned), cmp.Compare(b.idle, a.idle),
			cmp.Compare(a.launch, b.launch))
	})
	free, taken, shut := maps.Clone(q.Free), map[int64]Waiting{}, map[string]bool{}
	if free == nil {
		free = map[string]int{}
	}
	for _, w := range q.Waiting {
		if w.GPUs <= 0 || served(free, w) {
			continue
		}
		var best []candidate
		bestNode := ""
		for _, node := range w.Nodes {
			if shut[node] {
				continue
			}
			some := enough(list, taken, node, w.GPUs-max(free[node], 0))
			if some != nil && (best == nil || cost(some) < cost(best)) {
				best, bestNode = some, node
			}
		}
		if best == nil {
			if w.Keeps != "" { // and too little gets free there for it: so nothing would for those behind it
				free[w.Keeps], shut[w.Keeps] = 0, true
			}
			continue
		}
		got := 0
		for _, c := range best {
			taken[c.launch] = w
			got += c.gpus
		}
		free[bestNode] = max(free[bestNode], 0) + got - w.GPUs
	}
	return taken
}

// served takes what is free for somebody who waits.
func served(free map[string]int, w Waiting) bool {
	for _, node := range w.Nodes {
		if free[node] >= w.GPUs {
			free[node] -= w.GPUs
			return true
		}
	}
	return false
}

// enough are the first candidates of a machine that bring so many GPUs, nil where all of them do not.
func enough(list []candidate, taken map[int64]Waiting, node string, gpus int) (some []candidate) {
	for _, c := range list {
		if _, gone := taken[c.launch]; gone || c.node != node {
			continue
		}
		some = append(some, c)
		if gpus -= c.gpus; gpus <= 0 {
			return some
		}
	}
	return nil
}

// cost is how much it takes from people: those who are not warned yet count most, then how recently they were at work.
func cost(some []candidate) (sum float64) {
	for _, c := range some {
		if !c.warned && !c.anyway {
			sum += 1e6
		}
		sum += 1 / float64(max(c.idle, 1))
	}
	return sum
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
