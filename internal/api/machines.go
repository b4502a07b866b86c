package api

import (
	"context"
	"net/http"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
)

// Machines are those of the pool. Errors are sentences for people around the sentinel errors of package ctl.
type Machines interface {
	Nodes(ctx context.Context) (ctl.Machines, error)
	Invite(ctx context.Context) (ctl.NodeInvitation, error)
	Withdraw(ctx context.Context, id string) error
	Remove(ctx context.Context, name string, anyway bool) (ctl.RemovedNode, error)
}

type codeInput struct {
	Code string `path:"code" minLength:"16" maxLength:"16" pattern:"^[0-9a-f]*$" doc:"Of the invitation, as listMachines has it"`
}

type removeMachineInput struct {
	Machine string `path:"machine" minLength:"1" maxLength:"63" doc:"Its name"`
	Anyway  bool   `query:"anyway" doc:"End the notebooks that run there"`
}

func (s *Server) addMachines() {
	add(s, Operation{Method: "GET", Path: "/machines", ID: "listMachines", Need: users.ActionManageLab, tag: "lab", summary: "The machines of the pool, and open invitations",
		description: "What `gpulab nodes --json` prints on the head machine."}, s.listMachines)
	add(s, Operation{Method: "POST", Path: "/machines/invitations", ID: "inviteMachine", Need: users.ActionManageLab, tag: "lab", summary: "Make the line with which another machine joins",
		description: "The code in it is a secret. It works once, for an hour, and is answered only now.", status: http.StatusCreated, also: []int{http.StatusServiceUnavailable}}, s.inviteMachine)
	add(s, Operation{Method: "DELETE", Path: "/machines/invitations/{code}", ID: "withdrawMachineInvitation", Need: users.ActionManageLab, tag: "lab", summary: "Make an invitation worthless that nobody has used"}, s.withdrawMachine)
	add(s, Operation{Method: "DELETE", Path: "/machines/{machine}", ID: "removeMachine", Need: users.ActionManageLab, tag: "lab", summary: "Take a machine out of the pool, and gpulab off it",
		also: []int{conflict}, status: http.StatusOK}, s.removeMachine)
}

func (s *Server) listMachines(ctx context.Context, _ *call, _ *noInput) (*body[ctl.Machines], error) {
	list, err := s.cfg.Machines.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	return answerWith(list)
}

func (s *Server) inviteMachine(ctx context.Context, c *call, _ *noInput) (*body[ctl.NodeInvitation], error) {
	made, err := s.cfg.Machines.Invite(ctx)
	if err != nil {
		return nil, problem(http.StatusServiceUnavailable, "No machine can join now", sentence(err.Error()))
	}
	s.audit(ctx, c, "node.invite", "", "")
	return answerWith(made)
}

func (s *Server) withdrawMachine(ctx context.Context, c *call, in *codeInput) (*nothing, error) {
	if err := s.cfg.Machines.Withdraw(ctx, in.Code); err != nil {
		return nil, err
	}
	s.audit(ctx, c, "node.withdraw", in.Code, "")
	return done(nil)
}

func (s *Server) removeMachine(ctx context.Context, c *call, in *removeMachineInput) (*body[ctl.RemovedNode], error) {
	out, err := s.cfg.Machines.Remove(ctx, in.Machine, in.Anyway)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "node.remove", in.Machine, "")
	return answerWith(out)
}
