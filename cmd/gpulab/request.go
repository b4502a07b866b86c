package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
)

func newRequest(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "request", Short: "People who ask for an account: list, approve, decline",
		Long: "Where the configuration has `signUp: approval`, the sign-in page lets anybody who\n" +
			"reaches it ask for an account. An admin decides.",
		Example: "  sudo gpulab request list\n  sudo gpulab request approve 4 --group seminar\n  sudo gpulab request " +
			"decline 5",
	}
	c.AddCommand(newRequestList(a), newRequestApprove(a), newRequestDecline(a))
	return c
}

func newRequestList(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Short: "List who asks for an account",
		Example: "  sudo gpulab request list\n  sudo gpulab request list --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			list, err := a.client().Requests(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), list)
			}
			if len(list) == 0 {
				_, err := fmt.Fprintln(c.OutOrStdout(), "Nobody asks for an account.")
				return err
			}
			rows := [][]string{{"NUMBER", "HANDLE", "NAME", "E-MAIL", "ASKED", "FROM", "WHY"}}
			for i := range list {
				r := &list[i]
				rows = append(rows, []string{
					strconv.FormatInt(r.ID, 10), r.Handle, r.Name, r.Email, r.Requested.Local().Format("2006-01-02 15:04"), r.Remote,
					r.Note,
				})
			}
			return table(c.OutOrStdout(), rows)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func newRequestApprove(a *app) *cobra.Command {
	var role, group string
	c := numberCommand("approve NUMBER", "Make the account that somebody asked for",
		"  sudo gpulab request approve 4\n  sudo gpulab request approve 4 --group seminar --role member",
		func(c *cobra.Command, id int64) (any, string, error) {
			u, err := a.client().ApproveRequest(c.Context(), id, ctl.Approval{Role: users.Role(role), Group: group})
			return u, fmt.Sprintf("%s has an account now and signs in as %s.", u.Name, u.Handle), err
		})
	c.Flags().StringVar(&role, "role", "member", "admin, lead, member or guest")
	c.Flags().StringVar(&group, "group", "", "which group they join")
	completeFlag(c, "role", roleNames()...)
	return c
}

func newRequestDecline(a *app) *cobra.Command {
	return numberCommand("decline NUMBER", "Forget a request with everything in it", "  sudo gpulab request decline 5",
		func(c *cobra.Command, id int64) (any, string, error) {
			r, err := a.client().DeclineRequest(c.Context(), id)
			return r, "The request of " + r.Name + " is forgotten.", err
		})
}
