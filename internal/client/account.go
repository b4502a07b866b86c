package client

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

func newLogout(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "logout", Short: "Sign this computer out: the access token is revoked and forgotten",
		Example: "  gpulab logout",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			path, err := a.path()
			if err != nil {
				return err
			}
			l, err := readLogin(path)
			if err != nil {
				return err
			}
			s, err := NewSession(l)
			if err == nil {
				err = s.Do(c.Context(), http.MethodDelete, "/me/token", nil, nil)
			}
			// What is kept here goes in any case: a lab that is gone must not keep anybody signed in.
			if forgetErr := forgetLogin(path); forgetErr != nil {
				return forgetErr
			}
			var refused *Problem
			if err != nil && (!errors.As(err, &refused) || refused.Status != http.StatusUnauthorized) {
				return fail(ExitCode(err), "this computer has forgotten the token, but it could not be revoked: %w; revoke it "+
					"on the page of your account", err)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "Signed out of %s.\n", l.Server)
			return err
		},
	}
}

type me struct {
	Handle string `json:"handle"`
	Name   string `json:"name"`
	Role   string `json:"role"`
	Token  struct {
		Scope   string    `json:"scope"`
		Expires time.Time `json:"expires"`
	} `json:"token"`
}

func newWhoami(a *App) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "whoami", Short: "Show to which lab this computer is signed in, as whom and for how long",
		Example: "  gpulab whoami\n  gpulab whoami --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return answered(a, c, "/me", asJSON, func(s *Session, who me) error {
				_, err := fmt.Fprintf(c.OutOrStdout(), "%s (%s), %s in %s at %s. Scope %s, until %s.\n", plain(who.Name),
					who.Handle, who.Role,
					plain(s.Login.Lab), s.Login.Server, who.Token.Scope, who.Token.Expires.Local().Format("2 January 2006"))
				return err
			})
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

// Quota shows one's own quotas. It stands apart from Commands: on a lab's head machine, root's command of that name has
// others below it.
func (a *App) Quota() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "quota", Short: "Show your quotas, why they hold, and how much is used",
		Example: "  gpulab quota\n  gpulab quota --json",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return a.ShowQuota(c, asJSON) },
	}
	jsonFlag(c, &asJSON)
	return c
}

type quotas struct {
	Limits []struct {
		What  string `json:"what"`
		Used  string `json:"usedText"`
		Limit string `json:"valueText"`
		Why   string `json:"why"`
	} `json:"limits"`
	Notice string `json:"notice"`
}

// ShowQuota prints the quotas of whoever is signed in.
func (a *App) ShowQuota(c *cobra.Command, asJSON bool) error {
	return answered(a, c, "/me/quotas", asJSON, func(_ *Session, q quotas) error {
		out := c.OutOrStdout()
		if q.Notice != "" {
			fmt.Fprintf(out, "%s\n\n", plain(q.Notice))
		}
		if len(q.Limits) == 0 {
			_, err := fmt.Fprintln(out, "No quota holds for you: you may use what is free.")
			return err
		}
		rows := [][]string{{"QUOTA", "USED", "AT MOST", "WHY"}}
		for _, l := range q.Limits {
			rows = append(rows, []string{l.What, l.Used, l.Limit, l.Why})
		}
		return table(out, rows)
	})
}
