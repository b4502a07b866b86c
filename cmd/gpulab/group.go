package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
)

func newGroup(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "group", Short: "Groups of people, such as a class: add, list, show, members, remove",
		Long: "Groups are people who work together, such as a class or a project. The leads of a\n" +
			"group see what its members run and use, and may stop their notebooks.",
		Example: "  sudo gpulab group add vision --title 'Vision seminar'\n  sudo gpulab group member add vision ada " +
			"--lead\n  sudo gpulab group show vision",
	}
	member := &cobra.Command{
		Use: "member", Short: "Who is in a group: add, remove",
		Example: "  sudo gpulab group member add vision ada ben\n  sudo gpulab group member remove vision ben",
	}
	member.AddCommand(newGroupMemberAdd(a), newGroupMemberRemove(a))
	c.AddCommand(newGroupAdd(a), newGroupList(a), newGroupShow(a), member, newGroupRemove(a))
	return c
}

func newGroupAdd(a *app) *cobra.Command {
	var title string
	var asJSON bool
	c := &cobra.Command{
		Use: "add NAME", Short: "Make a group",
		Example: "  sudo gpulab group add vision\n  sudo gpulab group add vision --title 'Vision seminar, autumn 2026'",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			g, err := a.client().AddGroup(c.Context(), ctl.NewGroup{Name: args[0], Title: title})
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), g)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "The group %s is there. `gpulab group member add %s HANDLE` adds people.\n",
				g.Name, g.Name)
			return err
		},
	}
	c.Flags().StringVar(&title, "title", "", "what people read instead of the name")
	jsonFlag(c, &asJSON)
	return c
}

func newGroupList(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Short: "List all groups",
		Example: "  sudo gpulab group list\n  sudo gpulab group list --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			groups, err := a.client().Groups(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), groups)
			}
			if len(groups) == 0 {
				_, err := fmt.Fprintln(c.OutOrStdout(), "No groups yet. `gpulab group add NAME` makes one.")
				return err
			}
			rows := [][]string{{"NAME", "TITLE", "MEMBERS", "LEADS"}}
			for _, g := range groups {
				rows = append(rows, []string{g.Name, g.Title, fmt.Sprint(g.Members), strings.Join(g.Leads, ",")})
			}
			return table(c.OutOrStdout(), rows)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func newGroupShow(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "show NAME", Short: "Show a group and who is in it",
		Example: "  sudo gpulab group show vision\n  sudo gpulab group show vision --json",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: a.completeGroup,
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			g, err := a.client().Group(c.Context(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), g)
			}
			return printGroup(c.OutOrStdout(), g)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func printGroup(w io.Writer, g ctl.GroupWithMembers) error {
	fmt.Fprintf(w, "%s: %s\n", g.Name, g.Title)
	if len(g.People) == 0 {
		_, err := fmt.Fprintf(w, "Nobody is in it. `gpulab group member add %s HANDLE` adds people.\n", g.Name)
		return err
	}
	rows := [][]string{{"HANDLE", "NAME", "ROLE", "IN THE GROUP"}}
	for _, m := range g.People {
		part := "member"
		if m.Lead {
			part = "lead"
		}
		rows = append(rows, []string{m.Handle, m.Name, string(m.Role), part})
	}
	return table(w, rows)
}

func newGroupMemberAdd(a *app) *cobra.Command {
	var lead bool
	c := &cobra.Command{
		Use: "add GROUP HANDLE...", Short: "Add people to a group, or change whether they lead it",
		Long: "Add people to a group, or change whether they lead it. A member who leads a group\n" +
			"gets the role lead.",
		Example: "  sudo gpulab group member add vision ada ben\n  sudo gpulab group member add vision ada --lead",
		Args:    cobra.MinimumNArgs(2), ValidArgsFunction: a.completeGroupThenHandles,
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			for _, handle := range args[1:] {
				if err := a.client().SetMember(c.Context(), args[0], handle, lead); err != nil {
					return fmt.Errorf("%s: %w", handle, err)
				}
				verb := "is in"
				if lead {
					verb = "leads"
				}
				fmt.Fprintf(c.OutOrStdout(), "%s %s %s.\n", handle, verb, args[0])
			}
			return nil
		},
	}
	c.Flags().BoolVar(&lead, "lead", false, "they lead the group")
	return c
}

func newGroupMemberRemove(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "remove GROUP HANDLE...", Short: "Take people out of a group; they stay in the lab",
		Example: "  sudo gpulab group member remove vision ben",
		Args:    cobra.MinimumNArgs(2), ValidArgsFunction: a.completeGroupThenHandles,
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			for _, handle := range args[1:] {
				if err := a.client().RemoveMember(c.Context(), args[0], handle); err != nil {
					return fmt.Errorf("%s: %w", handle, err)
				}
				fmt.Fprintf(c.OutOrStdout(), "%s is not in %s.\n", handle, args[0])
			}
			return nil
		},
	}
}

func newGroupRemove(a *app) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "remove NAME", Short: "Remove a group; its members stay in the lab",
		Example: "  sudo gpulab group remove vision\n  sudo gpulab group remove --yes vision",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: a.completeGroup,
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			if !yes {
				if !isTerminal(c.InOrStdin()) {
					return fail(exitUsage, "removing %s ends its invitations and what its leads may do; say --yes to do it", args[0])
				}
				q := &asker{in: bufio.NewReader(c.InOrStdin()), out: c.OutOrStdout()}
				if !strings.EqualFold(q.line(fmt.Sprintf("Remove the group %s? Its members stay in the lab. (yes/no)", args[0]),
					"no"), "yes") {
					return nil
				}
			}
			if err := a.client().RemoveGroup(c.Context(), args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "The group %s is removed. Its members stay in the lab.\n", args[0])
			return err
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}
