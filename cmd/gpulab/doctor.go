package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/doctor"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/version"
)

func newDoctor(a *app) *cobra.Command {
	var asJSON, list bool
	c := &cobra.Command{
		Use: "doctor [PROBE...]", Short: "Find out what is wrong with this machine or its lab, and what mends it",
		Long: `Find out what is wrong with this machine or its lab. Every probe looks at one
thing and says what is there, what that means and the command that mends it.
The doctor itself changes nothing. It works before there is a lab, while one
runs, and when gpulab does not answer; without root it sees less, and says so.

✓ is well, ! works with something less, ✗ has to be mended, ? could not be seen.
It ends with 0 when nothing has to be mended, and with 4 otherwise.`,
		Example: `  sudo gpulab doctor                    look at everything
  sudo gpulab doctor firewall ports     look at these alone
  sudo gpulab doctor --list             what there is to look at
  sudo gpulab doctor --json | jq '.findings[] | select(.state == "fail")'`,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return completeProbes(args, isJoined(a))
		},
		RunE: func(c *cobra.Command, args []string) error {
			probes, err := chooseProbes(args, isJoined(a))
			switch {
			case err != nil:
				return err
			case list && asJSON:
				return printJSON(c.OutOrStdout(), probes)
			case list:
				return listProbes(c.OutOrStdout(), probes)
			}
			return examine(c.Context(), a, c.OutOrStdout(), probes, asJSON)
		},
	}
	jsonFlag(c, &asJSON)
	c.Flags().BoolVar(&list, "list", false, "say what each probe looks at, and look at nothing")
	return c
}

func completeProbes(args []string, joined bool) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, p := range doctor.ProbesFor(joined) {
		if !slices.Contains(args, p.Name) {
			names = append(names, p.Name+"\t"+p.Looks)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// chooseProbes finds the probes by their names, in the doctor's order; no name
// means all that look at a machine like this one.
func chooseProbes(names []string, joined bool) ([]doctor.Probe, error) {
	all := doctor.ProbesFor(joined)
	if len(names) == 0 {
		return all, nil
	}
	for _, name := range names {
		there := slices.ContainsFunc(doctor.Probes(), func(p doctor.Probe) bool { return p.Name == name })
		if there && !slices.ContainsFunc(all, func(p doctor.Probe) bool { return p.Name == name }) {
			kind := "machines that have joined another's pool, which this one has not"
			if joined {
				kind = "heads, and this machine has joined another's pool"
			}
			return nil, fail(exitUsage, "the probe %q is for %s; `gpulab doctor --list` shows those that look at this one", name,
				kind)
		}
		if !slices.ContainsFunc(all, func(p doctor.Probe) bool { return p.Name == name }) {
			return nil, fail(exitUsage, "there is no probe %q;%s `gpulab doctor --list` shows them", name, nearProbe(name))
		}
	}
	return slices.DeleteFunc(all, func(p doctor.Probe) bool { return !slices.Contains(names, p.Name) }), nil
}

// nearProbe asks whether another name was meant.
func nearProbe(name string) string {
	names := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, p := range doctor.Probes() {
		names.AddCommand(&cobra.Command{Use: p.Name, Run: func(*cobra.Command, []string) {}})
	}
	if near := names.SuggestionsFor(name); len(near) > 0 {
		return " did you mean " + near[0] + "?"
	}
	return ""
}

func listProbes(w io.Writer, probes []doctor.Probe) error {
	rows := [][]string{{"PROBE", "GROUP", "INIT", "LOOKS AT"}}
	for _, p := range probes {
		rows = append(rows, []string{p.Name, p.Group, orDash(p.Init), strings.ReplaceAll(p.Looks, "`", "")})
	}
	return table(w, rows)
}

func orDash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

// diagnosis is what `gpulab doctor --json` prints.
type diagnosis struct {
	OK       bool             `json:"ok"` // nothing has to be mended
	Failures int              `json:"failures"`
	Warnings int              `json:"warnings"`
	Unseen   int              `json:"unseen"` // could not be looked at
	Findings []doctor.Finding `json:"findings"`
}

func (r *diagnosis) add(found []doctor.Finding) {
	for _, f := range found {
		switch f.State {
		case doctor.Fail:
			r.Failures++
		case doctor.Warn:
			r.Warnings++
		case doctor.Unseen:
			r.Unseen++
		}
	}
	r.Findings = append(r.Findings, found...)
	r.OK = r.Failures == 0
}

// examine runs the probes and shows what they find as they find it.
func examine(ctx context.Context, a *app, out io.Writer, probes []doctor.Probe, asJSON bool) error {
	r := diagnosis{OK: true, Findings: []doctor.Finding{}}
	watcher := doctor.Watcher{Done: func(_ doctor.Probe, found []doctor.Finding) { r.add(found) }}
	if !asJSON {
		view := &findingsView{out: out, live: isTerminal(out)}
		watcher.Waiting = view.waiting
		watcher.Done = func(p doctor.Probe, found []doctor.Finding) { r.add(found); view.done(p, found) }
	}
	doctor.Run(ctx, probes, doctorOptions(a), watcher)
	if ctx.Err() != nil {
		return fail(exitFailure, "interrupted before everything was looked at; run `gpulab doctor` again")
	}
	if asJSON {
		if err := printJSON(out, r); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(out, "\n%s\n", r.summary(len(probes)))
	}
	if r.Failures > 0 {
		return fail(exitPreflight, "%s to be mended", numbered(r.Failures, "thing has", "things have"))
	}
	return nil
}

func (r *diagnosis) summary(probes int) string {
	text := "Nothing has to be mended"
	if r.Failures > 0 {
		text = numbered(r.Failures, "thing has", "things have") + " to be mended"
	}
	if r.Warnings > 0 {
		text += ", " + numbered(r.Warnings, "thing needs", "things need") + " a look"
	}
	text += fmt.Sprintf("; %s looked.", numbered(probes, "probe", "probes"))
	if r.Unseen > 0 {
		text += " What is marked ? can be seen by root: `sudo gpulab doctor`."
	}
	return text
}

func numbered(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// findingsView shows findings by group, each with a mark.
type findingsView struct {
	out   io.Writer
	live  bool // a terminal, on which a line can be taken back
	group string
}

// marks of the states.
var marks = map[string]string{doctor.OK: "✓", doctor.Warn: "!", doctor.Fail: "✗", doctor.Unseen: "?"}

// findingIndent is where sentences begin, below one another.
const findingIndent = 25

func (v *findingsView) waiting(p doctor.Probe) {
	if v.live {
		fmt.Fprintf(v.out, "  … %s: %s", p.Name, strings.ReplaceAll(p.Looks, "`", ""))
	}
}

func (v *findingsView) done(p doctor.Probe, found []doctor.Finding) {
	if v.live {
		fmt.Fprint(v.out, "\r"+clearLine)
	}
	if len(found) == 0 {
		return
	}
	if v.group != p.Group {
		if v.group != "" {
			fmt.Fprintln(v.out)
		}
		v.group = p.Group
		fmt.Fprintln(v.out, p.Group)
	}
	for _, f := range found {
		fmt.Fprintf(v.out, "  %s %-*s%s\n", marks[f.State], findingIndent-4, f.Probe, visibly(f.Seen))
		if f.Means != "" {
			fmt.Fprintf(v.out, "%*s%s\n", findingIndent, "", visibly(f.Means))
		}
		if f.Mend != "" {
			fmt.Fprintf(v.out, "%*s→ %s\n", findingIndent, "", visibly(f.Mend))
		}
	}
}

// doctorOptions says what this machine's gpulab is meant to be. A
// configuration that cannot be read is a finding, and the rest is looked at as
// if there were none.
func doctorOptions(a *app) doctor.Options {
	if isJoined(a) {
		return joinedOptions(a)
	}
	cfg, err := loadConfig(a.configPath)
	if err != nil {
		cfg = config.Config{SimulatedGPUs: 2, GPUSharing: 1}
		cfg.SetDefaults()
	}
	opts := machineOptions(cfg)
	opts.ConfigError = err
	opts.Version, opts.Socket, opts.Ask, opts.Numbers = version.Version, a.socket, a.askLab, a.givenNumbers
	return opts
}

// givenNumbers asks the running gpulab for the UIDs and GIDs of people, folders and its own parts, each with its owner.
func (a *app) givenNumbers(ctx context.Context) (map[int]string, error) {
	people, err := a.client().Users(ctx, users.Query{})
	if errors.Is(err, ctl.ErrNotAllowed) {
		return nil, doctor.ErrNotAllowed
	}
	folders, ferr := a.client().Folders(ctx)
	numbers := map[int]string{
		hubUID: "JupyterHub", environments.BuildUID: "builds of environments", packagesUID: "the cache of packages",
	}
	for i := range people {
		numbers[people[i].UID] = people[i].Handle
	}
	for i := range folders {
		if f := &folders[i]; f.GID != 0 {
			numbers[f.GID], numbers[f.GID+1] = "the folder "+f.Name, "the folder "+f.Name
		}
	}
	return numbers, errors.Join(err, ferr)
}

// machineOptions is what a configuration asks of the machine.
func machineOptions(cfg config.Config) doctor.Options {
	ports := []int{cfg.HTTPSPort, cfg.HubPort, 6443, 10250}
	if port := cfg.Files.Listen.Port(); port != 0 {
		ports = append(ports, port)
	}
	opts := doctor.Options{
		ServeNFS: cfg.Storage.Export == config.ExportNFS, Encrypt: cfg.Network.Encrypt, DataDir: cfg.DataDir,
		Address: cfg.Address, Names: cfg.OwnNames(), Wildcards: cfg.Wildcards(), GPUMode: string(cfg.GPUs), Ports: ports,
		NodesPort: cfg.NodesPort,
	}
	if cfg.Network.Proxy != "" {
		opts.Proxies = []string{cfg.Network.Proxy}
	}
	if u, err := url.Parse(cfg.Packages.Index); err == nil && net.ParseIP(u.Hostname()) == nil {
		opts.Outside = u.Hostname()
	}
	opts.ImagesDir, opts.ImagesError = cfg.FindImages()
	opts.ServicePorts, opts.NotebookPorts = cfg.ServicePorts.List(), cfg.NotebookPorts.List()
	opts.Strays = func() (list []doctor.Stray, err error) {
		found, err := embedk8s.Strays(cfg.DataDir)
		for _, s := range found {
			list = append(list, doctor.Stray(s))
		}
		return list, err
	}
	return opts
}

// askLab asks the running gpulab for what the doctor wants to know.
func (a *app) askLab(ctx context.Context) (doctor.Lab, error) {
	s, err := a.client().Status(ctx)
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
		time.Sleep(time.Second) // it was ending just then
		s, err = a.client().Status(ctx)
	}
	switch {
	case errors.Is(err, ctl.ErrNotRunning):
		return doctor.Lab{}, doctor.ErrNoDaemon
	case errors.Is(err, ctl.ErrNotAllowed):
		return doctor.Lab{}, doctor.ErrNotAllowed
	case err != nil:
		return doctor.Lab{}, err
	}
	lab := doctor.Lab{Version: s.Version, URL: s.URL, Nodes: len(s.Nodes)}
	for _, c := range s.Components {
		lab.Parts = append(lab.Parts, doctor.Part{
			Name: c.Name, State: partStates[c.State], Detail: c.Detail, NextStep: c.NextStep,
		})
	}
	for _, n := range s.Nodes {
		if !n.Ready {
			lab.Parts = append(lab.Parts, doctor.Part{Name: "machine " + n.Name, State: doctor.Starting, Detail: n.Detail})
		}
	}
	for _, snapshot := range s.GPUs {
		for i := range snapshot.GPUs {
			g := &snapshot.GPUs[i]
			lab.GPUs = append(lab.GPUs, doctor.GPU{
				Node: snapshot.Machine(), Name: g.Name, Index: g.Index, Trouble: g.Error, Withheld: g.Withheld,
			})
		}
	}
	return lab, nil
}

var partStates = map[ctl.State]string{
	ctl.OK: doctor.OK, ctl.Starting: doctor.Starting, ctl.Warning: doctor.Warn, ctl.Failed: doctor.Fail,
	ctl.Off: doctor.Off,
}
