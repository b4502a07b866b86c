package notebooks

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpulab/gpulab/internal/users"
)

func (h *house) serve(u users.User, name string, change func(*ServiceRequest)) Launch {
	h.t.Helper()
	r := ServiceRequest{JobRequest: JobRequest{Program: Program{Args: []string{"python", "app.py"}}, Name: name}, Port: 7860, Share: Share{With: SharePrivate}}
	if change != nil {
		change(&r)
	}
	l, err := h.service.Serve(h.t.Context(), u, r)
	if err != nil {
		h.t.Fatal(err)
	}
	return l
}

// TestServiceRunsUntilItsTime: a service has a pod that is started again, says
// whether it answers, outlives a restart of gpulab, and is stopped at its time.
func TestServiceRunsUntilItsTime(t *testing.T) {
	h := newHouse(t, 1)
	l := h.serve(h.alice, "Board", func(r *ServiceRequest) { r.StopAfter = time.Hour })
	if l.URL != "/service/alice/board/" || l.Service.Door != 8500 || l.Job.Output != "services/board-1.log" {
		t.Errorf("it is %+v, %+v, with its log in %s", l, l.Service, l.Job.Output)
	}
	h.is(l.ID, Running)
	h.until(l.ID, "ready", func(l Launch) bool { return l.Service.Health == HealthReady })
	h.lab.mu.Lock()
	pod := h.lab.created[0]
	h.lab.mu.Unlock()
	c := pod.Spec.Containers[0]
	if pod.Spec.RestartPolicy != corev1.RestartPolicyAlways || pod.Spec.ActiveDeadlineSeconds != nil || pod.Labels[labelComponent] != componentService ||
		c.Ports[0].ContainerPort != 7860 || c.ReadinessProbe.TCPSocket.Port.IntValue() != 7860 || *c.SecurityContext.AllowPrivilegeEscalation {
		t.Errorf("its pod is %+v", pod.Spec)
	}
	uid := h.podOf(l)
	h.lab.pod(uid, func(p *PodInfo) { p.Ready = false })
	h.until(l.ID, "silent", func(l Launch) bool { return l.Service.Health == HealthSilent && strings.Contains(l.Reason, "7860") })
	h.lab.pod(uid, func(p *PodInfo) { p.Exited, p.ExitCode = true, 3 })
	h.until(l.ID, "started again", func(l Launch) bool {
		return l.State == Running && l.Service.Health == HealthRestarting && strings.Contains(l.Reason, "exit code 3. It is started again.")
	})
	h.lab.pod(uid, func(p *PodInfo) { p.Exited, p.Ready = false, true })
	h.reopen(nil)
	h.until(l.ID, "ready again", func(l Launch) bool { return l.State == Running && l.Service.Health == HealthReady && h.podOf(l) == uid })
	if err := h.service.KeepService(t.Context(), l.ID, time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := h.db.ExecContext(t.Context(), "UPDATE services SET stop_at = 1"); err != nil {
		t.Fatal(err)
	}
	h.service.Wake()
	if l = h.is(l.ID, Ended); l.EndCode != EndTimeLimit || l.Reason != "Its stop time had come." {
		t.Errorf("it ended as %s: %s", l.EndCode, l.Reason)
	}
	if err := h.service.KeepService(t.Context(), l.ID, time.Hour); err == nil {
		t.Error("one that has ended is kept")
	}
	again, err := h.service.ServeAgain(t.Context(), h.alice, l.ID)
	if err != nil || again.Service.Door != 8500 || again.Name != "board" || again.Job.Output != "services/board-2.log" {
		t.Errorf("again it is %+v with its log in %s (%v)", again.Service, again.Job.Output, err)
	}
	named := h.serve(h.alice, "named", func(r *ServiceRequest) { r.Output, r.Errors = "logs/%x-%j.log", "logs/100%%-%j.err" })
	if err := h.service.Stop(t.Context(), named.ID); err != nil {
		t.Fatal(err)
	}
	h.is(named.ID, Ended)
	again, err = h.service.ServeAgain(t.Context(), h.alice, named.ID)
	if err != nil || again.Job.Output != fmt.Sprintf("logs/named-%d.log", again.ID) || again.Job.Errors != fmt.Sprintf("logs/100%%-%d.err", again.ID) {
		t.Errorf("again it writes %s and %s (%v)", again.Job.Output, again.Job.Errors, err)
	}
}

// TestServiceComesBack: one whose pod is lost, and one that is restarted, runs
// again; one that is not to be started again, or was stopped, does not.
func TestServiceComesBack(t *testing.T) {
	h := newHouse(t, 1)
	l := h.is(h.serve(h.alice, "board", func(r *ServiceRequest) { r.GPUs = new(1) }).ID, Running)
	first := h.podOf(l)
	h.lab.remove(first)
	h.until(l.ID, "back", func(l Launch) bool { return l.State == Running && len(l.Job.Tries) == 1 })
	if err := h.service.RestartService(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	l = h.until(l.ID, "restarted", func(l Launch) bool { return l.State == Running && len(l.Job.Tries) == 2 })
	if last := l.Job.Tries[1]; last.EndCode != EndRestart || l.Service.Door != 8500 {
		t.Errorf("the last run ended as %+v", last)
	}
	if err := h.service.Stop(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	if l = h.is(l.ID, Ended); l.EndCode != EndStopped || len(h.lab.Notebooks()) != 0 {
		t.Errorf("it ended as %s, and of it are left %v", l.EndCode, h.lab.Notebooks())
	}
	once := h.is(h.serve(h.alice, "once", func(r *ServiceRequest) { r.Once = true }).ID, Running)
	h.lab.pod(h.podOf(once), func(p *PodInfo) { p.Exited, p.Finished, p.Ready, p.ExitCode = true, true, false, 3 })
	if once = h.is(once.ID, Ended); once.EndCode != EndExited {
		t.Errorf("one that is not started again ended as %s", once.EndCode)
	}
}

// TestFormerRuns: what a service has held counts, however often it was started
// again; it waits for longer only after runs that failed soon.
func TestFormerRuns(t *testing.T) {
	l := Launch{Service: &WebService{Restarts: true}, Job: &Job{}}
	at, held := time.UnixMilli(0), time.Duration(0)
	for i := range 3 * keptTries {
		ran := time.Duration(i+1) * time.Hour
		l.Job.Tries = l.triesOf(Try{From: at.UnixMilli(), Until: at.Add(ran).UnixMilli(), EndCode: EndRestart})
		at, held = at.Add(ran+time.Minute), held+ran
	}
	var sum time.Duration
	for _, try := range l.Job.Tries {
		sum += time.Duration(try.Until-try.From) * time.Millisecond
	}
	if len(l.Job.Tries) != keptTries || sum != held || turnsOf(l) != 3*keptTries {
		t.Errorf("%d runs are kept of %s, want %s; it had %d turns", len(l.Job.Tries), sum, held, turnsOf(l))
	}
	short, long := Try{EndCode: EndExited}, Try{EndCode: EndExited, Until: 2 * longRun.Milliseconds()}
	for want, tries := range map[int][]Try{
		1: {short, short, long},
		2: {short, long, short},
		3: {short, {EndCode: EndRestart}, short, short, short},
	} {
		if got := failedInARow(tries); got != want {
			t.Errorf("%+v: %d, want %d", tries, got, want)
		}
	}
}

// TestDoors: a port of the head is one service's at a time, its owner's for a
// while after, and the same for the same name.
func TestDoors(t *testing.T) {
	h := newHouse(t, 1)
	a, b, c := h.serve(h.alice, "a", nil), h.serve(h.alice, "b", nil), h.serve(h.bob, "c", nil)
	if a.Service.Door != 8500 || b.Service.Door != 8501 || c.Service.Door != 8502 {
		t.Fatalf("the doors are %d, %d and %d", a.Service.Door, b.Service.Door, c.Service.Door)
	}
	ask := func(u users.User, name string) (int, error) {
		l, err := h.service.Serve(t.Context(), u, ServiceRequest{JobRequest: JobRequest{Program: Program{Args: []string{"x"}}, Name: name}, Port: 7860, Share: Share{With: SharePrivate}})
		if err != nil {
			return 0, err
		}
		return l.Service.Door, nil
	}
	refused := (*JobError)(nil)
	if _, err := ask(h.bob, "d"); !errors.As(err, &refused) || !strings.Contains(err.Error(), "All 3 addresses") {
		t.Errorf("a fourth gets %v", err)
	}
	for _, l := range []Launch{a, b} {
		if err := h.service.Stop(t.Context(), l.ID); err != nil {
			t.Fatal(err)
		}
		h.is(l.ID, Ended)
	}
	if door, err := ask(h.bob, "d"); !errors.As(err, &refused) {
		t.Errorf("somebody else's port is bob's at once: %d, %v", door, err)
	}
	if door, err := ask(h.alice, "b"); err != nil || door != 8501 {
		t.Errorf("the same name gets %d (%v)", door, err)
	}
	if _, err := h.db.ExecContext(t.Context(), "UPDATE launches SET ended_at = ended_at - ? WHERE name = 'a'", (doorRest + time.Minute).Milliseconds()); err != nil {
		t.Fatal(err)
	}
	if door, err := ask(h.bob, "d"); err != nil || door != 8500 {
		t.Errorf("a port that has rested: %d (%v)", door, err)
	}
	if doors, err := h.service.Doors(t.Context()); err != nil || len(doors) != 3 {
		t.Errorf("the doors are %v (%v)", doors, err)
	}
}

// TestDoorsOfOne: one person cannot take every port of the head, by services that
// they stop at once.
func TestDoorsOfOne(t *testing.T) {
	h := newHouse(t, 1)
	for door := 8503; len(h.doors) < maxServices+3; door++ {
		h.doors = append(h.doors, door)
	}
	h.reopen(nil)
	had := map[int]bool{}
	for i := range 2 * maxServices {
		l := h.serve(h.alice, fmt.Sprintf("s%d", i), nil)
		had[l.Service.Door] = true
		if err := h.service.Stop(t.Context(), l.ID); err != nil {
			t.Fatal(err)
		}
		h.is(l.ID, Ended)
	}
	if len(had) != maxServices {
		t.Errorf("one person has %d addresses, one after the other", len(had))
	}
	if l := h.serve(h.bob, "c", nil); had[l.Service.Door] {
		t.Errorf("another gets %d, which is hers for a while", l.Service.Door)
	}
}

// TestSharing: who may see a service is who is in the group now.
func TestSharing(t *testing.T) {
	h := newHouse(t, 1)
	ctx := t.Context()
	if _, err := h.people.CreateGroup(ctx, "vision", ""); err != nil {
		t.Fatal(err)
	}
	l := h.serve(h.alice, "board", nil)
	sees := func() bool {
		may, err := h.service.MaySee(ctx, h.bob, h.get(l.ID))
		list, err2 := h.service.SharedServices(ctx, h.bob)
		if err != nil || err2 != nil || may != (len(list) == 1) {
			t.Errorf("may see %v, and is shown %v (%v, %v)", may, list, err, err2)
		}
		return may
	}
	set := func(text string) error {
		share, err := ParseShare(text)
		if err != nil {
			return err
		}
		return h.service.ShareService(ctx, h.alice, l.ID, share)
	}
	if sees() {
		t.Error("a private one is seen")
	}
	if err := set("group:vision"); err == nil || !strings.Contains(err.Error(), "You are in no group") {
		t.Errorf("shared with a group that she is not in: %v", err)
	}
	for _, u := range []users.User{h.alice, h.bob} {
		if err := h.people.SetMember(ctx, "vision", u.ID, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := set("group:vision"); err != nil || !sees() || h.get(l.ID).Service.Share.String() != "group:vision" {
		t.Errorf("the group does not see it: %v", err)
	}
	if err := h.people.RemoveMember(ctx, "vision", h.bob.ID); err != nil || sees() {
		t.Errorf("who has left the group sees it: %v", err)
	}
	if err := set("lab"); err != nil || !sees() {
		t.Errorf("the lab does not see it: %v", err)
	}
	_ = h.people.SetMember(ctx, "vision", h.bob.ID, false)
	if err := set("group:vision"); err != nil || !sees() {
		t.Errorf("the group does not see it again: %v", err)
	}
	// Another group of the same name is another one.
	if err := h.people.RemoveGroup(ctx, "vision"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.people.CreateGroup(ctx, "vision", ""); err != nil {
		t.Fatal(err)
	}
	_ = h.people.SetMember(ctx, "vision", h.bob.ID, false)
	if sees() {
		t.Error("a later group of the same name sees it")
	}
	for _, wrong := range []string{"everybody", "group:", "group", "lab:x"} {
		if err := set(wrong); err == nil {
			t.Errorf("it can be shared with %q", wrong)
		}
	}
}

// TestServicesRefused: what cannot be is refused with the next step.
func TestServicesRefused(t *testing.T) {
	h := newHouse(t, 1)
	for want, change := range map[string]func(*ServiceRequest){
		"needs the port":          func(r *ServiceRequest) { r.Port = 80 },
		"that of notebooks":       func(r *ServiceRequest) { r.Port = 8888 },
		"and 90 d at most":        func(r *ServiceRequest) { r.StopAfter = 91 * 24 * time.Hour },
		"needs a letter":          func(r *ServiceRequest) { r.Name = "123" },
		"nothing to run":          func(r *ServiceRequest) { r.Args = nil },
		"take these directives":   func(r *ServiceRequest) { r.Args, r.Script = nil, "#GPULAB --array=0-9\ntrue\n" },
		"submit it as one":        func(r *ServiceRequest) { r.Args, r.Script = nil, "apiVersion: batch/v1\nkind: Job\n" },
		"neither time limit":      func(r *ServiceRequest) { r.Retries = new(2) },
		"This lab has no Tensor":  func(r *ServiceRequest) { r.TensorBoard("runs") },
		"no machine of this lab":  func(r *ServiceRequest) { r.GPUs = new(9) },
		"has to lie in the home,": func(r *ServiceRequest) { r.Output = "/etc/passwd" },
	} {
		r := ServiceRequest{JobRequest: JobRequest{Program: Program{Args: []string{"x"}}, Name: "board"}, Port: 7860, Share: Share{With: SharePrivate}}
		change(&r)
		if _, err := h.service.Serve(t.Context(), h.alice, r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if list, _ := h.service.Jobs(t.Context(), h.alice.ID); len(list) != 0 {
		t.Errorf("something is left of it: %v", list)
	}
}
