package week

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"testing/synctest"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/idle"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/queue"
	"github.com/gpulab/gpulab/internal/users"
)

// Line is the line for GPUs, such as [queue.Line] with Kueue behind it.
type Line interface {
	// Decide tells it what there is and who wants it, and returns who has been let
	// in once nobody more will be. It takes no time of the week.
	Decide(s queue.State) (in map[int64]bool, err error)
}

// Machines is where launches run: the lab's machines, by their place in
// [Demand.Machines]. It takes no time of the week.
type Machines interface {
	// Start has a launch run on one of these machines, on the first if that can be,
	// and returns on which it does.
	Start(w *Launch, on []int) (machine int, err error)
	// End ends it; its GPUs are free then.
	End(w *Launch) error
}

// Gpulab lives through a week in a lab with gpulab. What decides is gpulab's own
// code: past use and priorities ([notebooks.PastUse]), what the line is told
// ([queue.State]), and the whole of [idle.Service] with the settings of a lab that
// says nothing. db is an empty gpulab.db.
//
// It has to be called in a bubble of [synctest.Test], whose clock is that of the
// week: it stands still while the line decides, and leaps to the next moment in
// which something happens.
func Gpulab(ctx context.Context, d Demand, db *sql.DB, line Line, machines Machines) (Record, error) {
	ctx, cancel := context.WithCancel(ctx)
	g := &gpulab{db: db, line: line, machines: machines, began: time.Now(), done: make(chan struct{})}
	record, err := live(ctx, d, g)
	cancel()
	if g.idle != nil {
		<-g.done
	}
	return record, err
}

const (
	halfLife  = 7 * 24 * time.Hour // of past use, as in a lab that says nothing
	lookEvery = time.Minute        // at notebooks; gpulab itself looks each 15 s
	kind      = "Model"            // all GPUs are of one
)

// gpulab is the policy.
type gpulab struct {
	db       *sql.DB
	line     Line
	machines Machines
	began    time.Time
	done     chan struct{} // the idle service

	lab      *lab
	people   []int64 // their numbers in the database
	idle     *idle.Service
	readings chan gpu.Snapshot
	stopped  []*Launch
	looked   time.Duration // when readings were made last

	priority  map[int64]int32  // of those who wait, as the line has been told last
	let       []*Launch        // let in, and no machine has had room yet
	freed     []queue.Claim    // since the line was told last
	extra     int              // GPUs that the line gives away besides those of the lab
	keeps     map[int64]string // the machine that is kept for a launch
	extending bool
}

func handle(person int) string { return fmt.Sprintf("person-%d", person) }

// Namespace is that of a person.
func Namespace(person int) string { return "user-" + handle(person) }

// Node is the name of a machine.
func Node(machine int) string { return fmt.Sprintf("machine-%d", machine) }

func (g *gpulab) begin(ctx context.Context, l *lab) error {
	g.lab, g.priority, g.readings = l, map[int64]int32{}, make(chan gpu.Snapshot)
	people := users.New(g.db)
	for person := range l.People {
		u, err := people.Create(ctx, users.NewUser{Handle: handle(person), Role: users.RoleMember})
		if err != nil {
			return err
		}
		g.people = append(g.people, u.ID)
	}
	g.idle = idle.New(idle.Config{
		DB: g.db, Every: lookEvery,
		Running: g.notebooks, Queue: g.waiting, Measure: g.measure, Ask: g.claims,
		Stop: func(_ context.Context, launch int64, _ idle.Cause, _ string) error {
			g.stopped = append(g.stopped, g.launch(launch))
			return nil
		},
		Audit:   func(context.Context, audit.Entry) error { return nil },
		Changed: func() { g.click(ctx) },
	})
	go func() {
		defer close(g.done)
		_ = g.idle.Run(ctx, g.readings)
	}()
	return nil
}

func (g *gpulab) launch(id int64) *Launch { return g.lab.launches[id-1] }

func (g *gpulab) fit(*lab, *Launch) {}

func (g *gpulab) ownMakesWay() bool { return false }

// asked, started and ended keep the rows from which past use is counted, and in
// which notebooks are entered that are taken back.
func (g *gpulab) asked(ctx context.Context, l *lab, w *Launch) error {
	return g.write(ctx,
		`INSERT INTO launches (id, user_id, handle, name, profile, gpus, state, requested_at)
			VALUES (?, ?, ?, ?, 'gpu', ?, 'waiting', ?)`,
		w.ID, g.people[w.Person], handle(w.Person), strconv.FormatInt(w.ID, 10), w.GPUs, g.milli(l.now))
}

func (g *gpulab) started(ctx context.Context, l *lab, w *Launch) error {
	g.let = slices.DeleteFunc(g.let, func(o *Launch) bool { return o == w })
	delete(g.priority, w.ID)
	return g.write(ctx, `UPDATE launches SET state = 'running', started_at = ?, ready_at = ?, node = ? WHERE id = ?`,
		g.milli(l.now), g.milli(l.now), Node(w.Machine), w.ID)
}

func (g *gpulab) ended(ctx context.Context, l *lab, w *Launch) error {
	if _, waited := g.priority[w.ID]; !waited || slices.Contains(g.let, w) {
		g.freed = append(g.freed, g.claim(w))
	}
	g.let = slices.DeleteFunc(g.let, func(o *Launch) bool { return o == w })
	delete(g.priority, w.ID)
	if w.Started >= 0 {
		if err := g.machines.End(w); err != nil {
			return err
		}
	}
	return g.write(ctx, `UPDATE launches SET state = 'ended', ended_at = ? WHERE id = ?`, g.milli(l.now), w.ID)
}

func (g *gpulab) write(ctx context.Context, query string, args ...any) error {
	_, err := g.db.ExecContext(ctx, query, args...)
	return err
}

func (g *gpulab) milli(at time.Duration) int64 { return g.began.Add(at).UnixMilli() }

func (g *gpulab) claim(w *Launch) queue.Claim {
	c := queue.Claim{Launch: w.ID, Namespace: Namespace(w.Person), GPUs: w.GPUs, Priority: g.priority[w.ID]}
	if w.Started >= 0 {
		c.Held, c.On = true, kind
	}
	return c
}

// turn asks the line. How those who wait come among each other is counted anew
// when GPUs have been freed, before the line hears of these.
func (g *gpulab) turn(ctx context.Context, l *lab) (map[*Launch]int, error) {
	used, err := notebooks.PastUse(ctx, g.db, g.began.Add(l.now).Truncate(time.Minute), halfLife)
	if err != nil {
		return nil, err
	}
	for _, w := range l.waiting {
		if _, known := g.priority[w.ID]; !slices.Contains(g.let, w) && (!known || len(g.freed) > 0) {
			g.priority[w.ID] = notebooks.Priority(string(users.RoleMember), used[g.people[w.Person]])
		}
	}
	if len(g.freed) > 0 && len(l.waiting) > 0 {
		before := g.state(l)
		before.Claims = slices.Concat(g.freed, before.Claims)
		if _, err := g.line.Decide(before); err != nil {
			return nil, err
		}
	}
	g.freed = nil
	turns, free := map[*Launch]int{}, slices.Clone(l.free)
	for {
		if g.extra, err = g.place(l, free, turns); err != nil {
			return nil, err
		}
		in, err := g.line.Decide(g.state(l))
		if err != nil {
			return nil, err
		}
		more := false
		for _, w := range g.inOrder() {
			if in[w.ID] && !slices.Contains(g.let, w) {
				g.let = append(g.let, w)
				more = true
			}
		}
		if !more {
			return turns, nil
		}
	}
}

// state is what the line is told.
func (g *gpulab) state(l *lab) queue.State {
	s := queue.State{Stock: []queue.Stock{{Kind: kind, GPUs: l.GPUs() + g.extra}}}
	for _, list := range [][]*Launch{l.running, l.waiting} {
		for _, w := range list {
			s.Claims = append(s.Claims, g.claim(w))
		}
	}
	return s
}

// inOrder are those who wait, the next one first.
func (g *gpulab) inOrder() []*Launch {
	list := slices.Clone(g.lab.waiting)
	slices.SortStableFunc(list, func(a, b *Launch) int {
		return cmp.Or(cmp.Compare(g.priority[b.ID], g.priority[a.ID]), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// place starts those who have been let in, as gpulab does: if it can be where the
// fewest GPUs are left over. A machine is kept for whom none has room. It returns
// how many GPUs more than there are the line is to give away.
func (g *gpulab) place(l *lab, free []int, turns map[*Launch]int) (extra int, err error) {
	machines, kinds := map[string]int{}, map[string]string{}
	for m, n := range free {
		machines[Node(m)], kinds[Node(m)] = n, kind
	}
	kept, more := notebooks.Reserve(notebooks.Stand{Free: machines, Kind: kinds}, g.seekers(turns))
	g.keeps = map[int64]string{}
	for launch, k := range kept {
		g.keeps[launch] = k.Machine
		machines[k.Machine] -= k.GPUs
	}
	open := slices.Clone(free) // for those for whom nothing is kept
	for m := range open {
		open[m] = machines[Node(m)]
	}
	for _, w := range g.let {
		if _, has := turns[w]; has {
			continue
		}
		on := roomy(open, w.GPUs)
		if len(on) == 0 {
			continue
		}
		at, err := g.machines.Start(w, on)
		if err != nil {
			return 0, err
		}
		open[at] -= w.GPUs
		free[at] -= w.GPUs
		turns[w] = at
	}
	return more[kind], nil
}

// seekers are those who wait and have been given no machine: whose turn it is, then
// the others, the next one first.
func (g *gpulab) seekers(turns map[*Launch]int) (list []notebooks.Seeker) {
	add := func(w *Launch, granted, first bool) {
		s := notebooks.Seeker{Launch: w.ID, GPUs: w.GPUs, Granted: granted, First: first, Keeps: g.keeps[w.ID]}
		for m, n := range g.lab.Machines {
			if n >= w.GPUs {
				s.Machines = append(s.Machines, Node(m))
			}
		}
		list = append(list, s)
	}
	for _, w := range g.let {
		if _, has := turns[w]; !has {
			add(w, true, false)
		}
	}
	first := true
	for _, w := range g.inOrder() {
		if !slices.Contains(g.let, w) {
			add(w, false, first)
			first = false
		}
	}
	return list
}

// pass lets the bubble's clock run until then, or until notebooks have been stopped.
func (g *gpulab) pass(_ context.Context, l *lab, until time.Duration) (time.Duration, []*Launch, error) {
	for now := l.now; ; {
		// A look may stop a notebook; it is at whole minutes.
		next := min(until, now.Truncate(lookEvery)+lookEvery)
		time.Sleep(time.Until(g.began.Add(next)))
		synctest.Wait()
		now = time.Since(g.began)
		if len(g.stopped) > 0 || now >= until {
			stopped := g.stopped
			g.stopped = nil
			return now, stopped, nil
		}
	}
}

// What follows is what the idle service sees.

func (g *gpulab) now() time.Duration { return time.Since(g.began) }

func pod(w *Launch) string { return "pod-" + strconv.FormatInt(w.ID, 10) }

// notebooks are those that run, once their GPUs have been read.
func (g *gpulab) notebooks(ctx context.Context) ([]idle.Notebook, error) {
	var list []idle.Notebook
	s := gpu.Snapshot{Time: time.Now()}
	policy := idle.Default()
	for _, w := range g.lab.running {
		if w.Job {
			continue
		}
		use := 0.0
		if w.since >= 0 || w.until > g.looked {
			use = 80
		}
		s.GPUs = append(s.GPUs, gpu.GPU{
			Reading: gpu.Reading{Utilization: &use}, Holders: []gpu.Holder{{PodRef: gpu.PodRef{UID: pod(w)}}},
		})
		list = append(list, idle.Notebook{
			Launch: w.ID, UserID: g.people[w.Person], Handle: handle(w.Person), Name: strconv.FormatInt(w.ID, 10),
			Profile: "gpu", GPUs: w.GPUs,
			Node: Node(w.Machine), PodUID: pod(w), Ready: g.began.Add(w.Started),
			Waited: w.Started-w.Asked >= policy.Unopened/10, Browsed: w.opened, Policy: policy,
		})
	}
	g.looked = g.now()
	for _, one := range []gpu.Snapshot{s, {Error: "once this is taken, the one before has been seen"}} {
		select {
		case g.readings <- one:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return list, nil
}

func (g *gpulab) waiting(context.Context) (idle.Queue, error) {
	q := idle.Queue{Free: map[string]int{}}
	for m, n := range g.lab.free {
		q.Free[Node(m)] = n
	}
	for _, w := range append(slices.Clone(g.let), g.inOrder()...) {
		if slices.ContainsFunc(q.Waiting, func(o idle.Waiting) bool { return o.Launch == w.ID }) {
			continue
		}
		one := idle.Waiting{Launch: w.ID, Handle: handle(w.Person), GPUs: w.GPUs, Keeps: g.keeps[w.ID]}
		for m, n := range g.lab.Machines {
			if n >= w.GPUs {
				one.Nodes = append(one.Nodes, Node(m))
			}
		}
		q.Waiting = append(q.Waiting, one)
	}
	return q, nil
}

// measure has a processor at work while a GPU is.
func (g *gpulab) measure(context.Context) (map[string]idle.Usage, error) {
	used := map[string]idle.Usage{}
	for _, w := range g.lab.running {
		used[pod(w)] = idle.Usage{At: time.Now(), CPU: w.worked(g.now())}
	}
	return used, nil
}

func (g *gpulab) claims(_ context.Context, n idle.Notebook) (idle.Claims, error) {
	w := g.launch(n.Launch)
	c := idle.Claims{KernelBusy: w.since >= 0}
	if w.until >= 0 {
		c.Kernel = g.began.Add(w.until)
	}
	return c, nil
}

// click has those who are at their desk say that they still need their notebook.
func (g *gpulab) click(ctx context.Context) {
	if g.extending {
		return
	}
	g.extending = true
	defer func() { g.extending = false }()
	for _, h := range g.idle.Holdings() {
		if h.MayExtend() && g.launch(h.Launch).present {
			_, _ = g.idle.Extend(ctx, h.Launch) // it may have been stopped in this very moment
		}
	}
}
