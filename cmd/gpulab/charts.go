package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newCharts(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "charts", Short: "List what gpulab installed in the cluster",
		Example: "  sudo gpulab charts\n  sudo gpulab charts --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			releases, err := a.client().Charts(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), releases)
			}
			rows := [][]string{{"RELEASE", "NAMESPACE", "CHART", "APP", "REVISION", "STATE"}}
			for _, r := range releases {
				rows = append(rows, []string{
					r.Name, r.Namespace, r.Chart + " " + r.Version, r.AppVersion, fmt.Sprint(r.Revision), r.State,
				})
			}
			return table(c.OutOrStdout(), rows)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}
