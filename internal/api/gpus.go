package api

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/users"
)

// GPUList is what every GPU of the lab is and does.
type GPUList struct {
	Nodes []gpu.Snapshot `json:"nodes"`
}

// GPUHistory is what one GPU did over time.
type GPUHistory struct {
	UUID   string     `json:"uuid"`
	From   time.Time  `json:"from"`
	To     time.Time  `json:"to"`
	Step   float64    `json:"step" doc:"Seconds that a point stands for"`
	Points []GPUPoint `json:"points" doc:"The oldest first"`
}

// GPUPoint is what a GPU did in one step; what was not read is left out.
type GPUPoint struct {
	Time        time.Time `json:"time" doc:"When the step begins"`
	Use         *float64  `json:"use,omitempty" doc:"Percent of the time, on average"`
	UseMax      *float64  `json:"useMax,omitempty"`
	Memory      *float64  `json:"memory,omitempty" doc:"Bytes, the most"`
	Power       *float64  `json:"power,omitempty" doc:"Watts, on average"`
	PowerMax    *float64  `json:"powerMax,omitempty"`
	Temperature *float64  `json:"temperature,omitempty" doc:"Degrees Celsius, the highest"`
	SMClock     *float64  `json:"smClock,omitempty" doc:"MHz, on average"`
}

// EventList is what happened to a GPU, the newest first.
type EventList struct {
	Events []history.Event `json:"events"`
}

// Lending is how a GPU is lent to notebooks.
type Lending struct {
	Anyway bool `json:"anyway" doc:"Whoever else uses it; otherwise only while nobody outside gpulab does"`
}

// GPUCheck is what a test pod saw.
type GPUCheck struct {
	OK   bool   `json:"ok"`
	Text string `json:"text" doc:"For people"`
}

// spans are the windows of time for which there is history.
var spans = map[string]time.Duration{"10m": 10 * time.Minute, "24h": 24 * time.Hour, "30d": 30 * 24 * time.Hour}

// historyPoints are how many points an answer has at most.
const historyPoints = 600

// GPUInput names a GPU.
type GPUInput struct {
	UUID string `path:"uuid" maxLength:"100" example:"GPU-5f0c1a7e-0000-4000-8000-000000000000"`
}

type historyInput struct {
	GPUInput
	Span string `query:"span" default:"24h" enum:"10m,24h,30d" doc:"How far back"`
}

type lendInput struct {
	GPUInput
	Body Lending
}

func (s *Server) addGPUs() {
	add(s, Operation{Method: "GET", Path: "/gpus", ID: "listGPUs", Need: users.ActionSee, tag: "GPUs",
		summary:     "What every GPU is and does, and who holds it",
		description: "What a GPU does not tell is left out."}, s.listGPUs)
	add(s, Operation{Method: "GET", Path: "/gpus/{uuid}/history", ID: "getGPUHistory", Need: users.ActionSee, tag: "GPUs",
		summary: "What a GPU did over time"}, s.gpuHistory)
	add(s, Operation{Method: "GET", Path: "/gpus/{uuid}/events", ID: "listGPUEvents", Need: users.ActionSee, tag: "GPUs",
		summary: "Errors of a GPU and times in which it could not be read"}, s.gpuEvents)
	add(s, Operation{Method: "PUT", Path: "/gpus/{uuid}/lending", ID: "lendGPU", Need: users.ActionManageLab, tag: "GPUs",
		summary: "Lend a GPU out whoever uses it, or only while it is free"}, s.lendGPU)
	add(s, Operation{Method: "POST", Path: "/gpu-check", ID: "checkGPU", Need: users.ActionManageLab, tag: "GPUs",
		summary:     "Let a test pod compute on a free GPU",
		description: "Takes some seconds."}, s.checkGPU)
	add(s, Operation{Method: "GET", Path: "/use", ID: "listUse", Need: users.ActionSeeUse, tag: "GPUs",
		summary: "Who had how much of the GPUs",
		description: "Of those whose use you may see: with by=user a row for each, otherwise all of theirs if you see " +
			"everybody's, or your own."}, s.listUse)
}

func (s *Server) listGPUs(_ context.Context, c *call, _ *noInput) (*body[GPUList], error) {
	snapshots := slices.Clone(s.cfg.Snapshots())
	for i := range snapshots {
		hideTitles(&snapshots[i], c)
	}
	if snapshots == nil {
		snapshots = []gpu.Snapshot{}
	}
	return answerWith(GPUList{snapshots})
}

// hideTitles leaves out how others have called their notebooks: the names of servers and pods are made from it.
func hideTitles(s *gpu.Snapshot, c *call) {
	hide := func(p *gpu.PodRef) {
		if p.User != "" && !c.user.MayTo(users.ActionManageNotebooks, p.User) {
			p.Name, p.Notebook = "", ""
		}
	}
	s.GPUs = slices.Clone(s.GPUs) // others read the fleet's own
	for i := range s.GPUs {
		g := &s.GPUs[i]
		g.Holders, g.Processes = slices.Clone(g.Holders), slices.Clone(g.Processes)
		for k := range g.Holders {
			hide(&g.Holders[k].PodRef)
		}
		for k := range g.Processes {
			hide(&g.Processes[k].Pod)
		}
	}
}

// gpu finds a GPU by its UUID.
func (s *Server) gpu(uuid string) (gpu.GPU, error) {
	for _, snapshot := range s.cfg.Snapshots() {
		for _, g := range snapshot.GPUs {
			if uuid != "" && g.UUID == uuid {
				return g, nil
			}
		}
	}
	return gpu.GPU{}, errNotThere
}

func (s *Server) gpuHistory(ctx context.Context, _ *call, in *historyInput) (*body[GPUHistory], error) {
	if _, err := s.gpu(in.UUID); err != nil {
		return nil, err
	}
	now := s.now()
	series, err := s.cfg.History.Series(ctx, in.UUID, now.Add(-spans[in.Span]), now, historyPoints)
	if err != nil {
		return nil, fmt.Errorf("read the history of a GPU: %w", err)
	}
	out := GPUHistory{
		UUID: series.UUID, From: series.From, To: series.To, Step: series.Step.Seconds(), Points: []GPUPoint{},
	}
	for _, p := range series.Points {
		out.Points = append(out.Points, GPUPoint{
			p.Time, p.Use, p.UseMax, p.Memory, p.Power, p.PowerMax, p.Temperature, p.SMClock,
		})
	}
	return answerWith(out)
}

func (s *Server) gpuEvents(ctx context.Context, _ *call, in *GPUInput) (*body[EventList], error) {
	if _, err := s.gpu(in.UUID); err != nil {
		return nil, err
	}
	events, err := s.cfg.History.Events(ctx, history.EventFilter{UUID: in.UUID})
	if err != nil {
		return nil, fmt.Errorf("read the events of a GPU: %w", err)
	}
	if events == nil {
		events = []history.Event{}
	}
	return answerWith(EventList{events})
}

func (s *Server) lendGPU(ctx context.Context, c *call, in *lendInput) (*body[Lending], error) {
	g, err := s.gpu(in.UUID)
	if err != nil {
		return nil, err
	}
	if err := s.cfg.LendGPU(ctx, g.UUID, in.Body.Anyway); err != nil {
		return nil, fmt.Errorf("change how a GPU is lent: %w", err)
	}
	s.audit(ctx, c, audit.LendAction(in.Body.Anyway), g.UUID, "")
	return answerWith(in.Body)
}

func (s *Server) checkGPU(ctx context.Context, c *call, _ *noInput) (*body[GPUCheck], error) {
	saw, err := s.cfg.CheckGPU(context.WithoutCancel(ctx))
	s.audit(ctx, c, "gpu.check", "", saw)
	if err != nil {
		return answerWith(GPUCheck{Text: sentence(err.Error())})
	}
	return answerWith(GPUCheck{OK: true, Text: sentence("a test pod saw " + saw)})
}

func (s *Server) listUse(ctx context.Context, c *call, in *UseInput) (*body[UseList], error) {
	if c.everybody(users.ActionSeeUse) {
		return s.useSince(ctx, in, "", func(history.Usage) bool { return true })
	}
	if in.By != string(history.ByUser) {
		return s.useSince(ctx, in, c.user.Handle, func(history.Usage) bool { return true })
	}
	return s.useSince(ctx, in, "", func(u history.Usage) bool {
		return u.Kind == history.KindUser && c.user.MayTo(users.ActionSeeUse, u.Name)
	})
}
