package notebooks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpulab/gpulab/internal/units"
)

// patience is how long the loop waits for what.
type patience struct {
	busy         time.Duration // between looks while something starts or stops
	waiting      time.Duration // while something waits
	idle         time.Duration // while nothing is expected
	answer       time.Duration // for a running container's server to answer
	start        time.Duration // from asking the hub to the end of a start
	missing      time.Duration // before a vanished pod counts as gone
	orphan       time.Duration // before a pod without a launch is deleted
	hubStop      time.Duration // for the hub's own stop, before gpulab deletes the pod
	look         time.Duration // between questions to the hub about a start
	slow         time.Duration // before the cluster is asked what is wrong
	noRoute      time.Duration // before the hub is asked for its routes again
	unscheduled  time.Duration // before a pod that no machine takes is given up
	retry        time.Duration // first wait after trouble; it doubles
	stuckPod     time.Duration // before a pod that does not end is mentioned
	restoreRoute time.Duration // between tries to get the hub's routes at start
	again        time.Duration // before a job that failed is started again; it doubles
	memory       time.Duration // for telling that memory ran out
	obstacle     time.Duration // between looks whether profiles can work here
	silent       time.Duration // for a service's program to answer, before its owner is told what may be wrong
}

var usualPatience = patience{
	busy: time.Second, waiting: 2 * time.Second, idle: 10 * time.Second,
	answer: 3 * time.Minute, start: 12 * time.Minute,
	missing: 5 * time.Second, orphan: time.Minute, hubStop: 3 * time.Second,
	look: 2 * time.Second, slow: 3 * time.Second, noRoute: 10 * time.Second,
	// A pod that is just ending may still hold what was counted as free.
	unscheduled: 10 * time.Second,
	retry:       time.Second, stuckPod: 30 * time.Second, restoreRoute: 300 * time.Millisecond,
	again: 10 * time.Second, memory: 30 * time.Minute, obstacle: 5 * time.Second,
	silent: 20 * time.Second,
}

const (
	podDeleteGrace = 5 * time.Second
	maxServerFault = 3 // answers 500 to a start before it is given up
	// maxGivenUp is how often JupyterHub may give up a start before there is a pod:
	// just after a restart of Kubernetes its address refuses connections at times.
	maxGivenUp = 5
	// maxRefusals is how often the cluster may refuse a job's pod: in a new
	// namespace it does until all of that is there.
	maxRefusals = 6
)

// Run reconciles launches with hub and cluster until ctx ends, and returns once
// the steps under way have ended. Launches go on without it and are taken up
// again by the next Run.
func (s *Service) Run(ctx context.Context) error {
	defer s.steps.Wait()
	if !s.cfg.Simulated {
		s.endSimulated(ctx)
	}
	s.steps.Go(func() { s.Reconnect(ctx) })
	// Before anybody is given a GPU that their image cannot use.
	first, cancel := context.WithTimeout(ctx, obstacleWait)
	s.lookForObstacles(first)
	cancel()
	s.steps.Go(func() { s.watchObstacles(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-s.cfg.Cluster.Changes():
		case <-s.cfg.Routes.Changes():
		case <-s.cfg.Line.Changes():
		case <-timer.C:
		}
		timer.Reset(s.pass(ctx))
	}
}

// endSimulated ends what still holds a simulated GPU: the cluster would count
// it as one of those that the lab has now.
func (s *Service) endSimulated(ctx context.Context) {
	list, err := s.rows.active(ctx)
	for _, l := range list {
		if l.Simulated {
			err = errors.Join(err, s.end(ctx, l.ID, EndInterrupted, "It was ended: its GPU was simulated, and the lab "+
				"simulates none any more."))
		}
	}
	if err != nil && ctx.Err() == nil {
		s.log.Error("notebooks with simulated GPUs could not be ended", "error", err)
	}
}

// Reconnect makes the hub send its routes, as at gpulab's own start: call it
// when the way between the two has changed. It returns once they have come, or
// when ctx ends.
func (s *Service) Reconnect(ctx context.Context) {
	s.connected.Store(false)
	for {
		err := s.cfg.Servers.CheckProxy(ctx)
		if err == nil {
			s.connected.Store(true)
			return
		}
		s.log.Debug("hub not ready to send its routes", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(s.patience.restoreRoute):
		}
	}
}

// Connected reports whether hub and gpulab reach each other, as far as the last
// Reconnect has found out.
func (s *Service) Connected() bool { return s.connected.Load() }

// pass looks at every active launch once and says when to look again.
func (s *Service) pass(ctx context.Context) time.Duration {
	list, err := s.rows.active(ctx)
	if err != nil {
		// Without rows nothing is known: no pod may be called an orphan now.
		if ctx.Err() == nil {
			s.log.Error("launches cannot be read", "error", err)
		}
		return s.patience.idle
	}
	s.forget(list)
	if !s.cfg.Cluster.Synced() {
		s.explainWait(list, "The lab's cluster is not answering yet.")
		s.tell(list)
		return s.patience.busy
	}
	// Before the room: a pod that gets its place between the two looks counts
	// twice then, for a moment, rather than not at all.
	reserved := s.reserved(list)
	room := s.room()
	s.endStrays(ctx, list)
	s.stopServices(ctx, list)
	inLine := s.letIn(ctx, list)
	s.keepLine(ctx, inLine, room, reserved)
	s.noteKept(&room)
	next := s.patience.idle
	if len(inLine) < len(list) {
		next = s.patience.waiting
	}
	var waiting []Launch
	for _, l := range inLine {
		switch l.State {
		case Waiting:
			waiting = append(waiting, l)
			next = min(next, s.patience.waiting)
		case Starting, Stopping:
			s.step(ctx, l)
			next = s.patience.busy
		case Running:
			s.step(ctx, l)
		}
	}
	if reason := s.hold(); reason != "" {
		s.explainWait(waiting, reason)
	} else if s.admitWaiting(ctx, room, reserved, inLine, waiting) {
		next = 0
	}
	s.giveWay(ctx, list)
	s.removeOrphans(ctx, list)
	s.tell(list)
	return next
}

// forget drops what is known of launches that have ended.
func (s *Service) forget(list []Launch) {
	active := make(map[int64]bool, len(list))
	for _, l := range list {
		active[l.ID] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, t := range s.tracks {
		if !active[id] && !t.busy {
			delete(s.tracks, id)
		}
	}
}

func (s *Service) explainWait(list []Launch, reason string) {
	for _, l := range list {
		if l.State == Waiting {
			s.with(l.ID, func(t *track) {
				t.begin(StepQueue, l.Requested)
				t.reason = reason
			})
		}
	}
}

// hold says why nothing that waits can start now.
func (s *Service) hold() string {
	if s.cfg.Hold != nil {
		if why := s.cfg.Hold(); why != "" {
			return why
		}
	}
	return s.closed()
}

func (s *Service) closed() string {
	if s.cfg.Closed == nil {
		return ""
	}
	return s.cfg.Closed()
}

// tell notifies subscribers when what they would see has changed.
func (s *Service) tell(list []Launch) {
	var b strings.Builder
	for _, l := range list {
		l = s.decorate(l)
		fmt.Fprintf(&b, "%d %s %s %d %v", l.ID, l.State, l.Reason, l.Position, l.GPUUUIDs)
		if l.Service != nil {
			b.WriteString(string(l.Service.Health))
		}
		for _, st := range l.Detail {
			b.WriteString(st.State)
		}
	}
	s.mu.Lock()
	changed := s.shown != b.String()
	s.shown = b.String()
	s.mu.Unlock()
	if changed {
		s.notify()
	}
}

// with changes the track of a launch under the lock.
func (s *Service) with(id int64, change func(*track)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tracks[id]
	if t == nil {
		t = &track{}
		s.tracks[id] = t
	}
	change(t)
}

// look returns a copy of the track.
func (s *Service) look(id int64) track {
	var t track
	s.with(id, func(p *track) {
		t = *p
		t.steps = maps.Clone(p.steps)
		for name, step := range t.steps {
			same := *step
			t.steps[name] = &same
		}
	})
	return t
}

// admitWaiting lets waiting launches start whose turn it is, as far as there is
// room, and tells the others why they wait. It reports whether any was admitted.
func (s *Service) admitWaiting(ctx context.Context, room Room, reserved []Need, all, waiting []Launch) bool {
	if len(waiting) == 0 {
		return false
	}
	waiting = slices.DeleteFunc(slices.Clone(waiting), func(l Launch) bool {
		return s.profileGone(ctx, l) || s.blocked(l)
	})
	since := s.keptSince()
	slices.SortStableFunc(waiting, func(a, b Launch) int { return cmp.Compare(since(a.ID), since(b.ID)) })
	queue := make([]candidate, len(waiting))
	for i, l := range waiting {
		queue[i].need = s.need(l)
		if l.GPUs > 0 {
			queue[i].granted = s.cfg.Line.Standing(l.ID).Admitted
			queue[i].need.Granted, _ = s.granted(l, room)
			queue[i].kept = s.keptFor(l.ID)
		}
	}
	behind, admitted, starting := 0, false, s.starting(all)
	expected := s.expectations(ctx, room, reserved, all)
	for i, v := range admit(room, reserved, queue) {
		l := waiting[i]
		if v.admit && (s.cfg.StartsAtOnce == 0 || starting < s.cfg.StartsAtOnce) {
			if l.GPUs > 0 && s.outgrown(ctx, l) {
				continue
			}
			admitted = s.start(ctx, l) || admitted
			starting++
			continue
		}
		var position int
		switch {
		case v.never:
		case v.inLine():
			position = s.cfg.Line.Standing(l.ID).Position
		case l.GPUs == 0:
			behind++
			position = behind
		}
		s.with(l.ID, func(t *track) {
			t.begin(StepQueue, l.Requested)
			t.never, t.holders, t.position, t.expected = v.never, room.Holders, position, time.Time{}
			if v.inLine() && !t.housed && t.tries > 0 {
				return // what keeps it from the line is said already
			}
			images, all := s.withoutImage(v.need, room)
			t.reason = join(join(waitWords(v, room, position), s.closedTo(v.need, room)), images)
			if !v.never {
				t.reason = join(t.reason, room.passedOver(v.need))
			}
			switch {
			case all && !v.never:
				t.reason = images + " It starts when that is there."
			case v.admit:
				t.reason = "Several notebooks are starting at this moment; this one is among the next."
			case v.inLine() && !v.never && room.opens(v.need) && s.cfg.Line.Trouble() != "":
				t.reason = s.cfg.Line.Trouble()
			case (v.inLine() && position > 0 || v.kept.Machine != "" && v.short == shortGPU) && !expected[l.ID].IsZero():
				t.expected = expected[l.ID]
				t.reason += " " + expectedWords(t.expected.Sub(s.now()))
			}
		})
	}
	return admitted
}

// startTime is how long a start is taken to keep the machine busy. One that
// takes longer waits for something else, such as an image.
const startTime = 15 * time.Second

// starting counts the launches that begin just now.
func (s *Service) starting(all []Launch) int {
	n := 0
	for i := range all {
		if all[i].State == Starting && s.now().Sub(all[i].Started) < startTime {
			n++
		}
	}
	return n
}

// profileGone ends a launch that waits for what the lab does not offer any more.
func (s *Service) profileGone(ctx context.Context, l Launch) bool {
	if _, ok := s.profile(l.Profile); ok {
		return false
	}
	s.endWaiting(ctx, l, EndFailed, "The lab does not offer this kind of notebook any more. Launch another one.")
	return true
}

// start moves a launch from waiting to starting.
func (s *Service) start(ctx context.Context, l Launch) bool {
	l.State, l.Started, l.Reason = Starting, s.now(), ""
	l.Simulated = s.cfg.Simulated && l.GPUs > 0
	err := s.rows.move(ctx, Waiting, l)
	if err != nil {
		if !errors.Is(err, errMoved) {
			s.log.Error("a launch could not be admitted", "launch", l.ID, "error", err)
		}
		return false
	}
	s.with(l.ID, func(t *track) {
		t.begin(StepQueue, l.Requested)
		t.begin(StepNamespace, l.Started)
		t.clear()
	})
	return true
}

// need is what a launch takes. A profile that is gone from the configuration
// still counts with the GPUs the launch asked for.
func (s *Service) need(l Launch) Need {
	p, ok := s.profile(l.Profile)
	if !ok {
		p = Profile{Slug: l.Profile}
	}
	p.GPUs = l.GPUs
	n := s.needOf(p)
	if l.Job != nil && l.Job.Environment != "" && s.cfg.LackingEnvironment != nil {
		n.Thing = "image or environment"
		if len(n.Lacking)+len(n.Unfit) == 0 {
			n.Thing = "environment"
		}
		n.Lacking = slices.Concat(n.Lacking, s.cfg.LackingEnvironment(l.Job.Environment))
		if n.GPUs > 0 {
			n.Unfit = slices.Concat(n.Unfit, s.cfg.UnfitForEnvironment(l.Job.Environment))
		}
	}
	if s.cfg.Barred != nil && l.UserID != 0 {
		n.Barred = s.cfg.Barred(l.UserID)
	}
	return n
}

// needOf is what a notebook of a profile takes, and where.
func (s *Service) needOf(p Profile) Need {
	n := p.need()
	if s.cfg.OnlyOn != nil {
		n.Only = s.cfg.OnlyOn(p.Slug)
	}
	n.NoGPUs = n.GPUs == 0 && s.placing().CPU == CPURequire
	if s.cfg.Lacking != nil {
		n.Lacking = s.cfg.Lacking(p.Image)
	}
	n.Unfit = slices.Sorted(maps.Keys(s.unfit(p)))
	return n
}

// reserved is what admitted launches will take that the cluster does not count yet.
func (s *Service) reserved(all []Launch) []Need {
	var list []Need
	room := sync.OnceValue(s.room) // for the kinds of its GPUs
	for _, l := range all {
		if l.State != Starting {
			continue
		}
		if p, ok := s.podOf(l); !ok || !p.Scheduled {
			need := s.need(l)
			need.Granted, _ = s.granted(l, room())
			if need.Only == "" && len(l.Placement.Prefer) == 1 {
				need.Only = l.Placement.Prefer[0]
			}
			list = append(list, need)
		}
	}
	return list
}

// podOf is the pod of this very launch. A pod that does not name its launch
// belongs to it when it is not older than the launch's start.
func (s *Service) podOf(l Launch) (PodInfo, bool) {
	var best PodInfo
	found := false
	for _, p := range s.cfg.Cluster.Notebooks() {
		if owns(l, p) && (!found || p.supersedes(best)) {
			best, found = p, true
		}
	}
	return best, found
}

func owns(l Launch, p PodInfo) bool {
	if p.Handle != l.Handle || p.Server != l.Name {
		return false
	}
	if p.LaunchID != 0 {
		return p.LaunchID == l.ID
	}
	// Kubernetes rounds creation down to the second.
	return !p.Created.Before(l.Started.Truncate(time.Second))
}

// earlierPod is a pod under the launch's name that belongs to an earlier one.
func (s *Service) earlierPod(l Launch) (PodInfo, bool) {
	for _, p := range s.cfg.Cluster.Notebooks() {
		if p.Handle == l.Handle && p.Server == l.Name && !owns(l, p) {
			return p, true
		}
	}
	return PodInfo{}, false
}

// step runs the next step of a launch on its own goroutine, unless one runs or
// it is too early to try again: a hub that hangs must hold up one launch only.
func (s *Service) step(ctx context.Context, l Launch) {
	now, run := s.now(), false
	s.with(l.ID, func(t *track) {
		if !t.busy && !now.Before(t.retryAt) {
			t.busy, run = true, true
		}
	})
	if !run {
		return
	}
	s.steps.Go(func() {
		before := s.fingerprint(l.ID)
		changed := s.advance(ctx, l)
		s.with(l.ID, func(t *track) { t.busy = false })
		if changed || s.fingerprint(l.ID) != before {
			s.again()
		}
	})
}

func (s *Service) fingerprint(id int64) string {
	t := s.look(id)
	return t.reason + t.active() + string(t.health) + fmt.Sprint(t.housed, t.prepared, t.asked.IsZero())
}

// advance takes one step and reports whether the row changed.
func (s *Service) advance(ctx context.Context, l Launch) bool {
	next, err := l, error(nil)
	switch l.State {
	case Waiting:
		err = s.house(ctx, l)
	case Starting:
		next, err = s.advanceStart(ctx, l)
	case Running:
		next = s.advanceRunning(ctx, l)
	case Stopping:
		next = s.advanceStop(ctx, l)
	}
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		next = s.startTrouble(l, err)
	}
	if sameRow(next, l) {
		return false
	}
	err = s.rows.move(ctx, l.State, next)
	if err != nil && !errors.Is(err, errMoved) {
		s.log.Error("a launch could not be updated", "launch", l.ID, "error", err)
		s.with(l.ID, func(t *track) { t.hold(s.now(), s.patience.retry, "") })
		return false
	}
	return true
}

func sameRow(a, b Launch) bool {
	return a.State == b.State && a.Reason == b.Reason && a.Node == b.Node && a.Pod == b.Pod &&
		strings.Join(a.GPUUUIDs, " ") == strings.Join(b.GPUUUIDs, " ")
}

// failed moves a launch towards its end with a reason; what is left of it in
// hub and cluster is cleared on the way.
func failed(l Launch, code, reason string) Launch {
	l.State, l.EndCode, l.Reason = Stopping, code, reason
	return l
}

// advanceStart asks for the server once everything it needs is there, then watches it come up.
func (s *Service) advanceStart(ctx context.Context, l Launch) (Launch, error) {
	if l.Job != nil {
		return s.advanceJobStart(ctx, l)
	}
	t := s.look(l.ID)
	if p, ok := s.earlierPod(l); ok {
		return l, s.clearEarlier(ctx, l, p)
	}
	if p, ok := s.podOf(l); ok && (p.Finished || p.Exited) && s.beforeBoot(p.Created, p.Node) {
		// The machine went down while it was coming up: it comes up again.
		l.Pod, l.Node = "", ""
		return l, s.clearEarlier(ctx, l, p)
	}
	if !t.prepared {
		if err := s.prepare(ctx, l); err != nil {
			return l, err
		}
	}
	if t.asked.IsZero() {
		if reason := s.hold(); reason != "" {
			s.with(l.ID, func(t *track) { t.reason = reason })
			return l, nil
		}
		if err := s.ask(ctx, l); err != nil {
			return l, err
		}
	}
	return s.observe(ctx, l)
}

func (s *Service) clearEarlier(ctx context.Context, l Launch, p PodInfo) error {
	s.with(l.ID, func(t *track) { t.reason = "An earlier notebook of this name is still going away." })
	_, err := s.cfg.Servers.StopServer(ctx, l.Handle, l.Name)
	if err == nil && p.Terminating {
		return nil
	}
	return errors.Join(err, s.cfg.Cluster.DeletePod(ctx, p, podDeleteGrace))
}

func (s *Service) prepare(ctx context.Context, l Launch) error {
	s.with(l.ID, func(t *track) { t.begin(StepNamespace, s.now()) })
	if err := s.ensurePlace(ctx, l); err != nil {
		return err
	}
	s.with(l.ID, func(t *track) {
		t.prepared = true
		t.clear()
	})
	return nil
}

// ensurePlace makes sure of the owner's namespace and home.
func (s *Service) ensurePlace(ctx context.Context, l Launch) error {
	u, err := s.cfg.People.ByID(ctx, l.UserID)
	if err != nil {
		return fmt.Errorf("find the owner: %w", err)
	}
	if u.Suspended {
		return errSuspended
	}
	if err := s.cfg.Tenancy.Ensure(ctx, u); err != nil {
		return fmt.Errorf("prepare the space of %s: %w", l.Handle, err)
	}
	return nil
}

var (
	errSuspended = errors.New("the account is suspended")
	errNoGrant   = errors.New("the line has not said yet which GPU it gets")
)

func (s *Service) ask(ctx context.Context, l Launch) error {
	s.with(l.ID, func(t *track) { t.begin(StepImage, s.now()) })
	if err := s.cfg.Servers.EnsureUser(ctx, l.Handle); err != nil {
		return err
	}
	options, err := s.options(ctx, l)
	if err != nil {
		return err
	}
	if err := s.cfg.Servers.StartServer(ctx, l.Handle, l.Name, l.Title, options); err != nil {
		return err
	}
	s.with(l.ID, func(t *track) {
		t.asked = s.now()
		t.clear()
	})
	return nil
}

// options are what a launch gets besides its profile. The hub takes nothing but
// these: what a notebook gets is its profile's matter.
func (s *Service) options(ctx context.Context, l Launch) (map[string]any, error) {
	u, err := s.cfg.People.ByID(ctx, l.UserID)
	if err != nil {
		return nil, fmt.Errorf("find the owner: %w", err)
	}
	env, threads := s.podEnv(ctx, l, u)
	options := map[string]any{
		"profile": l.Profile, "launch": fmt.Sprint(l.ID), "uid": u.UID, "env": env, "threads": threads,
	}
	if s.cfg.Options != nil {
		more, err := s.cfg.Options(ctx, u, l.ID)
		if err != nil {
			return nil, fmt.Errorf("prepare the folders of %s: %w", l.Handle, err)
		}
		maps.Copy(options, more)
	}
	return options, s.place(ctx, l, options)
}

// startTrouble decides whether an error of a start is worth another try.
func (s *Service) startTrouble(l Launch, err error) Launch {
	var hub *HubError
	isHub := errors.As(err, &hub)
	now := s.now()
	switch {
	case errors.Is(err, errSuspended):
		return failed(l, EndFailed, "The account is suspended.")
	case isHub && hub.Status == http.StatusTooManyRequests:
		s.with(l.ID, func(t *track) {
			t.hold(now, s.patience.retry, "JupyterHub is starting many notebooks at once; this one is next to be tried.")
			t.retryAt = now.Add(min(max(hub.RetryAfter, s.patience.retry), time.Minute))
		})
	case isHub && hub.Status == http.StatusInternalServerError && s.look(l.ID).tries+1 >= maxServerFault,
		isHub && hub.Status < 500 && !strings.Contains(hub.Message, "pending"):
		return failed(l, EndFailed, "JupyterHub refused to start it: "+detail(hub.Message, hub.Error()))
	case isHub && strings.Contains(hub.Message, "pending"):
		s.with(l.ID, func(t *track) {
			t.hold(now, s.patience.retry, "An earlier notebook of this name is still going away.")
		})
	case errors.Is(err, ErrHubDown), isHub:
		s.with(l.ID, func(t *track) { t.hold(now, s.patience.retry, "JupyterHub does not answer; gpulab keeps trying.") })
	case (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) && s.look(l.ID).tries+1 >= maxRefusals:
		return failed(l, EndFailed, "The cluster refused its pod: "+err.Error())
	default:
		s.log.Warn("a launch cannot go on yet", "launch", l.ID, "error", err)
		s.with(l.ID, func(t *track) { t.hold(now, s.patience.retry, "It cannot go on yet and is tried again: "+err.Error()) })
	}
	return l
}

// observe follows a server that the hub was asked for.
func (s *Service) observe(ctx context.Context, l Launch) (Launch, error) {
	now := s.now()
	p, found := s.podOf(l)
	if found {
		l.Pod, l.Node = p.Name, p.Node
		if why := startFailure(p, now, s.patience.unscheduled); why != "" {
			return failed(l, startEnd(p), why), nil
		}
		s.with(l.ID, func(t *track) { t.begin(stepOf(p), now) })
	}
	if found && p.Reachable() && s.cfg.Routes.HasServer(l.Handle, l.Name) {
		s.with(l.ID, func(t *track) {
			t.finish(now)
			t.clear()
		})
		l.State, l.Ready, l.Reason = Running, now, ""
		l.GPUUUIDs = s.devices(p)
		return l, nil
	}
	t := s.look(l.ID)
	switch {
	case found && !p.Started.IsZero() && now.Sub(p.Started) > s.patience.answer:
		return failed(l, EndFailed, fmt.Sprintf("Its program runs but did not answer within %s.",
			units.Lasting(s.patience.answer))), nil
	case now.Sub(t.asked) > s.patience.start:
		return failed(l, EndFailed, fmt.Sprintf("It did not start within %s.", units.Lasting(s.patience.start))), nil
	}
	if found && now.Sub(p.Created) > s.patience.slow && !p.Ready {
		s.explainSlow(ctx, l, p)
	}
	return s.askHow(ctx, l, t)
}

// startEnd is the end code of a start whose pod will not come up: a program that
// ends before it ever answered has failed, whatever its exit code.
func startEnd(p PodInfo) string {
	if p.Finished || p.Exited {
		if code, _ := endWords(p); code != EndExited {
			return code
		}
	}
	return EndFailed
}

// stepOf is the step a coming-up pod is in.
func stepOf(p PodInfo) string {
	switch {
	case !p.Started.IsZero():
		return StepServer
	case p.ImageReady:
		return StepPod
	default:
		return StepImage
	}
}

// explainSlow shows the cluster's latest complaint about a pod that takes long.
func (s *Service) explainSlow(ctx context.Context, l Launch, p PodInfo) {
	now := s.now()
	if now.Sub(s.look(l.ID).warned) < s.patience.slow {
		return
	}
	warnings, err := s.cfg.Cluster.Warnings(ctx, p)
	s.with(l.ID, func(t *track) {
		t.warned = now
		if err == nil && len(warnings) > 0 {
			t.reason = warningWords(warnings[0])
		}
	})
}

// askHow asks the hub now and then whether the start is still under way there.
func (s *Service) askHow(ctx context.Context, l Launch, t track) (Launch, error) {
	now := s.now()
	if now.Sub(t.asked) < s.patience.look || now.Sub(t.looked) < s.patience.look {
		return l, nil
	}
	server, found, err := s.cfg.Servers.Server(ctx, l.Handle, l.Name)
	if err != nil {
		return l, err
	}
	s.with(l.ID, func(t *track) {
		t.looked, t.tries = now, 0
	})
	if found && server.Ready {
		// The route is what is missing: the hub sends it again when asked.
		return l, s.cfg.Servers.CheckProxy(ctx)
	}
	if found && server.Pending != "" {
		return l, nil
	}
	if !found {
		// The hub lost its memory, as with a new database: ask it once more.
		s.with(l.ID, func(t *track) { t.asked = time.Time{} })
		return l, nil
	}
	message, err := s.cfg.Servers.FailureMessage(ctx, l.Handle, l.Name)
	if err != nil {
		return l, err
	}
	if p, ok := s.podOf(l); ok && (p.Finished || p.Exited) {
		_, words := endWords(p)
		return failed(l, startEnd(p), words), nil
	}
	why := "JupyterHub could not start it: " + detail(message, "it gave no reason; see gpulab logs hub")
	if l.Pod != "" || t.givenUp+1 >= maxGivenUp {
		return failed(l, EndFailed, why), nil
	}
	s.with(l.ID, func(t *track) {
		t.asked, t.retryAt, t.reason = time.Time{}, now.Add(s.patience.retry<<t.givenUp), "It is tried again. "+why
		t.givenUp++
	})
	return l, nil
}

// advanceRunning watches a running notebook's pod.
func (s *Service) advanceRunning(ctx context.Context, l Launch) Launch {
	now := s.now()
	p, found := s.podOf(l)
	if !found {
		return s.vanished(l, now)
	}
	l.Pod, l.Node = p.Name, p.Node
	switch {
	case l.goesOn(p):
	case (p.Finished || p.Exited && !p.Ready) && l.Job != nil:
		return s.jobEnded(ctx, l, p)
	case p.Finished, p.Exited && !p.Ready:
		code, words := endWords(s.evicted(ctx, p))
		if p.StatusReason == "UnexpectedAdmissionError" {
			// A machine takes what ran on it in again when it starts, at times
			// before it knows its GPUs.
			code, words = EndInterrupted, "It was interrupted: its machine started again."
		}
		if (code == EndExited || code == EndInterrupted) && s.beforeBoot(p.Created, p.Node) {
			return s.interruptedByRestart(l)
		}
		return failed(l, code, words)
	case p.Terminating:
		return failed(l, EndInterrupted, "It was interrupted: its pod was deleted from outside gpulab.")
	}
	if gpus := s.devices(p); len(gpus) > 0 {
		l.GPUUUIDs = gpus
	}
	reason := s.memoryWords(l, p, now)
	if l.Service != nil {
		_, words := s.health(l, p, now)
		reason = join(words, reason)
	} else if !p.Ready {
		reason = "Its machine " + s.called(p.Node) + " does not answer; it goes on there if the machine runs."
	}
	s.with(l.ID, func(t *track) {
		t.clear()
		t.missing, t.gpus, t.reason = time.Time{}, l.GPUUUIDs, reason
		if t.steps == nil {
			t.finish(now)
		}
	})
	if l.Job == nil {
		s.checkRoute(ctx, l, p, now)
	}
	return l
}

// evicted adds to a pod that ended without a reason that its machine ended it:
// its program may have exited before the machine has written that down, but the
// event comes first.
func (s *Service) evicted(ctx context.Context, p PodInfo) PodInfo {
	if p.StatusReason != "" {
		return p
	}
	warnings, err := s.cfg.Cluster.Warnings(ctx, p)
	if err != nil {
		return p // what the pod says itself has to do
	}
	for _, w := range warnings {
		if why, ok := strings.CutPrefix(w, "Evicted: "); ok {
			p.StatusReason, p.StatusMessage = "Evicted", why
			break
		}
	}
	return p
}

// memoryWords tells for a while when a program in a notebook was ended because
// memory ran out: inside, it only looks as if it had died.
func (s *Service) memoryWords(l Launch, p PodInfo, now time.Time) (words string) {
	if s.cfg.MemoryKills == nil {
		return ""
	}
	kills, known := s.cfg.MemoryKills(p)
	if !known {
		return ""
	}
	s.with(l.ID, func(t *track) {
		if kills > t.kills {
			t.killed = now
		}
		t.kills = kills
		if !t.killed.IsZero() && now.Sub(t.killed) < s.patience.memory {
			words = memoryRanOut(p)
		}
	})
	return words
}

// vanished ends a running launch whose pod has been gone for a moment.
func (s *Service) vanished(l Launch, now time.Time) Launch {
	gone := false
	s.with(l.ID, func(t *track) {
		if t.missing.IsZero() {
			t.missing = now
		}
		gone = now.Sub(t.missing) >= s.patience.missing
		t.reason = "Its pod is gone; looking again."
		t.retryAt = now.Add(s.patience.missing / 5)
	})
	if !gone {
		time.AfterFunc(s.patience.missing, s.again)
		return l
	}
	if s.beforeBoot(l.Ready, l.Node) {
		return s.interruptedByRestart(l)
	}
	return failed(l, EndInterrupted, "It was interrupted: its pod is gone, because its machine failed or somebody "+
		"deleted it.")
}

// beforeBoot tells whether something that runs on a machine is from before its last
// start, which is known of the head only.
func (s *Service) beforeBoot(at time.Time, machine string) bool {
	return machine == s.cfg.Head && !at.IsZero() && at.Before(s.cfg.Booted)
}

// interruptedByRestart ends a launch that was running when its machine went
// down, or lost its power.
func (s *Service) interruptedByRestart(l Launch) Launch {
	return failed(l, EndInterrupted, "It was interrupted by a restart of the machine at "+
		s.cfg.Booted.Local().Format("15:04 on Mon 2 Jan")+
		". What its programs had in memory is lost; what is in the home folder is still there.")
}

// checkRoute asks the hub for its routes when a running notebook's is missing.
func (s *Service) checkRoute(ctx context.Context, l Launch, p PodInfo, now time.Time) {
	if !p.Reachable() || s.cfg.Routes.HasServer(l.Handle, l.Name) {
		s.with(l.ID, func(t *track) { t.noRoute = time.Time{} })
		return
	}
	ask := false
	s.with(l.ID, func(t *track) {
		t.reason = "JupyterHub has not announced it again yet."
		switch {
		case t.noRoute.IsZero():
			t.noRoute = now
		case now.Sub(t.noRoute) > s.patience.noRoute:
			t.noRoute, ask = now, true
		}
	})
	if !ask {
		return
	}
	if err := s.cfg.Servers.CheckProxy(ctx); err != nil {
		s.log.Warn("the hub was asked for a missing route", "launch", l.ID, "error", err)
	}
}

// advanceStop ends a server through the hub and makes sure that its pod is gone:
// only then is a GPU free. Where the hub cannot do it, gpulab deletes the pod.
func (s *Service) advanceStop(ctx context.Context, l Launch) Launch {
	now := s.now()
	var since, asked time.Time
	s.with(l.ID, func(t *track) {
		if t.stopping.IsZero() {
			t.clear()
			t.stopping = now
		}
		since, asked = t.stopping, t.asked
	})
	var done bool
	var hubErr, podErr error
	if l.Job == nil {
		done, hubErr = s.cfg.Servers.StopServer(ctx, l.Handle, l.Name)
	}
	pods := s.podsOf(l)
	if l.Job != nil {
		// A pod that was made just now may not be seen yet.
		done, podErr = len(pods) > 0 || now.Sub(asked) > s.patience.look, s.deletePods(ctx, pods)
	} else if hubErr != nil || now.Sub(since) > s.patience.hubStop {
		podErr = s.deletePods(ctx, pods)
	}
	if done && hubErr == nil && len(pods) == 0 {
		return s.over(l, now)
	}
	s.with(l.ID, func(t *track) {
		if hubErr != nil || podErr != nil {
			t.hold(now, s.patience.retry, "")
		}
		t.reason = s.stopWords(l, hubErr, podErr, pods, now.Sub(since) > s.patience.stuckPod)
	})
	return l
}

// podsOf are all pods under the launch's name but those of a later launch.
func (s *Service) podsOf(l Launch) []PodInfo {
	var list []PodInfo
	for _, p := range s.cfg.Cluster.Notebooks() {
		if p.Handle == l.Handle && p.Server == l.Name && p.LaunchID <= l.ID {
			list = append(list, p)
		}
	}
	return list
}

func (s *Service) deletePods(ctx context.Context, pods []PodInfo) error {
	var errs []error
	for _, p := range pods {
		if !p.Terminating {
			grace := podDeleteGrace
			if p.Job {
				grace = jobGrace
			}
			errs = append(errs, s.cfg.Cluster.DeletePod(ctx, p, grace))
		}
	}
	return errors.Join(errs...)
}

func ended(l Launch, now time.Time) Launch {
	l.State, l.Ended = Ended, now
	if l.EndCode == "" {
		l.EndCode = EndStopped
	}
	// Rows compare by what people see: an end without words would look unchanged.
	if l.Reason == "" {
		l.Reason = "It was stopped."
	}
	return l
}

func (s *Service) stopWords(l Launch, hubErr, podErr error, pods []PodInfo, stuck bool) string {
	switch {
	case hubErr != nil && len(pods) == 0:
		return "Its GPU and memory are free already; JupyterHub does not answer, so its entry there stays a while."
	case podErr != nil:
		return "The cluster does not answer; gpulab keeps trying to stop it."
	case hubErr != nil:
		return "JupyterHub does not answer; gpulab is stopping the pod itself."
	case len(pods) > 0 && stuck:
		return "Machine " + s.called(pods[0].Node) + " has not confirmed the end of its pod yet."
	case l.EndCode == EndPreempted:
		return "" // why is in the row
	default:
		return "Stopping."
	}
}

func (s *Service) devices(p PodInfo) []string {
	if s.cfg.Devices == nil || p.GPUs == 0 {
		return nil
	}
	return s.cfg.Devices(p.UID)
}

// removeOrphans deletes notebook pods that no launch has known for a while:
// they hold GPUs and nobody can reach them.
func (s *Service) removeOrphans(ctx context.Context, active []Launch) {
	known := make(map[podKey]Launch, len(active))
	for _, l := range active {
		known[podKey{l.Handle, l.Name}] = l
	}
	now := s.now()
	var overdue []PodInfo
	s.mu.Lock()
	seen := map[string]time.Time{}
	for _, p := range s.cfg.Cluster.Notebooks() {
		l, has := known[podKey{p.Handle, p.Server}]
		// A notebook's start clears what an earlier one of its name has left; a job's does not.
		if has && (l.Job == nil || owns(l, p)) || p.Terminating {
			continue
		}
		first, ok := s.orphans[p.UID]
		if !ok {
			first = now
		}
		if now.Sub(first) >= s.patience.orphan {
			overdue = append(overdue, p)
			first = now
		}
		seen[p.UID] = first
	}
	s.orphans = seen
	s.mu.Unlock()
	for _, p := range overdue {
		s.steps.Go(func() { s.deleteOrphan(ctx, p) })
	}
}

func (s *Service) deleteOrphan(ctx context.Context, p PodInfo) {
	s.log.Warn("deleting a notebook pod that belongs to no launch", "pod", p.Namespace+"/"+p.Name)
	if err := s.cfg.Cluster.DeletePod(ctx, p, podDeleteGrace); err != nil {
		s.log.Error("an orphaned pod could not be deleted", "error", err)
	}
}
