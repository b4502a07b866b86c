package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/mail"
	"github.com/gpulab/gpulab/internal/units"
)

func newMail(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "mail", Short: "The lab's mails: status, list, test",
		Long: "The lab sends mails through the server that the configuration names under mail. What\n" +
			"is to be sent waits in an outbox until the server has taken it.",
		Example: "  sudo gpulab mail status\n  sudo gpulab mail list --state failed\n  sudo gpulab mail test ada@example.org",
	}
	c.AddCommand(newMailStatus(a), newMailList(a), newMailTest(a))
	return c
}

func newMailStatus(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "status", Short: "Whether mails are sent, and how many wait",
		Example: "  sudo gpulab mail status\n  sudo gpulab mail status --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			status, err := a.client().MailStatus(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), status)
			}
			return printMailStatus(c.OutOrStdout(), status, a.configPath)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func printMailStatus(w io.Writer, s mail.Status, configPath string) error {
	if !s.On {
		_, err := fmt.Fprintf(w, "This lab sends no mails: no mail server is configured. Add these lines to %s, and run "+
			"gpulab init:\n%s", configPath, mail.Example)
		return err
	}
	fmt.Fprintf(w, "Server   %s\nFrom     %s\n", s.Server, s.From)
	fmt.Fprintf(w, "Sent     %d in the last 7 days", s.Sent)
	if s.LastSent != nil {
		fmt.Fprintf(w, ", the last one %s ago", units.Lasting(time.Since(*s.LastSent)))
	}
	fmt.Fprintf(w, "\nWaiting  %d", s.Waiting)
	if s.Oldest != nil {
		fmt.Fprintf(w, ", the oldest for %s", units.Lasting(time.Since(*s.Oldest)))
	}
	fmt.Fprintf(w, "\nFailed   %d in the last 7 days", s.Failed)
	if s.Failed > 0 {
		fmt.Fprint(w, "; `gpulab mail list --state failed` says why")
	}
	if s.Problem != "" {
		fmt.Fprintf(w, "\nProblem  %s", s.Problem)
	}
	_, err := fmt.Fprintln(w)
	return err
}

func newMailList(a *app) *cobra.Command {
	var asJSON bool
	var state string
	limit := 50
	c := &cobra.Command{
		Use: "list", Short: "List mails of the outbox, the newest first",
		Long:    "List mails of the outbox, the newest first. What they say is not shown: it is for\nwhom they were written.",
		Example: "  sudo gpulab mail list\n  sudo gpulab mail list --state failed --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			if state != "" && !slices.Contains(mail.States(), mail.State(state)) {
				return fail(exitUsage, "--state is %q; it may be waiting, sent or failed", state)
			}
			if limit < 1 || limit > mail.MostListed {
				return fail(exitUsage, "--limit is %d; it may be 1 to %d", limit, mail.MostListed)
			}
			list, err := a.client().Mails(c.Context(), mail.State(state), limit)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), list)
			}
			if len(list) == 0 {
				_, err := fmt.Fprintln(c.OutOrStdout(), "No mails.")
				return err
			}
			rows := [][]string{{"NUMBER", "STATE", "MADE", "TO", "SUBJECT", "TRIES", "WHAT CAME OF IT"}}
			for i := range list {
				m := &list[i]
				rows = append(rows, []string{
					strconv.FormatInt(m.ID, 10), string(m.State), m.Created.Local().Format("2006-01-02 15:04"), m.To, m.Subject,
					strconv.Itoa(m.Tries), cmp.Or(m.Problem, "–"),
				})
			}
			return table(c.OutOrStdout(), rows)
		},
	}
	c.Flags().StringVar(&state, "state", "", "only those that are waiting, sent or failed")
	c.Flags().IntVar(&limit, "limit", limit, "how many at most")
	completeFlag(c, "state", "waiting", "sent", "failed")
	jsonFlag(c, &asJSON)
	return c
}

func newMailTest(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "test ADDRESS", Short: "Send a mail now, and say what came of it",
		Long: "Send a mail to an address now, past the outbox, and say what came of it: whether the\nserver answers, " +
			"shows a certificate that is trusted, takes the password and the mail.",
		Example: "  sudo gpulab mail test ada@example.org\n  sudo gpulab mail test ada@example.org --json",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			tested, err := a.client().TestMail(c.Context(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				if err := printJSON(c.OutOrStdout(), tested); err != nil {
					return err
				}
			} else if tested.OK {
				fmt.Fprintln(c.OutOrStdout(), tested.Text)
			}
			if !tested.OK {
				return fail(exitFailure, "%s", tested.Text)
			}
			return nil
		},
	}
	jsonFlag(c, &asJSON)
	return c
}
