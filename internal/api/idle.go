package api

import (
	"context"
	"time"

	"github.com/gpulab/gpulab/internal/idle"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

// Activity is whether a running notebook is used, and what is about to happen to it.
type Activity struct {
	State     string     `json:"state" enum:"free,warned,stopped" doc:"warned: it is stopped at ends unless it is used or kept"`
	Cause     string     `json:"cause,omitempty" enum:"idle,age,freed" doc:"Why it is warned"`
	Ends      *time.Time `json:"ends,omitempty" doc:"When it is stopped, while it is warned"`
	WantedBy  string     `json:"wantedBy,omitempty" doc:"Who waits for its GPU, while it is warned"`
	MayKeep   bool       `json:"mayKeep,omitempty" doc:"It can be kept once more"`
	KeptUntil *time.Time `json:"keptUntil,omitempty" doc:"Until when it was kept"`
	IdleSince *time.Time `json:"idleSince,omitempty" doc:"When it was used last. Time that nobody could watch, as while the machine slept, is taken out of all of these"`
	GPU       *time.Time `json:"gpu,omitempty" doc:"When its GPUs were seen at work last"`
	CPU       *time.Time `json:"cpu,omitempty" doc:"The same of its processors"`
	Kernel    *time.Time `json:"kernel,omitempty" doc:"The same of its kernels, as it says itself"`
	Terminal  *time.Time `json:"terminal,omitempty" doc:"The same of its terminals, as it says itself"`
	Network   *time.Time `json:"network,omitempty" doc:"The same of its network, without what goes to browsers"`
}

// Reclaim is a notebook that was stopped so that somebody else got its GPU, or because it had run for long enough.
type Reclaim struct {
	ID          int64     `json:"id"`
	At          time.Time `json:"at"`
	Launch      int64     `json:"launch"`
	User        string    `json:"user" doc:"Whose it was"`
	Profile     string    `json:"profile"`
	Node        string    `json:"node,omitempty"`
	GPUs        int       `json:"gpus"`
	Cause       string    `json:"cause" enum:"idle,age,freed" doc:"idle: nobody used it; age: it had run as long as one may; freed: somebody decided so"`
	IdleSeconds int64     `json:"idleSeconds" doc:"For how long nobody had used it"`
	RanSeconds  int64     `json:"ranSeconds"`
	For         string    `json:"for,omitempty" doc:"Who waited for it"`
	ForLaunch   int64     `json:"forLaunch,omitempty"`
	By          string    `json:"by" doc:"system, or whoever decided it"`
}

// ReclaimList is what was taken back, the newest first.
type ReclaimList struct {
	Reclaims []Reclaim `json:"reclaims"`
}

type reclaimsInput struct {
	Days int `query:"days" minimum:"1" maximum:"366" default:"30" doc:"How many days back"`
}

// mostReclaims is how many one answer has at most.
const mostReclaims = 1000

func (s *Server) addIdle() {
	add(s, Operation{Method: "POST", Path: "/notebooks/{id}/keep", ID: "keepNotebook", Need: users.ActionManageNotebooks,
		tag: "notebooks", summary: "Keep a notebook that is about to be stopped because nobody uses it",
		description: "It then stays for a while, and can be kept a few times in a row. What is stopped already cannot be " +
			"kept any more.", also: []int{conflict}}, s.keepNotebook)
	add(s, Operation{Method: "POST", Path: "/notebooks/{id}/free", ID: "freeNotebook", Need: users.ActionManageLab,
		tag: "notebooks", summary: "Stop a notebook that holds a GPU and that nobody uses",
		description: "Files in the home stay. One that is in use is left alone; stopNotebook ends any.",
		also:        []int{conflict}}, s.freeNotebook)
	add(s, Operation{Method: "GET", Path: "/reclaims", ID: "listReclaims", Need: users.ActionSeeUse, tag: "GPUs",
		summary:     "What was taken back from whom, and for whom",
		description: "Of everybody for who may see everybody's use, otherwise of yourself."}, s.listReclaims)
}

// activity is what is known of a launch, nil where nothing is.
func (s *Server) activity(l *notebooks.Launch) *Activity {
	if s.cfg.Idle == nil || l.State != notebooks.Running {
		return nil
	}
	h, ok := s.cfg.Idle.Of(l.ID)
	if !ok {
		return nil
	}
	a := &Activity{
		State: string(h.State), Cause: string(h.Cause), Ends: given(h.Ends), WantedBy: h.WantedBy, MayKeep: h.MayExtend(),
		KeptUntil: given(h.Until),
	}
	if h.GPUs > 0 {
		a.IdleSince = given(h.IdleSince)
		a.GPU, a.CPU, a.Network = given(h.Seen[idle.GPU]), given(h.Seen[idle.CPU]), given(h.Seen[idle.Network])
		a.Kernel, a.Terminal = given(h.Seen[idle.Kernel]), given(h.Seen[idle.Terminal])
	}
	return a
}

// news is the part of it that people wait for; the rest changes all the time.
func (a *Activity) news() *Activity {
	if a == nil {
		return nil
	}
	return &Activity{
		State: a.State, Cause: a.Cause, Ends: a.Ends, WantedBy: a.WantedBy, MayKeep: a.MayKeep, KeptUntil: a.KeptUntil,
	}
}

func (s *Server) keepNotebook(ctx context.Context, c *call, in *IDInput) (*body[Notebook], error) {
	l, err := s.launchOf(ctx, c, in.ID)
	if err != nil {
		return nil, err
	}
	if s.cfg.Idle == nil {
		return nil, idle.ErrNotWarned
	}
	if _, err := s.cfg.Idle.Extend(ctx, l.ID); err != nil {
		return nil, err
	}
	s.audit(ctx, c, "idle.extend", l.Handle, l.Audited())
	return answerWith(s.notebook(ctx, c, &l))
}

func (s *Server) freeNotebook(ctx context.Context, c *call, in *IDInput) (*body[Notebook], error) {
	l, err := s.launchOf(ctx, c, in.ID)
	if err != nil {
		return nil, err
	}
	if s.cfg.Idle == nil {
		return nil, idle.ErrNotIdle
	}
	if _, err := s.cfg.Idle.Free(ctx, l.ID, c.user.Handle); err != nil {
		return nil, err
	}
	s.audit(ctx, c, "idle.free", l.Handle, l.Audited())
	if l, err = s.cfg.Notebooks.Get(ctx, l.ID); err != nil {
		return nil, err
	}
	return answerWith(s.notebook(ctx, c, &l))
}

func (s *Server) listReclaims(ctx context.Context, c *call, in *reclaimsInput) (*body[ReclaimList], error) {
	list := ReclaimList{Reclaims: []Reclaim{}}
	if s.cfg.Idle == nil {
		return answerWith(list)
	}
	whose := c.user.ID
	if c.everybody(users.ActionSeeUse) {
		whose = 0
	}
	found, err := s.cfg.Idle.Reclaims(ctx, whose, time.Now().AddDate(0, 0, -in.Days), mostReclaims)
	if err != nil {
		return nil, err
	}
	for _, r := range found {
		list.Reclaims = append(list.Reclaims, Reclaim{r.ID, r.At, r.Launch, r.User, r.Profile, r.Node, r.GPUs,
			string(r.Cause),
			int64(r.Idle / time.Second), int64(r.Ran / time.Second), r.For, r.ForLaunch, r.By})
	}
	return answerWith(list)
}
