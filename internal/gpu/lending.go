package gpu

import (
	"fmt"
	"strings"
	"time"
)

const (
	// occupiedAfter is how long somebody outside gpulab must be on a GPU before
	// it is withheld: nvidia-smi and its like come and go.
	occupiedAfter = 3 * time.Second
	// vacatedAfter is how long they must be gone before it is lent out again: a
	// program that is started over and over keeps it.
	vacatedAfter = 10 * time.Second
)

// Lending decides which GPUs new pods may get: not one that somebody uses
// outside gpulab, unless the lab lends it anyway. It is for one goroutine.
type Lending struct {
	anyway func(uuid string) bool
	gpus   map[string]*occupation
}

// occupation is what is known about the people outside gpulab on one GPU.
type occupation struct {
	first, last time.Time // when they were seen
	withheld    bool
	known       bool // the GPU was read before
}

// NewLending returns a Lending that asks anyway whether a GPU, by UUID, is lent
// out although somebody outside gpulab uses it.
func NewLending(anyway func(uuid string) bool) *Lending {
	return &Lending{anyway: anyway, gpus: map[string]*occupation{}}
}

// Decide sets Withheld of every GPU of the snapshot that is not to be lent out,
// and returns their UUIDs. A GPU that one of the cluster's pods holds is lent
// out already, and left alone.
func (l *Lending) Decide(now time.Time, s *Snapshot) []string {
	var withheld []string
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.UUID == "" {
			continue
		}
		if !l.occupied(now, s, g) || len(g.Holders) > 0 || l.anyway(g.UUID) {
			continue
		}
		g.Withheld = outsidersSentence(g.Outsiders())
		withheld = append(withheld, g.UUID)
	}
	return withheld
}

// occupied follows who is on the GPU. While it cannot be read, what was decided
// stands.
func (l *Lending) occupied(now time.Time, s *Snapshot, g *GPU) bool {
	o := l.gpus[g.UUID]
	if o == nil {
		o = &occupation{}
		l.gpus[g.UUID] = o
	}
	switch {
	case s.Error != "" || g.Error != "":
	case len(g.Outsiders()) > 0:
		if o.first.IsZero() {
			o.first = now
		}
		o.last = now
		// Whoever was there before us has been for longer than we can know.
		o.withheld = o.withheld || !o.known || now.Sub(o.first) >= occupiedAfter
		o.known = true
	case now.Sub(o.last) >= vacatedAfter || !o.withheld:
		*o = occupation{known: true}
	}
	return o.withheld
}

// outsidersSentence says who they are.
func outsidersSentence(processes []Process) string {
	var names []string
	seen := map[string]bool{}
	for _, p := range processes {
		if name := p.UnixUser; name != "" && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "Somebody outside gpulab has just used it; it is lent out again in a moment."
	}
	verb := "uses"
	if len(names) > 1 {
		verb = "use"
	}
	return fmt.Sprintf("%s %s it outside gpulab; it is lent out again when nobody does.", strings.Join(names, ", "), verb)
}
