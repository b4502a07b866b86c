package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/nvidiadriver"
)

// What init may do about a card without a working driver.
const (
	driverInstall = "install"
	driverShow    = "show"
	driverSkip    = "skip"
)

// programsName is the catalogue's environment of programs for everybody.
const programsName = "programs"

// wish is what init was told besides the configuration.
type wish struct {
	install  bool // NVIDIA's driver
	await    *bool
	programs bool // those of the catalogue's environment programsName
}

// applyFlags puts flags and answers into the configuration. There are four questions at most: the lab's name, its
// address where there are several, what becomes of the GPUs, and whether notebooks get more programs.
func applyFlags(c *cobra.Command, cfg *config.Config, f *initFlags, first bool) (wish, error) {
	ask := &asker{ctx: c.Context(), in: bufio.NewReader(c.InOrStdin()), out: c.OutOrStdout(), silent: f.yes ||
		!isTerminal(c.InOrStdin())}
	if f.lab != "" {
		cfg.Lab = f.lab
	} else if first {
		cfg.Lab = ask.valid("What is the lab called?", cfg.Lab, config.CheckLab)
	}
	if f.address != "" {
		cfg.Address = f.address
	} else if first && cfg.Address == "" {
		cfg.Address = chooseAddress(ask)
	}
	if err := chooseProxy(c, cfg, f, first); err != nil {
		return wish{}, err
	}
	if f.simulated != 0 {
		cfg.SimulatedGPUs = f.simulated
	}
	w, err := chooseGPUs(ask, nvidiadriver.Look("/"), cfg, f, first)
	if err != nil {
		return wish{}, err
	}
	w.programs = f.programs
	if first && !c.Flags().Changed("programs") {
		w.programs = ask.yes("Install man, Graphviz, FFmpeg and Pandoc for all notebooks (160 MB from Debian)?", false)
	}
	if ask.closed {
		return wish{}, fail(exitFailure, "%s before every question was answered; nothing was changed", ask.why)
	}
	if err := cfg.Check(); err != nil {
		return wish{}, fail(exitUsage, "%w", err)
	}
	return w, nil
}

// chooseAddress asks for one of several addresses. The first is the one that gpulab would find and follow by itself:
// it is not written down.
func chooseAddress(ask *asker) string {
	all, err := embedk8s.Candidates()
	if err != nil || len(all) < 2 || ask.silent {
		return "" // the check of the machine says what is wrong
	}
	return askAddress(ask, all)
}

func askAddress(ask *asker, all []embedk8s.Candidate) string {
	fmt.Fprintln(ask.out, "This machine has several addresses. At which one do people reach it?")
	for i, c := range all {
		note := ""
		if i == 0 {
			note = "  the way to other networks; followed when it changes"
		}
		fmt.Fprintf(ask.out, "  %d  %-15s  %s%s\n", i+1, c.Address, c.Interface, note)
	}
	chosen := 0
	ask.valid("Number or address:", "1", func(answer string) error {
		chosen = slices.IndexFunc(all, func(c embedk8s.Candidate) bool { return c.Address.String() == answer })
		if n, err := strconv.Atoi(answer); err == nil {
			chosen = n - 1
		}
		if chosen < 0 || chosen >= len(all) {
			chosen = 0
			return fmt.Errorf("%q is neither a number from 1 to %d nor one of these addresses", answer, len(all))
		}
		return nil
	})
	if chosen == 0 {
		return ""
	}
	return all[chosen].Address.String()
}

// noProxy is the word for a way to the internet without a proxy.
const noProxy = "none"

// chooseProxy takes the proxy that was named, or at first the one that root's programs use.
func chooseProxy(c *cobra.Command, cfg *config.Config, f *initFlags, first bool) error {
	out := c.OutOrStdout()
	switch {
	case f.proxy == noProxy:
		cfg.Network.Proxy, cfg.Network.NoProxy = "", nil
		return nil
	case f.proxy != "":
		cfg.Network.Proxy = f.proxy
		if err := cfg.Network.Check(); err != nil {
			return fail(exitUsage, "%w", err)
		}
		return nil
	case !first || cfg.Network.Proxy != "":
		return nil
	}
	found, ok := findProxy(c.Context(), os.Getenv, "/")
	if !ok {
		return nil
	}
	if found.apt {
		fmt.Fprintf(out, "apt uses the proxy %s. If notebooks are to use it too: gpulab init --proxy URL.\n",
			withoutSecret(found.url))
		return nil
	}
	network := cfg.Network
	network.Proxy, network.NoProxy = found.url, found.noProxy
	if err := network.Check(); err != nil {
		fmt.Fprintf(out, "The proxy of %s is not taken for notebooks: %v.\n", found.where, err)
		return nil
	}
	cfg.Network = network
	fmt.Fprintf(out, "Notebooks and downloads of images go through the proxy %s, as %s says (`--proxy none` for a "+
		"direct way).\n", network.Proxy, found.where)
	return nil
}

// chooseGPUs decides from what the machine has. A card without a working driver never leads to simulated GPUs: its
// owner wants the card.
func chooseGPUs(ask *asker, s nvidiadriver.Situation, cfg *config.Config, f *initFlags, first bool) (wish, error) {
	state, err := loadDriverState(cfg.DataDir)
	if err != nil {
		return wish{}, err
	}
	if f.driver == driverInstall && !s.HasCard() {
		return wish{}, fail(exitPreflight, "%s There is nothing to install a driver for", s.Seen())
	}
	no, yes := false, true
	open := f.gpus == "" && (first || state.Awaited) // nobody has decided
	switch {
	case f.gpus != "":
		cfg.GPUs = config.Word(f.gpus)
	case s.Usable() && open:
		cfg.GPUs = config.GPUsReal
	case open && s.HasCard():
		cfg.GPUs = config.GPUsNone
	case first && ask.yes(fmt.Sprintf("This machine has no NVIDIA card. Use %d simulated GPUs to try gpulab out?",
		cfg.SimulatedGPUs), true):
		cfg.GPUs = config.GPUsSimulated
	case first:
		cfg.GPUs = config.GPUsNone
	}
	if s.Usable() || !s.HasCard() || f.driver == "" && (!open && f.gpus != config.GPUsReal) {
		if f.gpus != "" || s.Usable() {
			return wish{await: &no}, nil
		}
		return wish{}, nil
	}
	choice := f.driver
	if choice == "" {
		choice = chooseDriver(ask, s, first)
	}
	switch choice {
	case driverSkip:
		return wish{await: &no}, nil
	case driverShow:
		if f.driver != "" || ask.silent || !first {
			printSituation(ask.out, s)
		}
		return wish{await: &yes}, nil
	}
	if !s.Plan().Runnable() {
		printSituation(ask.out, s)
		if p := s.Plan(); !p.Reboot || len(p.Steps) > 0 {
			return wish{}, fail(exitPreflight, "there is nothing that gpulab can install here; do what the lines above say, "+
				"or go on with --driver skip")
		}
		return wish{await: &yes}, nil
	}
	// Until the driver works there are no GPUs; then they are real ones.
	cfg.GPUs = config.GPUsNone
	return wish{install: true, await: &yes}, nil
}

// chooseDriver asks what to do about a card without a working driver.
func chooseDriver(ask *asker, s nvidiadriver.Situation, first bool) string {
	if !first || ask.silent {
		return driverShow
	}
	printSituation(ask.out, s)
	fmt.Fprintln(ask.out)
	if !s.Plan().Runnable() {
		return driverShow
	}
	answer := ask.valid("What now? install: run these commands now; show: you run them; skip: no GPUs.", driverShow,
		func(answer string) error {
			_, err := driverWord(answer)
			return err
		})
	word, _ := driverWord(answer)
	return word
}

// driverWord is the choice that begins like the answer.
func driverWord(answer string) (string, error) {
	for _, word := range []string{driverInstall, driverShow, driverSkip} {
		if len(answer) > 1 && strings.HasPrefix(word, strings.ToLower(answer)) || strings.EqualFold(answer, "i") &&
			word == driverInstall {
			return word, nil
		}
	}
	return "", fmt.Errorf("%q is none of install, show and skip", answer)
}

// asker asks questions on a terminal and takes the defaults elsewhere.
type asker struct {
	ctx    context.Context // nil for one that nothing interrupts
	in     *bufio.Reader
	out    io.Writer
	silent bool
	closed bool   // somebody closed the terminal instead of answering
	why    string // it is closed
}

func (q *asker) line(question, def string) string {
	if q.silent {
		return def
	}
	fmt.Fprintf(q.out, "%s [%s] ", question, def)
	s, ok := q.read()
	if !ok {
		q.closed, q.silent = true, true
		fmt.Fprintln(q.out)
	}
	if s = strings.TrimSpace(s); s == "" {
		return def
	}
	return s
}

// read reads a line; Ctrl-C ends the waiting for it.
func (q *asker) read() (string, bool) {
	type result struct {
		line string
		err  error
	}
	got := make(chan result, 1)
	go func() {
		line, err := q.in.ReadString('\n')
		got <- result{line, err}
	}()
	var interrupted <-chan struct{}
	if q.ctx != nil {
		interrupted = q.ctx.Done()
	}
	select {
	case r := <-got:
		if r.err != nil {
			q.why = "the terminal was closed"
		}
		return r.line, r.err == nil
	case <-interrupted:
		q.why = "gpulab was interrupted"
		return "", false
	}
}

// valid asks until the answer is right, and says what is wrong with others.
func (q *asker) valid(question, def string, check func(string) error) string {
	for {
		answer := q.line(question, def)
		if q.silent {
			return def
		}
		err := check(answer)
		if err == nil {
			return answer
		}
		fmt.Fprintf(q.out, "  %v.\n", err)
	}
}

// yes asks for yes or no. An empty answer, or nobody to ask, is the default.
func (q *asker) yes(question string, def bool) bool {
	shown := "y/N"
	if def {
		shown = "Y/n"
	}
	answer := strings.ToLower(q.valid(question, shown, func(answer string) error {
		if answer == shown || slices.Contains([]string{"y", "yes", "n", "no"}, strings.ToLower(answer)) {
			return nil
		}
		return fmt.Errorf("%q is neither yes nor no", answer)
	}))
	if answer == strings.ToLower(shown) {
		return def
	}
	return strings.HasPrefix(answer, "y")
}

func isTerminal(r any) bool {
	f, ok := r.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
