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
	"unicode"
	"unicode/utf8"

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
	out := ctl.Machines{
		Nodes: append([]ctl.Node{l.headNode(ctx, state.Ready)}, l.joinedNodes(ctx)...), Note: l.stayHomeNote(),
	}
	out.Placing = l.placed()
	out.Note = strings.TrimSpace(out.Note + " " + placingNote(out.Placing, out.Nodes))
	open, err := l.pool.registry.Invitations(ctx)
	for _, i := range open {
		out.Invitations = append(out.Invitations, ctl.OpenInvitation{ID: i.ID, Made: i.Made, Expires: i.Expires})
	}
	for _, r := range l.pool.requests.List() {
		out.Requests = append(out.Requests, asked(r))
	}
	return out, err
}

// headNode is this machine among those of the pool.
func (l *appliance) headNode(ctx context.Context, ready bool) ctl.Node {
	node := ctl.Node{
		Name: l.id.NodeName, Role: "head", State: ctl.NodeStarting, Version: version.Version,
		Host: toldHost(l.busy.latest.Load()),
	}
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
	node.Title, node.Limit = l.titleOf(node.Name), l.limitOf(node.Name)
	node.Notebooks, node.Cordon = l.notebooksOn(node.Name), l.cordonOf(node.Name)
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
			list = append(list, ctl.NodeNotebook{
				User: p.Handle, Name: p.Server, Launch: p.LaunchID, GPUs: p.GPUs, Since: p.Created,
			})
		}
	}
	slices.SortFunc(list, func(a, b ctl.NodeNotebook) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.User, b.User), strings.Compare(a.Name, b.Name))
	})
	return list
}

// noMachine says that there is no machine of the name.
func (l *appliance) noMachine(name string) error {
	l.titles.mu.Lock()
	defer l.titles.mu.Unlock()
	for machine, title := range l.titles.list {
		if strings.EqualFold(title, name) {
			return &users.Error{Kind: ctl.ErrNodeUnknown, Text: fmt.Sprintf("there is no machine named %q in the pool; %s is "+
				"shown as that, so say %[2]s", name, machine)}
		}
	}
	return &users.Error{Kind: ctl.ErrNodeUnknown, Text: fmt.Sprintf("there is no machine named %q in the pool; `gpulab "+
		"nodes` lists them", name)}
}

func refuseMachine(format string, args ...any) error {
	return &users.Error{Kind: ctl.ErrNodeRefused, Text: fmt.Sprintf(format, args...)}
}

// Invite makes a code for one machine.
func (m machines) Invite(ctx context.Context) (ctl.NodeInvitation, error) {
	code, expires, addresses, err := m.lab.pool.invite(ctx, nil)
	if err != nil {
		return ctl.NodeInvitation{}, err
	}
	out := ctl.NodeInvitation{
		Command: "gpulab join " + code.String(), Code: code.String(), Expires: expires, Addresses: addresses,
	}
	if !m.lab.cfg.Storage.Everywhere() {
		out.Note = fmt.Sprintf("Its GPUs will be in the pool, but notebooks start on %s only until every machine has the "+
			"homes; see storage.export and storage.shared in the configuration.", m.lab.called(m.lab.id.NodeName))
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

// Answer lets the machine that asks with a number in, or does not. Whoever asks
// for it has seen the number on that machine's screen.
func (m machines) Answer(ctx context.Context, number string, accept bool) (ctl.NodeRequest, error) {
	r, err := m.lab.pool.answer(ctx, number, accept)
	switch {
	case errors.Is(err, nodes.ErrRequestUnknown):
		return ctl.NodeRequest{}, &users.Error{Kind: ctl.ErrNoRequest, Text: err.Error()}
	case errors.Is(err, nodes.ErrRequestTwice):
		return ctl.NodeRequest{}, refuseMachine("%s", err)
	case err != nil:
		return ctl.NodeRequest{}, err
	}
	return asked(r), nil
}

// Remove takes a machine out of the pool. While notebooks run there it does so
// only if anyway is set.
func (m machines) Remove(ctx context.Context, name string, anyway bool) (ctl.RemovedNode, error) {
	l := m.lab
	if l.attached.Load() == nil {
		return ctl.RemovedNode{}, errStarting
	}
	if name == l.id.NodeName {
		return ctl.RemovedNode{}, refuseMachine(
			"%s is the head: without it there is no pool; `gpulab reset` takes gpulab off it", name)
	}
	out := ctl.RemovedNode{Name: name}
	for _, n := range l.notebooksOn(name) {
		out.Notebooks = append(out.Notebooks, n.User+"/"+n.Name)
	}
	slices.Sort(out.Notebooks)
	if len(out.Notebooks) > 0 && !anyway {
		return out, refuseMachine("these notebooks run on %s and would end: %s; say --yes to remove it all the same", name,
			strings.Join(out.Notebooks, ", "))
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
		return out, m.lab.noMachine(name)
	case err != nil && n.ID != 0:
		// It is out of the pool, and the head sees to the rest as it goes on.
		slog.Warn("a machine is out of the pool, and Kubernetes has something of it still; that goes later", "machine", name,
			"err", err)
		return out, nil
	}
	return out, err
}

// known tells whether there is a machine of the name, the head among them.
func (l *appliance) known(name string) bool { return name == l.id.NodeName || l.pool.has(name) }

// cordonOf is what is told of a machine that takes no new work, nil for others.
func (l *appliance) cordonOf(name string) *ctl.Cordon {
	if l.cordons == nil {
		return nil
	}
	c, ok := l.cordons.of(name)
	if !ok {
		return nil
	}
	return &ctl.Cordon{Since: c.Since, By: c.By, Reason: c.Reason, EmptyAt: c.EmptyAt}
}

// longestReason is how many characters a reason may have.
const longestReason = 120

// checkReason takes what everybody can read in one line.
func checkReason(reason string) (string, error) {
	reason = strings.TrimSpace(reason)
	if utf8.RuneCountInString(reason) > longestReason || strings.ContainsFunc(reason, func(r rune) bool {
		return !unicode.IsPrint(r)
	}) {
		return "", &users.Error{
			Kind: ctl.ErrNodeReason, Text: fmt.Sprintf("a reason is one line of at most %d characters", longestReason),
		}
	}
	return reason, nil
}

// longestDrain is how far ahead a machine can be emptied.
const longestDrain = 14 * 24 * time.Hour

// Cordon lets a machine take no new work; what runs there stays.
func (m machines) Cordon(ctx context.Context, name, by, reason string) (ctl.Cordon, error) {
	return m.close(ctx, name, reason, func(reason string) error {
		return m.lab.pool.registry.Cordon(ctx, name, by, reason)
	})
}

// Drain lets a machine take no new work, and ends what is there after a while.
func (m machines) Drain(ctx context.Context, name, by string, d ctl.Drain) (ctl.Cordon, error) {
	if d.In < 0 || d.In > longestDrain {
		return ctl.Cordon{}, &users.Error{Kind: ctl.ErrNodeReason, Text: "a machine is emptied now, or within 14 days"}
	}
	return m.close(ctx, name, d.Reason, func(reason string) error {
		return m.lab.pool.registry.Drain(ctx, name, by, reason, time.Now().Add(d.In))
	})
}

func (m machines) close(ctx context.Context, name, reason string, note func(reason string) error) (ctl.Cordon, error) {
	if !m.lab.known(name) {
		return ctl.Cordon{}, m.lab.noMachine(name)
	}
	reason, err := checkReason(reason)
	if err != nil {
		return ctl.Cordon{}, err
	}
	if err := errors.Join(note(reason), m.lab.cordons.changed(ctx)); err != nil {
		return ctl.Cordon{}, err
	}
	return *cmp.Or(m.lab.cordonOf(name), &ctl.Cordon{}), nil
}

// Uncordon lets a machine take work again. One that does is as was wanted.
func (m machines) Uncordon(ctx context.Context, name string) error {
	if !m.lab.known(name) {
		return m.lab.noMachine(name)
	}
	err := m.lab.pool.registry.Uncordon(ctx, name)
	if errors.Is(err, nodes.ErrNotCordoned) {
		return nil
	}
	return errors.Join(err, m.lab.cordons.changed(ctx))
}

// Keep lets the notebooks of a machine stay that was being emptied.
func (m machines) Keep(ctx context.Context, name string) error {
	if !m.lab.known(name) {
		return m.lab.noMachine(name)
	}
	err := m.lab.pool.registry.Keep(ctx, name)
	if errors.Is(err, nodes.ErrNotCordoned) {
		return refuseMachine("%s is not being emptied", name)
	}
	return errors.Join(err, m.lab.cordons.changed(ctx))
}
