package main

import (
	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/users"
)

func newUserSet(a *app) *cobra.Command {
	var name, email, role string
	c := a.personCommand("set HANDLE", "Change a person's name, e-mail address or role",
		"  sudo gpulab user set ada --name 'Ada King' --email ada@example.org\n  sudo gpulab user set ben --role lead",
		a.completeHandles,
		func(c *cobra.Command, handle string) (users.Person, string, error) {
			var change users.Change
			if c.Flags().Changed("name") {
				change.Name = &name
			}
			if c.Flags().Changed("email") {
				change.Email = &email
			}
			if c.Flags().Changed("role") {
				r := users.Role(role)
				change.Role = &r
			}
			if change == (users.Change{}) {
				return users.Person{}, "", fail(exitUsage, "say what to change with --name, --email or --role; see `%s --help`",
					c.CommandPath())
			}
			p, err := a.client().ChangeUser(c.Context(), handle, change)
			return p, "", err
		})
	c.Long = "Change a person's name, e-mail address or role.\n\nA new role signs the person out everywhere. The " +
		"handle is for ever."
	c.Flags().StringVar(&name, "name", "", "the name others see")
	c.Flags().StringVar(&email, "email", "", `e-mail address; "" for none`)
	c.Flags().StringVar(&role, "role", "", "admin, lead, member or guest")
	completeFlag(c, "role", roleNames()...)
	return c
}

func newUserSuspend(a *app) *cobra.Command {
	c := a.personCommand("suspend HANDLE", "Keep a person out for a while", "  sudo gpulab user suspend ben",
		a.completeHandles,
		func(c *cobra.Command, handle string) (users.Person, string, error) {
			p, err := a.client().SuspendUser(c.Context(), handle, true)
			return p, p.Handle + " is suspended: signed out everywhere, notebooks stopped, home kept. `gpulab user resume " +
				p.Handle + "` ends it.", err
		})
	c.Long = "Keep a person out for a while: sessions, notebooks and open connections end at\nonce. Account, groups " +
		"and home stay as they are."
	return c
}

func newUserResume(a *app) *cobra.Command {
	return a.personCommand("resume HANDLE", "End a suspension", "  sudo gpulab user resume ben", a.completeHandles,
		func(c *cobra.Command, handle string) (users.Person, string, error) {
			p, err := a.client().SuspendUser(c.Context(), handle, false)
			return p, p.Handle + " can sign in again.", err
		})
}

func newUserUndelete(a *app) *cobra.Command {
	c := a.personCommand("undelete HANDLE", "Bring a removed person back",
		"  sudo gpulab user list --removed\n  sudo gpulab user undelete ben", a.completeRemoved,
		func(c *cobra.Command, handle string) (users.Person, string, error) {
			p, err := a.client().UndeleteUser(c.Context(), handle)
			happened := p.Handle + " is back, with the same password, groups and home."
			if p.Suspended {
				happened += " The account is still suspended."
			}
			return p, happened, err
		})
	c.Long = "Bring a removed person back, within 30 days of the removal: with the same handle,\nUID, password, groups " +
		"and home. Sessions and access tokens do not come back."
	return c
}

func roleNames() []string {
	var names []string
	for _, r := range users.Roles() {
		names = append(names, string(r))
	}
	return names
}
