package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/units"
)

// NodeRequests implements ctl.Daemon.
func (l *appliance) NodeRequests(context.Context) ([]ctl.NodeRequest, error) {
	if l.pool == nil {
		return nil, errStarting
	}
	out := []ctl.NodeRequest{}
	for _, r := range l.pool.requests.List() {
		out = append(out, asked(r))
	}
	return out, nil
}

// AnswerNode implements ctl.Daemon.
func (l *appliance) AnswerNode(ctx context.Context, number string, accept bool) (ctl.NodeRequest, error) {
	if l.pool == nil {
		return ctl.NodeRequest{}, errStarting
	}
	r, err := machines{l}.Answer(ctx, number, accept)
	if err != nil {
		return r, err
	}
	action := "node.decline"
	if accept {
		action = "node.accept"
	}
	l.recordRoot(ctx, action, r.Target(), "")
	return r, nil
}

// answer lets the machine that asks with a number in, or does not. Whoever calls
// it has seen the number on that machine's screen.
func (p *pool) answer(ctx context.Context, number string, accept bool) (nodes.Request, error) {
	if !accept {
		return p.requests.Refuse(number)
	}
	return p.requests.Accept(number, func(key [sha256.Size]byte) (nodes.Code, error) {
		code, _, _, err := p.invite(ctx, &key)
		return code, err
	})
}

func asked(r nodes.Request) ctl.NodeRequest {
	return ctl.NodeRequest{
		Number: r.Number, Name: r.Name, Address: r.Address, Version: r.Version, Asked: r.Asked, Expires: r.Expires,
	}
}

func newNodesRequests(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "requests", Short: "The machines that ask to be let in, with their numbers",
		Long: `Show the machines that ask to be let in without a code: gpulab join on them has
found this head on the local network. The number must be the same on the
machine's own screen; name and address prove nothing. Requests end after ten minutes.`,
		Example: "  sudo gpulab nodes requests\n  sudo gpulab nodes accept 123456",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			list, err := a.client().NodeRequests(c.Context())
			if err != nil {
				return err
			}
			out := c.OutOrStdout()
			if asJSON {
				return printJSON(out, list)
			}
			if len(list) == 0 {
				fmt.Fprintln(out, "No machine asks to be let in.")
				return nil
			}
			rows := [][]string{{"NUMBER", "NAME", "ADDRESS", "VERSION", "ASKED"}}
			for _, r := range list {
				rows = append(rows, []string{
					r.Number, r.Name, r.Address, visibly(r.Version), units.Lasting(time.Since(r.Asked)) + " ago",
				})
			}
			if err := table(out, rows); err != nil {
				return err
			}
			fmt.Fprintln(out, "\nAccept a machine only if the number is on its own screen: `gpulab nodes accept NUMBER`.")
			return nil
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func newNodesAnswer(a *app, accept bool) *cobra.Command {
	c := &cobra.Command{
		Use: "refuse NUMBER", Short: "Do not let a machine in that asks",
		Long:    "Do not let the machine in that asks with this number.",
		Example: "  sudo gpulab nodes refuse 123456",
	}
	if accept {
		c.Use, c.Short = "accept NUMBER", "Let a machine in that asks, by the number on its screen"
		c.Long = `Let the machine in that asks with this number, which must be read from the
machine's own screen: it covers what both sides are known by, so that nobody can
be in between. It works once.`
		c.Example = "  sudo gpulab nodes accept 123456"
	}
	c.Args = cobra.RangeArgs(1, 2) // people write 123 456
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := requireRoot(c); err != nil {
			return err
		}
		r, err := a.client().AnswerNode(c.Context(), unspaced(args), accept)
		if err != nil {
			return err
		}
		if accept {
			fmt.Fprintf(c.OutOrStdout(), "%s at %s may join now, and goes on by itself.\n", r.Name, r.Address)
		} else {
			fmt.Fprintf(c.OutOrStdout(), "%s at %s is not let in.\n", r.Name, r.Address)
		}
		return nil
	}
	return c
}
