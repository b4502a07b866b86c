package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/gpulab/gpulab/internal/version"
)

func newManPages() *cobra.Command {
	return &cobra.Command{
		Use: "man FOLDER", Short: "Write the manual pages into a folder",
		Example:           "  gpulab man ./man\n  sudo gpulab man /usr/local/share/man/man1",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeFolders,
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("the folder for the manual pages: %w", err)
			}
			root := c.Root()
			root.DisableAutoGenTag = true
			return doc.GenManTree(root, &doc.GenManHeader{Title: "GPULAB", Section: "1", Source: "gpulab " + version.Version,
				Manual: "gpulab"}, args[0])
		},
	}
}

func completeFolders(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}
