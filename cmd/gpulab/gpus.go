package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/units"
)

func newGPUs(a *app) *cobra.Command {
	var asJSON, watch bool
	c := &cobra.Command{
		Use: "gpus", Short: "Every GPU: what it does and who holds it",
		Example: "  sudo gpulab gpus\n  sudo gpulab gpus --watch\n  sudo gpulab gpus --json | jq '.[].gpus[].uuid'",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			if watch {
				return watchGPUs(c.Context(), a.client(), c.OutOrStdout(), asJSON)
			}
			s, err := a.client().Status(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), s.GPUs)
			}
			return printGPUs(c.OutOrStdout(), s.GPUs)
		},
	}
	jsonFlag(c, &asJSON)
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show it every second, with who runs what, until Ctrl-C")
	c.AddCommand(newGPUsHistory(a), newGPUsLend(a), newGPUsCheck(a))
	return c
}

func printGPUs(w io.Writer, snapshots []gpu.Snapshot) error {
	rows := [][]string{{"NODE", "GPU", "NAME", "USE", "MEMORY", "POWER", "TEMP", "HELD BY"}}
	for _, s := range snapshots {
		if s.Error != "" {
			fmt.Fprintf(w, "%s: %s\n", visibly(s.Machine()), s.Error)
		}
		for _, g := range s.GPUs {
			name := gpuName(g.Name, g.Simulated)
			held := "–"
			for i, h := range g.Holders {
				if i == 0 {
					held = ""
				} else {
					held += ", "
				}
				held += strings.Trim(h.User+"/"+h.Notebook, "/")
				if !h.IdleSince.IsZero() {
					held += ", idle for " + units.Lasting(time.Since(h.IdleSince))
				}
				if in := g.Instance(h.Instance); in != nil {
					held += " (" + in.Profile + ")"
				}
			}
			switch {
			case g.Error != "":
				fmt.Fprintf(w, "GPU %d: %s\n", g.Index, g.Error)
			case g.Withheld != "":
				fmt.Fprintf(w, "GPU %d is not lent out: %s\n", g.Index, visibly(g.Withheld))
			case g.Asleep:
				held = "asleep"
			}
			rows = append(rows, []string{
				visibly(s.Machine()), fmt.Sprint(g.Index), name,
				unit(g.Utilization, "%.0f %%"), memory(g.MemoryUsed, g.MemoryTotal),
				unit(g.Power, "%.0f W"), unit(g.Temperature, "%.0f °C"), held,
			})
		}
	}
	if len(rows) == 1 {
		_, err := fmt.Fprintln(w, "No GPU. A machine with an NVIDIA card: `gpulab init --gpus real`; to try gpulab out: "+
			"`gpulab init --gpus simulated`.")
		return err
	}
	return table(w, rows)
}

// gpuName is a product's name that says so where there is no hardware.
func gpuName(name string, simulated bool) string {
	if simulated && !strings.Contains(strings.ToLower(name), "simulated") {
		return name + " (simulated)"
	}
	return name
}

// unit formats a reading; one that is not known is shown as such.
func unit(v *float64, format string) string {
	if v == nil {
		return "?"
	}
	return fmt.Sprintf(format, *v)
}

func memory(used, total *uint64) string {
	gib := func(b *uint64) string {
		if b == nil {
			return "?"
		}
		return units.GiB(*b)
	}
	return gib(used) + " / " + gib(total) + " GiB"
}
