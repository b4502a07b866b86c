package notebooks

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// Which jobs give way, and to whom.
func TestYields(t *testing.T) {
	now := time.Date(2026, 11, 25, 9, 0, 0, 0, time.UTC)
	job := func(launch int64, band int64, gpus int, machine string, ran time.Duration) yielder {
		return yielder{launch, band, gpus, machine, now.Add(-ran), now.Add(-ran).Add(5 * time.Minute)}
	}
	waits := func(launch int64, band int64, gpus int, machines ...string) claimant {
		return claimant{launch, band, gpus, machines, ""}
	}
	keeps := func(launch int64, gpus int, machine string, machines ...string) claimant {
		return claimant{launch, 0, gpus, machines, machine}
	}
	free := func(gpus ...int) map[string]int {
		m := map[string]int{}
		for i, n := range gpus {
			m[string(rune('a'+i))] = n
		}
		return m
	}
	for name, c := range map[string]struct {
		free    map[string]int
		waiting []claimant
		jobs    []yielder
		want    string // WAITS<JOB, "WAITS?" for soon
	}{
		"nobody waits":              {free(0), nil, []yielder{job(1, -1, 1, "a", time.Hour)}, ""},
		"somebody waits":            {free(0), []claimant{waits(9, 0, 1, "a")}, []yielder{job(1, -1, 1, "a", time.Hour)}, "9<1"},
		"one is free":               {free(1), []claimant{waits(9, 0, 1, "a")}, []yielder{job(1, -1, 1, "a", time.Hour)}, ""},
		"the free one is another's": {free(1), []claimant{waits(8, 0, 1, "a"), waits(9, 0, 1, "a")}, []yielder{job(1, -1, 1, "a", time.Hour)}, "9<1"},
		"of the same band":          {free(0), []claimant{waits(9, -1, 1, "a")}, []yielder{job(1, -1, 1, "a", time.Hour)}, ""},
		"of a higher band":          {free(0), []claimant{waits(9, 0, 1, "a")}, []yielder{job(1, 1, 1, "a", time.Hour)}, ""},
		"on another machine":        {free(0, 0), []claimant{waits(9, 0, 1, "b")}, []yielder{job(1, -1, 1, "a", time.Hour)}, ""},
		"the shortest loses least":  {free(0), []claimant{waits(9, 0, 1, "a")}, []yielder{job(1, -1, 1, "a", time.Hour), job(2, -1, 1, "a", 10*time.Minute), job(3, -1, 1, "a", 2*time.Hour)}, "9<2"},
		"on any machine":            {free(0, 0), []claimant{waits(9, 0, 1, "a", "b")}, []yielder{job(1, -1, 1, "a", time.Hour), job(2, -1, 1, "b", 10*time.Minute)}, "9<2"},
		"the lowest band first":     {free(0), []claimant{waits(9, 2, 1, "a")}, []yielder{job(1, 1, 1, "a", 10*time.Minute), job(2, 0, 1, "a", time.Hour)}, "9<2"},
		"just started":              {free(0), []claimant{waits(9, 0, 1, "a")}, []yielder{job(1, -1, 1, "a", time.Minute)}, "9?09:04"},
		"rather an older one":       {free(0), []claimant{waits(9, 0, 1, "a")}, []yielder{job(1, -1, 1, "a", time.Minute), job(2, -1, 1, "a", time.Hour)}, "9<2"},
		"two together":              {free(0), []claimant{waits(9, 0, 2, "a")}, []yielder{job(1, -1, 1, "a", time.Hour), job(2, -1, 1, "a", time.Hour)}, "9<1 9<2"},
		"two that do not come together": {free(0, 0), []claimant{waits(9, 0, 2, "a", "b")},
			[]yielder{job(1, -1, 1, "a", time.Hour), job(2, -1, 1, "b", time.Hour)}, ""},
		"one and a free one":        {free(1), []claimant{waits(9, 0, 2, "a")}, []yielder{job(1, -1, 1, "a", time.Hour), job(2, -1, 1, "a", 2*time.Hour)}, "9<1"},
		"none for nothing":          {free(0), []claimant{waits(9, 0, 2, "a")}, []yielder{job(1, -1, 1, "a", 10*time.Minute), job(2, -1, 2, "a", time.Hour)}, "9<2"},
		"what is left over":         {free(0), []claimant{waits(8, 0, 1, "a"), waits(9, 0, 1, "a")}, []yielder{job(1, -1, 2, "a", time.Hour)}, "8<1"},
		"not past who is stuck":     {free(0), []claimant{waits(8, 0, 3, "a"), waits(9, 0, 1, "a")}, []yielder{job(1, -1, 1, "a", time.Hour)}, ""},
		"not on their machine":      {free(0, 0), []claimant{waits(8, 0, 2, "a"), waits(9, 0, 1, "a", "b")}, []yielder{job(1, -1, 1, "a", time.Hour), job(2, -1, 1, "b", time.Hour)}, "9<2"},
		"one machine is theirs":     {free(0, 0, 0), []claimant{keeps(8, 2, "a", "a", "b"), waits(9, 0, 1, "b")}, []yielder{job(1, -1, 1, "b", time.Hour)}, "9<1"},
		"who is stuck elsewhere":    {free(0, 0), []claimant{waits(8, 0, 2, "a"), waits(9, 0, 1, "b")}, []yielder{job(1, -1, 1, "b", time.Hour)}, "9<1"},
		"each for one":              {free(0), []claimant{waits(8, 0, 1, "a"), waits(9, 0, 1, "a")}, []yielder{job(1, -1, 1, "a", time.Hour), job(2, -1, 1, "a", 2*time.Hour)}, "8<1 9<2"},
		"more than there are":       {free(0), []claimant{waits(8, 0, 1, "a"), waits(9, 0, 1, "a")}, []yielder{job(1, -1, 1, "a", time.Hour)}, "8<1"},
		"less than nothing is free": {free(-1), []claimant{waits(9, 0, 1, "a")}, []yielder{job(1, -1, 1, "a", time.Hour)}, "9<1"},
	} {
		way, soon := yields(now, c.free, c.waiting, c.jobs)
		var got []string
		for _, w := range c.waiting {
			for _, j := range c.jobs {
				if way[j.launch] == w.launch {
					got = append(got, fmt.Sprintf("%d<%d", w.launch, j.launch))
				}
			}
			if at := soon[w.launch]; !at.IsZero() {
				got = append(got, fmt.Sprintf("%d?%s", w.launch, at.Format("15:04")))
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %q", name, got, c.want)
		}
	}
}

// saves is how a program ends that saves its state when it is asked to end.
func saves(p *PodInfo) { p.Exited, p.ExitCode, p.Ready = true, exitSaved, false }

// preempting is a lab in which jobs give way.
func preempting(t *testing.T, kind Preemption, gpus ...int) *house {
	t.Helper()
	h := newHouse(t, gpus...)
	h.preempt = kind
	h.reopen(nil)
	return h
}

func (h *house) offer(u users.User, retries int) Launch {
	h.t.Helper()
	return h.is(h.submit(u, JobRequest{Program: command("train"), GPUs: new(1), Preemptible: new(true), Retries: &retries}).ID, Running)
}

// A job gives way to a notebook, goes back into the line behind everybody, and goes
// on when the GPU is free again: with all its retries, and told who had it.
func TestJobGivesWay(t *testing.T) {
	h := preempting(t, PreemptOffered, 1)
	h.lab.edit(func() { h.lab.onDelete, h.lab.linger = saves, 150*time.Millisecond })
	job := h.offer(h.alice, 1)
	notebook := h.launch(h.bob, "gpu", "")
	h.until(notebook.ID, "told", func(l Launch) bool {
		return l.State == Waiting && strings.HasSuffix(l.Reason, "A job of alice gives way: its GPU is free in 30 s at the latest.")
	})
	h.until(job.ID, "told", func(l Launch) bool {
		return l.State == Stopping && l.Reason == fmt.Sprintf("It gives way to bob, who waits for a GPU (launch %d). It has 30 s to save its state, and goes back into the line.", notebook.ID)
	})
	h.is(notebook.ID, Running)
	back := h.until(job.ID, "back in line", func(l Launch) bool { return l.State == Waiting && !l.Held() && l.Position == 1 })
	if !strings.Contains(back.Reason, "It gave way to bob at ") || back.EndCode != "" {
		t.Errorf("back in line, it is %+v", back)
	}
	// Whoever comes next goes before it.
	second := h.launch(h.bob, "gpu", "")
	h.until(second.ID, "next", func(l Launch) bool { return l.Position == 1 })
	h.until(job.ID, "behind", func(l Launch) bool { return l.Position == 2 })
	for _, l := range []Launch{notebook, second} {
		h.is(l.ID, Running)
		if err := h.service.Stop(t.Context(), l.ID); err != nil {
			t.Fatal(err)
		}
	}
	again := h.is(job.ID, Running)
	times, lost := again.Job.Preempted()
	if try := again.Job.Tries[0]; len(again.Job.Tries) != 1 || times != 1 || lost != 0 || try.For != "bob" || try.ForLaunch != notebook.ID || !try.Saved || try.Until <= try.From {
		t.Errorf("it has run before as %+v", again.Job.Tries)
	}
	if line := again.Job.tryLine(); !strings.HasPrefix(line, fmt.Sprintf("\n[gpulab: it gave way to bob, launch %d, at ", notebook.ID)) || !strings.HasSuffix(line, "; try 2 of 3]\n") {
		t.Errorf("its log says %q", line)
	}
	// Its one retry is still its own.
	h.fails(job, 2, badly)
	h.ends(h.until(job.ID, "its third", func(l Launch) bool { return l.State == Running && l.Job.Try() == 3 }), well)
}

// A job that gave way keeps out of the line for whom it did, as long as they wait and
// a minute at most.
func TestStandsAside(t *testing.T) {
	h := preempting(t, PreemptOffered, 1)
	runs := h.is(h.launch(h.alice, "gpu", "").ID, Running)
	waits := h.until(h.launch(h.bob, "gpu", "").ID, "waiting", func(l Launch) bool { return l.State == Waiting && l.Position == 1 })
	now := h.service.now()
	try := func(code string, to int64, ago time.Duration) Try {
		return Try{Until: now.Add(-ago).UnixMilli(), EndCode: code, For: "bob", ForLaunch: to}
	}
	for name, c := range map[string]struct {
		tries []Try
		aside bool
	}{
		"never ran":              {nil, false},
		"they wait":              {[]Try{try(EndPreempted, waits.ID, time.Second)}, true},
		"they have it":           {[]Try{try(EndPreempted, runs.ID, time.Second)}, false},
		"they are gone":          {[]Try{try(EndPreempted, 999, time.Second)}, false},
		"they wait for too long": {[]Try{try(EndPreempted, waits.ID, aside+time.Minute)}, false},
		"it has failed since":    {[]Try{try(EndPreempted, waits.ID, 2*time.Second), try(EndExited, 0, time.Second)}, false},
		"it gave way again":      {[]Try{try(EndExited, 0, 2*time.Second), try(EndPreempted, waits.ID, time.Second)}, true},
	} {
		words, err := h.service.standsAside(t.Context(), Launch{Job: &Job{Tries: c.tries}})
		if err != nil || strings.HasPrefix(words, "It gave way to bob at ") != c.aside || words == "" == c.aside {
			t.Errorf("%s: %q, %v", name, words, err)
		}
	}
}

// What did not end in peace has lost what it did.
func TestWhatIsLost(t *testing.T) {
	h := preempting(t, PreemptOffered, 1)
	h.lab.edit(func() { h.lab.onDelete = func(p *PodInfo) { p.Exited, p.ExitCode = true, 143 } })
	job := h.offer(h.alice, 0)
	h.launch(h.bob, "gpu", "")
	h.until(job.ID, "back", func(l Launch) bool {
		times, lost := l.Job.Preempted()
		return times == 1 && lost > 0 && l.Job.Tries[0].Reason != "" && !l.Job.Tries[0].Saved
	})
}

// A job that ends by itself in the very moment has ended; so has one that its owner
// cancels; and nobody gives way to who waits no more.
func TestGivingWayRaces(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(*PodInfo)
		cancel bool
		want   string
	}{
		"ended well": {end: func(p *PodInfo) { p.Exited, p.ExitCode = true, 0 }, want: "succeeded"},
		"cancelled":  {end: saves, cancel: true, want: "cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			h := preempting(t, PreemptOffered, 1)
			h.lab.edit(func() { h.lab.onDelete, h.lab.linger = c.end, 100*time.Millisecond })
			job := h.offer(h.alice, 0)
			notebook := h.launch(h.bob, "gpu", "")
			h.until(job.ID, "giving way", func(l Launch) bool { return l.State != Running })
			if c.cancel {
				if err := h.service.Cancel(t.Context(), job.ID); err != nil {
					t.Fatal(err)
				}
			}
			if got := h.is(job.ID, Ended); got.Finished() != c.want || len(got.Job.Tries) != 0 {
				t.Errorf("it is %s, %+v", got.Finished(), got.Job)
			}
			h.is(notebook.ID, Running)
		})
	}
	h := preempting(t, PreemptOffered, 1)
	job := h.offer(h.alice, 0)
	gone := Launch{ID: 4711, Handle: "bob"}
	h.service.preempt(t.Context(), h.get(job.ID), gone)
	if got := h.get(job.ID); got.State != Running {
		t.Errorf("for nobody, it is %s", got.State)
	}
}

// gpulab is killed between the decision and the end, or afterwards: what was begun
// is finished, once.
func TestGivingWaySurvivesARestart(t *testing.T) {
	h := preempting(t, PreemptOffered, 1)
	job := h.offer(h.alice, 0)
	h.lab.edit(func() { h.lab.onDelete, h.lab.noDelete = saves, true })
	notebook := h.launch(h.bob, "gpu", "")
	h.until(job.ID, "giving way", func(l Launch) bool { return l.State == Stopping })
	h.end()
	h.lab.edit(func() { h.lab.noDelete = false })
	h.open(nil)
	h.is(notebook.ID, Running)
	h.until(job.ID, "back", func(l Launch) bool { return l.State == Waiting && len(l.Job.Tries) == 1 && l.Position == 1 })
	if got := h.get(job.ID).Job.Tries[0]; got.For != "bob" || got.ForLaunch != notebook.ID {
		t.Errorf("it gave way to %+v", got)
	}
}

// Nobody gives way who has just started, to a job that would itself, or where the
// lab does not want it; notebooks never do.
func TestNobodyGivesWay(t *testing.T) {
	h := preempting(t, PreemptOffered, 1)
	h.minimum = time.Hour
	h.reopen(nil)
	job := h.offer(h.alice, 0)
	notebook := h.launch(h.bob, "gpu", "")
	h.until(notebook.ID, "told when", func(l Launch) bool { return strings.Contains(l.Reason, "A job gives way to it at ") })
	if err := h.service.Cancel(t.Context(), notebook.ID); err != nil {
		t.Fatal(err)
	}
	h.minimum = 0
	h.reopen(nil)
	other := h.submit(h.bob, JobRequest{Program: command("x"), GPUs: new(1), Preemptible: new(true)})
	h.until(other.ID, "in line", func(l Launch) bool { return l.Position == 1 })
	h.line.setTrouble("Kueue does not answer.")
	notebook = h.launch(h.bob, "gpu", "")
	h.until(notebook.ID, "told", func(l Launch) bool { return strings.Contains(l.Reason, "does not answer") })
	h.preempt = PreemptNothing
	h.reopen(nil)
	h.line.setTrouble("")
	h.until(notebook.ID, "in line", func(l Launch) bool { return l.Position == 2 }) // and behind who came before
	if got := h.get(job.ID); got.State != Running || len(got.Job.Tries) != 0 {
		t.Errorf("it is %s, %+v", got.State, got.Job)
	}
}

// A new role holds for what waits already.
func TestNewRoleInLine(t *testing.T) {
	h := preempting(t, PreemptByRole, 1)
	h.lab.edit(func() { h.lab.onDelete = saves })
	job := h.is(h.submit(h.alice, JobRequest{Program: command("x"), GPUs: new(1)}).ID, Running)
	waits := h.launch(h.bob, "gpu", "")
	h.until(waits.ID, "in line", func(l Launch) bool { return l.Position == 1 })
	if err := h.people.Change(t.Context(), h.bob.ID, users.Change{Role: new(users.RoleLead)}); err != nil {
		t.Fatal(err)
	}
	h.is(waits.ID, Running)
	if got := h.get(job.ID); got.State != Waiting {
		t.Errorf("the job of a member is %s", got.State)
	}
}

// By role, a lead's launch goes before a member's and takes the GPU of the member's job, though
// the member never offered it; not that of a notebook.
func TestGivingWayByRole(t *testing.T) {
	h := preempting(t, PreemptByRole, 1, 1)
	h.lab.edit(func() { h.lab.onDelete = saves })
	lead, err := h.people.Create(t.Context(), users.NewUser{Handle: "lena", Name: "Lena", Role: "lead"})
	if err != nil {
		t.Fatal(err)
	}
	job := h.is(h.submit(h.alice, JobRequest{Program: command("x"), GPUs: new(1)}).ID, Running)
	kept := h.running(h.alice, "gpu", "")
	waits := h.launch(h.bob, "gpu", "")
	h.until(waits.ID, "in line", func(l Launch) bool { return l.Position == 1 })
	if got := h.get(job.ID); got.State != Running {
		t.Errorf("to somebody of the same role, it gives way: %s", got.State)
	}
	if err := h.service.Cancel(t.Context(), waits.ID); err != nil {
		t.Fatal(err)
	}
	hers := h.launch(lead, "gpu", "")
	h.is(hers.ID, Running)
	h.until(job.ID, "back in line", func(l Launch) bool { return l.State == Waiting && l.Position == 1 })
	if got := h.get(kept.ID); got.State != Running {
		t.Errorf("the notebook is %s", got.State)
	}
	h.end()
	priority := func(l Launch) int32 { return h.service.priority(t.Context(), l, false) }
	first, member := priority(Launch{ID: 901, UserID: lead.ID}), priority(Launch{ID: 902, UserID: h.bob.ID})
	if offered := priority(Launch{ID: 903, UserID: lead.ID, Job: &Job{Preemptible: true}}); first <= member || member <= offered {
		t.Errorf("a lead, a member and what a lead offers have %d, %d, %d", first, member, offered)
	}
}
