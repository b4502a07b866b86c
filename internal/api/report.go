package api

import (
	"context"
	"time"

	"github.com/gpulab/gpulab/internal/report"
	"github.com/gpulab/gpulab/internal/users"
)

// Report is what the lab had of its GPUs in some weeks.
type Report struct {
	From      time.Time    `json:"from"`
	To        time.Time    `json:"to"`
	Simulated bool         `json:"simulated,omitempty" doc:"It is about simulated GPUs, because there were no others"`
	Whole     ReportPart   `json:"whole" doc:"All of it"`
	Weeks     []ReportPart `json:"weeks" doc:"From the first with anything in it, the oldest first; they begin on Mondays"`
	Groups    []ReportPart `json:"groups" doc:"Of all the weeks; who held most comes first"`
}

// ReportPart is a week, a group, or all of it.
type ReportPart struct {
	Group     string     `json:"group,omitempty" doc:"Its name"`
	From      *time.Time `json:"from,omitempty" doc:"Of a week"`
	To        *time.Time `json:"to,omitempty"`
	There     float64    `json:"thereSeconds,omitempty" doc:"How long GPUs were there, each counted; left out of a group"`
	Held      float64    `json:"heldSeconds" doc:"How long somebody had one; on a shared GPU everybody counts in full"`
	Busy      float64    `json:"busySeconds" doc:"The part of it in which it worked"`
	Idle      float64    `json:"idleSeconds" doc:"The part of it in which nothing happened"`
	Owned     *float64   `json:"ownedSeconds,omitempty" doc:"How busy GPUs would have been at best had each belonged to one person; left out of a group and where nobody used any"`
	People    int        `json:"people" doc:"Who held one or asked for one"`
	Fairness  *float64   `json:"fairness,omitempty" doc:"Jain's index of what they held: 1 is the same for all"`
	Launches  int        `json:"launches" doc:"Those that asked for a GPU in this time and got it"`
	GaveUp    int        `json:"gaveUp" doc:"Those that ended before they got one"`
	Waited50  *float64   `json:"waited50Seconds,omitempty" doc:"Half of them waited for less"`
	Waited95  *float64   `json:"waited95Seconds,omitempty" doc:"19 of 20 waited for less"`
	Reclaimed int        `json:"reclaimed" doc:"Notebooks that were stopped because nobody used their GPUs"`
	Resumed   int        `json:"reclaimedForSomebody" doc:"Those of them that were stopped for somebody who waited"`
	Preempted int        `json:"preempted" doc:"Runs of jobs that gave way to somebody who waited"`
	Lost      float64    `json:"preemptedLostSeconds" doc:"For how long those of them had GPUs that did not save what they did: what was lost at most"`
}

type reportInput struct {
	Weeks int `query:"weeks" minimum:"1" maximum:"53" default:"4" doc:"How many weeks, this one included"`
}

func (s *Server) addReport() {
	add(s, Operation{Method: "GET", Path: "/report", ID: "getReport", Need: users.ActionManageLab, tag: "GPUs",
		summary: "What the lab had of its GPUs, by week and group"}, s.getReport)
}

func (s *Server) getReport(ctx context.Context, _ *call, in *reportInput) (*body[Report], error) {
	made, err := s.cfg.Report(ctx, in.Weeks)
	if err != nil {
		return nil, err
	}
	return answerWith(Report{
		made.From, made.To, made.Simulated, reportPart(made.Whole), reportParts(made.Weeks), reportParts(made.Groups),
	})
}

func reportParts(list []report.Part) []ReportPart {
	out := []ReportPart{}
	for _, p := range list {
		out = append(out, reportPart(p))
	}
	return out
}

func reportPart(p report.Part) ReportPart {
	return ReportPart{
		p.Group, given(p.From), given(p.To), p.There, p.Held, p.Busy, p.Idle, p.Owned, p.People, p.Fairness, p.Launches,
		p.GaveUp, p.Waited50, p.Waited95, p.Reclaimed, p.Resumed, p.Preempted, p.Lost,
	}
}
