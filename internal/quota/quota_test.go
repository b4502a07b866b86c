package quota

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// A lab has accounts in a database of the test's own, and what they use is said by the test.
type lab struct {
	*Service
	people   *users.Service
	held     map[int64][]Ask
	hours    map[string][]HourUse
	memory   map[string]uint64 // of GPUs
	enforced bool
	term     time.Time
	clock    time.Time
	asleep   time.Duration

	stopped map[string]string // handle → reason
}

func newLab(t testing.TB) *lab {
	t.Helper()
	st, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	l := &lab{people: users.New(st.DB()), held: map[int64][]Ask{}, hours: map[string][]HourUse{}, memory: map[string]uint64{}, stopped: map[string]string{},
		clock: time.Date(2026, 3, 2, 10, 20, 0, 0, time.UTC)}
	l.Service = New(Config{DB: st.DB(), People: l.people, GPUMemory: func(handle string) uint64 { return l.memory[handle] },
		GPUMemoryEnforced: func() bool { return l.enforced }, Term: func() time.Time { return l.term },
		Asleep: func() time.Duration { return l.asleep },
		Held:   func(_ context.Context, id, _ int64) ([]Ask, error) { return l.held[id], nil },
		Hours: func(_ context.Context, handle string, from time.Time) ([]HourUse, error) {
			var list []HourUse
			for _, h := range l.hours[handle] {
				if h.Hour.Add(time.Hour).After(from) {
					list = append(list, h)
				}
			}
			return list, nil
		}})
	l.now = func() time.Time { return l.clock }
	return l
}

func (l *lab) user(t testing.TB, handle string, role users.Role, groups ...string) users.User {
	t.Helper()
	u, err := l.people.Create(t.Context(), users.NewUser{Handle: handle, Role: role})
	for _, g := range groups {
		if err == nil {
			_, err = l.people.CreateGroup(t.Context(), g, "")
			if errors.Is(err, users.ErrGroupTaken) {
				err = nil
			}
		}
		if err == nil {
			err = l.people.SetMember(t.Context(), g, u.ID, false)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func (l *lab) set(t testing.TB, subject, kind, value string) {
	t.Helper()
	s, err := ParseSubject(subject)
	if err != nil {
		t.Fatal(err)
	}
	k, model, err := ParseKind(kind)
	if err != nil {
		t.Fatal(err)
	}
	v, err := k.Parse(value)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Set(t.Context(), s, k, model, &v); err != nil {
		t.Fatal(err)
	}
}

func refusal(t *testing.T, err error, says ...string) {
	t.Helper()
	var e *users.Error
	if !errors.As(err, &e) {
		t.Fatalf("not refused: %v", err)
	}
	for _, s := range says {
		if !strings.Contains(e.Text, s) {
			t.Errorf("%q does not say %q", e.Text, s)
		}
	}
}

func TestTheStrictestHolds(t *testing.T) {
	l := newLab(t)
	ann := l.user(t, "ann", users.RoleMember, "vision", "robots")
	ben := l.user(t, "ben", users.RoleGuest)
	l.set(t, "everybody", "gpus", "4")
	l.set(t, "role:guest", "gpus", "1")
	l.set(t, "group:vision", "gpus", "2")
	l.set(t, "group:robots", "gpus", "3")
	l.set(t, "user:ann", "notebooks", "6")
	limits, err := l.Limits(t.Context(), ann)
	if err != nil || len(limits) != 2 || limits[0].Kind != Notebooks || limits[1].Value != 2 || limits[1].From.String() != "group:vision" {
		t.Fatalf("ann: %+v, %v", limits, err)
	}
	limits, err = l.Limits(t.Context(), ben)
	if err != nil || len(limits) != 1 || limits[0].Value != 1 || limits[0].From.String() != "role:guest" {
		t.Fatalf("ben: %+v, %v", limits, err)
	}
	l.held[ann.ID] = []Ask{{GPUs: 1}, {GPUs: 1}}
	refusal(t, l.Check(t.Context(), ann, Ask{GPUs: 1}, 0), "for GPUs at once is 2 (for the group vision)", "you use 2", "Stop a notebook")
	if err := l.Check(t.Context(), ann, Ask{}, 0); err != nil {
		t.Errorf("a notebook without GPU: %v", err)
	}
	refusal(t, l.Check(t.Context(), ben, Ask{GPUs: 2}, 0), "This takes 2", "for the role guest")
	if err := l.people.RemoveGroup(t.Context(), "vision"); err != nil {
		t.Fatal(err)
	}
	if limits, err = l.Limits(t.Context(), ann); err != nil || limits[1].Value != 3 || limits[1].From.Group != "robots" || limits[1].Used != 2 {
		t.Errorf("after the group's end: %+v, %v", limits, err)
	}
	rules, err := l.Rules(t.Context())
	if err != nil || len(rules) != 4 || rules[0].Subject != (Subject{}) || rules[3].Subject.User != "ann" {
		t.Errorf("%+v, %v", rules, err)
	}
	if err := l.Set(t.Context(), Subject{User: "ann"}, Notebooks, "", nil); err != nil {
		t.Fatal(err)
	}
	if rules, err = l.Rules(t.Context()); err != nil || len(rules) != 3 {
		t.Errorf("%+v, %v", rules, err)
	}
	zero := 0.0
	refusal(t, l.Set(t.Context(), Subject{Group: "nobody"}, GPUs, "", &zero), "no group")
	refusal(t, l.Set(t.Context(), Subject{}, Memory, "A100", &zero), "Only gpus")
}

func TestModels(t *testing.T) {
	l := newLab(t)
	ann := l.user(t, "ann", users.RoleMember)
	l.set(t, "everybody", "gpus:NVIDIA-H100-80GB-HBM3", "1")
	l.set(t, "everybody", "gpus", "3")
	big, small := Ask{GPUs: 1, Models: []string{"NVIDIA H100 80GB HBM3"}}, Ask{GPUs: 1, Models: []string{"NVIDIA-GeForce-RTX-4090"}}
	l.held[ann.ID] = []Ask{big}
	refusal(t, l.Check(t.Context(), ann, big, 0), "NVIDIA-H100-80GB-HBM3")
	if err := l.Check(t.Context(), ann, small, 0); err != nil {
		t.Error(err)
	}
}

func TestCPUsAndMemory(t *testing.T) {
	l := newLab(t)
	ann := l.user(t, "ann", users.RoleMember)
	l.set(t, "everybody", "cpus", "4")
	l.set(t, "everybody", "memory", "16Gi")
	l.held[ann.ID] = []Ask{{CPUs: 2, Memory: 8 << 30}}
	if err := l.Check(t.Context(), ann, Ask{CPUs: 2, Memory: 8 << 30}, 0); err != nil {
		t.Error(err)
	}
	refusal(t, l.Check(t.Context(), ann, Ask{CPUs: 2, Memory: 9 << 30}, 0), "16 GiB", "you use 8 GiB")
	refusal(t, l.Check(t.Context(), ann, Ask{Memory: 1 << 30}, 0), "no bound of its own for CPU cores")
}

func TestHours(t *testing.T) {
	l := newLab(t)
	ann := l.user(t, "ann", users.RoleMember)
	l.set(t, "role:member", "gpu-hours-week", "10")
	l.set(t, "role:member", "gpu-hours-term", "20")
	first := l.clock.Truncate(time.Hour).Add(-5 * 24 * time.Hour)
	for i := range 6 {
		l.hours["ann"] = append(l.hours["ann"], HourUse{first.Add(time.Duration(i) * time.Hour), 2 * time.Hour})
	}
	limits, err := l.Limits(t.Context(), ann)
	if err != nil || len(limits) != 1 || limits[0].Used != 12 { // no term is set
		t.Fatalf("%+v, %v", limits, err)
	}
	// 12 of 10 h: the first two hours have to be older than a week.
	if want := first.Add(2*time.Hour + week); !limits[0].Frees.Equal(want) {
		t.Errorf("frees %s, want %s", limits[0].Frees, want)
	}
	refusal(t, l.Check(t.Context(), ann, Ask{GPUs: 1}, 0), "12 h of 10 h", "GPU hours in 7 days", "There are hours again from")
	if err := l.Check(t.Context(), ann, Ask{}, 0); err != nil {
		t.Errorf("without GPU: %v", err)
	}
	l.clock = limits[0].Frees
	if err := l.Check(t.Context(), ann, Ask{GPUs: 1}, 0); err != nil {
		t.Errorf("when they are free: %v", err)
	}
	l.term = first
	if limits, err = l.Limits(t.Context(), ann); err != nil || len(limits) != 2 || limits[1].Used != 12 {
		t.Errorf("term: %+v, %v", limits, err)
	}
}

func TestGrants(t *testing.T) {
	l := newLab(t)
	ann := l.user(t, "ann", users.RoleMember)
	l.set(t, "everybody", "gpus", "1")
	l.held[ann.ID] = []Ask{{GPUs: 1}}
	refusal(t, l.Check(t.Context(), ann, Ask{GPUs: 1}, 0))
	good := Grant{User: "ann", Kind: GPUs, Extra: 1, Note: "paper", By: "ada", Ends: l.clock.Add(48 * time.Hour)}
	for what, bad := range map[string]func(*Grant){
		"nothing more": func(g *Grant) { g.Extra = 0 }, "over already": func(g *Grant) { g.Ends = l.clock },
		"for ever": func(g *Grant) { g.Ends = l.clock.Add(400 * 24 * time.Hour) }, "two lines": func(g *Grant) { g.Note = "a\nb" },
		"no kind": func(g *Grant) { g.Kind = "luck" },
	} {
		g := good
		bad(&g)
		_, err := l.Grant(t.Context(), g)
		t.Log(what)
		refusal(t, err)
	}
	g, err := l.Grant(t.Context(), good)
	if err != nil {
		t.Fatal(err)
	}
	limits, err := l.Limits(t.Context(), ann)
	if err != nil || limits[0].Value != 2 || limits[0].Extra != 1 || !limits[0].Until.Equal(good.Ends) {
		t.Fatalf("%+v, %v", limits, err)
	}
	if err := l.Check(t.Context(), ann, Ask{GPUs: 1}, 0); err != nil {
		t.Error(err)
	}
	if _, err := l.EndGrant(t.Context(), g.ID); err != nil {
		t.Fatal(err)
	}
	_, err = l.EndGrant(t.Context(), g.ID)
	refusal(t, err)
	refusal(t, l.Check(t.Context(), ann, Ask{GPUs: 1}, 0))
	if _, err := l.Grant(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	l.clock = good.Ends
	refusal(t, l.Check(t.Context(), ann, Ask{GPUs: 1}, 0))
	if list, err := l.Grants(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

func (l *lab) WithGPU(ctx context.Context) ([]users.User, error) {
	var list []users.User
	for id, held := range l.held {
		if len(held) > 0 {
			u, err := l.people.ByID(ctx, id)
			if err != nil {
				return nil, err
			}
			list = append(list, u)
		}
	}
	return list, nil
}

func (l *lab) StopGPU(_ context.Context, u users.User, reason string) error {
	l.stopped[u.Handle] = reason
	delete(l.held, u.ID)
	return nil
}

func TestRunningWorkGetsNoticeAndGrace(t *testing.T) {
	l := newLab(t)
	ann, ben := l.user(t, "ann", users.RoleMember), l.user(t, "ben", users.RoleMember)
	l.set(t, "everybody", "gpu-hours-week", "2")
	l.held[ann.ID], l.held[ben.ID] = []Ask{{GPUs: 1}}, []Ask{{GPUs: 1}}
	l.hours["ann"] = []HourUse{{l.clock.Truncate(time.Hour), 2 * time.Hour}}
	look := func() {
		t.Helper()
		if err := l.look(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	notice := func(u users.User) string {
		t.Helper()
		text, err := l.Notice(t.Context(), u.ID)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	look()
	if text := notice(ann); !strings.Contains(text, "are stopped at "+l.clock.Add(DefaultGrace).Local().Format("15:04")) {
		t.Errorf("notice: %q", text)
	}
	if text := notice(ben); text != "" {
		t.Errorf("ben is told %q", text)
	}
	l.clock = l.clock.Add(DefaultGrace - time.Second)
	look()
	if len(l.stopped) != 0 {
		t.Errorf("stopped before its time: %v", l.stopped)
	}
	// More hours end the notice; it begins anew later, with the whole grace.
	g, err := l.Grant(t.Context(), Grant{User: "ann", Kind: GPUHoursWeek, Extra: 1, By: "ada", Ends: l.clock.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	look()
	if text := notice(ann); text != "" {
		t.Errorf("after the grant: %q", text)
	}
	if _, err := l.EndGrant(t.Context(), g.ID); err != nil {
		t.Fatal(err)
	}
	look()
	l.clock = l.clock.Add(DefaultGrace)
	look()
	if reason := l.stopped["ann"]; !strings.Contains(reason, "GPU hours in 7 days") || len(l.stopped) != 1 {
		t.Errorf("stopped: %v", l.stopped)
	}
	look()
	if text := notice(ann); text != "" {
		t.Errorf("after the stop: %q", text)
	}
}

// Another quota that is used up meanwhile has a grace period of its own.
func TestGraceOfAnotherQuota(t *testing.T) {
	l := newLab(t)
	ann := l.user(t, "ann", users.RoleMember)
	l.set(t, "everybody", "gpu-hours-week", "2")
	l.set(t, "everybody", "gpu-memory", "1Gi")
	l.held[ann.ID] = []Ask{{GPUs: 1}}
	l.memory["ann"] = 2 << 30
	look := func() {
		t.Helper()
		if err := l.look(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	look()
	l.clock = l.clock.Add(DefaultGrace - time.Minute)
	l.hours["ann"] = []HourUse{{l.clock.Truncate(time.Hour), 2 * time.Hour}}
	look()
	l.clock = l.clock.Add(DefaultGrace - time.Second)
	look()
	if len(l.stopped) != 0 {
		t.Errorf("stopped %s after the hours were used up: %v", DefaultGrace-time.Second, l.stopped)
	}
	l.clock = l.clock.Add(time.Second)
	look()
	if reason := l.stopped["ann"]; !strings.Contains(reason, "GPU hours") {
		t.Errorf("stopped: %v", l.stopped)
	}
}

// TestSleepIsNoGrace: a machine that sleeps through the grace period stops nothing when it wakes, and says the new time.
func TestSleepIsNoGrace(t *testing.T) {
	l := newLab(t)
	l.asleep = 5 * time.Hour // since it was booted; nothing of it is news
	l.slept = l.asleep
	ann := l.user(t, "ann", users.RoleMember)
	l.set(t, "everybody", "gpu-hours-week", "2")
	l.held[ann.ID], l.hours["ann"] = []Ask{{GPUs: 1}}, []HourUse{{l.clock.Truncate(time.Hour), 2 * time.Hour}}
	look := func() {
		t.Helper()
		if err := l.look(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	look()
	l.clock = l.clock.Add(DefaultGrace / 2)
	const night = 9 * time.Hour
	l.clock, l.asleep = l.clock.Add(night), l.asleep+night
	// Somebody may look before the next look at quotas.
	until := l.clock.Add(DefaultGrace / 2).Local().Format("15:04")
	if text, err := l.Notice(t.Context(), ann.ID); err != nil || !strings.Contains(text, "are stopped at "+until) {
		t.Errorf("notice after the night: %q, %v; want %s", text, err, until)
	}
	l.clock = l.clock.Add(DefaultGrace/2 - time.Second)
	look()
	if len(l.stopped) != 0 {
		t.Fatalf("stopped although the machine slept: %v", l.stopped)
	}
	l.clock = l.clock.Add(2 * time.Second)
	look()
	if len(l.stopped) != 1 {
		t.Errorf("after the rest of the grace period: stopped %v", l.stopped)
	}
}

// GPU memory is measured: a launch is refused once it is used up, and who goes on beyond it gets notice and grace.
func TestGPUMemory(t *testing.T) {
	l := newLab(t)
	ann := l.user(t, "ann", users.RoleMember)
	l.set(t, "everybody", "gpu-memory", "10Gi")
	l.held[ann.ID] = []Ask{{GPUs: 1}}
	l.memory["ann"] = 9 << 30
	if err := l.Check(t.Context(), ann, Ask{GPUs: 1}, 0); err != nil {
		t.Errorf("with 9 of 10 GiB: %v", err)
	}
	look := func() string {
		t.Helper()
		err := l.look(t.Context(), l)
		text := ""
		if err == nil {
			text, err = l.Notice(t.Context(), ann.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for enforced, want := range map[bool]string{false: "measured, not enforced", true: "enforced by the driver"} {
		l.enforced = enforced
		if limits, err := l.Limits(t.Context(), ann); err != nil || len(limits) != 1 || limits[0].How() != want {
			t.Errorf("%+v, %v; want %s", limits, err, want)
		}
	}
	l.memory["ann"] = 10 << 30 // all of it may be in use
	if text := look(); text != "" {
		t.Errorf("with all of it in use: %q", text)
	}
	refusal(t, l.Check(t.Context(), ann, Ask{GPUs: 1}, 0), "10 GiB of GPU memory", "for everybody", "without GPU")
	if err := l.Check(t.Context(), ann, Ask{}, 0); err != nil {
		t.Errorf("without GPU: %v", err)
	}
	l.memory["ann"] = 12 << 30
	if text := look(); !strings.Contains(text, "GPU memory") || !strings.Contains(text, "are stopped at") {
		t.Errorf("beyond it: %q", text)
	}
	l.memory["ann"] = 8 << 30
	if text := look(); text != "" {
		t.Errorf("after some is free again: %q", text)
	}
	l.memory["ann"] = 12 << 30
	look()
	l.clock = l.clock.Add(DefaultGrace)
	look()
	if reason := l.stopped["ann"]; !strings.Contains(reason, "12 GiB of GPU memory") || !strings.Contains(reason, "10 GiB") {
		t.Errorf("stopped: %v", l.stopped)
	}
}

func TestParse(t *testing.T) {
	for _, bad := range []string{"", "everyone", "role:king", "group:", "user:", "gpus"} {
		if s, err := ParseSubject(bad); err == nil {
			t.Errorf("subject %q: %v", bad, s)
		}
	}
	for _, good := range []string{"everybody", "role:guest", "group:vision", "user:ada"} {
		if s, err := ParseSubject(good); err != nil || s.String() != good {
			t.Errorf("subject %q: %v, %v", good, s, err)
		}
	}
	for _, bad := range []string{"", "gpu", "gpus:", "memory:A100"} {
		if _, _, err := ParseKind(bad); err == nil {
			t.Errorf("kind %q is taken", bad)
		}
	}
	for kind, bad := range map[Kind][]string{GPUs: {"1.5", "-1", "two", "NaN", ""}, Memory: {"-4Gi", "lots", ""}, GPUHoursWeek: {"-1", "Inf", "1e99"}} {
		for _, text := range bad {
			if v, err := kind.Parse(text); err == nil {
				t.Errorf("%s %q: %v", kind, text, v)
			}
		}
	}
	for _, k := range Kinds() {
		if k.Words() == "" {
			t.Errorf("%s has no words", k)
		}
	}
}
