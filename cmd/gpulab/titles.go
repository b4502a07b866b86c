package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/users"
)

// titles are what machines are shown as that are not shown under their names.
type titles struct {
	mu   sync.Mutex
	list map[string]string // by name
}

// called is what a machine is shown as.
func (l *appliance) called(machine string) string {
	l.titles.mu.Lock()
	defer l.titles.mu.Unlock()
	if title := l.titles.list[machine]; title != "" {
		return title
	}
	return machine
}

// titleOf is its title, "" where it is shown under its name.
func (l *appliance) titleOf(machine string) string {
	if title := l.called(machine); title != machine {
		return title
	}
	return ""
}

// rereadTitles takes them from the database, and tells the pages.
func (l *appliance) rereadTitles(ctx context.Context) error {
	list, err := l.pool.registry.Titles(ctx)
	if err != nil {
		return err
	}
	l.titles.mu.Lock()
	l.titles.list = list
	l.titles.mu.Unlock()
	l.fleet.Titles(list)
	return nil
}

// Rename shows a machine under a title; its own name, or none, takes that back.
func (m machines) Rename(ctx context.Context, name, title string) (ctl.RenamedNode, error) {
	l := m.lab
	if !l.known(name) {
		return ctl.RenamedNode{}, l.noMachine(name)
	}
	names := []string{l.id.NodeName}
	for _, n := range l.pool.list() {
		names = append(names, n.Name)
	}
	before, err := l.pool.registry.Rename(ctx, name, title, names)
	if errors.Is(err, nodes.ErrTitle) || errors.Is(err, nodes.ErrTitleTaken) {
		return ctl.RenamedNode{}, &users.Error{Kind: ctl.ErrNodeTitle, Text: err.Error()}
	}
	if err == nil {
		// What is said of machines that take no new work names them.
		err = errors.Join(l.rereadTitles(ctx), l.cordons.changed(ctx))
	}
	return ctl.RenamedNode{Name: name, Title: l.called(name), Before: before}, err
}

// RenameNode implements ctl.Daemon.
func (l *appliance) RenameNode(ctx context.Context, name, title string) (ctl.RenamedNode, error) {
	out, err := machines{l}.Rename(ctx, name, title)
	if err == nil {
		l.recordRoot(ctx, "node.rename", name, out.Title)
	}
	return out, err
}

func newNodesRename(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "rename NAME TITLE", Short: "Show a machine under a title that people know it by",
		Long: fmt.Sprintf(`Show a machine, the head or another, under a title that people know it by, of at
most %d characters: on the pages, and where they read where something runs. In
commands, in Kubernetes and in the metrics its name stays. No two machines have
the same; the machine's own name takes the title back.`, nodes.LongestTitle),
		Example: "  sudo gpulab nodes rename gpu-box 'Under the window'\n  sudo gpulab nodes rename gpu-box gpu-box",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			renamed, err := a.client().RenameNode(c.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			out := c.OutOrStdout()
			switch renamed.Title {
			case renamed.Before:
				fmt.Fprintf(out, "%s is shown as “%s” already.\n", renamed.Name, renamed.Title)
			case renamed.Name:
				fmt.Fprintf(out, "%s is shown under its name again, and no more as “%s”.\n", renamed.Name, renamed.Before)
			default:
				fmt.Fprintf(out, "%s is shown as “%s” now, and no more as “%s”. `gpulab nodes rename %[1]s %[1]s` shows it "+
					"under its name again.\n", renamed.Name, renamed.Title, renamed.Before)
			}
			return nil
		},
	}
}
