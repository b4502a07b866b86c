package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

// Settings of how machines are chosen for notebooks.
const (
	placingCPUSetting  = "placing.cpu"
	placingGPUsSetting = "placing.gpus"
)

// placing is how machines are chosen, as the database has it.
type placing struct {
	rules atomic.Pointer[notebooks.Placing]
}

func (p *placing) now() notebooks.Placing {
	if rules := p.rules.Load(); rules != nil {
		return *rules
	}
	return notebooks.Placing{}
}

// rereadPlacing takes it from the database.
func (l *appliance) rereadPlacing(ctx context.Context) error {
	cpu, err := l.store.Setting(ctx, placingCPUSetting)
	gpus, also := l.store.Setting(ctx, placingGPUsSetting)
	if err := errors.Join(err, also); err != nil {
		return err
	}
	l.placing.rules.Store(&notebooks.Placing{CPU: cpu, GPUs: gpus})
	return nil
}

// placingWords are the rules as programs and people give them, beside what the
// queue knows them as.
var (
	cpuRules = map[string]string{
		ctl.PlaceCPUAny: notebooks.CPUAnywhere, ctl.PlaceCPUPrefer: notebooks.CPUPrefer,
		ctl.PlaceCPURequire: notebooks.CPURequire,
	}
	gpuRules = map[string]string{ctl.PlaceGPUsPack: notebooks.GPUsPack, ctl.PlaceGPUsSpread: notebooks.GPUsSpread}
)

func nameOf(rules map[string]string, value string) string {
	for name, is := range rules {
		if is == value {
			return name
		}
	}
	return ""
}

// placed is how machines are chosen now.
func (l *appliance) placed() ctl.Placing {
	now := l.placing.now()
	return ctl.Placing{CPU: nameOf(cpuRules, now.CPU), GPUs: nameOf(gpuRules, now.GPUs)}
}

// Place changes how machines are chosen for notebooks that start from now on; what
// is left out stays.
func (m machines) Place(ctx context.Context, wanted ctl.Placing) (ctl.Placing, error) {
	l := m.lab
	cpu, knownCPU := cpuRules[wanted.CPU]
	gpus, knownGPUs := gpuRules[wanted.GPUs]
	if wanted.CPU != "" && !knownCPU || wanted.GPUs != "" && !knownGPUs {
		return ctl.Placing{}, &users.Error{Kind: ctl.ErrPlacing, Text: "CPU notebooks run on any machine (any), on " +
			"machines without GPUs where one has room (prefer), or there only (require); GPUs are packed (pack) or spread " +
			"(spread)"}
	}
	var err error
	if wanted.CPU != "" {
		err = l.store.SetSetting(ctx, placingCPUSetting, cpu)
	}
	if wanted.GPUs != "" {
		err = errors.Join(err, l.store.SetSetting(ctx, placingGPUsSetting, gpus))
	}
	if err := errors.Join(err, l.rereadPlacing(ctx)); err != nil {
		return ctl.Placing{}, err
	}
	l.poolChanged() // who waits may start now
	return l.placed(), nil
}

// PlaceNotebooks implements ctl.Daemon.
func (l *appliance) PlaceNotebooks(ctx context.Context, wanted ctl.Placing) (ctl.Placing, error) {
	out, err := machines{l}.Place(ctx, wanted)
	if err == nil && wanted != (ctl.Placing{}) {
		l.recordRoot(ctx, "node.placing", "", out.Detail())
	}
	return out, err
}

// placingNote says what becomes of CPU notebooks where no machine is as they are to
// have it.
func placingNote(p ctl.Placing, list []ctl.Node) string {
	if p.CPU == ctl.PlaceCPUAny {
		return ""
	}
	for _, n := range list {
		if n.GPUs == 0 && n.State == ctl.NodeReady && n.Cordon == nil {
			return ""
		}
	}
	if p.CPU == ctl.PlaceCPURequire {
		return "CPU notebooks run on machines without GPUs only, and none of the pool that takes work is one: they do " +
			"not start."
	}
	return "CPU notebooks run on machines without GPUs where one has room; none of the pool that takes work is one, so " +
		"they run on machines with GPUs all the same."
}

func newNodesPlacing(a *app) *cobra.Command {
	var asJSON bool
	var wanted ctl.Placing
	c := &cobra.Command{
		Use: "placing", Short: "How machines are chosen for notebooks",
		Long: `Show, or change, how the lab chooses between machines that have room for a notebook.
CPU notebooks run on any machine, as they do at first (any), on machines without
GPUs where one has room (prefer), or on these only, and wait otherwise (require).
Notebooks with GPUs run where the fewest are free, so that other machines stay
whole for those who need several (pack, as at first), or where the most are (spread).
It holds for notebooks that start from then on; their pages say why they run where
they do.`,
		Example: "  sudo gpulab nodes placing\n  sudo gpulab nodes placing --cpu prefer\n  sudo gpulab nodes placing " +
			"--cpu any --gpus spread",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			now, err := a.client().PlaceNotebooks(c.Context(), wanted)
			if err != nil {
				return err
			}
			out := c.OutOrStdout()
			if asJSON {
				return printJSON(out, now)
			}
			fmt.Fprintf(out, "CPU notebooks (%s): %s.\nNotebooks with GPUs (%s): %s.\n", now.CPU, cpuRuleWords[now.CPU],
				now.GPUs, gpuRuleWords[now.GPUs])
			m, err := a.client().Nodes(c.Context())
			if err != nil {
				return err
			}
			if note := placingNote(now, m.Nodes); note != "" {
				fmt.Fprintf(out, "\n%s\n", note)
			}
			return nil
		},
	}
	c.Flags().StringVar(&wanted.CPU, "cpu", "", "where CPU notebooks run: any, prefer or require")
	c.Flags().StringVar(&wanted.GPUs, "gpus", "", "where notebooks with GPUs run: pack or spread")
	jsonFlag(c, &asJSON)
	return c
}

var (
	cpuRuleWords = map[string]string{
		ctl.PlaceCPUAny: "on any machine", ctl.PlaceCPUPrefer: "on machines without GPUs where one has room",
		ctl.PlaceCPURequire: "on machines without GPUs only",
	}
	gpuRuleWords = map[string]string{
		ctl.PlaceGPUsPack: "where the fewest GPUs are free", ctl.PlaceGPUsSpread: "where the most GPUs are free",
	}
)
