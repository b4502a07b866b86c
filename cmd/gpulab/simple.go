package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/gpulab/gpulab/internal/version"
)

func newVersion() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if asJSON {
				return printJSON(c.OutOrStdout(), map[string]string{"version": version.Version})
			}
			_, err := fmt.Fprintln(c.OutOrStdout(), "gpulab", version.Version)
			return err
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func newManPages() *cobra.Command {
	return &cobra.Command{
		Use: "man FOLDER", Short: "Write the manual pages into a folder", Args: cobra.ExactArgs(1),
		Example: "  gpulab man /usr/local/share/man/man1",
		RunE: func(c *cobra.Command, args []string) error {
			root := c.Root()
			root.DisableAutoGenTag = true
			return doc.GenManTree(root, &doc.GenManHeader{Title: "GPULAB", Section: "1", Source: "gpulab " + version.Version, Manual: "gpulab"}, args[0])
		},
	}
}

func newExitCodes() *cobra.Command {
	return &cobra.Command{
		Use: "exit-codes", Short: "What gpulab's exit codes mean",
		Long: `gpulab's exit codes:

  0  done
  1  something failed; the last line says what, and what to do
  2  the command line or the configuration is wrong
  3  the command needs root
  4  the machine is not ready for gpulab; each reason is shown
  5  gpulab does not run on this machine
  6  gpulab runs, but is not ready (gpulab status)`,
	}
}
