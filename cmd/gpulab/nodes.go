package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/version"
)

// InviteNode implements ctl.Daemon.
func (l *appliance) InviteNode(ctx context.Context) (ctl.NodeInvitation, error) {
	out, err := machines{l}.Invite(ctx)
	if err == nil {
		l.recordRoot(ctx, "node.invite", "", "")
	}
	return out, err
}

// Nodes implements ctl.Daemon.
func (l *appliance) Nodes(ctx context.Context) (ctl.Machines, error) { return machines{l}.Nodes(ctx) }

// WithdrawInvitation implements ctl.Daemon.
func (l *appliance) WithdrawInvitation(ctx context.Context, id string) error {
	err := machines{l}.Withdraw(ctx, id)
	if err == nil {
		l.recordRoot(ctx, "node.withdraw", id, "")
	}
	return err
}

// RemoveNode implements ctl.Daemon.
func (l *appliance) RemoveNode(ctx context.Context, name string, anyway bool) (ctl.RemovedNode, error) {
	out, err := machines{l}.Remove(ctx, name, anyway)
	if err == nil {
		l.recordRoot(ctx, "node.remove", name, "")
	}
	return out, err
}

// CordonNode implements ctl.Daemon.
func (l *appliance) CordonNode(ctx context.Context, name, reason string) (ctl.Cordon, error) {
	out, err := machines{l}.Cordon(ctx, name, "root", reason)
	if err == nil {
		l.recordRoot(ctx, "node.cordon", name, out.Reason)
	}
	return out, err
}

// UncordonNode implements ctl.Daemon.
func (l *appliance) UncordonNode(ctx context.Context, name string) error {
	err := machines{l}.Uncordon(ctx, name)
	if err == nil {
		l.recordRoot(ctx, "node.uncordon", name, "")
	}
	return err
}

// DrainNode implements ctl.Daemon.
func (l *appliance) DrainNode(ctx context.Context, name string, d ctl.Drain) (ctl.Cordon, error) {
	out, err := machines{l}.Drain(ctx, name, "root", d)
	if err == nil {
		l.recordRoot(ctx, "node.drain", name, out.Detail())
	}
	return out, err
}

// KeepNode implements ctl.Daemon.
func (l *appliance) KeepNode(ctx context.Context, name string) error {
	err := machines{l}.Keep(ctx, name)
	if err == nil {
		l.recordRoot(ctx, "node.keep", name, "")
	}
	return err
}

// joinedNodes are the machines of the pool besides the head.
func (l *appliance) joinedNodes(ctx context.Context) []ctl.Node {
	var out []ctl.Node
	for _, n := range l.pool.describe(ctx) {
		node := ctl.Node{
			Name: n.Name, Title: l.titleOf(n.Name), Address: n.Address, Role: "node", Version: n.Version, State: ctl.NodeReady,
			OtherVersion: n.Version != version.Version,
			GPUs:         len(n.snapshot.GPUs), Simulated: n.snapshot.Simulated, LastContact: n.last, Joined: n.Joined,
			Host: toldHost(n.host), Notebooks: l.notebooksOn(n.Name), Cordon: l.cordonOf(n.Name), Limit: l.limitOf(n.Name),
			Images: n.images, Environments: n.environments,
		}
		if n.reported {
			node.ClockOffset = new(n.ahead.Seconds())
		}
		switch {
		case n.lost:
			node.State, node.Detail = ctl.NodeLost, lostSentence(l.called(n.Name), n.last)
		case nodeapi.Skew(n.Name, n.Version, version.Version) != nil:
			node.State, node.Detail = ctl.NodeNotReady, skewSentence(nodeapi.Skew(n.Name, n.Version, version.Version))
		case !n.reported || !n.registered:
			node.State, node.Detail = ctl.NodeStarting,
				strings.TrimSpace("it is on its way into the pool. "+imageSentence(l.called(n.Name), n.images))
		case encryptionSentence(l.called(n.Name), l.cfg.Network.Encrypt, n.encryption) != "":
			node.State, node.Detail = ctl.NodeNotReady, encryptionSentence(l.called(n.Name), l.cfg.Network.Encrypt, n.encryption)
		case n.notReady != "":
			node.State, node.Detail = ctl.NodeNotReady, n.notReady
		case n.ahead != 0:
			node.Detail = clockSentence(l.called(n.Name), n.ahead)
		default:
			node.Detail = strings.TrimSpace(imageSentence(l.called(n.Name),
				n.images) + " " + environmentSentence(l.called(n.Name), n.environments))
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
	return fmt.Sprintf("The clock of %s is %s %s the head's; set both right (`timedatectl set-ntp true`).", name,
		ahead.Abs().Round(time.Second), word)
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
			away = append(away, n.Shown()+" is "+n.State)
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
			fmt.Fprintf(out, "On the new machine, with gpulab installed, as root:\n\n  %s\n\nIt works once, until %s. The "+
				"new machine reaches this one at %s.\n",
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
		Example: "  sudo gpulab nodes\n  sudo gpulab nodes --json | jq '.nodes[] | select(.state != \"ready\")'\n  sudo " +
			"gpulab nodes remove gpu-box",
		Args: knownCommand,
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
	c.AddCommand(newNodesRemove(a), newNodesRequests(a), newNodesAnswer(a, true), newNodesAnswer(a, false),
		newNodesWithdraw(a),
		newNodesCordon(a), newNodesUncordon(a), newNodesDrain(a), newNodesRename(a), newNodesPlacing(a), newNodesFor(a))
	return c
}

func printNodes(w io.Writer, m ctl.Machines, now time.Time) error {
	var others []string // of another version than the head
	rows := [][]string{{"NODE", "ROLE", "STATE", "ADDRESS", "GPUS", "VERSION", "LAST CONTACT"}}
	titled := slices.ContainsFunc(m.Nodes, func(n ctl.Node) bool { return n.Title != "" })
	if titled {
		rows[0] = append(rows[0], "SHOWN AS")
	}
	for _, n := range m.Nodes {
		last := "–"
		if !n.LastContact.IsZero() {
			last = units.Lasting(now.Sub(n.LastContact)) + " ago"
		}
		gpus := fmt.Sprint(n.GPUs)
		if n.Simulated {
			gpus += " (simulated)"
		}
		runs := visibly(n.Version)
		if n.OtherVersion {
			runs, others = runs+" ≠", append(others, n.Name)
		}
		row := []string{n.Name, n.Role, n.State, n.Address, gpus, runs, last}
		if titled {
			row = append(row, cmp.Or(n.Title, "–"))
		}
		rows = append(rows, row)
	}
	if err := table(w, rows); err != nil {
		return err
	}
	for _, n := range m.Nodes {
		if (n.State != ctl.NodeReady || n.Role == "node") && n.Detail != "" {
			fmt.Fprintf(w, "\n%s\n", visibly(n.Detail))
		}
		if n.Limit != nil {
			fmt.Fprintf(w, "\n%s is for %s only.\n", visibly(n.Shown()), n.Limit.Words())
		}
		if n.Cordon != nil {
			fmt.Fprintf(w, "\n%s\n", visibly(cordonLine(n)))
		}
	}
	if len(others) > 0 {
		fmt.Fprintf(w, "\n≠ another version than the head's: %s. That works from one release to the next; upgrade all, "+
			"the head first.\n", strings.Join(others, ", "))
	}
	if m.Note != "" {
		fmt.Fprintf(w, "\n%s\n", m.Note)
	}
	if len(m.Requests) > 0 {
		fmt.Fprintf(w, "\nWithout a code, %s to be let in: `gpulab nodes requests` shows the numbers to compare.\n",
			askers(m.Requests))
	}
	for i, open := range m.Invitations {
		if i == 0 {
			fmt.Fprint(w, "\nOpen invitations (`gpulab nodes withdraw ID` makes one worthless):\n")
		}
		fmt.Fprintf(w, "  %s  until %s\n", open.ID, open.Expires.Local().Format("15:04"))
	}
	return nil
}

// askers are machines that ask to be let in: "b asks", "b and c ask".
func askers(list []ctl.NodeRequest) string {
	var names []string
	for _, r := range list {
		names = append(names, r.Name)
	}
	if len(names) == 1 {
		return names[0] + " asks"
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1] + " ask"
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
				m, err := a.client().Nodes(c.Context())
				if err != nil {
					return err
				}
				q := &asker{in: bufio.NewReader(c.InOrStdin()), out: out}
				if answer := q.line(removeQuestion(m, args[0]), "no"); !strings.EqualFold(answer, "yes") {
					return nil
				}
				yes = true // they have read what ends
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

// removeQuestion says what a removal ends.
func removeQuestion(m ctl.Machines, name string) string {
	var ends []string
	for _, n := range m.Nodes {
		for _, b := range n.Notebooks {
			if n.Name == name {
				ends = append(ends, b.User+"/"+b.Name)
			}
		}
	}
	text := fmt.Sprintf("This takes %s out of the pool.", name)
	if len(ends) > 0 {
		text += fmt.Sprintf(" These notebooks run there and end: %s. (`gpulab nodes drain %s` would give their owners "+
			"notice.)", strings.Join(ends, ", "), name)
	}
	return text + " Go on? (yes/no)"
}

func newNodesWithdraw(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "withdraw ID", Short: "Make an invitation worthless that nobody has used",
		Long: `Make an invitation worthless that nobody has used yet, such as one that went to the
wrong person. gpulab nodes lists those that are open.`,
		Example: "  sudo gpulab nodes withdraw 4f1a22c09b7d3e58",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			if err := a.client().WithdrawInvitation(c.Context(), args[0]); err != nil {
				return err
			}
			fmt.Fprintln(c.OutOrStdout(), "Its code is worth nothing any more.")
			return nil
		},
	}
}
