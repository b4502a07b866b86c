package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/storage"
	"github.com/gpulab/gpulab/internal/units"
)

func newFolder(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "folder", Short: "Folders that people share: list, create, show, set, delete, undelete",
		Long: "Shared folders appear below \"shared\" in the home of everybody who may use them.\n\nThe kinds:\n" +
			"  group     members of a group read and write\n" +
			"  hand-in   each member of a group has a part of their own; its leads read all\n" +
			"  dataset   everybody, or some groups, read; admins write\n" +
			"  host      a folder of the machine, only read, without copying it",
		Example: "  sudo gpulab folder create vision-data --kind group --group vision\n  sudo gpulab folder create " +
			"exercises --kind hand-in --group seminar\n" +
			"  sudo gpulab folder create imagenet --kind dataset\n  sudo gpulab folder create archive --kind host --path " +
			"/srv/archive --group vision\n  sudo gpulab folder list",
	}
	c.AddCommand(newFolderList(a), newFolderCreate(a), newFolderShow(a), newFolderSet(a), newFolderDelete(a),
		newFolderUndelete(a))
	return c
}

func newFolderList(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Short: "List all shared folders",
		Example: "  sudo gpulab folder list\n  sudo gpulab folder list --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			list, err := a.client().Folders(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), list)
			}
			return printFolders(c.OutOrStdout(), list, time.Now())
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func printFolders(w io.Writer, list []storage.Folder, now time.Time) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "No shared folders yet. `gpulab folder create NAME --kind group --group GROUP` makes one.")
		return err
	}
	rows := [][]string{{"NAME", "KIND", "WHO", "SIZE", "STATE"}}
	for i := range list {
		f := &list[i]
		rows = append(rows, []string{f.Name, f.Kind.Words(), f.Who(), folderSize(f, now), folderState(f)})
	}
	return table(w, rows)
}

func folderSize(f *storage.Folder, now time.Time) string {
	switch {
	case f.Kind == storage.Host:
		return "not measured"
	case f.Size == nil:
		return "not known yet"
	}
	return units.Bytes(uint64(f.Size.Bytes)) + ", " + units.Lasting(now.Sub(f.Size.At)) + " ago"
}

func folderState(f *storage.Folder) string {
	if f.Purge != nil {
		return "deleted; kept until " + f.Purge.Local().Format("2 Jan 2006")
	}
	return "there"
}

func newFolderCreate(a *app) *cobra.Command {
	var n storage.NewFolder
	var kind, guests, others string
	c := a.folderCommand(cobra.Command{
		Use: "create NAME", Short: "Make a shared folder",
		Long: "Make a shared folder. Notebooks that run get it when they are started anew.",
		Example: "  sudo gpulab folder create vision-data --kind group --group vision --guests write\n  sudo gpulab " +
			"folder create exercises --kind hand-in --group seminar\n" +
			"  sudo gpulab folder create imagenet --kind dataset --note 'ILSVRC 2012'\n  sudo gpulab folder create archive " +
			"--kind host --path /srv/archive",
	}, func(c *cobra.Command, name string) (storage.Folder, string, error) {
		n.Name, n.Kind, n.Guests, n.Others = name, storage.Kind(kind), storage.Access(guests), storage.Access(others)
		f, err := a.client().AddFolder(c.Context(), n)
		return f, fmt.Sprintf("The folder %s is there: %s. Notebooks show it as shared/%s from their next start.", f.Name,
			f.Who(), f.Name), err
	})
	c.Flags().StringVar(&kind, "kind", string(storage.Group), "group, hand-in, dataset or host")
	c.Flags().StringSliceVar(&n.Groups, "group", nil, "the group it is for; several for a dataset or a folder of the "+
		"machine, none for everybody")
	c.Flags().StringVar(&guests, "guests", "", "what guests in the group may: write, read or none (read)")
	c.Flags().StringVar(&others, "others", "", "what everybody else may: read or none")
	c.Flags().StringVar(&n.Path, "path", "", "the folder of the machine that is shown")
	c.Flags().StringVar(&n.Note, "note", "", "what it is for")
	completeFlag(c, "kind", "group", "hand-in", "dataset", "host")
	completeFlag(c, "guests", "write", "read", "none")
	completeFlag(c, "others", "read", "none")
	completeFlagWith(c, "group", a.groupNames)
	return c
}

// folderCommand is a command about one folder: do returns it with the sentence
// for people, "" to show all of it.
func (a *app) folderCommand(about cobra.Command,
	do func(c *cobra.Command, name string) (storage.Folder, string, error)) *cobra.Command {
	var asJSON bool
	about.Args = cobra.ExactArgs(1)
	about.RunE = func(c *cobra.Command, args []string) error {
		if err := requireRoot(c); err != nil {
			return err
		}
		f, said, err := do(c, args[0])
		switch {
		case err != nil:
			return err
		case asJSON:
			return printJSON(c.OutOrStdout(), f)
		case said == "":
			return printFolder(c.OutOrStdout(), &f, time.Now())
		}
		_, err = fmt.Fprintln(c.OutOrStdout(), said)
		return err
	}
	jsonFlag(&about, &asJSON)
	return &about
}

func newFolderShow(a *app) *cobra.Command {
	return a.folderCommand(cobra.Command{
		Use: "show NAME", Short: "Show a shared folder and who may do what in it",
		Example:           "  sudo gpulab folder show vision-data\n  sudo gpulab folder show vision-data --json",
		ValidArgsFunction: a.completeFolder,
	}, func(c *cobra.Command, name string) (storage.Folder, string, error) {
		f, err := a.client().Folder(c.Context(), name)
		return f, "", err
	})
}

func printFolder(w io.Writer, f *storage.Folder, now time.Time) error {
	rows := [][]string{{"name", f.Name}, {"kind", f.Kind.Words()}, {"who", f.Who()}}
	if f.Note != "" {
		rows = append(rows, []string{"note", f.Note})
	}
	if f.Path != "" {
		rows = append(rows, []string{"path", f.Path})
	}
	rows = append(rows, []string{"in JupyterLab", "shared/" + f.Name}, []string{"size", folderSize(f, now)},
		[]string{"state", folderState(f)}, []string{"made", f.Created.Local().Format("2 Jan 2006") + " by " + f.CreatedBy})
	if f.HostUsers {
		rows = append(rows, []string{"isolation", "notebooks with it share the machine's user IDs, because a file system " +
			"of it cannot do otherwise"})
	}
	return table(w, rows)
}

func newFolderSet(a *app) *cobra.Command {
	var groups []string
	var guests, others, note string
	c := a.folderCommand(cobra.Command{
		Use: "set NAME", Short: "Change who may use a shared folder",
		Long: "Change who may use a shared folder. Notebooks of people who lose it are ended at once.",
		Example: "  sudo gpulab folder set vision-data --guests none\n  sudo gpulab folder set imagenet --group " +
			"vision --group audio --others none",
		ValidArgsFunction: a.completeFolder,
	}, func(c *cobra.Command, name string) (storage.Folder, string, error) {
		change := storage.Change{Groups: groups}
		for flag, set := range map[string]func(){
			"guests": func() { change.Guests = new(storage.Access(guests)) },
			"others": func() { change.Others = new(storage.Access(others)) },
			"note":   func() { change.Note = &note },
		} {
			if c.Flags().Changed(flag) {
				set()
			}
		}
		f, err := a.client().ChangeFolder(c.Context(), name, change)
		return f, f.Name + ": " + f.Who() + ".", err
	})
	c.Flags().StringSliceVar(&groups, "group", nil, "the groups it is for from now on (a dataset or a folder of the "+
		"machine)")
	c.Flags().StringVar(&guests, "guests", "", "what guests in the group may: write, read or none")
	c.Flags().StringVar(&others, "others", "", "what everybody else may: read or none")
	c.Flags().StringVar(&note, "note", "", "what it is for")
	completeFlag(c, "guests", "write", "read", "none")
	completeFlag(c, "others", "read", "none")
	completeFlagWith(c, "group", a.groupNames)
	return c
}

func newFolderDelete(a *app) *cobra.Command {
	var yes, asJSON bool
	c := &cobra.Command{
		Use: "delete NAME", Short: "Delete a shared folder; it can come back for 30 days",
		Example: "  sudo gpulab folder delete vision-data\n  sudo gpulab folder delete --yes vision-data",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: a.completeFolder,
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			f, err := a.client().Folder(c.Context(), args[0])
			if err != nil {
				return err
			}
			if !yes {
				if !isTerminal(c.InOrStdin()) {
					return fail(exitUsage, "deleting %s ends the notebooks that have it open; say --yes to do it", f.Name)
				}
				if !askToDelete(&asker{in: bufio.NewReader(c.InOrStdin()), out: c.OutOrStdout()}, &f) {
					return nil
				}
			}
			if f, err = a.client().DeleteFolder(c.Context(), f.Name); err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), f)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "The folder %s is deleted. `gpulab folder undelete %s` brings it back "+
				"until %s.\n",
				f.Name, f.Name, f.Purge.Local().Format("2 January 2006"))
			return err
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	jsonFlag(c, &asJSON)
	return c
}

// askToDelete asks twice.
func askToDelete(q *asker, f *storage.Folder) bool {
	files := "Its files are kept for 30 days and can come back until then."
	if f.Kind == storage.Host {
		files = "The files stay where they are, in " + f.Path + "."
	}
	if !strings.EqualFold(q.line(fmt.Sprintf("Delete the folder %s (%s)? Notebooks that have it open are ended. %s "+
		"(yes/no)", f.Name, f.Who(), files), "no"), "yes") {
		return false
	}
	if q.line("Type its name to do it:", "keep") == f.Name {
		return true
	}
	fmt.Fprintln(q.out, "Nothing was deleted.")
	return false
}

func newFolderUndelete(a *app) *cobra.Command {
	return a.folderCommand(cobra.Command{
		Use: "undelete NAME", Short: "Bring a deleted folder back",
		Example: "  sudo gpulab folder undelete vision-data", ValidArgsFunction: a.completeFolder,
	}, func(c *cobra.Command, name string) (storage.Folder, string, error) {
		f, err := a.client().UndeleteFolder(c.Context(), name)
		return f, fmt.Sprintf("The folder %s is back: %s.", f.Name, f.Who()), err
	})
}

// completeFolder lets root's shell complete shared folders.
func (a *app) completeFolder(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := a.client().Folders(c.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for i := range list {
		names = append(names, list[i].Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
