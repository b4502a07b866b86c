package notebooks

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asProxy makes the test binary behave as the program configurable-http-proxy
// with gpulab's REST API inside.
const asProxy = "GPULAB_TEST_AS_CONFIGURABLE_HTTP_PROXY"

func TestMain(m *testing.M) {
	if os.Getenv(asProxy) != "" {
		if err := runAsProxy(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// runAsProxy takes the options that JupyterHub gives its proxy. The REST API is
// the one under test. Traffic is forwarded plainly by the routes: upstream's
// tests start servers through the proxy's public port, which gpulab forbids.
func runAsProxy(args []string) error {
	flags := flag.NewFlagSet("configurable-http-proxy", flag.ContinueOnError)
	ip, port := flags.String("ip", "", ""), flags.String("port", "8000", "")
	apiIP, apiPort := flags.String("api-ip", "localhost", ""), flags.String("api-port", "8001", "")
	defaultTarget := flags.String("default-target", "", "")
	for _, ignored := range []string{"error-target", "log-level"} {
		flags.String(ignored, "", "")
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	p, err := NewProxy(ProxyConfig{Sessions: &sessionsByCookie{}, Pods: &podsByHand{}, AuthToken: os.Getenv("CONFIGPROXY_AUTH_TOKEN"), Origins: portsByID{}})
	if err != nil {
		return err
	}
	if *defaultTarget != "" {
		target, err := json.Marshal(*defaultTarget)
		if err != nil {
			return err
		}
		if err := p.table.put("/", map[string]json.RawMessage{"target": target}); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	failed := make(chan error, 2)
	for address, handler := range map[string]http.Handler{
		*apiIP + ":" + *apiPort: p.RoutesAPI(),
		*ip + ":" + *port:       plainForward(p.table),
	} {
		server := &http.Server{Addr: address, Handler: handler, ReadHeaderTimeout: time.Minute}
		defer func() { _ = server.Close() }()
		go func() { failed <- server.ListenAndServe() }()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// plainForward sends a request to the target of the longest route that begins its path.
func plainForward(table *routeTable) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		target, ok := longestRoute(table, r.URL.Path)
		if !ok {
			http.NotFound(w, r)
			return
		}
		forward := httputil.ReverseProxy{Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL.Scheme, pr.Out.URL.Host, pr.Out.Host = target.Scheme, target.Host, pr.In.Host
		}}
		forward.ServeHTTP(w, r)
	})
}

func longestRoute(table *routeTable, where string) (*url.URL, bool) {
	for where = strings.TrimSuffix(where, "/"); ; where = where[:strings.LastIndexByte(where, '/')] {
		key := where
		if key == "" {
			key = "/"
		}
		if r, ok := table.get(key); ok {
			var target string
			_ = json.Unmarshal(r.data["target"], &target)
			u, err := url.Parse(target)
			return u, err == nil
		}
		if where == "" {
			return nil, false
		}
	}
}

// upstreamSkips are tests of JupyterHub's test_proxy.py that are not expected
// to run, with the reason. Everything else must pass.
var upstreamSkips = map[string]string{
	"test_extra_routes[host.name/path/]":          "routes by host name, which need subdomains; gpulab has none",
	"test_extra_routes[other.host/path/no/slash]": "routes by host name, which need subdomains; gpulab has none",
}

// TestUpstreamProxyTests runs JupyterHub's own tests of its proxy, from its
// wheel, with gpulab's REST API in the place of configurable-http-proxy.
func TestUpstreamProxyTests(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: JupyterHub's own tests take a minute and need its wheel")
	}
	python := upstreamPython(t)
	bin := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\n%s=1 exec %q \"$@\"\n", asProxy, self)
	if err := os.WriteFile(filepath.Join(bin, "configurable-http-proxy"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	config, err := filepath.Abs("testdata/upstream/pytest.ini")
	if err != nil {
		t.Fatal(err)
	}
	report := filepath.Join(bin, "report.xml")
	said, runErr := runUpstream(t, python, bin, config, report)
	if runErr != nil {
		// They wait for fixed times, which a busy machine may need for itself.
		t.Logf("pytest: %v; once more\n%s", runErr, tail(said, 2000))
		said, runErr = runUpstream(t, python, bin, config, report)
	}
	passed := 0
	for _, c := range upstreamCases(t, report) {
		switch {
		case c.Failure != nil || c.Error != nil:
			t.Errorf("%s failed", c.Name)
		case c.Skipped == nil:
			passed++
		case upstreamSkips[c.Name] != "":
			t.Logf("%s does not apply: %s", c.Name, upstreamSkips[c.Name])
		default:
			t.Errorf("%s was skipped", c.Name)
		}
	}
	t.Logf("%d of JupyterHub's own tests passed", passed)
	if runErr != nil || passed < upstreamAtLeast {
		t.Errorf("pytest: %v\n%s", runErr, tail(said, 6000))
	}
}

func runUpstream(t *testing.T, python, bin, config, report string) (said string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	args := []string{python, "-m", "pytest", "-c", config, "--rootdir", bin, "-p", "no:cacheprovider",
		"--tb=short", "--color=no", "--junit-xml=" + report, "--pyargs", "jupyterhub.tests.test_proxy"}
	if os.Geteuid() == 0 {
		// The tests leave a notebook server behind, in a session of its own.
		args = append([]string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = bin
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+filepath.Dir(python)+":"+os.Getenv("PATH"), "HOME="+bin,
		"TMPDIR="+t.TempDir(), "PYTHONDONTWRITEBYTECODE=1")
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}

// upstreamAtLeast is how many tests the locked version has that apply.
const upstreamAtLeast = 32

type upstreamCase struct {
	Name    string    `xml:"name,attr"`
	Failure *struct{} `xml:"failure"`
	Error   *struct{} `xml:"error"`
	Skipped *struct{} `xml:"skipped"`
}

// upstreamCases reads pytest's report.
func upstreamCases(t *testing.T, file string) []upstreamCase {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Error(err)
		return nil
	}
	var report struct {
		Cases []upstreamCase `xml:"testsuite>testcase"`
	}
	if err := xml.Unmarshal(b, &report); err != nil {
		t.Error(err)
	}
	return report.Cases
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// upstreamPython is the interpreter of an environment with JupyterHub in it,
// made once per lock file in the user's cache folder.
func upstreamPython(t *testing.T) string {
	t.Helper()
	lock, err := filepath.Abs("testdata/upstream/requirements.txt")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	dir := filepath.Join(cache, "gpulab", "test-venv-"+hex.EncodeToString(sum[:6]))
	python := filepath.Join(dir, "bin", "python")
	if _, err := os.Stat(filepath.Join(dir, "complete")); err == nil {
		return python
	} else if !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	t.Logf("making %s", dir)
	for _, args := range [][]string{
		{"python3", "-m", "venv", "--clear", dir},
		{python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--require-hashes", "-r", lock},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v (Python 3.11 or newer with venv is needed)\n%s", strings.Join(args, " "), err, tail(string(out), 3000))
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "complete"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return python
}
