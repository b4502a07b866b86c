package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/upgrade"
	"github.com/gpulab/gpulab/internal/version"
)

// thisVersion is what this program can work with.
func thisVersion() upgrade.Version {
	schema, metrics := store.Known()
	return upgrade.Version{
		Version: version.Version, Schema: schema, MetricsSchema: metrics, Kubernetes: embedk8s.KubernetesMinor,
	}
}

// frontCommands are done by the program on the disk, also while the machine has been rolled back to another version:
// they are about the versions, or must work whatever has become of them.
var frontCommands = []string{
	"rollback", "version", "reset", "end-pods", "config", "man", "exit-codes", "help", "completion",
	cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd,
}

// handOver goes on as the version to which root has rolled this machine back, if that is another one. So everybody,
// systemd and the package included, goes on starting the same program, and the next upgrade needs to undo nothing.
func (a *app) handOver(c *cobra.Command) error {
	if os.Geteuid() != 0 || slices.Contains(frontCommands, topCommand(c)) {
		return nil
	}
	dataDir, err := dataDirOf(a.configPath)
	if err != nil {
		return nil //nolint:nilerr // the command itself says what is wrong with the configuration
	}
	u, err := upgrade.Current(dataDir, version.Version)
	if err != nil {
		return fmt.Errorf("which version of gpulab is in use cannot be read: %w", err)
	}
	if c.Name() == "serve" {
		if err := a.finishRollback(u, dataDir); err != nil {
			return err
		}
	}
	if !u.RolledBack() || u.Version == version.Version {
		return nil
	}
	kept, err := upgrade.Find(dataDir, u.Version)
	if err != nil {
		return fmt.Errorf("this machine was rolled back to gpulab %s, which cannot be started: %w; `gpulab rollback` goes "+
			"forth to %s again", u.Version, err, u.Front)
	}
	return syscall.Exec(kept.Program(), os.Args, os.Environ())
}

// finishRollback ends a rollback that was interrupted after the moment in which it happened.
func (a *app) finishRollback(u upgrade.InUse, dataDir string) error {
	if !u.Pending {
		return nil
	}
	// The lock of the daemon: nobody has the databases open.
	unlock, err := lockDaemon(a.socket + ".pid")
	if err != nil {
		return err
	}
	defer unlock()
	return u.Finish(dataDir)
}

// topCommand is the first word after gpulab.
func topCommand(c *cobra.Command) string {
	for c.HasParent() && c.Parent().HasParent() {
		c = c.Parent()
	}
	return c.Name()
}

// dataDirOf reads nothing but where the data are: another version may know more keys, or fewer.
func dataDirOf(configPath string) (string, error) {
	var c struct {
		DataDir string `json:"dataDir"`
	}
	data, err := os.ReadFile(configPath)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if err := yaml.Unmarshal(data, &c); err != nil {
		return "", err
	}
	if c.DataDir == "" {
		return config.DefaultDataDir, nil
	}
	return c.DataDir, nil
}

// frontProgram is the program that people and systemd start: this one, or the one that handed over to it.
func frontProgram(cfg config.Config) (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	u, err := upgrade.Current(cfg.DataDir, version.Version)
	if err != nil || !u.RolledBack() || u.Version != version.Version {
		return exe, err
	}
	if kept, err := upgrade.Find(cfg.DataDir, version.Version); err != nil || kept.Program() != exe {
		return exe, nil //nolint:nilerr // it was started by itself
	}
	return u.Program, nil
}
