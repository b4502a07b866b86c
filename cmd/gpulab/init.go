package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/doctor"
)

type initFlags struct {
	lab, address, proxy string
	gpus, driver        string
	simulated           int
	yes                 bool
	trust               bool
	programs            bool
}

func newInit(a *app) *cobra.Command {
	f := &initFlags{}
	c := &cobra.Command{
		Use:   "init",
		Short: "Make this machine a running lab",
		Long: `Make this machine a running lab: check it, write the configuration, start the
service and wait until every part is ready. It may be interrupted and run again
at any time; run on a running lab it mends what is missing and says what changed.

On a terminal it asks at most for the lab's name, for its address where the machine
has several, what to do about the GPUs, and whether to install more programs for
notebooks; each has a flag. With a card whose driver does not work, --driver install
runs the commands that bring it, show prints them, and skip goes on without GPUs. After
the reboot that a driver may need, the lab starts with the GPUs. Only the
driver's packages and those of --programs, which come from Debian, need a network.`,
		Example: `  sudo gpulab init                      ask what cannot be guessed
  sudo gpulab init --yes                take every default
  sudo gpulab init --gpus simulated     try it out without an NVIDIA card
  sudo gpulab init --gpus real          from simulated GPUs to the machine's own
  sudo gpulab init --driver install     bring NVIDIA's driver as well
  sudo gpulab init --programs           install man, Graphviz, FFmpeg and Pandoc as well
  sudo gpulab init --address 10.0.0.5   where the machine has several addresses
  sudo gpulab init --proxy http://10.0.0.2:3128   where that is the way to the internet`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			if err := requireRoot(c); err != nil {
				return err
			}
			return initialise(c, a, f)
		},
	}
	c.Flags().StringVar(&f.lab, "lab", "", "the lab's name, shown on the page")
	c.Flags().StringVar(&f.address, "address", "", "this machine's address (default: the one with the default route)")
	c.Flags().StringVar(&f.gpus, "gpus", "", "real, simulated or none (default: what the machine has)")
	completeFlag(c, "gpus", config.GPUsReal, config.GPUsSimulated, config.GPUsNone)
	c.Flags().StringVar(&f.driver, "driver", "", "install, show or skip: what to do about a card without a working "+
		"driver (default show)")
	completeFlag(c, "driver", driverInstall, driverShow, driverSkip)
	c.Flags().StringVar(&f.proxy, "proxy", "", "the way to the internet for notebooks and images, or none (default: "+
		"what root's environment says)")
	c.Flags().IntVar(&f.simulated, "simulated-gpus", 0, "how many GPUs to simulate (default 2)")
	c.Flags().BoolVarP(&f.yes, "yes", "y", false, "ask nothing, take the defaults")
	c.Flags().BoolVar(&f.programs, "programs", false,
		"install man, Graphviz, FFmpeg and Pandoc for all notebooks and jobs")
	c.Flags().BoolVar(&f.trust, "trust", false, "trust the lab's web certificates on this machine (system, Chromium, "+
		"Firefox)")
	return c
}

func initialise(c *cobra.Command, a *app, f *initFlags) error {
	ctx, out := c.Context(), c.OutOrStdout()
	began := time.Now()
	if file, err := loadJoined(a); err != nil || file != nil {
		if err == nil {
			err = fail(exitPreflight, "this machine belongs to the pool of %s; `gpulab join` starts it there, and `gpulab "+
				"leave` takes it out, so that it can be a lab of its own", file.Settings.Lab)
		}
		return err
	}
	if err := finishRestore(ctx, a, out); err != nil {
		return err
	}
	cfg, err := loadConfig(a.configPath)
	if err != nil {
		return err
	}
	if _, err := cfg.FindImages(); err != nil {
		return fail(exitPreflight, "%w", err)
	}
	if err := haveBundle(); err != nil {
		return fail(exitPreflight, "%w", err)
	}
	_, statErr := os.Stat(a.configPath)
	told, err := applyFlags(c, &cfg, f, errors.Is(statErr, os.ErrNotExist))
	if err != nil {
		return err
	}
	if err := preflight(ctx, out, cfg); err != nil {
		return err
	}
	if err := keepSharing(ctx, a, cfg); err != nil {
		return err
	}
	unlock, err := lockInit(a)
	if err != nil {
		return err
	}
	defer unlock()
	if err := told.carryOut(c, &cfg); err != nil {
		return err
	}
	configChanged, err := config.Save(a.configPath, cfg)
	if err != nil {
		return err
	}
	started, err := startService(ctx, a, cfg)
	if err != nil {
		return err
	}
	changed, err := followBoot(ctx, a, out)
	if err != nil {
		return err
	}
	if err := settle(ctx, a, out); err != nil {
		return err
	}
	if err := linkCommand(); err != nil {
		return err
	}
	if f.trust {
		if err := trustCA(out, cfg); err != nil {
			return err
		}
	}
	if err := farewell(ctx, a, out, cfg, configChanged || started || changed, time.Since(began)); err != nil ||
		!told.programs {
		return err
	}
	unlock() // what follows may take long, and the lab is ready
	return addPrograms(c, a)
}

// addPrograms builds the catalogue's environment of programs for everybody, unless the lab has one.
func addPrograms(c *cobra.Command, a *app) error {
	const retry = "run `gpulab env create --from programs` to try again"
	list, err := a.client().Environments(c.Context())
	if err != nil {
		return fail(exitFailure, "the lab is ready, but the programs are not installed: %w; %s", err, retry)
	}
	if slices.ContainsFunc(list, func(e ctl.EnvironmentState) bool { return e.Name == programsName && !e.HasKernel() }) {
		return nil
	}
	fmt.Fprintln(c.OutOrStdout(), "Installing more programs for notebooks. You may interrupt this: the lab is ready.")
	if err := a.createEnvironment(c, ctl.WantedEnvironment{From: programsName}, false); err != nil {
		return fail(exitFailure, "the lab is ready, but the programs are not installed: %w; %s", err, retry)
	}
	return nil
}

// lockInit makes sure that one init changes the machine at a time.
func lockInit(a *app) (unlock func(), err error) {
	f, err := lockFile(a.socket+".init", fail(exitFailure, "another `gpulab init` is at work on this machine; wait for "+
		"it, `gpulab status` shows how far it is"))
	if err != nil {
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

// keepSharing refuses to change how many notebooks share a GPU while some hold
// one: the kubelet knows GPUs and their shares by different names, and would
// give a GPU that is somebody's own to others too.
func keepSharing(ctx context.Context, a *app, cfg config.Config) error {
	s, err := a.client().Status(ctx)
	if err != nil {
		return nil //nolint:nilerr // no lab runs
	}
	var who []string
	was := cfg.GPUSharing
	for _, snapshot := range s.GPUs {
		for _, g := range snapshot.GPUs {
			for _, h := range g.Holders {
				if slots := max(g.Slots, 1); slots != cfg.GPUSharing {
					was = slots
					who = append(who, strings.Trim(h.User+"/"+h.Notebook, "/"))
				}
			}
		}
	}
	if len(who) == 0 {
		return nil
	}
	return fail(exitPreflight, "gpuSharing cannot go from %d to %d while notebooks hold GPUs (%s); stop them, then run "+
		"`gpulab init` again", was, cfg.GPUSharing, strings.Join(who, ", "))
}

// preflight shows what is wrong with the machine, and stops where gpulab could
// not work.
func preflight(ctx context.Context, out io.Writer, cfg config.Config) error {
	return preflightFor(ctx, out, machineOptions(cfg), "gpulab init")
}

// preflightFor does so for what a command wants of the machine.
func preflightFor(ctx context.Context, out io.Writer, opts doctor.Options, command string) error {
	look := func() []doctor.Finding { return doctor.Preflight(ctx, opts) }
	findings := look()
	// A daemon that was killed keeps its ports for a moment.
	lasting := func(f doctor.Finding) bool { return !f.Passing }
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); {
		if failures := doctor.Failures(findings); len(failures) == 0 || slices.ContainsFunc(failures, lasting) ||
			ctx.Err() != nil {
			break
		}
		time.Sleep(500 * time.Millisecond)
		findings = look()
	}
	failed := 0
	for _, f := range findings {
		switch f.State {
		case doctor.Warn:
			fmt.Fprintf(out, "  ! %s\n", f)
		case doctor.Fail:
			failed++
			fmt.Fprintf(out, "  ✗ %s\n", f)
		}
	}
	if failed > 0 {
		return fail(exitPreflight, "this machine is not ready for gpulab yet; mend what is marked ✗ and run `%s` again",
			command)
	}
	fmt.Fprintf(out, "✓ %-12s %d checks\n", "machine", len(findings))
	return nil
}

// followBoot shows the daemon's stages until the lab is ready, and says
// whether one of them changed something while it was watched: a daemon that
// has run for long tells of its own start as well.
func followBoot(ctx context.Context, a *app, out io.Writer) (changed bool, err error) {
	view := newStageView(out)
	defer view.close()
	var last ctl.Boot
	var before map[string]bool // stages done when the watching began
	err = a.client().WatchBoot(ctx, func(b ctl.Boot) error {
		if before == nil {
			before = map[string]bool{}
			for _, s := range b.Stages {
				before[s.Name] = s.State == "done"
			}
		}
		last = b
		view.show(b)
		return nil
	})
	switch {
	case ctx.Err() != nil:
		return false, fail(exitFailure, "interrupted; gpulab goes on in the background. Run `gpulab init` again to watch "+
			"it, or `gpulab reset` to take it off")
	case last.Failed != "":
		return false, errors.New(triesAgain(last))
	case err != nil:
		return false, fmt.Errorf("%w; see `gpulab logs` and run `gpulab init` again", err)
	case !last.Ready:
		return false, errors.New("gpulab ended while it was starting; see `gpulab logs`, and run `gpulab init` again")
	}
	for _, s := range last.Stages {
		changed = changed || s.Changed && !before[s.Name]
	}
	return changed, nil
}

// settlingTime is how long init waits for what is still starting behind a lab
// that is ready otherwise.
const settlingTime = 2 * time.Minute

// failedTime is how long it waits for a part that has failed: some, such as k3s, are started again.
var failedTime = 20 * time.Second // but in tests

// settle waits until `gpulab status` calls the lab ready, and fails where that takes too long: so that what init calls
// ready is ready for the next command as well.
func settle(ctx context.Context, a *app, out io.Writer) error {
	began, told := time.Now(), ""
	for {
		s, err := a.client().Status(ctx)
		if err != nil {
			return fmt.Errorf("%w; see `gpulab logs` and run `gpulab init` again", err)
		}
		if s.Ready {
			return nil
		}
		part, limit := unsettled(s)
		if time.Since(began) > limit {
			return notSettled(part)
		}
		if line := part.Name + " " + part.Detail; line != told && time.Since(began) > patience {
			told = line
			fmt.Fprintf(out, "· %-12s %s\n", part.Name, part.Detail)
		}
		select {
		case <-ctx.Done():
			return fail(exitFailure, "interrupted; the lab runs, but %s is not ready. `gpulab status` shows how it is",
				part.Name)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// unsettled is the first part that keeps a lab from being ready, one that is starting first, and how long that may
// last.
func unsettled(s ctl.Status) (ctl.Component, time.Duration) {
	if i := slices.IndexFunc(s.Components, func(c ctl.Component) bool { return c.State == ctl.Starting }); i >= 0 {
		return s.Components[i], settlingTime
	}
	if i := slices.IndexFunc(s.Components, func(c ctl.Component) bool { return c.State == ctl.Failed }); i >= 0 {
		return s.Components[i], failedTime
	}
	return ctl.Component{Name: "the machine", Detail: "it is not ready in Kubernetes"}, settlingTime
}

// notSettled says what keeps the lab from being ready.
func notSettled(part ctl.Component) error {
	next := ""
	if part.NextStep != "" {
		next = " Next: " + part.NextStep + "."
	}
	return fail(exitNotReady, "the lab is not ready: %s: %s.%s `gpulab status` shows how it goes on", part.Name,
		strings.TrimSuffix(part.Detail, "."), next)
}

// farewell ends with what the person does next.
func farewell(ctx context.Context, a *app, out io.Writer, cfg config.Config, changed bool, took time.Duration) error {
	client := a.client()
	status, err := client.Status(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(out)
	if changed {
		fmt.Fprintf(out, "%s is ready after %s.\n", cfg.Lab, round(took))
	} else {
		fmt.Fprintf(out, "%s is ready; nothing changed (%s).\n", cfg.Lab, round(took))
	}
	if cfg.GPUs == config.GPUsSimulated {
		fmt.Fprintf(out, "Its %d GPUs are simulated: they compute nothing.\n", cfg.SimulatedGPUs)
	}
	fmt.Fprintf(out, "\n  Open           %s\n", status.URL)
	if status.LocalURL != "" {
		fmt.Fprintf(out, "                 %s, for machines on the same network\n", status.LocalURL)
	}
	// Refused once the lab has an administrator: then people sign in.
	if link, err := client.AdminLink(ctx); err == nil {
		fmt.Fprintf(out, "  Administrator  %s\n                 works once, until %s; `gpulab admin-link` makes another\n",
			link.URL, link.Expires.Local().Format("15:04"))
	}
	if own, err := cfg.TLS.Open(); err == nil && len(cfg.OwnNames()) > 0 && own.For(cfg.OwnNames()[0]) != nil {
		fmt.Fprintf(out, "  Certificate    your own for %s, until %s\n", cfg.OwnNames()[0],
			own.Until().Local().Format(time.DateOnly))
	} else if fp, err := caFingerprint(cfg); err == nil {
		fmt.Fprintf(out, "  Certificate    SHA-256 %s\n                 browsers warn until they trust it: `gpulab ca "+
			"--trust` for those here, %s/trust for others\n", fp, status.URL)
	}
	return printNotes(out, a, cfg)
}

func round(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}

// logPath is where a daemon without systemd writes.
func logPath(cfg config.Config) string { return filepath.Join(cfg.DataDir, "log", "gpulab.log") }
