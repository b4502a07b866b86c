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

	"github.com/gpulab/gpulab/internal/cookies"
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

// TestTokensAreNothingOnPages walks all routes with a token of each scope: the answer is a stranger's, and beside a
// session the session's. Tokens are for the API, which is not part of the pages.
func TestTokensAreNothingOnPages(t *testing.T) {
	l := newLab(t)
	for _, scope := range users.TokenScopes() {
		secret, _ := l.accessToken(t, "ada", scope)
		for _, rt := range l.pages.Routes() {
			path := samplePath(rt[1])
			if path == "/login" || path == "/logout" || path == "/events" {
				path += "?view=nothing"
			}
			got := l.client(t, "").do(rt[0], path, url.Values{}, bearer(secret))
			stranger := l.client(t, "").do(rt[0], path, url.Values{}, nil)
			if got.status != stranger.status || got.header.Get("Location") != stranger.header.Get("Location") {
				t.Errorf("%s %s with a token for %s: %d %s, a stranger gets %d %s", rt[0], path, scope,
					got.status, got.header.Get("Location"), stranger.status, stranger.header.Get("Location"))
			}
		}
		l.client(t, "ben").do("GET", "/users", nil, bearer(secret)).want(t, http.StatusForbidden)
		c := l.client(t, "")
		c.http.Jar.SetCookies(nil, []*http.Cookie{{Name: cookies.Session, Value: secret}})
		c.get("/users").want(t, http.StatusSeeOther)
	}
}

// TestNoTokenInLogs: neither the program's log nor the audit log holds a secret, whatever goes wrong with it.
func TestNoTokenInLogs(t *testing.T) {
	l := newLab(t)
	var log bytes.Buffer
	pages, err := webui.New(webui.Config{Users: l.users, Audit: l.users.AuditLog(), Notebooks: panics{l.notebooks},
		Machines: l.machines, Environments: l.environments, Fleet: l.fleet, Status: l.status, History: l.history,
		Storage: l.storage,
		Quotas:  l.quotas, LendGPU: l.lending.set, CheckGPU: func(context.Context) (string, error) {
			return "", nil
		}, NotebooksAt: portByID,
		Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	l.server.Config.Handler = pages
	secret, _ := l.accessToken(t, "ada", users.ScopeFull)
	session := l.session(t, "ada")
	l.status.status.Components = nil // makes it fail
	for _, shown := range []string{secret, secret[:48], session, "gpulab_" + session} {
		for _, path := range []string{"/status", "/", "/nothing", "/launches/1", "/device?code=" + shown[:9]} {
			l.client(t, "").do("GET", path, nil, bearer(shown))
			c := l.client(t, "")
			c.http.Jar.SetCookies(nil, []*http.Cookie{{Name: cookies.Session, Value: shown}})
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
	if _, _, err := l.users.TokenUser(t.Context(), shownOnce, "", false); err != nil {
		t.Fatal(err)
	}
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
