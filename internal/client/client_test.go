package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpulab/gpulab/internal/api/apitest"
	"github.com/gpulab/gpulab/internal/idle"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/webca"
)

// A server is a lab with a certificate authority of its own, as people reach it.
type server struct {
	*apitest.Lab
	*httptest.Server
	certs *webca.Certs
	// authorized counts requests with a token.
	authorized atomic.Int32
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{Lab: apitest.New(t)}
	var err error
	if s.certs, err = webca.Ensure(t.TempDir(), []string{"127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			s.authorized.Add(1)
		}
		s.API.ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /ca.crt", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(s.certs.CAPEM()) })
	s.Server = httptest.NewUnstartedServer(mux)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	certificate, err := s.certs.GetCertificate(&tls.ClientHelloInfo{})
	if err != nil {
		t.Fatal(err)
	}
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*certificate}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// decide is a person who follows the link in the browser.
func (s *server) decide(handle string, allow bool) func(address string) error {
	return func(address string) error {
		u, err := url.Parse(address)
		if err != nil {
			return err
		}
		who, err := s.Users.ByHandle(context.Background(), handle)
		if err != nil {
			return err
		}
		_, err = s.Users.DecideDevice(context.Background(), who, u.Query().Get("code"), allow, "10.0.0.7")
		return err
	}
}

// newApp is the program of somebody who has never signed in.
func newApp(t *testing.T, browser func(string) error) *App {
	t.Helper()
	t.Setenv("SSH_CONNECTION", "")
	t.Setenv("DISPLAY", ":0")
	return &App{Path: filepath.Join(t.TempDir(), "gpulab", "login.json"), Browser: browser}
}

// run runs one command line with what somebody types.
func (a *App) run(t *testing.T, typed string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return a.runIn(t, t.Context(), typed, args...)
}

func (a *App) runIn(t *testing.T, ctx context.Context, typed string, args ...string) (code int, stdout, stderr string) { //nolint:revive // the test comes first, as everywhere
	t.Helper()
	var out, errs bytes.Buffer
	root := a.Root()
	root.SetArgs(args)
	root.SetIn(strings.NewReader(typed))
	root.SetOut(&out)
	root.SetErr(&errs)
	err := root.ExecuteContext(ctx)
	if err != nil {
		errs.WriteString("gpulab: " + err.Error() + "\n")
	}
	return ExitCode(err), out.String(), errs.String()
}

// wants runs a command that works and says each of some texts.
func (a *App) wants(t *testing.T, args []string, texts ...string) string {
	t.Helper()
	code, out, errs := a.run(t, "", args...)
	if code != ExitOK {
		t.Fatalf("%v: exit code %d\n%s%s", args, code, out, errs)
	}
	for _, text := range texts {
		if !strings.Contains(out, text) {
			t.Errorf("%v does not say %q:\n%s", args, text, out)
		}
	}
	return out
}

// refuses runs a command that ends with a code and one line that says why.
func (a *App) refuses(t *testing.T, code int, args []string, texts ...string) {
	t.Helper()
	got, out, errs := a.run(t, "", args...)
	if got != code || out != "" {
		t.Errorf("%v: exit code %d, want %d\n%s%s", args, got, code, out, errs)
	}
	for _, text := range texts {
		if !strings.Contains(errs, text) {
			t.Errorf("%v does not say %q:\n%s", args, text, errs)
		}
	}
}

// TestStory is a student's day: sign in, look, launch and wait, open, stop, sign out.
func TestStory(t *testing.T) {
	s := newServer(t)
	a := newApp(t, s.decide("ben", true))
	a.refuses(t, ExitSignedOut, []string{"ps"}, "gpulab login")
	code, out, errs := a.run(t, "yes\n", "login", strings.TrimPrefix(s.URL, "https://"))
	if code != ExitOK || !strings.Contains(out, "Signed in to Vision lab as ben") || !strings.Contains(errs, s.certs.Fingerprint()[:48]) || !strings.Contains(errs, s.URL+"/device?code=") {
		t.Fatalf("login: exit code %d\n%s%s", code, out, errs)
	}
	text, err := os.ReadFile(a.Path)
	if err != nil {
		t.Fatal(err)
	}
	var login Login
	if err := json.Unmarshal(text, &login); err != nil || login.Server != s.URL || login.Handle != "ben" || login.Scope != "launch" || login.CA == "" {
		t.Fatalf("%+v, %v", login, err)
	}
	if strings.Contains(out+errs, login.Token) {
		t.Error("the token is printed")
	}
	if info, err := os.Stat(a.Path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}

	a.wants(t, []string{"whoami"}, "Ben Okafor (ben), member in Vision lab", "Scope launch")
	a.wants(t, []string{"profiles"}, "gpu", "GPU notebook", "starts at once")
	a.wants(t, []string{"ps"}, "No notebook runs")
	a.wants(t, []string{"quota"}, "No quota holds for you")

	go func() {
		for !s.Notebooks.Move(1, func(n *notebooks.Launch) {
			n.State, n.Reason, n.Position, n.Holders, n.Started = notebooks.Starting, "", 0, nil, time.Now()
			n.Detail = []notebooks.Step{{Name: notebooks.StepPod, State: "active", Text: "Starting the container with GPU 1."}}
		}) {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(300 * time.Millisecond)
		s.Notebooks.Move(1, func(n *notebooks.Launch) { n.State, n.Ready, n.Detail = notebooks.Running, time.Now(), nil })
	}()
	code, out, errs = a.run(t, "", "launch", "gpu", "--title", "Thesis", "--wait")
	address := "https://127.0.0.1:21002/user/ben/gpu/lab\n"
	if code != ExitOK || out != address || !strings.Contains(errs, "waiting: Both GPUs are in use") || !strings.Contains(errs, "starting: Starting the container with GPU 1.") {
		t.Errorf("launch --wait: exit code %d\n%s%s", code, out, errs)
	}
	a.wants(t, []string{"ps"}, "Thesis", "running", "gpu")
	a.wants(t, []string{"ps", "--all"}, "USER", "ben")
	a.wants(t, []string{"open", "--print"}, strings.TrimSpace(address))
	var opened string
	a.Browser = func(address string) error { opened = address; return nil }
	a.wants(t, []string{"open", "thesis"}, "Opened")
	if opened+"\n" != address {
		t.Errorf("opened %q", opened)
	}
	a.wants(t, []string{"launch", "cpu"}, "CPU notebook is number 2 and waiting", s.URL+"/launches/2")
	a.refuses(t, ExitUsage, []string{"stop"}, "1 (Thesis)", "2 (CPU notebook)")
	a.refuses(t, ExitRefused, []string{"keep"}, "none of your notebooks is about to be stopped")
	a.refuses(t, ExitRefused, []string{"keep", "thesis"}, "not about to be stopped")
	s.Idle.Set(idle.Holding{Notebook: idle.Notebook{Launch: 1, GPUs: 1, Policy: idle.Policy{Extend: time.Hour, Extensions: 1}},
		State: idle.Warned, Cause: idle.CauseIdle, Ends: time.Now().Add(time.Minute), WantedBy: "zoe"})
	a.wants(t, []string{"ps"}, "stops at ", "nobody uses its GPU and zoe waits for one; `gpulab keep 1` keeps it")
	a.wants(t, []string{"keep"}, "Thesis is yours until ")
	a.refuses(t, ExitRefused, []string{"keep", "1"}, "not about to be stopped")
	s.Idle.Set(idle.Holding{})
	a.refuses(t, ExitRefused, []string{"stop", "nothing"}, "gpulab ps")
	a.wants(t, []string{"stop", "2"}, "CPU notebook is being stopped")
	a.wants(t, []string{"stop", "--all"}, "Thesis is being stopped")
	a.wants(t, []string{"stop", "--all"}, "No notebook runs")
	a.refuses(t, ExitRefused, []string{"launch", "none"}, "profile")
	for _, args := range [][]string{{"whoami"}, {"profiles"}, {"ps"}, {"ps", "--all"}, {"quota"}, {"env"}, {"launch", "cpu"}, {"stop"}} {
		if out := a.wants(t, append(args, "--json")); !json.Valid([]byte(out)) {
			t.Errorf("%v --json: %s", args, out)
		}
	}
	a.wants(t, []string{"logout"}, "Signed out")
	a.refuses(t, ExitSignedOut, []string{"whoami"})
	if err := sessionOf(t, login).Get(t.Context(), "/me", nil); ExitCode(err) != ExitSignedOut {
		t.Errorf("the token works after logout: %v", err)
	}
}

// sessionOf is NewSession of a login that is right.
func sessionOf(t *testing.T, l Login) *Session {
	t.Helper()
	s, err := NewSession(l)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTrust: nothing is sent to a lab that nobody vouches for, and once an authority is pinned nothing else counts.
func TestTrust(t *testing.T) {
	s := newServer(t)
	a := newApp(t, s.decide("ben", true))
	for _, typed := range []string{"no\n", "y\n", "\n", ""} {
		if code, _, errs := a.run(t, typed, "login", s.URL); code != ExitNotReached || !strings.Contains(errs, "not signed in") {
			t.Errorf("answer %q: exit code %d\n%s", typed, code, errs)
		}
	}
	other := newServer(t)
	a.refuses(t, ExitNotReached, []string{"login", s.URL, "--fingerprint", other.certs.Fingerprint()}, "not the one that you gave")
	a.refuses(t, ExitNotReached, []string{"login", s.URL, "--fingerprint", "AB"}, "not the one that you gave")
	if _, err := os.Stat(a.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a login: %v", err)
	}
	bare := strings.ToLower(strings.ReplaceAll(s.certs.Fingerprint(), ":", ""))
	a.wants(t, []string{"login", s.URL, "--fingerprint", bare}, "Signed in")

	// The lab's address is somebody else's from now on.
	login, err := readLogin(a.Path)
	if err != nil {
		t.Fatal(err)
	}
	login.Server = other.URL
	if err := writeLogin(a.Path, login); err != nil {
		t.Fatal(err)
	}
	a.refuses(t, ExitNotReached, []string{"ps"}, "did not sign", "ask an admin")
	code, _, errs := a.run(t, "no\n", "login")
	if code != ExitNotReached || !strings.Contains(errs, "CAREFUL") {
		t.Errorf("signing in where another authority is: exit code %d\n%s", code, errs)
	}
	if n := other.authorized.Load(); n != 0 {
		t.Errorf("%d requests with a token went to somebody else", n)
	}
	// Nor is a name that the certificate is not for taken.
	login.Server = strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
	if err := writeLogin(a.Path, login); err != nil {
		t.Fatal(err)
	}
	a.refuses(t, ExitNotReached, []string{"ps"}, "for other names")
}

// TestTrustsOnlyWhatSigned: a lab that names somebody else's authority is not trusted, even where the person says yes.
func TestTrustsOnlyWhatSigned(t *testing.T) {
	s, other := newServer(t), newServer(t)
	mux := http.NewServeMux()
	mux.Handle("/api/v1/", s.API)
	mux.HandleFunc("/ca.crt", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(other.certs.CAPEM()) })
	s.Config.Handler = mux
	a := newApp(t, s.decide("ben", true))
	code, _, errs := a.run(t, "yes\n", "login", s.URL)
	if code != ExitNotReached || !strings.Contains(errs, "not signed by the authority that it names") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}

func TestLoginThatIsDenied(t *testing.T) {
	s := newServer(t)
	a := newApp(t, s.decide("ben", false))
	code, _, errs := a.run(t, "yes\n", "login", s.URL)
	if code != ExitSignedOut || !strings.Contains(errs, "denied in the browser") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
	a.Browser = func(string) error { return errors.New("none") }
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	code, _, errs = a.runIn(t, ctx, "yes\n", "login", s.URL)
	if code != ExitFailure || !strings.Contains(errs, "open the address yourself") || !strings.Contains(errs, "you are not signed in") {
		t.Errorf("interrupted: exit code %d\n%s", code, errs)
	}
	a.refuses(t, ExitRefused, []string{"login", s.URL, "--fingerprint", s.certs.Fingerprint(), "--days", "8"}, "days")
	a.refuses(t, ExitUsage, []string{"login"}, "which lab")
	if _, err := os.Stat(a.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a login: %v", err)
	}
}

// TestLoginAgain: a new sign-in ends the token of the one before, and needs no new trust.
func TestLoginAgain(t *testing.T) {
	s := newServer(t)
	a := newApp(t, s.decide("ben", true))
	a.wants(t, []string{"login", s.URL, "--fingerprint", s.certs.Fingerprint()})
	first, err := readLogin(a.Path)
	if err != nil {
		t.Fatal(err)
	}
	a.Browser = s.decide("ada", true)
	a.wants(t, []string{"login", "--scope", "read", "--json"}, `"handle": "ada"`)
	if err := sessionOf(t, first).Get(t.Context(), "/me", nil); ExitCode(err) != ExitSignedOut {
		t.Errorf("the earlier token: %v", err)
	}
	a.refuses(t, ExitRefused, []string{"launch", "cpu"}, "scope")
	// A token that is over is told from one that was refused.
	a.now = func() time.Time { return time.Now().AddDate(0, 0, 31) }
	a.refuses(t, ExitSignedOut, []string{"ps"}, "ended on")
}

// TestLaunchThatDoesNotStart ends with a code of its own.
func TestLaunchThatDoesNotStart(t *testing.T) {
	s := newServer(t)
	a := newApp(t, s.decide("ben", true))
	a.wants(t, []string{"login", s.URL, "--fingerprint", s.certs.Fingerprint()})
	go func() {
		for !s.Notebooks.Move(1, func(n *notebooks.Launch) {
			n.State, n.EndCode, n.Reason, n.Ended = notebooks.Ended, notebooks.EndFailed, "The machine has no disk space left.", time.Now()
		}) {
			time.Sleep(10 * time.Millisecond)
		}
	}()
	a.refuses(t, ExitNotStarted, []string{"launch", "gpu", "--wait"}, "no disk space left")
	go func() {
		for !s.Notebooks.Move(2, func(n *notebooks.Launch) { n.Never, n.Reason = true, "It asks for 8 GPUs." }) {
			time.Sleep(10 * time.Millisecond)
		}
	}()
	a.refuses(t, ExitNotStarted, []string{"launch", "gpu", "--wait"}, "gpulab stop 2")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if code, _, errs := a.runIn(t, ctx, "", "launch", "gpu", "--wait"); code != ExitFailure || !strings.Contains(errs, "goes on by itself") {
		t.Errorf("interrupted: exit code %d\n%s", code, errs)
	}
}

// TestAnswersOfOthers: what answers like no gpulab, or names an address that is not the lab's, is not followed.
func TestAnswersOfOthers(t *testing.T) {
	s := newServer(t)
	a := newApp(t, s.decide("ben", true))
	a.wants(t, []string{"login", s.URL, "--fingerprint", s.certs.Fingerprint()})
	for _, answer := range []struct {
		handler http.HandlerFunc
		code    int
		says    string
	}{
		{func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }, ExitFailure, "does not answer as a gpulab"},
		{func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, ExitNotReached, "is starting"},
		{func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://evil.example/\u202egpj", http.StatusFound)
		}, ExitFailure, "evil.example"},
		{func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }, ExitFailure, "status 418"},
		{func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"notebooks": [{"id": 1, "title": "x", "state": "running", "url": "file:///etc/passwd"}]}`))
		}, ExitFailure, "not its own"},
		{func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"notebooks": [{"id": 1, "title": "x", "state": "running", "url": "https://evil.example/lab"}]}`))
		}, ExitFailure, "not its own"},
	} {
		s.Config.Handler = answer.handler
		a.Browser = func(address string) error { t.Errorf("opened %q", address); return nil }
		code, _, errs := a.run(t, "", "open")
		if code != answer.code || !strings.Contains(errs, answer.says) || strings.ContainsRune(errs, 0x1b) {
			t.Errorf("exit code %d, want %d and %q\n%q", code, answer.code, answer.says, errs)
		}
	}
	s.Close()
	a.refuses(t, ExitNotReached, []string{"ps"}, "cannot be reached")
}

func TestLoginFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "login.json")
	want := Login{Server: "https://lab.example", Token: "gpulab_x", Expires: time.Now().UTC().Truncate(time.Second)}
	if err := writeLogin(path, want); err != nil {
		t.Fatal(err)
	}
	if got, err := readLogin(path); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if runtime.GOOS != "windows" {
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := readLogin(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("a login that others can read: %v", err)
		}
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readLogin(path); ExitCode(err) != ExitSignedOut {
		t.Errorf("a damaged login: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".login-*")); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
	t.Setenv(loginVariable, "/elsewhere/x.json")
	if got, err := loginPath(); err != nil || got != "/elsewhere/x.json" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestServerAddress(t *testing.T) {
	for typed, want := range map[string]string{
		"lab.example": "https://lab.example", "https://Lab.Example/device?code=x": "https://lab.example", "http://10.0.0.5:8080": "https://10.0.0.5:8080",
		" lab.example:444 ": "https://lab.example:444", "[::1]": "https://[::1]",
		"": "", "ftp://lab.example": "", "https://ada@lab.example": "", "https://": "", "a b": "",
	} {
		if got, err := serverAddress(typed); got != want || (err == nil) != (want != "") || err != nil && ExitCode(err) != ExitUsage {
			t.Errorf("%q: %q, %v", typed, got, err)
		}
	}
}

func TestFingerprints(t *testing.T) {
	sum := strings.Repeat("AB:", 31) + "AB"
	for other, same := range map[string]bool{sum: true, strings.ToLower(sum): true, strings.ReplaceAll(sum, ":", ""): true, "SHA256:" + sum: true, " " + strings.ReplaceAll(sum, ":", " ") + "\n": true,
		"": false, "AB": false, sum[:len(sum)-1] + "C": false, sum + ":AB": false} {
		if got := sameFingerprint(other, sum); got != same {
			t.Errorf("%q: %v", other, got)
		}
	}
	if sameFingerprint("", "") {
		t.Error("nothing is the same as nothing")
	}
}

// TestCommandsExplainThemselves: each has a description, an example that can be typed, and words for its flags; a wrong
// command line is one line and its own exit code.
func TestCommandsExplainThemselves(t *testing.T) {
	root := (&App{}).Root()
	for _, c := range append([]*cobra.Command{root}, root.Commands()...) {
		if c.Short == "" || c.Example == "" {
			t.Errorf("%s has no description or no example", c.CommandPath())
		}
		for line := range strings.Lines(c.Example) {
			if !strings.HasPrefix(line, "  gpulab ") {
				t.Errorf("%s: an example that cannot be typed: %s", c.CommandPath(), line)
			}
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s: no word about --%s", c.CommandPath(), f.Name)
			}
		})
	}
	a := newApp(t, nil)
	for _, args := range [][]string{{"frobnicate"}, {"--bogus"}, {"ps", "surplus"}, {"launch", "a", "b"}, {"login", "--days", "many"}, {"stop", "--all", "x"}} {
		if code, out, errs := a.run(t, "", args...); code != ExitUsage || out != "" || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: exit code %d\n%s%s", args, code, out, errs)
		}
	}
}

// TestAsksAgain: a lab that asks to wait for a moment is asked again then; one that asks for more is not.
func TestAsksAgain(t *testing.T) {
	var asked, after atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) > 2 {
			_, _ = w.Write([]byte(`{"id": 7}`))
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.Header().Set("Retry-After", strconv.Itoa(int(after.Load())))
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"title": "Too many requests", "status": 429}`))
	}))
	defer s.Close()
	session := &Session{http: s.Client(), Login: Login{Server: s.URL}}
	var j job
	after.Store(1)
	if err := session.Get(t.Context(), "/jobs/7", &j); err != nil || j.ID != 7 || asked.Load() != 3 {
		t.Errorf("asked %d times: %v, job %d", asked.Load(), err, j.ID)
	}
	asked.Store(0)
	after.Store(600)
	if err := session.Get(t.Context(), "/jobs/7", &j); ExitCode(err) != ExitRefused || asked.Load() != 1 {
		t.Errorf("it wants ten minutes: asked %d times: %v", asked.Load(), err)
	}
}
