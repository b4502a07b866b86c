package notebooks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gpulab/gpulab/internal/users"
)

func after(ids ...int64) (list []Dependency) {
	for _, id := range ids {
		list = append(list, Dependency{Job: id})
	}
	return list
}

func well(p *PodInfo)  { p.ExitReason, p.ExitCode = "Completed", 0 }
func badly(p *PodInfo) { p.ExitCode = 3 }

// waits wants a job to wait for something else than its turn.
func (h *house) waits(l Launch, words string) {
	h.t.Helper()
	h.until(l.ID, words, func(l Launch) bool { return l.Held() && strings.Contains(l.Reason, words) && l.Position == 0 })
}

// A diamond: two jobs follow one, a fourth follows both. Nobody who waits for
// another stands in the line, whatever is restarted meanwhile.
func TestJobAfter(t *testing.T) {
	h := newHouse(t, 2)
	top := h.submit(h.alice, JobRequest{Program: command("x"), GPUs: new(1), Name: "top"})
	h.is(top.ID, Running)
	left := h.submit(h.alice, JobRequest{Program: command("x"), GPUs: new(1), Name: "left", After: after(top.ID)})
	right := h.submit(h.alice, JobRequest{Program: Program{Script: fmt.Sprintf("#SBATCH --dependency=afterok:%d\ntrue\n", top.ID)}, GPUs: new(1), Name: "right"})
	end := h.submit(h.alice, JobRequest{Program: command("x"), Name: "end", After: after(left.ID, right.ID)})
	h.waits(left, fmt.Sprintf("It waits until job %d (top) has succeeded.", top.ID))
	h.waits(end, fmt.Sprintf("It waits until job %d (left) and job %d (right) have succeeded.", left.ID, right.ID))
	// The second GPU is free, and goes to who asks for it now.
	other := h.running(h.bob, "gpu", "Other")
	if _, list, err := h.service.Wanting(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%d want a GPU, %v", len(list), err)
	}
	h.reopen(nil)
	h.waits(right, "top")
	h.ends(top, well)
	h.until(left.ID, "in line", func(l Launch) bool { return !l.Held() })
	h.until(right.ID, "in line", func(l Launch) bool { return !l.Held() })
	if !eventually(func() bool { return (h.get(left.ID).State == Running) != (h.get(right.ID).State == Running) }) {
		t.Fatal("the free GPU went to neither of them, or to both")
	}
	if h.get(right.ID).State == Running {
		left, right = right, left // both came into line at once
	}
	if l := h.until(right.ID, "next", func(l Launch) bool { return l.State == Waiting && l.Position == 1 }); !l.Requested.After(other.Requested) {
		t.Error("it stands in the line as if it had waited for a GPU all the time")
	}
	h.ends(left, well)
	h.waits(end, fmt.Sprintf("It waits until job %d (%s) has succeeded.", right.ID, right.Title))
	h.ends(right, well)
	h.ends(end, well)
}

// Who needs one that has not succeeded is not run, and neither is who needs that
// one; who only waits for its end is.
func TestJobAfterFailure(t *testing.T) {
	h := newHouse(t, 1)
	first := h.submit(h.alice, JobRequest{Program: command("x"), Name: "first"})
	h.is(first.ID, Running)
	second := h.submit(h.alice, JobRequest{Program: command("x"), Name: "second", After: after(first.ID)})
	third := h.submit(h.alice, JobRequest{Program: command("x"), After: after(second.ID)})
	anyhow := h.submit(h.alice, JobRequest{Program: command("x"), After: []Dependency{{second.ID, true}, {first.ID, true}}})
	h.waits(anyhow, "have ended.")
	h.ends(first, badly)
	for l, words := range map[*Launch]string{
		&second: fmt.Sprintf("It was not run: it needs job %d (first) to succeed, and that has failed.", first.ID),
		&third:  fmt.Sprintf("it needs job %d (second) to succeed, and that was not run.", second.ID),
	} {
		if got := h.is(l.ID, Ended); got.Finished() != "not run" || !strings.Contains(got.Reason, words) || !got.Started.IsZero() {
			t.Errorf("it ended as %s: %s", got.Finished(), got.Reason)
		}
	}
	h.ends(anyhow, well)
	held := h.submit(h.alice, JobRequest{Program: command("x"), Name: "held", After: after(h.submit(h.alice, JobRequest{Program: command("x")}).ID)})
	if err := h.service.Cancel(t.Context(), held.ID); err != nil {
		t.Fatal(err)
	}
	if got := h.is(held.ID, Ended); got.Finished() != "cancelled" {
		t.Errorf("cancelled, it is %s", got.Finished())
	}
	again, err := h.service.Again(t.Context(), h.alice, second.ID)
	if err != nil || again.Held() {
		t.Errorf("again it is %+v, %v", again, err)
	}
	h.is(again.ID, Running)
}

func TestJobAfterRefused(t *testing.T) {
	h := newHouse(t, 1)
	theirs := h.submit(h.bob, JobRequest{Program: command("x")})
	notebook := h.running(h.alice, "cpu", "One")
	for _, id := range []int64{theirs.ID, notebook.ID, 4711} {
		_, err := h.service.Submit(t.Context(), h.alice, JobRequest{Program: command("x"), After: after(id)})
		if want := fmt.Sprintf("You have no job %d", id); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("after %d: %v", id, err)
		}
	}
	for text, want := range map[string]string{
		"12": "[{12 false}]", "12,13": "[{12 false} {13 false}]", "12:13": "[{12 false} {13 false}]",
		"afterok:12:13,afterany:14": "[{12 false} {13 false} {14 true}]", "afterok:12,afterok:12": "[{12 false}]",
		"": "is not a list of jobs", "0": "is not a list of jobs", "afterok": "is not a list of jobs", "afterok:1x": "is not a list of jobs", "train": "is not a list of jobs",
		"afternotok:12": "A job cannot wait for afternotok:12.", "after:12": "A job cannot wait for after:12.", "afterany:12,13": "A job cannot wait for",
		"afterok:1?afterok:2": "waits for all jobs that it names", "singleton": "is not a list of jobs",
		strings.Repeat("1,", 200) + "x": "is not a list of jobs",
	} {
		got, err := ParseDependencies(text)
		if err != nil && !strings.Contains(err.Error(), want) || err == nil && fmt.Sprint(got) != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

// A job that is beyond a quota for now waits until it fits; one that never fits
// is refused, and so is a notebook.
func TestJobBeyondQuota(t *testing.T) {
	h := newHouse(t, 2)
	never := errors.New("never")
	most := 1
	h.service.launching.Lock()
	h.service.cfg.Quota = func(ctx context.Context, u users.User, p Profile, without int64) error {
		if p.GPUs > most {
			return never
		}
		active, err := h.service.rows.active(ctx)
		used := 0
		for _, l := range active {
			if l.UserID == u.ID && !l.Held() && l.ID != without {
				used += l.GPUs
			}
		}
		if err == nil && used+p.GPUs > most {
			err = &users.Error{Kind: errUsedUp, Text: fmt.Sprintf("You use %d.", used)}
		}
		return err
	}
	h.service.cfg.QuotaLater = func(err error) bool { return errors.Is(err, errUsedUp) }
	h.service.launching.Unlock()
	first := h.submit(h.alice, JobRequest{Program: command("x"), GPUs: new(1)})
	h.is(first.ID, Running)
	second := h.submit(h.alice, JobRequest{Program: command("x"), GPUs: new(1)})
	third := h.submit(h.alice, JobRequest{Program: command("x"), GPUs: new(1)})
	h.waits(second, "It waits for your quota. You use 1.")
	h.waits(third, "It waits for your quota.")
	if _, err := h.service.Submit(t.Context(), h.alice, JobRequest{Program: command("x"), GPUs: new(2)}); !errors.Is(err, never) {
		t.Errorf("what never fits: %v", err)
	}
	if _, err := h.service.Launch(t.Context(), h.alice, Request{Profile: "gpu"}); !errors.Is(err, errUsedUp) {
		t.Errorf("a notebook: %v", err)
	}
	h.ends(first, well)
	h.is(second.ID, Running)
	h.waits(third, "It waits for your quota.")
	h.ends(second, badly)
	h.is(third.ID, Running)
}

// Whose quota is used up while they wait in line starts nothing when their turn comes: a job
// waits until there is some again, a notebook is refused.
func TestQuotaUsedUpInLine(t *testing.T) {
	h := newHouse(t, 1)
	var usedUp atomic.Bool
	h.service.launching.Lock()
	h.service.cfg.Quota = func(_ context.Context, u users.User, p Profile, _ int64) error {
		if u.ID == h.alice.ID && p.GPUs > 0 && usedUp.Load() {
			return &users.Error{Kind: errUsedUp, Text: "There are no hours left."}
		}
		return nil
	}
	h.service.cfg.QuotaLater = func(err error) bool { return errors.Is(err, errUsedUp) }
	h.service.launching.Unlock()
	first := h.submit(h.bob, JobRequest{Program: command("x"), GPUs: new(1)})
	h.is(first.ID, Running)
	job := h.submit(h.alice, JobRequest{Program: command("x"), GPUs: new(1)})
	notebook := h.launch(h.alice, "gpu", "")
	behind := h.submit(h.bob, JobRequest{Program: command("x"), GPUs: new(1)})
	h.until(behind.ID, "in line", func(l Launch) bool { return l.Position == 3 })
	usedUp.Store(true)
	h.ends(first, well)
	h.is(behind.ID, Running)
	h.waits(job, "It waits for your quota. There are no hours left.")
	if l := h.is(notebook.ID, Ended); l.EndCode != EndQuota || l.Reason != "There are no hours left." {
		t.Errorf("the notebook: %s, %s", l.EndCode, l.Reason)
	}
	usedUp.Store(false)
	h.ends(behind, well)
	h.is(job.ID, Running)
}

var errUsedUp = errors.New("used up")
