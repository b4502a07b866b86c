package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/units"
)

func newGPUsHistory(a *app) *cobra.Command {
	var asJSON bool
	var since, gpu, user, by string
	c := &cobra.Command{
		Use: "history", Short: "Who used the GPUs: held, busy, idle, energy",
		Long: `Who used the GPUs: for how many GPU hours they held one, in how many of them it
worked, what part of the held time it was idle, and the energy it took.

The ledger counts by whole hours: the one in which --since begins is in it.
On a shared GPU everybody who holds it counts in full; energy is split by the
measured use. Simulated GPUs have rows of their own. By gpu or hour a GPU
counts once, however many hold it.`,
		Example: "  sudo gpulab gpus history\n  sudo gpulab gpus history --since 30d --by gpu\n" +
			"  sudo gpulab gpus history --gpu gpu-two/0 --since 7d\n  sudo gpulab gpus history --user ada --by gpu\n  sudo " +
			"gpulab gpus history --by hour --json | jq '.[].idleSeconds'",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			span, err := parseSpan(since)
			if err != nil {
				return fail(exitUsage, "--since %w", err)
			}
			if !slices.Contains(history.Groupings(), by) {
				return fail(exitUsage, "--by %q: use can be shown by %s", by, strings.Join(history.Groupings(), ", "))
			}
			if err := requireRoot(c); err != nil {
				return err
			}
			rows, err := a.client().Usage(c.Context(), history.Filter{From: time.Now().Add(-span), GPU: gpu, User: user},
				history.By(by))
			var problem *ctl.Problem
			if errors.As(err, &problem) && problem.Wrong {
				return fail(exitUsage, "%w", err)
			}
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), rows)
			}
			return printUsage(c.OutOrStdout(), rows, history.By(by), since)
		},
	}
	c.Flags().StringVar(&since, "since", "24h", "how far back, such as 90m, 24h, 7d, 4w")
	c.Flags().StringVar(&gpu, "gpu", "", "one GPU, by its number, MACHINE/NUMBER or UUID")
	c.Flags().StringVar(&user, "user", "", "one person, by their sign-in name")
	c.Flags().StringVar(&by, "by", string(history.ByUser), "what a row is about: "+strings.Join(history.Groupings(), ", "))
	completeFlag(c, "by", history.Groupings()...)
	completeFlag(c, "since", "24h", "7d", "30d")
	completeFlag(c, "gpu")
	completeFlag(c, "user")
	jsonFlag(c, &asJSON)
	return c
}

// longestSpan is more than any ledger reaches back.
const longestSpan = 100 * 365 * 24 * time.Hour

// parseSpan reads how far back, as Go writes durations, and days and weeks.
func parseSpan(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	for unit, hours := range map[string]float64{"d": 24, "w": 7 * 24} {
		if number, found := strings.CutSuffix(s, unit); found {
			var n float64
			if n, err = strconv.ParseFloat(number, 64); err == nil {
				d = time.Duration(min(n*hours, 2*longestSpan.Hours()) * float64(time.Hour))
			}
		}
	}
	if err != nil || d <= 0 || d > longestSpan {
		return 0, fmt.Errorf("%q is no length of time; write one such as 90m, 24h, 7d or 4w", s)
	}
	return d, nil
}

func printUsage(w io.Writer, usage []history.Usage, by history.By, since string) error {
	heading := map[history.By][]string{history.ByUser: {"WHO"}, history.ByGPU: {"NODE", "GPU", "NAME"},
		history.ByHour: {"HOUR"}}[by]
	rows := [][]string{append(heading, "GPU HOURS", "BUSY", "IDLE", "ENERGY", "MEMORY")}
	var held, unknown float64
	for _, u := range usage {
		held, unknown = held+u.Held, unknown+u.Unknown
		row := append(usageNames(u, by), fmt.Sprintf("%.2f", u.Held/3600), fmt.Sprintf("%.2f", u.Busy/3600), "–", "?", "?")
		at := len(row) - 3
		if idle := u.IdleShare(); idle != nil {
			row[at] = fmt.Sprintf("%.0f %%", 100**idle)
		} else if u.Held > 0 {
			row[at-1], row[at] = "?", "?"
		}
		if u.Energy != nil {
			row[at+1] = fmt.Sprintf("%.2f kWh", *u.Energy/3.6e6)
		}
		if u.Memory != nil {
			row[at+2] = units.Bytes(uint64(*u.Memory))
		}
		rows = append(rows, row)
	}
	if held == 0 && (len(usage) == 0 || by == history.ByUser) {
		_, err := fmt.Fprintf(w, "Nobody has held a GPU in the last %s. What the GPUs do now: `gpulab gpus`.\n", since)
		return err
	}
	if err := table(w, rows); err != nil {
		return err
	}
	if unknown > 0 {
		fmt.Fprintf(w,
			"\nIn %.2f of these GPU hours nothing told whether the GPU was used; they are neither busy nor idle.\n",
			unknown/3600)
	}
	return nil
}

// usageNames says what a row is about.
func usageNames(u history.Usage, by history.By) []string {
	simulated := ""
	if u.Simulated {
		simulated = " (simulated)"
	}
	switch by {
	case history.ByGPU:
		return []string{u.Node, strconv.Itoa(*u.Number), gpuName(u.GPU, u.Simulated)}
	case history.ByHour:
		return []string{u.Hour.Local().Format("2006-01-02 15:04") + simulated}
	}
	switch u.Kind {
	case history.KindUser:
		return []string{u.Name + simulated}
	case history.KindUnix:
		return []string{u.Name + ", outside gpulab" + simulated}
	case history.KindPod:
		return []string{"pod " + u.Name + simulated}
	}
	return []string{"(nobody)" + simulated}
}

// Usage implements ctl.Daemon.
func (l *appliance) Usage(ctx context.Context, f history.Filter, by history.By) ([]history.Usage, error) {
	return l.history.Usage(ctx, f, by)
}

// historyComponent tells whether the history is kept.
func (l *appliance) historyComponent() ctl.Component {
	c := ctl.Component{Name: "history", State: ctl.OK, Detail: "readings and use are written every few seconds"}
	if p, bad := l.history.Problem(); bad {
		c.State, c.Detail, c.NextStep = ctl.Warning, p.Text, p.NextStep
	}
	return c
}
