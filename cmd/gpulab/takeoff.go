package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/doctor"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/nfs"
)

// mayTakeOff refuses to take Kubernetes off a machine that has another one: both use the same folders, interfaces and
// firewall rules. Where the k3s of this data folder never ran, nothing of the machine is going to be touched, and
// nothing is refused.
func mayTakeOff(cfg config.Config) error {
	made, err := embedk8s.Made(cfg.DataDir)
	if err != nil {
		return fail(exitPreflight, "%w", err)
	}
	if !made {
		return nil
	}
	if other := doctor.OtherKubernetes(cfg.DataDir); other != nil {
		return fail(exitPreflight, "%s It uses the same folders and firewall rules as gpulab's, so nothing was changed. "+
			"%s Then run this again", other.Seen, strings.TrimSuffix(other.Mend, " Or give gpulab a machine of its own."))
	}
	return nil
}

// takeOff takes Kubernetes and what it made off this machine.
func takeOff(ctx context.Context, cfg config.Config, keepNode bool, step func(string)) error {
	if err := mayTakeOff(cfg); err != nil {
		return err
	}
	return embedk8s.Reset(ctx, cfg.DataDir, embedk8s.CgroupRoot(cfg.K3s.KubeletArgs), keepNode, step)
}

// mayEnd refuses, before anything changes, to end a lab on a machine that has another Kubernetes or another lab.
func (a *app) mayEnd(cfg config.Config) error {
	if err := mayTakeOff(cfg); err != nil {
		return err
	}
	pid, err := daemonPID(a)
	if err != nil {
		return nil //nolint:nilerr // no daemon
	}
	if config := configOf(pid); config != "" && !samePath(config, a.configPath) {
		return fail(exitPreflight, "the gpulab at %s (process %d) runs the lab of %s, not that of %s; nothing was "+
			"changed. Say --config %s to end that one, or --socket with another path", a.socket, pid, config, a.configPath,
			config)
	}
	return nil
}

// configOf is the configuration that a gpulab runs with, "" where that cannot be found out.
func configOf(pid int) string {
	proc := fmt.Sprintf("/proc/%d", pid)
	data, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	if err != nil {
		return ""
	}
	config := configAmong(strings.Split(strings.TrimRight(string(data), "\x00"), "\x00"))
	if config != "" && !filepath.IsAbs(config) {
		dir, err := os.Readlink(filepath.Join(proc, "cwd"))
		if err != nil {
			return ""
		}
		config = filepath.Join(dir, config)
	}
	return config
}

// configAmong finds the configuration among the arguments of a gpulab that serves, "" for other programs.
func configAmong(args []string) string {
	path, serves := config.DefaultPath, false
	for i, arg := range args {
		if arg == "serve" || arg == "agent" {
			serves = true
		}
		if arg == "--config" && i+1 < len(args) {
			path = args[i+1]
		}
		if value, ok := strings.CutPrefix(arg, "--config="); ok {
			path = value
		}
	}
	if !serves {
		return ""
	}
	return path
}

func samePath(a, b string) bool {
	real := func(path string) string {
		if abs, err := filepath.Abs(path); err == nil {
			path = abs
		}
		// The file itself need not be there, its folder is.
		if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
			path = filepath.Join(dir, filepath.Base(path))
		}
		return path
	}
	return real(a) == real(b)
}

// endExport ends the export of this lab's homes over NFS; the list of another lab stays.
func endExport(ctx context.Context, dataDir string) error {
	list, err := os.ReadFile(filepath.Join("/", nfs.ExportsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !exportsOf(string(list), dataDir) {
		return nil
	}
	_, err = hostNFS().Export(ctx, nil)
	return err
}

// exportsOf tells whether a list of exports is the one of this data folder. An empty one is what an interrupted end
// left.
func exportsOf(list, dataDir string) bool {
	var others bool
	for line := range strings.Lines(list) {
		path, _, _ := strings.Cut(strings.Trim(strings.TrimSpace(line), `"`), " ")
		switch {
		case !strings.HasPrefix(path, "/"):
		case strings.HasPrefix(path, filepath.Clean(dataDir)+"/"):
			return true
		default:
			others = true
		}
	}
	return !others
}
