package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/assets"
	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/metrics"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/version"
)

func newMetrics(a *app) *cobra.Command {
	var job, dashboard bool
	c := &cobra.Command{
		Use: "metrics", Short: "Print the metrics, or what Prometheus and Grafana need to show them",
		Long: `Print what the lab tells Prometheus under https://LAB/metrics: GPUs in the names
of NVIDIA's dcgm-exporter, who uses them, and the machine.

Prometheus needs the lab's token to read them, or an address in the key
"metrics.networks" of the configuration.`,
		Example: "  sudo gpulab metrics | grep gpulab_user\n  sudo gpulab metrics --scrape-config > gpulab.yml\n  gpulab " +
			"metrics --dashboard > gpulab.json",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case job && dashboard:
				return fail(exitUsage, "--scrape-config and --dashboard exclude each other; choose one")
			case dashboard:
				_, err := c.OutOrStdout().Write(assets.Dashboard())
				return err
			}
			if err := requireRoot(c); err != nil {
				return err
			}
			if job {
				return printJob(c, a)
			}
			return a.client().Metrics(c.Context(), c.OutOrStdout())
		},
	}
	c.Flags().BoolVar(&job, "scrape-config", false, "print the job for prometheus.yml")
	c.Flags().BoolVar(&dashboard, "dashboard", false, "print a dashboard for Grafana 10 or later")
	return c
}

// jobTemplate is a whole configuration, so that promtool can check it. The
// token itself stays in its file.
var jobTemplate = template.Must(template.New(
	"job").Parse(`# gpulab's job for prometheus.yml. Its files lie on the lab's head, and the token
# is for root alone. Where Prometheus runs, they are put in place like this, with
# the paths below corrected:
{{- if .CA}}
#   install -m 644 ca.crt /etc/prometheus/gpulab-ca.crt{{end}}
#   install -m 640 -g prometheus metrics-token /etc/prometheus/gpulab-token
scrape_configs:
  - job_name: gpulab
    scheme: https
    scrape_interval: 15s
    authorization:
      credentials_file: {{printf "%q" .Token}}
{{- if .CA}}
    tls_config:
      ca_file: {{printf "%q" .CA}}
{{- end}}
    static_configs:
      - targets: [{{printf "%q" .Target}}]
`))

func printJob(c *cobra.Command, a *app) error {
	cfg, err := loadConfig(a.configPath)
	if err != nil {
		return err
	}
	if !*cfg.Metrics.Enabled {
		return fail(exitFailure,
			"metrics are off; take \"enabled: false\" out of the key metrics in %s and run `gpulab init`", a.configPath)
	}
	status, err := a.client().Status(c.Context())
	if err != nil {
		return err
	}
	at, err := url.Parse(status.URL)
	if err != nil {
		return fmt.Errorf("the lab's address: %w", err)
	}
	target := at.Host
	if at.Port() == "" {
		target += ":443"
	}
	ca := filepath.Join(tlsDir(cfg), "ca.crt")
	if own, _ := cfg.TLS.Open(); own.For(at.Hostname()) != nil {
		ca = "" // what is shown for this name is of an authority that is known without
	}
	return jobTemplate.Execute(c.OutOrStdout(),
		map[string]string{"Token": metricsTokenPath(cfg.DataDir), "CA": ca, "Target": target})
}

// Metrics implements ctl.Daemon.
func (l *appliance) Metrics(ctx context.Context, w io.Writer) error {
	return metrics.Write(w, l.measure(ctx))
}

// measure gathers what the metrics tell of.
func (l *appliance) measure(ctx context.Context) *metrics.Lab {
	lab := &metrics.Lab{
		Version: version.Version, Snapshots: l.fleet.Snapshots(), Disks: l.disk.Filesystems(), Now: time.Now(),
	}
	var err error
	if lab.Host, err = l.host.Read(); err != nil {
		slog.Debug("some metrics of the machine are missing", "err", err)
	}
	if parts := l.attached.Load(); parts != nil {
		if active, err := parts.notebooks.Active(ctx); err == nil {
			lab.Launches = countLaunches(active)
		}
	}
	return lab
}

// countLaunches tells every state a launch can be in, so that one with none is
// known to have none.
func countLaunches(active []notebooks.Launch) map[string]int {
	counts := map[string]int{}
	for _, s := range []notebooks.State{notebooks.Waiting, notebooks.Starting, notebooks.Running, notebooks.Stopping} {
		counts[string(s)] = 0
	}
	for _, launch := range active {
		counts[string(launch.State)]++
	}
	return counts
}

// metricsRoutes puts metrics and dashboard where Prometheus and administrators
// get them.
func (l *appliance) metricsRoutes(mux *http.ServeMux) error {
	if !*l.cfg.Metrics.Enabled {
		off := func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "Metrics are off in this lab's configuration.", http.StatusNotFound)
		}
		mux.HandleFunc("GET /metrics", off)
		mux.HandleFunc("GET /metrics/dashboard.json", off)
		return nil
	}
	token, err := loadMetricsToken(l.cfg.DataDir)
	if err != nil {
		return err
	}
	access := metrics.Access{
		Token: token, Networks: config.Prefixes(l.cfg.Metrics.Networks),
		// What runs in a notebook is its owner's choice, wherever pods get
		// their addresses from.
		Except: []netip.Prefix{l.id.ClusterCIDR},
		Admin: func(r *http.Request) bool {
			u, ok := l.sessionUser(r)
			return ok && u.Role == users.RoleAdmin
		},
	}
	mux.Handle("GET /metrics", access.Guard(metrics.Handler(func(r *http.Request) *metrics.Lab {
		return l.measure(r.Context())
	})))
	mux.Handle("GET /metrics/dashboard.json", access.Guard(http.HandlerFunc(serveDashboard)))
	return nil
}

func serveDashboard(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Disposition", `attachment; filename="gpulab-grafana.json"`)
	_, _ = w.Write(assets.Dashboard())
}
