package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

func newSignIn(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "signin", Short: "Outside identity providers: OpenID Connect, OAuth 2, LDAP",
		Example: "  sudo gpulab signin check\n  sudo gpulab signin check university --person ada",
	}
	c.AddCommand(newSignInCheck(a))
	return c
}

func newSignInCheck(a *app) *cobra.Command {
	var asJSON bool
	var person string
	c := &cobra.Command{
		Use: "check [PROVIDER]", Short: "Try the configured identity providers, and say what is wrong",
		Long: `Try the identity providers of the configuration from this machine: whether they
answer, whom their certificate is from, whether they take the client's secret or
the password to bind with, and where they have to send browsers back to. Nobody is
signed in. It reads the configuration itself, so a change can be tried before
gpulab init puts it to use. It warns if a provider left out somebody's groups in the
last 30 days, and says until when role and groups are kept. It also warns if the
provider's clock differs from this machine's.`,
		Example: "  sudo gpulab signin check\n  sudo gpulab signin check university --json\n  sudo gpulab signin check " +
			"directory --person ada",
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			cfg, err := loadConfig(a.configPath)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []string
			for i := range cfg.SignIn {
				names = append(names, cfg.SignIn[i].Name)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			cfg, err := loadConfig(a.configPath)
			if err != nil {
				return err
			}
			service, err := signin.New(signin.ServiceConfig{Providers: cfg.SignIn, URL: func() string {
				return cfg.URL(func() netip.Addr { return foundAddress(cfg) })
			}, Proxy: cfg.Network.ProxyFor()})
			if err != nil {
				return err
			}
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			reports, err := service.Test(c.Context(), name, person)
			if err != nil {
				return fail(exitUsage, "%w", err)
			}
			service.Untold(reports, a.untold(c.Context()))
			missing := a.missingGroups(c.Context(), service)
			return printSignIn(c.OutOrStdout(), reports, missing, asJSON)
		},
	}
	c.Flags().StringVar(&person, "person", "",
		"also look this person up in directories, and say what the rules make of them")
	jsonFlag(c, &asJSON)
	return c
}

// untoldSince is how far back signin check looks for people whose groups a provider left out.
const untoldSince = 30 * 24 * time.Hour

// untold returns a warning for each provider, by its name, that left out what the rules need about somebody. It returns
// nil if gpulab does not run.
func (a *app) untold(ctx context.Context) map[string]string {
	var all []audit.Entry
	for _, action := range []string{"identity.untold", "sign-in.failed"} {
		entries, err := a.client().AuditEntries(ctx,
			audit.Filter{Action: action, Since: time.Now().Add(-untoldSince), Limit: 1000})
		if err != nil {
			return nil
		}
		all = append(all, entries...)
	}
	list, err := a.client().Users(ctx, users.Query{})
	if err != nil {
		return nil
	}
	return untoldWords(all, list)
}

// untoldWords makes these warnings from entries of the audit log and from the people who keep role and groups for now.
func untoldWords(entries []audit.Entry, list []users.Person) map[string]string {
	first := map[string]time.Time{}
	for i := range list {
		for _, id := range list[i].Identities {
			if until := id.KeptUntil; until != nil && (first[id.Provider].IsZero() || until.Before(first[id.Provider])) {
				first[id.Provider] = *until
			}
		}
	}
	people, last := map[string][]string{}, map[string]users.Untold{}
	for _, e := range entries {
		u, ok := users.UntoldIn(e)
		if !ok {
			continue
		}
		if !slices.Contains(people[u.Provider], u.Username) {
			people[u.Provider] = append(people[u.Provider], u.Username)
		}
		if u.At.After(last[u.Provider].At) {
			last[u.Provider] = u
		}
	}
	why := map[string]string{}
	for provider, u := range last {
		who := u.Username
		if n := len(people[provider]) - 1; n > 0 {
			who += fmt.Sprintf(" and %d more", n)
		}
		why[provider] = fmt.Sprintf("in the last 30 days, the provider did not send everything that the rules need about "+
			"%s; last on %s: %s",
			who, u.At.Local().Format("2006-01-02 15:04"), u.Why)
		if until := first[provider]; !until.IsZero() {
			why[provider] += "; role and groups are kept until " + until.Local().Format(time.DateOnly)
		}
	}
	return why
}

// missingGroups are groups that rules name and the lab does not have; none where gpulab does not run to be asked.
func (a *app) missingGroups(ctx context.Context, service *signin.Service) []string {
	missing := []string{}
	groups, err := a.client().Groups(ctx)
	if err != nil {
		return missing
	}
	for _, name := range service.LabGroups() {
		if !slices.ContainsFunc(groups, func(g users.Group) bool { return g.Name == name }) {
			missing = append(missing, name)
		}
	}
	return missing
}

func printSignIn(w io.Writer, reports []signin.Report, missing []string, asJSON bool) error {
	broken := 0
	for i := range reports {
		if !reports[i].OK {
			broken++
		}
	}
	if asJSON {
		if err := printJSON(w, struct {
			Providers     []signin.Report `json:"providers"`
			MissingGroups []string        `json:"missingGroups"`
		}{reports, missing}); err != nil {
			return err
		}
	} else if err := printReports(w, reports, missing); err != nil {
		return err
	}
	if broken > 0 {
		return fail(exitFailure, "%d of %d identity providers cannot be used as they are configured", broken, len(reports))
	}
	return nil
}

func printReports(w io.Writer, reports []signin.Report, missing []string) error {
	if len(reports) == 0 {
		_, err := fmt.Fprintln(w,
			"The configuration has no identity provider. docs/signin.md has examples for its key signin.")
		return err
	}
	for i := range reports {
		r := &reports[i]
		fmt.Fprintf(w, "%s (%s), “Sign in with %s”\n", r.Name, r.Type, r.Title)
		for _, f := range r.Findings {
			fmt.Fprintf(w, "  %-8s %s: %s\n", f.State, f.What, f.Text)
			if f.Next != "" {
				fmt.Fprintf(w, "           %s\n", f.Next)
			}
		}
		for i, address := range r.Callbacks {
			text := "the provider has to send browsers back to "
			if i > 0 {
				text = strings.Repeat(" ", len(text)-len("and to ")) + "and to "
			}
			fmt.Fprintf(w, "  %s%s\n", text, address)
		}
		if p := r.Person; p != nil {
			printPreview(w, p)
		}
	}
	for _, name := range missing {
		fmt.Fprintf(w, "warning  a rule names the group %s, which this lab does not have: gpulab group add %s\n", name, name)
	}
	return nil
}

func printPreview(w io.Writer, p *signin.Preview) {
	fmt.Fprintf(w, "  %s, %s, in the groups %s\n", p.Name, orNone(p.Email), orNone(strings.Join(p.Groups, "; ")))
	switch {
	case p.Refused != "":
		fmt.Fprintf(w, "  would not come in: %s\n", p.Refused)
	case p.Role == "":
		fmt.Fprintf(w, "  would come in; the rules give no role, and the groups %s\n", orNone(strings.Join(p.Joins, ", ")))
	default:
		fmt.Fprintf(w, "  would come in with the role %s and the groups %s\n", p.Role, orNone(strings.Join(p.Joins, ", ")))
	}
}

// signInComponent is how the identity providers are, nothing where there are none. That one is away makes no lab
// unready.
func signInComponent(list []signin.Health) []ctl.Component {
	if len(list) == 0 {
		return nil
	}
	c := ctl.Component{Name: "sign-in", State: ctl.OK}
	var there, problems []string
	for i := range list {
		switch h := &list[i]; {
		case h.Problem != "":
			problems = append(problems, fmt.Sprintf("%s did not answer %s ago (%s)", h.Title, units.Lasting(time.Since(h.At)),
				h.Problem))
		case h.At.IsZero():
			there = append(there, h.Title+" was not asked yet")
		default:
			there = append(there, h.Title+" answers")
		}
	}
	c.Detail = strings.Join(append(problems, there...), "; ")
	if len(problems) > 0 {
		c.State = ctl.Warning
		c.NextStep = "`gpulab signin check` says what is wrong; accounts with a password of the lab sign in as always"
	}
	return []ctl.Component{c}
}
