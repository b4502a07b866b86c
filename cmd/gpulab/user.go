package main

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
)

func newUser(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "user", Short: "People: add, list, new password, remove",
		Example: "  sudo gpulab user add ada --name 'Ada Lovelace' --role member\n  sudo gpulab user list",
	}
	c.AddCommand(newUserAdd(a), newUserList(a), newUserPasswd(a), newUserRemove(a), newUserImport(a))
	return c
}

func newUserAdd(a *app) *cobra.Command {
	u := ctl.NewUser{}
	var role string
	var asJSON bool
	c := &cobra.Command{
		Use: "add HANDLE", Short: "Add a person and print the link with which they choose a password",
		Example: "  sudo gpulab user add ada --name 'Ada Lovelace' --email ada@example.org\n  sudo gpulab user add ben --role guest",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			u.Handle, u.Role = args[0], users.Role(role)
			added, err := a.client().AddUser(c.Context(), u)
			if err != nil {
				return err
			}
			return showLink(c, asJSON, added)
		},
	}
	c.Flags().StringVar(&u.Name, "name", "", "the name others see")
	c.Flags().StringVar(&u.Email, "email", "", "e-mail address")
	c.Flags().StringVar(&role, "role", "member", "admin, lead, member or guest")
	completeFlag(c, "role", "admin", "lead", "member", "guest")
	jsonFlag(c, &asJSON)
	return c
}

func newUserPasswd(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "passwd HANDLE", Short: "Print a one-time link with which a person chooses a new password",
		Example:           "  sudo gpulab user passwd ada",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeHandles,
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			got, err := a.client().PasswordLink(c.Context(), args[0])
			if err != nil {
				return err
			}
			return showLink(c, asJSON, got)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func showLink(c *cobra.Command, asJSON bool, u ctl.UserWithLink) error {
	if asJSON {
		return printJSON(c.OutOrStdout(), u)
	}
	_, err := fmt.Fprintf(c.OutOrStdout(), "Send %s this link; it works once, until %s:\n%s\n", u.User.Handle, u.Link.Expires.Local().Format("2 Jan 15:04"), u.Link.URL)
	return err
}

func newUserList(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Short: "List everybody",
		Example: "  sudo gpulab user list\n  sudo gpulab user list --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			people, err := a.client().Users(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), people)
			}
			if len(people) == 0 {
				_, err := fmt.Fprintln(c.OutOrStdout(), "Nobody yet. `gpulab admin-link` makes a link for the first administrator.")
				return err
			}
			rows := [][]string{{"HANDLE", "NAME", "ROLE", "UID", "SINCE"}}
			for _, p := range people {
				rows = append(rows, []string{p.Handle, p.Name, string(p.Role), fmt.Sprint(p.UID), p.Created.Local().Format("2006-01-02")})
			}
			return table(c.OutOrStdout(), rows)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func newUserRemove(a *app) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "remove HANDLE", Short: "Remove a person; their home folder stays on disk",
		Example:           "  sudo gpulab user remove ada\n  sudo gpulab user remove --yes ada",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeHandles,
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			if !yes {
				if !isTerminal(c.InOrStdin()) {
					return fail(exitUsage, "removing %s ends their notebooks; say --yes to do it", args[0])
				}
				q := &asker{in: bufio.NewReader(c.InOrStdin()), out: c.OutOrStdout()}
				if a := q.line(fmt.Sprintf("Remove %s and end their notebooks? Their home stays. (yes/no)", args[0]), "no"); !strings.EqualFold(a, "yes") {
					return nil
				}
			}
			if err := a.client().RemoveUser(c.Context(), args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "%s is removed.\n", args[0])
			return err
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}
