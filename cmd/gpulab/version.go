package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/upgrade"
	"github.com/gpulab/gpulab/internal/version"
)

// versions is what this machine has of gpulab.
type versions struct {
	upgrade.Version
	// InUse is the version that the lab runs, where that is not this program's.
	InUse string `json:"inUse,omitempty"`
}

func newVersion(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "version", Short: "Print the version",
		Example: "  gpulab version\n  gpulab version --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v := versions{Version: thisVersion()}
			// Only root may look; whoever may not hears of the program alone.
			if dataDir, err := dataDirOf(a.configPath); err == nil {
				if u, err := upgrade.Current(dataDir, version.Version); err == nil && u.RolledBack() {
					v.InUse = u.Version
				}
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), v)
			}
			return printVersion(c.OutOrStdout(), v)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func printVersion(w io.Writer, v versions) error {
	_, err := fmt.Fprintln(w, "gpulab", v.Version.Version)
	if err == nil && v.InUse != "" {
		_, err = fmt.Fprintf(w, "The lab on this machine runs gpulab %s since a rollback; `gpulab rollback` leads forth "+
			"again.\n", v.InUse)
	}
	return err
}
