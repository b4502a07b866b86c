package main

import (
	"bufio"
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
	"golang.org/x/term"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/doctor"
)

type initFlags struct {
	lab, address, gpus string
	simulated          int
	yes                bool
	trust              bool
}

func newInit(a *app) *cobra.Command {
	f := &initFlags{}
	c := &cobra.Command{
		Use:   "init",
		Short: "Make this machine a running lab",
		Long: `Make this machine a running lab: check it, write the configuration, start the
service and wait until every part is ready. It may be interrupted and run again
at any time; run on a running lab it mends what is missing and says what changed.`,
		Example: `  sudo gpulab init                      ask what cannot be guessed
  sudo gpulab init --yes                take every default
  sudo gpulab init --gpus simulated     try it out without an NVIDIA card
  sudo gpulab init --gpus real          from simulated GPUs to the machine's own
  sudo gpulab init --address 10.0.0.5   where the machine has several addresses`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			return initialise(c, a, f)
		},
	}
	c.Flags().StringVar(&f.lab, "lab", "", "the lab's name, shown on the page")
	c.Flags().StringVar(&f.address, "address", "", "this machine's address (default: the one with the default route)")
	c.Flags().StringVar(&f.gpus, "gpus", "", "real, simulated or none (default: what the machine has)")
	completeFlag(c, "gpus", gpusReal, gpusSimulated, gpusNone)
	c.Flags().IntVar(&f.simulated, "simulated-gpus", 0, "how many GPUs to simulate (default 2)")
	c.Flags().BoolVarP(&f.yes, "yes", "y", false, "ask nothing, take the defaults")
	c.Flags().BoolVar(&f.trust, "trust", false, "trust the lab's web certificates on this machine (system, Chromium, Firefox)")
	return c
}

func initialise(c *cobra.Command, a *app, f *initFlags) error {
	ctx, out := c.Context(), c.OutOrStdout()
	began := time.Now()
	if err := finishRestore(ctx, a, out); err != nil {
		return err
	}
	cfg, err := loadConfig(a.configPath)
	if err != nil {
		return err
	}
	if _, err := cfg.imagesDir(); err != nil {
		return fail(exitPreflight, "%w", err)
	}
	if err := haveBundle(); err != nil {
		return fail(exitPreflight, "%w", err)
	}
	_, statErr := os.Stat(a.configPath)
	if err := applyFlags(c, a, &cfg, f, errors.Is(statErr, os.ErrNotExist)); err != nil {
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
	configChanged, err := saveConfig(a.configPath, cfg)
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
	if err := linkCommand(); err != nil {
		return err
	}
	if f.trust {
		if err := trustCA(out, cfg); err != nil {
			return err
		}
	}
	return farewell(ctx, a, out, cfg, configChanged || started || changed, time.Since(began))
}

// lockInit makes sure that one init changes the machine at a time.
func lockInit(a *app) (unlock func(), err error) {
	f, err := lockFile(a.socket+".init", fail(exitFailure, "another `gpulab init` is at work on this machine; wait for it, `gpulab status` shows how far it is"))
	if err != nil {
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

// keepSharing refuses to change how many notebooks share a GPU while some hold
// one: the kubelet knows GPUs and their shares by different names, and would
// give a GPU that is somebody's own to others too.
func keepSharing(ctx context.Context, a *app, cfg Config) error {
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
	return fail(exitPreflight, "gpuSharing cannot go from %d to %d while notebooks hold GPUs (%s); stop them, then run `gpulab init` again", was, cfg.GPUSharing, strings.Join(who, ", "))
}

// applyFlags puts flags and answers into the configuration.
func applyFlags(c *cobra.Command, a *app, cfg *Config, f *initFlags, first bool) error {
	ask := &asker{in: bufio.NewReader(c.InOrStdin()), out: c.OutOrStdout(), silent: f.yes || !isTerminal(c.InOrStdin())}
	if f.lab != "" {
		cfg.Lab = f.lab
	} else if first {
		cfg.Lab = ask.line("What is the lab called?", cfg.Lab)
	}
	if f.address != "" {
		cfg.Address = f.address
	}
	if f.simulated != 0 {
		cfg.SimulatedGPUs = f.simulated
	}
	switch {
	case f.gpus != "":
		cfg.GPUs = f.gpus
	case first:
		cfg.GPUs = chooseGPUs(ask, cfg.SimulatedGPUs)
	}
	if first && !ask.silent && !c.Flags().Changed("trust") {
		f.trust = ask.yes("Shall this machine's browsers and programs trust the lab's web certificates?")
	}
	if ask.closed {
		return fail(exitFailure, "the terminal was closed before every question was answered; nothing was changed")
	}
	if err := cfg.check(); err != nil {
		return fail(exitUsage, "%w", err)
	}
	return nil
}

// chooseGPUs decides from what the machine has. A card without a working
// driver never leads to simulated GPUs: its owner wants the card.
func chooseGPUs(ask *asker, count int) string {
	switch n := doctor.DetectNVIDIA("/"); {
	case n.Usable():
		return gpusReal
	case len(n.Cards) > 0:
		fmt.Fprintln(ask.out, "This machine has an NVIDIA card without a working driver: the lab starts without GPUs.\n  Next: install the driver as described below, then run `gpulab init --gpus real`.")
		return gpusNone
	}
	if ask.yes(fmt.Sprintf("This machine has no NVIDIA card. Use %d simulated GPUs to try gpulab out?", count)) {
		return gpusSimulated
	}
	return gpusNone
}

// preflight shows what is wrong with the machine, and stops where gpulab could
// not work.
func preflight(ctx context.Context, out io.Writer, cfg Config) error {
	look := func() []doctor.Finding { return doctor.Preflight(ctx, machineOptions(cfg)) }
	findings := look()
	// A daemon that was killed keeps its ports for a moment.
	notPort := func(f doctor.Finding) bool { return f.Probe != "ports" }
	for range 6 {
		if failures := doctor.Failures(findings); len(failures) == 0 || slices.ContainsFunc(failures, notPort) || ctx.Err() != nil {
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
		return fail(exitPreflight, "this machine is not ready for gpulab yet; mend what is marked ✗ and run `gpulab init` again")
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
		return false, fail(exitFailure, "interrupted; gpulab goes on in the background. Run `gpulab init` again to watch it, or `gpulab reset` to take it off")
	case last.Failed != "":
		return false, errors.New(last.Failed)
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

// farewell ends with what the person does next.
func farewell(ctx context.Context, a *app, out io.Writer, cfg Config, changed bool, took time.Duration) error {
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
	if cfg.GPUs == gpusSimulated {
		fmt.Fprintf(out, "Its %d GPUs are simulated: they compute nothing.\n", cfg.SimulatedGPUs)
	}
	fmt.Fprintf(out, "\n  Open           %s\n", status.URL)
	// Refused once the lab has an administrator: then people sign in.
	if link, err := client.AdminLink(ctx); err == nil {
		fmt.Fprintf(out, "  Administrator  %s\n                 works once, until %s; `gpulab admin-link` makes another\n", link.URL, link.Expires.Local().Format("15:04"))
	}
	if fp, err := caFingerprint(cfg); err == nil {
		fmt.Fprintf(out, "  Certificate    SHA-256 %s\n                 browsers warn until they trust it: `gpulab ca --help`\n", fp)
	}
	return nil
}

func round(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}

// asker asks questions on a terminal and takes the defaults elsewhere.
type asker struct {
	in     *bufio.Reader
	out    io.Writer
	silent bool
	closed bool // somebody closed the terminal instead of answering
}

func (q *asker) line(question, def string) string {
	if q.silent {
		return def
	}
	fmt.Fprintf(q.out, "%s [%s] ", question, def)
	s, err := q.in.ReadString('\n')
	if err != nil {
		q.closed, q.silent = true, true
	}
	if s = strings.TrimSpace(s); s == "" {
		return def
	}
	return s
}

func (q *asker) yes(question string) bool {
	answer := strings.ToLower(q.line(question, "Y/n"))
	return !strings.HasPrefix(answer, "n")
}

func isTerminal(r any) bool {
	f, ok := r.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// logPath is where a daemon without systemd writes.
func logPath(cfg Config) string { return filepath.Join(cfg.DataDir, "log", "gpulab.log") }
