package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newConfig(a *app) *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Look at the configuration file", Example: "  gpulab config check"}
	c.AddCommand(&cobra.Command{
		Use: "check", Short: "Say what is wrong with the configuration file",
		Long: `Read the configuration file as gpulab would at its start, and say what is wrong
with it: an unknown key, a value that cannot be. Nothing is changed.`,
		Example: "  gpulab config check\n  gpulab config check --config new.yaml",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := loadConfig(a.configPath)
			if err != nil {
				return err
			}
			own, err := cfg.TLS.open()
			if err != nil {
				return err
			}
			if trouble := cfg.uncovered(own); trouble != "" {
				fmt.Fprintf(c.OutOrStdout(), "%s: %s.\n", a.configPath, trouble)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s is right.\n", a.configPath)
			return err
		},
	})
	return c
}
