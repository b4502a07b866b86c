package api

import (
	"context"
	"net/http"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/version"
)

// LabInfo is what a lab says of itself to whoever asks.
type LabInfo struct {
	Product string `json:"product" enum:"gpulab"`
	Name    string `json:"name" doc:"What the lab is called"`
	Version string `json:"version" doc:"Of gpulab"`
}

func (s *Server) addLab() {
	add(s, Operation{Method: "GET", Path: "/lab", ID: "getLab", Need: public, tag: "lab", summary: "Which lab this is",
		description: "For programs that are not signed in yet."},
		func(context.Context, *call, *noInput) (*body[LabInfo], error) {
			return answerWith(LabInfo{Product: "gpulab", Name: s.cfg.LabName, Version: version.Version})
		})
	add(s, Operation{Method: "GET", Path: "/status", ID: "getStatus", Need: users.ActionManageLab, tag: "lab",
		summary:     "How every part of the lab is",
		description: "What `gpulab status --json` prints on the head machine."},
		func(ctx context.Context, _ *call, _ *noInput) (*body[ctl.Status], error) {
			status, err := s.cfg.Status(ctx)
			if err != nil {
				return nil, err
			}
			return answerWith(status)
		})
}

// Statuses that several operations name.
const conflict, gone = http.StatusConflict, http.StatusGone
