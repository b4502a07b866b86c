package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/embedk8s"
)

func newKubectl(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "kubectl ...", Short: "Run kubectl with the lab's credentials",
		Long: "Run the kubectl that comes with gpulab, as the cluster's administrator. It ends\nwith " +
			"kubectl's own exit code.",
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
			return runKubectl(c, cfg, args)
		},
	}
}

// runKubectl ends with kubectl's own exit code. A signal ends both: that is
// how one leaves what goes on showing.
func runKubectl(c *cobra.Command, cfg config.Config, args []string) error {
	kubeconfig := filepath.Join(cfg.DataDir, "kubeconfig")
	if _, err := os.Stat(kubeconfig); err != nil {
		return fail(exitNotRunning, "there is no cluster on this machine yet; start it with `gpulab init`")
	}
	cmd := exec.CommandContext(c.Context(), filepath.Join(embedk8s.Current(cfg.DataDir), "kubectl"), args...)
	// Its cache would stay behind in the home of whoever ran it.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "KUBECACHEDIR="+filepath.Join(cfg.DataDir, "kubectl-cache"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, c.OutOrStdout(), c.ErrOrStderr()
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case c.Context().Err() != nil:
		return nil
	case errors.As(err, &exit):
		return fail(exit.ExitCode(), "kubectl ended with code %d", exit.ExitCode())
	}
	return err
}
