package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/backup"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/units"
)

func newEnv(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "env", Short: "Environments such as PyTorch for all notebooks: list, create, default, export, import, remove",
		Long: `An environment is Python with packages in it that every notebook has as a kernel
and nobody can change: PyTorch, for example. It is built once, from a lock that
says exactly what is in it, and takes its room once. Notebooks that run see a new
one after a moment. Versions stay side by side until they are removed.`,
		Example: `  sudo gpulab env create --from pytorch                 one of the catalogue
  sudo gpulab env create vision --requirements vision.txt
  sudo gpulab env default pytorch                       what new notebooks begin with
  sudo gpulab env export pytorch pytorch.env            for a lab without internet
  sudo gpulab env list`,
	}
	c.AddCommand(newEnvList(a), newEnvCatalogue(a), newEnvCreate(a), newEnvCancel(a), newEnvShow(a), newEnvDefault(a),
		newEnvExport(a), newEnvImport(a), newEnvRemove(a))
	labEnvs(c)
	return c
}

func newEnvList(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Short: "List the environments",
		Example: "  sudo gpulab env list\n  sudo gpulab env list --json | jq '.[].packages'",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			list, err := a.client().Environments(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), list)
			}
			return printEnvironments(c.OutOrStdout(), list)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func printEnvironments(w io.Writer, list []ctl.EnvironmentState) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "No environments yet. `gpulab env create --from pytorch` builds one; `gpulab env "+
			"catalogue` lists what there is.")
		return err
	}
	rows := [][]string{{"ENVIRONMENT", "TITLE", "PYTHON", "PACKAGES", "SIZE", "NEEDS", "IN USE", "DEFAULT"}}
	for i := range list {
		e := &list[i]
		needs, def := "–", ""
		if e.CUDA != "" {
			needs = "CUDA " + e.CUDA
		}
		if e.Default {
			def = "default"
		}
		rows = append(rows, []string{
			e.ID(), visibly(e.Title), cmp.Or(e.Python, "–"), fmt.Sprint(len(e.Packages)), units.Bytes(uint64(max(e.Size, 0))),
			needs, fmt.Sprint(len(e.Users)), def,
		})
	}
	if err := table(w, rows); err != nil {
		return err
	}
	for i := range list {
		if list[i].Obstacle != "" {
			fmt.Fprintln(w, "! "+list[i].Obstacle)
		}
	}
	for i := range list {
		if missing := list[i].Missing; len(missing) > 0 {
			fmt.Fprintf(w, "%s is not on %s yet; `gpulab nodes` tells how far that is.\n", list[i].ID(),
				strings.Join(missing, ", "))
		}
	}
	return nil
}

func newEnvCatalogue(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "catalogue", Short: "List the environments that can be built without writing anything",
		Example: "  sudo gpulab env catalogue\n  sudo gpulab env create --from data-science",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			list, err := environments.Catalogue()
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), list)
			}
			rows := [][]string{{"NAME", "TITLE", "WHAT IS IN IT"}}
			for _, o := range list {
				rows = append(rows, []string{o.Name, o.Title, o.Note})
			}
			return table(c.OutOrStdout(), rows)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func newEnvCreate(a *app) *cobra.Command {
	var want ctl.WantedEnvironment
	var file string
	var asJSON bool
	c := &cobra.Command{
		Use: "create [NAME]", Short: "Build an environment",
		Long: `Build an environment from the catalogue (--from) or from a requirements file of pip
(--requirements, "-" for standard input). First the exact packages are found out;
that list, with hashes, is the lock, which "gpulab env show --lock" prints, and which
may be given as the requirements of another one. Wheels alone are installed.

Ctrl-C ends the build and leaves nothing behind; packages that were downloaded are
kept for the next try. Afterwards all notebooks have a new kernel.`,
		Example: "  sudo gpulab env create --from pytorch\n  sudo gpulab env create vision --title 'Computer vision' " +
			"--requirements vision.txt\n" +
			"  sudo gpulab env create numbers --requirements - <<<'numpy==2.1.3'\n" +
			"  sudo gpulab env create torch-cpu --requirements torch.txt --extra-index https://download.pytorch.org/whl/cpu",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			if len(args) == 1 {
				want.Name = args[0]
			}
			switch {
			case (want.From == "") == (file == ""):
				return fail(exitUsage, "say what is to be in it: --from with one of `gpulab env catalogue`, or --requirements "+
					"with a file; see `%s --help`", c.CommandPath())
			case file != "" && want.Name == "":
				return fail(exitUsage, "an environment needs a name; see `%s --help`", c.CommandPath())
			case file != "":
				text, err := readRequirements(c, file)
				if err != nil {
					return err
				}
				want.Requirements = text
			}
			return a.createEnvironment(c, want, asJSON)
		},
	}
	f := c.Flags()
	f.StringVar(&want.From, "from", "", "one of the catalogue")
	f.StringVarP(&file, "requirements", "r", "", "a requirements file of pip; - reads standard input")
	f.StringVar(&want.Version, "version", "", "its version (the date)")
	f.StringVar(&want.Title, "title", "", "what people read (the name)")
	f.StringVar(&want.CUDA, "cuda", "", "the lowest CUDA version that the driver has to offer (found out from the "+
		"packages)")
	f.StringVar(&want.Index, "index", "", "where packages come from instead of PyPI")
	f.StringSliceVar(&want.ExtraIndexes, "extra-index", nil, "where packages may come from besides")
	f.BoolVar(&want.Anyway, "anyway", false, "build it although no GPU of the lab can be used with it")
	jsonFlag(c, &asJSON)
	completeFlagWith(c, "from", func(*cobra.Command) []string {
		list, err := environments.Catalogue()
		if err != nil {
			return nil
		}
		var names []string
		for _, o := range list {
			names = append(names, o.Name)
		}
		return names
	})
	if err := c.MarkFlagFilename("requirements", "txt", "lock"); err != nil {
		panic(err) // no such flag
	}
	return c
}

// readRequirements reads a file of requirements, which is never large.
func readRequirements(c *cobra.Command, name string) (string, error) {
	in, _, err := openArchive(c, name, "requirements are one file")
	if err != nil {
		return "", err
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, 4<<20))
	return string(data), err
}

func (a *app) createEnvironment(c *cobra.Command, want ctl.WantedEnvironment, asJSON bool) error {
	line := progressLine{out: c.ErrOrStderr(), live: isTerminal(c.ErrOrStderr())}
	defer line.clear()
	err := a.client().CreateEnvironment(c.Context(), want, func(b ctl.EnvironmentBuild) error {
		if b.Environment == nil {
			text := b.Step
			if b.Line != "" && line.live {
				text += ": " + shortened(visibly(b.Line), 90)
			}
			line.say(text)
			return nil
		}
		line.clear()
		if asJSON {
			return printJSON(c.OutOrStdout(), b.Environment)
		}
		return printCreated(c.OutOrStdout(), b.Environment, "is built")
	})
	if c.Context().Err() != nil {
		return errors.New("interrupted; nothing of it is left but what was downloaded")
	}
	return err
}

// shortened is text of at most so many characters.
func shortened(text string, most int) string {
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
}

func printCreated(w io.Writer, e *ctl.EnvironmentState, what string) error {
	kernel := fmt.Sprintf("Notebooks have the kernel %q.", e.Words())
	if !e.HasKernel() {
		kernel = "Its programs are on the path of every notebook and job."
	}
	fmt.Fprintf(w, "%s %s: %d packages, %s. %s\n", e.ID(), what, len(e.Packages), units.Bytes(uint64(max(e.Size, 0))),
		kernel)
	if e.Obstacle != "" {
		fmt.Fprintln(w, "! "+e.Obstacle)
	}
	return nil
}

func newEnvCancel(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "cancel", Short: "End the build that is under way",
		Example: "  sudo gpulab env cancel",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			was, err := a.client().CancelEnvironment(c.Context())
			if err != nil {
				return err
			}
			text := "Nothing is being built."
			if was {
				text = "The build is being ended."
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), text)
			return err
		},
	}
}

// completeEnvironments lets root's shell complete environments.
func (a *app) completeEnvironments(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var ids []string
	if list, err := a.client().Environments(c.Context()); err == nil {
		for i := range list {
			ids = append(ids, list[i].ID())
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

func newEnvShow(a *app) *cobra.Command {
	var asJSON, lock bool
	c := &cobra.Command{
		Use: "show NAME[/VERSION]", Short: "Show what is in an environment, and who uses it",
		Example: "  sudo gpulab env show pytorch\n  sudo gpulab env show --lock pytorch/2026-11-23 >pytorch.lock",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			if lock {
				text, err := a.client().EnvironmentLock(c.Context(), args[0])
				if err != nil {
					return err
				}
				_, err = io.WriteString(c.OutOrStdout(), text)
				return err
			}
			e, err := a.client().Environment(c.Context(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), e)
			}
			return printEnvironment(c.OutOrStdout(), &e)
		},
	}
	jsonFlag(c, &asJSON)
	c.Flags().BoolVar(&lock, "lock", false, "print the lock: every package with its version and hash")
	c.ValidArgsFunction = a.completeEnvironments
	return c
}

func printEnvironment(w io.Writer, e *ctl.EnvironmentState) error {
	needs, users := "no GPU", "nobody right now"
	if e.CUDA != "" {
		needs = "a driver with CUDA " + e.CUDA + " or newer, for GPUs"
	}
	if len(e.Users) > 0 {
		users = strings.Join(e.Users, ", ")
	}
	rows := [][]string{
		{"Environment", e.ID()}, {"Kernel", visibly(e.KernelWords())}, {"In notebooks", e.Path()},
		{"Python", cmp.Or(e.Python, "–")},
		{"Built", e.Built.Local().Format("2 Jan 2006 15:04")}, {"Size", units.Bytes(uint64(max(e.Size, 0)))},
		{"Needs", needs}, {"Used by", users}, {"Lock", "sha256:" + e.LockSHA256},
	}
	if err := table(w, rows); err != nil {
		return err
	}
	if e.Obstacle != "" {
		fmt.Fprintln(w, "! "+e.Obstacle)
	}
	if len(e.Missing) > 0 {
		fmt.Fprintf(w, "It is not on %s yet; `gpulab nodes` tells how far that is.\n", strings.Join(e.Missing, ", "))
	}
	fmt.Fprintln(w)
	for _, p := range e.Packages {
		fmt.Fprintf(w, "%s %s\n", p.Name, p.Version)
	}
	return nil
}

func newEnvDefault(a *app) *cobra.Command {
	var none bool
	c := &cobra.Command{
		Use: "default NAME[/VERSION]", Short: "Choose what new notebooks begin with",
		Long: `Choose the kernel that JupyterLab takes where nobody says otherwise. Notebooks'
servers that run take it over when they are started anew; notebook files that
name a kernel keep theirs.`,
		Example: "  sudo gpulab env default pytorch\n  sudo gpulab env default --none       the notebooks' own Python, as " +
			"at first",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			if none == (len(args) == 1) {
				return fail(exitUsage, "name one environment, or say --none; see `%s --help`", c.CommandPath())
			}
			if none {
				_, err := a.client().DefaultEnvironment(c.Context(), "")
				if err == nil {
					_, err = fmt.Fprintln(c.OutOrStdout(), "Notebooks begin with their own Python from their next start.")
				}
				return err
			}
			e, err := a.client().DefaultEnvironment(c.Context(), args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "Notebooks begin with %s from their next start.\n", e.ID())
			return err
		},
	}
	c.Flags().BoolVar(&none, "none", false, "the notebooks' own Python")
	c.ValidArgsFunction = a.completeEnvironments
	return c
}

func newEnvExport(a *app) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "export NAME[/VERSION] FILE", Short: "Write an environment into a file",
		Long: `Write an environment into a file, which "gpulab env import" brings into another lab
without any network. "-" writes to standard output. The file gets its name once it
is whole.`,
		Example: "  sudo gpulab env export pytorch /media/usb/pytorch.env",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			if args[1] == "-" {
				return a.client().ExportEnvironment(c.Context(), args[0], c.OutOrStdout())
			}
			line := progressLine{out: c.ErrOrStderr(), live: isTerminal(c.ErrOrStderr())}
			size, err := a.exportEnvironment(c, args[0], args[1], force, func(n int64) { line.say("writing " + megabytes(n)) })
			line.clear()
			if c.Context().Err() != nil {
				return errors.New("interrupted; no file was written")
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s holds it, %s.\n", args[1], megabytes(size))
			return err
		},
	}
	c.Flags().BoolVar(&force, "force", false, "replace a file that is there")
	c.ValidArgsFunction = a.completeEnvironments
	return c
}

// exportEnvironment writes a file that has its name only once it is whole.
func (a *app) exportEnvironment(c *cobra.Command, id, name string, force bool, at func(int64)) (size int64, err error) {
	target, err := backup.NewTarget(name, force)
	if err != nil {
		return 0, err
	}
	defer target.Close()
	file := &tellingWriter{countingWriter{w: target}, at}
	if err := a.client().ExportEnvironment(c.Context(), id, file); err != nil {
		return file.n, err
	}
	return file.n, target.Commit(force)
}

// tellingWriter tells how much has been written.
type tellingWriter struct {
	countingWriter
	at func(n int64)
}

func (w *tellingWriter) Write(p []byte) (int, error) {
	n, err := w.countingWriter.Write(p)
	w.at(w.n)
	return n, err
}

func newEnvImport(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "import FILE", Short: "Bring in an environment from a file",
		Long: `Bring in an environment that "gpulab env export" wrote; "-" reads standard input.
No network is needed. A file that is broken or only half read leaves nothing behind.`,
		Example: "  sudo gpulab env import /media/usb/pytorch.env",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			file, size, err := openArchive(c, args[0], "an environment is one file")
			if err != nil {
				return err
			}
			defer file.Close()
			line := progressLine{out: c.ErrOrStderr(), live: isTerminal(c.ErrOrStderr())}
			e, err := a.client().ImportEnvironment(c.Context(), &countingReader{r: file, at: func(n int64) {
				line.say("reading " + progress(n, size))
			}})
			line.clear()
			if c.Context().Err() != nil {
				return errors.New("interrupted; nothing of it is left")
			}
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), e)
			}
			return printCreated(c.OutOrStdout(), &e, "is here")
		},
	}
	jsonFlag(c, &asJSON)
	c.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"env"}, cobra.ShellCompDirectiveFilterFileExt
	}
	return c
}

func newEnvRemove(a *app) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "remove NAME/VERSION", Short: "Remove an environment",
		Long: `Remove an environment; its version has to be named. One that somebody's programs
use right now stays unless --force is given: they would fail at the next thing that
they import. Kernels that people made for themselves on top of it stop working.`,
		Example: "  sudo gpulab env remove pytorch/2026-03-01",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			if !strings.Contains(args[0], "/") {
				return fail(exitUsage, "name the version too, as %s/VERSION: `gpulab env list` shows those there are", args[0])
			}
			e, err := a.client().RemoveEnvironment(c.Context(), args[0], force)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s is removed; %s are free again. It can be built again from its lock.\n",
				e.ID(), units.Bytes(uint64(max(e.Size, 0))))
			return err
		},
	}
	c.Flags().BoolVar(&force, "force", false, "even while somebody uses it")
	c.ValidArgsFunction = a.completeEnvironments
	return c
}
