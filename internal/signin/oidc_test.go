package signin_test

import (
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/signin/signintest"
	"github.com/gpulab/gpulab/internal/users"
)

const home = "https://lab.example"

// ada and eve are at the university.
func university(t testing.TB) *signintest.Provider {
	p := signintest.StartProvider(t,
		&signintest.Person{ID: "1", Username: "ada", Password: "ada's", Name: "Ada Lovelace", Email: "ada@example.org", Groups: []string{"gpu-admins", "staff"}},
		&signintest.Person{ID: "2", Username: "eve", Password: "eve's", Name: "Eve Stranger", Email: "eve@example.org", Unverified: true})
	p.Register(home + "/signin/uni/callback")
	return p
}

func uniConfig(t testing.TB, p *signintest.Provider) signin.Config {
	return signin.Config{Name: "uni", Type: "oidc", Title: "Example University", Issuer: p.Issuer, ClientID: signintest.ClientID,
		ClientSecretFile: signintest.SecretFile(t, signintest.ClientSecret), CAFile: p.Authority.File}
}

// logged collects what a service logs: no secret may be in it.
type logged struct{ strings.Builder }

func newService(t testing.TB, list ...signin.Config) (*signin.Service, *logged) {
	t.Helper()
	log := &logged{}
	s, err := signin.New(signin.ServiceConfig{Providers: list, URL: func() string { return home }, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if strings.Contains(log.String(), signintest.ClientSecret) {
			t.Errorf("the log holds a secret:\n%s", log)
		}
	})
	return s, log
}

func begin(t testing.TB, s *signin.Service, name string) string {
	t.Helper()
	address, err := s.Begin(t.Context(), name, signin.Flow{Browser: "mine", Remote: "192.0.2.1", Next: "/gpus"})
	if err != nil {
		t.Fatal(err)
	}
	return address
}

func TestOpenIDConnect(t *testing.T) {
	p := university(t)
	cfg := uniConfig(t, p)
	cfg.Rules = []signin.Rule{{Groups: []string{"gpu-admins"}, Role: users.RoleAdmin, Group: "vision"}}
	cfg.Domains = []string{"example.org"}
	s, _ := newService(t, cfg)
	address := begin(t, s, "uni")
	asked, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	q := asked.Query()
	if q.Get("code_challenge_method") != "S256" || q.Get("nonce") == "" || len(q.Get("state")) < 26 || q.Get("redirect_uri") != home+"/signin/uni/callback" || q.Get("response_type") != "code" {
		t.Errorf("asked with %v", q)
	}
	back := p.SignIn(t, address, "ada", "ada's")
	flow, o, err := s.Finish(t.Context(), "uni", "mine", back.Query())
	if err != nil {
		t.Fatal(err)
	}
	if flow.Next != "/gpus" || o.Subject != "1" || o.Realm != p.Issuer || o.Username != "ada" || o.Name != "Ada Lovelace" || o.Email != "ada@example.org" ||
		o.Role != users.RoleAdmin || len(o.Groups) != 1 || o.Refused != "" || !o.Create {
		t.Errorf("%+v", o)
	}
	// Once more is a replay.
	_, _, err = s.Finish(t.Context(), "uni", "mine", back.Query())
	if !errors.Is(err, signin.ErrExpired) {
		t.Errorf("replayed: %v", err)
	}
	back = p.SignIn(t, begin(t, s, "uni"), "eve", "eve's")
	if _, o, err = s.Finish(t.Context(), "uni", "mine", back.Query()); err != nil || !strings.Contains(o.Refused, "has not verified your e-mail address") || o.Email != "" {
		t.Errorf("an address that is not verified: %+v, %v", o, err)
	}
}

// What brings a browser back must be what was sent, from whom it was sent to.
// TestSeveralNames: somebody comes back to the name of the lab that they came by, if the provider knows it.
func TestSeveralNames(t *testing.T) {
	const tailnet, six = "https://gpulab.tail1234.ts.net", "https://[fd7a::1]"
	p := university(t)
	p.Register(home+"/signin/uni/callback", tailnet+"/signin/uni/callback", six+"/signin/uni/callback")
	cfg := uniConfig(t, p)
	cfg.Names = []string{"GPUlab.tail1234.ts.net", "lab.example", "fd7a::1"}
	s, _ := newService(t, cfg)
	if got := s.Homes("uni"); !slices.Equal(got, []string{home, tailnet, six}) {
		t.Errorf("sent back to %v", got)
	}
	for came, back := range map[string]string{"": home, home: home, tailnet: tailnet, six: six} {
		address, err := s.Begin(t.Context(), "uni", signin.Flow{Browser: "mine", Home: came})
		if err != nil {
			t.Fatal(err)
		}
		at := p.SignIn(t, address, "ada", "ada's")
		if got := "https://" + at.Host + at.Path; got != back+"/signin/uni/callback" {
			t.Errorf("who came by %q is sent to %s", came, got)
		}
		if _, o, err := s.Finish(t.Context(), "uni", "mine", at.Query()); err != nil || o.Subject != "1" {
			t.Errorf("who came by %q: %+v, %v", came, o, err)
		}
	}
	for _, came := range []string{"https://evil.example", "https://lab.example.evil.example", "http://lab.example", tailnet + "/", tailnet + ":8443"} {
		if address, err := s.Begin(t.Context(), "uni", signin.Flow{Browser: "mine", Home: came}); err == nil {
			t.Errorf("who came by %q is sent to %s", came, address)
		}
	}
	// The port is the lab's by every name.
	s, err := signin.New(signin.ServiceConfig{Providers: []signin.Config{cfg}, URL: func() string { return home + ":8444" }})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Homes("uni"); !slices.Equal(got, []string{home + ":8444", tailnet + ":8444", six + ":8444"}) {
		t.Errorf("with a port: %v", got)
	}
}

func TestStateIsBound(t *testing.T) {
	p, other := university(t), signintest.StartProvider(t, &signintest.Person{ID: "1", Username: "mallory", Password: "x", Name: "M"})
	other.Register(home + "/signin/evil/callback")
	evil := uniConfig(t, other)
	evil.Name = "evil"
	s, log := newService(t, uniConfig(t, p), evil)
	for name, tc := range map[string]struct {
		provider, browser string
		edit              func(url.Values)
		want              error
	}{
		"another browser":            {"uni", "another", nil, signin.ErrExpired},
		"no browser":                 {"uni", "", nil, signin.ErrExpired},
		"no state":                   {"uni", "mine", func(q url.Values) { q.Del("state") }, signin.ErrExpired},
		"guessed state":              {"uni", "mine", func(q url.Values) { q.Set("state", "guessed") }, signin.ErrExpired},
		"two states":                 {"uni", "mine", func(q url.Values) { q.Add("state", "x") }, signin.ErrExpired},
		"mix-up, other address":      {"evil", "mine", nil, signin.ErrInvalid},
		"mix-up, other issuer":       {"uni", "mine", func(q url.Values) { q.Set("iss", other.Issuer) }, signin.ErrInvalid},
		"two issuers":                {"uni", "mine", func(q url.Values) { q["iss"] = []string{p.Issuer, other.Issuer} }, signin.ErrInvalid},
		"another code":               {"uni", "mine", func(q url.Values) { q.Set("code", "guessed") }, signin.ErrInvalid},
		"two codes":                  {"uni", "mine", func(q url.Values) { q.Add("code", "x") }, signin.ErrInvalid},
		"no code":                    {"uni", "mine", func(q url.Values) { q.Del("code") }, signin.ErrInvalid},
		"the provider refused":       {"uni", "mine", func(q url.Values) { q.Set("error", "access_denied") }, signin.ErrCancelled},
		"the provider has a problem": {"uni", "mine", func(q url.Values) { q.Set("error", "temporarily_unavailable") }, signin.ErrUnavailable},
		"no such provider":           {"none", "mine", nil, signin.ErrNoProvider},
	} {
		t.Run(name, func(t *testing.T) {
			q := p.SignIn(t, begin(t, s, "uni"), "ada", "ada's").Query()
			code := q.Get("code")
			if tc.edit != nil {
				tc.edit(q)
			}
			_, o, err := s.Finish(t.Context(), tc.provider, tc.browser, q)
			if !errors.Is(err, tc.want) || o.Subject != "" {
				t.Errorf("%+v, %v; want %v", o, err, tc.want)
			}
			if strings.Contains(log.String(), code) {
				t.Error("the log holds a code")
			}
		})
	}
	// A code that was given for another sign-in: PKCE ties it to that one.
	stolen := p.SignIn(t, begin(t, s, "uni"), "ada", "ada's").Query().Get("code")
	q := p.SignIn(t, begin(t, s, "uni"), "eve", "eve's").Query()
	q.Set("code", stolen)
	if _, o, err := s.Finish(t.Context(), "uni", "mine", q); !errors.Is(err, signin.ErrInvalid) {
		t.Errorf("a stolen code signs in %+v, %v", o, err)
	}
	q = p.SignIn(t, begin(t, s, "uni"), "ada", "ada's").Query()
	if _, _, err := s.Finish(t.Context(), "uni", "mine", q); err != nil {
		t.Errorf("the right one: %v", err)
	}
}

func TestProviderIsAway(t *testing.T) {
	p := university(t)
	cfg := uniConfig(t, p)
	s, _ := newService(t, cfg)
	address := begin(t, s, "uni")
	q := p.SignIn(t, address, "ada", "ada's").Query()
	p.Stop()
	if _, _, err := s.Finish(t.Context(), "uni", "mine", q); !errors.Is(err, signin.ErrUnavailable) {
		t.Errorf("gone meanwhile: %v", err)
	}
	fresh, _ := newService(t, cfg)
	for range 2 {
		_, err := fresh.Begin(t.Context(), "uni", signin.Flow{Browser: "mine"})
		var sentence *signin.Error
		if !errors.Is(err, signin.ErrUnavailable) || !errors.As(err, &sentence) || !strings.HasPrefix(sentence.Text, "Example University does not answer this lab at the moment.") {
			t.Errorf("gone before: %v", err)
		}
	}
	// Whoever has no certificate of the authority is not the provider.
	other := university(t)
	cfg = uniConfig(t, other)
	cfg.CAFile = p.Authority.File
	s, _ = newService(t, cfg)
	if _, err := s.Begin(t.Context(), "uni", signin.Flow{Browser: "mine"}); !errors.Is(err, signin.ErrUnavailable) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown authority: %v", err)
	}
	cfg = uniConfig(t, other)
	cfg.ClientSecretFile = "/nonexistent"
	s, _ = newService(t, cfg)
	if _, err := s.Begin(t.Context(), "uni", signin.Flow{Browser: "mine"}); !errors.Is(err, signin.ErrUnavailable) {
		t.Errorf("no secret: %v", err)
	}
}
