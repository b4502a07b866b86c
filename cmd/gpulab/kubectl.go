package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/embedk8s"
)

func newKubectl(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "kubectl ...", Short: "Run kubectl with the lab's credentials",
		Example:            "  sudo gpulab kubectl get pods -A",
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			cfg, err := loadConfig(a.configPath)
			if err != nil {
				return err
			}
			kubeconfig := filepath.Join(cfg.DataDir, "kubeconfig")
			if _, err := os.Stat(kubeconfig); err != nil {
				return fail(exitNotRunning, "there is no cluster on this machine yet; start it with `gpulab init`")
			}
			cmd := exec.CommandContext(c.Context(), filepath.Join(embedk8s.Current(cfg.DataDir), "kubectl"), args...)
			cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, c.OutOrStdout(), c.ErrOrStderr()
			var exit *exec.ExitError
			if err := cmd.Run(); errors.As(err, &exit) {
				return fail(exit.ExitCode(), "kubectl ended with code %d", exit.ExitCode())
			} else if err != nil {
				return err
			}
			return nil
		},
	}
}
