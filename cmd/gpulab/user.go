package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
)

func newUser(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "user", Short: "People: add, list, show, change, suspend, remove, bring back",
		Example: "  sudo gpulab user add ada --name 'Ada Lovelace' --role member\n  sudo gpulab user list\n  sudo gpulab " +
			"user show ada",
	}
	c.AddCommand(newUserAdd(a), newUserList(a), newUserShow(a), newUserSet(a), newUserPasswd(a),
		newUserSuspend(a), newUserResume(a), newUserRemove(a), newUserUndelete(a), newUserImport(a),
		newUserTokens(a), newUserRevokeTokens(a), newUserSSHKey(a))
	return c
}

func newUserAdd(a *app) *cobra.Command {
	u := ctl.NewUser{}
	var role string
	var asJSON bool
	c := &cobra.Command{
		Use: "add HANDLE", Short: "Add a person and print the link with which they choose a password",
		Example: "  sudo gpulab user add ada --name 'Ada Lovelace' --email ada@example.org\n  sudo gpulab user add ben " +
			"--role guest",
		Args: cobra.ExactArgs(1),
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
	completeFlag(c, "role", roleNames()...)
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
	_, err := fmt.Fprintf(c.OutOrStdout(), "Send %s this link; it works once, until %s:\n%s\n", u.User.Handle,
		u.Link.Expires.Local().Format("2 Jan 15:04"), u.Link.URL)
	return err
}
