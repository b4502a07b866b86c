package ctl

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func (d *daemon) InviteNode(context.Context) (NodeInvitation, error) {
	return NodeInvitation{Command: "gpulab join gl1abc", Code: "gl1abc"}, nil
}

func (d *daemon) Nodes(context.Context) (Machines, error) {
	return Machines{Nodes: []Node{{Name: "head", Role: "head"}, {Name: "b", State: NodeLost}}, Note: "stay"}, nil
}

func (d *daemon) RemoveNode(_ context.Context, name string, anyway bool) (RemovedNode, error) {
	if !anyway {
		return RemovedNode{}, errors.New("a notebook runs there")
	}
	return RemovedNode{Name: name, Cleans: true}, nil
}

func (d *daemon) NodeRequests(context.Context) ([]NodeRequest, error) {
	return []NodeRequest{{Number: "000123", Name: "b"}}, nil
}

func (d *daemon) AnswerNode(_ context.Context, number string, accept bool) (NodeRequest, error) {
	if !accept {
		return NodeRequest{}, errors.New("no machine asks with that number")
	}
	return NodeRequest{Number: number, Name: "b"}, nil
}

func (d *daemon) WithdrawInvitation(_ context.Context, id string) error {
	if id != "0a" {
		return errors.New("it is not open any more")
	}
	return nil
}

func (d *daemon) CordonNode(_ context.Context, name, reason string) (Cordon, error) {
	return Cordon{By: name, Reason: reason}, nil
}

func (d *daemon) UncordonNode(context.Context, string) error { return nil }

func (d *daemon) DrainNode(_ context.Context, name string, in Drain) (Cordon, error) {
	return Cordon{By: name, Reason: in.Reason, EmptyAt: time.Unix(0, 0).Add(in.In)}, nil
}

func (d *daemon) RenameNode(_ context.Context, name, title string) (RenamedNode, error) {
	return RenamedNode{Name: name, Title: title, Before: name}, nil
}

func (d *daemon) LimitNode(_ context.Context, name string, limit *NodeLimit) error {
	return errors.New(name + " is for " + limit.Words())
}

func (d *daemon) PlaceNotebooks(_ context.Context, wanted Placing) (Placing, error) {
	wanted.GPUs = PlaceGPUsPack
	return wanted, nil
}

func (d *daemon) KeepNode(_ context.Context, name string) error {
	return errors.New(name + " is not being emptied")
}

func TestNodes(t *testing.T) {
	_, c := serveDaemon(t, &daemon{})
	ctx := t.Context()
	if got, err := c.InviteNode(ctx); err != nil || got.Code != "gl1abc" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := c.Nodes(ctx); err != nil || len(got.Nodes) != 2 || got.Nodes[1].State != NodeLost || got.Note != "stay" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := c.RemoveNode(ctx, "b", false); err == nil || err.Error() != "a notebook runs there" {
		t.Errorf("%v", err)
	}
	if err := c.WithdrawInvitation(ctx, "0a"); err != nil {
		t.Error(err)
	}
	if err := c.WithdrawInvitation(ctx, "0b"); err == nil || err.Error() != "it is not open any more" {
		t.Errorf("%v", err)
	}
	if got, err := c.PlaceNotebooks(ctx, Placing{CPU: PlaceCPUPrefer}); err != nil || got != (Placing{PlaceCPUPrefer, PlaceGPUsPack}) {
		t.Errorf("%+v, %v", got, err)
	}
	for want, limit := range map[string]*NodeLimit{"everybody": nil, "nobody": {}, "guests, members and the group vision": {For: []string{"role:guest", "role:member", "group:vision"}}} {
		if err := c.LimitNode(ctx, "b", limit); err == nil || err.Error() != "b is for "+want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if got, err := c.RenameNode(ctx, "b", "By the door"); err != nil || got != (RenamedNode{"b", "By the door", "b"}) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := c.CordonNode(ctx, "b", "new disk"); err != nil || got.By != "b" || got.Reason != "new disk" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := c.DrainNode(ctx, "b", Drain{Reason: "new disk", In: time.Hour}); err != nil || got.Reason != "new disk" || got.EmptyAt.Unix() != 3600 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := c.UncordonNode(ctx, "b"); err != nil {
		t.Error(err)
	}
	if err := c.KeepNode(ctx, "b"); err == nil || err.Error() != "b is not being emptied" {
		t.Errorf("%v", err)
	}
	if got, err := c.RemoveNode(ctx, "b", true); err != nil || got.Name != "b" || !got.Cleans {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := c.NodeRequests(ctx); err != nil || len(got) != 1 || got[0].Number != "000123" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := c.AnswerNode(ctx, "000123", true); err != nil || got.Number != "000123" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := c.AnswerNode(ctx, "000123", false); err == nil {
		t.Error("it is accepted when refused")
	}
}

type machine struct{ *daemon }

func (machine) Elsewhere() string { return "run this on the head" }

// A joined machine answers about itself, and says of all else where it is done.
func TestMachine(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ServeMachine(ctx, socket, machine{&daemon{}}) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	c := NewClient(socket)
	var status Status
	err := ErrNotRunning
	for errors.Is(err, ErrNotRunning) {
		status, err = c.Status(ctx)
	}
	if err != nil || !status.Ready {
		t.Errorf("%+v, %v", status, err)
	}
	if _, err := c.Nodes(ctx); err == nil || !strings.Contains(err.Error(), "on the head") {
		t.Errorf("%v", err)
	}
}
