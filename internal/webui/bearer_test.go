package webui_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webui"
)

// accessToken makes a token behind the pages' back.
func (l *lab) accessToken(t testing.TB, handle string, scope users.TokenScope) (secret string, token users.Token) {
	t.Helper()
	u, err := l.users.ByHandle(context.Background(), handle)
	if err != nil {
		t.Fatal(err)
	}
	secret, token, err = l.users.CreateToken(context.Background(), u.ID, users.NewToken{Name: "laptop", Scope: scope, Days: 30})
	if err != nil {
		t.Fatal(err)
	}
	return secret, token
}

func bearer(secret string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+secret) }
}

// TestEveryRouteForEveryTokenScope walks all routes with a token of each scope and role. Outside of the API a
// token is nothing: the answer is a stranger's. In the API it can what scope and role both can.
func TestEveryRouteForEveryTokenScope(t *testing.T) {
	l := newLab(t)
	api := 0
	for _, handle := range []string{"gus", "ben", "lea", "ada"} {
		for _, scope := range users.TokenScopes() {
			secret, _ := l.accessToken(t, handle, scope)
			for _, rt := range l.pages.Routes() {
				path := samplePath(rt[1])
				if path == "/login" || path == "/logout" || path == "/events" {
					path += "?view=nothing"
				}
				got := l.client(t, "").do(rt[0], path, url.Values{}, bearer(secret))
				if !strings.HasPrefix(path, "/api/v1/") {
					stranger := l.client(t, "").do(rt[0], path, url.Values{}, nil)
					if got.status != stranger.status || got.header.Get("Location") != stranger.header.Get("Location") {
						t.Errorf("%s %s with %s's token for %s: %d %s, a stranger gets %d %s", rt[0], path, handle, scope,
							got.status, got.header.Get("Location"), stranger.status, stranger.header.Get("Location"))
					}
					continue
				}
				api++
				if rt[0] != http.MethodGet {
					t.Fatalf("%s %s changes something: say here with which scope it may", rt[0], path)
				}
				want := http.StatusOK
				if path == "/api/v1/status" && handle != "ada" {
					want = http.StatusForbidden
				}
				if got.status != want {
					t.Errorf("GET %s with %s's token for %s: status %d, want %d: %s", path, handle, scope, got.status, want, got.body)
				}
				if cookie := got.header.Get("Set-Cookie"); cookie != "" {
					t.Errorf("%s sets a cookie: %s", path, cookie)
				}
			}
		}
	}
	if api == 0 {
		t.Error("there is no API")
	}
}

// A cookie beside a token counts for nothing, in both directions.
func TestTokenAndCookieDoNotMix(t *testing.T) {
	l := newLab(t)
	ben, _ := l.accessToken(t, "ben", users.ScopeFull)
	ada, _ := l.accessToken(t, "ada", users.ScopeFull)
	l.client(t, "ada").get("/api/v1/status").want(t, http.StatusOK)
	l.client(t, "ada").do("GET", "/api/v1/status", nil, bearer(ben)).want(t, http.StatusForbidden, "access token does not allow")
	l.client(t, "ada").do("GET", "/api/v1/status", nil, bearer("gpulab_wrong")).want(t, http.StatusUnauthorized)
	l.client(t, "ada").do("GET", "/api/v1/status", nil, func(r *http.Request) { r.SetBasicAuth("ada", "ada-password") }).want(t, http.StatusUnauthorized)
	l.client(t, "ada").do("GET", "/api/v1/status", nil, func(r *http.Request) { r.Header.Set("Authorization", "") }).want(t, http.StatusUnauthorized)
	l.client(t, "ben").do("GET", "/api/v1/status", nil, bearer(ada)).want(t, http.StatusOK)
	l.client(t, "ben").do("GET", "/users", nil, bearer(ada)).want(t, http.StatusForbidden)
	l.client(t, "ada").do("GET", "/users", nil, bearer(ben)).want(t, http.StatusOK) // the page asks the cookie alone
	both := l.client(t, "").do("GET", "/api/v1/status", nil, func(r *http.Request) {
		r.Header["Authorization"] = []string{"Bearer " + ada, "Bearer " + ben}
	})
	both.want(t, http.StatusUnauthorized)
	// A token is no cookie, and a session no token.
	c := l.client(t, "")
	c.http.Jar.SetCookies(nil, []*http.Cookie{{Name: "__Host-gpulab", Value: ada}})
	c.get("/users").want(t, http.StatusSeeOther)
	c.get("/api/v1/status").want(t, http.StatusUnauthorized)
	l.client(t, "").do("GET", "/api/v1/status", nil, bearer(l.session(t, "ada"))).want(t, http.StatusUnauthorized)
	// Nor does it work in the address.
	l.client(t, "").get("/api/v1/status?access_token="+ada+"&token="+ada).want(t, http.StatusUnauthorized)
}

func TestPathTricksWithTokens(t *testing.T) {
	l := newLab(t)
	ada, _ := l.accessToken(t, "ada", users.ScopeFull)
	for _, path := range []string{"/api/v1/../../users", "/api/v1/..%2F..%2Fusers", "//api/v1/status/../../../users", "/api/v1/%2e%2e/%2e%2e/users", "/users?x=/api/v1/", "/API/v1/status", "/users/api/v1/"} {
		got := l.client(t, "").do("GET", path, nil, bearer(ada))
		if got.status == http.StatusOK || strings.Contains(got.body, "Okafor") {
			t.Errorf("%s: status %d", path, got.status)
		}
	}
}

func TestRefusedTokens(t *testing.T) {
	l := newLab(t)
	ask := func(secret string) answer {
		t.Helper()
		return l.client(t, "").do("GET", "/api/v1/gpus", nil, bearer(secret))
	}
	none := l.client(t, "").get("/api/v1/gpus")
	none.want(t, http.StatusUnauthorized)
	if h := none.header.Get("WWW-Authenticate"); h != `Bearer realm="gpulab"` {
		t.Errorf("without a token: %q", h)
	}
	for what, end := range map[string]func(u users.User, token users.Token){
		"expired": func(_ users.User, token users.Token) {
			l.users.exec(t, "UPDATE api_tokens SET expires_at = 1 WHERE id = ?", token.ID)
		},
		"revoked": func(u users.User, token users.Token) {
			if _, err := l.users.RevokeToken(t.Context(), u.ID, token.ID); err != nil {
				t.Fatal(err)
			}
		},
		"suspended": func(u users.User, _ users.Token) {
			if err := l.users.Suspend(t.Context(), u.ID); err != nil {
				t.Fatal(err)
			}
		},
		"removed": func(u users.User, _ users.Token) {
			if err := l.users.Remove(t.Context(), u.ID); err != nil {
				t.Fatal(err)
			}
		},
	} {
		u, err := l.users.Create(t.Context(), users.NewUser{Handle: "t-" + what})
		if err != nil {
			t.Fatal(err)
		}
		secret, token := l.accessToken(t, u.Handle, users.ScopeFull)
		ask(secret).want(t, http.StatusOK)
		end(u, token)
		got := ask(secret)
		got.want(t, http.StatusUnauthorized, `"error"`, `"nextStep"`)
		if h := got.header.Get("WWW-Authenticate"); h != `Bearer realm="gpulab", error="invalid_token"` {
			t.Errorf("%s: %q", what, h)
		}
	}
	good, _ := l.accessToken(t, "ben", users.ScopeRead)
	for tries := 0; ; tries++ {
		got := ask("gpulab_guessed")
		if got.status == http.StatusTooManyRequests {
			if got.header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
			break
		}
		if tries > 100 {
			t.Fatal("wrong tokens are not limited")
		}
	}
	ask(good).want(t, http.StatusOK)
}

// TestNoTokenInLogs: neither the program's log nor the audit log holds a secret, whatever goes wrong with it.
func TestNoTokenInLogs(t *testing.T) {
	l := newLab(t)
	var log bytes.Buffer
	pages, err := webui.New(webui.Config{Users: l.users, Notebooks: panics{l.notebooks}, Fleet: l.fleet, Status: l.status, History: l.history,
		Quotas: l.quotas, LendGPU: l.lending.set, CheckGPU: func(context.Context) (string, error) { return "", nil },
		Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	l.server.Config.Handler = pages
	secret, _ := l.accessToken(t, "ada", users.ScopeFull)
	session := l.session(t, "ada")
	l.status.status.Components = nil // makes it fail
	for _, shown := range []string{secret, secret[:48], session, "gpulab_" + session} {
		for _, path := range []string{"/api/v1/status", "/api/v1/gpus", "/", "/nothing", "/launches/1", "/api/v1/nothing"} {
			l.client(t, "").do("GET", path, nil, bearer(shown))
			c := l.client(t, "")
			c.http.Jar.SetCookies(nil, []*http.Cookie{{Name: "__Host-gpulab", Value: shown}})
			c.get(path)
		}
	}
	c := l.client(t, "ada")
	made := c.post("/account", "/account/tokens", url.Values{"name": {"cluster"}, "scope": {"full"}, "days": {"30"}})
	made.want(t, http.StatusOK, "cluster")
	at := strings.Index(made.body, `value="gpulab_`)
	if at < 0 {
		t.Fatal("no token is shown")
	}
	shownOnce := made.body[at+7 : at+7+49]
	l.client(t, "").do("GET", "/api/v1/gpus", nil, bearer(shownOnce)).want(t, http.StatusOK)
	if strings.Contains(c.get("/account").body, shownOnce) {
		t.Error("the token is shown again")
	}
	text := log.String() + fmt.Sprint(l.users.audit(t))
	for _, hidden := range []string{secret, secret[7:40], session, shownOnce, shownOnce[7:40]} {
		if strings.Contains(text, hidden) {
			t.Errorf("a log holds a secret:\n%s", text)
		}
	}
	if !strings.Contains(log.String(), "panicked") || !strings.Contains(text, "token.create") {
		t.Fatalf("this test shows nothing:\n%s", text)
	}
}

// panics is notebooks in a lab that has a bug.
type panics struct{ webui.Notebooks }

func (panics) Get(context.Context, int64) (notebooks.Launch, error) { panic("a bug") }
