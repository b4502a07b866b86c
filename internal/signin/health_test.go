package signin_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/signin/signintest"
)

// health is the problem of the only provider.
func health(t *testing.T, s *signin.Service) string {
	t.Helper()
	list := s.Health()
	if len(list) != 1 || list[0].Title == "" {
		t.Fatalf("%+v", list)
	}
	if list[0].Problem == "" && list[0].At.IsZero() {
		return "never asked"
	}
	return list[0].Problem
}

// A provider that worked a minute ago and is away now must be told of by a page of the lab, not by the browser's own.
func TestProviderGoesAwayAndComesBack(t *testing.T) {
	p := university(t)
	s, _ := newService(t, uniConfig(t, p))
	now := time.Now()
	s.SetClock(func() time.Time { return now })
	if got := health(t, s); got != "never asked" {
		t.Errorf("at first: %q", got)
	}
	address := begin(t, s, "uni")
	if got := health(t, s); got != "" {
		t.Errorf("it answered, and is said to be %q", got)
	}
	again := begin(t, s, "uni")
	p.Stop()
	now = now.Add(20 * time.Second)
	if _, err := s.Begin(t.Context(), "uni", signin.Flow{Browser: "mine"}); !errors.Is(err, signin.ErrUnavailable) {
		t.Errorf("away, and a browser is sent there: %v", err)
	}
	if got := health(t, s); !strings.Contains(got, "refused") || strings.Contains(got, "Get ") {
		t.Errorf("away, and said to be %q", got)
	}
	place := strings.TrimPrefix(p.Issuer, "https://")
	listener, err := net.Listen("tcp", strings.Replace(place, "localhost", "127.0.0.1", 1))
	if err != nil {
		t.Fatal(err)
	}
	p.Resume(listener)
	// Whoever was there already comes in at once: what the lab knows of the provider still holds.
	for _, address := range []string{address, again} {
		if _, o, err := s.Finish(t.Context(), "uni", "mine", p.SignIn(t, address, "ada", "ada's").Query()); err != nil || o.Username != "ada" {
			t.Errorf("under way while it was away: %+v, %v", o, err)
		}
	}
	now = now.Add(6 * time.Second)
	begin(t, s, "uni")
	if got := health(t, s); got != "" {
		t.Errorf("back, and said to be %q", got)
	}
}

// One that accepts connections and says nothing is not waited for longer than somebody has patience, and not by everybody.
func TestProviderThatHangs(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s, _ := newService(t, signin.Config{Name: "uni", Type: "oidc", Issuer: "https://" + silent.Addr().String(), ClientID: signintest.ClientID})
	for i, most := range []time.Duration{2 * time.Second, 100 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		begun := time.Now()
		_, err := s.Begin(ctx, "uni", signin.Flow{Browser: "mine"})
		cancel()
		if took := time.Since(begun); !errors.Is(err, signin.ErrUnavailable) || took > most {
			t.Errorf("try %d: %v after %s", i+1, err, took)
		}
	}
}

// Certificates and secrets are renewed while the lab runs.
func TestRenewedCertificates(t *testing.T) {
	p, other := university(t), signintest.NewAuthority(t)
	cfg := uniConfig(t, p)
	right, err := os.ReadFile(cfg.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := os.ReadFile(other.File)
	if err != nil {
		t.Fatal(err)
	}
	s, _ := newService(t, cfg)
	for _, c := range []struct {
		trusted []byte
		want    error
	}{{right, nil}, {wrong, signin.ErrUnavailable}, {right, nil}} {
		if err := os.WriteFile(cfg.CAFile, c.trusted, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Begin(t.Context(), "uni", signin.Flow{Browser: "mine"}); !errors.Is(err, c.want) {
			t.Errorf("%v, want %v", err, c.want)
		}
	}
}

func TestLooksAtEachKind(t *testing.T) {
	d, g := signintest.StartDirectory(t, ""), newGitHub(t)
	for _, cfg := range []signin.Config{ldapConfig(d), g.config(t)} {
		s, _ := newService(t, cfg)
		s.Look(t)
		if got := health(t, s); got != "" {
			t.Errorf("%s: %q", cfg.Name, got)
		}
	}
	if n := d.Binds(); n != 0 {
		t.Errorf("a look tries the service's password %d times", n)
	}
	cfg := ldapConfig(d)
	cfg.CAFile = ""
	s, _ := newService(t, cfg)
	s.Look(t)
	if got := health(t, s); !strings.Contains(got, "certificate") {
		t.Errorf("no authority: %q", got)
	}
	s, _ = newService(t, ldapConfig(d))
	d.Stop()
	s.Look(t)
	if got := health(t, s); !strings.Contains(got, "refused") {
		t.Errorf("stopped: %q", got)
	}
	g.server.Close()
	s, _ = newService(t, g.config(t))
	s.Look(t)
	if got := health(t, s); !strings.Contains(got, "refused") {
		t.Errorf("stopped: %q", got)
	}
	// Who goes away before an answer comes says nothing about the provider.
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	s, _ = newService(t, uniConfig(t, university(t)))
	if _, err := s.Begin(gone, "uni", signin.Flow{Browser: "mine"}); err == nil || health(t, s) != "never asked" {
		t.Errorf("%v, %q", err, health(t, s))
	}
	begin(t, s, "uni")
}

// serve answers at an address with TLS of an authority, whose certificate is for 127.0.0.1.
func serve(t *testing.T, a *signintest.Authority, address string, handler http.Handler) string {
	t.Helper()
	listener, err := net.Listen("tcp", address+":0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	config := a.Server(t)
	go func() { _ = server.Serve(tls.NewListener(listener, config)) }()
	t.Cleanup(func() { _ = server.Close() })
	return "https://" + listener.Addr().String()
}

// The next step fits what is wrong.
func TestCheckSaysWhatToDo(t *testing.T) {
	p, other := university(t), signintest.NewAuthority(t)
	plain := func(status int, body string) string {
		return serve(t, p.Authority, "127.0.0.1", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}))
	}
	for what, c := range map[string]struct {
		edit       func(*signin.Config)
		text, next string
	}{
		"another realm":     {func(c *signin.Config) { c.Issuer += "/realms/staff" }, "it answered 404 Not Found", "Check issuer: the provider has to tell about itself at " + p.Issuer + "/realms/staff/.well-known/openid-configuration."},
		"a slash too many":  {func(c *signin.Config) { c.Issuer += "/" }, `the provider calls itself "` + p.Issuer + `"`, "Write issuer exactly as the provider does; this lab has " + p.Issuer + "/."},
		"a web page":        {func(c *signin.Config) { c.Issuer = plain(200, "<html>") }, "no OpenID Connect", "from this machine"},
		"something else":    {func(c *signin.Config) { c.Issuer = plain(200, "{}") }, `calls itself ""`, "Check issuer"},
		"another authority": {func(c *signin.Config) { c.CAFile = other.File }, "unknown authority", "Another authority than that in " + other.File},
		"no authority":      {func(c *signin.Config) { c.CAFile = "" }, "unknown authority", "its path as caFile"},
		"another name":      {func(c *signin.Config) { c.Issuer = serve(t, p.Authority, "127.0.0.2", http.NotFoundHandler()) }, "certificate", "Write issuer with a name that stands in its certificate."},
		"nobody there":      {func(c *signin.Config) { c.Issuer = "https://127.0.0.1:1" }, "refused", "Check the name and the way there"},
	} {
		cfg := uniConfig(t, p)
		cfg.CAFile = p.Authority.File
		c.edit(&cfg)
		r, text := findings(t, cfg, "")
		next := ""
		for _, f := range r.Findings {
			if f.State == "failed" {
				next += f.Next
			}
		}
		if r.OK || !strings.Contains(text, c.text) || !strings.Contains(next, c.next) {
			t.Errorf("%s: next %q\n%s", what, next, text)
		}
	}
}

// A lab whose way to the internet is a proxy takes it, for sign-ins and for looking alike.
func TestProxy(t *testing.T) {
	p := university(t)
	var asked atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		there, err := net.Dial("tcp", r.Host)
		if r.Method != http.MethodConnect || err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer there.Close()
		w.WriteHeader(http.StatusOK)
		here, said, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer here.Close()
		go func() { _, _ = io.Copy(there, said) }() // its first bytes may have been read already
		_, _ = io.Copy(here, there)
	}))
	t.Cleanup(proxy.Close)
	s, err := signin.New(signin.ServiceConfig{Providers: []signin.Config{uniConfig(t, p)}, URL: func() string { return home },
		Proxy: func(*url.URL) (*url.URL, error) { return url.Parse(proxy.URL) }})
	if err != nil {
		t.Fatal(err)
	}
	q := p.SignIn(t, begin(t, s, "uni"), "ada", "ada's").Query()
	if _, o, err := s.Finish(t.Context(), "uni", "mine", q); err != nil || o.Username != "ada" {
		t.Errorf("%+v, %v", o, err)
	}
	before := asked.Load()
	reports, err := s.Test(t.Context(), "uni", "")
	if err != nil || len(reports) != 1 || !reports[0].OK || before == 0 || asked.Load() == before {
		t.Errorf("%+v, %v; the proxy was asked %d and %d times", reports, err, before, asked.Load())
	}
}
