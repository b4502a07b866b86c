package notebooks

import "time"

// track is what the service knows of a launch beyond its row: where a start
// stands, when to try again, what to show. It is rebuilt after a restart.
// Fields are guarded by Service.mu; busy says that a step of the launch runs.
type track struct {
	busy    bool
	retryAt time.Time
	tries   int

	housed   bool      // there is a namespace to wait for a GPU in
	prepared bool      // the person's namespace and home are there
	asked    time.Time // the hub was asked to start it
	looked   time.Time // the hub was last asked how it goes
	givenUp  int       // starts that the hub gave up before there was a pod
	warned   time.Time // the cluster was last asked what is wrong
	missing  time.Time // a running launch's pod was first not there
	noRoute  time.Time // a running launch's route was first not there
	stopping time.Time
	kills    int       // processes that ran into the memory limit
	killed   time.Time // the latest of them was seen

	answered bool   // a service has, since gpulab watches it
	health   Health // of a service that runs

	reason   string // plain words for now, instead of the row's
	gpus     []string
	position int
	expected time.Time
	holders  []Holder
	never    bool
	steps    map[string]*stepTime
}

type stepTime struct{ begun, done time.Time }

// startSteps are the steps of a start with what is said while one is active and once it is done.
var startSteps = []struct{ name, active, done string }{
	{StepQueue, "Waiting for room", "Its turn came"},
	{StepNamespace, "Preparing your space and home folder", "Your space and home folder are there"},
	{StepImage, "Choosing a machine and loading the image", "The image is there"},
	{StepPod, "Starting the container", "The container runs"},
	{StepServer, "Waiting for JupyterLab to answer", "JupyterLab answers"},
}

// begin marks a step as active, and every step before it as done.
func (t *track) begin(name string, now time.Time) {
	if t.steps == nil {
		t.steps = map[string]*stepTime{}
	}
	for _, s := range startSteps {
		st := t.steps[s.name]
		if st == nil {
			st = &stepTime{begun: now}
			t.steps[s.name] = st
		}
		if s.name == name {
			return
		}
		if st.done.IsZero() {
			st.done = now
		}
	}
}

// finish marks every step as done.
func (t *track) finish(now time.Time) {
	last := startSteps[len(startSteps)-1].name
	t.begin(last, now)
	if st := t.steps[last]; st.done.IsZero() {
		st.done = now
	}
}

// active is the step that is under way, "" for none.
func (t *track) active() string {
	for _, s := range startSteps {
		if st := t.steps[s.name]; st != nil && st.done.IsZero() {
			return s.name
		}
	}
	return ""
}

// show puts what is known into the launch.
func (t *track) show(l *Launch, now time.Time) {
	if l.State == Waiting {
		l.Position, l.Holders, l.Never, l.Expected = t.position, t.holders, t.never, t.expected
	}
	if len(t.gpus) > 0 {
		l.GPUUUIDs = t.gpus
	}
	if l.Service != nil && l.State == Running {
		service := *l.Service
		service.Health = t.health
		l.Service = &service
	}
	l.Detail = t.detail(*l, now)
	switch {
	case t.reason != "":
		l.Reason = t.reason
	case l.State == Starting:
		for i, s := range l.Detail {
			if s.State == stepActive {
				l.Reason = startSteps[i].active + "."
			}
		}
	}
}

// States of a step.
const (
	stepWaiting = "waiting"
	stepActive  = "active"
	stepDone    = "done"
	stepFailed  = "failed"
)

func (t *track) detail(l Launch, now time.Time) []Step {
	list := make([]Step, 0, len(startSteps))
	for _, s := range startSteps {
		step := Step{Name: s.name, State: stepWaiting, Text: s.active}
		if st := t.steps[s.name]; st != nil {
			step.State, step.Elapsed = stepActive, now.Sub(st.begun)
			if !st.done.IsZero() {
				step.State, step.Text, step.Elapsed = stepDone, s.done, st.done.Sub(st.begun)
			}
		}
		if step.State == stepActive {
			if t.reason != "" {
				step.Text = t.reason
			}
			if l.State == Stopping && l.EndCode == EndFailed {
				step.State = stepFailed
			}
		}
		list = append(list, step)
	}
	return list
}

// hold puts the launch aside for a while that grows with every try in a row.
func (t *track) hold(now time.Time, first time.Duration, reason string) {
	delay := min(first<<min(t.tries, 4), 15*time.Second)
	t.tries++
	t.retryAt, t.reason = now.Add(delay), reason
}

// clear forgets earlier trouble.
func (t *track) clear() { t.tries, t.retryAt, t.reason = 0, time.Time{}, "" }
