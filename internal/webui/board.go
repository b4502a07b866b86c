package webui

import (
	"context"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

const (
	// settle is the least time between two ticks: it gathers the readings of
	// several machines, and launches that change in quick succession.
	settle = 100 * time.Millisecond
	// second is how often there is a tick where nothing is heard of: pages count
	// seconds.
	second = time.Second
	// overdue is how long readings that come every second are waited for before
	// a second has passed without them. Two ticks a second would cost twice.
	overdue = 1250 * time.Millisecond
)

// A board is what all live pages show, tick by tick. A tick is the lab at one
// moment: when it is over, every stream looks at the next. What one of them
// reads and renders is there for all that show the same, so that many pages cost
// hardly more than one, and none costs nothing.
type board struct {
	fleet Fleet

	mu      sync.Mutex
	current *tick
	stale   bool // something has changed that current does not know
}

// A tick is safe for concurrent use. What it hands out belongs to all streams
// and must not be changed.
type tick struct {
	over      chan struct{} // closed when there is a newer one
	snapshots []gpu.Snapshot
	named     map[string]bool // handles of those who are on some GPU
	news      *news

	machines  memo[machinesKey, []machineView]
	gpus      memo[gpuKey, gpuPageView]
	pool      memo[struct{}, ctl.Machines]
	fragments memo[fragmentKey, *fragment]
}

type machinesKey struct {
	reader   string
	drawings bool
}

type gpuKey struct{ reader, uuid string }

// news is what takes time to read. Ticks share it until something changes.
type news struct {
	active memo[struct{}, []notebooks.Launch]
	mine   memo[int64, []notebooks.Launch] // by user
	events memo[eventsKey, []eventView]
	status memo[struct{}, statusView]
	// environments are as of so many changes of their list.
	environments memo[uint64, []ctl.EnvironmentState]
}

// eventsKey names the events of a GPU as of the time when there were noted of
// all GPUs: a new one is on the page with the next tick.
type eventsKey struct {
	uuid  string
	noted uint64
}

// now is the tick of this moment. It is never older than the last change.
func (b *board) now() *tick {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current == nil || b.stale {
		b.begin()
	}
	return b.current
}

// turn ends the tick and begins the next.
func (b *board) turn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begin()
}

// changed says that what takes time to read has to be read again.
func (b *board) changed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stale = true
}

func (b *board) begin() {
	last := b.current
	t := &tick{over: make(chan struct{}), snapshots: b.fleet.Snapshots()}
	t.named = namesOn(t.snapshots)
	if last == nil || b.stale {
		t.news = &news{}
	} else {
		t.news = last.news
	}
	b.current, b.stale = t, false
	if last != nil {
		close(last.over)
	}
}

// run turns the board until ctx ends: with new readings, which are also drawn
// into the trends, with every change of a launch, and every second.
func (s *Server) run(ctx context.Context) {
	readings, launches := s.cfg.Fleet.Subscribe(ctx), s.cfg.Notebooks.Subscribe(ctx)
	reread := time.NewTicker(heartbeat)
	defer reread.Stop()
	next := time.NewTimer(second)
	defer next.Stop()
	var last time.Time
	soon := func() { next.Reset(max(0, settle-time.Since(last))) }
	wait := second
	for {
		select {
		case <-ctx.Done():
			return
		case snapshot, open := <-readings:
			if !open {
				readings = nil
				continue
			}
			s.trends.add(snapshot)
			wait = overdue
			soon()
		case _, open := <-launches:
			if !open {
				launches = nil
				continue
			}
			s.board.changed()
			soon()
		case <-reread.C:
			s.board.changed()
		case <-next.C:
			last = time.Now()
			s.board.turn()
			next.Reset(wait)
			wait = second
		}
	}
}

// namesOn lists whose names are on GPUs.
func namesOn(snapshots []gpu.Snapshot) map[string]bool {
	names := map[string]bool{}
	for i := range snapshots {
		for k := range snapshots[i].GPUs {
			g := &snapshots[i].GPUs[k]
			for _, h := range g.Holders {
				names[h.User] = true
			}
			for _, p := range g.Processes {
				names[p.Pod.User] = true
			}
		}
	}
	return names
}

// reader is as much of a visitor as a view of GPUs depends on: the handle of
// those who are "you" there, and nobody at all for everybody else.
func (t *tick) reader(v visitor) visitor {
	if !v.signedIn || !t.named[v.session.User.Handle] {
		return visitor{}
	}
	return visitor{signedIn: true, session: users.Session{User: users.User{Handle: v.session.User.Handle}}}
}

// everybody marks parts that are the same for all visitors.
const everybody = "everybody"

// sameFor says with whom a reader shares what shows some GPUs.
func sameFor(reader visitor, gpus ...gpuView) string {
	for _, g := range gpus {
		if g.names(reader) {
			return "reader " + reader.session.User.Handle
		}
	}
	return everybody
}

// machinesAt are the machines of a tick as the visitor sees them.
func (s *Server) machinesAt(t *tick, v visitor, drawings bool) []machineView {
	reader := t.reader(v)
	views, _ := t.machines.get(machinesKey{reader.session.User.Handle, drawings}, func() ([]machineView, error) {
		return s.machines(t.snapshots, reader, drawings), nil
	})
	return views
}

// launchesAt are the visitor's launches and everybody's that have not ended.
func (s *Server) launchesAt(ctx context.Context, t *tick, v visitor) (mine, active []notebooks.Launch, err error) {
	id := v.session.User.ID
	// Others may be waiting for what this stream reads, even if it ends.
	ctx = context.WithoutCancel(ctx)
	mine, err = t.news.mine.get(id, func() ([]notebooks.Launch, error) { return s.ownLaunches(ctx, id) })
	if err != nil {
		return nil, nil, err
	}
	active, err = t.news.active.get(struct{}{}, func() ([]notebooks.Launch, error) { return s.activeLaunches(ctx) })
	return mine, active, err
}

// A memo makes a value for a key once, whoever asks first; the others wait for
// it. A failure is not kept. The zero value is empty.
type memo[K comparable, V any] struct {
	mu   sync.Mutex
	made map[K]func() (V, error)
}

func (m *memo[K, V]) get(key K, do func() (V, error)) (V, error) {
	m.mu.Lock()
	once := m.made[key]
	if once == nil {
		once = sync.OnceValues(do)
		if m.made == nil {
			m.made = map[K]func() (V, error){}
		}
		m.made[key] = once
	}
	m.mu.Unlock()
	value, err := once()
	if err != nil {
		m.mu.Lock()
		delete(m.made, key)
		m.mu.Unlock()
	}
	return value, err
}
