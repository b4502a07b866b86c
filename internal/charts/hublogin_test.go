package charts

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// gpulabStandIn answers as gpulab does behind the Service: the proxy's REST API
// and the back channel of OpenID Connect, both over TLS with an authority that
// no system trusts.
type gpulabStandIn struct {
	*httptest.Server
	mu     sync.Mutex
	routes map[string]any // as the hub announced them
	tokens []string       // Authorization headers at the proxy's API
	seen   url.Values     // last form at the token endpoint
}

func newGPULabStandIn(t *testing.T) *gpulabStandIn {
	g := &gpulabStandIn{routes: map[string]any{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/hub-proxy/api/routes/", g.proxyAPI)
	mux.HandleFunc("/hub-proxy/api/routes", g.proxyAPI)
	mux.HandleFunc("POST /oidc/token", func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		_ = r.ParseForm()
		g.seen = r.Form
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"access_token":"at","token_type":"Bearer","scope":"openid profile"}`)
	})
	mux.HandleFunc("GET /oidc/userinfo", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer at" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"sub":"7","preferred_username":"ada"}`)
	})
	g.Server = httptest.NewTLSServer(mux)
	t.Cleanup(g.Close)
	return g
}

func (g *gpulabStandIn) proxyAPI(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tokens = append(g.tokens, r.Header.Get("Authorization"))
	path := strings.TrimPrefix(r.URL.Path, "/hub-proxy/api/routes")
	switch r.Method {
	case http.MethodGet:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(g.routes)
	case http.MethodPost:
		var route map[string]any
		_ = json.NewDecoder(r.Body).Decode(&route)
		route["last_activity"] = time.Now().UTC().Format(time.RFC3339)
		g.routes[path] = route
		w.WriteHeader(http.StatusCreated)
	case http.MethodDelete:
		delete(g.routes, path)
		w.WriteHeader(http.StatusNoContent)
	}
}

// announced waits until the hub has told where it is itself, which it does a
// moment after it answers.
func (g *gpulabStandIn) announced(within time.Duration) bool {
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		g.mu.Lock()
		_, ok := g.routes["/"]
		g.mu.Unlock()
		if ok {
			return true
		}
	}
	return false
}

// startHub runs the real hub with the chart's configuration against the stand-in
// and returns its address.
func startHub(t *testing.T, g *gpulabStandIn) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "http://" + listener.Addr().String()
	listener.Close()

	dir := t.TempDir()
	r := release(t, sampleInputs(), "jupyterhub")
	hub := maps.Clone(r.Values["hub"].(map[string]any))
	// Only places differ from the pod: no name of the cluster here, no
	// folder /srv/jupyterhub, a port of the machine.
	hub["extraConfig"] = map[string]any{"places": fmt.Sprintf(`
c.JupyterHub.hub_bind_url = %q
c.JupyterHub.hub_connect_url = %q
c.JupyterHub.db_url = "sqlite:///%s/hub.sqlite"
for name in ("ConfigurableHTTPProxy.api_url", "GenericOAuthenticator.token_url", "GenericOAuthenticator.userdata_url"):
    section, trait = name.split(".")
    c[section][trait] = c[section][trait].replace("https://gpulab.gpulab-system.svc.cluster.local", %q)
`, address, address, dir, g.URL)}
	r.Values["hub"] = hub

	config, env := hubFiles(t, r)
	ca := filepath.Join(dir, "ca.crt")
	write(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.Certificate().Raw})))
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, hubPython(t), "-m", "jupyterhub", "--config", config)
	cmd.Dir, cmd.Env = dir, append(env, "SSL_CERT_FILE="+ca)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // what it said stands in the log
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		if t.Failed() {
			t.Logf("the hub's log:\n%s", log.String())
		}
	})
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		select {
		case <-ended:
			t.Fatalf("the hub ended: %v", cmd.ProcessState)
		default:
		}
		if response, err := http.Get(address + "/hub/health"); err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return address
			}
		}
	}
	t.Fatal("the hub does not answer")
	return ""
}

// The hub finds its proxy and signs a person in through gpulab's authority
// alone, and what that person's rights are then.
func TestHubSignsInThroughGPULab(t *testing.T) {
	t.Parallel()
	g := newGPULabStandIn(t)
	address := startHub(t, g)
	in := sampleInputs()

	if !g.announced(30 * time.Second) {
		t.Error("the hub announced no route for itself")
	}
	g.mu.Lock()
	for _, token := range g.tokens {
		if token != "token "+in.Hub.ProxyToken {
			t.Errorf("the proxy's API was asked with %q", token)
		}
	}
	g.mu.Unlock()

	jar, _ := cookiejar.New(nil)
	browser := &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	// A visitor without a session is sent to gpulab without a click, on the
	// origin that the browser used: the path stays a path.
	location := follow(t, browser, address+"/hub/login?next=%2Fhub%2Fhome", "/gpulab/authorize")
	query := location.Query()
	for key, want := range map[string]string{
		"client_id":             in.Hub.OIDCClientID,
		"response_type":         "code",
		"redirect_uri":          address + "/hub/oauth_callback",
		"code_challenge_method": "S256",
		"scope":                 "openid profile",
	} {
		if got := query.Get(key); got != want {
			t.Errorf("authorize: %s is %q, want %q", key, got, want)
		}
	}
	callback := "/hub/oauth_callback?" + url.Values{"code": {"c"}, "state": {query.Get("state")}}.Encode()
	back := get(t, browser, address+callback)
	defer back.Body.Close()
	if to := back.Header.Get("Location"); to != "/hub/home" {
		t.Fatalf("after sign-in the hub leads to %q", to)
	}
	if g.seen.Get("code_verifier") == "" || g.seen.Get("code") != "c" {
		t.Errorf("the token endpoint got %v", g.seen)
	}

	me := get(t, browser, address+"/hub/api/user")
	defer me.Body.Close()
	var user struct {
		Name   string
		Admin  bool
		Scopes []string
	}
	if err := json.NewDecoder(me.Body).Decode(&user); err != nil {
		t.Fatal(err)
	}
	if user.Name != "ada" || user.Admin {
		t.Errorf("signed in as %+v", user)
	}
	for _, scope := range user.Scopes {
		right, _, _ := strings.Cut(scope, "!")
		switch right {
		case "servers", "tokens", "admin:servers", "start:servers", "self":
			t.Errorf("a student has the right %q", scope)
		}
	}
	xsrf := ""
	base, _ := url.Parse(address + "/hub/")
	for _, c := range jar.Cookies(base) {
		if c.Name == "_xsrf" {
			xsrf = c.Value
		}
	}
	for _, path := range []string{"/hub/api/users/ada/servers/mine", "/hub/api/users/ada/server", "/hub/api/users/ada/tokens"} {
		request, _ := http.NewRequest(http.MethodPost, address+path, strings.NewReader(`{"profile":"gpu","uid":20001}`))
		request.Header.Set("X-XSRFToken", xsrf)
		response, err := browser.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != http.StatusForbidden && response.StatusCode != http.StatusNotFound {
			t.Errorf("a student's POST %s got %s: %s", path, response.Status, body)
		}
	}

	// gpulab's own token may do what gpulab does.
	for _, call := range []struct{ method, path string }{
		{http.MethodGet, "/hub/api/users"},
		{http.MethodPost, "/hub/api/users/grace"},
		{http.MethodPost, "/hub/api/proxy"},
	} {
		request, _ := http.NewRequest(call.method, address+call.path, nil)
		request.Header.Set("Authorization", "token "+in.Hub.ServiceToken)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode >= 300 {
			t.Errorf("gpulab's %s %s got %s", call.method, call.path, response.Status)
		}
	}

	checkServerToken(t, address, in.Hub.ServiceToken)

	out := get(t, browser, address+"/hub/logout")
	defer out.Body.Close()
	if to := out.Header.Get("Location"); to != "/gpulab/logout" {
		t.Errorf("sign-out leads to %q", to)
	}
}

// checkServerToken: gpulab gets a token that opens one server of a person, and nothing else comes of it: the server
// that is asked with it gets to see it.
func checkServerToken(t *testing.T, address, service string) {
	t.Helper()
	ask := func(token, method, path, body string) (int, string) {
		request, _ := http.NewRequest(method, address+path, strings.NewReader(body))
		request.Header.Set("Authorization", "token "+token)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(text)
	}
	const scope = "access:servers!server=grace/gpu"
	status, text := ask(service, http.MethodPost, "/hub/api/users/grace/tokens", `{"expires_in": 3600, "scopes": ["`+scope+`"]}`)
	var made struct{ Token string }
	if err := json.Unmarshal([]byte(text), &made); err != nil || status != http.StatusCreated || made.Token == "" {
		t.Fatalf("a token for one server: %d %s", status, text)
	}
	status, text = ask(made.Token, http.MethodGet, "/hub/api/user", "")
	var who struct {
		Name   string
		Scopes []string
	}
	if err := json.Unmarshal([]byte(text), &who); err != nil || status != http.StatusOK || who.Name != "grace" {
		t.Fatalf("whose token it is: %d %s", status, text)
	}
	for _, s := range who.Scopes {
		// Whoever has it may also ask whose it is.
		if s != scope && s != "read:users:name!user=grace" && s != "read:users:groups!user=grace" {
			t.Errorf("the token for one server has the right %q", s)
		}
	}
	for _, call := range []struct{ method, path string }{
		{http.MethodGet, "/hub/api/users"}, {http.MethodGet, "/hub/api/users/ada"}, {http.MethodPost, "/hub/api/users/grace/servers/gpu"},
		{http.MethodDelete, "/hub/api/users/grace/servers/gpu"}, {http.MethodPost, "/hub/api/users/grace/tokens"}, {http.MethodPost, "/hub/api/proxy"},
	} {
		if status, text := ask(made.Token, call.method, call.path, "{}"); status != http.StatusForbidden && status != http.StatusNotFound {
			t.Errorf("with the token for one server, %s %s got %d: %s", call.method, call.path, status, text)
		}
	}
}

func get(t *testing.T, client *http.Client, address string) *http.Response {
	t.Helper()
	response, err := client.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

// follow walks redirects until one leads to path and returns that one as sent.
func follow(t *testing.T, client *http.Client, address, path string) *url.URL {
	t.Helper()
	for range 10 {
		response := get(t, client, address)
		response.Body.Close()
		location := response.Header.Get("Location")
		to, err := url.Parse(location)
		if err != nil || location == "" {
			t.Fatalf("%s answers %s and leads nowhere", address, response.Status)
		}
		if to.Path == path {
			if to.Host != "" {
				t.Errorf("%s leads to another origin: %s", address, location)
			}
			return to
		}
		from, _ := url.Parse(address)
		address = from.ResolveReference(to).String()
	}
	t.Fatalf("no redirect leads to %s", path)
	return nil
}
