package apitest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

// mostLaunches is how many launches are kept: a test that launches thousands must not become slow.
const mostLaunches = 200

// Notebooks keeps launches in memory, and tells subscribers when a test changes them. A new one waits.
type Notebooks struct {
	mu       sync.Mutex
	launches []notebooks.Launch
	last     int64
	said     string // by every job
	changed  []chan struct{}
}

// Profiles are those of a new lab.
func (n *Notebooks) Profiles() []notebooks.Profile { return notebooks.DefaultProfiles() }

// Obstacle knows of none.
func (n *Notebooks) Obstacle(string) string { return "" }

// Unfit knows of none.
func (n *Notebooks) Unfit(string) []string { return nil }

// Launch notes a request as the real service does, for a lab in which nothing is free.
func (n *Notebooks) Launch(_ context.Context, u users.User, r notebooks.Request) (notebooks.Launch, error) {
	i := slices.IndexFunc(n.Profiles(), func(p notebooks.Profile) bool { return p.Slug == r.Profile || r.Profile == "" })
	if i < 0 {
		return notebooks.Launch{}, notebooks.ErrProfileUnknown
	}
	for _, c := range r.Title {
		if c < ' ' || c == 0x7f || c == 0x202e {
			return notebooks.Launch{}, notebooks.ErrTitleInvalid
		}
	}
	profile := n.Profiles()[i]
	l := notebooks.Launch{UserID: u.ID, Handle: u.Handle, Name: profile.Slug, Title: r.Title, Profile: profile.Slug,
		GPUs:  profile.GPUs,
		State: notebooks.Waiting, Reason: "Both GPUs are in use. It is next in line.", Position: 1,
		Requested: time.Now().UTC(),
		URL:       "/user/" + u.Handle + "/" + profile.Slug + "/",
		Holders:   []notebooks.Holder{{Handle: "ada", Pod: "jupyter-ada", GPUs: 1, Since: time.Now().UTC()}},
		Detail: []notebooks.Step{{Name: notebooks.StepQueue, State: "active", Text: "Waiting for a GPU."},
			{Name: notebooks.StepServer, State: "waiting"}}}
	if l.Title == "" {
		l.Title = profile.Title
	}
	n.change(func() {
		for k := range n.launches {
			if n.launches[k].ID == r.Instead {
				n.launches[k].State, n.launches[k].EndCode, n.launches[k].Ended = notebooks.Ended, notebooks.EndCancelled,
					time.Now().UTC()
			}
		}
		n.last++
		l.ID = n.last
		n.launches = append(n.launches, l)
		n.launches = n.launches[max(0, len(n.launches)-mostLaunches):]
	})
	return l, nil
}

// Move changes a launch and tells whoever waits for it; false where there is none such.
func (n *Notebooks) Move(id int64, edit func(l *notebooks.Launch)) (found bool) {
	n.change(func() {
		for i := range n.launches {
			if n.launches[i].ID == id {
				edit(&n.launches[i])
				found = true
			}
		}
	})
	return found
}

func (n *Notebooks) change(edit func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	edit()
	for _, c := range n.changed {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (n *Notebooks) filter(keep func(notebooks.Launch) bool) []notebooks.Launch {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := []notebooks.Launch{}
	for _, l := range n.launches {
		if keep(l) {
			list = append(list, l)
		}
	}
	return list
}

// Get finds one launch.
func (n *Notebooks) Get(_ context.Context, id int64) (notebooks.Launch, error) {
	list := n.filter(func(l notebooks.Launch) bool { return l.ID == id })
	if len(list) == 0 {
		return notebooks.Launch{}, notebooks.ErrNotFound
	}
	return list[0], nil
}

// Submit notes a job as the real service does; it waits, and nothing is in its log.
func (n *Notebooks) Submit(_ context.Context, u users.User, r notebooks.JobRequest) (notebooks.Launch, error) {
	if r.Script == "" && len(r.Args) == 0 {
		return notebooks.Launch{}, &notebooks.JobError{Text: "The job has nothing to run."}
	}
	l := notebooks.Launch{UserID: u.ID, Handle: u.Handle, Name: "job", Title: cmp.Or(r.Name, r.File, "job"),
		Profile: "cpu", State: notebooks.Waiting, Reason: "It is next in line.",
		Position: 1, Requested: time.Now().UTC(),
		Job: &notebooks.Job{Limit: cmp.Or(r.Limit, time.Hour), After: r.After, Held: len(r.After) > 0, Errors: r.Errors,
			Mail: r.Mail}}
	if strings.Contains(r.Script, "--partition") {
		l.Job.Notes = []string{"gpulab ignores these options: --partition=gpu."}
	}
	if strings.Contains(r.Script, "--nodes=2") {
		return notebooks.Launch{}, &notebooks.JobError{Text: "Line 1: --nodes=2.\nLine 2: --begin."}
	}
	l.Job.Array = r.Array
	if r.Retries != nil {
		l.Job.Retries = *r.Retries
	}
	if r.GPUs != nil {
		l.GPUs, l.Profile = *r.GPUs, "gpu"
	}
	n.change(func() {
		n.last++
		l.ID = n.last
		l.Job.Output = fmt.Sprintf("jobs/job-%d.log", l.ID)
		n.launches = append(n.launches, l)
		n.launches = n.launches[max(0, len(n.launches)-mostLaunches):]
	})
	return l, nil
}

// Again submits a job of the same name.
func (n *Notebooks) Again(ctx context.Context, u users.User, id int64) (notebooks.Launch, error) {
	l, err := n.Get(ctx, id)
	if err != nil {
		return l, err
	}
	return n.Submit(ctx, u, notebooks.JobRequest{Program: notebooks.Program{Script: "true"}, Name: l.Title})
}

// Tasks are the elements of an array.
func (n *Notebooks) Tasks(_ context.Context, array int64) ([]notebooks.Launch, error) {
	return n.filter(func(l notebooks.Launch) bool { return l.Job != nil && l.Job.ArrayJob == array }), nil
}

// CancelTask cancels an element, as far as it is there.
func (n *Notebooks) CancelTask(ctx context.Context, array notebooks.Launch, task int) error {
	if a, err := notebooks.ParseArray(array.Job.Array); err != nil || !slices.Contains(a.Tasks, task) {
		return notebooks.ErrNotFound
	}
	tasks, err := n.Tasks(ctx, array.ID)
	for i := range tasks {
		if err == nil && tasks[i].Job.ArrayTask == task {
			return n.Cancel(ctx, tasks[i].ID)
		}
	}
	return err
}

// Jobs are somebody's, the newest first.
func (n *Notebooks) Jobs(_ context.Context, userID int64) ([]notebooks.Launch, error) {
	list := n.filter(func(l notebooks.Launch) bool { return l.UserID == userID && l.IsJob() && l.Job.ArrayJob == 0 })
	slices.Reverse(list)
	return list, nil
}

// Serve notes a service as the real one does; it waits.
func (n *Notebooks) Serve(ctx context.Context, u users.User, r notebooks.ServiceRequest) (notebooks.Launch, error) {
	if r.Port < 1024 {
		return notebooks.Launch{}, &notebooks.JobError{Text: "A service needs the port on which its program listens, from " +
			"1024 to 65535."}
	}
	l, err := n.Submit(ctx, u, r.JobRequest)
	if err != nil {
		return l, err
	}
	err = n.edit(l.ID, func(l *notebooks.Launch) {
		l.URL = "/service/" + u.Handle + "/" + l.Name + "/"
		l.Service = &notebooks.WebService{
			Port: r.Port, Door: 8500, Share: r.Share, Restarts: !r.Once,
			StopAt: l.Requested.Add(cmp.Or(r.StopAfter, notebooks.DefaultServiceTime)),
		}
	})
	if err != nil {
		return l, err
	}
	return n.Get(ctx, l.ID)
}

// edit changes a launch.
func (n *Notebooks) edit(id int64, change func(l *notebooks.Launch)) error {
	err := notebooks.ErrNotFound
	n.change(func() {
		for i := range n.launches {
			if n.launches[i].ID == id {
				change(&n.launches[i])
				err = nil
			}
		}
	})
	return err
}

// ServeAgain starts a service of the same name.
func (n *Notebooks) ServeAgain(ctx context.Context, u users.User, id int64) (notebooks.Launch, error) {
	l, err := n.Get(ctx, id)
	if err != nil {
		return l, err
	}
	return n.Serve(ctx,
		u, notebooks.ServiceRequest{JobRequest: notebooks.JobRequest{Program: notebooks.Program{Script: "true"},
			Name: l.Title}, Port: l.Service.Port, Share: l.Service.Share})
}

// Services are somebody's, the newest first.
func (n *Notebooks) Services(_ context.Context, userID int64) ([]notebooks.Launch, error) {
	list := n.filter(func(l notebooks.Launch) bool { return l.UserID == userID && l.IsService() })
	slices.Reverse(list)
	return list, nil
}

// SharedServices are those of others that everybody may see.
func (n *Notebooks) SharedServices(_ context.Context, u users.User) ([]notebooks.Launch, error) {
	return n.filter(func(l notebooks.Launch) bool {
		return l.UserID != u.ID && l.IsService() && l.Active() && l.Service.Share.With == notebooks.ShareLab
	}), nil
}

// ShareService changes who may see a service.
func (n *Notebooks) ShareService(_ context.Context, _ users.User, id int64, share notebooks.Share) error {
	return n.edit(id, func(l *notebooks.Launch) { l.Service.Share = share })
}

// KeepService puts off when it is stopped.
func (n *Notebooks) KeepService(_ context.Context, id int64, stopAfter time.Duration) error {
	return n.edit(id, func(l *notebooks.Launch) { l.Service.StopAt = time.Now().Add(stopAfter) })
}

// RestartService leaves it as it is.
func (n *Notebooks) RestartService(_ context.Context, id int64) error {
	return n.edit(id, func(*notebooks.Launch) {})
}

// Say lets every job say more.
func (n *Notebooks) Say(text string) { n.change(func() { n.said += text }) }

// Log is what jobs have said.
func (n *Notebooks) Log(_ notebooks.Launch, from int64) (notebooks.LogPart, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.said == "" {
		return notebooks.LogPart{From: max(0, from), Next: max(0, from)}, notebooks.ErrNoLog
	}
	if from < 0 {
		from = max(0, int64(len(n.said))+from)
	}
	from = min(from, int64(len(n.said)))
	return notebooks.LogPart{Data: []byte(n.said[from:]), From: from, Next: int64(len(n.said))}, nil
}

// List is somebody's notebooks, the newest first.
func (n *Notebooks) List(_ context.Context, userID int64) ([]notebooks.Launch, error) {
	list := n.filter(func(l notebooks.Launch) bool { return l.UserID == userID && l.Job == nil })
	slices.Reverse(list)
	return list, nil
}

// Active is everybody's launches that have not ended.
func (n *Notebooks) Active(context.Context) ([]notebooks.Launch, error) {
	return n.filter(notebooks.Launch.Active), nil
}

// Stop ends a launch at once.
func (n *Notebooks) Stop(_ context.Context, id int64) error { return n.end(id, notebooks.EndStopped) }

// Cancel ends one that waits.
func (n *Notebooks) Cancel(_ context.Context, id int64) error {
	return n.end(id, notebooks.EndCancelled)
}

func (n *Notebooks) end(id int64, code string) error {
	if !n.Move(id, func(l *notebooks.Launch) {
		l.State, l.EndCode, l.Ended, l.Reason = notebooks.Ended, code, time.Now().UTC(), "It was stopped."
	}) {
		return notebooks.ErrNotFound
	}
	return nil
}

// Subscribe signals changes until ctx ends.
func (n *Notebooks) Subscribe(ctx context.Context) <-chan struct{} {
	c := make(chan struct{}, 1)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed = append(n.changed, c)
	context.AfterFunc(ctx, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.changed = slices.DeleteFunc(n.changed, func(other chan struct{}) bool { return other == c })
	})
	return c
}
