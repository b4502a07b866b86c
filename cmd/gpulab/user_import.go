package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
)

// importFlags are the choices of `gpulab user import`.
type importFlags struct {
	ctl.ImportRequest
	role, passwd, links string
	days                int
	yes, asJSON         bool
}

func newUserImport(a *app) *cobra.Command {
	var f importFlags
	c := &cobra.Command{
		Use: "import FILE", Short: "Add the people of a CSV list, or of this machine’s Linux accounts",
		Long: "Add the people of a CSV list (- reads it from the input) and print a one-time\nlink for each of them, " +
			"with which they choose a password.\n\n" +
			"The first line names the columns: name (or first and last name), handle, email,\nrole, group, in any order, " +
			"of which one of the first three is needed. Columns of\nMoodle, Canvas, TUMonline and other campus systems are " +
			"understood in English,\nGerman, French and Spanish; the report lists those that are not used. The file is\n" +
			"UTF-8, or UTF-16 as spreadsheets write it. The list is imported whole or not at\nall; --dry-run shows what " +
			"would happen. The exit status is 1 if a row has an error, with\n--skip-errors as well.\n\n" +
			"With --from-passwd, people come from /etc/passwd and keep their numbers (UIDs).\nSystem accounts are left out. " +
			"Without --yes, nothing is changed. Files in /home\nstay where they are.",
		Example: "  sudo gpulab user import class.csv --group ml-2026 --make-groups --dry-run\n" +
			"  sudo gpulab user import class.csv --links links.csv\n" +
			"  sudo gpulab user import --from-passwd\n  sudo gpulab user import --from-passwd --yes --links links.csv",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			return runImport(a, c, &f, args)
		},
	}
	c.Flags().BoolVar(&f.DryRun, "dry-run", false, "say what would happen, change nothing")
	c.Flags().StringVar(&f.links, "links", "",
		"write the links to this CSV file, for root alone, instead of printing them")
	c.Flags().StringVar(&f.Group, "group", "", "group of those whose row names none")
	c.Flags().StringVar(&f.role, "role", "member", "role of those whose row names none: admin, lead, member or guest")
	c.Flags().BoolVar(&f.MakeGroups, "make-groups", false, "make groups that are not there yet")
	c.Flags().BoolVar(&f.DropWrong, "skip-errors", false, "import the other rows where some have errors")
	c.Flags().IntVar(&f.days, "days", 7, "how many days the links work, 1 to 30")
	c.Flags().BoolVar(&f.Passwd, "from-passwd", false, "take people from /etc/passwd, with their numbers")
	c.Flags().StringVar(&f.passwd, "passwd", "/etc/passwd", "with --from-passwd: another file of that format")
	c.Flags().IntVar(&f.MinUID, "min-uid", 1000, "with --from-passwd: leave lower numbers out")
	c.Flags().IntVar(&f.MaxUID, "max-uid", 59999, "with --from-passwd: leave higher numbers out")
	c.Flags().BoolVarP(&f.yes, "yes", "y", false, "with --from-passwd: do it")
	completeFlag(c, "role", "admin", "lead", "member", "guest")
	jsonFlag(c, &f.asJSON)
	return c
}

func runImport(a *app, c *cobra.Command, f *importFlags, args []string) error {
	if err := f.read(c.InOrStdin(), args); err != nil {
		return err
	}
	f.Role = users.Role(f.role)
	f.LinkTTL = time.Duration(f.days) * 24 * time.Hour
	if f.days < 1 {
		return fail(exitUsage, "--days is %d; the links work for 1 to 30 days", f.days)
	}
	var file *os.File
	if f.links != "" && !f.DryRun {
		// Before anything is imported: the links are told only once.
		var err error
		if file, err = os.CreateTemp(filepath.Dir(f.links), ".gpulab-links-*"); err != nil {
			return fail(exitUsage, "the links could not be written: %w", err)
		}
		defer os.Remove(file.Name())
		defer file.Close()
	}
	result, err := a.client().ImportUsers(c.Context(), f.ImportRequest)
	if err != nil {
		return err
	}
	if file != nil && len(result.Links) > 0 {
		if err := keepLinks(file, f.links, result.Links); err != nil {
			_ = showLinks(c.OutOrStdout(), result.Links) // they would be lost
			return err
		}
	}
	return f.show(c.OutOrStdout(), result)
}

// read gets the text, and decides whether anything is to be changed.
func (f *importFlags) read(in io.Reader, args []string) error {
	source := f.passwd
	switch {
	case f.Passwd && len(args) > 0:
		return fail(exitUsage, "--from-passwd reads %s; name another file with --passwd %s", f.passwd, args[0])
	case f.Passwd:
		f.DryRun = f.DryRun || !f.yes
	case len(args) == 0:
		return fail(exitUsage, "which list? Name a CSV file, or - for the input; --from-passwd takes the Linux accounts "+
			"of this machine")
	default:
		source = args[0]
	}
	var err error
	if source == "-" {
		f.Text, err = io.ReadAll(io.LimitReader(in, 4<<20+1))
	} else {
		f.Text, err = os.ReadFile(source)
	}
	if err != nil {
		return fail(exitUsage, "the list: %w", err)
	}
	if len(f.Text) > 4<<20 {
		return fail(exitUsage, "%s is larger than 4 MB, so it is no list of people", source)
	}
	return nil
}

// keepLinks writes the file in one step; it is for its owner alone, as CreateTemp makes it.
func keepLinks(file *os.File, path string, links []users.PersonalLink) error {
	err := users.WriteLinks(file, links)
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("the people are imported, but their links could not be written to %s, so here they are: %w", path,
			err)
	}
	return nil
}

func showLinks(w io.Writer, links []users.PersonalLink) error {
	rows := [][]string{{"HANDLE", "NAME", "LINK"}}
	for i := range links {
		rows = append(rows, []string{links[i].Handle, links[i].Name, links[i].URL})
	}
	return table(w, rows)
}

func (f *importFlags) show(w io.Writer, r ctl.ImportResult) error {
	if f.asJSON {
		if f.links != "" {
			r.Links = nil
		}
		if err := printJSON(w, r); err != nil {
			return err
		}
	} else if err := f.report(w, r); err != nil {
		return err
	}
	if r.Stopped != "" {
		return fail(exitFailure, "%s Here that is --skip-errors.", r.Stopped)
	}
	switch {
	case r.Plan.Wrong == 0:
		return nil
	case r.Applied:
		return fail(exitFailure, "not everybody was imported; rows with errors: %d", r.Plan.Wrong)
	}
	return fail(exitFailure, "rows with errors: %d; correct them, or leave them out with --skip-errors", r.Plan.Wrong)
}

func (f *importFlags) report(w io.Writer, r ctl.ImportResult) error {
	rows := [][]string{{"LINE", "WHAT", "HANDLE", "NAME", "ROLE", "GROUP", ""}}
	if f.Passwd {
		rows[0][5] = "UID"
	}
	for i := range r.Plan.Rows {
		p := &r.Plan.Rows[i]
		last := p.Group
		if f.Passwd {
			last = fmt.Sprint(p.UID)
		}
		rows = append(rows, []string{fmt.Sprint(p.Line), string(p.Status), p.Handle, p.Name, string(p.Role), last, p.Text})
	}
	// Who was imported sees their links; the rows are for a look, and for what went wrong.
	if !r.Applied || r.Plan.Wrong > 0 {
		if err := table(w, rows); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "%d new, %d there already, %d left out, %d with errors.\n", r.Plan.New, r.Plan.Exists, r.Plan.Skipped,
		r.Plan.Wrong)
	if len(r.Plan.Ignored) > 0 {
		fmt.Fprintf(w, "Columns that are not used: %q.\n", r.Plan.Ignored)
	}
	switch {
	case r.Stopped != "":
		return nil
	case !r.Applied && f.Passwd:
		_, err := fmt.Fprintln(w, "Nothing was changed. Run it again with --yes to do this.")
		return err
	case !r.Applied:
		_, err := fmt.Fprintln(w, "Nothing was changed. Run it again without --dry-run to do this.")
		return err
	case len(r.Links) == 0:
		_, err := fmt.Fprintln(w, "Nobody is new, so there are no links.")
		return err
	case f.links != "":
		_, err := fmt.Fprintf(w, "Their links are in %s; each works once, until %s.\n", f.links,
			r.Links[0].Expires.Local().Format("2 Jan 15:04"))
		return err
	}
	fmt.Fprintf(w, "Send each person theirs; they work once, until %s:\n",
		r.Links[0].Expires.Local().Format("2 Jan 15:04"))
	return showLinks(w, r.Links)
}

// ImportUsers implements ctl.Daemon.
func (l *appliance) ImportUsers(ctx context.Context, r ctl.ImportRequest) (ctl.ImportResult, error) {
	return importUsers(ctx, l.people, l.url(), r)
}

// importer is what an import asks of the accounts.
type importer interface {
	PlanImport(ctx context.Context, text []byte, opts users.ImportOptions) (users.ImportPlan, error)
	Import(ctx context.Context, who audit.Entry, text []byte,
		opts users.ImportOptions) (users.ImportPlan, []users.PersonalLink, error)
	PlanPasswd(ctx context.Context, text []byte, opts users.PasswdOptions) (users.ImportPlan, error)
	ImportPasswd(ctx context.Context, who audit.Entry, text []byte,
		opts users.PasswdOptions) (users.ImportPlan, []users.PersonalLink, error)
}

func importUsers(ctx context.Context, people importer, lab string, r ctl.ImportRequest) (ctl.ImportResult, error) {
	opts := users.ImportOptions{
		Role: r.Role, Group: r.Group, MakeGroups: r.MakeGroups, DropWrong: r.DropWrong, LinkTTL: r.LinkTTL,
	}
	passwd := users.PasswdOptions{MinUID: r.MinUID, MaxUID: r.MaxUID, ImportOptions: opts}
	root := audit.Entry{Actor: "root"}
	result := ctl.ImportResult{Applied: !r.DryRun}
	var err error
	switch {
	case r.Passwd && r.DryRun:
		result.Plan, err = people.PlanPasswd(ctx, r.Text, passwd)
	case r.Passwd:
		result.Plan, result.Links, err = people.ImportPasswd(ctx, root, r.Text, passwd)
	case r.DryRun:
		result.Plan, err = people.PlanImport(ctx, r.Text, opts)
	default:
		result.Plan, result.Links, err = people.Import(ctx, root, r.Text, opts)
	}
	if errors.Is(err, users.ErrImportStopped) {
		return ctl.ImportResult{Plan: result.Plan, Stopped: err.Error()}, nil
	}
	if err != nil {
		return ctl.ImportResult{}, err
	}
	for i := range result.Links {
		result.Links[i].URL = lab + "/welcome?token=" + url.QueryEscape(result.Links[i].Token)
	}
	return result, nil
}
