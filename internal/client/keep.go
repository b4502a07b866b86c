package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// activity is whether a running notebook is used, as the API tells it.
type activity struct {
	State     string    `json:"state"`
	Cause     string    `json:"cause"`
	Ends      time.Time `json:"ends"`
	WantedBy  string    `json:"wantedBy"`
	MayKeep   bool      `json:"mayKeep"`
	KeptUntil time.Time `json:"keptUntil"`
}

// warned tells whether a notebook is about to be stopped.
func (n notebook) warned() bool { return n.Activity != nil && n.Activity.State == "warned" }

// warning is what its owner should know of a notebook that is about to be stopped, "" of any other.
func (n notebook) warning() string {
	if !n.warned() {
		return ""
	}
	a := n.Activity
	why := "nobody uses its GPU"
	if a.Cause == "age" {
		why = "it has run as long as one may"
	}
	if a.WantedBy != "" {
		why += " and " + plain(a.WantedBy) + " waits for one"
	}
	text := fmt.Sprintf("stops at %s: %s", a.Ends.Local().Format("15:04:05"), why)
	if a.MayKeep {
		text += fmt.Sprintf("; `gpulab keep %d` keeps it", n.ID)
	}
	return text
}

// warned is the notebook that somebody names, or the one that is about to be stopped.
func (s *Session) warned(ctx context.Context, name string) (notebook, error) {
	if name != "" {
		return s.find(ctx, name)
	}
	list, err := s.mine(ctx)
	if err != nil {
		return notebook{}, err
	}
	list = slices.DeleteFunc(list, func(n notebook) bool { return !n.warned() })
	switch len(list) {
	case 0:
		return notebook{}, fail(ExitRefused, "none of your notebooks is about to be stopped")
	case 1:
		return list[0], nil
	}
	return notebook{}, fail(ExitUsage, "several notebooks are about to be stopped; say which by its number: %s",
		numbers(list))
}

func newKeep(a *App) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "keep [NOTEBOOK]", Short: "Keep a notebook that is about to be stopped because nobody uses it",
		Long: `Keep a notebook that is about to be stopped, because nobody uses its GPU or
because it has run as long as one may. It then stays for a while; that can be done
a few times in a row. Without a name it is the one that is about to be stopped.`,
		Example:           "  gpulab keep\n  gpulab keep 12\n  gpulab keep 'My thesis'",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeNotebooks,
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.Session()
			if err != nil {
				return err
			}
			n, err := s.warned(c.Context(), strings.Join(args, ""))
			if err != nil {
				return err
			}
			var answer json.RawMessage
			if err := s.Do(c.Context(), http.MethodPost, "/notebooks/"+strconv.FormatInt(n.ID, 10)+"/keep", nil,
				&answer); err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), answer)
			}
			if err := json.Unmarshal(answer, &n); err != nil {
				return err
			}
			until := ""
			if k := n.Activity; k != nil && !k.KeptUntil.IsZero() {
				until = " until " + k.KeptUntil.Local().Format("15:04:05") + " at least"
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s is yours%s.\n", plain(n.Title), until)
			return err
		},
	}
	jsonFlag(c, &asJSON)
	return c
}
