package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/embedk8s"
)

func newReset(a *app) *cobra.Command {
	var yes, keepHomes bool
	c := &cobra.Command{
		Use:   "reset",
		Short: "Take everything of gpulab off this machine, homes included",
		Long: `Take everything of gpulab off this machine: running notebooks, Kubernetes,
network interfaces and rules, databases and, unless --keep-homes is given,
everybody's home folders. It may be interrupted and run again.`,
		Example: "  sudo gpulab reset\n  sudo gpulab reset --yes --keep-homes",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			err := reset(c, a, yes, keepHomes)
			if err != nil && c.Context().Err() != nil {
				return fail(exitFailure, "interrupted; part of gpulab is still on this machine. Run `gpulab reset` again")
			}
			return err
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVar(&keepHomes, "keep-homes", false, "keep the home folders")
	return c
}

func reset(c *cobra.Command, a *app, yes, keepHomes bool) error {
	ctx, out := c.Context(), c.OutOrStdout()
	cfg, err := loadConfig(a.configPath)
	if err != nil {
		return err
	}
	if !yes {
		if !isTerminal(c.InOrStdin()) {
			return fail(exitUsage, "this deletes notebooks, accounts and homes on this machine; say --yes to do it")
		}
		q := &asker{in: bufio.NewReader(c.InOrStdin()), out: out}
		what := "accounts, databases and everybody's home folders"
		if keepHomes {
			what = "accounts and databases"
		}
		if answer := q.line(fmt.Sprintf("This ends every notebook and deletes %s. Go on? (yes/no)", what), "no"); !strings.EqualFold(answer, "yes") {
			return nil
		}
	}
	step := func(s string) { fmt.Fprintf(out, "· %s\n", s) }
	began := time.Now()
	step("ending gpulab")
	if haveSystemd() {
		if _, err := os.Stat(unitPath); err == nil {
			_ = exec.CommandContext(ctx, "systemctl", "disable", "--now", "gpulab.service").Run()
		}
	}
	if err := stopDaemon(ctx, a); err != nil {
		return err
	}
	if err := embedk8s.Reset(ctx, cfg.DataDir, embedk8s.CgroupRoot(cfg.K3s.KubeletArgs), step); err != nil {
		return fmt.Errorf("%w; run `gpulab reset` again", err)
	}
	step("forgetting the web certificates")
	if err := untrustCA(out, cfg); err != nil && !errors.As(err, new(codedError)) {
		return fmt.Errorf("%w; run `gpulab reset` again", err)
	}
	step("deleting state")
	if err := removeState(cfg, keepHomes); err != nil {
		return fmt.Errorf("%w; run `gpulab reset` again", err)
	}
	for _, path := range []string{a.configPath, a.socket, a.socket + ".pid", a.socket + ".init", unitPath} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := unlinkCommand(); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(a.configPath)) // only if nothing else is in it
	_ = os.Remove(filepath.Dir(a.socket))
	if haveSystemd() {
		_ = exec.CommandContext(ctx, "systemctl", "daemon-reload").Run()
	}
	fmt.Fprintf(out, "✓ gpulab is off this machine (%s).\n", round(time.Since(began)))
	if keepHomes {
		fmt.Fprintf(out, "  The home folders are still in %s.\n", filepath.Join(cfg.DataDir, "homes"))
	}
	return nil
}

// removeState deletes the data directory, on demand without the homes.
func removeState(cfg Config, keepHomes bool) error {
	if !keepHomes {
		return embedk8s.RemoveFiles(cfg.DataDir)
	}
	entries, err := os.ReadDir(cfg.DataDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.Name() != "homes" {
			err = errors.Join(err, embedk8s.RemoveFiles(filepath.Join(cfg.DataDir, e.Name())))
		}
	}
	return err
}
