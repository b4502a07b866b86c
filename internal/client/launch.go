package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

// waitAtOnce is for how long one question waits for a change, in seconds.
const waitAtOnce = 15

func newLaunch(a *App) *cobra.Command {
	var title string
	var wait, show, asJSON bool
	c := &cobra.Command{
		Use: "launch [PROFILE]", Short: "Start a notebook; with --wait until it runs",
		Long: `Start a notebook of a kind that ` + "`gpulab profiles`" + ` lists, the first one if none is named.
Where no GPU is free it waits in the queue and starts by itself, even if you stop
waiting for it here.`,
		Example:           "  gpulab launch\n  gpulab launch gpu --title 'My thesis' --wait\n  gpulab launch gpu --open",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeProfiles,
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.Session()
			if err != nil {
				return err
			}
			ask := map[string]string{"title": title}
			if len(args) == 1 {
				ask["profile"] = args[0]
			}
			var answer json.RawMessage
			if err := s.Do(c.Context(), http.MethodPost, "/notebooks", ask, &answer); err != nil {
				return err
			}
			var n notebook
			if err := json.Unmarshal(answer, &n); err != nil {
				return err
			}
			if wait || show {
				if answer, n, err = s.waitFor(c, n, answer, asJSON); err != nil {
					return err
				}
			}
			switch {
			case asJSON:
				return printJSON(c.OutOrStdout(), answer)
			case show:
				return a.show(c, s, n, false)
			case wait:
				_, err = fmt.Fprintln(c.OutOrStdout(), n.URL)
			default:
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s is number %d and %s\nIts page: %s\n", plain(n.Title), n.ID, n.says(),
					n.Page)
			}
			return err
		},
	}
	c.Flags().StringVar(&title, "title", "", "what you call it; the kind's own title if empty")
	c.Flags().BoolVar(&wait, "wait", false, "wait until it runs, say what happens, and print its address")
	c.Flags().BoolVar(&show, "open", false, "wait, then open it in the browser")
	jsonFlag(c, &asJSON)
	return c
}

// waitFor waits until a notebook runs, and says on the way what happens to it. Interrupted, it leaves the notebook be.
func (s *Session) waitFor(c *cobra.Command, n notebook, answer json.RawMessage,
	quiet bool) (json.RawMessage, notebook, error) {
	said, lost := "", false
	for {
		if text := n.says(); text != said && !quiet {
			fmt.Fprintln(c.ErrOrStderr(), text)
			said = text
		}
		switch {
		case n.State == "running":
			return answer, n, nil
		case n.ended():
			return nil, n, fail(ExitNotStarted, "the notebook did not start: %s", plain(n.Reason))
		case n.Never:
			return nil, n, fail(ExitNotStarted, "the notebook can never start like this; `gpulab stop %d` takes it out of "+
				"the queue", n.ID)
		}
		query := url.Values{"wait": {strconv.Itoa(waitAtOnce)}, "seen": {n.Version}}
		err := s.Get(c.Context(), "/notebooks/"+strconv.FormatInt(n.ID, 10)+"?"+query.Encode(), &answer)
		if c.Context().Err() != nil {
			return nil, n, fail(ExitFailure, "interrupted; the notebook goes on by itself, `gpulab ps` shows it and `gpulab "+
				"stop %d` ends it", n.ID)
		}
		if ExitCode(err) == ExitNotReached {
			// The lab may be restarted while somebody waits; the notebook goes on.
			if !lost {
				fmt.Fprintf(c.ErrOrStderr(), "%v. Trying again …\n", err)
			}
			lost = true
			pause(c.Context(), 2*time.Second)
			continue
		}
		if err != nil {
			return nil, n, err
		}
		n, lost = notebook{}, false
		if err := json.Unmarshal(answer, &n); err != nil {
			return nil, n, err
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
