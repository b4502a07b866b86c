package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/quota"
)

func newQuota(a *app) *cobra.Command {
	var kinds strings.Builder
	for _, k := range quota.Kinds() {
		fmt.Fprintf(&kinds, "\n  %-15s %s", k, k.Words())
	}
	c := &cobra.Command{
		Use: "quota", Short: "How much of the lab somebody may use: list, show, set, grant",
		Long: "Quotas limit what people may use. One is set for everybody, a role, a group or one\n" +
			"person; of those that apply to somebody, the strictest holds. A grant gives one\n" +
			"person more for a while. What has no quota is not limited.\n\nThe kinds:" + kinds.String() +
			"\n\nGPUs can be limited by model, as gpus:NVIDIA-A100-SXM4-80GB. Memory is written as 64Gi.",
		Example: "  sudo gpulab quota set role:guest gpus 1\n  sudo gpulab quota set group:seminar gpu-hours-week 20\n" +
			"  sudo gpulab quota show ada\n  sudo gpulab quota grant ada gpu-hours-week 40 --for 3d --note 'paper deadline'",
	}
	c.AddCommand(newQuotaList(a), newQuotaShow(a), newQuotaSet(a), newQuotaUnset(a), newQuotaRecommended(a),
		newQuotaGrant(a), newQuotaEndGrant(a))
	ownQuota(c)
	return c
}

func newQuotaList(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Short: "List every quota and every grant that lasts",
		Example: "  sudo gpulab quota list\n  sudo gpulab quota list --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			q, err := a.client().Quotas(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), q)
			}
			return printQuotas(c.OutOrStdout(), q)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func printQuotas(w io.Writer, q ctl.QuotaList) error {
	if len(q.Rules) == 0 {
		fmt.Fprintln(w, "No quotas: everybody may use what is free. `gpulab quota set role:guest gpus 1` makes one.")
	} else {
		rows := [][]string{{"FOR", "QUOTA", "AT MOST"}}
		for _, r := range q.Rules {
			rows = append(rows, []string{r.Subject.String(), quota.KindName(r.Kind, r.Model), r.Kind.Format(r.Value)})
		}
		if err := table(w, rows); err != nil {
			return err
		}
	}
	if len(q.Grants) == 0 {
		return nil
	}
	rows := [][]string{{"GRANT", "TO", "QUOTA", "MORE", "UNTIL", "BY", "NOTE"}}
	for _, g := range q.Grants {
		rows = append(rows, []string{fmt.Sprint(g.ID), g.User, quota.KindName(g.Kind, g.Model), "+" + g.Kind.Format(g.Extra),
			g.Ends.Local().Format("2006-01-02 15:04"), g.By, g.Note})
	}
	fmt.Fprintln(w)
	return table(w, rows)
}

func newQuotaShow(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "show HANDLE", Short: "Show which quotas hold for a person, why, and how much is used",
		Example:           "  sudo gpulab quota show ada",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeHandles,
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			limits, err := a.client().QuotaOf(c.Context(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), limits)
			}
			if len(limits) == 0 {
				_, err := fmt.Fprintf(c.OutOrStdout(), "No quota holds for %s.\n", args[0])
				return err
			}
			rows := [][]string{{"QUOTA", "USED", "AT MOST", "WHY"}}
			for _, l := range limits {
				why := "set for " + l.From.String()
				if l.Extra > 0 {
					why += fmt.Sprintf(", +%s granted until %s", l.Kind.Format(l.Extra), l.Until.Local().Format("2006-01-02 15:04"))
				}
				if how := l.How(); how != "" {
					why += "; " + how
				}
				rows = append(rows, []string{quota.KindName(l.Kind, l.Model), l.Kind.Format(l.Used), l.Kind.Format(l.Value), why})
			}
			return table(c.OutOrStdout(), rows)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func newQuotaSet(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "set SUBJECT QUOTA VALUE", Short: "Set a quota for everybody, role:NAME, group:NAME or user:HANDLE",
		Example: "  sudo gpulab quota set everybody notebooks 3\n  sudo gpulab quota set role:guest gpus 0\n" +
			"  sudo gpulab quota set user:ada gpus:NVIDIA-H100-80GB-HBM3 2\n  sudo gpulab quota set group:seminar memory 64Gi",
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: completeQuota,
		RunE: func(c *cobra.Command, args []string) error {
			q, err := parseQuota(args)
			if err != nil {
				return fail(exitUsage, "%w", err)
			}
			v, err := q.Kind.Parse(args[2])
			if err != nil {
				return fail(exitUsage, "%w", err)
			}
			q.Value = &v
			if err := requireRoot(c); err != nil {
				return err
			}
			if err := a.client().SetQuota(c.Context(), q); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s: %s limited to %s. What runs already goes on.\n", q.Subject,
				quota.Limit{Kind: q.Kind, Model: q.Model}.What(), q.Kind.Format(v))
			return err
		},
	}
	return c
}

func newQuotaUnset(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "unset SUBJECT QUOTA", Short: "Take a quota away",
		Example:           "  sudo gpulab quota unset role:guest gpus",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeQuota,
		RunE: func(c *cobra.Command, args []string) error {
			q, err := parseQuota(args)
			if err != nil {
				return fail(exitUsage, "%w", err)
			}
			if err := requireRoot(c); err != nil {
				return err
			}
			if err := a.client().SetQuota(c.Context(), q); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s has no quota for %s of its own now.\n", q.Subject,
				quota.Limit{Kind: q.Kind, Model: q.Model}.What())
			return err
		},
	}
}

func newQuotaRecommended(a *app) *cobra.Command {
	var set, decline, asJSON bool
	c := &cobra.Command{
		Use: "recommended", Short: "Show the quotas that new labs begin with, and set them in this lab",
		Long: `Show the quotas for everybody that a new lab begins with, for the launch cards of
this lab and its largest machine. --set sets them here, in place of the quotas of
the same kinds for everybody. --decline ends the notice that this lab has none.`,
		Example: "  sudo gpulab quota recommended\n  sudo gpulab quota recommended --set",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			act, after := "", "`gpulab quota recommended --set` sets them. What runs goes on."
			switch {
			case set:
				act, after = ctl.SettleSet, "They hold now. What runs goes on."
			case decline:
				act, after = ctl.SettleDecline, "None of them was set, and admins hear no more of them."
			}
			rec, err := a.client().RecommendedQuotas(c.Context(), act)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), rec)
			}
			if err := printQuotas(c.OutOrStdout(), ctl.QuotaList{Rules: rec.Rules}); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), "\n"+after)
			return err
		},
	}
	c.Flags().BoolVar(&set, "set", false, "set them for everybody")
	c.Flags().BoolVar(&decline, "decline", false, "end the notice about them")
	c.MarkFlagsMutuallyExclusive("set", "decline")
	jsonFlag(c, &asJSON)
	return c
}

func parseQuota(args []string) (q ctl.SetQuota, err error) {
	if q.Subject, err = quota.ParseSubject(args[0]); err != nil {
		return q, err
	}
	q.Kind, q.Model, err = quota.ParseKind(args[1])
	return q, err
}

func completeQuota(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var list []string
	switch len(args) {
	case 0:
		list = []string{"everybody", "role:admin", "role:lead", "role:member", "role:guest", "group:", "user:"}
	case 1:
		for _, k := range quota.Kinds() {
			list = append(list, string(k))
		}
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}

func newQuotaGrant(a *app) *cobra.Command {
	var lasts, note string
	var asJSON bool
	c := &cobra.Command{
		Use: "grant HANDLE QUOTA EXTRA", Short: "Give a person more of something for a while",
		Example: "  sudo gpulab quota grant ada gpus 1 --for 3d --note 'paper deadline'\n  sudo gpulab quota " +
			"grant ben gpu-hours-week 20 --for 12h",
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: a.completeHandles,
		RunE: func(c *cobra.Command, args []string) error {
			kind, model, err := quota.ParseKind(args[1])
			if err != nil {
				return fail(exitUsage, "%w", err)
			}
			extra, err := kind.Parse(args[2])
			if err != nil {
				return fail(exitUsage, "%w", err)
			}
			d, err := parseSpan(lasts)
			if err != nil {
				return fail(exitUsage, "--for: %w", err)
			}
			if err := requireRoot(c); err != nil {
				return err
			}
			g, err := a.client().GrantQuota(c.Context(),
				quota.Grant{User: args[0], Kind: kind, Model: model, Extra: extra, Note: note, Ends: time.Now().Add(d)})
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), g)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s may use %s more %s until %s. `gpulab quota end-grant %d` ends it "+
				"before.\n",
				g.User, g.Kind.Format(g.Extra), quota.Limit{Kind: kind, Model: model}.What(),
				g.Ends.Local().Format("Mon 2 Jan 2006, 15:04"), g.ID)
			return err
		},
	}
	c.Flags().StringVar(&lasts, "for", "7d", "how long, such as 12h, 7d or 4w")
	c.Flags().StringVar(&note, "note", "", "what it is for")
	jsonFlag(c, &asJSON)
	return c
}

func newQuotaEndGrant(a *app) *cobra.Command {
	return numberCommand("end-grant NUMBER", "End a grant now",
		"  sudo gpulab quota list\n  sudo gpulab quota end-grant 3",
		func(c *cobra.Command, id int64) (any, string, error) {
			g, err := a.client().EndQuotaGrant(c.Context(), id)
			return g, fmt.Sprintf("The grant of %s more %s to %s has ended.", g.Kind.Format(g.Extra), g.Kind.Words(), g.User),
				err
		})
}
