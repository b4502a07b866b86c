package notebooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/users"
)

// task waits for an element of an array to run.
func (h *house) task(array Launch, task int) Launch {
	h.t.Helper()
	var found Launch
	ok := eventually(func() bool {
		list, err := h.service.Tasks(h.t.Context(), array.ID)
		if err != nil {
			h.t.Fatal(err)
		}
		i := slices.IndexFunc(list, func(l Launch) bool { return l.Job.ArrayTask == task })
		if i >= 0 {
			found = list[i]
		}
		return i >= 0
	})
	if !ok {
		h.t.Fatalf("element %d of job %d is not there", task, array.ID)
	}
	return found
}

func (h *house) tasks(array Launch, want int) []Launch {
	h.t.Helper()
	list, err := h.service.Tasks(h.t.Context(), array.ID)
	if err != nil || len(list) != want {
		h.t.Fatalf("%d elements are there, want %d, %v", len(list), want, err)
	}
	return list
}

// An array is one job for who looks at it, and many for the line: so many at a
// time as it says, each with its own log, and it ends with the last one.
func TestJobArray(t *testing.T) {
	h := newHouse(t, 8)
	array := h.submit(h.alice, JobRequest{Program: Program{Script: "#SBATCH --array=0-4:2,7%2 --output=out/%A-%a.log --error=%A_%a.err\ntrue\n"}, GPUs: new(1), Name: "sweep"})
	first, second := h.task(array, 0), h.task(array, 2)
	h.is(first.ID, Running)
	h.is(second.ID, Running)
	h.until(array.ID, "counts", func(l Launch) bool {
		return l.Held() && strings.Contains(l.Reason, "Of 4 elements: 2 running, 2 waiting.") && l.Job.Tasks.Running == 2 && l.GPUs == 1
	})
	h.tasks(array, 2)
	if first.Number() != fmt.Sprintf("%d_0", array.ID) || second.Job.Output != fmt.Sprintf("out/%d-2.log", array.ID) || first.Name != "sweep-0" || first.GPUs != 1 {
		t.Errorf("its elements are %+v, %+v", first, second.Job)
	}
	if env := second.taskEnv(); env["GPULAB_ARRAY_TASK_ID"] != "2" || env["SLURM_ARRAY_JOB_ID"] != fmt.Sprint(array.ID) {
		t.Errorf("it is told %v", env)
	}
	list, err := h.service.Jobs(t.Context(), h.alice.ID)
	if err != nil || len(list) != 1 || list[0].Job.Tasks.Waiting != 2 {
		t.Errorf("listed: %+v, %v", list, err)
	}
	follows := h.submit(h.alice, JobRequest{Program: command("x"), After: []Dependency{{Job: array.ID, Any: true}}})
	h.ends(first, well)
	h.is(h.task(array, 4).ID, Running)
	h.reopen(nil)
	h.ends(second, badly)
	h.ends(h.task(array, 4), well)
	h.waits(follows, "sweep")
	h.ends(h.task(array, 7), well)
	got := h.is(array.ID, Ended)
	if got.Finished() != "failed" || got.Reason != fmt.Sprintf("Of 4 elements: 3 succeeded, 1 failed. Failed: %d_2.", array.ID) || *got.Job.Tasks != (TaskCounts{Total: 4, Succeeded: 3, Failed: 1}) {
		t.Errorf("it ended as %s: %s, %+v", got.Finished(), got.Reason, got.Job.Tasks)
	}
	h.ends(follows, well)
	one, err := h.service.Again(t.Context(), h.alice, second.ID)
	if err != nil || one.Job.Array != "2" {
		t.Fatalf("its element again: %+v, %v", one.Job, err)
	}
	if l := h.ends(h.task(one, 2), well); l.Job.Output != fmt.Sprintf("out/%d-2.log", one.ID) || l.Job.Errors != fmt.Sprintf("%d_2.err", one.ID) {
		t.Errorf("its element again writes %s and %s", l.Job.Output, l.Job.Errors)
	}
	if got := h.is(one.ID, Ended); got.Finished() != "succeeded" {
		t.Errorf("it ended as %s: %s", got.Finished(), got.Reason)
	}
}

// An element is cancelled by itself, in line or not; an array as a whole.
func TestJobArrayCancelled(t *testing.T) {
	h := newHouse(t, 1)
	array := h.submit(h.alice, JobRequest{Program: command("x"), Array: "1-3%1"})
	first := h.task(array, 1)
	h.is(first.ID, Running)
	for _, task := range []int{2, 2, 1} {
		if err := h.service.CancelTask(t.Context(), array, task); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.service.CancelTask(t.Context(), array, 4); !errors.Is(err, ErrNotFound) {
		t.Errorf("an element that it does not have: %v", err)
	}
	h.is(first.ID, Ended)
	third := h.task(array, 3)
	h.is(third.ID, Running)
	if err := h.service.Cancel(t.Context(), array.ID); err != nil {
		t.Fatal(err)
	}
	if got := h.is(third.ID, Ended); got.Finished() != "cancelled" {
		t.Errorf("its element is %s", got.Finished())
	}
	if got := h.is(array.ID, Ended); got.Finished() != "cancelled" || *got.Job.Tasks != (TaskCounts{Total: 3, Cancelled: 3}) {
		t.Errorf("it is %s, %+v", got.Finished(), got.Job.Tasks)
	}
	if n := len(h.lab.created); n != 2 {
		t.Errorf("%d pods were made", n)
	}
	// The whole of one that has not begun.
	array = h.submit(h.alice, JobRequest{Program: command("x"), Array: "0-999", After: after(h.submit(h.alice, JobRequest{Program: command("x")}).ID)})
	h.waits(array, "It waits until job")
	if err := h.service.Cancel(t.Context(), array.ID); err != nil {
		t.Fatal(err)
	}
	h.tasks(array, 0)
	if got := h.is(array.ID, Ended); got.Job.Tasks.Cancelled != 1000 {
		t.Errorf("it has %+v", got.Job.Tasks)
	}
}

// A large array leaves room for others: it counts as one job, and puts only so
// many elements in line. Its elements wait for a quota.
func TestJobArrayBounds(t *testing.T) {
	h := newHouse(t, 1)
	array := h.submit(h.alice, JobRequest{Program: command("x"), GPUs: new(1), Array: "0-499"})
	h.until(array.ID, "as many as may be", func(Launch) bool {
		list, err := h.service.Tasks(t.Context(), array.ID)
		return err == nil && len(list) == maxReleased
	})
	h.is(h.submit(h.alice, JobRequest{Program: command("x")}).ID, Running)
	h.tasks(array, maxReleased)
	if err := h.service.Cancel(t.Context(), array.ID); err != nil {
		t.Fatal(err)
	}
	h.end()
	h.open(nil)
	h.service.launching.Lock()
	h.service.cfg.Quota = func(ctx context.Context, u users.User, p Profile, without int64) error {
		active, err := h.service.rows.active(ctx)
		for _, l := range active {
			if l.UserID == u.ID && !l.Held() && l.GPUs > 0 && l.ID != without {
				return &users.Error{Kind: errUsedUp, Text: "One is enough."}
			}
		}
		return err
	}
	h.service.cfg.QuotaLater = func(error) bool { return true }
	h.service.launching.Unlock()
	array = h.submit(h.bob, JobRequest{Program: command("x"), GPUs: new(1), Array: "0-1"})
	first := h.task(array, 0)
	h.until(array.ID, "quota", func(l Launch) bool {
		return strings.Contains(l.Reason, "1 waiting. It waits for your quota. One is enough.")
	})
	h.tasks(array, 1)
	h.ends(first, well)
	h.ends(h.task(array, 1), well)
	h.is(array.ID, Ended)
}

func TestParseArray(t *testing.T) {
	for text, want := range map[string]string{
		"0-3": "[0 1 2 3] 0", "0-99%4": "0", "1,3,7-20:6": "[1 3 7 13 19] 0", "5": "[5] 0", "3,1-3%1": "[1 2 3] 1", "0-999": "0", "0-100000:1000": "0",
		"": "is not a list of array elements", "a": "is not a list of array elements", "3-1": "is not a list of array elements", "-1": "is not a list of array elements", "1-": "is not a list of array elements", "1:2": "is not a list of array elements",
		"0-9:0": "is not a list of array elements", "0-9%0": "is not a list of array elements", "0-9%": "is not a list of array elements", "1,,2": "is not a list of array elements",
		"0-1000": "1000 elements at most", "0-999,2000": "1000 elements at most", "0-99999999": "go to 1000000", "0-9223372036854775807": "go to 1000000",
		"1-99999999999999999999": "is not a list of array elements", "1-5:9223372036854775807": "go to 1000000",
	} {
		got, err := ParseArray(text)
		if err != nil && !strings.Contains(err.Error(), want) || err == nil && !strings.Contains(fmt.Sprint(got.Tasks, got.Most), want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	h := newHouse(t, 1)
	for output, want := range map[string]string{"one.log": "to the same file. Have %a", "%A.log": "Have %a", "%b.log": "%b.log has something else."} {
		_, err := h.service.Submit(t.Context(), h.alice, JobRequest{Program: command("x"), Array: "0-1", Output: output})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("output %s: %v", output, err)
		}
	}
	// What an element would be refused for is refused with the array.
	_, err := h.service.Submit(t.Context(), h.alice, JobRequest{Program: command("x"), Name: "x", Array: "0-9", Output: "%x/../../%a.log"})
	if no := (*JobError)(nil); !errors.As(err, &no) {
		t.Errorf("an output outside of the home: %v", err)
	}
}

// gpulab is killed between the end of an array and that of its elements.
func TestJobArrayEndedByHalf(t *testing.T) {
	h := newHouse(t, 1)
	array := h.submit(h.alice, JobRequest{Program: command("x"), GPUs: new(1), Array: "1-2"})
	first := h.task(array, 1)
	h.is(first.ID, Running)
	array, err := h.service.rows.get(t.Context(), array.ID)
	if err != nil {
		t.Fatal(err)
	}
	array.State, array.Ended, array.EndCode = Ended, h.service.now(), EndCancelled
	if err := h.service.rows.move(t.Context(), Waiting, array); err != nil {
		t.Fatal(err)
	}
	h.service.kick()
	if got := h.is(first.ID, Ended); got.Finished() != "cancelled" {
		t.Errorf("its element is %s", got.Finished())
	}
}
