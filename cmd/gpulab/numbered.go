package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
)

// numberCommand is a command about the one thing of a list that has a number:
// do returns what --json prints, and the sentence for others.
func numberCommand(use, short, example string,
	do func(c *cobra.Command, id int64) (any, string, error)) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: use, Short: short, Example: example, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return fail(exitUsage, "%q is no number; `%s list` shows which there are", args[0], c.Parent().CommandPath())
			}
			if err := requireRoot(c); err != nil {
				return err
			}
			v, said, err := do(c, id)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), v)
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), said)
			return err
		},
	}
	jsonFlag(c, &asJSON)
	return c
}
