package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/atomicfile"
	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/nvidiadriver"
)

func newDriver(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "driver",
		Short: "How this machine stands with NVIDIA's driver, and what mends it",
		Long: `How this machine stands with NVIDIA's driver: what was found, what it means, and
the exact commands that mend it. gpulab reads files for that and asks no driver,
so a sick one cannot hang it.`,
		Example: "  sudo gpulab driver\n  sudo gpulab driver --json | jq -r '.plan.steps[].command'\n  sudo gpulab driver " +
			"install\n  sudo gpulab driver unhold && sudo apt upgrade",
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			s := nvidiadriver.Look("/")
			if asJSON {
				return printJSON(c.OutOrStdout(), struct {
					nvidiadriver.Situation
					Seen  string            `json:"seen"`
					Means string            `json:"means"`
					Plan  nvidiadriver.Plan `json:"plan"`
					Held  []string          `json:"held"`
				}{s, s.Seen(), s.Means(), s.Plan(), append([]string{}, nvidiadriver.Held("/")...)})
			}
			printSituation(c.OutOrStdout(), s)
			if held := nvidiadriver.Held("/"); len(held) > 0 {
				fmt.Fprintf(c.OutOrStdout(), "Its packages are held: apt leaves %s as they are until `gpulab driver unhold`%s.\n",
					countOf(len(held), "package"), withKernel(held))
			}
			return nil
		},
	}
	jsonFlag(c, &asJSON)
	c.AddCommand(newDriverInstall(a), newDriverHold(a), newDriverUnhold(a))
	return c
}

func newDriverInstall(a *app) *cobra.Command {
	var dryRun bool
	c := &cobra.Command{
		Use:   "install",
		Short: "Run the commands that bring NVIDIA's driver, and hold its packages",
		Long: `Run the commands that gpulab driver shows, one after the other, and hold the
driver's packages, so that no upgrade takes the GPUs from running notebooks. It may
be interrupted and run again. With Secure Boot it asks for a password and says what
to do at the machine's screen. The lab goes on with the GPUs by itself as soon as
the driver works, after a reboot too.`,
		Example: "  sudo gpulab driver install --dry-run\n  sudo gpulab driver install",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			s := nvidiadriver.Look("/")
			if dryRun || !s.Plan().Runnable() {
				printSituation(c.OutOrStdout(), s)
				if !dryRun && !s.Usable() {
					return fail(exitPreflight, "there is nothing that gpulab can install here; the lines above say what to do")
				}
				return nil
			}
			cfg, err := machineConfig(a)
			if err != nil {
				return err
			}
			unlock, err := lockInit(a)
			if err != nil {
				return err
			}
			defer unlock()
			joined, err := loadJoined(a)
			if err != nil {
				return err
			}
			return installDriver(c.Context(), c, cfg, joined != nil)
		},
	}
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only show the commands")
	return c
}

func newDriverHold(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "hold", Short: "Keep upgrades away from NVIDIA's driver",
		Long: `Keep upgrades away from NVIDIA's driver: one under running notebooks would take
their GPUs away until the next reboot. A kernel is held too where the driver's modules
come ready-made for it (Ubuntu's linux-modules-nvidia). gpulab does this by itself when
it offers real GPUs. It is a file of apt's preferences,
` + nvidiadriver.HoldFile + `.`,
		Example: "  sudo gpulab driver hold", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			cfg, err := machineConfig(a)
			if err != nil {
				return err
			}
			held, err := nvidiadriver.Hold("/")
			if err != nil {
				return err
			}
			if err := changeDriverState(cfg.DataDir, func(s *driverState) { s.Unheld = false }); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "✓ %s held; `gpulab driver unhold` ends that%s.\n", countOf(len(held), "package"),
				withKernel(nvidiadriver.Held("/")))
			return nil
		},
	}
}

func newDriverUnhold(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "unhold", Short: "Let NVIDIA's driver be upgraded again",
		Long: `Let NVIDIA's driver be upgraded again. After an upgrade the machine has to be
rebooted before notebooks can use its GPUs; gpulab driver hold begins anew then.`,
		Example: "  sudo gpulab driver unhold && sudo apt upgrade && sudo reboot", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			cfg, err := machineConfig(a)
			if err != nil {
				return err
			}
			was, err := nvidiadriver.Unhold("/")
			if err != nil {
				return err
			}
			if err := changeDriverState(cfg.DataDir, func(s *driverState) { s.Unheld = true }); err != nil {
				return err
			}
			if was {
				fmt.Fprintln(c.OutOrStdout(), "✓ NVIDIA's driver is upgraded with the rest of the system again.")
			} else {
				fmt.Fprintln(c.OutOrStdout(), "NVIDIA's driver was not held; nothing changed.")
			}
			return nil
		},
	}
}

// printSituation says what was found, what it means, and what mends it.
func printSituation(w io.Writer, s nvidiadriver.Situation) {
	fmt.Fprintln(w, s.Seen())
	if means := s.Means(); means != "" {
		fmt.Fprintln(w, means)
	}
	if s.Evidence != "" {
		fmt.Fprintf(w, "  seen in: %s\n", visibly(s.Evidence))
	}
	p := s.Plan()
	if p.Advice != "" {
		fmt.Fprintln(w, p.Advice)
	}
	if len(p.Steps) > 0 {
		fmt.Fprintln(w)
	}
	for _, step := range p.Steps {
		fmt.Fprintf(w, "  # %s\n  %s\n", step.Why, step.Command)
	}
	if p.Runnable() {
		fmt.Fprintf(w, "\n`gpulab driver install` runs these commands.\n")
	}
	printReboot(w, p)
}

// printReboot says what happens at the reboot that the plan ends with.
func printReboot(w io.Writer, p nvidiadriver.Plan) {
	if !p.Reboot {
		return
	}
	when := "Then reboot this machine."
	if len(p.Steps) == 0 {
		when = "Reboot this machine."
	}
	fmt.Fprintln(w, when+" The lab goes on with its GPUs by itself afterwards.")
	if p.AtScreen {
		for _, line := range nvidiadriver.AtTheScreen {
			fmt.Fprintln(w, line)
		}
	}
}

// installDriver runs what the situation asks for, holds the driver's packages and says what is left to do.
func installDriver(ctx context.Context, c *cobra.Command, cfg config.Config, joined bool) error {
	out := c.OutOrStdout()
	path := filepath.Join(cfg.DataDir, "log", "driver.log")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("the log folder: %w", err)
	}
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("the log: %w", err)
	}
	defer log.Close()
	// Whatever comes, a reboot included: the lab takes the GPUs as soon as it can.
	if err := changeDriverState(cfg.DataDir, func(s *driverState) { s.Awaited = true }); err != nil {
		return err
	}
	// What is held cannot make room for another version.
	if _, err := nvidiadriver.Unhold("/"); err != nil {
		return err
	}
	view := newStepView(out)
	i := nvidiadriver.Installer{Root: "/", Log: log, Env: cfg.Network.AptEnv(), Step: view.begin, Progress: view.progress}
	if isTerminal(c.InOrStdin()) {
		i.Terminal = c.InOrStdin().(*os.File)
	}
	s, err := i.Install(ctx)
	view.end(err == nil)
	held := holdDriver(out, cfg)
	switch {
	case ctx.Err() != nil:
		return fail(exitFailure, "interrupted; run `gpulab driver install` again, it goes on from there")
	case err != nil:
		return fail(exitFailure, "%w (whole log: %s)", err, path)
	}
	if held != nil {
		return held
	}
	printAfterInstall(out, s)
	switch {
	case joined && cfg.GPUs != config.GPUsReal:
		fmt.Fprintln(out, "This machine has joined a pool without them: run `gpulab leave` and join again, once the "+
			"driver works.")
	case cfg.GPUs == config.GPUsSimulated:
		fmt.Fprintln(out, "The lab simulates its GPUs until then: `gpulab init --gpus real` goes over to the machine's own.")
	}
	return nil
}

// printAfterInstall says how the machine stands after the commands.
func printAfterInstall(w io.Writer, s nvidiadriver.Situation) {
	switch p := s.Plan(); {
	case s.Usable():
		fmt.Fprintf(w, "✓ %-12s %s\n", "driver", s.Seen())
	case p.Reboot && !p.Runnable():
		fmt.Fprintln(w, s.Seen())
		printReboot(w, p)
	default:
		printSituation(w, s)
	}
}

// holdDriver holds the driver's packages unless somebody has ended that.
func holdDriver(w io.Writer, cfg config.Config) error {
	state, err := loadDriverState(cfg.DataDir)
	if err != nil || state.Unheld {
		return err
	}
	before := len(nvidiadriver.Held("/"))
	held, err := nvidiadriver.Hold("/")
	if errors.Is(err, nvidiadriver.ErrNoPackages) {
		return nil
	}
	if err == nil && len(held) != before {
		fmt.Fprintf(w, "✓ %-12s %s of the driver held, so that no upgrade takes the GPUs from notebooks (`gpulab driver "+
			"unhold` ends that%s)\n", "hold", countOf(len(held), "package"), withKernel(nvidiadriver.Held("/")))
	}
	return err
}

// withKernel says that a kernel is among what is held: its security updates do not come by themselves then.
func withKernel(held []string) string {
	if slices.ContainsFunc(held, func(name string) bool { return strings.HasPrefix(name, "linux-image-") }) {
		return "; the kernel is among them, security updates included, because the driver's modules are made for it alone"
	}
	return ""
}

// prepareRealGPUs makes the device files that are missing, and holds the driver.
func prepareRealGPUs(ctx context.Context, cfg config.Config) {
	makeDevices(ctx)
	if err := holdDriver(io.Discard, cfg); err != nil {
		slog.Error("an upgrade may take the GPUs away: the driver's packages are not held", "err", err)
	}
}

// driverState is what gpulab remembers about the driver, in driver.json of the data folder.
type driverState struct {
	// Awaited says that the lab goes on with real GPUs as soon as the driver works.
	Awaited bool `json:"awaited"`
	// Unheld says that somebody has ended the holding of the driver's packages.
	Unheld bool `json:"unheld"`
}

func driverStatePath(dataDir string) string { return filepath.Join(dataDir, "driver.json") }

func loadDriverState(dataDir string) (driverState, error) {
	var s driverState
	data, err := os.ReadFile(driverStatePath(dataDir))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return s, fmt.Errorf("what gpulab remembers about the driver: %w; delete %s", err, driverStatePath(dataDir))
	}
	return s, nil
}

// changeDriverState writes the state in one step, if it changes.
func changeDriverState(dataDir string, change func(*driverState)) error {
	s, err := loadDriverState(dataDir)
	if err != nil {
		return err
	}
	before := s
	if change(&s); s == before {
		return nil
	}
	if err := os.MkdirAll(dataDir, 0o711); err != nil {
		return fmt.Errorf("the data directory: %w", err)
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return atomicfile.Write(driverStatePath(dataDir), append(data, '\n'), 0o600)
}

// withoutSecret is an address as it may be shown: nobody sees a password in it.
func withoutSecret(address string) string {
	at := strings.LastIndexByte(address, '@')
	if at < 0 {
		return address
	}
	scheme, _, found := strings.Cut(address, "://")
	if !found {
		return "…" + address[at:]
	}
	return scheme + "://…" + address[at:]
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 package"
	}
	return fmt.Sprintf("%d packages", n)
}

// stepView shows the steps of an installation: on a terminal the one under way has a line that changes.
type stepView struct {
	out   io.Writer
	live  bool
	step  string
	began time.Time
	said  time.Time
}

func newStepView(out io.Writer) *stepView { return &stepView{out: out, live: isTerminal(out)} }

func (v *stepView) begin(s nvidiadriver.Step) {
	v.end(true)
	v.step, v.began = s.Why, time.Now()
	v.said = v.began
	if v.live && !s.Terminal {
		fmt.Fprintf(v.out, "· %s", v.step)
	} else {
		fmt.Fprintf(v.out, "· %s\n", v.step)
	}
}

func (v *stepView) progress(percent float64, what string) {
	switch {
	case v.live:
		line := []rune(fmt.Sprintf("· %s  %.0f %%  %s", v.step, percent, visibly(what)))
		fmt.Fprintf(v.out, "\r\x1b[K%s", string(line[:min(len(line), 100)]))
	case time.Since(v.said) > patience:
		v.said = time.Now()
		fmt.Fprintf(v.out, "· %s  %.0f %%  %s\n", v.step, percent, visibly(what))
	}
}

// end says how the step under way, if there is one, has ended.
func (v *stepView) end(well bool) {
	if v.step == "" {
		return
	}
	mark := "✓"
	if !well {
		mark = "✗"
	}
	if v.live {
		fmt.Fprint(v.out, "\r\x1b[K")
	}
	fmt.Fprintf(v.out, "%s %s (%s)\n", mark, v.step, round(time.Since(v.began)))
	v.step = ""
}
