package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
)

// Machines are those of the pool. Errors are sentences for people around the sentinel errors of package ctl.
type Machines interface {
	Nodes(ctx context.Context) (ctl.Machines, error)
	Invite(ctx context.Context) (ctl.NodeInvitation, error)
	Withdraw(ctx context.Context, id string) error
	Answer(ctx context.Context, number string, accept bool) (ctl.NodeRequest, error)
	Remove(ctx context.Context, name string, anyway bool) (ctl.RemovedNode, error)
	Cordon(ctx context.Context, name, by, reason string) (ctl.Cordon, error)
	Uncordon(ctx context.Context, name string) error
	Drain(ctx context.Context, name, by string, d ctl.Drain) (ctl.Cordon, error)
	Keep(ctx context.Context, name string) error
	Rename(ctx context.Context, name, title string) (ctl.RenamedNode, error)
	Place(ctx context.Context, wanted ctl.Placing) (ctl.Placing, error)
	Limit(ctx context.Context, name string, limit *ctl.NodeLimit) (*ctl.NodeLimit, error)
}

type machineInput struct {
	Machine string `path:"machine" minLength:"1" maxLength:"63" doc:"Its name"`
}

type cordonInput struct {
	Machine string `path:"machine" minLength:"1" maxLength:"63" doc:"Its name"`
	Body    struct {
		Reason string `json:"reason,omitempty" maxLength:"120" doc:"For everybody to read"`
	}
}

type drainInput struct {
	Machine string `path:"machine" minLength:"1" maxLength:"63" doc:"Its name"`
	Body    struct {
		Reason  string `json:"reason,omitempty" maxLength:"120" doc:"For everybody to read"`
		Seconds int64  `json:"seconds" minimum:"0" maximum:"1209600" doc:"Until notebooks end that are still there; 0 is now"`
	}
}

type titleInput struct {
	Machine string `path:"machine" minLength:"1" maxLength:"63" doc:"Its name"`
	Body    struct {
		Title string `json:"title" maxLength:"40" doc:"What it is shown as; its name, or nothing, takes the title back" example:"Under the window"`
	}
}

type limitInput struct {
	Machine string `path:"machine" minLength:"1" maxLength:"63" doc:"Its name"`
	Body    struct {
		For []string `json:"for" nullable:"false" maxItems:"50" doc:"Roles and groups, as role:guest and group:vision; none is nobody"`
	}
}

type placingInput struct {
	Body struct {
		CPU  string `json:"cpu,omitempty" enum:"any,prefer,require" doc:"Where CPU notebooks run: on any machine, on machines without GPUs where one has room, or there only"`
		GPUs string `json:"gpus,omitempty" enum:"pack,spread" doc:"Where notebooks with GPUs run, of the machines with room: where the fewest are free, or the most"`
	}
}

type codeInput struct {
	Code string `path:"code" minLength:"16" maxLength:"16" pattern:"^[0-9a-f]*$" doc:"Of the invitation, as listMachines has it"`
}

type requestInput struct {
	Number string `path:"number" minLength:"6" maxLength:"6" pattern:"^[0-9]*$" doc:"On the screen of the machine, as listMachines has it"`
}

type removeMachineInput struct {
	Machine string `path:"machine" minLength:"1" maxLength:"63" doc:"Its name"`
	Anyway  bool   `query:"anyway" doc:"End the notebooks that run there"`
}

func (s *Server) addMachines() {
	add(s, Operation{Method: "GET", Path: "/machines", ID: "listMachines", Need: users.ActionManageLab, tag: "lab",
		summary:     "The machines of the pool, open invitations, and who asks to be let in",
		description: "What `gpulab nodes --json` prints on the head machine."}, s.listMachines)
	add(s, Operation{Method: "POST", Path: "/machine-invitations", ID: "inviteMachine", Need: users.ActionManageLab,
		tag: "lab", summary: "Make the line with which another machine joins",
		description: "The code in it is a secret. It works once, for an hour, and is answered only now.",
		status:      http.StatusCreated, also: []int{http.StatusServiceUnavailable}}, s.inviteMachine)
	add(s, Operation{Method: "DELETE", Path: "/machine-invitations/{code}", ID: "withdrawMachineInvitation",
		Need: users.ActionManageLab, tag: "lab", summary: "Make an invitation worthless that nobody has used"},
		s.withdrawMachine)
	add(s, Operation{Method: "POST", Path: "/machine-requests/{number}/accept", ID: "acceptMachine",
		Need: users.ActionManageLab, tag: "lab", summary: "Let a machine in that asks without a code",
		description: "Only if the number is on the machine's own screen: it covers what both sides are known by, while " +
			"name and address prove nothing. The machine then goes on by itself.",
		also: []int{conflict, http.StatusServiceUnavailable}, status: http.StatusOK}, s.acceptMachine)
	add(s, Operation{Method: "POST", Path: "/machine-requests/{number}/refuse", ID: "refuseMachine",
		Need: users.ActionManageLab, tag: "lab", summary: "Do not let a machine in that asks",
		status: http.StatusOK}, s.refuseMachine)
	add(s, Operation{Method: "DELETE", Path: "/machines/{machine}", ID: "removeMachine", Need: users.ActionManageLab,
		tag: "lab", summary: "Take a machine out of the pool, and gpulab off it",
		also: []int{conflict}, status: http.StatusOK}, s.removeMachine)
	add(s, Operation{Method: "PUT", Path: "/machines/{machine}/cordon", ID: "cordonMachine", Need: users.ActionManageLab,
		tag: "lab", summary: "Let a machine take no new work",
		description: "What runs there goes on."}, s.cordonMachine)
	add(s, Operation{Method: "DELETE", Path: "/machines/{machine}/cordon", ID: "uncordonMachine",
		Need: users.ActionManageLab, tag: "lab", summary: "Let a machine take work again",
		description: "One that takes work is as was wanted."}, s.uncordonMachine)
	add(s, Operation{Method: "PUT", Path: "/machines/{machine}/drain", ID: "drainMachine", Need: users.ActionManageLab,
		tag: "lab", summary: "Empty a machine, with notice to those who work there",
		description: "It takes no new work from now on; notebooks that are left there end after a while."}, s.drainMachine)
	add(s, Operation{Method: "DELETE", Path: "/machines/{machine}/drain", ID: "keepMachine", Need: users.ActionManageLab,
		tag: "lab", summary: "Let notebooks stay on a machine that was being emptied",
		description: "It still takes no new work.", also: []int{conflict}}, s.keepMachine)
	add(s, Operation{Method: "PUT", Path: "/machines/{machine}/title", ID: "renameMachine", Need: users.ActionManageLab,
		tag: "lab", summary: "Show a machine under a title",
		description: "On pages, and where people read where something runs. Its name stays in operations, in Kubernetes " +
			"and in the metrics."}, s.renameMachine)
	add(s, Operation{Method: "PUT", Path: "/machines/{machine}/limit", ID: "limitMachine", Need: users.ActionManageLab,
		tag: "lab", summary: "Say whom a machine is for",
		description: "Others' notebooks never start there. What runs there goes on."}, s.limitMachine)
	add(s, Operation{Method: "DELETE", Path: "/machines/{machine}/limit", ID: "unlimitMachine",
		Need: users.ActionManageLab, tag: "lab", summary: "Let everybody use a machine"}, s.unlimitMachine)
	add(s, Operation{Method: "PUT", Path: "/placing", ID: "placeNotebooks", Need: users.ActionManageLab, tag: "lab",
		summary: "Change how machines are chosen for notebooks",
		description: "What is left out stays; it holds for notebooks that start from now on. listMachines tells how they " +
			"are chosen, and each notebook why it runs where it does."}, s.placeNotebooks)
}

func (s *Server) placeNotebooks(ctx context.Context, c *call, in *placingInput) (*body[ctl.Placing], error) {
	wanted := ctl.Placing{CPU: in.Body.CPU, GPUs: in.Body.GPUs}
	out, err := s.cfg.Machines.Place(ctx, wanted)
	if err != nil {
		return nil, err
	}
	if wanted != (ctl.Placing{}) {
		s.audit(ctx, c, "node.placing", "", out.Detail())
	}
	return answerWith(out)
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

func (s *Server) acceptMachine(ctx context.Context, c *call, in *requestInput) (*body[ctl.NodeRequest], error) {
	return s.answerMachine(ctx, c, in.Number, true)
}

func (s *Server) refuseMachine(ctx context.Context, c *call, in *requestInput) (*body[ctl.NodeRequest], error) {
	return s.answerMachine(ctx, c, in.Number, false)
}

func (s *Server) answerMachine(ctx context.Context, c *call, number string,
	accept bool) (*body[ctl.NodeRequest], error) {
	answered, err := s.cfg.Machines.Answer(ctx, number, accept)
	var known *users.Error
	if err != nil && !errors.As(err, &known) {
		return nil, problem(http.StatusServiceUnavailable, "No machine can join now", sentence(err.Error()))
	}
	if err != nil {
		return nil, err
	}
	action := "node.decline"
	if accept {
		action = "node.accept"
	}
	s.audit(ctx, c, action, answered.Target(), "")
	return answerWith(answered)
}

func (s *Server) removeMachine(ctx context.Context, c *call, in *removeMachineInput) (*body[ctl.RemovedNode], error) {
	out, err := s.cfg.Machines.Remove(ctx, in.Machine, in.Anyway)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "node.remove", in.Machine, "")
	return answerWith(out)
}

func (s *Server) cordonMachine(ctx context.Context, c *call, in *cordonInput) (*body[ctl.Cordon], error) {
	out, err := s.cfg.Machines.Cordon(ctx, in.Machine, c.user.Handle, in.Body.Reason)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "node.cordon", in.Machine, out.Reason)
	return answerWith(out)
}

func (s *Server) uncordonMachine(ctx context.Context, c *call, in *machineInput) (*nothing, error) {
	if err := s.cfg.Machines.Uncordon(ctx, in.Machine); err != nil {
		return nil, err
	}
	s.audit(ctx, c, "node.uncordon", in.Machine, "")
	return done(nil)
}

func (s *Server) drainMachine(ctx context.Context, c *call, in *drainInput) (*body[ctl.Cordon], error) {
	out, err := s.cfg.Machines.Drain(ctx, in.Machine, c.user.Handle,
		ctl.Drain{Reason: in.Body.Reason, In: time.Duration(in.Body.Seconds) * time.Second})
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "node.drain", in.Machine, out.Detail())
	return answerWith(out)
}

func (s *Server) keepMachine(ctx context.Context, c *call, in *machineInput) (*nothing, error) {
	if err := s.cfg.Machines.Keep(ctx, in.Machine); err != nil {
		return nil, err
	}
	s.audit(ctx, c, "node.keep", in.Machine, "")
	return done(nil)
}

func (s *Server) renameMachine(ctx context.Context, c *call, in *titleInput) (*body[ctl.RenamedNode], error) {
	out, err := s.cfg.Machines.Rename(ctx, in.Machine, in.Body.Title)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "node.rename", in.Machine, out.Title)
	return answerWith(out)
}

func (s *Server) limitMachine(ctx context.Context, c *call, in *limitInput) (*body[ctl.NodeLimit], error) {
	made, err := s.cfg.Machines.Limit(ctx, in.Machine, &ctl.NodeLimit{For: in.Body.For})
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "node.limit", in.Machine, "for "+made.Words())
	return answerWith(*made)
}

func (s *Server) unlimitMachine(ctx context.Context, c *call, in *machineInput) (*nothing, error) {
	made, err := s.cfg.Machines.Limit(ctx, in.Machine, nil)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "node.limit", in.Machine, "for "+made.Words())
	return done(nil)
}
