package idle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// world is a lab with a real database around a service whose clock is in hand.
type world struct {
	*Service
	t      *testing.T
	store  *store.Store
	people *users.Service

	step    time.Duration // between looks
	mu      sync.Mutex
	clock   time.Time
	running []Notebook
	queue   Queue
	cpu     map[string]time.Duration
	claims  map[int64]Claims
	stopped map[int64]string
	entries []audit.Entry
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, step: 15 * time.Second, clock: start, cpu: map[string]time.Duration{}, claims: map[int64]Claims{}, stopped: map[int64]string{}}
	var err error
	if w.store, err = store.Open(t.Context(), t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.store.Close() })
	w.people = users.New(w.store.DB())
	w.restart()
	return w
}

// restart is gpulab anew over the same database.
func (w *world) restart() {
	w.Service = New(Config{
		DB:      w.store.DB(),
		Running: func(context.Context) ([]Notebook, error) { return w.running, nil },
		Queue:   func(context.Context) (Queue, error) { return w.queue, nil },
		Measure: func(context.Context) (map[string]Usage, error) {
			out := map[string]Usage{}
			for _, n := range w.running {
				out[n.PodUID] = Usage{At: w.clock, CPU: w.cpu[n.PodUID]}
			}
			return out, nil
		},
		Ask: func(_ context.Context, n Notebook) (Claims, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.claims[n.Launch], nil
		},
		Stop: func(_ context.Context, launch int64, _ Cause, reason string) error {
			w.stopped[launch] = reason
			_, err := w.store.DB().Exec("UPDATE launches SET state = 'stopping' WHERE id = ?", launch)
			return err
		},
		Audit:   func(_ context.Context, e audit.Entry) error { w.entries = append(w.entries, e); return nil },
		Changed: func() {},
	})
	w.now = func() time.Time { return w.clock }
}

// notebook starts one with a GPU.
func (w *world) notebook(handle string) Notebook {
	w.t.Helper()
	u, err := w.people.Create(w.t.Context(), users.NewUser{Handle: handle, Role: users.RoleMember})
	if err != nil {
		w.t.Fatal(err)
	}
	res, err := w.store.DB().Exec(`INSERT INTO launches (user_id, handle, name, title, profile, gpus, state, requested_at) VALUES (?, ?, 'gpu', 'Work', 'gpu', 1, 'running', 1)`, u.ID, handle)
	if err != nil {
		w.t.Fatal(err)
	}
	id, _ := res.LastInsertId()
	n := Notebook{Launch: id, UserID: u.ID, Handle: handle, Name: "gpu", Title: "Work", Profile: "gpu", GPUs: 1, Node: "head", PodUID: "pod-" + handle, Ready: w.clock, Policy: Default()}
	w.running = append(w.running, n)
	return n
}

// pass lets time pass in steps of a look; busy are those whose GPUs are at work.
func (w *world) pass(d time.Duration, busy ...string) {
	w.t.Helper()
	for end := w.clock.Add(d); w.clock.Before(end); {
		w.clock = w.clock.Add(w.step)
		s := gpu.Snapshot{Node: "head", Time: w.clock}
		for _, n := range w.running {
			use := 0.0
			for _, b := range busy {
				if b == n.Handle {
					use = 80
				}
			}
			s.GPUs = append(s.GPUs, gpu.GPU{Reading: gpu.Reading{Utilization: &use}, Holders: []gpu.Holder{{PodRef: gpu.PodRef{UID: n.PodUID}}}})
		}
		w.gpus.add(s, w.clock)
		if err := w.look(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
		w.running = remaining(w.running, w.stopped)
	}
}

func remaining(all []Notebook, stopped map[int64]string) (list []Notebook) {
	for _, n := range all {
		if _, gone := stopped[n.Launch]; !gone {
			list = append(list, n)
		}
	}
	return list
}

func (w *world) state(n Notebook) State {
	h, _ := w.Of(n.Launch)
	return h.State
}

// waits puts somebody into the queue.
func (w *world) waits(handle string, launch int64) {
	w.queue.Waiting = append(w.queue.Waiting, Waiting{Launch: launch, Handle: handle, GPUs: 1, Nodes: []string{"head"}})
}

func TestNobodyIsAskedWhileNobodyWaits(t *testing.T) {
	w := newWorld(t)
	ada := w.notebook("ada")
	w.step = time.Minute
	w.pass(5 * time.Hour)
	if w.state(ada) != Free || len(w.stopped) != 0 {
		t.Fatalf("%s, %v", w.state(ada), w.stopped)
	}
	if h, _ := w.Of(ada.Launch); !h.Idly() || units.Lasting(h.Idle) != "5 h" {
		t.Errorf("people see that it is idle: %v, %s", h.Idly(), units.Lasting(h.Idle))
	}
	if pods := w.IdlePods(); len(pods) != 1 {
		t.Errorf("idle pods: %v", pods)
	}
}

func TestTheIdleOneGoesForTheOneWhoWaits(t *testing.T) {
	w := newWorld(t)
	ada, ben := w.notebook("ada"), w.notebook("ben")
	w.pass(time.Hour, "ben")
	w.waits("eve", 77)
	w.pass(15*time.Second, "ben")
	if w.state(ada) != Warned || w.state(ben) != Free {
		t.Fatalf("ada %s, ben %s", w.state(ada), w.state(ben))
	}
	h, _ := w.Of(ada.Launch)
	for _, want := range []string{"“Work”", "eve waits", h.Ends.Local().Format("15:04:05"), "still need it", "Files in the home folder stay"} {
		if !strings.Contains(h.Notice(), want) {
			t.Errorf("the notice has no %q: %s", want, h.Notice())
		}
	}
	if got := "Stops in 10:00. " + h.Brief(); !strings.Contains(got, "“Work”") || !strings.Contains(got, "eve waits for one") || utf8.RuneCountInString(got) > 140 {
		t.Errorf("JupyterLab says %q", got)
	}
	if got := w.Note(77); !strings.Contains(got, "ada has not used a GPU for") {
		t.Errorf("who waits reads %q", got)
	}
	if len(w.Warned(ada.UserID)) != 1 || len(w.Warned(ben.UserID)) != 0 {
		t.Error("not exactly ada is warned")
	}
	w.pass(9*time.Minute+45*time.Second, "ben")
	if len(w.stopped) != 0 {
		t.Fatalf("stopped before the countdown was over: %v", w.stopped)
	}
	w.pass(15*time.Second, "ben")
	if got := w.stopped[ada.Launch]; len(w.stopped) != 1 || !strings.Contains(got, "eve was waiting") || !strings.Contains(got, "1 h 10 min") {
		t.Fatalf("stopped: %v", w.stopped)
	}
	list, err := w.Reclaims(t.Context(), 0, time.Time{}, 10)
	if err != nil || len(list) != 1 || list[0].User != "ada" || list[0].For != "eve" || list[0].ForLaunch != 77 || list[0].By != "system" || list[0].Cause != CauseIdle || list[0].Idle < 69*time.Minute {
		t.Errorf("the ledger: %+v, %v", list, err)
	}
	if own, err := w.Reclaims(t.Context(), ben.UserID, time.Time{}, 10); err != nil || len(own) != 0 {
		t.Errorf("ben's: %+v, %v", own, err)
	}
	var actions []string
	for _, e := range w.entries {
		actions = append(actions, e.Actor+" "+e.Action+" "+e.Target)
	}
	if got := strings.Join(actions, ", "); got != "system idle.warn ada, system idle.stop ada" {
		t.Errorf("audit: %s", got)
	}
}

func TestUsedAgain(t *testing.T) {
	w := newWorld(t)
	ada := w.notebook("ada")
	w.waits("eve", 77)
	w.pass(31 * time.Minute)
	if w.state(ada) != Warned {
		t.Fatal("not warned")
	}
	w.pass(15*time.Second, "ada")
	if w.state(ada) != Free {
		t.Fatal("a notebook that is used again is still warned")
	}
	w.pass(29 * time.Minute)
	if w.state(ada) != Free {
		t.Error("warned too early")
	}
	w.pass(2 * time.Minute)
	if w.state(ada) != Warned {
		t.Error("not warned the second time")
	}
	w.queue = Queue{}
	w.pass(15 * time.Second)
	if w.state(ada) != Free {
		t.Error("nobody waits any more, and it is still warned")
	}
}

func TestExtend(t *testing.T) {
	w := newWorld(t)
	ada := w.notebook("ada")
	w.waits("eve", 77)
	if _, err := w.Extend(t.Context(), ada.Launch); !errors.Is(err, ErrNotWarned) {
		t.Errorf("before anything is known of it: %v", err)
	}
	w.pass(30*time.Minute + 30*time.Second)
	for i := range 3 {
		if w.state(ada) != Warned {
			t.Fatalf("round %d: not warned", i)
		}
		h, err := w.Extend(t.Context(), ada.Launch)
		if err != nil || h.Extensions != i+1 || h.State != Free || !strings.Contains(h.Kept(), h.Until.Local().Format("15:04:05")) {
			t.Fatalf("round %d: %+v, %v", i, h, err)
		}
		if again, err := w.Extend(t.Context(), ada.Launch); err != nil || again.Extensions != i+1 {
			t.Fatalf("a second click counts: %d, %v", again.Extensions, err)
		}
		w.pass(29 * time.Minute)
		if w.state(ada) != Free {
			t.Fatalf("round %d: warned while it is kept", i)
		}
		w.pass(time.Minute + 15*time.Second)
	}
	h, err := w.Extend(t.Context(), ada.Launch)
	if !errors.Is(err, ErrNoMore) || h.MayExtend() || strings.Contains(h.Notice(), "say that") || !strings.Contains(h.Brief(), "Use it, and it stays.") {
		t.Errorf("the fourth time: %v, %q", err, h.Notice())
	}
	w.pass(11 * time.Minute)
	if len(w.stopped) != 1 {
		t.Error("it was not stopped")
	}
	if _, err := w.Extend(t.Context(), ada.Launch); !errors.Is(err, ErrTooLate) {
		t.Errorf("after the stop: %v", err)
	}
}

func TestExtensionsBeginAnewAfterUse(t *testing.T) {
	w := newWorld(t)
	ada := w.notebook("ada")
	w.waits("eve", 77)
	w.pass(31 * time.Minute)
	if _, err := w.Extend(t.Context(), ada.Launch); err != nil {
		t.Fatal(err)
	}
	w.pass(time.Minute, "ada")
	if h, _ := w.Of(ada.Launch); h.Extensions != 0 || !h.Until.IsZero() {
		t.Errorf("it is in use again, and has %d extensions, until %s", h.Extensions, h.Until)
	}
}

// TestExtendInTheSameMoment: of a click and the end of the countdown exactly one wins, and the person is told which.
func TestExtendInTheSameMoment(t *testing.T) {
	extended, stopped := 0, 0
	for round := range 12 {
		w := newWorld(t)
		ada := w.notebook(fmt.Sprintf("ada%d", round))
		w.waits("eve", 77)
		w.pass(30*time.Minute + 30*time.Second)
		w.clock = w.clock.Add(10 * time.Minute)
		use := 0.0
		w.gpus.add(gpu.Snapshot{GPUs: []gpu.GPU{{Reading: gpu.Reading{Utilization: &use}, Holders: []gpu.Holder{{PodRef: gpu.PodRef{UID: ada.PodUID}}}}}}, w.clock)
		// No time is to be taken out: the last look is now.
		if _, err := w.store.DB().Exec("UPDATE idle SET looked_at = ?, ends_at = ?", w.clock.UnixMilli()-1000, w.clock.UnixMilli()); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		w.measured[ada.PodUID] = measured{at: w.clock}
		w.mu.Unlock()
		var both sync.WaitGroup
		var clicked, looked error
		both.Go(func() { _, clicked = w.Extend(t.Context(), ada.Launch) })
		both.Go(func() { looked = w.look(t.Context()) })
		both.Wait()
		if looked != nil {
			t.Fatal(looked)
		}
		_, gone := w.stopped[ada.Launch]
		list, err := w.Reclaims(t.Context(), 0, time.Time{}, 10)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case clicked == nil && !gone && len(list) == 0:
			extended++
		case errors.Is(clicked, ErrTooLate) && gone && len(list) == 1:
			stopped++
		default:
			t.Fatalf("round %d: the click got %v, stopped %v, ledger %v", round, clicked, gone, list)
		}
	}
	t.Logf("extended %d times, stopped %d times", extended, stopped)
}

func TestRestart(t *testing.T) {
	w := newWorld(t)
	ada := w.notebook("ada")
	w.waits("eve", 77)
	w.pass(20 * time.Minute)
	w.restart()
	w.pass(10*time.Minute + 30*time.Second)
	if w.state(ada) != Warned {
		t.Fatal("a restart has made gpulab forget how long it was idle")
	}
	w.pass(5 * time.Minute)
	before, _ := w.Of(ada.Launch)
	w.clock = w.clock.Add(40 * time.Second) // gpulab is away
	w.restart()
	w.pass(15 * time.Second)
	after, _ := w.Of(ada.Launch)
	if after.State != Warned || after.Ends.Sub(w.clock) != before.Ends.Sub(w.clock.Add(-55*time.Second)) {
		t.Errorf("%s before, %s after: no time of the countdown should have passed", before.Ends, after.Ends)
	}
	if before.Warned.IsZero() || !after.Warned.Equal(before.Warned) {
		t.Errorf("one warning is of %s before, of %s after", before.Warned, after.Warned)
	}
	if n := len(w.entries); n != 1 {
		t.Errorf("it was warned anew: %v", w.entries)
	}
	w.pass(6 * time.Minute)
	if len(w.stopped) != 1 {
		t.Error("and then it was not stopped")
	}
}

// TestInterruptedStop: gpulab ends between the decision and the stop.
func TestInterruptedStop(t *testing.T) {
	w := newWorld(t)
	ada := w.notebook("ada")
	w.waits("eve", 77)
	w.pass(31 * time.Minute)
	stop := w.cfg.Stop
	w.cfg.Stop = func(context.Context, int64, Cause, string) error { return errors.New("interrupted") }
	w.clock = w.clock.Add(10 * time.Minute)
	if _, err := w.store.DB().Exec("UPDATE idle SET ends_at = 1, looked_at = ?", w.clock.UnixMilli()-1000); err != nil {
		t.Fatal(err)
	}
	if err := w.look(t.Context()); err == nil {
		t.Fatal("the interruption is lost")
	}
	if _, err := w.Extend(t.Context(), ada.Launch); !errors.Is(err, ErrTooLate) {
		t.Errorf("what is decided can be undone: %v", err)
	}
	w.restart()
	w.cfg.Stop = stop
	w.pass(15 * time.Second)
	if got := w.stopped[ada.Launch]; !strings.Contains(got, "eve was waiting") {
		t.Errorf("after a restart it was stopped for %q", got)
	}
}

func TestEndedByItself(t *testing.T) {
	w := newWorld(t)
	w.notebook("ada")
	w.waits("eve", 77)
	w.pass(31 * time.Minute)
	if _, err := w.store.DB().Exec("UPDATE launches SET state = 'stopping'"); err != nil {
		t.Fatal(err)
	}
	w.pass(11 * time.Minute) // the list of what runs is a moment old
	if list, _ := w.Reclaims(t.Context(), 0, time.Time{}, 10); len(list) != 0 || len(w.stopped) != 0 {
		t.Errorf("what ended by itself is in the ledger: %v", list)
	}
}

func TestAlwaysAndNever(t *testing.T) {
	w := newWorld(t)
	w.notebook("ada")
	w.notebook("ben")
	w.running[0].Policy.Act, w.running[1].Policy.Act = Always, Never
	ada, ben := w.running[0], w.running[1]
	w.pass(41 * time.Minute)
	if got := w.stopped[ada.Launch]; got == "" || strings.Contains(got, "waiting") {
		t.Errorf("always: %q", got)
	}
	w.waits("eve", 77)
	w.step = time.Minute
	w.pass(3 * time.Hour)
	if w.state(ben) != Free || len(w.stopped) != 1 {
		t.Errorf("never: %s, %v", w.state(ben), w.stopped)
	}
}

func TestMaximumAge(t *testing.T) {
	w := newWorld(t)
	w.notebook("ada")
	w.running[0].Policy.MaxAge, w.running[0].Policy.Extensions, w.running[0].GPUs = 2*time.Hour, 1, 0
	ada := w.running[0]
	w.pass(time.Hour+50*time.Minute, "ada")
	if w.state(ada) != Warned {
		t.Fatal("not warned ten minutes before its end")
	}
	h, err := w.Extend(t.Context(), ada.Launch)
	if err != nil || h.Extensions != 1 {
		t.Fatal(err)
	}
	w.pass(30*time.Minute+15*time.Second, "ada")
	if w.state(ada) != Warned {
		t.Fatal("not warned after the extension")
	}
	w.pass(10*time.Minute, "ada")
	if got := w.stopped[ada.Launch]; !strings.Contains(got, "it had run for 2 h, which is as long as a notebook may run here") {
		t.Errorf("stopped: %q", got)
	}
}

func TestFree(t *testing.T) {
	w := newWorld(t)
	ada := w.notebook("ada")
	w.pass(4 * time.Minute)
	if _, err := w.Free(t.Context(), ada.Launch, "root"); !errors.Is(err, ErrNotIdle) {
		t.Errorf("one that is in use: %v", err)
	}
	w.pass(20 * time.Minute)
	// It is at work again, and the next look has not been yet.
	use := 80.0
	w.clock = w.clock.Add(5 * time.Second)
	w.gpus.add(gpu.Snapshot{Node: "head", Time: w.clock, GPUs: []gpu.GPU{{Reading: gpu.Reading{Utilization: &use}, Holders: []gpu.Holder{{PodRef: gpu.PodRef{UID: ada.PodUID}}}}}}, w.clock)
	if _, err := w.Free(t.Context(), ada.Launch, "lea"); !errors.Is(err, ErrNotIdle) {
		t.Errorf("one that is in use again: %v", err)
	}
	w.pass(30 * time.Minute)
	last := w.clock
	w.clock = w.clock.Add(10 * time.Minute) // looks fail
	if _, err := w.Free(t.Context(), ada.Launch, "lea"); !errors.Is(err, ErrNotIdle) {
		t.Errorf("one that was not looked at for long: %v", err)
	}
	w.clock = last
	h, err := w.Free(t.Context(), ada.Launch, "lea")
	if err != nil || h.State != Stopped || !strings.Contains(w.stopped[ada.Launch], "stopped by lea") {
		t.Fatalf("%v, %v", err, w.stopped)
	}
	if _, err := w.Free(t.Context(), ada.Launch, "lea"); !errors.Is(err, ErrTooLate) {
		t.Errorf("again: %v", err)
	}
	if list, _ := w.Reclaims(t.Context(), ada.UserID, time.Time{}, 10); len(list) != 1 || list[0].By != "lea" || list[0].Cause != CauseFreed {
		t.Errorf("the ledger: %+v", list)
	}
}

// TestKernelWithoutABrowser: a kernel that computes on its processors is never warned, one that only says so is.
func TestKernelWithoutABrowser(t *testing.T) {
	w := newWorld(t)
	ada, ben := w.notebook("ada"), w.notebook("ben")
	w.waits("eve", 77)
	w.waits("ann", 78)
	w.step = time.Minute
	for range 4 * 60 {
		w.cpu[ada.PodUID] += time.Minute
		w.claims[ben.Launch] = Claims{KernelBusy: true}
		w.pass(w.step)
		if w.state(ada) != Free {
			t.Fatal("a kernel that computes was warned")
		}
	}
	if _, gone := w.stopped[ben.Launch]; !gone {
		t.Error("a kernel that says for four hours that it is busy, and does nothing, still has its GPU")
	}
}

// TestHubThatDoesNotAnswer: without it no notebook can be asked, which is none of their doing.
func TestHubThatDoesNotAnswer(t *testing.T) {
	w := newWorld(t)
	ada := w.notebook("ada")
	w.waits("eve", 77)
	w.claims[ada.Launch] = Claims{CannotAsk: true}
	w.pass(time.Hour)
	if w.state(ada) != Free {
		t.Error("a notebook was warned that nobody could ask")
	}
}

func TestMachineThatIsNotHeard(t *testing.T) {
	w := newWorld(t)
	ada := w.notebook("ada")
	w.waits("eve", 77)
	w.pass(20 * time.Minute)
	for range 200 { // no readings of GPUs
		w.clock = w.clock.Add(15 * time.Second)
		if err := w.look(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if w.state(ada) != Free {
		t.Error("a notebook was warned that nobody could watch")
	}
}

// A turn that nobody takes goes to the next in line; who is seen to use theirs keeps it.
func TestWhatNobodyOpensGoesOn(t *testing.T) {
	w := newWorld(t)
	n := w.notebook("ada")
	w.running[0].Waited = true
	w.pass(3 * time.Minute)
	if h, _ := w.Of(n.Launch); h.State != Free || !h.Forgotten || h.Idle != 3*time.Minute {
		t.Fatalf("while nobody waits: %+v", h)
	}
	w.waits("zoe", 77)
	w.pass(15 * time.Second)
	h, _ := w.Of(n.Launch)
	if h.State != Warned || !h.Ends.Equal(start.Add(10*time.Minute)) || !strings.Contains(h.Notice(), "It is your turn: your notebook “Work” has been ready for 3 min, nobody has opened it, and zoe waits for a GPU.") {
		t.Fatalf("once somebody does: %s until %s: %s", h.State, h.Ends, h.Notice())
	}
	if note := w.Note(77); !strings.Contains(note, "the turn of ada") {
		t.Errorf("who waits reads %q", note)
	}
	w.restart()
	w.pass(2 * time.Minute)
	w.running[0].Browsed = true
	w.pass(15 * time.Second)
	if h, _ := w.Of(n.Launch); h.State != Free || h.Forgotten {
		t.Fatalf("once it was opened: %+v", h)
	}
	if e := w.entries[len(w.entries)-1]; e.Action != "idle.withdraw" || !strings.HasSuffix(e.Detail, "it was opened") {
		t.Errorf("the log says %+v", e)
	}
	// A browser that was closed is one that was open, also after a restart.
	w.running[0].Browsed = false
	w.restart()
	w.pass(15 * time.Minute)
	if h, _ := w.Of(n.Launch); h.State != Free {
		t.Errorf("a closed browser: %+v", h)
	}
}

// Who says that they still need what they have not opened yet keeps it for as long as they were told, and not for ever.
func TestKeptBeforeItIsOpened(t *testing.T) {
	w := newWorld(t)
	n := w.notebook("ada")
	w.running[0].Waited = true
	w.waits("zoe", 77)
	w.pass(3 * time.Minute)
	for i := range 3 {
		if h, err := w.Extend(t.Context(), n.Launch); err != nil || h.Extensions != i+1 {
			t.Fatalf("round %d: %d, %v", i, h.Extensions, err)
		}
		w.pass(29 * time.Minute)
		if h, _ := w.Of(n.Launch); h.State != Free || h.Extensions != i+1 {
			t.Fatalf("round %d: %s with %d extensions, stopped %v", i, h.State, h.Extensions, w.stopped)
		}
		w.pass(2 * time.Minute)
	}
	if _, err := w.Extend(t.Context(), n.Launch); !errors.Is(err, ErrNoMore) {
		t.Errorf("the fourth time: %v", err)
	}
	w.running[0].Browsed = true
	w.pass(15 * time.Second)
	if h, _ := w.Of(n.Launch); h.Forgotten {
		t.Errorf("once it was opened: %+v", h)
	}
}

func TestWhatNobodyOpensIsStopped(t *testing.T) {
	w := newWorld(t)
	n, program, soon := w.notebook("ada"), w.notebook("ben"), w.notebook("cleo")
	for i := range w.running {
		w.running[i].Waited = w.running[i].Launch != soon.Launch
	}
	for i, handle := range []string{"zoe", "zack", "zelda"} {
		w.waits(handle, int64(77+i))
	}
	w.pass(time.Minute, "ben") // its owner's program works without a browser
	w.pass(8 * time.Minute)
	if len(w.stopped) != 0 {
		t.Fatalf("stopped early: %v", w.stopped)
	}
	w.pass(2 * time.Minute)
	if why := w.stopped[n.Launch]; len(w.stopped) != 1 || why != "It was stopped: its turn had come, nobody opened it for 10 min, and zoe was waiting for a GPU. Start it again to stand in line anew." {
		t.Errorf("stopped: %v", w.stopped)
	}
	for _, n := range []Notebook{program, soon} {
		if h, _ := w.Of(n.Launch); h.State != Free {
			t.Errorf("%s: %s", n.Handle, h.State)
		}
	}
}
