package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/nodes"
)

// cordonLine says that a machine takes no new work, and who still works there.
func cordonLine(n ctl.Node) string {
	c := n.Cordon
	text := cordonSentence(nodes.Cordon{Machine: n.Shown(), Reason: c.Reason, EmptyAt: c.EmptyAt})
	if c.By != "" {
		text += fmt.Sprintf(" (by %s, %s)", c.By, c.Since.Local().Format("Mon 2 Jan 15:04"))
	}
	var there []string
	for _, b := range n.Notebooks {
		there = append(there, b.User+"/"+b.Name)
	}
	if len(there) > 0 {
		text += " Still there: " + strings.Join(there, ", ") + "."
	}
	return text
}

func newNodesCordon(a *app) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "cordon NAME", Short: "Let a machine take no new work",
		Long: `Let a machine, the head or another, take no new notebooks. What runs there goes
on. The reason is shown to everybody, and to those who wait.`,
		Example: "  sudo gpulab nodes cordon gpu-box --reason 'new memory on Friday'\n  sudo gpulab nodes uncordon gpu-box",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			if _, err := a.client().CordonNode(c.Context(), args[0], reason); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%s takes no new work; what runs there goes on. `gpulab nodes uncordon %[1]s` takes "+
				"that back.\n", args[0])
			return nil
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for everybody to read")
	return c
}

func newNodesUncordon(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "uncordon NAME", Short: "Let a machine take work again",
		Long: `Let a machine take new notebooks again, after cordon or drain. Notebooks on one
that was being emptied stay.`,
		Example: "  sudo gpulab nodes uncordon gpu-box",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			if err := a.client().UncordonNode(c.Context(), args[0]); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%s takes new work.\n", args[0])
			return nil
		},
	}
}

func newNodesDrain(a *app) *cobra.Command {
	var reason string
	var in time.Duration
	var now, keep bool
	c := &cobra.Command{
		Use: "drain NAME", Short: "Empty a machine, with notice to those who work there",
		Long: `Empty a machine, the head or another: it takes no new notebooks, those who have
notebooks there are told when these end, and can stop them and start them again
elsewhere before. At the end what is left is stopped in order. The machine takes
no work then until gpulab nodes uncordon.`,
		Example: "  sudo gpulab nodes drain gpu-box --in 2h --reason 'new memory'\n  sudo gpulab nodes drain gpu-box " +
			"--now\n  sudo gpulab nodes drain gpu-box --cancel",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			out := c.OutOrStdout()
			if keep {
				if err := a.client().KeepNode(c.Context(), args[0]); err != nil {
					return err
				}
				fmt.Fprintf(out, "Notebooks on %s stay; it still takes no new work. `gpulab nodes uncordon %[1]s` changes that.\n",
					args[0])
				return nil
			}
			if now {
				in = 0
			}
			cordon, err := a.client().DrainNode(c.Context(), args[0], ctl.Drain{Reason: reason, In: in})
			if err != nil {
				return err
			}
			if in == 0 {
				fmt.Fprintf(out, "%s takes no new work, and notebooks there end now.\n", args[0])
				return nil
			}
			fmt.Fprintf(out, "%s takes no new work. Notebooks there end %s; their owners are told. `gpulab nodes` says who "+
				"is still there, and `gpulab nodes drain %[1]s --cancel` lets them stay.\n", args[0], atTime(cordon.EmptyAt))
			return nil
		},
	}
	c.Flags().DurationVar(&in, "in", 2*time.Hour, "how long notebooks there may go on, such as 30m or 2h")
	c.Flags().BoolVar(&now, "now", false, "end them now")
	c.Flags().BoolVar(&keep, "cancel", false, "let them stay after all")
	c.Flags().StringVar(&reason, "reason", "", "why, for everybody to read")
	c.MarkFlagsMutuallyExclusive("in", "now", "cancel")
	c.MarkFlagsMutuallyExclusive("reason", "cancel")
	return c
}
