package webui_test

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/idle"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/webui"
)

// fakeIdle knows of one notebook.
type fakeIdle struct {
	holding idle.Holding
	freed   string
}

func (f *fakeIdle) Holdings() []idle.Holding { return []idle.Holding{f.holding} }
func (f *fakeIdle) Of(launch int64) (idle.Holding, bool) {
	return f.holding, launch == f.holding.Launch
}
func (f *fakeIdle) Warned(userID int64) []idle.Holding {
	if f.holding.State != idle.Warned || f.holding.UserID != userID {
		return nil
	}
	return []idle.Holding{f.holding}
}
func (f *fakeIdle) Extend(context.Context, int64) (idle.Holding, error) {
	switch {
	case f.holding.State == idle.Stopped:
		return f.holding, idle.ErrTooLate
	case !f.holding.MayExtend():
		return f.holding, idle.ErrNoMore
	}
	f.holding.State, f.holding.Extensions = idle.Free, f.holding.Extensions+1
	return f.holding, nil
}
func (f *fakeIdle) Free(_ context.Context, _ int64, by string) (idle.Holding, error) {
	f.freed = by
	return f.holding, nil
}
func (f *fakeIdle) Reclaims(_ context.Context, userID int64, _ time.Time, _ int) ([]idle.Reclaim, error) {
	all := []idle.Reclaim{{ID: 1, At: time.Now(), Launch: 7, User: "ben", Cause: idle.CauseIdle, Idle: 41 * time.Minute, For: "zoe", By: "system"},
		{ID: 2, At: time.Now(), Launch: 8, User: "lea", Cause: idle.CauseFreed, Idle: 80 * time.Minute, By: "ada"}}
	return slices.DeleteFunc(all, func(r idle.Reclaim) bool { return userID != 0 && r.User != "ben" }), nil
}

func TestIdleNotebook(t *testing.T) {
	f := &fakeIdle{}
	l := newLabWith(t, func(c *webui.Config) { c.Idle = f })
	ben, err := l.users.ByHandle(t.Context(), "ben")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	f.holding = idle.Holding{Notebook: idle.Notebook{Launch: 1, UserID: ben.ID, Handle: "ben", Title: "Seminar", GPUs: 1, PodUID: "pod-ben", Policy: idle.Default()},
		State: idle.Warned, Cause: idle.CauseIdle, Idle: 41 * time.Minute, Since: now.Add(-3 * time.Hour), Ends: now.Add(9*time.Minute + 41*time.Second), WantedBy: "zoe",
		Seen: map[idle.Kind]time.Time{idle.GPU: now.Add(-41 * time.Minute), idle.CPU: now.Add(-2 * time.Hour), idle.Kernel: now, idle.Terminal: now.Add(-3 * time.Hour)}}
	l.notebooks.change(func(list *[]notebooks.Launch) {
		*list = []notebooks.Launch{{ID: 1, UserID: ben.ID, Handle: "ben", Title: "Seminar", Profile: "gpu", GPUs: 1, State: notebooks.Running, Requested: now.Add(-3 * time.Hour), Ready: now.Add(-3 * time.Hour)}}
	})
	c := l.client(t, "ben")
	c.get("/").want(t, http.StatusOK, "“Seminar” for 41 min, and zoe waits for one.", "9:4", "I still need it", `action="/launches/1/keep"`)
	c.get("/launches/1").want(t, http.StatusOK, "I still need it", "GPU", "41 min ago", "Processors", "2 h ago", "Kernels", "at work", "Terminals", "not yet")
	if strings.Contains(l.client(t, "lea").get("/").body, "Seminar") {
		t.Error("somebody else reads the notice")
	}
	c.post("/", "/launches/1/keep", nil).want(t, http.StatusSeeOther)
	if f.holding.Extensions != 1 {
		t.Error("it was not kept")
	}
	if body := c.get("/").body; strings.Contains(body, "I still need it") {
		t.Error("the notice is still there")
	}
	f.holding.State, f.holding.Extensions = idle.Warned, 3
	if body := c.get("/").body; strings.Contains(body, "I still need it") || !strings.Contains(body, "unless you use its GPU.") {
		t.Errorf("it cannot be kept again, and the page says\n%s", visible(body))
	}
	c.post("/", "/launches/1/keep", nil).want(t, http.StatusConflict, "The notebook was not kept", "cannot be kept longer")
	f.holding.State = idle.Stopped
	c.post("/", "/launches/1/keep", nil).want(t, http.StatusConflict, "It was too late", "Files in the home folder are still there")

	// The one who was stopped reads why, until it is started again.
	l.notebooks.change(func(list *[]notebooks.Launch) {
		(*list)[0].State, (*list)[0].EndCode, (*list)[0].Ended = notebooks.Ended, notebooks.EndIdle, now.Add(-20*time.Hour)
		(*list)[0].Requested = now.Add(-30 * time.Hour)
		(*list)[0].Reason = "It was stopped: nobody had used its GPU for 51 min, and zoe was waiting for one."
	})
	c.get("/").want(t, http.StatusOK, "zoe was waiting for one", "Start again")
	c.get("/launches/1").want(t, http.StatusOK, "Stopped: nobody used its GPU")
}

func TestIdleGPU(t *testing.T) {
	f := &fakeIdle{}
	l := newLabWith(t, func(c *webui.Config) { c.Idle = f })
	snapshot := l.fleet.Snapshots()[0]
	snapshot.GPUs = slices.Clone(snapshot.GPUs)
	uuid := snapshot.GPUs[0].UUID
	snapshot.GPUs[0].Holders = []gpu.Holder{{PodRef: gpu.PodRef{UID: "pod-ben", User: "ben", Notebook: "gpu"}, Since: time.Now().Add(-3 * time.Hour), IdleSince: time.Now().Add(-80 * time.Minute)}}
	l.fleet.publish(snapshot)
	f.holding = idle.Holding{Notebook: idle.Notebook{Launch: 1, Handle: "ben", GPUs: 1, PodUID: "pod-ben", Policy: idle.Default()}, Idle: 80 * time.Minute}
	l.notebooks.change(func(list *[]notebooks.Launch) {
		*list = []notebooks.Launch{{ID: 1, UserID: 2, Handle: "ben", Profile: "gpu", GPUs: 1, State: notebooks.Running}}
	})
	l.client(t, "lea").get("/gpus").want(t, http.StatusOK, "idle for 1 h 20 min")
	if strings.Contains(l.client(t, "lea").get("/gpus/"+uuid).body, "Free the GPU") {
		t.Error("a lead may free a GPU")
	}
	c := l.client(t, "ada")
	c.get("/gpus/"+uuid).want(t, http.StatusOK, "nobody has used it for 1 h 20 min", "Free the GPU")
	got := c.post("/gpus/"+uuid, "/launches/1/free", url.Values{"next": {"/gpus/" + uuid}})
	got.want(t, http.StatusSeeOther)
	if f.freed != "ada" || got.header.Get("Location") != "/gpus/"+uuid {
		t.Errorf("freed by %q, sent to %q", f.freed, got.header.Get("Location"))
	}
	c.get("/use").want(t, http.StatusOK, "Taken back", "41 min", "zoe", "freed by ada", "1 h 20 min")
	if body := l.client(t, "ben").get("/use").body; !strings.Contains(body, "Taken back") || strings.Contains(body, "freed by ada") {
		t.Error("a member sees what is theirs, and nothing else")
	}
}
