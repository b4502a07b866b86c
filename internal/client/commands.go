package client

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cli/browser"
	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/version"
)

// App is what the commands share.
type App struct {
	// Path is the file of the login; "" is the usual one.
	Path string
	// Browser opens an address for the person; nil is the system's own way.
	Browser func(address string) error

	now func() time.Time
}

// Commands are the commands of people who work in a lab.
func (a *App) Commands() []*cobra.Command {
	return []*cobra.Command{
		newLogin(a), newLogout(a), newWhoami(a),
		newProfiles(a), newLaunch(a), newStop(a), newKeep(a), newPs(a), newOpen(a), newCp(a),
		newSubmit(a), newRun(a), newJobs(a), newCancel(a), newServices(a), newService(a),
	}
}

// Root is the whole program of cmd/gpulab-client.
func (a *App) Root() *cobra.Command {
	root := &cobra.Command{
		Use:   "gpulab",
		Short: "Notebooks on the lab's GPUs, from your own computer",
		Long: `gpulab starts notebooks in a lab that runs gpulab, and shows what runs there.

Sign in once with the address of the lab; the browser asks you to confirm it.`,
		Example: `  gpulab login lab.example
  gpulab launch gpu --wait
  gpulab ps`,
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usage(c, err) })
	root.AddCommand(a.Commands()...)
	root.AddCommand(a.Quota(), a.Env(), a.Logs(), NewExitCodes())
	for _, c := range append(root.Commands(), root) {
		if check := c.Args; check != nil {
			c.Args = func(c *cobra.Command, args []string) error {
				if err := check(c, args); err != nil {
					return usage(c, err)
				}
				return nil
			}
		}
	}
	return root
}

func usage(c *cobra.Command, err error) error {
	return fail(ExitUsage, "%w; see `%s --help`", err, c.CommandPath())
}

func (a *App) path() (string, error) {
	if a.Path != "" {
		return a.Path, nil
	}
	return loginPath()
}

// SignedIn reports whether there is a login on this computer.
func (a *App) SignedIn() bool {
	path, err := a.path()
	if err != nil {
		return false
	}
	_, err = readLogin(path)
	return err == nil
}

// Session is the way into the lab that this computer is signed in to.
func (a *App) Session() (*Session, error) {
	path, err := a.path()
	if err != nil {
		return nil, err
	}
	l, err := readLogin(path)
	if err != nil {
		return nil, err
	}
	if !a.time().Before(l.Expires) {
		return nil, fail(ExitSignedOut, "your sign-in at %s ended on %s; run `gpulab login` again", l.Server,
			l.Expires.Local().Format("2 January 2006"))
	}
	return NewSession(l)
}

func (a *App) time() time.Time {
	if a.now != nil {
		return a.now()
	}
	return time.Now()
}

// open shows an address in the browser.
func (a *App) open(address string) error {
	if a.Browser != nil {
		return a.Browser(address)
	}
	browser.Stdout, browser.Stderr = io.Discard, io.Discard // what the browser says is not ours to print
	return browser.OpenURL(address)
}

// answered asks the lab of whoever is signed in. With asJSON it prints the answer as it came; otherwise show prints it.
func answered[T any](a *App, c *cobra.Command, path string, asJSON bool, show func(s *Session, answer T) error) error {
	s, err := a.Session()
	if err != nil {
		return err
	}
	var answer json.RawMessage
	if err := s.Get(c.Context(), path, &answer); err != nil {
		return err
	}
	if asJSON {
		return printJSON(c.OutOrStdout(), answer)
	}
	var value T
	if err := json.Unmarshal(answer, &value); err != nil {
		return err
	}
	return show(s, value)
}

func jsonFlag(c *cobra.Command, asJSON *bool) {
	c.Flags().BoolVar(asJSON, "json", false, "print JSON")
}

// printJSON prints a value, or an answer of the API as it came.
func printJSON(w io.Writer, value any) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	return out.Encode(value)
}

// table prints rows in aligned columns, the header first.
func table(w io.Writer, rows [][]string) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i := range row {
			row[i] = plain(row[i])
		}
		fmt.Fprintln(out, strings.Join(row, "\t"))
	}
	return out.Flush()
}
