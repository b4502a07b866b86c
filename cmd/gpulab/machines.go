package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/version"
)

// machines is what can be asked of and done with the pool's machines, for the
// command line, the pages and the HTTP API alike. Who did it is recorded by them.
type machines struct{ lab *appliance }

// Nodes are the machines, the head first, and who else may still come.
func (m machines) Nodes(ctx context.Context) (ctl.Machines, error) {
	l := m.lab
	state, _ := l.boot.now()
	out := ctl.Machines{Nodes: append([]ctl.Node{l.headNode(ctx, state.Ready)}, l.joinedNodes(ctx)...), Note: l.stayHomeNote()}
	open, err := l.pool.registry.Invitations(ctx)
	for _, i := range open {
		out.Invitations = append(out.Invitations, ctl.OpenInvitation{ID: i.ID, Made: i.Made, Expires: i.Expires})
	}
	return out, err
}

// headNode is this machine among those of the pool.
func (l *appliance) headNode(ctx context.Context, ready bool) ctl.Node {
	node := ctl.Node{Name: l.id.NodeName, Role: "head", State: ctl.NodeStarting, Version: version.Version, Host: toldHost(l.busy.latest.Load())}
	if own, ok := l.ownSnapshot(); ok {
		node.GPUs, node.Simulated = len(own.GPUs), own.Simulated
	}
	if here := l.where.Load().address; here.IsValid() {
		node.Address = here.String()
	}
	if ready {
		node.Ready, node.Detail = l.nodeReady(ctx)
		node.State = ctl.NodeReady
		if !node.Ready {
			node.State = ctl.NodeNotReady
		}
	}
	node.Notebooks = l.notebooksOn(node.Name)
	return node
}

func toldHost(h *nodeapi.Host) *ctl.Host {
	if h == nil {
		return nil
	}
	told := ctl.Host(*h)
	return &told
}

// notebooksOn are the notebooks on a machine, those that run longest first.
func (l *appliance) notebooksOn(name string) []ctl.NodeNotebook {
	parts := l.attached.Load()
	if parts == nil {
		return nil
	}
	var list []ctl.NodeNotebook
	for _, p := range parts.kube.Notebooks() {
		if p.Node == name && !p.Finished {
			list = append(list, ctl.NodeNotebook{User: p.Handle, Name: p.Server, Launch: p.LaunchID, GPUs: p.GPUs, Since: p.Created})
		}
	}
	slices.SortFunc(list, func(a, b ctl.NodeNotebook) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.User, b.User), strings.Compare(a.Name, b.Name))
	})
	return list
}

// noMachine says that there is no machine of the name.
func noMachine(name string) error {
	return &users.Error{Kind: ctl.ErrNodeUnknown, Text: fmt.Sprintf("there is no machine named %q in the pool; `gpulab nodes` lists them", name)}
}

func refuseMachine(format string, args ...any) error {
	return &users.Error{Kind: ctl.ErrNodeRefused, Text: fmt.Sprintf(format, args...)}
}

// Invite makes a code for one machine.
func (m machines) Invite(ctx context.Context) (ctl.NodeInvitation, error) {
	code, expires, addresses, err := m.lab.pool.invite(ctx)
	if err != nil {
		return ctl.NodeInvitation{}, err
	}
	out := ctl.NodeInvitation{Command: "gpulab join " + code.String(), Code: code.String(), Expires: expires, Addresses: addresses}
	if m.lab.cfg.Storage.Shared == "" {
		out.Note = fmt.Sprintf("Its GPUs will be in the pool, but notebooks start on %s only until homes lie on storage that every machine mounts; see storage.shared in the configuration.", m.lab.id.NodeName)
	}
	return out, nil
}

// Withdraw makes a code worthless that nobody has used.
func (m machines) Withdraw(ctx context.Context, id string) error {
	err := m.lab.pool.registry.Withdraw(ctx, id)
	if errors.Is(err, nodes.ErrNoInvitation) {
		err = &users.Error{Kind: ctl.ErrNoInvitation, Text: err.Error()}
	}
	return err
}

// Remove takes a machine out of the pool. While notebooks run there it does so
// only if anyway is set.
func (m machines) Remove(ctx context.Context, name string, anyway bool) (ctl.RemovedNode, error) {
	l := m.lab
	if l.attached.Load() == nil {
		return ctl.RemovedNode{}, errStarting
	}
	if name == l.id.NodeName {
		return ctl.RemovedNode{}, refuseMachine("%s is the head: without it there is no pool; `gpulab reset` takes gpulab off it", name)
	}
	out := ctl.RemovedNode{Name: name}
	for _, n := range l.notebooksOn(name) {
		out.Notebooks = append(out.Notebooks, n.User+"/"+n.Name)
	}
	slices.Sort(out.Notebooks)
	if len(out.Notebooks) > 0 && !anyway {
		return out, refuseMachine("these notebooks run on %s and would end: %s; say --yes to remove it all the same", name, strings.Join(out.Notebooks, ", "))
	}
	for _, n := range l.pool.list() {
		if n.Name == name {
			_, silent := l.pool.silent(n, time.Now())
			out.Cleans = !silent
		}
	}
	n, err := l.pool.remove(ctx, name)
	switch {
	case errors.Is(err, nodes.ErrUnknown):
		return out, noMachine(name)
	case err != nil && n.ID != 0:
		// It is out of the pool, and the head sees to the rest as it goes on.
		slog.Warn("a machine is out of the pool, and Kubernetes has something of it still; that goes later", "machine", name, "err", err)
		return out, nil
	}
	return out, err
}
