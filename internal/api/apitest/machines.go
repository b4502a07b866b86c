package apitest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
)

// Machines is a pool of a head and gpu-two, on which ben has a notebook; gpu-new
// asks to be let in.
type Machines struct {
	mu   sync.Mutex
	list ctl.Machines
}

// NewMachines makes one.
func NewMachines() *Machines {
	ahead := 0.1
	return &Machines{list: ctl.Machines{Nodes: []ctl.Node{
		{Name: "gpu-box", Address: "10.0.0.1", Role: "head", Ready: true, State: ctl.NodeReady, Version: "0.1.0", GPUs: 2,
			Simulated: true},
		{Name: "gpu-two", Address: "10.0.0.2", Role: "node", Ready: true, State: ctl.NodeReady, Version: "0.1.0", GPUs: 1,
			Simulated:   true,
			LastContact: time.Now(), Joined: time.Now().Add(-time.Hour), ClockOffset: &ahead,
			Host: &ctl.Host{
				CPUs: 16, Load: 3.5, MemoryTotal: 64 << 30, MemoryUsed: 20 << 30, DiskTotal: 900 << 30, DiskFree: 300 << 30,
			},
			Notebooks: []ctl.NodeNotebook{{User: "ben", Name: "gpu", Launch: 2, GPUs: 1, Since: time.Now().Add(-time.Hour)}}},
	}, Requests: []ctl.NodeRequest{{Number: "012345", Name: "gpu-new", Address: "10.0.0.9", Version: "0.1.0",
		Asked: time.Now().Add(-time.Minute), Expires: time.Now().Add(9 * time.Minute)}}}}
}

// Nodes implements api.Machines.
func (m *Machines) Nodes(context.Context) (ctl.Machines, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := m.list
	out.Nodes, out.Invitations, out.Requests = slices.Clone(out.Nodes), slices.Clone(out.Invitations),
		slices.Clone(out.Requests)
	return out, nil
}

// Edit changes what there is.
func (m *Machines) Edit(edit func(*ctl.Machines)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	edit(&m.list)
}

// Invite implements api.Machines.
func (m *Machines) Invite(context.Context) (ctl.NodeInvitation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, now := fmt.Sprintf("%016x", len(m.list.Invitations)+1), time.Now()
	m.list.Invitations = append(m.list.Invitations, ctl.OpenInvitation{ID: id, Made: now, Expires: now.Add(time.Hour)})
	code := "gl1" + id + "abcdefghijklmnopqrstuvwxyz234567abcdefghijklmnopqrstuvwxyz234567abcdefghijklmnopqrstuvwxyz234567"
	return ctl.NodeInvitation{Command: "gpulab join " + code, Code: code, Expires: now.Add(time.Hour),
		Addresses: []string{"10.0.0.1:8444"}}, nil
}

// Withdraw implements api.Machines.
func (m *Machines) Withdraw(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := len(m.list.Invitations)
	m.list.Invitations = slices.DeleteFunc(m.list.Invitations, func(o ctl.OpenInvitation) bool { return o.ID == id })
	if len(m.list.Invitations) == before {
		return &users.Error{Kind: ctl.ErrNoInvitation, Text: "this invitation is not open any more"}
	}
	return nil
}

// Answer implements api.Machines. A machine that is let in is among the others.
func (m *Machines) Answer(_ context.Context, number string, accept bool) (ctl.NodeRequest, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.list.Requests, func(r ctl.NodeRequest) bool { return r.Number == number })
	if i < 0 {
		return ctl.NodeRequest{}, &users.Error{Kind: ctl.ErrNoRequest, Text: "no machine asks with that number"}
	}
	asks := m.list.Requests[i]
	m.list.Requests = slices.Delete(slices.Clone(m.list.Requests), i, i+1)
	if accept {
		m.list.Nodes = append(m.list.Nodes, ctl.Node{
			Name: asks.Name, Address: asks.Address, Role: "node", State: ctl.NodeStarting, Version: asks.Version,
		})
	}
	return asks, nil
}

// find finds a machine; the caller holds mu.
func (m *Machines) find(name string) (*ctl.Node, error) {
	for i := range m.list.Nodes {
		if m.list.Nodes[i].Name == name {
			return &m.list.Nodes[i], nil
		}
	}
	return nil, &users.Error{Kind: ctl.ErrNodeUnknown, Text: fmt.Sprintf("there is no machine named %q in the pool", name)}
}

// Remove implements api.Machines.
func (m *Machines) Remove(_ context.Context, name string, anyway bool) (ctl.RemovedNode, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if err != nil {
		return ctl.RemovedNode{}, err
	}
	if n.Role == "head" || len(n.Notebooks) > 0 && !anyway {
		return ctl.RemovedNode{}, &users.Error{Kind: ctl.ErrNodeRefused, Text: "it is the head, or notebooks run there"}
	}
	m.list.Nodes = slices.DeleteFunc(m.list.Nodes, func(n ctl.Node) bool { return n.Name == name })
	return ctl.RemovedNode{Name: name, Cleans: true}, nil
}

// Cordon implements api.Machines.
func (m *Machines) Cordon(_ context.Context, name, by, reason string) (ctl.Cordon, error) {
	return m.close(name, ctl.Cordon{By: by, Reason: reason})
}

// Drain implements api.Machines.
func (m *Machines) Drain(_ context.Context, name, by string, d ctl.Drain) (ctl.Cordon, error) {
	return m.close(name, ctl.Cordon{By: by, Reason: d.Reason, EmptyAt: time.Now().Add(d.In)})
}

func (m *Machines) close(name string, c ctl.Cordon) (ctl.Cordon, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if err != nil {
		return c, err
	}
	if strings.ContainsFunc(c.Reason, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return c, &users.Error{Kind: ctl.ErrNodeReason, Text: "a reason is one line"}
	}
	if n.Cordon != nil && c.Reason == "" && !c.EmptyAt.IsZero() {
		c.Reason = n.Cordon.Reason // as the real one
	}
	c.Since = time.Now()
	n.Cordon = &c
	return c, nil
}

// Uncordon implements api.Machines.
func (m *Machines) Uncordon(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if err == nil {
		n.Cordon = nil
	}
	return err
}

// Keep implements api.Machines.
func (m *Machines) Keep(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if err != nil {
		return err
	}
	if n.Cordon == nil || n.Cordon.EmptyAt.IsZero() {
		return &users.Error{Kind: ctl.ErrNodeRefused, Text: name + " is not being emptied"}
	}
	kept := *n.Cordon
	kept.EmptyAt = time.Time{}
	n.Cordon = &kept
	return nil
}

// Rename implements api.Machines.
func (m *Machines) Rename(_ context.Context, name, title string) (ctl.RenamedNode, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if err != nil {
		return ctl.RenamedNode{}, err
	}
	for i := range m.list.Nodes {
		if other := &m.list.Nodes[i]; other != n &&
			(strings.EqualFold(other.Name, title) || strings.EqualFold(other.Title, title)) && title != "" {
			return ctl.RenamedNode{}, &users.Error{Kind: ctl.ErrNodeTitle, Text: "another machine is called that"}
		}
	}
	out := ctl.RenamedNode{Name: name, Before: n.Shown()}
	n.Title = title
	if title == name {
		n.Title = ""
	}
	out.Title = n.Shown()
	return out, nil
}

// Place implements api.Machines.
func (m *Machines) Place(_ context.Context, wanted ctl.Placing) (ctl.Placing, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &m.list.Placing
	p.CPU, p.GPUs = cmp.Or(wanted.CPU, p.CPU, ctl.PlaceCPUAny), cmp.Or(wanted.GPUs, p.GPUs, ctl.PlaceGPUsPack)
	if !slices.Contains([]string{ctl.PlaceCPUAny, ctl.PlaceCPUPrefer, ctl.PlaceCPURequire}, p.CPU) {
		return ctl.Placing{}, &users.Error{Kind: ctl.ErrPlacing, Text: "CPU notebooks run anywhere (any), or on machines " +
			"without GPUs (prefer, require)"}
	}
	return *p, nil
}

// Limit implements api.Machines.
func (m *Machines) Limit(_ context.Context, name string, limit *ctl.NodeLimit) (*ctl.NodeLimit, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if err != nil {
		return nil, err
	}
	if limit != nil {
		for _, who := range limit.For {
			if kind, what, _ := strings.Cut(who, ":"); kind != "role" && kind != "group" || what == "" {
				return nil, &users.Error{Kind: ctl.ErrNodeLimit, Text: fmt.Sprintf("%q is nobody a machine can be for", who)}
			}
		}
	}
	n.Limit = limit
	return limit, nil
}
