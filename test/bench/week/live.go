package week

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"time"
)

// Launch is a notebook or a job that waits for GPUs, or has them, or had.
type Launch struct {
	ID     int64
	Person int
	GPUs   int
	Job    bool
	// Again says that it takes the place of a notebook that was stopped while its
	// owner was not done.
	Again bool
	// Asked, Started and Ended count from the beginning of the week; Started and
	// Ended are below 0 before.
	Asked, Started, Ended time.Duration
	Machine               int // it runs on, -1 before

	present bool          // its owner is at the desk
	opened  bool          // its owner has seen it
	busy    time.Duration // its GPU was, in all; without what it is now
	since   time.Duration // its GPU is at work, below 0 while it is not
	until   time.Duration // its GPU was at work last, below 0 for never
	work    time.Duration // of a job that is left
}

func (l *Launch) waits() bool { return l.Started < 0 && l.Ended < 0 }
func (l *Launch) runs() bool  { return l.Started >= 0 && l.Ended < 0 }

// worked is how long its GPU has been at work until then.
func (l *Launch) worked(now time.Duration) time.Duration {
	if l.since >= 0 {
		return l.busy + now - l.since
	}
	return l.busy
}

// lab is where a week is lived through.
type lab struct {
	Demand
	policy  policy
	now     time.Duration
	free    []int // GPUs by machine
	last    int64 // launch
	waiting []*Launch
	running []*Launch
	people  []person
	events  events
	changed bool // who waits or what is free, since the policy was asked

	launches []*Launch
	record   Record
}

// policy decides who gets a GPU when.
type policy interface {
	// begin is called once, before anything else.
	begin(ctx context.Context, l *lab) error
	// fit is what a job takes of what it asks for; the GPUs of the launch may be fewer.
	fit(l *lab, launch *Launch)
	// asked, started and ended tell of a launch.
	asked(ctx context.Context, l *lab, launch *Launch) error
	started(ctx context.Context, l *lab, launch *Launch) error
	ended(ctx context.Context, l *lab, launch *Launch) error
	// ownMakesWay tells whether a notebook that was left open ends when its owner submits a job.
	ownMakesWay() bool
	// turn says on which machine each may start whose turn it is. It is asked when
	// somebody has come or gone.
	turn(ctx context.Context, l *lab) (map[*Launch]int, error)
	// pass lets time pass, at most until then. What it returns has been stopped at the time that it returns.
	pass(ctx context.Context, l *lab, until time.Duration) (time.Duration, []*Launch, error)
}

// person is what somebody does.
type person struct {
	notebook *Launch // waits or runs
	sitting  *Session
	cell     int // of it
	begins   time.Duration
	gone     int       // counts sittings and notebooks, so that what was meant for a former one is not done
	todo     []Session // they wanted meanwhile
}

// event is something that happens at its time.
type event struct {
	at  time.Duration
	seq int
	do  func(ctx context.Context) error
}

type events struct {
	list []event
	seq  int
}

func (e *events) Len() int { return len(e.list) }
func (e *events) Less(i, j int) bool {
	if e.list[i].at != e.list[j].at {
		return e.list[i].at < e.list[j].at
	}
	return e.list[i].seq < e.list[j].seq
}
func (e *events) Swap(i, j int) { e.list[i], e.list[j] = e.list[j], e.list[i] }
func (e *events) Push(x any)    { e.list = append(e.list, x.(event)) }
func (e *events) Pop() any {
	last := e.list[len(e.list)-1]
	e.list = e.list[:len(e.list)-1]
	return last
}

// at has something done at its time.
func (l *lab) at(when time.Duration, do func(ctx context.Context) error) {
	l.events.seq++
	heap.Push(&l.events, event{when, l.events.seq, do})
}

// live lives through the week. Time passes from one event to the next.
func live(ctx context.Context, d Demand, p policy) (Record, error) {
	l := &lab{Demand: d, policy: p, free: slices.Clone(d.Machines), people: make([]person, d.People)}
	l.record.Demand = d
	if err := p.begin(ctx, l); err != nil {
		return l.record, err
	}
	for i := range d.Sessions {
		l.at(d.Sessions[i].At, func(ctx context.Context) error { return l.sit(ctx, d.Sessions[i]) })
	}
	for i := range d.Jobs {
		l.at(d.Jobs[i].At, func(ctx context.Context) error { return l.submit(ctx, d.Jobs[i]) })
	}
	for l.now < l.Length {
		next := l.Length
		if l.events.Len() > 0 {
			next = min(next, l.events.list[0].at)
		}
		now, stopped, err := p.pass(ctx, l, next)
		if err != nil {
			return l.record, err
		}
		l.now = now
		for _, launch := range stopped {
			if err := l.reclaimed(ctx, launch); err != nil {
				return l.record, err
			}
		}
		for l.now < l.Length && l.events.Len() > 0 && l.events.list[0].at <= l.now {
			if err := heap.Pop(&l.events).(event).do(ctx); err != nil {
				return l.record, err
			}
		}
		if err := l.letIn(ctx); err != nil {
			return l.record, err
		}
	}
	return l.close(), nil
}

// letIn starts those whose turn it is.
func (l *lab) letIn(ctx context.Context) error {
	for l.changed {
		l.changed = false
		turns, err := l.policy.turn(ctx, l)
		if err != nil {
			return err
		}
		for _, launch := range slices.Clone(l.waiting) {
			machine, ok := turns[launch]
			if !ok {
				continue
			}
			if l.free[machine] < launch.GPUs {
				return fmt.Errorf("launch %d is given %d GPUs of machine %d, which has %d free", launch.ID, launch.GPUs, machine,
					l.free[machine])
			}
			l.free[machine] -= launch.GPUs
			launch.Started, launch.Machine = l.now, machine
			l.waiting = slices.DeleteFunc(l.waiting, func(w *Launch) bool { return w == launch })
			l.running = append(l.running, launch)
			if err := l.policy.started(ctx, l, launch); err != nil {
				return err
			}
			l.begun(launch)
		}
	}
	return nil
}

// ask puts a launch among those who wait.
func (l *lab) ask(ctx context.Context, launch *Launch) (*Launch, error) {
	l.last++
	launch.ID, launch.Asked, launch.Started, launch.Ended, launch.Machine, launch.since, launch.until = l.last, l.now, -1,
		-1, -1, -1, -1
	l.policy.fit(l, launch)
	l.waiting = append(l.waiting, launch)
	l.launches = append(l.launches, launch)
	l.changed = true
	return launch, l.policy.asked(ctx, l, launch)
}

// end ends a launch that waits or runs.
func (l *lab) end(ctx context.Context, launch *Launch) error {
	l.rest(launch)
	is := func(o *Launch) bool { return o == launch }
	if launch.runs() {
		l.free[launch.Machine] += launch.GPUs
		l.running = slices.DeleteFunc(l.running, is)
	} else {
		l.waiting = slices.DeleteFunc(l.waiting, is)
	}
	launch.Ended = l.now
	launch.present = false
	l.changed = true
	if p := &l.people[launch.Person]; p.notebook == launch {
		p.notebook = nil
	}
	return l.policy.ended(ctx, l, launch)
}

// toil has a launch's GPUs at work from now on, rest no more.
func (l *lab) toil(launch *Launch) { launch.since = l.now }

func (l *lab) rest(launch *Launch) {
	if launch.since >= 0 {
		launch.busy += l.now - launch.since
		launch.since, launch.until = -1, l.now
	}
}

// begun goes on with a launch that has just been started.
func (l *lab) begun(launch *Launch) {
	if launch.Job {
		l.toil(launch)
		l.at(l.now+launch.work, func(ctx context.Context) error {
			l.record.Finished++
			return l.end(ctx, launch)
		})
		return
	}
	p := &l.people[launch.Person]
	notices := time.Duration(0)
	if waited := l.now - launch.Asked; waited > 0 {
		notices = min(waited/4, noticing) // who waits for long does something else meanwhile
	}
	gone := p.gone
	l.at(l.now+notices, func(ctx context.Context) error {
		if p.gone != gone || p.notebook != launch {
			return nil
		}
		return l.think(ctx, launch.Person)
	})
}

// noticing is how long it takes somebody at most to see that it is their turn.
const noticing = 5 * time.Minute

// submit puts a job in line.
func (l *lab) submit(ctx context.Context, j Job) error {
	if own := l.people[j.Person]; l.policy.ownMakesWay() && own.notebook != nil && own.notebook.runs() &&
		own.sitting == nil {
		if err := l.end(ctx, own.notebook); err != nil {
			return err
		}
	}
	_, err := l.ask(ctx, &Launch{Person: j.Person, GPUs: j.GPUs, Job: true, work: j.Work})
	return err
}

// sit begins a sitting: in the notebook that is open, or with a new one.
func (l *lab) sit(ctx context.Context, s Session) error {
	p := &l.people[s.Person]
	if p.sitting != nil {
		p.todo = append(p.todo, s)
		return nil
	}
	p.sitting, p.cell, p.begins = &s, 0, l.now
	p.gone++
	gone := p.gone
	l.at(s.Until, func(ctx context.Context) error { // they go home, unless a cell still runs
		if p.gone != gone || p.notebook != nil && p.notebook.since >= 0 {
			return nil
		}
		return l.rise(ctx, s.Person)
	})
	if p.notebook != nil {
		l.record.waited(false, 0)
		return l.think(ctx, s.Person)
	}
	return l.open(ctx, s.Person, false)
}

func (l *lab) open(ctx context.Context, who int, again bool) (err error) {
	l.people[who].notebook, err = l.ask(ctx, &Launch{Person: who, GPUs: 1, Again: again})
	return err
}

// think is the time before the next cell runs.
func (l *lab) think(ctx context.Context, who int) error {
	p := &l.people[who]
	if p.cell >= len(p.sitting.Cells) || l.now >= p.sitting.Until {
		return l.rise(ctx, who)
	}
	c, gone := p.sitting.Cells[p.cell], p.gone
	p.notebook.present, p.notebook.opened = !c.Away, true
	l.at(l.now+c.Think, func(ctx context.Context) error {
		if p.gone != gone {
			return nil
		}
		if p.notebook == nil { // it was taken back meanwhile
			l.record.Interrupted++
			return l.open(ctx, who, true)
		}
		n := p.notebook
		n.present = true
		l.toil(n)
		l.at(l.now+c.Busy, func(ctx context.Context) error {
			if p.notebook != n {
				l.record.Interrupted++
				return l.open(ctx, who, true)
			}
			l.rest(n)
			p.cell++
			return l.think(ctx, who)
		})
		return nil
	})
	return nil
}

// rise ends a sitting.
func (l *lab) rise(ctx context.Context, who int) error {
	p := &l.people[who]
	open := p.sitting.LeftOpen
	if p.notebook != nil && p.notebook.waits() {
		l.record.GaveUp++
		open = 0
	}
	p.sitting = nil
	p.gone++
	if p.notebook != nil {
		p.notebook.present = false
		if open == 0 {
			if err := l.end(ctx, p.notebook); err != nil {
				return err
			}
		} else {
			gone := p.gone
			l.at(l.now+open, func(ctx context.Context) error {
				if p.gone != gone || p.notebook == nil {
					return nil
				}
				return l.end(ctx, p.notebook)
			})
		}
	}
	for len(p.todo) > 0 {
		next := p.todo[0]
		p.todo = p.todo[1:]
		if next.Until > l.now {
			return l.sit(ctx, next)
		}
		l.record.GaveUp++
	}
	return nil
}

// reclaimed ends a notebook that the policy has stopped.
func (l *lab) reclaimed(ctx context.Context, launch *Launch) error {
	if !launch.runs() {
		return nil
	}
	l.record.Reclaimed++
	if launch.since >= 0 {
		l.record.Lost++
	}
	return l.end(ctx, launch)
}

// close adds up what the week has brought.
func (l *lab) close() Record {
	r := &l.record
	r.got = make([]time.Duration, l.People)
	for _, launch := range l.launches {
		r.Launches++
		if launch.Started < 0 {
			if launch.Job || launch.Ended < 0 {
				r.StillWaiting++
			}
		} else {
			end := launch.Ended
			if end < 0 {
				end = l.Length
			}
			r.Held += (end - launch.Started).Hours() * float64(launch.GPUs)
			r.got[launch.Person] += launch.worked(l.Length) * time.Duration(launch.GPUs)
		}
		waited := launch.Started - launch.Asked
		if launch.Started < 0 {
			waited = l.Length - launch.Asked // at least
			if launch.Ended >= 0 {
				waited = launch.Ended - launch.Asked
			}
		}
		r.waited(launch.Job, waited)
	}
	return *r
}
