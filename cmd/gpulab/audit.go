package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/spf13/cobra"
)

func newAudit(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "audit", Short: "Who did what: list, export, verify",
		Example: "  sudo gpulab audit list --user ada --since 7d\n  sudo gpulab audit verify",
	}
	c.AddCommand(newAuditList(a), newAuditExport(a), newAuditVerify(a))
	return c
}

// auditFlags are the filter on the command line.
type auditFlags struct{ user, action, address, since, until string }

func (f *auditFlags) add(c *cobra.Command, a *app) {
	c.Flags().StringVar(&f.user, "user", "", "one person, root or system: who did it, or to whom")
	c.Flags().StringVar(&f.action, "action", "", "one action, such as user.remove")
	c.Flags().StringVar(&f.address, "address", "", "one address, or 10.0.0. for all that begin so")
	c.Flags().StringVar(&f.since, "since", "", "not older: a day such as 2026-03-01, or how far back, such as 24h or 7d")
	c.Flags().StringVar(&f.until, "until", "", "not newer: up to the end of a day such as 2026-03-31, or how far back")
	var actions []string
	for _, action := range audit.Actions() {
		actions = append(actions, action.Name)
	}
	completeFlag(c, "action", actions...)
	completeFlag(c, "since", "24h", "7d", "30d")
	if err := c.RegisterFlagCompletionFunc("user",
		func(c *cobra.Command, _ []string, part string) ([]string, cobra.ShellCompDirective) {
			return a.completeHandles(c, nil, part)
		}); err != nil {
		panic(err) // no such flag
	}
}

func (f *auditFlags) filter(now time.Time) (audit.Filter, error) {
	filter := audit.Filter{Person: f.user, Action: f.action, Remote: f.address}
	if f.action != "" && audit.Words(f.action) == f.action {
		return filter, fail(exitUsage, "there is no action %q; `gpulab audit list --action` and the Tab key show them all",
			f.action)
	}
	var err error
	if filter.Since, err = moment(f.since, now, 0); err != nil {
		return filter, fail(exitUsage, "--since %w", err)
	}
	if filter.Until, err = moment(f.until, now, 1); err != nil {
		return filter, fail(exitUsage, "--until %w", err)
	}
	return filter, nil
}

// moment reads a day, more days later, or how far back from now.
func moment(text string, now time.Time, more int) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if day, err := time.ParseInLocation(time.DateOnly, text, time.Local); err == nil {
		return day.AddDate(0, 0, more), nil
	}
	span, err := parseSpan(text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is neither a day such as 2026-03-01 nor a length of time such as 24h or 7d", text)
	}
	return now.Add(-span), nil
}

func newAuditList(a *app) *cobra.Command {
	var flags auditFlags
	var limit int
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Short: "List what was done, the newest first",
		Example: "  sudo gpulab audit list\n  sudo gpulab audit list --user ada --since 30d\n  sudo gpulab audit list " +
			"--action sign-in.failed --json | jq '.[].remote'",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			filter, err := flags.filter(time.Now())
			if err != nil {
				return err
			}
			if limit < 1 || limit > 100000 {
				return fail(exitUsage, "--limit %d: 1 to 100000 entries can be listed; `gpulab audit export` writes them all",
					limit)
			}
			if err := requireRoot(c); err != nil {
				return err
			}
			filter.Limit = limit
			entries, err := a.client().AuditEntries(c.Context(), filter)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), entries)
			}
			return printAudit(c.OutOrStdout(), entries)
		},
	}
	flags.add(c, a)
	c.Flags().IntVar(&limit, "limit", 50, "how many at most")
	jsonFlag(c, &asJSON)
	return c
}

func printAudit(w io.Writer, entries []audit.Entry) error {
	if len(entries) == 0 {
		_, err := fmt.Fprintln(w, "Nothing of the last 400 days fits.")
		return err
	}
	rows := [][]string{{"WHEN", "WHO", "WHAT", "WHOM", "FROM", "DETAILS"}}
	for _, e := range entries {
		rows = append(rows, []string{
			e.At.Local().Format("2006-01-02 15:04:05"), e.Actor, audit.Words(e.Action), e.Target, e.Remote, e.Detail,
		})
	}
	return table(w, rows)
}

func newAuditExport(a *app) *cobra.Command {
	var flags auditFlags
	var asCSV, asJSON bool
	c := &cobra.Command{
		Use: "export", Short: "Write entries as CSV or JSON, the oldest first",
		Long: `Write entries as CSV or JSON to the terminal, the oldest first. The JSON can be
checked without gpulab running: gpulab audit verify --file. That somebody
exports is recorded too.`,
		Example: "  sudo gpulab audit export --json > audit.json\n  sudo gpulab audit export --csv --since 30d > audit.csv",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			filter, err := flags.filter(time.Now())
			if err != nil {
				return err
			}
			if asCSV == asJSON {
				return fail(exitUsage, "say --csv or --json")
			}
			if err := requireRoot(c); err != nil {
				return err
			}
			format := audit.JSON
			if asCSV {
				format = audit.CSV
			}
			return a.client().ExportAudit(c.Context(), c.OutOrStdout(), format, filter)
		},
	}
	flags.add(c, a)
	c.Flags().BoolVar(&asCSV, "csv", false, "for spreadsheets")
	c.Flags().BoolVar(&asJSON, "json", false, "with all that its hashes are made of")
	return c
}

func newAuditVerify(a *app) *cobra.Command {
	var file, expect string
	var asJSON bool
	c := &cobra.Command{
		Use: "verify", Short: "Check that nobody changed the audit log",
		Long: `Check that nobody changed the audit log: each entry carries a hash over itself
and the entry before it. The first entry that does not fit is named.

What is left of a log whose end was cut off fits. So keep the head hash that
this command prints somewhere else, and check with --expect that it is still
in the log.

With --file an export (gpulab audit export --json) is checked, on any machine.
Of an export with a filter only what is in it can be checked.`,
		Example: "  sudo gpulab audit verify\n  sudo gpulab audit verify --expect 0f3a…\n  gpulab audit verify --file " +
			"audit.json",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var kept *audit.Hash
			if expect != "" {
				kept = &audit.Hash{}
				if err := kept.UnmarshalText([]byte(strings.TrimSpace(expect))); err != nil {
					return fail(exitUsage, "--expect: %w", err)
				}
			}
			var check audit.ChainCheck
			var err error
			if file != "" {
				check, err = verifyFile(file, kept)
			} else {
				if err := requireRoot(c); err != nil {
					return err
				}
				check, err = a.client().VerifyAudit(c.Context(), kept)
			}
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(c.OutOrStdout(), check)
			} else {
				err = printCheck(c.OutOrStdout(), check)
			}
			if err == nil && kept != nil && !check.Expected {
				return fail(exitFailure, "the hash %s is not in the log: its end was cut off, it was written anew, or the entry "+
					"is older than 400 days", kept)
			}
			return err
		},
	}
	c.Flags().StringVar(&file, "file", "", "a JSON export, instead of the log of this machine")
	c.Flags().StringVar(&expect, "expect", "", "a head hash from before, which must still be in the log")
	if err := c.MarkFlagFilename("file", "json"); err != nil {
		panic(err) // no such flag
	}
	completeFlag(c, "expect")
	jsonFlag(c, &asJSON)
	return c
}

func verifyFile(path string, expect *audit.Hash) (audit.ChainCheck, error) {
	f, err := os.Open(path)
	if err != nil {
		return audit.ChainCheck{}, err
	}
	defer f.Close()
	check, err := audit.CheckExport(f, expect)
	if err != nil {
		return check, fmt.Errorf("%s: %w", path, err)
	}
	return check, nil
}

func printCheck(w io.Writer, check audit.ChainCheck) error {
	if check.Entries == 0 {
		_, err := fmt.Fprintf(w, "There is no entry; head hash %s\n", check.Head)
		return err
	}
	entries := "entries"
	if check.Entries == 1 {
		entries = "entry"
	}
	span := fmt.Sprintf("%d %s from %s to %s", check.Entries, entries, check.From.Local().Format("2006-01-02 15:04"),
		check.To.Local().Format("2006-01-02 15:04"))
	if check.Part {
		_, err := fmt.Fprintf(w, "%s, each unchanged; this export is a part of the log, so what lies between them is not "+
			"checked (%d gaps)\n", span, check.Gaps)
		return err
	}
	_, err := fmt.Fprintf(w, "%s, unbroken, head hash %s\n", span, check.Head)
	return err
}

// AuditEntries implements ctl.Daemon.
func (l *appliance) AuditEntries(ctx context.Context, f audit.Filter) ([]audit.Entry, error) {
	return l.people.AuditLog().List(ctx, f)
}

// VerifyAudit implements ctl.Daemon.
func (l *appliance) VerifyAudit(ctx context.Context, expect *audit.Hash) (audit.ChainCheck, error) {
	return l.people.AuditLog().Verify(ctx, expect)
}

// ExportAudit implements ctl.Daemon. That root exports stands in the export itself.
func (l *appliance) ExportAudit(ctx context.Context, w io.Writer, format audit.Format, f audit.Filter) error {
	if err := l.people.AuditLog().Record(ctx, audit.Entry{Actor: "root", Action: "audit.export",
		Detail: string(format) + f.Words()}); err != nil {
		return err
	}
	return l.people.AuditLog().Export(ctx, w, format, f)
}
