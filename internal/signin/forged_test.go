package signin_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/signin/signintest"
)

// forger is a provider that answers with whatever ID token a test makes.
type forger struct {
	server    *httptest.Server
	authority *signintest.Authority
	key       *ecdsa.PrivateKey
	issuer    string
	edit      func(about map[string]any) // of what it says about itself
	token     func(claims map[string]any) string
	userinfo  string
	nonce     string
	refuse    bool // every code, and the client first
	asked     atomic.Int32
}

func newForger(t testing.TB) *forger {
	t.Helper()
	f := &forger{authority: signintest.NewAuthority(t), key: newKey(t)}
	f.token = func(claims map[string]any) string { return sign(t, f.key, "k", claims) }
	mux := http.NewServeMux()
	say := func(w http.ResponseWriter, value any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(value)
	}
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		about := map[string]any{"issuer": f.issuer, "authorization_endpoint": f.issuer + "/authorize", "token_endpoint": f.issuer + "/token",
			"jwks_uri": f.issuer + "/keys", "userinfo_endpoint": f.issuer + "/userinfo", "id_token_signing_alg_values_supported": []string{"ES256"}}
		if f.edit != nil {
			f.edit(about)
		}
		say(w, about)
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		say(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: f.key.Public(), KeyID: "k", Use: "sig", Algorithm: "ES256"}}})
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		f.asked.Add(1)
		if f.refuse {
			_, secret, _ := r.BasicAuth()
			code := "invalid_grant"
			if secret, _ = url.QueryUnescape(secret); secret != signintest.ClientSecret {
				code = "invalid_client"
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			say(w, map[string]string{"error": code})
			return
		}
		now := time.Now()
		claims := map[string]any{"iss": f.issuer, "sub": "1", "aud": signintest.ClientID, "exp": now.Add(5 * time.Minute).Unix(), "iat": now.Unix(),
			"nonce": f.nonce, "name": "Ada", "preferred_username": "ada", "email": "ada@example.org", "email_verified": true}
		say(w, map[string]any{"access_token": "a", "token_type": "Bearer", "id_token": f.token(claims)})
	})
	mux.HandleFunc("/userinfo", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(f.userinfo))
	})
	f.server = httptest.NewUnstartedServer(mux)
	f.server.TLS = f.authority.Server(t)
	f.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	f.server.StartTLS()
	t.Cleanup(f.server.Close)
	f.issuer = f.server.URL
	return f
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, key any, id string, claims map[string]any) string {
	t.Helper()
	alg := jose.ES256
	if _, shared := key.([]byte); shared {
		alg = jose.HS256
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (f *forger) config(t testing.TB) signin.Config {
	return signin.Config{Name: "uni", Type: "oidc", Title: "Example University", Issuer: f.issuer, ClientID: signintest.ClientID,
		ClientSecretFile: signintest.SecretFile(t, signintest.ClientSecret), CAFile: f.authority.File}
}

// TestForgedTokens: nobody comes in with an ID token that is not exactly right.
func TestForgedTokens(t *testing.T) {
	f := newForger(t)
	set := func(name string, value any) func(map[string]any) string {
		return func(claims map[string]any) string {
			claims[name] = value
			if value == nil {
				delete(claims, name)
			}
			return sign(t, f.key, "k", claims)
		}
	}
	encode := func(value any) string {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	for name, token := range map[string]func(map[string]any) string{
		"alg none": func(claims map[string]any) string {
			return encode(map[string]string{"alg": "none", "kid": "k"}) + "." + encode(claims) + "."
		},
		"alg None, with a signature": func(claims map[string]any) string {
			return encode(map[string]string{"alg": "None"}) + "." + encode(claims) + ".AAAA"
		},
		"signed with the client's secret": func(claims map[string]any) string {
			return sign(t, []byte(signintest.ClientSecret+strings.Repeat("x", 32)), "k", claims)
		},
		"signed with the public key as a secret": func(claims map[string]any) string {
			return sign(t, elliptic.MarshalCompressed(elliptic.P256(), f.key.X, f.key.Y), "k", claims)
		},
		"another key":            func(claims map[string]any) string { return sign(t, newKey(t), "k", claims) },
		"another key of its own": func(claims map[string]any) string { return sign(t, newKey(t), "other", claims) },
		"changed after signing": func(claims map[string]any) string {
			parts := strings.Split(sign(t, f.key, "k", claims), ".")
			claims["sub"] = "2"
			return parts[0] + "." + encode(claims) + "." + parts[2]
		},
		"no token":              func(map[string]any) string { return "" },
		"no JWT":                func(map[string]any) string { return "a.b.c" },
		"expired":               set("exp", time.Now().Add(-time.Minute).Unix()),
		"no end":                set("exp", nil),
		"issued long ago":       set("iat", time.Now().Add(-time.Hour).Unix()),
		"issued in the future":  set("iat", time.Now().Add(time.Hour).Unix()),
		"another audience":      set("aud", "another-client"),
		"no audience":           set("aud", nil),
		"two audiences, no azp": set("aud", []string{signintest.ClientID, "another-client"}),
		"for another client": func(claims map[string]any) string {
			claims["aud"], claims["azp"] = []string{signintest.ClientID, "another-client"}, "another-client"
			return sign(t, f.key, "k", claims)
		},
		"another azp":          set("azp", "another-client"),
		"another issuer":       set("iss", "https://accounts.google.com"),
		"no issuer":            set("iss", nil),
		"another nonce":        set("nonce", "of another sign-in"),
		"no nonce":             set("nonce", nil),
		"nobody":               set("sub", ""),
		"another access token": set("at_hash", "AAAAAAAAAAAAAAAAAAAAAA"),
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newService(t, f.config(t))
			f.token = token
			if _, o, err := f.visit(t, s); !errors.Is(err, signin.ErrInvalid) || o != "" {
				t.Errorf("signed %q in, %v", o, err)
			}
		})
	}
	f.token = func(claims map[string]any) string { return sign(t, f.key, "k", claims) }
	s, _ := newService(t, f.config(t))
	if _, o, err := f.visit(t, s); err != nil || o != "1" {
		t.Errorf("the right one: %q, %v", o, err)
	}
	// What the provider tells besides must be about the same person.
	f.token = func(claims map[string]any) string {
		delete(claims, "email")
		return sign(t, f.key, "k", claims)
	}
	f.userinfo = `{"sub":"2","email":"eve@example.org","email_verified":true}`
	if _, o, err := f.visit(t, s); !errors.Is(err, signin.ErrInvalid) {
		t.Errorf("somebody else's address: %q, %v", o, err)
	}
	// Keys that the provider has changed are fetched anew.
	f.token, f.key = func(claims map[string]any) string { return sign(t, f.key, "k2", claims) }, newKey(t)
	if _, _, err := f.visit(t, s); !errors.Is(err, signin.ErrInvalid) {
		t.Errorf("a key that is not the provider's: %v", err)
	}
}

// visit is a whole sign-in, in which the forger knows the nonce.
func (f *forger) visit(t testing.TB, s *signin.Service) (signin.Flow, string, error) {
	t.Helper()
	address, err := url.Parse(begin(t, s, "uni"))
	if err != nil {
		t.Fatal(err)
	}
	f.nonce = address.Query().Get("nonce")
	flow, o, err := s.Finish(t.Context(), "uni", "mine", url.Values{"state": {address.Query().Get("state")}, "code": {"c"}})
	return flow, o.Subject, err
}

// TestMixUpTellsTheOtherNothing: a code that was given at one provider never goes to another, which could use it in
// that person's name.
func TestMixUpTellsTheOtherNothing(t *testing.T) {
	p, evil := university(t), newForger(t)
	cfg := evil.config(t)
	cfg.Name = "evil"
	s, _ := newService(t, uniConfig(t, p), cfg)
	q := p.SignIn(t, begin(t, s, "uni"), "ada", "ada's").Query()
	if _, o, err := s.Finish(t.Context(), "evil", "mine", q); !errors.Is(err, signin.ErrInvalid) {
		t.Errorf("%+v, %v", o, err)
	}
	if n := evil.asked.Load(); n != 0 {
		t.Errorf("the other was told %d times", n)
	}
}

// TestDiscoveryIsChecked: a provider that calls itself another's name, or leads to where nothing is encrypted, is not
// used.
func TestDiscoveryIsChecked(t *testing.T) {
	for name, edit := range map[string]func(map[string]any){
		"another issuer":     func(about map[string]any) { about["issuer"] = "https://accounts.google.com" },
		"plain token":        func(about map[string]any) { about["token_endpoint"] = "http://127.0.0.1:1/token" },
		"plain keys":         func(about map[string]any) { about["jwks_uri"] = "http://127.0.0.1:1/keys" },
		"plain sign-in page": func(about map[string]any) { about["authorization_endpoint"] = "http://127.0.0.1:1/authorize" },
		"script":             func(about map[string]any) { about["authorization_endpoint"] = "javascript:alert(1)" },
		"endless":            func(about map[string]any) { about["x"] = strings.Repeat("x", 2<<20) },
	} {
		f := newForger(t)
		f.edit = edit
		s, _ := newService(t, f.config(t))
		if address, err := s.Begin(t.Context(), "uni", signin.Flow{Browser: "mine"}); !errors.Is(err, signin.ErrUnavailable) {
			t.Errorf("%s: %q, %v", name, address, err)
		}
	}
}
