package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/users"
)

func newUserTokens(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "tokens HANDLE", Short: "List a person's access tokens; the secrets themselves nobody knows but they",
		Example:           "  sudo gpulab user tokens ada\n  sudo gpulab user tokens ada --json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeHandles,
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			tokens, err := a.client().UserTokens(c.Context(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), tokens)
			}
			return printTokens(c.OutOrStdout(), args[0], tokens, time.Now())
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func printTokens(w io.Writer, handle string, tokens []users.Token, now time.Time) error {
	if len(tokens) == 0 {
		_, err := fmt.Fprintf(w, "%s has no access tokens.\n", handle)
		return err
	}
	rows := [][]string{{"ID", "NAME", "SCOPE", "MADE", "VALID UNTIL", "LAST USED", "FROM"}}
	for _, t := range tokens {
		until, used := t.Expires.Local().Format(time.DateOnly), "never"
		if !now.Before(t.Expires) {
			until += " (expired)"
		}
		if t.LastUsed != nil {
			used = t.LastUsed.Local().Format("2006-01-02 15:04")
		}
		rows = append(rows, []string{
			strconv.FormatInt(t.ID, 10), t.Name, string(t.Scope), t.Created.Local().Format(time.DateOnly), until, used, t.Remote,
		})
	}
	return table(w, rows)
}

func newUserRevokeTokens(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "revoke-tokens HANDLE", Short: "Revoke all access tokens of a person",
		Long: "Revoke all access tokens of a person at once: programs that use them are\nrefused from then " +
			"on. The person can make new ones; to keep them out, suspend\nthe account.",
		Example:           "  sudo gpulab user revoke-tokens ada",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeHandles,
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			n, err := a.client().RevokeUserTokens(c.Context(), args[0])
			if err != nil {
				return err
			}
			switch n {
			case 0:
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s has no access tokens.\n", args[0])
			case 1:
				_, err = fmt.Fprintf(c.OutOrStdout(), "The one access token of %s is revoked.\n", args[0])
			default:
				_, err = fmt.Fprintf(c.OutOrStdout(), "%d access tokens of %s are revoked.\n", n, args[0])
			}
			return err
		},
	}
}

// UserTokens implements ctl.Daemon.
func (l *appliance) UserTokens(ctx context.Context, handle string) ([]users.Token, error) {
	u, err := l.people.ByHandle(ctx, handle)
	if err != nil {
		return nil, err
	}
	return l.people.Tokens(ctx, u.ID)
}

// RevokeUserTokens implements ctl.Daemon.
func (l *appliance) RevokeUserTokens(ctx context.Context, handle string) (int, error) {
	u, err := l.people.ByHandle(ctx, handle)
	if err != nil {
		return 0, err
	}
	n, err := l.people.RevokeTokens(ctx, u.ID)
	if err != nil || n == 0 {
		return n, err
	}
	return n, l.people.AuditLog().Record(ctx, audit.Entry{
		Actor: "root", Action: "token.revoke", Target: u.Handle, Detail: fmt.Sprintf("all of them, %d", n),
	})
}
