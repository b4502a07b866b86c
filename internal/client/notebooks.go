package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/units"
)

// A notebook is one launch, as the API tells it.
type notebook struct {
	ID        int64     `json:"id"`
	User      string    `json:"user"`
	Title     string    `json:"title"`
	Profile   string    `json:"profile"`
	State     string    `json:"state"`
	Reason    string    `json:"reason"`
	GPUs      int       `json:"gpus"`
	Simulated bool      `json:"simulated"`
	Never     bool      `json:"never"`
	Steps     []step    `json:"steps"`
	Requested time.Time `json:"requested"`
	URL       string    `json:"url"`
	Page      string    `json:"page"`
	Version   string    `json:"version"`
	Activity  *activity `json:"activity"`
}

type step struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Text  string `json:"text"`
}

func (n notebook) ended() bool { return n.State == "ended" }

// says is what happens with it now, in one line.
func (n notebook) says() string {
	text := n.State
	if n.Never {
		text = "cannot start"
	}
	why := n.Reason
	if n.State == "starting" {
		for _, s := range n.Steps {
			if s.State == "active" && s.Text != "" {
				why = s.Text
			}
		}
	}
	if why != "" {
		text += ": " + why
	}
	if warning := n.warning(); warning != "" {
		text += "; " + warning
	}
	return plain(text)
}

type notebookList struct {
	Notebooks []notebook `json:"notebooks"`
}

// mine are the notebooks of whoever is signed in that have not ended, newest first.
func (s *Session) mine(ctx context.Context) ([]notebook, error) {
	var list notebookList
	if err := s.Get(ctx, "/notebooks", &list); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Notebooks, notebook.ended), nil
}

// find is the notebook that somebody names by its number or title; without a name it is the only one there is.
func (s *Session) find(ctx context.Context, name string) (notebook, error) {
	list, err := s.mine(ctx)
	if err != nil {
		return notebook{}, err
	}
	var fits []notebook
	for _, n := range list {
		if name == "" || name == strconv.FormatInt(n.ID, 10) || strings.EqualFold(name, n.Title) {
			fits = append(fits, n)
		}
	}
	switch {
	case len(fits) == 1:
		return fits[0], nil
	case len(list) == 0:
		return notebook{}, fail(ExitRefused, "you have no notebook; `gpulab launch` starts one")
	case len(fits) == 0:
		return notebook{}, fail(ExitRefused, "you have no notebook called %q; `gpulab ps` shows those that there are",
			clip(plain(name), 80))
	}
	return notebook{}, fail(ExitUsage, "several notebooks could be meant; say which by its number: %s", numbers(fits))
}

func numbers(list []notebook) string {
	var parts []string
	for _, n := range list {
		parts = append(parts, fmt.Sprintf("%d (%s)", n.ID, plain(n.Title)))
	}
	return strings.Join(parts, ", ")
}

func (a *App) completeNotebooks(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	s, err := a.Session()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := s.mine(c.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var words []string
	for _, n := range list {
		words = append(words, fmt.Sprintf("%d\t%s", n.ID, plain(n.Title)))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

type profile struct {
	Slug        string  `json:"slug"`
	Title       string  `json:"title"`
	Description string  `json:"description"`
	CPUs        float64 `json:"cpus"`
	Memory      string  `json:"memory"`
	GPUs        int     `json:"gpus"`
	Start       string  `json:"start"`
	Why         string  `json:"why"`
}

type profileList struct {
	Profiles []profile `json:"profiles"`
}

// now says whether one would start at once.
func (p profile) now() string {
	words := map[string]string{"now": "starts at once", "waits": "would wait", "never": "cannot start"}[p.Start]
	if p.Why != "" {
		words += ": " + p.Why
	}
	return words
}

func newProfiles(a *App) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "profiles", Short: "List the kinds of notebooks, and whether one would start at once",
		Example: "  gpulab profiles\n  gpulab profiles --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return answered(a, c, "/profiles", asJSON, func(_ *Session, list profileList) error {
				rows := [][]string{{"PROFILE", "WHAT", "CORES", "MEMORY", "GPUS", "NOW"}}
				for _, p := range list.Profiles {
					cores, memory := "–", p.Memory
					if p.CPUs > 0 {
						cores = strconv.FormatFloat(p.CPUs, 'f', -1, 64)
					}
					if memory == "" {
						memory = "–"
					}
					rows = append(rows, []string{p.Slug, p.Title, cores, memory, strconv.Itoa(p.GPUs), p.now()})
				}
				return table(c.OutOrStdout(), rows)
			})
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func (a *App) completeProfiles(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	s, err := a.Session()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var list profileList
	if err := s.Get(c.Context(), "/profiles", &list); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var words []string
	for _, p := range list.Profiles {
		words = append(words, p.Slug+"\t"+plain(p.Title))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

func newPs(a *App) *cobra.Command {
	var asJSON, all bool
	c := &cobra.Command{
		Use: "ps", Short: "List your notebooks; with --all those of others that run, too",
		Example: "  gpulab ps\n  gpulab ps --all\n  gpulab ps --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			path := "/notebooks"
			if all {
				path += "?of=everybody"
			}
			return answered(a, c, path, asJSON, func(_ *Session, list notebookList) error {
				return a.printNotebooks(c, slices.DeleteFunc(list.Notebooks, notebook.ended), all)
			})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "list everybody's; how others call theirs is not shown")
	jsonFlag(c, &asJSON)
	return c
}

func (a *App) printNotebooks(c *cobra.Command, list []notebook, all bool) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(c.OutOrStdout(), "No notebook runs or waits. `gpulab launch` starts one.")
		return err
	}
	header := []string{"NUMBER", "TITLE", "PROFILE", "GPUS", "SINCE", "STATE"}
	if all {
		header = slices.Insert(header, 1, "USER")
	}
	rows := [][]string{header}
	for _, n := range list {
		gpus := strconv.Itoa(n.GPUs)
		if n.Simulated {
			gpus += " simulated"
		}
		row := []string{
			strconv.FormatInt(n.ID, 10), n.Title, n.Profile, gpus, units.Lasting(a.time().Sub(n.Requested)), n.says(),
		}
		if all {
			row = slices.Insert(row, 1, n.User)
		}
		rows = append(rows, row)
	}
	return table(c.OutOrStdout(), rows)
}

func newStop(a *App) *cobra.Command {
	var all, asJSON bool
	c := &cobra.Command{
		Use: "stop [NOTEBOOK]", Short: "Stop a notebook, or take a waiting one out of the queue; files stay",
		Example:           "  gpulab stop\n  gpulab stop 12\n  gpulab stop 'My thesis'\n  gpulab stop --all",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeNotebooks,
		RunE: func(c *cobra.Command, args []string) error {
			if all && len(args) > 0 {
				return fail(ExitUsage, "--all stops every notebook of yours; name one, or leave --all out")
			}
			s, err := a.Session()
			if err != nil {
				return err
			}
			var list []notebook
			if all {
				list, err = s.mine(c.Context())
			} else {
				var one notebook
				one, err = s.find(c.Context(), strings.Join(args, ""))
				list = []notebook{one}
			}
			if err != nil {
				return err
			}
			return stopEach(c, s, list, asJSON)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "stop all of your notebooks")
	jsonFlag(c, &asJSON)
	return c
}

func stopEach(c *cobra.Command, s *Session, list []notebook, asJSON bool) error {
	answers := []json.RawMessage{}
	for _, n := range list {
		var answer json.RawMessage
		if err := s.Do(c.Context(), http.MethodDelete, "/notebooks/"+strconv.FormatInt(n.ID, 10), nil, &answer); err != nil {
			return err
		}
		answers = append(answers, answer)
		if !asJSON {
			fmt.Fprintf(c.OutOrStdout(), "%s is being stopped. Files in your home stay.\n", plain(n.Title))
		}
	}
	switch {
	case asJSON:
		return printJSON(c.OutOrStdout(), map[string]any{"notebooks": answers})
	case len(list) == 0:
		fmt.Fprintln(c.OutOrStdout(), "No notebook runs or waits.")
	}
	return nil
}

func newOpen(a *App) *cobra.Command {
	var show bool
	c := &cobra.Command{
		Use: "open [NOTEBOOK]", Short: "Open a notebook in the browser",
		Long:              "Open a notebook in the browser; one that does not run yet opens on its progress page.",
		Example:           "  gpulab open\n  gpulab open 12\n  gpulab open --print",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeNotebooks,
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.Session()
			if err != nil {
				return err
			}
			n, err := s.find(c.Context(), strings.Join(args, ""))
			if err != nil {
				return err
			}
			return a.show(c, s, n, show)
		},
	}
	c.Flags().BoolVar(&show, "print", false, "print the address and open nothing")
	return c
}

// show opens a notebook, or its progress page, or prints where it is.
func (a *App) show(c *cobra.Command, s *Session, n notebook, onlyPrint bool) error {
	address := n.URL
	if address == "" {
		address = n.Page
	}
	// A browser opens more than web pages: nothing but this lab's own may be asked of it.
	if u, err := url.Parse(address); err != nil || u.Scheme != "https" || u.Hostname() != s.Host() {
		return fail(ExitFailure, "the lab names an address that is not its own: %q", clip(plain(address), 200))
	}
	if !onlyPrint {
		if err := a.open(address); err == nil {
			_, err = fmt.Fprintf(c.OutOrStdout(), "Opened %s\n", address)
			return err
		}
		fmt.Fprintln(c.ErrOrStderr(), "No browser could be opened here: open the address yourself.")
	}
	_, err := fmt.Fprintln(c.OutOrStdout(), address)
	return err
}
