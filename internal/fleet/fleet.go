// Package fleet holds the latest snapshot of every node of the pool and passes
// new ones on to whoever watches.
//
// Whatever receives snapshots (the head's own monitor, the nodes' reports)
// calls Update; pages, metrics and alerts read Snapshots or Subscribe.
package fleet

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

// Fleet is safe for concurrent use.
type Fleet struct {
	mu          sync.Mutex
	nodes       map[string]gpu.Snapshot
	owners      map[string]string    // of readable GPUs, by UUID
	first       map[string]string    // who told of a GPU first, by UUID
	told        map[string]int       // how many GPUs a node told of first
	cordoned    map[string]string    // by node, see Cordon
	idle        map[string]time.Time // by pod, see Idle
	titles      map[string]string    // by node, see Titles
	subscribers map[*subscriber]struct{}
}

// New returns a fleet without nodes.
func New() *Fleet {
	return &Fleet{
		nodes: make(map[string]gpu.Snapshot), owners: make(map[string]string), first: make(map[string]string),
		told: make(map[string]int), subscribers: make(map[*subscriber]struct{}),
	}
}

// Update makes s the latest snapshot of its node. It never waits for
// subscribers. The snapshot must not be changed afterwards.
func (f *Fleet) Update(s gpu.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.update(s)
}

func (f *Fleet) update(s gpu.Snapshot) {
	s.Cordoned, s.Title = f.cordoned[s.Node], f.titles[s.Node]
	s.GPUs = f.withIdle(s.GPUs)
	f.disown(s.Node)
	f.nodes[s.Node] = s
	if s.Error == "" {
		for i := range s.GPUs {
			if g := &s.GPUs[i]; g.UUID != "" && g.Error == "" {
				f.owners[g.UUID] = s.Node
				if f.first[g.UUID] == "" { // the head's own are claimed by nobody
					f.first[g.UUID] = s.Node
				}
			}
		}
	}
	for sub := range f.subscribers {
		sub.offer(s)
	}
}

// Cordon says which nodes take no new work, each with the sentence for people;
// it stands in their snapshots from now on.
func (f *Fleet) Cordon(why map[string]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cordoned = why
	for _, s := range f.sorted() {
		if s.Cordoned != why[s.Node] {
			s.Events, s.EventsDropped = nil, 0 // they were told
			f.update(s)
		}
	}
}

// Idle says since when pods hold GPUs without use, by UID; it stands in the next
// snapshots.
func (f *Fleet) Idle(since map[string]time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.idle = since
}

// withIdle returns the GPUs with what is known of their holders; those that came
// are not changed.
func (f *Fleet) withIdle(list []gpu.GPU) []gpu.GPU {
	fits := func(h gpu.Holder) bool { return h.IdleSince.Equal(f.idle[h.UID]) }
	copied := false
	for i := range list {
		if !slices.ContainsFunc(list[i].Holders, func(h gpu.Holder) bool { return !fits(h) }) {
			continue
		}
		if !copied {
			list, copied = slices.Clone(list), true
		}
		list[i].Holders = slices.Clone(list[i].Holders)
		for k := range list[i].Holders {
			h := &list[i].Holders[k]
			h.IdleSince = f.idle[h.UID]
		}
	}
	return list
}

// Titles says what nodes are shown as that are not shown under their names; it
// stands in their snapshots from now on.
func (f *Fleet) Titles(titles map[string]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.titles = titles
	for _, s := range f.sorted() {
		if s.Title != titles[s.Node] {
			s.Events, s.EventsDropped = nil, 0 // they were told
			f.update(s)
		}
	}
}

// Forget removes a node that has left the pool.
func (f *Fleet) Forget(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.disown(node)
	delete(f.nodes, node)
	maps.DeleteFunc(f.first, func(_, of string) bool { return of == node })
	delete(f.told, node)
}

func (f *Fleet) disown(node string) {
	for _, g := range f.nodes[node].GPUs {
		if f.owners[g.UUID] == node {
			delete(f.owners, g.UUID)
		}
	}
}

// mostCards is how many GPUs a node may tell of until it is forgotten. Cards are replaced now and then; each that is
// new costs the history memory.
const mostCards = 512

// Claim refuses a node's list of GPUs in which one is another's, or stands
// twice. A card that its node cannot read, or that was in a node which is not
// heard any more, may have been moved. When that node tells of it again it is
// that node's: otherwise a node could keep others out by telling of their cards
// while they are away.
func (f *Fleet) Claim(node string, gpus []gpu.GPU) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range gpus {
		uuid := gpus[i].UUID
		if uuid == "" {
			continue
		}
		if owner, known := f.owners[uuid]; known && owner != node && f.first[uuid] != node {
			return fmt.Errorf("the machine %s told of the GPU %.60s, which is %s's", node, uuid, owner)
		}
		if slices.ContainsFunc(gpus[:i], func(g gpu.GPU) bool { return g.UUID == uuid }) {
			return fmt.Errorf("the machine %s told of the GPU %.60s twice", node, uuid)
		}
	}
	for i := range gpus {
		uuid := gpus[i].UUID
		if _, known := f.first[uuid]; known || uuid == "" {
			continue
		}
		if f.told[node] >= mostCards {
			return fmt.Errorf("the machine %s told of more than %d different GPUs; restart gpulab on the head if that many "+
				"were really in it", node, mostCards)
		}
		f.first[uuid] = node
		f.told[node]++
	}
	return nil
}

// Snapshots returns the latest snapshot of each node, sorted by node.
func (f *Fleet) Snapshots() []gpu.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sorted()
}

func (f *Fleet) sorted() []gpu.Snapshot {
	return slices.SortedFunc(maps.Values(f.nodes), func(a, b gpu.Snapshot) int { return cmp.Compare(a.Node, b.Node) })
}

// Subscribe returns a channel that first brings the latest snapshot of each
// node and then every new one, until ctx ends; then it is closed. A slow
// reader misses snapshots, but always gets the newest of every node, and with
// it the events of those it missed (mostEvents of them at most).
func (f *Fleet) Subscribe(ctx context.Context) <-chan gpu.Snapshot {
	sub := &subscriber{wake: make(chan struct{}, 1), pending: make(map[string]gpu.Snapshot)}
	f.mu.Lock()
	for _, s := range f.sorted() {
		sub.offer(s)
	}
	f.subscribers[sub] = struct{}{}
	f.mu.Unlock()

	out := make(chan gpu.Snapshot)
	go func() {
		defer close(out)
		sub.deliver(ctx, out)
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.subscribers, sub)
	}()
	return out
}

// subscriber holds what one reader has not taken yet: at most one snapshot per
// node.
type subscriber struct {
	wake chan struct{} // has room for one

	mu      sync.Mutex
	order   []string
	pending map[string]gpu.Snapshot
}

// mostEvents bounds what a reader that never comes back costs.
const mostEvents = 10_000

func (s *subscriber) offer(snapshot gpu.Snapshot) {
	s.mu.Lock()
	missed, waits := s.pending[snapshot.Node]
	if !waits {
		s.order = append(s.order, snapshot.Node)
	}
	s.pending[snapshot.Node] = snapshot.After(missed, mostEvents)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take returns the snapshot that has waited longest.
func (s *subscriber) take() (gpu.Snapshot, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.order) == 0 {
		return gpu.Snapshot{}, false
	}
	node := s.order[0]
	s.order = s.order[1:]
	snapshot := s.pending[node]
	delete(s.pending, node)
	return snapshot, true
}

func (s *subscriber) deliver(ctx context.Context, out chan<- gpu.Snapshot) {
	for {
		snapshot, ok := s.take()
		if !ok {
			select {
			case <-s.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		select {
		case out <- snapshot:
		case <-ctx.Done():
			return
		}
	}
}
