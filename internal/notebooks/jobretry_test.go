package notebooks

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// fails lets a try of a job end, which another one follows.
func (h *house) fails(l Launch, try int, change func(*PodInfo)) {
	h.t.Helper()
	h.until(l.ID, "its try", func(l Launch) bool { return l.State == Running && l.Job.Try() == try })
	h.lab.pod(h.podOf(l), func(p *PodInfo) {
		p.Ready, p.Finished, p.Exited, p.ExitReason, p.Ended = false, true, true, "Error", time.Now()
		change(p)
	})
}

// A job that fails is started again, each try in a pod of its own; how the former
// ended stays known, also over a restart of gpulab.
func TestJobRetries(t *testing.T) {
	h := newHouse(t, 1)
	h.reopen(func(p *patience) { p.again = 2 * time.Second }) // long enough to be seen on a busy machine
	job := h.submit(h.alice, JobRequest{Program: Program{Script: "#GPULAB --retries=2\nfalse\n"}, GPUs: new(1)})
	h.fails(job, 1, badly)
	h.waits(job, "for try 2 of 3. The last one: Its program ended with exit code 3.")
	if got := h.get(job.ID); got.Job.ExitCode != nil || got.Pod != "" || !got.Started.IsZero() {
		t.Errorf("it begins anew as %+v", got)
	}
	other := h.submit(h.bob, JobRequest{Program: command("x"), GPUs: new(1)}) // the GPU is free meanwhile
	h.is(other.ID, Running)
	h.reopen(nil)
	h.until(job.ID, "in line", func(l Launch) bool { return l.State == Waiting && !l.Held() && l.Position == 1 })
	h.ends(other, well)
	h.fails(job, 2, func(p *PodInfo) { p.Exited, p.StatusReason = false, "NodeShutdown" })
	h.fails(job, 3, badly)
	got := h.is(job.ID, Ended)
	if got.Finished() != "failed" || *got.Job.ExitCode != 3 || !strings.HasSuffix(got.Reason, "exit code 3. This was try 3 of 3.") || len(got.Job.Tries) != 2 ||
		got.Job.Tries[0].EndCode != EndExited || *got.Job.Tries[0].ExitCode != 3 || got.Job.Tries[1].EndCode != EndInterrupted || got.Job.Tries[0].Until < got.Job.Tries[0].From {
		t.Errorf("it ended as %+v, %+v", got, got.Job)
	}
	if n := len(h.lab.created); n != 4 {
		t.Errorf("%d pods were made", n)
	}
	// What the former tries held counts, too.
	used, err := PastUse(t.Context(), h.service.rows.db, time.Now().Add(time.Hour), 24*time.Hour)
	var sum float64
	for _, try := range got.Job.Tries {
		sum += float64(try.Until-try.From) / 1000
	}
	sum += got.Ended.Sub(got.Started).Seconds()
	if err != nil || used[h.alice.ID] < sum*0.8 || used[h.alice.ID] > sum*1.1+0.01 {
		t.Errorf("it counts as %v of %v s, %v", used[h.alice.ID], sum, err)
	}
	again, err := h.service.Again(t.Context(), h.alice, job.ID)
	if err != nil || again.Job.Retries != 2 || again.Job.Try() != 1 {
		t.Errorf("again it is %+v, %v", again.Job, err)
	}
}

// A job is not started again when that would be for nothing, or when it was cancelled.
func TestJobIsNotRetried(t *testing.T) {
	h := newHouse(t, 1)
	for name, end := range map[string]func(*PodInfo){
		"well":   well,
		"memory": func(p *PodInfo) { p.ExitCode, p.ExitReason = 137, "OOMKilled" },
		"time":   func(p *PodInfo) { p.ExitCode, p.StatusReason = 143, "DeadlineExceeded" },
	} {
		if got := h.ends(h.submit(h.alice, JobRequest{Program: command("x"), Retries: new(3)}), end); len(got.Job.Tries) != 0 {
			t.Errorf("%s: it was started again", name)
		}
	}
	job := h.submit(h.alice, JobRequest{Program: command("x"), Retries: new(3)})
	h.is(job.ID, Running)
	h.reopen(func(p *patience) { p.again = time.Hour })
	h.fails(job, 1, badly)
	h.waits(job, "try 2 of 4")
	if err := h.service.Cancel(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	if got := h.is(job.ID, Ended); got.Finished() != "cancelled" || len(got.Job.Tries) != 1 {
		t.Errorf("cancelled between two tries, it is %+v", got)
	}
	// While the pod of a try that failed is still there.
	h.lab.edit(func() { h.lab.linger = time.Second })
	job = h.submit(h.alice, JobRequest{Program: command("x"), Retries: new(3)})
	h.fails(job, 1, badly)
	h.is(job.ID, Stopping)
	if err := h.service.Cancel(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	if got := h.is(job.ID, Ended); got.Finished() != "cancelled" || len(got.Job.Tries) != 0 {
		t.Errorf("cancelled while it ends, it is %+v", got)
	}
	for _, n := range []int{-1, 11} {
		if _, err := h.service.Submit(t.Context(), h.alice, JobRequest{Program: command("x"), Retries: &n}); err == nil || !strings.Contains(err.Error(), "at most 10 retries") {
			t.Errorf("%d retries: %v", n, err)
		}
	}
}

func TestPauses(t *testing.T) {
	s := &Service{patience: usualPatience}
	var got []string
	for tries := range 10 {
		got = append(got, s.pause(tries+1).String())
	}
	if fmt.Sprint(got) != "[10s 20s 40s 1m20s 2m40s 5m0s 5m0s 5m0s 5m0s 5m0s]" {
		t.Errorf("it waits %v", got)
	}
}
