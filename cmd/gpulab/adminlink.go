package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newAdminLink(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "admin-link", Short: "Make the one-time link that creates the first administrator",
		Long: "Make a link that works once, for one hour: whoever opens it chooses a name\nand a password and becomes " +
			"the lab's first administrator. A lab that has one\nmakes others on its page, and new passwords with `gpulab " +
			"user passwd`.",
		Example: "  sudo gpulab admin-link\n  sudo gpulab admin-link --json | jq -r .url",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			l, err := a.client().AdminLink(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), l)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s\nworks once, until %s\n", l.URL, l.Expires.Local().Format("15:04"))
			return err
		},
	}
	jsonFlag(c, &asJSON)
	return c
}
