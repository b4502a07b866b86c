package signin_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/oauth2"

	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/signin/signintest"
	"github.com/gpulab/gpulab/internal/users"
)

// gitHub answers as GitHub Enterprise does, to a client that proves itself and its verifier.
type gitHub struct {
	server    *httptest.Server
	authority *signintest.Authority
	challenge string // of the last sign-in
	user      string
	emails    string
	asked     []string
}

func newGitHub(t testing.TB) *gitHub {
	t.Helper()
	g := &gitHub{authority: signintest.NewAuthority(t), user: `{"id": 9007199254740993, "login": "ada", "name": "Ada Lovelace", "email": "public@home.example"}`,
		emails: `[{"email":"ada@home.example","primary":true,"verified":true},{"email":"ada@example.org","primary":false,"verified":true}]`}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /login/oauth/access_token", func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		if r.PostForm.Get("client_id") != signintest.ClientID || r.PostForm.Get("client_secret") != signintest.ClientSecret {
			// As GitHub does: with 200.
			_, _ = fmt.Fprint(w, "error=incorrect_client_credentials&error_description=no")
			return
		}
		if r.PostForm.Get("code") != "c" || oauth2.S256ChallengeFromVerifier(r.PostForm.Get("code_verifier")) != g.challenge {
			_, _ = fmt.Fprint(w, "error=bad_verification_code&error_description=no")
			return
		}
		w.Header().Set("Content-Type", "application/x-www-form-urlencoded")
		_, _ = fmt.Fprint(w, "access_token=token-of-ada&token_type=bearer&scope=read%3Auser")
	})
	for path, answer := range map[string]func() string{
		"/api/v3/user":        func() string { return g.user },
		"/api/v3/user/emails": func() string { return g.emails },
		"/api/v3/user/orgs":   func() string { return `[{"login":"lab"},{"login":"evil/lab"}]` },
		"/api/v3/user/teams": func() string {
			return `[{"slug":"gpu","organization":{"login":"lab"}},{"slug":"lab/gpu","organization":{"login":"x"}}]`
		},
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			g.asked = append(g.asked, r.URL.Path)
			if r.Header.Get("Authorization") != "Bearer token-of-ada" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(answer()))
		})
	}
	g.server = httptest.NewUnstartedServer(mux)
	g.server.TLS = g.authority.Server(t)
	g.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	g.server.StartTLS()
	t.Cleanup(g.server.Close)
	return g
}

func (g *gitHub) config(t testing.TB) signin.Config {
	return signin.Config{Name: "github", Type: "github", URL: g.server.URL, ClientID: signintest.ClientID,
		ClientSecretFile: signintest.SecretFile(t, signintest.ClientSecret), CAFile: g.authority.File,
		Rules: []signin.Rule{{Groups: []string{"lab/gpu"}, Role: users.RoleMember}}}
}

func (g *gitHub) visit(t testing.TB, s *signin.Service, code string) (users.Outside, error) {
	t.Helper()
	address, err := url.Parse(begin(t, s, "github"))
	if err != nil {
		t.Fatal(err)
	}
	q := address.Query()
	if address.Path != "/login/oauth/authorize" || !strings.Contains(q.Get("scope"), "read:org") || q.Get("redirect_uri") != home+"/signin/github/callback" {
		t.Errorf("asked with %s", address)
	}
	g.challenge = q.Get("code_challenge")
	_, o, err := s.Finish(t.Context(), "github", "mine", url.Values{"state": {q.Get("state")}, "code": {code}})
	return o, err
}

func TestGitHub(t *testing.T) {
	g := newGitHub(t)
	cfg := g.config(t)
	cfg.Domains = []string{"example.org"}
	s, _ := newService(t, cfg)
	o, err := g.visit(t, s, "c")
	if err != nil || o.Subject != "9007199254740993" || o.Username != "ada" || o.Name != "Ada Lovelace" || o.Email != "ada@example.org" || o.Role != users.RoleMember || o.Refused != "" {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := g.visit(t, s, "guessed"); !errors.Is(err, signin.ErrInvalid) && !errors.Is(err, signin.ErrUnavailable) {
		t.Errorf("a guessed code: %v", err)
	}
	g.emails = `[{"email":"ada@example.org","primary":true,"verified":false}]`
	if o, err = g.visit(t, s, "c"); err != nil || !strings.Contains(o.Refused, "has not verified") {
		t.Errorf("an address that is not verified: %+v, %v", o, err)
	}
	for what, user := range map[string]string{"no number": `{"login":"ada"}`, "a list": `[1]`, "nothing": ``, "two": `{"id":1}{"id":2}`, "an object for an ID": `{"id":{"x":1}}`} {
		g.user = user
		if o, err := g.visit(t, s, "c"); !errors.Is(err, signin.ErrInvalid) || o.Subject != "" {
			t.Errorf("%s: %+v, %v", what, o, err)
		}
	}
}

func TestPlainOAuth(t *testing.T) {
	g := newGitHub(t)
	user, err := json.Marshal(map[string]any{"sub": "u-1", "nick": "ada", "who": map[string]any{"mail": "ada@example.org", "sure": "true", "teams": []string{"gpu"}}})
	if err != nil {
		t.Fatal(err)
	}
	g.user = string(user)
	cfg := signin.Config{Name: "github", Type: "oauth2", Title: "Own", AuthorizeURL: g.server.URL + "/login/oauth/authorize", TokenURL: g.server.URL + "/login/oauth/access_token",
		UserinfoURL: g.server.URL + "/api/v3/user", ClientID: signintest.ClientID, ClientSecretFile: signintest.SecretFile(t, signintest.ClientSecret), CAFile: g.authority.File,
		Scopes: []string{"read:org"}, Claims: signin.ClaimNames{Username: "nick", Email: "who.mail", EmailVerified: "who.sure", Groups: "who.teams"},
		Domains: []string{"example.org"}, Rules: []signin.Rule{{Groups: []string{"gpu"}, Role: users.RoleLead}}}
	s, _ := newService(t, cfg)
	if o, err := g.visit(t, s, "c"); err != nil || o.Subject != "u-1" || o.Username != "ada" || o.Email != "ada@example.org" || o.Role != users.RoleLead {
		t.Errorf("%+v, %v", o, err)
	}
}
