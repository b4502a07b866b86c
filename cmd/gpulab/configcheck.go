package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/config"
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
			own, err := cfg.TLS.Open()
			if err != nil {
				return err
			}
			if trouble := cfg.Uncovered(own); trouble != "" {
				fmt.Fprintf(c.OutOrStdout(), "%s: %s.\n", a.configPath, trouble)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s is right.\n", a.configPath)
			return err
		},
	})
	return c
}

// loadConfig reads the configuration. A mistake in it ends the program with exitUsage.
func loadConfig(path string) (config.Config, error) {
	cfg, err := config.Load(path)
	if mistake := (*config.Error)(nil); errors.As(err, &mistake) {
		return cfg, fail(exitUsage, "%w", err)
	}
	return cfg, err
}
