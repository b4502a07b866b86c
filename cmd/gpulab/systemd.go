package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
)

// The units, which the Debian package brings too: gpulab itself, and what ends
// notebooks in order when the machine goes down.
const (
	serviceUnit = "gpulab.service"
	podsUnit    = "gpulab-pods.service"
)

//go:embed gpulab.service gpulab-pods.service
var unitFiles embed.FS

// Where units lie that a person, or init, has written, and those of packages.
const (
	ownUnits      = "etc/systemd/system"
	packagedUnits = "usr/lib/systemd/system"
)

// packagedProgram is what the units of the package start.
const packagedProgram = "/usr/bin/gpulab"

// invocation is how the units start gpulab.
type invocation struct{ Exe, Config, Socket string }

// systemd is the machine's service manager.
type systemd struct {
	root string // "/", but in tests
}

func haveSystemd() bool { return systemd{"/"}.runs() }

// runs tells whether this machine has been booted with systemd.
func (s systemd) runs() bool {
	_, err := os.Stat(filepath.Join(s.root, "run/systemd/system"))
	return err == nil
}

// start has systemd run gpulab that way, now and at every boot. It returns when
// the control socket is the new gpulab's, and not the one's before.
func (s systemd) start(ctx context.Context, how invocation) error {
	if err := s.writeUnits(how); err != nil {
		return fmt.Errorf("the systemd units: %w", err)
	}
	// Anew: another gpulab may have been enabled, under the same name elsewhere.
	for _, args := range [][]string{{"daemon-reload"}, {"--quiet", "reenable", serviceUnit}, {"restart", serviceUnit}} {
		if err := systemctl(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// remove takes gpulab from systemd. A unit of the package stays, disabled.
func (s systemd) remove(ctx context.Context) error {
	if !s.known() {
		return nil
	}
	// In this order: gpulab would start again the pods that end.
	if err := systemctl(ctx, "--quiet", "disable", "--now", serviceUnit); err != nil {
		return err
	}
	if err := systemctl(ctx, "stop", podsUnit); err != nil {
		return err
	}
	if err := s.forgetOwnUnits(); err != nil {
		return err
	}
	return systemctl(ctx, "daemon-reload")
}

// known tells whether systemd has a unit of gpulab's.
func (s systemd) known() bool { return s.unitText() != "" }

// serves tells whether systemd's unit runs the lab of that configuration, and not another lab.
func (s systemd) serves(config string) bool {
	for line := range strings.Lines(s.unitText()) {
		if command, ok := strings.CutPrefix(line, "ExecStart="); ok {
			return samePath(configAmong(strings.Fields(command)), config)
		}
	}
	return false
}

// unitText is the unit that counts, "" without one.
func (s systemd) unitText() string {
	for _, dir := range []string{ownUnits, packagedUnits} {
		if text, err := os.ReadFile(filepath.Join(s.root, dir, serviceUnit)); err == nil {
			return string(text)
		}
	}
	return ""
}

// writeUnits writes the units that start gpulab that way. Those of the package
// serve as they are; otherwise ours go before them.
func (s systemd) writeUnits(how invocation) error {
	_, err := os.Stat(filepath.Join(s.root, packagedUnits, serviceUnit))
	if err == nil && how == (invocation{packagedProgram, config.DefaultPath, ctl.DefaultSocket}) {
		return s.forgetOwnUnits()
	}
	for _, name := range []string{serviceUnit, podsUnit} {
		var text bytes.Buffer
		if err := template.Must(template.ParseFS(unitFiles, name)).Execute(&text, how); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.root, ownUnits, name), text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (s systemd) forgetOwnUnits() error {
	for _, name := range []string{serviceUnit, podsUnit} {
		if err := os.Remove(filepath.Join(s.root, ownUnits, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func systemctl(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
