package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/backup"
	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/embedk8s"
)

func newReset(a *app) *cobra.Command {
	var yes bool
	var keep kept
	c := &cobra.Command{
		Use:   "reset",
		Short: "Take everything of gpulab off this machine, homes included",
		Long: `Take everything of gpulab off this machine: running notebooks, Kubernetes,
network interfaces and rules, databases and, unless --keep-homes is given,
everybody's home folders. It may be interrupted and run again.

With --keep-data it ends everything and changes the machine back, but keeps
accounts, databases, homes and the configuration: gpulab init goes on from there.`,
		Example: "  sudo gpulab reset\n  sudo gpulab reset --yes --keep-homes\n  sudo gpulab reset --yes --keep-data",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			err := reset(c, a, yes, keep)
			if err != nil && c.Context().Err() != nil {
				return fail(exitFailure, "interrupted; part of gpulab is still on this machine. Run `gpulab reset` again")
			}
			return err
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVar(&keep.homes, "keep-homes", false, "keep the home folders and the shared ones")
	c.Flags().BoolVar(&keep.data, "keep-data", false, "keep everything that gpulab init can go on from")
	c.MarkFlagsMutuallyExclusive("keep-homes", "keep-data")
	return c
}

// kept is what a reset leaves.
type kept struct{ homes, data bool }

// deletes says what goes.
func (k kept) deletes() string {
	switch {
	case k.data:
		return "no data"
	case k.homes:
		return "accounts and databases"
	}
	return "accounts, databases, everybody's home folders and all shared ones"
}

func reset(c *cobra.Command, a *app, yes bool, keep kept) error {
	if _, err := os.Stat(joinedPath(a)); err == nil {
		return leavePool(c, a, yes)
	}
	ctx, out := c.Context(), c.OutOrStdout()
	cfg, err := loadConfig(a.configPath)
	if err != nil {
		return err
	}
	if err := a.mayEnd(cfg); err != nil {
		return err
	}
	if !yes {
		if !isTerminal(c.InOrStdin()) {
			return fail(exitUsage, "this ends every notebook and deletes %s on this machine; say --yes to do it", keep.deletes())
		}
		q := &asker{in: bufio.NewReader(c.InOrStdin()), out: out}
		if answer := q.line(fmt.Sprintf("This ends every notebook and deletes %s. Go on? (yes/no)", keep.deletes()),
			"no"); !strings.EqualFold(answer, "yes") {
			return nil
		}
	}
	step := func(s string) { fmt.Fprintf(out, "· %s\n", s) }
	began := time.Now()
	if !keep.data {
		a.forgetTailnet(ctx, out, cfg, step)
	}
	if err := endLab(ctx, a, cfg, keep.data, step); err != nil {
		return fmt.Errorf("%w; run `gpulab reset` again", err)
	}
	if err := unmountShared(cfg.Storage.Shared, cfg.DataDir); err != nil {
		return fmt.Errorf("%w; run `gpulab reset` again", err)
	}
	step("forgetting the web certificates")
	if err := untrustCA(out, cfg); err != nil && !errors.As(err, new(codedError)) {
		return fmt.Errorf("%w; run `gpulab reset` again", err)
	}
	if embedk8s.Other(cfg.DataDir) == "" { // the driver serves the other lab
		if err := releaseDriver(step); err != nil {
			return fmt.Errorf("%w; run `gpulab reset` again", err)
		}
	}
	step("deleting state")
	if err := removeState(cfg, keep); err != nil {
		return fmt.Errorf("%w; run `gpulab reset` again", err)
	}
	files := []string{a.socket, a.socket + ".pid", a.socket + ".init"}
	if !keep.data {
		files = append(files, a.configPath)
	}
	for _, path := range files {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := unlinkCommand(); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(a.configPath)) // only if nothing else is in it
	_ = os.Remove(filepath.Dir(a.socket))
	fmt.Fprintf(out, "✓ gpulab is off this machine (%s).\n", round(time.Since(began)))
	switch {
	case keep.data:
		fmt.Fprintf(out, "  Accounts, databases and homes are still in %s; `gpulab init` goes on with them.\n", cfg.DataDir)
	case keep.homes:
		fmt.Fprintf(out, "  Homes and shared folders are still in %s.\n", cfg.DataDir)
	}
	return nil
}

// endLab ends gpulab and all that it runs, and changes the machine back. With
// keepNode, the cluster can go on from its data.
func endLab(ctx context.Context, a *app, cfg config.Config, keepNode bool, step func(string)) error {
	if err := a.mayEnd(cfg); err != nil {
		return err
	}
	step("ending gpulab")
	if haveSystemd() && (systemd{"/"}).serves(a.configPath) {
		if err := (systemd{"/"}).remove(ctx); err != nil {
			return err
		}
	}
	if err := stopDaemon(ctx, a); err != nil {
		return err
	}
	// Before what is exported goes.
	if err := endExport(ctx, cfg.DataDir); err != nil {
		return err
	}
	return takeOff(ctx, cfg, keepNode, step)
}

// removeState deletes the data directory, on demand without the homes, or only
// what init brings anew.
func removeState(cfg config.Config, keep kept) error {
	if !keep.homes && !keep.data {
		return embedk8s.RemoveFiles(cfg.DataDir)
	}
	entries, err := os.ReadDir(cfg.DataDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		path := filepath.Join(cfg.DataDir, e.Name())
		switch {
		case keep.data && e.Name() == "bin", keep.homes && !slices.Contains(workParts, e.Name()) &&
			!backup.SetAside(e.Name()):
			err = errors.Join(err, embedk8s.RemoveFiles(path))
		case keep.homes && backup.SetAside(e.Name()):
			err = errors.Join(err, keepWork(path))
		}
	}
	return err
}

// keepWork deletes all but people's work from what a restore has set aside.
func keepWork(aside string) error {
	entries, err := os.ReadDir(aside)
	for _, e := range entries {
		if !slices.Contains(workParts, e.Name()) {
			err = errors.Join(err, embedk8s.RemoveFiles(filepath.Join(aside, e.Name())))
		}
	}
	_ = os.Remove(aside) // if nothing is left
	return err
}
