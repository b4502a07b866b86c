package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/report"
	"github.com/gpulab/gpulab/internal/units"
)

func newReport(a *app) *cobra.Command {
	var asJSON, asCSV bool
	var weeks int
	c := &cobra.Command{
		Use: "report", Short: "What the lab had of its GPUs, by week and group",
		Long: `What the lab had of its GPUs, by week and group: how much of them was held, busy
and idle, how long people waited for one, how evenly it was spread, how many
notebooks were stopped because nobody used their GPUs, and what it would have
been at best had each GPU belonged to one person.

Weeks begin on Mondays; the last one is not over. Fairness is Jain's index of
the hours held by those who held or asked for a GPU: 1 is the same for all.`,
		Example: "  sudo gpulab report\n  sudo gpulab report --weeks 12 --csv > report.csv\n  sudo gpulab report --json | " +
			"jq .whole",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if weeks < 1 || weeks > report.MostWeeks {
				return fail(exitUsage, "--weeks %d: a report is about 1 to %d weeks", weeks, report.MostWeeks)
			}
			if err := requireRoot(c); err != nil {
				return err
			}
			r, err := a.client().Report(c.Context(), weeks)
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(c.OutOrStdout(), r)
			case asCSV:
				return r.WriteCSV(c.OutOrStdout())
			}
			return printReport(c.OutOrStdout(), r)
		},
	}
	c.Flags().IntVar(&weeks, "weeks", 4, "how many weeks, this one included")
	c.Flags().BoolVar(&asCSV, "csv", false, "as a table for spreadsheets")
	completeFlag(c, "weeks", "4", "12", "52")
	jsonFlag(c, &asJSON)
	c.MarkFlagsMutuallyExclusive("csv", "json")
	return c
}

func printReport(w io.Writer, r report.Report) error {
	if r.Whole.There == 0 && r.Whole.People == 0 {
		_, err := fmt.Fprintln(w, "Nobody has had a GPU in these weeks, and none was watched. What the GPUs do now: "+
			"`gpulab gpus`.")
		return err
	}
	if r.Simulated {
		fmt.Fprint(w, "These GPUs are simulated.\n\n")
	}
	rows := [][]string{{"WEEK FROM", "GPU HOURS", "HELD", "BUSY", "IDLE", "PEOPLE", "WAITED", "19 OF 20", "FAIRNESS",
		"TAKEN BACK", "GAVE WAY"}}
	for _, p := range r.Weeks {
		rows = append(rows, append([]string{p.From.Local().Format(time.DateOnly), inHours(p.There)}, reportColumns(p)...))
	}
	rows = append(rows, append([]string{"all", inHours(r.Whole.There)}, reportColumns(r.Whole)...))
	if err := table(w, rows); err != nil {
		return err
	}
	if len(r.Groups) > 0 {
		rows = [][]string{{"GROUP", "HELD", "BUSY", "IDLE", "PEOPLE", "WAITED", "19 OF 20", "FAIRNESS", "TAKEN BACK",
			"GAVE WAY"}}
		for _, p := range r.Groups {
			rows = append(rows, append([]string{p.Group}, reportColumns(p)...))
		}
		fmt.Fprintln(w)
		if err := table(w, rows); err != nil {
			return err
		}
	}
	if r.Whole.Preempted > 0 {
		fmt.Fprintf(w, "\nJobs gave way to somebody who waited %d times; %s GPU hours at most were lost with that.\n",
			r.Whole.Preempted, inHours(r.Whole.Lost))
	}
	if gain := r.Whole.Gain(); gain != nil {
		fmt.Fprintf(w, "\nHad each GPU belonged to one person, they would have been busy for %s hours at best, not %s: "+
			"%+.0f %%.\n", inHours(*r.Whole.Owned), inHours(r.Whole.Busy), 100**gain)
	}
	return nil
}

// reportColumns are what weeks and groups have in common.
func reportColumns(p report.Part) []string {
	idle, fair := "–", "–"
	if known := p.Busy + p.Idle; known > 0 {
		idle = fmt.Sprintf("%.0f %%", 100*p.Idle/known)
	}
	if p.Fairness != nil {
		fair = strconv.FormatFloat(*p.Fairness, 'f', 2, 64)
	}
	wait := func(seconds *float64) string {
		if seconds == nil {
			return "–"
		}
		return units.Lasting(time.Duration(*seconds * float64(time.Second)))
	}
	return []string{
		inHours(p.Held), inHours(p.Busy), idle, strconv.Itoa(p.People), wait(p.Waited50), wait(p.Waited95), fair,
		strconv.Itoa(p.Reclaimed), strconv.Itoa(p.Preempted),
	}
}

func inHours(seconds float64) string { return strconv.FormatFloat(seconds/3600, 'f', 2, 64) }

// Report implements ctl.Daemon.
func (l *appliance) Report(ctx context.Context, weeks int) (report.Report, error) {
	return report.New(report.Config{DB: l.store.DB(), Usage: l.history.Usage, Groups: l.people.Groups,
		Members: l.people.Members}).Make(ctx, weeks)
}
