// Package fleet holds the latest snapshot of every node of the pool and passes
// new ones on to whoever watches.
//
// Whatever receives snapshots (the head's own monitor, the nodes' reports)
// calls Update; pages, metrics and alerts read Snapshots or Subscribe.
package fleet

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/gpulab/gpulab/internal/gpu"
)

// Fleet is safe for concurrent use.
type Fleet struct {
	mu          sync.Mutex
	nodes       map[string]gpu.Snapshot
	cordoned    map[string]string // by node, see Cordon
	subscribers map[*subscriber]struct{}
}

// New returns a fleet without nodes.
func New() *Fleet {
	return &Fleet{nodes: make(map[string]gpu.Snapshot), subscribers: make(map[*subscriber]struct{})}
}

// Update makes s the latest snapshot of its node. It never waits for
// subscribers. The snapshot must not be changed afterwards.
func (f *Fleet) Update(s gpu.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.update(s)
}

func (f *Fleet) update(s gpu.Snapshot) {
	s.Cordoned = f.cordoned[s.Node]
	f.nodes[s.Node] = s
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

// Forget removes a node that has left the pool.
func (f *Fleet) Forget(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.nodes, node)
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
	if len(missed.Events) > 0 {
		events := slices.Concat(missed.Events, snapshot.Events)
		surplus := max(len(events)-mostEvents, 0)
		snapshot.Events = events[surplus:]
		snapshot.EventsDropped += missed.EventsDropped + surplus
	}
	s.pending[snapshot.Node] = snapshot
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
