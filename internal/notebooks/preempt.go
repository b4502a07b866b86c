package notebooks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gpulab/gpulab/internal/units"
)

// Preemption says which running jobs give way to a launch that waits for a GPU.
// Notebooks never do: what they have in memory cannot be saved for them.
type Preemption string

// The kinds of preemption.
const (
	PreemptNothing Preemption = "off"
	PreemptOffered Preemption = "offered" // jobs whose owners have said so
	PreemptByRole  Preemption = "roles"   // and those of people of a lower role
)

// EndPreempted is the end code of a run of a job that gave way. The job goes back
// into the line, so it is none of a launch that has ended.
const EndPreempted = "preempted"

// exitSaved is the exit code of the program in the pod (jobrun.py) when the job's
// own was asked to end, and did so with 0: it has saved what it needs. A program
// that had ended before it was asked leaves its own exit code.
const exitSaved = 75

// unsettled is how long nothing is taken from anybody because somebody who has
// just come has no place in the line yet.
const unsettled = time.Minute

// offers tells whether a launch is a job that may give way to everybody else.
func (s *Service) offers(l Launch) bool {
	return l.Job != nil && l.Job.Preemptible && s.preempts()
}

func (s *Service) preempts() bool {
	return s.cfg.Preemption != "" && s.cfg.Preemption != PreemptNothing
}

// band is what counts before past use in the line: a launch of a higher one goes
// first, and jobs give way to it. As both are the same, nobody gets a GPU only to
// give it back to whoever it was taken from; and as past use is no part of it,
// nothing changes while people use GPUs.
func (s *Service) band(ctx context.Context, l Launch) int64 {
	switch {
	case s.offers(l):
		return -1
	case s.cfg.Preemption == PreemptByRole:
		return ranks[s.roleOf(ctx, l)]
	}
	return 0
}

// claimant is a launch that waits for GPUs.
type claimant struct {
	launch   int64
	band     int64
	gpus     int
	machines []string // that would do
	keeps    string   // the one of them that is kept for it, "" for none
}

// yielder is a job that runs on GPUs.
type yielder struct {
	launch  int64
	band    int64
	gpus    int
	machine string
	since   time.Time // it has them
	from    time.Time // it may give way
}

// yields says which jobs give way now, and to whom, by their launches; soon says
// from when on enough of them will for somebody else who waits.
//
// Those who wait are looked at in their order, and take first what is free. A job
// gives way only where all that is needed comes together on one machine, and not
// past somebody who waits for the same machine and cannot be helped: it would end
// for nothing.
func yields(now time.Time, free map[string]int, waiting []claimant,
	jobs []yielder) (way map[int64]int64, soon map[int64]time.Time) {
	way, soon = map[int64]int64{}, map[int64]time.Time{}
	left := map[string]int{}
	for machine, gpus := range free {
		left[machine] = max(gpus, 0)
	}
	stuck := map[string]bool{} // machines that somebody waits for who cannot be helped now
	for _, w := range waiting {
		w.machines = slices.DeleteFunc(slices.Clone(w.machines), func(m string) bool { return stuck[m] })
		if i := slices.IndexFunc(w.machines, func(m string) bool { return left[m] >= w.gpus }); i >= 0 {
			left[w.machines[i]] -= w.gpus
			continue
		}
		some := cheapest(w, left, jobs, func(j yielder) bool { return way[j.launch] == 0 && !now.Before(j.from) })
		if some == nil {
			for _, j := range cheapest(w, left, jobs, func(j yielder) bool { return way[j.launch] == 0 }) {
				if j.from.After(soon[w.launch]) {
					soon[w.launch] = j.from
				}
			}
			stick(stuck, w)
			continue
		}
		for _, j := range some {
			way[j.launch] = w.launch
			left[j.machine] += j.gpus
		}
		left[some[0].machine] -= w.gpus
	}
	return way, soon
}

// stick keeps the machines that w waits for from those behind it: one, if that is
// kept for it.
func stick(stuck map[string]bool, w claimant) {
	if w.keeps != "" {
		stuck[w.keeps] = true
		return
	}
	for _, m := range w.machines {
		stuck[m] = true
	}
}

// cheapest are the jobs of one machine that together make room for w at the least
// loss; nil if there are none such.
func cheapest(w claimant, left map[string]int, jobs []yielder, may func(yielder) bool) (best []yielder) {
	least := math.Inf(1)
	for _, machine := range w.machines {
		var list []yielder
		for _, j := range jobs {
			if j.machine == machine && j.band < w.band && may(j) {
				list = append(list, j)
			}
		}
		if some := enough(list, w.gpus-left[machine]); some != nil && loss(some) < least {
			best, least = some, loss(some)
		}
	}
	return best
}

// enough are those of a machine's jobs that bring so many GPUs: of the lowest
// band, and those that have run shortest, because they lose least.
func enough(list []yielder, gpus int) []yielder {
	slices.SortFunc(list, func(a, b yielder) int {
		return cmp.Or(cmp.Compare(a.band, b.band), b.since.Compare(a.since), cmp.Compare(b.launch, a.launch))
	})
	var some []yielder
	for _, j := range list {
		if gpus <= 0 {
			break
		}
		some = append(some, j)
		gpus -= j.gpus
	}
	if gpus > 0 {
		return nil
	}
	// A later one may bring what earlier ones were taken for.
	return slices.DeleteFunc(some, func(j yielder) bool {
		if gpus+j.gpus > 0 {
			return false
		}
		gpus += j.gpus
		return true
	})
}

// loss compares what jobs lose: those of a higher band lose more, and GPUs that
// were held for longer count more.
func loss(some []yielder) (sum float64) {
	for _, j := range some {
		sum += float64(j.band+2)*1e12 - float64(j.gpus)*float64(j.since.Unix())
	}
	return sum
}

// giveWay ends jobs for those who wait and go before them, and notes what each of
// these may expect.
func (s *Service) giveWay(ctx context.Context, all []Launch) {
	expect := map[int64]string{}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.expect = expect
	}()
	if !s.preempts() {
		return
	}
	var jobs []yielder
	running := map[int64]Launch{}
	for _, l := range all {
		switch {
		case !l.IsJob() || l.GPUs == 0 || l.IsArray():
		case l.State == Stopping && l.EndCode == EndPreempted:
			expect[l.Job.WayLaunch] = fmt.Sprintf("A job of %s gives way: its GPU is free in %s at the latest.", l.Handle,
				units.Lasting(jobGrace))
		case l.State == Running && l.Node != "":
			running[l.ID] = l
			jobs = append(jobs, yielder{
				launch: l.ID, band: s.band(ctx, l), gpus: l.GPUs, machine: l.Node, since: l.Ready,
				from: l.Ready.Add(s.cfg.MinimumRun),
			})
		}
	}
	if len(jobs) == 0 || !slices.ContainsFunc(all, Launch.WaitsForGPU) || s.cfg.Line.Trouble() != "" {
		return
	}
	free, wanting, err := s.Wanting(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.log.Error("who gives way cannot be told", "error", err)
		}
		return
	}
	now := s.now()
	waiting := make([]claimant, len(wanting))
	waits := map[int64]Launch{}
	for i, w := range wanting {
		if s.turn(w.Launch) == math.MaxInt && now.Sub(w.Launch.Requested) < unsettled {
			return // the order may be another than it seems
		}
		waits[w.Launch.ID] = w.Launch
		waiting[i] = claimant{w.Launch.ID, s.band(ctx, w.Launch), w.Launch.GPUs, w.Machines, w.Keeps}
	}
	way, soon := yields(now, free, waiting, jobs)
	for launch, at := range soon {
		expect[launch] = fmt.Sprintf("A job gives way to it at %s, unless a GPU is free before.",
			at.Local().Format("15:04:05"))
	}
	for job, launch := range way {
		s.preempt(ctx, running[job], waits[launch])
	}
}

// preempt lets a job end for somebody who waits; it goes back into the line. It is
// left alone if it has ended meanwhile, or nobody waits any more.
func (s *Service) preempt(ctx context.Context, job, waits Launch) {
	job.EndCode, job.Reason = EndPreempted, fmt.Sprintf("It gives way to %s, who waits for a GPU (launch %d). It has "+
		"%s to save its state, and goes back into the line.", waits.Handle, waits.ID, units.Lasting(jobGrace))
	done, err := s.rows.giveWay(ctx, job, waits)
	if err != nil || !done {
		if err != nil && ctx.Err() == nil {
			s.log.Error("a job could not be asked to give way", "launch", job.ID, "error", err)
		}
		return
	}
	s.log.Info("a job gives way", "launch", job.ID, "to", waits.ID)
	if s.cfg.Preempted != nil {
		s.cfg.Preempted(ctx, job, waits)
	}
	s.kick()
}

// giveWay notes that a job ends for a launch, if the one still runs and the other
// still waits.
func (t rows) giveWay(ctx context.Context, job, waits Launch) (done bool, err error) {
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }()
	res, err := tx.ExecContext(ctx, `UPDATE launches SET state = 'stopping', end_code = ?, reason = ? WHERE id = ?
		AND state = 'running'
		AND EXISTS (SELECT 1 FROM launches WHERE id = ? AND state = 'waiting')`, job.EndCode, job.Reason, job.ID, waits.ID)
	if err != nil {
		return false, err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return false, err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE jobs SET way_launch = ?, way_for = ? WHERE launch_id = ?`, waits.ID,
		waits.Handle, job.ID); err != nil {
		return false, err
	}
	return true, tx.Commit()
}

// gaveWay settles how a run ended that was asked to give way, once nothing is left
// of it: it may have ended by itself in that very moment.
func (s *Service) gaveWay(l Launch) (Launch, bool) {
	p, known := s.cfg.Cluster.Gone(l.ID)
	job := *l.Job
	l.Job = &job
	if known && p.Exited && p.ExitCode == 0 && p.StatusReason == "" {
		job.ExitCode = new(0)
		l.EndCode, l.Reason = jobEndWords(p, job.Limit, false)
		return l, false
	}
	saved := known && p.Exited && p.ExitCode == exitSaved
	l.Reason = fmt.Sprintf("It gave way to %s, who waited for a GPU (launch %d)", job.WayFor, job.WayLaunch)
	if saved {
		l.Reason += ", and had saved its state."
	} else {
		l.Reason += "."
	}
	return l, saved
}

// Preempted counts the runs that gave way, and what was lost with them at most: the
// time of those that did not end in peace when they were asked to.
func (j *Job) Preempted() (times int, lost time.Duration) {
	for _, t := range j.Tries {
		if t.EndCode == EndPreempted {
			times++
			lost += t.Lost()
		}
	}
	return times, lost
}

// Lost is how much of a run that gave way was lost at most.
func (t Try) Lost() time.Duration {
	if t.EndCode != EndPreempted || t.Saved {
		return 0
	}
	return time.Duration(t.Until-t.From) * time.Millisecond
}

// wayWords say of a launch that waits why it is about to get a GPU, or why it lost
// the one it had. The caller holds mu.
func (s *Service) wayWords(l Launch) string {
	if l.State != Waiting {
		return ""
	}
	words := s.expect[l.ID]
	if l.Job != nil && len(l.Job.Tries) > 0 {
		if last := l.Job.Tries[len(l.Job.Tries)-1]; last.EndCode == EndPreempted {
			words = join(fmt.Sprintf("It gave way to %s at %s, and goes on when a GPU is free for it.", last.For,
				time.UnixMilli(last.Until).Local().Format("15:04:05")), words)
		}
	}
	return words
}

// aside is how long a job that gave way keeps out of the line at most.
const aside = time.Minute

// standsAside says for whom a job that gave way keeps out of the line: until they have its
// GPU, it could be given that again. Something else may be in their way, so not for ever.
func (s *Service) standsAside(ctx context.Context, l Launch) (words string, err error) {
	if len(l.Job.Tries) == 0 {
		return "", nil
	}
	last := l.Job.Tries[len(l.Job.Tries)-1]
	gone := time.UnixMilli(last.Until)
	if last.EndCode != EndPreempted || s.now().Sub(gone) > aside {
		return "", nil
	}
	other, err := s.rows.get(ctx, last.ForLaunch)
	switch {
	case errors.Is(err, ErrNotFound) || err == nil && other.State != Waiting:
		return "", nil
	case err != nil:
		return "", err
	}
	return fmt.Sprintf("It gave way to %s at %s, and is back in line once that has started.", last.For,
		gone.Local().Format("15:04:05")), nil
}
