package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
)

func newInvitation(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "invitation", Short: "Links with which people make accounts of their own: add, list, revoke",
		Long: "An invitation is a link with which up to so many people make accounts of their\n" +
			"own, until a day. It says which role they have and which group they join.",
		Example: "  sudo gpulab invitation add --group seminar --uses 30\n  sudo gpulab invitation list\n  sudo gpulab " +
			"invitation revoke 3",
	}
	c.AddCommand(newInvitationAdd(a), newInvitationList(a), newInvitationRevoke(a))
	return c
}

func newInvitationAdd(a *app) *cobra.Command {
	n := ctl.NewInvitation{}
	var role string
	var asJSON bool
	c := &cobra.Command{
		Use: "add", Short: "Make an invitation and print its link, which is told only once",
		Example: "  sudo gpulab invitation add\n  sudo gpulab invitation add --group seminar --uses 30 --days 7 --note " +
			"'Summer school'\n  sudo gpulab invitation add --role guest\n  sudo gpulab invitation add --group seminar --mail " +
			"ada@example.org",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			n.Role = users.Role(role)
			invited, err := a.client().Invite(c.Context(), n)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), invited)
			}
			who := "one person becomes " + invitedAs(invited.Invitation)
			if invited.MaxUses > 1 {
				who = fmt.Sprintf("up to %d people become %s", invited.MaxUses, invitedAs(invited.Invitation))
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "With this link %s, until %s. It is not shown again:\n%s\n",
				who, invited.Expires.Local().Format("Monday 2 January 2006, 15:04"), invited.URL)
			if err == nil && len(n.Emails) > 0 {
				_, err = fmt.Fprintf(c.OutOrStdout(), "It is on its way to %s; `gpulab mail list` says what came of it.\n",
					strings.Join(n.Emails, ", "))
			}
			return err
		},
	}
	c.Flags().StringVar(&role, "role", "member", "what they become: admin, lead, member or guest")
	c.Flags().StringVar(&n.Group, "group", "", "which group they join")
	c.Flags().IntVar(&n.Uses, "uses", 1, fmt.Sprintf("how many accounts can be made with it, 1 to %d", users.MaxInvitees))
	c.Flags().IntVar(&n.Days, "days", int(users.InvitationTTL/(24*time.Hour)),
		fmt.Sprintf("how many days it works, 1 to %d", users.MaxInvitationTTL/(24*time.Hour)))
	c.Flags().StringSliceVar(&n.Emails, "mail", nil, "send it to these addresses, for which the lab needs a mail server")
	c.Flags().StringVar(&n.Note, "note", "", "what it is for, for those who see the list")
	completeFlag(c, "role", roleNames()...)
	jsonFlag(c, &asJSON)
	return c
}

func newInvitationList(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Short: "List the invitations, the newest first; their links nobody knows any more",
		Example: "  sudo gpulab invitation list\n  sudo gpulab invitation list --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			list, err := a.client().Invitations(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), list)
			}
			if len(list) == 0 {
				_, err := fmt.Fprintln(c.OutOrStdout(), "No invitations. `gpulab invitation add` makes one.")
				return err
			}
			rows := [][]string{{"NUMBER", "FOR", "USED", "STATE", "UNTIL", "BY", "NOTE"}}
			for i := range list {
				v := &list[i]
				rows = append(rows, []string{strconv.FormatInt(v.ID, 10), invitedAs(*v), fmt.Sprintf("%d of %d", v.Uses, v.MaxUses),
					v.State(time.Now()), v.Expires.Local().Format("2006-01-02 15:04"), v.By, v.Note})
			}
			return table(c.OutOrStdout(), rows)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func newInvitationRevoke(a *app) *cobra.Command {
	return numberCommand("revoke NUMBER", "Make an invitation work no longer; accounts made with it stay",
		"  sudo gpulab invitation revoke 3",
		func(c *cobra.Command, id int64) (any, string, error) {
			v, err := a.client().RevokeInvitation(c.Context(), id)
			return v, fmt.Sprintf("Invitation %d, for %s, works no longer.", id, invitedAs(v)), err
		})
}

// invitedAs is what an invitation makes of people: "member of vision", "admin".
func invitedAs(i users.Invitation) string {
	if i.Group == "" {
		return string(i.Role)
	}
	return string(i.Role) + " of " + i.Group
}
