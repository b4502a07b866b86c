package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/units"
)

// A service is a program that goes on running and answers on a port, as the API tells it.
type service struct {
	ID        int64     `json:"id"`
	User      string    `json:"user"`
	Name      string    `json:"name"`
	State     string    `json:"state"`
	Health    string    `json:"health"`
	Reason    string    `json:"reason"`
	Address   string    `json:"address"`
	Share     string    `json:"share"`
	StopAt    time.Time `json:"stopAt"`
	Profile   string    `json:"profile"`
	GPUs      int       `json:"gpus"`
	Simulated bool      `json:"simulated"`
	Output    string    `json:"output"`
	Version   string    `json:"version"`
}

type serviceList struct {
	Services []service `json:"services"`
}

func (v service) path() string { return "/services/" + strconv.FormatInt(v.ID, 10) }

// says is how it does now, in one line.
func (v service) says() string {
	text := v.State
	if v.Health != "" {
		text = v.Health
	}
	if v.Reason != "" {
		text += ": " + v.Reason
	}
	return plain(text)
}

// findService is the service that somebody names by its number, or the latest of a name.
func (s *Session) findService(ctx context.Context, name string) (service, error) {
	var v service
	if _, err := strconv.ParseInt(name, 10, 64); err == nil {
		return v, s.Get(ctx, "/services/"+name, &v)
	}
	var list serviceList
	if err := s.Get(ctx, "/services", &list); err != nil {
		return v, err
	}
	for _, v := range list.Services {
		if strings.EqualFold(v.Name, name) {
			return v, nil
		}
	}
	return v, fail(ExitRefused, "you have no service called %q; `gpulab services` shows those that there are",
		clip(plain(name), 80))
}

func (a *App) completeServices(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	s, err := a.Session()
	var list serviceList
	if err != nil || len(args) > 0 || s.Get(c.Context(), "/services", &list) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var words []string
	for _, v := range list.Services {
		words = append(words, fmt.Sprintf("%d\t%s", v.ID, plain(v.Name)))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

func newServices(a *App) *cobra.Command {
	var others, asJSON bool
	c := &cobra.Command{
		Use: "services", Short: "List your services, the newest first; with --others those of others that you may see",
		Example: "  gpulab services\n  gpulab services --others\n  gpulab services --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			path := "/services"
			if others {
				path += "?of=others"
			}
			return answered(a, c, path, asJSON, func(_ *Session, list serviceList) error {
				return a.printServices(c, list.Services, others)
			})
		},
	}
	c.Flags().BoolVar(&others, "others", false, "list those of others that you may see")
	jsonFlag(c, &asJSON)
	return c
}

func (a *App) printServices(c *cobra.Command, list []service, others bool) error {
	if len(list) == 0 {
		words := "There is no service. `gpulab service tensorboard FOLDER` or `gpulab service run` starts one."
		if others {
			words = "Nobody shares a service with you."
		}
		_, err := fmt.Fprintln(c.OutOrStdout(), words)
		return err
	}
	rows := [][]string{{"NUMBER", "USER", "NAME", "GPUS", "FOR", "STOPS IN", "ADDRESS", "STATE"}}
	for _, v := range list {
		gpus := strconv.Itoa(v.GPUs)
		if v.Simulated {
			gpus += " simulated"
		}
		stops := "–"
		if v.State != "ended" {
			stops = units.Lasting(max(v.StopAt.Sub(a.time()), 0))
		}
		rows = append(rows, []string{strconv.FormatInt(v.ID, 10), v.User, v.Name, gpus, v.Share, stops, v.Address, v.says()})
	}
	return table(c.OutOrStdout(), rows)
}

func newService(a *App) *cobra.Command {
	c := &cobra.Command{
		Use: "service", Short: "Start, share, restart and stop services: programs with a page of their own",
		Long: `A service is a program that goes on running in the lab and has a page for
browsers: TensorBoard, an inference server, a Gradio page. Only those see it
who are signed in and with whom you share it.`,
		Example: "  gpulab service tensorboard runs\n  gpulab service run --name demo --port 7860 --share group:vision -- " +
			"python app.py\n  gpulab services",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newServiceRun(a), newServiceTensorBoard(a), newServiceShare(a), newServiceKeep(a), newServiceRestart(a),
		newServiceStop(a), newServiceLogs(a))
	return c
}

// serviceAsk is what a service is asked for with.
type serviceAsk struct {
	TensorBoard *string  `json:"tensorboard,omitempty"`
	Command     []string `json:"command,omitempty"`
	Name        string   `json:"name,omitempty"`
	Port        int      `json:"port,omitempty"`
	Share       string   `json:"share,omitempty"`
	StopAfter   string   `json:"stopAfter,omitempty"`
	Once        bool     `json:"once,omitempty"`
	Profile     string   `json:"profile,omitempty"`
	GPUs        *int     `json:"gpus,omitempty"`
	Environment string   `json:"environment,omitempty"`
	Output      string   `json:"output,omitempty"`
	Dir         string   `json:"dir,omitempty"`

	gpus   int
	asJSON bool
}

func (q *serviceAsk) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&q.Name, "name", "", "what it is called; a part of its address")
	f.StringVar(&q.Share, "share", "", "who may see it beside you: private, group:NAME, or lab for everybody who is "+
		"signed in (default private)")
	f.StringVar(&q.StopAfter, "stop-after", "", "when it is stopped, such as 12h or 30d; 7d if empty, 90d at most")
	f.StringVar(&q.Environment, "env", "", "which of the lab's environments it runs in, such as pytorch")
	f.StringVar(&q.Profile, "profile", "", "which profile (gpulab profiles); the first with as many GPUs if empty")
	jsonFlag(c, &q.asJSON)
}

// start asks for a service, and waits until it answers if wait says so.
func (a *App) start(c *cobra.Command, q *serviceAsk, wait bool) error {
	s, err := a.Session()
	if err != nil {
		return err
	}
	if c.Flags().Changed("gpus") {
		q.GPUs = &q.gpus
	}
	var answer json.RawMessage
	var v service
	if err := s.Do(context.WithoutCancel(c.Context()), http.MethodPost, "/services", q, &answer); err != nil {
		return err
	}
	if err := json.Unmarshal(answer, &v); err != nil {
		return err
	}
	for wait && v.State != "ended" && v.Health != "ready" {
		if err := s.Get(c.Context(), v.path()+"?wait=20&seen="+v.Version, &answer); err != nil {
			return err
		}
		v = service{} // what the answer leaves out is so no more
		if err := json.Unmarshal(answer, &v); err != nil {
			return err
		}
	}
	if q.asJSON {
		return printJSON(c.OutOrStdout(), answer)
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "Service %d (%s): %s\nIts address: %s\nIts log: `gpulab service logs %d`, in "+
		"your home %s\n", v.ID, plain(v.Name), v.says(), v.Address, v.ID, plain(v.Output))
	if err == nil && wait && v.State == "ended" {
		err = fail(ExitRefused, "the service has ended: %s", v.says())
	}
	return err
}

func newServiceRun(a *App) *cobra.Command {
	var q serviceAsk
	var wait bool
	c := &cobra.Command{
		Use: "run --port N [--name NAME] -- COMMAND [ARGUMENT...]", Short: "Start a service",
		Long: `Start a program in the lab, with your home there, that goes on running and
answers on a port. It has to listen on 0.0.0.0; the port is in
GPULAB_SERVICE_PORT, too. It is an origin of its own, so the program needs no
base path. When it ends it is started again, sooner or later as it ends more
often, until its stop time or until you stop it.`,
		Example: "  gpulab service run --name demo --port 7860 --share group:vision -- python app.py\n  gpulab service " +
			"run --name llm --port 8000 --gpus 1 --env pytorch --stop-after 12h -- python serve.py",
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if q.Command = args; q.Name == "" {
				q.Name = clip(plain(filepath.Base(args[0])), 60)
			}
			return a.start(c, &q, wait)
		},
	}
	q.flags(c)
	f := c.Flags()
	f.IntVar(&q.Port, "port", 0, "on which the program listens")
	f.IntVar(&q.gpus, "gpus", 0, "how many GPUs")
	f.StringVar(&q.Dir, "dir", "", "folder of your home in which it runs")
	f.StringVar(&q.Output, "output", "", "file of its log in your home (default services/NAME-NUMBER.log)")
	f.BoolVar(&q.Once, "once", false, "do not start it again when it ends")
	f.BoolVar(&wait, "wait", false, "wait until it answers")
	f.SetInterspersed(false) // what stands behind the program is the program's
	return c
}

func newServiceTensorBoard(a *App) *cobra.Command {
	var q serviceAsk
	var wait bool
	c := &cobra.Command{
		Use: "tensorboard [FOLDER]", Short: "Start TensorBoard on a folder of your home",
		Example: "  gpulab service tensorboard runs\n  gpulab service tensorboard --share lab runs/final",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			q.TensorBoard = new(strings.Join(args, ""))
			return a.start(c, &q, wait)
		},
	}
	q.flags(c)
	c.Flags().BoolVar(&wait, "wait", false, "wait until it answers")
	return c
}

// onService is a command that does something with a service and says what came of it.
func onService(a *App, use, short, example string, args int,
	do func(s *Session, c *cobra.Command, v service, args []string, answer *json.RawMessage) error,
	words string) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: use, Short: short, Example: example, Args: cobra.ExactArgs(args), ValidArgsFunction: a.completeServices,
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.Session()
			if err != nil {
				return err
			}
			v, err := s.findService(c.Context(), args[0])
			if err != nil {
				return err
			}
			var answer json.RawMessage
			if err := do(s, c, v, args[1:], &answer); err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), answer)
			}
			v = service{}
			if err := json.Unmarshal(answer, &v); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "Service %d (%s) %s\n", v.ID, plain(v.Name),
				strings.NewReplacer("SHARE", v.Share, "STOP", v.StopAt.Local().Format("15:04 on Mon 2 Jan")).Replace(words))
			return err
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func newServiceShare(a *App) *cobra.Command {
	return onService(a, "share SERVICE private|group:NAME|lab", "Change who may see a service of yours",
		"  gpulab service share demo group:vision\n  gpulab service share demo private", 2,
		func(s *Session, c *cobra.Command, v service, args []string, answer *json.RawMessage) error {
			return s.Do(c.Context(), http.MethodPost, v.path()+"/share", map[string]string{"share": args[0]}, answer)
		}, "is shared: SHARE. Who may not see it any more is cut off within seconds.")
}

func newServiceKeep(a *App) *cobra.Command {
	return onService(a, "keep SERVICE TIME", "Set when a service of yours is stopped, from now on",
		"  gpulab service keep demo 14d", 2,
		func(s *Session, c *cobra.Command, v service, args []string, answer *json.RawMessage) error {
			return s.Do(c.Context(), http.MethodPost, v.path()+"/keep", map[string]string{"stopAfter": args[0]}, answer)
		}, "is stopped at STOP.")
}

func newServiceRestart(a *App) *cobra.Command {
	return onService(a, "restart SERVICE", "End the program of a service of yours and start it again",
		"  gpulab service restart demo", 1,
		func(s *Session, c *cobra.Command, v service, _ []string, answer *json.RawMessage) error {
			return s.Do(c.Context(), http.MethodPost, v.path()+"/restart", nil, answer)
		}, "is being restarted.")
}

func newServiceStop(a *App) *cobra.Command {
	return onService(a, "stop SERVICE", "Stop a service; what it has written stays", "  gpulab service stop demo", 1,
		func(s *Session, c *cobra.Command, v service, _ []string, answer *json.RawMessage) error {
			return s.Do(c.Context(), http.MethodDelete, v.path(), nil, answer)
		}, "is being stopped.")
}

func newServiceLogs(a *App) *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use: "logs SERVICE", Short: "Show what a service of yours has said; with -f go on until it ends",
		Example: "  gpulab service logs demo\n  gpulab service logs -f demo", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completeServices,
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.Session()
			if err != nil {
				return err
			}
			v, err := s.findService(c.Context(), args[0])
			if err != nil {
				return err
			}
			return s.serviceLog(c, v, follow)
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on showing new lines until the service ends")
	return c
}

func (s *Session) serviceLog(c *cobra.Command, v service, follow bool) error {
	out, at := terminalSafe(c.OutOrStdout()), int64(0)
	for {
		path := fmt.Sprintf("%s/log?from=%d", v.path(), at)
		if follow {
			path += "&wait=20"
		}
		var log jobLog
		if err := s.Get(c.Context(), path, &log); err != nil {
			return err
		}
		if log.LeftOut > 0 {
			fmt.Fprintf(c.ErrOrStderr(), "\n[%d bytes are left out here]\n", log.LeftOut)
		}
		if _, err := out.Write(log.Data); err != nil {
			return err
		}
		if at == 0 && log.Missing && !follow {
			fmt.Fprintf(c.ErrOrStderr(), "[service %d has no log: %s]\n", v.ID, v.says())
		}
		if at = log.Next; log.End || len(log.Data) == 0 && !follow {
			return nil
		}
	}
}
