package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
)

func newStatus(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "status", Short: "How every part is, and what to do next",
		Example: "  sudo gpulab status\n  sudo gpulab status --json | jq .ready",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			s, err := a.client().Status(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(c.OutOrStdout(), s)
			} else {
				err = printStatus(c.OutOrStdout(), s)
			}
			if err == nil && !s.Ready {
				if s.Pool != nil {
					return fail(exitNotReady, "this machine is not ready in the pool")
				}
				return fail(exitNotReady, "the lab is not ready")
			}
			return err
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func printStatus(w io.Writer, s ctl.Status) error {
	if p := s.Pool; p != nil {
		fmt.Fprintf(w, "%s, a machine in the pool of %s, whose head is %s (%s)  gpulab %s", p.Name, visibly(p.Lab), p.Head,
			s.URL, s.Version)
	} else {
		fmt.Fprintf(w, "%s  gpulab %s", s.URL, s.Version)
	}
	if s.Before != "" {
		fmt.Fprintf(w, " (`gpulab rollback` leads to %s)", s.Before)
	}
	fmt.Fprint(w, "\n\n")
	rows := [][]string{{"PART", "STATE", "DETAIL"}}
	for _, c := range s.Components {
		rows = append(rows, []string{c.Name, string(c.State), c.Detail})
		if c.NextStep != "" {
			rows = append(rows, []string{"", "→", c.NextStep})
		}
	}
	return table(w, rows)
}
