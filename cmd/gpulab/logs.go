package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"
)

func newLogs(a *app) *cobra.Command {
	var follow bool
	var lines int
	c := &cobra.Command{
		Use: "logs [gpulab|k3s|hub|probe]", Short: "Show the log of gpulab, its Kubernetes, its JupyterHub or its GPU probe",
		Example:   "  sudo gpulab logs -f\n  sudo gpulab logs k3s -n 500\n  sudo gpulab logs hub",
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"gpulab", "k3s", "hub", "probe"},
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			cfg, err := loadConfig(a.configPath)
			if err != nil {
				return err
			}
			part := "gpulab"
			if len(args) == 1 {
				part = args[0]
			}
			if part == "hub" {
				kubectl := []string{"--namespace", systemNamespace, "logs", "deploy/hub", "--tail", strconv.Itoa(lines)}
				if follow {
					kubectl = append(kubectl, "--follow")
				}
				return runKubectl(c, cfg, kubectl)
			}
			command := []string{"tail", "-n", strconv.Itoa(lines)}
			path := filepath.Join(cfg.DataDir, "log", part+".log")
			if part == "gpulab" && haveSystemd() {
				command, path = []string{"journalctl", "-u", "gpulab", "-o", "cat", "-n", strconv.Itoa(lines)}, ""
			}
			if path != "" {
				if _, err := os.Stat(path); err != nil {
					return errors.New("there is no log yet; start gpulab with `gpulab init`")
				}
			}
			if follow {
				command = append(command, "-f")
			}
			if path != "" {
				command = append(command, path)
			}
			cmd := exec.CommandContext(c.Context(), command[0], command[1:]...)
			cmd.Stdout, cmd.Stderr = c.OutOrStdout(), c.ErrOrStderr()
			err = cmd.Run()
			if c.Context().Err() != nil {
				return nil // Ctrl-C is how one leaves -f
			}
			return err
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on showing new lines")
	c.Flags().IntVarP(&lines, "lines", "n", 200, "how many lines")
	return c
}
