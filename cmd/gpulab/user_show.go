package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/users"
)

func newUserList(a *app) *cobra.Command {
	var asJSON, removed bool
	var q users.Query
	var role string
	c := &cobra.Command{
		Use: "list [WORDS]", Short: "List everybody, or who fits words of name, e-mail or group",
		Example: "  sudo gpulab user list\n  sudo gpulab user list lovelace\n  sudo gpulab user list --group vision " +
			"--json\n  sudo gpulab user list --removed",
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			q.Text, q.Role = strings.Join(args, " "), users.Role(role)
			if removed {
				q.State = users.StateRemoved
			}
			people, err := a.client().Users(c.Context(), q)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), people)
			}
			return printPeople(c.OutOrStdout(), q, people)
		},
	}
	c.Flags().BoolVar(&removed, "removed", false, "list removed accounts, and until when they can come back")
	c.Flags().StringVar(&q.Group, "group", "", "only members of this group")
	c.Flags().StringVar(&role, "role", "", "only this role: admin, lead, member or guest")
	completeFlag(c, "role", roleNames()...)
	completeFlagWith(c, "group", a.groupNames)
	jsonFlag(c, &asJSON)
	return c
}

func printPeople(w io.Writer, q users.Query, people []users.Person) error {
	removed := q.State == users.StateRemoved
	if len(people) == 0 {
		text := "Nobody fits."
		switch {
		case q == users.Query{}:
			text = "Nobody yet. `gpulab admin-link` makes a link for the first administrator."
		case removed && q.Text == "" && q.Group == "" && q.Role == "":
			text = "Nobody was removed in the last 30 days."
		}
		_, err := fmt.Fprintln(w, text)
		return err
	}
	rows := [][]string{{"HANDLE", "NAME", "ROLE", "GROUPS", "STATE", "UID", "SINCE"}}
	if removed {
		rows = [][]string{{"HANDLE", "NAME", "ROLE", "REMOVED", "DELETED FOR GOOD"}}
	}
	for i := range people {
		p := &people[i]
		row := []string{
			p.Handle, p.Name, string(p.Role), groupNames(p.Groups), userState(p), fmt.Sprint(p.UID), day(p.Created),
		}
		if removed {
			row = []string{p.Handle, p.Name, string(p.Role), day(*p.Removed), day(*p.Purge)}
		}
		rows = append(rows, row)
	}
	return table(w, rows)
}

func day(t time.Time) string { return t.Local().Format(time.DateOnly) }

func groupNames(list []users.Membership) string {
	names := make([]string, 0, len(list))
	for _, m := range list {
		if m.Lead {
			m.Group += "*"
		}
		names = append(names, m.Group)
	}
	return strings.Join(names, ",")
}

// userState is how an account is, in one or two words.
func userState(p *users.Person) string {
	return string(p.State())
}

func newUserShow(a *app) *cobra.Command {
	return a.personCommand("show HANDLE", "Show one person",
		"  sudo gpulab user show ada\n  sudo gpulab user show ada --json",
		a.completeHandles, func(c *cobra.Command, handle string) (users.Person, string, error) {
			p, err := a.client().User(c.Context(), handle)
			return p, "", err
		})
}

// personCommand is a command about one person that shows how they are then,
// below a sentence that says what happened.
func (a *app) personCommand(use, short, example string, complete cobra.CompletionFunc,
	do func(c *cobra.Command, handle string) (users.Person, string, error),
) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: use, Short: short, Example: example, Args: cobra.ExactArgs(1), ValidArgsFunction: complete,
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			p, happened, err := do(c, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), p)
			}
			if happened != "" {
				_, err := fmt.Fprintln(c.OutOrStdout(), happened)
				return err
			}
			return printPerson(c.OutOrStdout(), &p)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func printPerson(w io.Writer, p *users.Person) error {
	state := userState(p)
	switch {
	case p.Removed != nil:
		state += " on " + day(*p.Removed) + "; account and home are deleted for good on " + day(*p.Purge)
	case p.SuspendedSince != nil:
		state += " since " + day(*p.SuspendedSince)
	case state == "invited":
		state += ", has not chosen a password yet"
	}
	signedIn := "never"
	if p.SignedIn != nil {
		signedIn = p.SignedIn.Local().Format("2006-01-02 15:04")
	}
	var groups []string
	for _, m := range p.Groups {
		if m.Lead {
			m.Group += " (lead)"
		}
		groups = append(groups, m.Group)
	}
	rows := [][]string{
		{"handle", p.Handle}, {"name", p.Name}, {"e-mail", orNone(p.Email)}, {"role", string(p.Role)},
		{"groups", orNone(strings.Join(groups, ", "))},
		{"sign-in", waysToSignIn(p)}, {"state", state}, {"UID", fmt.Sprint(p.UID)}, {"added", day(p.Created)},
		{"last sign-in", signedIn},
	}
	return table(w, rows)
}

// waysToSignIn are the password and the outside accounts of somebody.
func waysToSignIn(p *users.Person) string {
	var list []string
	if p.HasPassword {
		list = append(list, "password")
	}
	for i := range p.Identities {
		way := strings.TrimSpace(p.Identities[i].Provider + " " + p.Identities[i].Username)
		if until := p.Identities[i].KeptUntil; until != nil {
			way += " (the provider does not send what the rules need; role and groups are kept until " + day(*until) + ")"
		}
		list = append(list, way)
	}
	return orNone(strings.Join(list, ", "))
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}
