package notebooks

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// hubLog is a hub that notes what reached it.
type hubLog struct {
	mu      sync.Mutex
	reached []string
	headers []http.Header
	answer  func(w http.ResponseWriter, r *http.Request)
}

func (h *hubLog) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.reached = append(h.reached, r.Method+" "+r.URL.EscapedPath())
	h.headers = append(h.headers, r.Header)
	h.mu.Unlock()
	if h.answer != nil {
		h.answer(w, r)
	}
}

func (h *hubLog) take() ([]string, []http.Header) {
	h.mu.Lock()
	defer h.mu.Unlock()
	reached, headers := h.reached, h.headers
	h.reached, h.headers = nil, nil
	return reached, headers
}

func TestHubPathsFromOutside(t *testing.T) {
	o := newOrigin(t)
	hub := &hubLog{}
	o.hub(hub.ServeHTTP)
	for _, c := range []struct {
		method, path string
		passed       bool
	}{
		{"GET", "/hub/login", true},
		{"GET", "/hub/oauth_login?next=%2Fhub%2F", true},
		{"GET", "/hub/oauth_callback?code=1&state=2", true},
		{"GET", "/hub/logout", true},
		{"GET", "/hub/api/oauth2/authorize?client_id=x", true},
		{"POST", "/hub/api/oauth2/authorize", true},
		{"GET", "/hub/static/css/style.min.css?v=1", true},
		{"HEAD", "/hub/static/js/x.js", true},
		{"GET", "/hub/logo", true},

		{"POST", "/hub/login", false},
		{"POST", "/hub/static/x", false},
		{"POST", "/hub/oauth_callback", false},
		{"GET", "/hub", false},
		{"GET", "/hub/", false},
		{"GET", "/hub/home", false},
		{"GET", "/hub/admin", false},
		{"GET", "/hub/token", false},
		{"GET", "/hub/spawn", false},
		{"POST", "/hub/spawn/alice/gpu", false},
		{"GET", "/hub/spawn-pending/alice/gpu", false},
		{"GET", "/hub/user/alice/gpu/", false},
		{"GET", "/hub/metrics", false},
		{"GET", "/hub/api", false},
		{"GET", "/hub/api/", false},
		{"GET", "/hub/api/user", false},
		{"POST", "/hub/api/oauth2/token", false},
		{"POST", "/hub/api/users/alice/servers/free", false},
		{"POST", "/hub/api/users/alice/server", false},
		{"POST", "/hub/api/users/alice/tokens", false},
		{"DELETE", "/hub/api/oauth2/authorize", false},
		{"GET", "/hub/static/../api/users", false},
		{"GET", "/hub/static/%2e%2e/api/users", false},
		{"GET", "/hub/static/..%2fapi/users", false},
		{"GET", "/hub/static//x", false},
		{"GET", "/hub/static/", false},
		{"GET", "/hub//login", false},
		{"GET", "/hub/login/", false},
		{"GET", "/hub/%6cogin", false},
		{"GET", "/hub/login;x", false},
		{"GET", "/services/x/", false},
		{"GET", "/api/users", false},
		{"GET", "/HUB/login", false},
	} {
		res, _ := o.do(c.method, c.path, nil, cookie("alice-1"), header("Authorization", "token of-a-student"))
		reached, headers := hub.take()
		if (len(reached) == 1) != c.passed {
			t.Errorf("%s %s: reached the hub: %v, want %v", c.method, c.path, reached, c.passed)
		}
		if !c.passed && res.StatusCode != http.StatusForbidden && res.StatusCode != http.StatusNotFound {
			t.Errorf("%s %s: got %d", c.method, c.path, res.StatusCode)
		}
		if c.passed && headers[0].Get("Authorization") != "" {
			t.Errorf("%s %s: a token went along", c.method, c.path)
		}
	}
	host := mustURL(t, o.server.URL).Hostname()
	res, _ := o.get("/hub/home", cookie("alice-1"), asPage)
	if res.StatusCode != http.StatusFound || res.Header.Get("Location") != "https://"+host+":4443/" {
		t.Errorf("the hub's home page: got %d to %q", res.StatusCode, res.Header.Get("Location"))
	}
	if reached, _ := hub.take(); len(reached) != 0 {
		t.Errorf("reached the hub: %v", reached)
	}
}

// A student's hub token, got out of his notebook's environment, starts no
// server: neither from outside nor with anybody's session.
func TestHubTokenStartsNoServer(t *testing.T) {
	o := newOrigin(t)
	hub := &hubLog{}
	o.hub(hub.ServeHTTP)
	for _, changes := range [][]change{
		{header("Authorization", "token abc")},
		{header("Authorization", "Bearer abc")},
		{cookie("alice-1"), header("Authorization", "token abc"), header("X-Xsrftoken", "x")},
		{cookie("alice-1"), header("X-Http-Method-Override", "GET")},
	} {
		for _, path := range []string{
			"/hub/api/users/alice/servers/free", "/hub/api/users/alice/servers/free?token=abc", "/hub/spawn/alice/free",
			"/hub/static/../api/users/alice/servers/free", "/hub/api/oauth2/authorize/../../users/alice/servers/free",
		} {
			res, _ := o.do(http.MethodPost, path, strings.NewReader(`{"profile":"gpu"}`), changes...)
			if res.StatusCode != http.StatusForbidden {
				t.Errorf("%s: got %d", path, res.StatusCode)
			}
		}
	}
	if reached, _ := hub.take(); len(reached) != 0 {
		t.Errorf("reached the hub: %v", reached)
	}
}

func TestHubPagesNeedASession(t *testing.T) {
	o := newOrigin(t)
	hub := &hubLog{}
	o.hub(hub.ServeHTTP)
	res, _ := o.get("/hub/api/oauth2/authorize?client_id=x", asPage)
	if res.StatusCode != http.StatusFound || !strings.Contains(res.Header.Get("Location"), "/login?next=%2Fhub%2Fapi%2Foauth2%2Fauthorize%3Fclient_id%3Dx") {
		t.Errorf("got %d to %q", res.StatusCode, res.Header.Get("Location"))
	}
	if reached, _ := hub.take(); len(reached) != 0 {
		t.Errorf("reached the hub: %v", reached)
	}
	if res, _ := o.get("/hub/static/x.css"); res.StatusCode != http.StatusOK {
		t.Errorf("files need no session: got %d", res.StatusCode)
	}
	if _, headers := hub.take(); len(headers) != 1 || headers[0].Get("Cookie") != "" {
		t.Errorf("cookies went along to a file: %v", headers)
	}
}

// The hub's cookies stay with the person they were set for, and on the hub's path.
func TestHubCookies(t *testing.T) {
	o := newOrigin(t)
	hub := &hubLog{answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Set-Cookie", "jupyterhub-session-id=abc; HttpOnly; Path=/; Secure")
		w.Header().Add("Set-Cookie", "jupyterhub-hub-login=def; HttpOnly; Path=/hub/")
		w.Header().Add("Set-Cookie", "oauthenticator-state=ghi; HttpOnly")
		w.Header().Add("Set-Cookie", `jupyterhub-services=""; Path=/services; expires=Thu, 01 Jan 1970 00:00:00 GMT`)
		_, _ = io.WriteString(w, "ok")
	}}
	o.hub(hub.ServeHTTP)
	res, _ := o.get("/hub/oauth_callback?code=1", cookie("alice-1"))
	want := strings.Join([]string{
		"jupyterhub-session-id=abc; HttpOnly; Secure; Path=/hub/",
		"jupyterhub-hub-login=def; HttpOnly; Path=/hub/",
		"oauthenticator-state=ghi; HttpOnly; Path=/hub/",
		"gpulab-hub=1; Path=/hub/; Secure; HttpOnly; SameSite=Lax",
	}, "\n")
	if got := strings.Join(res.Header["Set-Cookie"], "\n"); got != want {
		t.Errorf("cookies:\n%s\nwant\n%s", got, want)
	}
	hub.take()
	for _, c := range []struct{ session, owner, want string }{
		{"alice-1", "1", "jupyterhub-hub-login=def"},
		{"bob-1", "1", ""}, // Bob signs in on the browser that Alice used
		{"alice-1", "", ""},
		{"alice-1", "2", ""},
	} {
		_, _ = o.get("/hub/login", cookie(c.session), header("Cookie", "jupyterhub-hub-login=def; gpulab-hub="+c.owner))
		_, headers := hub.take()
		if len(headers) != 1 || headers[0].Get("Cookie") != c.want {
			t.Errorf("%+v: the hub saw %q", c, headers[0].Get("Cookie"))
		}
		if got := headers[0].Get("X-Forwarded-For"); got != "127.0.0.1" {
			t.Errorf("X-Forwarded-For: %q", got)
		}
	}
}

func TestHubAway(t *testing.T) {
	o := newOrigin(t)
	res, body := o.get("/hub/login", cookie("alice-1"), asPage)
	if res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, `http-equiv="refresh"`) {
		t.Errorf("got %d %s", res.StatusCode, body)
	}
}
