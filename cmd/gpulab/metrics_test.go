package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/fleet"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/hoststat"
	"github.com/gpulab/gpulab/internal/metrics/promtest"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webca"
)

func writeConfig(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMetricsToken(t *testing.T) {
	dir := t.TempDir()
	made, err := loadMetricsToken(dir)
	if err != nil || len(made) < 64 {
		t.Fatalf("%q, %v", made, err)
	}
	if again, err := loadMetricsToken(dir); err != nil || again != made {
		t.Errorf("the next daemon has %q, %v", again, err)
	}
	path := metricsTokenPath(dir)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	for _, content := range []string{"", "\n", "short\n"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if token, err := loadMetricsToken(dir); err == nil || !strings.Contains(err.Error(), path) || token != "" {
			t.Errorf("%q makes a token %q, %v", content, token, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if fresh, err := loadMetricsToken(dir); err != nil || fresh == made {
		t.Errorf("after it was deleted: %q, %v", fresh, err)
	}
}

func TestCountLaunches(t *testing.T) {
	got := countLaunches([]notebooks.Launch{{State: notebooks.Waiting}, {State: notebooks.Running}, {State: notebooks.Waiting}})
	if fmt.Sprint(got) != "map[running:1 starting:0 stopping:0 waiting:2]" {
		t.Error(got)
	}
}

// measured is an appliance without a cluster that serves metrics as the real
// one does: over TLS, below its own authority.
func measured(t *testing.T, config, pods string) (l *appliance, url string, configPath string) {
	t.Helper()
	dir := t.TempDir()
	configPath = writeConfig(t, config+"\ndataDir: "+dir+"\n")
	cfg, err := loadConfig(configPath)
	if err != nil {
		t.Fatal(err)
	}
	host, err := hoststat.New()
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	l = &appliance{cfg: cfg, fleet: fleet.New(), host: host, people: users.New(db.DB()), id: embedk8s.Identity{ClusterCIDR: netip.MustParsePrefix(pods)}}
	l.disk = l.newDiskWatch()
	use := 42.0
	l.fleet.Update(gpu.Snapshot{Node: "box", Time: time.Now(), GPUs: []gpu.GPU{{Device: gpu.Device{UUID: "GPU-a"}, Reading: gpu.Reading{Utilization: &use}}}})
	certs, err := webca.Ensure(tlsDir(cfg), []string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	if err := l.metricsRoutes(mux); err != nil {
		t.Fatal(err)
	}
	// httptest would show a certificate of its own.
	server := httptest.NewUnstartedServer(mux)
	server.Listener = tls.NewListener(server.Listener, certs.TLSConfig())
	server.Start()
	t.Cleanup(server.Close)
	return l, strings.Replace(server.URL, "http://", "https://", 1), configPath
}

// metricsDaemon answers on the socket for a server of a test.
type metricsDaemon struct {
	ctl.Daemon
	lab *appliance
	url string
}

func (d *metricsDaemon) Status(context.Context) (ctl.Status, error) {
	return ctl.Status{URL: d.url}, nil
}

func (d *metricsDaemon) Metrics(ctx context.Context, w io.Writer) error {
	return d.lab.Metrics(ctx, w)
}

// TestScrapeConfig: what `gpulab metrics --scrape-config` prints is all that a
// real Prometheus needs.
func TestScrapeConfig(t *testing.T) {
	needRoot(t)
	lab, url, config := measured(t, "", "10.42.0.0/16")
	socket := serve(t, &metricsDaemon{lab: lab, url: url})
	code, job, stderr := gpulab(t, "metrics", "--scrape-config", "--config", config, "--socket", socket)
	if code != exitOK || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	token, err := loadMetricsToken(lab.cfg.DataDir)
	if err != nil || strings.Contains(job, token) {
		t.Errorf("the secret stands in the job (%v):\n%s", err, job)
	}
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	if err := os.WriteFile(file, []byte(job), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtest.Program(t, "promtool"), "check", "config", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s\n%s", err, out, job)
	}
	prometheus := promtest.Start(t, strings.Replace(job, "scrape_interval: 15s", "scrape_interval: 200ms", 1))
	got := prometheus.Wait(t, "DCGM_FI_DEV_GPU_UTIL")
	if len(got) != 1 || got[0].Value != 42 || got[0].Labels["Hostname"] != "box" || got[0].Labels["job"] != "gpulab" {
		t.Errorf("Prometheus has %v", got)
	}
	prometheus.Wait(t, "node_memory_MemAvailable_bytes")

	// Who has a certificate of another authority for the name needs none of the lab's.
	written, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	web := filepath.Join(tlsDir(lab.cfg), "web.pem")
	ownCert := writeConfig(t, fmt.Sprintf("%s\ntls: {certificate: %s, key: %[2]s}\n", written, web))
	code, job, stderr = gpulab(t, "metrics", "--scrape-config", "--config", ownCert, "--socket", socket)
	if code != exitOK || strings.Contains(job, "ca.crt") || strings.Contains(job, "tls_config") || !strings.Contains(job, "credentials_file") {
		t.Errorf("with a certificate of its own: exit code %d: %s\n%s", code, stderr, job)
	}

	code, text, stderr := gpulab(t, "metrics", "--socket", socket)
	if code != exitOK || stderr != "" || !strings.Contains(text, `DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a"`) || !strings.Contains(text, "\nnode_load1 ") {
		t.Errorf("gpulab metrics: exit code %d\n%s%s", code, stderr, text)
	}
}

func TestMetricsCommand(t *testing.T) {
	needRoot(t)
	if code, out, _ := gpulab(t, "metrics", "--dashboard"); code != exitOK || !json.Valid([]byte(out)) {
		t.Errorf("the dashboard: exit code %d\n%.100s", code, out)
	}
	if code, _, stderr := gpulab(t, "metrics", "--dashboard", "--scrape-config"); code != exitUsage || strings.Count(stderr, "\n") != 1 {
		t.Errorf("both at once: exit code %d: %s", code, stderr)
	}
	lab, url, config := measured(t, "metrics: {enabled: false}", "10.42.0.0/16")
	socket := serve(t, &metricsDaemon{lab: lab, url: url})
	if code, out, stderr := gpulab(t, "metrics", "--scrape-config", "--config", config, "--socket", socket); code != exitFailure || out != "" || !strings.Contains(stderr, "metrics are off") {
		t.Errorf("a job for what is off: exit code %d: %s%s", code, out, stderr)
	}
	if code, _, stderr := gpulab(t, "metrics", "--socket", socket+".none"); code != exitNotRunning || !strings.Contains(stderr, "gpulab init") {
		t.Errorf("nobody there: exit code %d: %s", code, stderr)
	}
}

// TestMetricsDoor: who is let in to what, over real connections.
func TestMetricsDoor(t *testing.T) {
	const (
		off   = "metrics: {enabled: false}"
		near  = "metrics: {networks: [127.0.0.0/8]}"
		far   = "metrics: {networks: [192.0.2.0/24]}"
		pods  = "10.42.0.0/16"
		wrong = "Bearer 0000000000000000000000000000000000000000000000000000000000000000"
	)
	for _, c := range []struct {
		name, config, pods, authorization string
		role                              users.Role
		code                              int
	}{
		{"a stranger", "", pods, "", "", http.StatusUnauthorized},
		{"a wrong token", "", pods, wrong, "", http.StatusUnauthorized},
		{"an administrator", "", pods, "", users.RoleAdmin, http.StatusOK},
		{"a member", "", pods, "", users.RoleMember, http.StatusUnauthorized},
		{"a near machine", near, pods, "", "", http.StatusOK},
		{"a pod in a near network", near, "127.0.0.0/8", "", "", http.StatusUnauthorized},
		{"a machine that is not near", far, pods, "", "", http.StatusUnauthorized},
		{"everybody, when it is off", off, pods, "", "", http.StatusNotFound},
		{"an administrator, when it is off", off, pods, "", users.RoleAdmin, http.StatusNotFound},
	} {
		lab, url, _ := measured(t, c.config, c.pods)
		trusted := x509.NewCertPool()
		pem, err := readCA(lab.cfg)
		if err != nil || !trusted.AppendCertsFromPEM(pem) {
			t.Fatal(err)
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}, DisableKeepAlives: true}}
		for _, path := range []string{"/metrics", "/metrics/dashboard.json"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.authorization != "" {
				req.Header.Set("Authorization", c.authorization)
			}
			if c.role != "" {
				req.AddCookie(&http.Cookie{Name: cookies.Session, Value: session(t, lab.people, c.role)})
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != c.code {
				t.Errorf("%s at %s: %s, want %d", c.name, path, resp.Status, c.code)
			}
			if c.code != http.StatusOK && strings.Count(string(body), "\n") != 1 {
				t.Errorf("%s at %s: the refusal is %q", c.name, path, body)
			}
			if c.code == http.StatusOK && path != "/metrics" && !json.Valid(body) {
				t.Errorf("the dashboard is %.100s", body)
			}
		}
	}
}

// session signs somebody new in.
func session(t *testing.T, people *users.Service, role users.Role) (token string) {
	t.Helper()
	list, err := people.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	u, err := people.Create(t.Context(), users.NewUser{Handle: fmt.Sprintf("somebody%d", len(list)), Role: role})
	if err != nil {
		t.Fatal(err)
	}
	if token, err = people.StartSession(t.Context(), u.ID, users.SessionMeta{}); err != nil {
		t.Fatal(err)
	}
	return token
}
