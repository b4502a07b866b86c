package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/users"
)

// rereadLimits takes from the database whom machines are for.
func (l *appliance) rereadLimits(ctx context.Context) error {
	list, err := l.pool.registry.Limits(ctx)
	if err == nil {
		l.machinesFor.Store(&list)
	}
	return err
}

// limitOf says whom a machine is for, nil for everybody.
func (l *appliance) limitOf(machine string) *ctl.NodeLimit {
	limits := l.machinesFor.Load()
	if limits == nil {
		return nil
	}
	limit, is := (*limits)[machine]
	if !is {
		return nil
	}
	out := &ctl.NodeLimit{For: []string{}}
	for _, role := range limit.Roles {
		out.For = append(out.For, "role:"+role)
	}
	for _, group := range limit.Groups {
		out.For = append(out.For, "group:"+group)
	}
	return out
}

// forWhom says it for people.
func (l *appliance) forWhom(machine string) string { return l.limitOf(machine).Words() }

// limited are the machines that are not for everybody.
func (l *appliance) limited() []string {
	limits := l.machinesFor.Load()
	if limits == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(*limits))
}

// barred are the machines that somebody may not use. Where it cannot be told who
// somebody is, that is all that are not for everybody.
func (l *appliance) barred(userID int64) []string {
	limits := l.machinesFor.Load()
	if limits == nil || len(*limits) == 0 {
		return nil
	}
	ctx := context.Background()
	u, err := l.people.ByID(ctx, userID)
	var groups []string
	if err == nil {
		var list []users.Membership
		list, err = l.people.Memberships(ctx, userID)
		for _, m := range list {
			groups = append(groups, m.Group)
		}
	}
	if err != nil {
		slog.Warn("which machines somebody may use is not known; those that are for some only are kept from them", "err", err)
	}
	var list []string
	for machine, limit := range *limits {
		if err != nil || !limit.Lets(string(u.Role), groups) {
			list = append(list, machine)
		}
	}
	slices.Sort(list)
	return list
}

// parseLimit reads "role:guest" and "group:vision".
func (l *appliance) parseLimit(ctx context.Context, given *ctl.NodeLimit) (*nodes.Limit, error) {
	if given == nil {
		return nil, nil
	}
	limit := &nodes.Limit{}
	for _, who := range given.For {
		kind, name, _ := strings.Cut(strings.TrimSpace(who), ":")
		switch {
		case kind == "role" && users.Role(name).Valid():
			limit.Roles = append(limit.Roles, name)
		case kind == "group" && name != "":
			g, err := l.people.Group(ctx, name)
			if err != nil {
				return nil, err
			}
			limit.Groups = append(limit.Groups, g.Name)
		default:
			return nil, &users.Error{Kind: ctl.ErrNodeLimit, Text: fmt.Sprintf("%.60q is nobody a machine can be for; write "+
				"role:guest, group:NAME, or everybody alone", who)}
		}
	}
	slices.Sort(limit.Roles)
	slices.Sort(limit.Groups)
	limit.Roles, limit.Groups = slices.Compact(limit.Roles), slices.Compact(limit.Groups)
	return limit, nil
}

// Limit says whom a machine is for from now on, nil for everybody.
func (m machines) Limit(ctx context.Context, name string, given *ctl.NodeLimit) (*ctl.NodeLimit, error) {
	l := m.lab
	if !l.known(name) {
		return nil, l.noMachine(name)
	}
	limit, err := l.parseLimit(ctx, given)
	if err != nil {
		return nil, err
	}
	err = l.pool.registry.Limit(ctx, name, limit)
	if errors.Is(err, nodes.ErrNoGroup) {
		err = &users.Error{Kind: ctl.ErrNodeLimit, Text: "one of these groups is gone; `gpulab group list` lists them"}
	}
	if err := errors.Join(err, l.rereadLimits(ctx)); err != nil {
		return nil, err
	}
	l.poolChanged() // who waits may start now
	return l.limitOf(name), nil
}

// LimitNode implements ctl.Daemon.
func (l *appliance) LimitNode(ctx context.Context, name string, limit *ctl.NodeLimit) error {
	made, err := machines{l}.Limit(ctx, name, limit)
	if err == nil {
		l.recordRoot(ctx, "node.limit", name, "for "+made.Words())
	}
	return err
}

func newNodesFor(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "for NAME everybody | role:ROLE | group:NAME ...", Short: "Say whom a machine is for",
		Long: `Say whom a machine, the head or another, is for: everybody, as at first, or who has
one of the roles or is in one of the groups. Others' notebooks never start there,
an admin's neither; their pages say so while they wait. What runs there goes on.`,
		Example: "  sudo gpulab nodes for gpu-box group:vision\n  sudo gpulab nodes for gpu-two role:guest " +
			"group:seminar\n  sudo gpulab nodes for gpu-box everybody",
		Args: cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			limit := &ctl.NodeLimit{For: args[1:]}
			if len(args) == 2 && args[1] == "everybody" {
				limit = nil
			}
			if err := a.client().LimitNode(c.Context(), args[0], limit); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%s is for %s from now on; what runs there goes on.\n", args[0], limit.Words())
			return nil
		},
	}
}
