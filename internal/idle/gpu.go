package idle

import (
	"context"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

// watcher remembers from the readings of every second when each pod was seen on its GPUs last.
type watcher struct {
	mu   sync.Mutex
	pods map[string]onGPU // by UID
}

// onGPU is what has been seen of a pod with GPUs.
type onGPU struct {
	read time.Time // when all of its GPUs could be read last
	busy time.Time // when it was at work on one last; zero for never since gpulab began
}

func newWatcher() *watcher { return &watcher{pods: map[string]onGPU{}} }

func (w *watcher) run(ctx context.Context, snapshots <-chan gpu.Snapshot, now func() time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case s, ok := <-snapshots:
			if !ok {
				return
			}
			w.add(s, now())
		}
	}
}

// forgetAfter is when a pod that holds no GPU any more is dropped.
const forgetAfter = time.Hour

func (w *watcher) add(s gpu.Snapshot, now time.Time) {
	if s.Error != "" {
		return
	}
	unread, busy := map[string]bool{}, map[string]bool{}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		for _, h := range g.Holders {
			share := shareOf(g, h)
			unread[h.UID] = unread[h.UID] || share == nil
			busy[h.UID] = busy[h.UID] || share != nil && *share >= busyShare
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid, missing := range unread {
		seen := w.pods[uid]
		if !missing || busy[uid] {
			seen.read = now
		}
		if busy[uid] {
			seen.busy = now
		}
		w.pods[uid] = seen
	}
	for uid, seen := range w.pods {
		if now.Sub(later(seen.read, seen.busy)) > forgetAfter {
			delete(w.pods, uid)
		}
	}
}

func (w *watcher) of(podUID string) onGPU {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[podUID]
}

// shareOf is how much of a GPU's time a pod takes, in percent, nil where that cannot be told.
func shareOf(g *gpu.GPU, h gpu.Holder) *float64 {
	nothing := 0.0
	idle := g.Asleep || g.Utilization != nil && *g.Utilization < busyShare
	if g.Error != "" {
		return nil
	}
	for _, taken := range gpu.TakenBy(g, func(p *gpu.Process) (bool, bool) { return true, p.Pod.UID == h.UID }) {
		if sm := taken.SM(); sm != nil && !g.ProcessesUnknown { // there may be more
			return sm
		}
	}
	ownKnown := false
	for i := range g.Processes {
		ownKnown = ownKnown || g.Processes[i].Pod.UID == h.UID
	}
	switch {
	case idle, !ownKnown && len(g.Processes) > 0 && !g.ProcessesUnknown:
		return &nothing
	case len(g.Holders) == 1:
		return g.Utilization // nil where the driver does not tell
	}
	return nil
}
