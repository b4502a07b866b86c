package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/version"
)

// InviteNode implements ctl.Daemon.
func (l *appliance) InviteNode(ctx context.Context) (ctl.NodeInvitation, error) {
	code, expires, addresses, err := l.pool.invite(ctx)
	if err != nil {
		return ctl.NodeInvitation{}, err
	}
	l.audit(ctx, "node.invite", "")
	out := ctl.NodeInvitation{Command: "gpulab join " + code.String(), Code: code.String(), Expires: expires, Addresses: addresses}
	if !l.cfg.Storage.everywhere() {
		out.Note = fmt.Sprintf("Its GPUs will be in the pool, but notebooks start on %s only until every machine has the homes; see storage.export and storage.shared in the configuration.", l.id.NodeName)
	}
	return out, nil
}

// Nodes implements ctl.Daemon.
func (l *appliance) Nodes(ctx context.Context) (ctl.Machines, error) {
	s, err := l.Status(ctx)
	return ctl.Machines{Nodes: s.Nodes, Note: l.stayHomeNote()}, err
}

// joinedNodes are the machines of the pool besides the head.
func (l *appliance) joinedNodes(ctx context.Context) []ctl.Node {
	var out []ctl.Node
	for _, n := range l.pool.describe(ctx) {
		node := ctl.Node{
			Name: n.Name, Address: n.Address, Role: "node", Version: n.Version, State: ctl.NodeReady,
			OtherVersion: n.Version != version.Version,
			GPUs:         len(n.snapshot.GPUs), Simulated: n.snapshot.Simulated, LastContact: n.last, Joined: n.Joined,
		}
		switch {
		case n.lost:
			node.State, node.Detail = ctl.NodeLost, lostSentence(n.Name, n.last)
		case nodeapi.Skew(n.Name, n.Version, version.Version) != nil:
			node.State, node.Detail = ctl.NodeNotReady, skewSentence(nodeapi.Skew(n.Name, n.Version, version.Version))
		case !n.reported || !n.registered:
			node.State, node.Detail = ctl.NodeStarting, "it is on its way into the pool"
		case n.notReady != "":
			node.State, node.Detail = ctl.NodeNotReady, n.notReady
		case n.ahead != 0:
			node.Detail = clockSentence(n.Name, n.ahead)
		}
		node.Ready = node.State == ctl.NodeReady
		out = append(out, node)
	}
	return out
}

// clockSentence says that a machine's clock is wrong; its readings are put right.
func clockSentence(name string, ahead time.Duration) string {
	word := "ahead of"
	if ahead < 0 {
		word = "behind"
	}
	return fmt.Sprintf("The clock of %s is %s %s the head's; set both right (`timedatectl set-ntp true`).", name, ahead.Abs().Round(time.Second), word)
}

// machinesComponent says how the pool's other machines are, where there are any.
func (l *appliance) machinesComponent(list []ctl.Node) (ctl.Component, bool) {
	if len(list) < 2 {
		return ctl.Component{}, false
	}
	c := ctl.Component{Name: "machines", State: ctl.OK, Detail: fmt.Sprintf("%d in the pool", len(list))}
	var away []string
	for _, n := range list[1:] {
		if !n.Ready {
			away = append(away, n.Name+" is "+n.State)
		}
	}
	if len(away) > 0 {
		c.State, c.NextStep = ctl.Warning, "`gpulab nodes` says more"
		c.Detail += ": " + strings.Join(away, ", ")
	}
	if note := l.stayHomeNote(); note != "" {
		c.Detail += ". " + note
	}
	return c, true
}

// RemoveNode implements ctl.Daemon.
func (l *appliance) RemoveNode(ctx context.Context, name string, anyway bool) (ctl.RemovedNode, error) {
	parts := l.attached.Load()
	if parts == nil {
		return ctl.RemovedNode{}, errStarting
	}
	if name == l.id.NodeName {
		return ctl.RemovedNode{}, fmt.Errorf("%s is the head: without it there is no pool; `gpulab reset` takes gpulab off it", name)
	}
	out := ctl.RemovedNode{Name: name}
	for _, p := range parts.kube.Notebooks() {
		if p.Node == name && !p.Finished {
			out.Notebooks = append(out.Notebooks, p.Handle+"/"+p.Server)
		}
	}
	slices.Sort(out.Notebooks)
	if len(out.Notebooks) > 0 && !anyway {
		return out, fmt.Errorf("these notebooks run on %s and would end: %s; say --yes to remove it all the same", name, strings.Join(out.Notebooks, ", "))
	}
	for _, n := range l.pool.list() {
		if n.Name == name {
			_, silent := l.pool.silent(n, time.Now())
			out.Cleans = !silent
		}
	}
	n, err := l.pool.remove(ctx, name)
	if errors.Is(err, nodes.ErrUnknown) {
		return out, fmt.Errorf("there is no machine named %q in the pool; `gpulab nodes` lists them", name)
	}
	if err == nil || n.ID != 0 {
		l.audit(ctx, "node.remove", name)
	}
	return out, err
}

func newInviteNode(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "invite-node", Short: "Make the line with which another machine joins the pool",
		Long: `Make the line with which another machine joins the pool: gpulab join CODE, typed
there as root. The code in it is a secret; it works once, for an hour, and says
where this lab is and how to know it.`,
		Example: "  sudo gpulab invite-node\n  sudo gpulab invite-node --json | jq -r .code",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			invitation, err := a.client().InviteNode(c.Context())
			if err != nil {
				return err
			}
			out := c.OutOrStdout()
			if asJSON {
				return printJSON(out, invitation)
			}
			fmt.Fprintf(out, "On the new machine, with gpulab installed, as root:\n\n  %s\n\nIt works once, until %s. The new machine reaches this one at %s.\n",
				invitation.Command, invitation.Expires.Local().Format("15:04"), strings.Join(invitation.Addresses, " or "))
			if invitation.Note != "" {
				fmt.Fprintln(out, invitation.Note)
			}
			return nil
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func newNodes(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "nodes", Short: "The machines of the pool: how they are, and since when",
		Long: `Show the machines of the pool: how each is, its GPUs, its version of gpulab, and
when it was last heard of. gpulab invite-node adds one.`,
		Example: "  sudo gpulab nodes\n  sudo gpulab nodes --json | jq '.nodes[] | select(.state != \"ready\")'\n  sudo gpulab nodes remove gpu-box",
		Args:    knownCommand,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			m, err := a.client().Nodes(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), m)
			}
			return printNodes(c.OutOrStdout(), m, time.Now())
		},
	}
	jsonFlag(c, &asJSON)
	c.AddCommand(newNodesRemove(a), newNodesRequests(a), newNodesAnswer(a, true), newNodesAnswer(a, false))
	return c
}

func printNodes(w io.Writer, m ctl.Machines, now time.Time) error {
	var others []string // of another version than the head
	rows := [][]string{{"NODE", "ROLE", "STATE", "ADDRESS", "GPUS", "VERSION", "LAST CONTACT"}}
	for _, n := range m.Nodes {
		last := "–"
		if !n.LastContact.IsZero() {
			last = inWords(now.Sub(n.LastContact)) + " ago"
		}
		gpus := fmt.Sprint(n.GPUs)
		if n.Simulated {
			gpus += " (simulated)"
		}
		runs := visibly(n.Version)
		if n.OtherVersion {
			runs, others = runs+" ≠", append(others, n.Name)
		}
		rows = append(rows, []string{n.Name, n.Role, n.State, n.Address, gpus, runs, last})
	}
	if err := table(w, rows); err != nil {
		return err
	}
	for _, n := range m.Nodes {
		if (n.State != ctl.NodeReady || n.Role == "node") && n.Detail != "" {
			fmt.Fprintf(w, "\n%s\n", visibly(n.Detail))
		}
	}
	if len(others) > 0 {
		fmt.Fprintf(w, "\n≠ another version than the head's: %s. That works from one release to the next; upgrade all, the head first.\n", strings.Join(others, ", "))
	}
	if m.Note != "" {
		fmt.Fprintf(w, "\n%s\n", m.Note)
	}
	return nil
}

func newNodesRemove(a *app) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "remove NAME", Short: "Take a machine out of the pool, and gpulab off it",
		Long: `Take a machine out of the pool: its certificate is worth nothing from then on,
Kubernetes forgets it, and if it can be reached it takes gpulab off itself. One
that is away does so when it is back, or by gpulab leave.`,
		Example: "  sudo gpulab nodes remove gpu-box\n  sudo gpulab nodes remove gpu-box --yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			out := c.OutOrStdout()
			if !yes && isTerminal(c.InOrStdin()) {
				q := &asker{in: bufio.NewReader(c.InOrStdin()), out: out}
				if answer := q.line(fmt.Sprintf("This takes %s out of the pool. Go on? (yes/no)", args[0]), "no"); !strings.EqualFold(answer, "yes") {
					return nil
				}
			}
			removed, err := a.client().RemoveNode(c.Context(), args[0], yes)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "%s is out of the pool.\n", removed.Name)
			if removed.Cleans {
				fmt.Fprintln(out, "It takes gpulab off itself now.")
			} else {
				fmt.Fprintln(out, "It cannot be reached: it takes gpulab off itself when it is back, or by `gpulab leave` there.")
			}
			return nil
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask, and end notebooks that run there")
	return c
}
