package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/nvidiadriver"
)

// check tells what is wrong with the flags themselves.
func (f *initFlags) check() error {
	if !slices.Contains([]string{"", driverInstall, driverShow, driverSkip}, f.driver) {
		return fail(exitUsage, "--driver is %q; it may be install, show or skip", f.driver)
	}
	return checkGPUsFlag(f.gpus)
}

// checkGPUsFlag checks the value of --gpus, which is "" where nobody gave one.
func checkGPUsFlag(mode string) error {
	if !slices.Contains([]string{"", config.GPUsReal, config.GPUsSimulated, config.GPUsNone}, mode) {
		return fail(exitUsage, "--gpus is %q; it may be real, simulated or none", mode)
	}
	return nil
}

// carryOut does what init was told about the driver.
func (w wish) carryOut(c *cobra.Command, cfg *config.Config) error {
	if w.await != nil {
		if err := changeDriverState(cfg.DataDir, func(s *driverState) { s.Awaited = *w.await }); err != nil {
			return err
		}
	}
	if w.install {
		if err := installDriver(c.Context(), c, *cfg, false); err != nil {
			return fmt.Errorf("%w; `gpulab init --driver skip` makes a lab without GPUs meanwhile", err)
		}
		if nvidiadriver.Look("/").Usable() {
			cfg.GPUs = config.GPUsReal
			if err := changeDriverState(cfg.DataDir, func(s *driverState) { s.Awaited = false }); err != nil {
				return err
			}
		}
	}
	if cfg.GPUs != config.GPUsReal {
		return nil
	}
	return holdDriver(c.OutOrStdout(), *cfg)
}

// releaseDriver lets the driver be upgraded with the rest of the system again.
func releaseDriver(step func(string)) error {
	was, err := nvidiadriver.Unhold("/")
	if was {
		step("letting NVIDIA's driver be upgraded again")
	}
	return err
}

// errDriverCame ends a lab without GPUs whose driver works by now.
var errDriverCame = errors.New("NVIDIA's driver works now; the lab starts again with its GPUs")

// lookForDriver is how often a driver is looked for that was installed meanwhile.
const lookForDriver = 10 * time.Second

// takeGPUs goes over to real GPUs when the driver works that the lab has been waiting for.
func takeGPUs(a *app, cfg *config.Config) error {
	state, err := loadDriverState(cfg.DataDir)
	if err != nil || !state.Awaited || cfg.GPUs != config.GPUsNone {
		return err
	}
	s := nvidiadriver.Look("/")
	if !s.Usable() {
		slog.Warn("NVIDIA's driver does not work yet", "seen", s.Seen(), "next", "gpulab driver")
		return nil
	}
	cfg.GPUs = config.GPUsReal
	if _, err := config.Save(a.configPath, *cfg); err != nil {
		return err
	}
	if err := holdDriver(io.Discard, *cfg); err != nil {
		return err
	}
	slog.Info("NVIDIA's driver works: from now on the lab offers its GPUs", "driver", s.Driver, "cards", len(s.Cards))
	return changeDriverState(cfg.DataDir, func(s *driverState) { s.Awaited = false })
}

// awaitDriver ends the lab with errDriverCame as soon as the driver works that it is waiting for.
func (l *appliance) awaitDriver(ctx context.Context) error {
	if l.cfg.GPUs != config.GPUsNone {
		return nil
	}
	for sleep(ctx, lookForDriver) {
		state, err := loadDriverState(l.cfg.DataDir)
		if err == nil && state.Awaited && nvidiadriver.Look("/").Usable() {
			return errDriverCame
		}
	}
	return nil
}

// startAgain starts gpulab anew after errDriverCame. systemd does so by itself.
func startAgain(err error) error {
	if !errors.Is(err, errDriverCame) {
		return err
	}
	slog.Info(errDriverCame.Error())
	if os.Getenv("NOTIFY_SOCKET") != "" {
		return nil
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(exe, os.Args, os.Environ())
}

// driverComponent is the state of a card without a working driver; false where there is none.
func (l *appliance) driverComponent() (ctl.Component, bool) {
	s := nvidiadriver.Look("/")
	if !s.HasCard() {
		return ctl.Component{}, false
	}
	c := ctl.Component{Name: "gpu driver", State: ctl.Warning, Detail: s.Seen(), NextStep: "see `gpulab driver`"}
	state, err := loadDriverState(l.cfg.DataDir)
	switch p := s.Plan(); {
	case s.Usable():
		c.State, c.NextStep = ctl.Off, "the lab does without: `gpulab init --gpus real` offers the GPUs"
	case p.Runnable():
		c.NextStep = "`gpulab driver install`"
	case p.Reboot && p.AtScreen:
		c.NextStep = "reboot, with somebody at the screen: `gpulab driver` says what to type there"
	case p.Reboot && len(p.Steps) == 0 && p.Advice == "":
		c.NextStep = "reboot this machine"
	}
	if err == nil && !state.Awaited && c.State == ctl.Warning {
		c.State = ctl.Off
	}
	return c, true
}

// printNotes ends what init says with what is particular here: driver, proxy, boot.
func printNotes(out io.Writer, a *app, cfg config.Config) error {
	if cfg.Network.Proxy != "" {
		fmt.Fprintf(out, "  Proxy          %s, for notebooks and images\n", cfg.Network.Proxy)
	}
	s := nvidiadriver.Look("/")
	switch {
	case cfg.GPUs == config.GPUsReal:
		fmt.Fprintf(out, "  Driver         %s\n", s.Driver)
		if held := nvidiadriver.Held("/"); len(held) > 0 {
			fmt.Fprintf(out, "                 %s held; `gpulab driver unhold` lets them be upgraded\n",
				countOf(len(held), "package"))
		}
	case cfg.GPUs == config.GPUsNone && s.HasCard() && !s.Usable():
		fmt.Fprintf(out, "  Driver         %s\n                 `gpulab driver` says what mends it; the lab goes on with "+
			"the GPUs by itself then\n", s.Seen())
	}
	if !haveSystemd() {
		exe, err := os.Executable()
		if err != nil {
			return err
		}
		command := []string{exe, "serve"}
		if a.configPath != config.DefaultPath {
			command = append(command, "--config", a.configPath)
		}
		if a.socket != ctl.DefaultSocket {
			command = append(command, "--socket", a.socket)
		}
		fmt.Fprintf(out, "  At boot        there is no systemd here: have `%s` run, as root, or run gpulab init\n",
			strings.Join(command, " "))
	}
	return nil
}
