package oidc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"golang.org/x/oauth2"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

const (
	labHost     = "lab.example.org"
	clusterHost = "gpulab.gpulab-system.svc"
	callback    = "https://" + labHost + ":8443/hub/oauth_callback"
	cookieName  = cookies.Session
)

// lab is a provider behind TLS with real people behind it.
type lab struct {
	t      *testing.T
	people *users.Service
	ada    users.User
	token  string // ada's session
	http   *http.Client
	p      *provider

	mu sync.Mutex
	at time.Time
}

func (l *lab) now() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at
}

func (l *lab) wait(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = l.at.Add(d)
}

func config(t *testing.T, people *users.Service) Config {
	return Config{
		ClientID: "hub", ClientSecret: "s3cret/with+signs&more",
		KeyFile: filepath.Join(t.TempDir(), "oidc", "key.pem"),
		Session: func(r *http.Request) (users.User, bool) {
			cookie, err := r.Cookie(cookieName)
			if err != nil {
				return users.User{}, false
			}
			session, err := people.SessionUser(r.Context(), cookie.Value)
			return session.User, err == nil
		},
		User:     people.ByID,
		LoginURL: "/login",
		AllowedHost: func(host string) bool {
			return slices.Contains([]string{labHost, "192.0.2.7", "2001:db8::7", clusterHost}, host)
		},
		Owner: origins(t, people).OwnerAt,
	}
}

// origins are those of notebooks: the first account's are at 8443 and n8443.lab.example.org, another's at 8444.
func origins(t *testing.T, people *users.Service) *notebooks.Origins {
	t.Helper()
	st, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	o, err := notebooks.NewOrigins(t.Context(), st.DB(), []int{8443, 8444}, func(int) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	o.UseLabels(notebooks.NewLabels([]string{labHost}, 443, []byte("key"), people.SessionByID))
	for _, handle := range []string{"first", "second"} {
		u, err := users.New(st.DB()).Create(t.Context(), users.NewUser{Handle: handle})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.Port(t.Context(), u.ID); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func newLab(t *testing.T) *lab {
	t.Helper()
	st, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	l := &lab{t: t, people: users.New(st.DB()), at: time.Now()}
	if l.ada, err = l.people.Create(t.Context(), users.NewUser{Handle: "ada", Name: "Ada Lovelace"}); err != nil {
		t.Fatal(err)
	}
	l.token = l.session()
	if l.p, err = newProvider(config(t, l.people), l.now); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewTLSServer(l.p)
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	l.http = &http.Client{
		// Every name leads to the test server, as the lab's names lead to the lab.
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
			},
			TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "example.com"},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return l
}

func (l *lab) session() string {
	l.t.Helper()
	token, err := l.people.StartSession(l.t.Context(), l.ada.ID, users.SessionMeta{})
	if err != nil {
		l.t.Fatal(err)
	}
	return token
}

// hub is the client as the hub is configured: the browser's address for the one endpoint, the in-cluster
// name for the other.
func hub() *oauth2.Config {
	return &oauth2.Config{
		ClientID: "hub", ClientSecret: "s3cret/with+signs&more", RedirectURL: callback, Scopes: []string{"openid", "profile"},
		Endpoint: oauth2.Endpoint{
			AuthURL:   "https://" + labHost + "/oidc/authorize",
			TokenURL:  "https://" + clusterHost + "/oidc/token",
			AuthStyle: oauth2.AuthStyleInHeader,
		},
	}
}

// answer is a response, read to its end.
type answer struct {
	code   int
	status string
	header http.Header
	body   []byte
	from   *url.URL
}

func (a answer) location() (*url.URL, error) {
	to := a.header.Get("Location")
	if to == "" {
		return nil, http.ErrNoLocation
	}
	return a.from.Parse(to)
}

func (l *lab) get(address string, signedIn bool) answer {
	l.t.Helper()
	req, err := http.NewRequestWithContext(l.t.Context(), http.MethodGet, address, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	if signedIn {
		req.AddCookie(&http.Cookie{Name: cookieName, Value: l.token})
	}
	return l.do(req)
}

func (l *lab) do(req *http.Request) answer {
	l.t.Helper()
	res, err := l.http.Do(req)
	if err != nil {
		l.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return answer{code: res.StatusCode, status: res.Status, header: res.Header, body: body, from: req.URL}
}

// code goes through the browser's part and returns the code.
func (l *lab) code(verifier string) string {
	l.t.Helper()
	res := l.get(hub().AuthCodeURL("st&te", oauth2.S256ChallengeOption(verifier)), true)
	to, err := res.location()
	if err != nil || res.code != http.StatusFound {
		l.t.Fatalf("authorize: %s, %v", res.status, err)
	}
	if got := to.Scheme + "://" + to.Host + to.Path; got != callback || to.Query().Get("state") != "st&te" {
		l.t.Fatalf("sent to %s", to)
	}
	code := to.Query().Get("code")
	if code == "" {
		l.t.Fatalf("no code: %s", to)
	}
	return code
}

func (l *lab) exchange(cfg *oauth2.Config, code, verifier string) (*oauth2.Token, error) {
	ctx := context.WithValue(l.t.Context(), oauth2.HTTPClient, l.http)
	return cfg.Exchange(ctx, code, oauth2.VerifierOption(verifier))
}

func (l *lab) userinfo(host, accessToken string) (int, map[string]any) {
	l.t.Helper()
	req, err := http.NewRequestWithContext(l.t.Context(), http.MethodGet, "https://"+host+"/oidc/userinfo", nil)
	if err != nil {
		l.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+accessToken)
	res := l.do(req)
	var claims map[string]any
	if err := json.Unmarshal(res.body, &claims); err != nil {
		l.t.Fatal(err)
	}
	return res.code, claims
}

func oauthError(err error) string {
	var e *oauth2.RetrieveError
	if errors.As(err, &e) {
		return e.ErrorCode
	}
	return fmt.Sprint(err)
}

func TestSignIn(t *testing.T) {
	l := newLab(t)
	verifier := oauth2.GenerateVerifier()
	token, err := l.exchange(hub(), l.code(verifier), verifier)
	if err != nil {
		t.Fatal(err)
	}
	if token.RefreshToken != "" || token.TokenType != "Bearer" || time.Until(token.Expiry) > tokenLife {
		t.Errorf("token %+v", token)
	}
	// The token is good under any of the lab's names.
	for _, host := range []string{clusterHost, labHost, "192.0.2.7:443", "[2001:db8::7]"} {
		status, claims := l.userinfo(host, token.AccessToken)
		want := map[string]any{"sub": strconv.FormatInt(l.ada.ID, 10), "preferred_username": "ada", "name": "Ada Lovelace", "uid": 20000.0}
		if status != http.StatusOK || fmt.Sprint(claims) != fmt.Sprint(want) {
			t.Errorf("%s: %d %v, want %v", host, status, claims, want)
		}
	}
	checkIDToken(t, l, token.Extra("id_token").(string))
}

func checkIDToken(t *testing.T, l *lab, raw string) {
	t.Helper()
	var keys jose.JSONWebKeySet
	if err := json.Unmarshal(l.get("https://"+labHost+"/oidc/keys", false).body, &keys); err != nil {
		t.Fatal(err)
	}
	signed, err := jose.ParseSigned(raw, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		t.Fatal(err)
	}
	matching := keys.Key(signed.Signatures[0].Header.KeyID)
	if len(matching) != 1 || !matching[0].IsPublic() {
		t.Fatalf("keys %+v", keys)
	}
	payload, err := signed.Verify(matching[0])
	if err != nil {
		t.Fatal(err)
	}
	var claims struct {
		Issuer   string   `json:"iss"`
		Audience []string `json:"aud"`
		Subject  string   `json:"sub"`
		Handle   string   `json:"preferred_username"`
		UID      int      `json:"uid"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	if claims.Issuer != "https://"+clusterHost+"/oidc" || !slices.Equal(claims.Audience, []string{"hub"}) || claims.Handle != "ada" || claims.UID != 20000 {
		t.Errorf("ID token %s", payload)
	}
}

func TestSecretInTheForm(t *testing.T) {
	l := newLab(t)
	verifier := oauth2.GenerateVerifier()
	cfg := hub()
	cfg.Endpoint.AuthStyle = oauth2.AuthStyleInParams
	if _, err := l.exchange(cfg, l.code(verifier), verifier); err != nil {
		t.Error(err)
	}
}

// The form of the sign-in page may end here, and leads to no other port by a redirect.
func TestAfterTheSignInForm(t *testing.T) {
	l := newLab(t)
	ask := func(headers map[string]string) answer {
		address := hub().AuthCodeURL("s", oauth2.S256ChallengeOption(oauth2.GenerateVerifier()))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.AddCookie(&http.Cookie{Name: cookieName, Value: l.token})
		for name, value := range headers {
			req.Header.Set(name, value)
		}
		return l.do(req)
	}
	for _, headers := range []map[string]string{
		{"Sec-Fetch-Site": "same-origin", "Accept": "text/html"},
		{"Accept": "text/html,application/xhtml+xml"},
	} {
		got := ask(headers)
		if to := got.header.Get("Refresh"); got.code != http.StatusOK || !strings.HasPrefix(to, "0; url="+callback+"?code=") || got.header.Get("Location") != "" {
			t.Errorf("%v: %d, on to %q", headers, got.code, to)
		}
	}
	for _, headers := range []map[string]string{nil, {"Sec-Fetch-Site": "same-site", "Accept": "text/html"}} {
		if got := ask(headers); got.code != http.StatusFound || got.header.Get("Refresh") != "" {
			t.Errorf("%v: %d, on to %q", headers, got.code, got.header.Get("Refresh"))
		}
	}
}

func TestNotSignedIn(t *testing.T) {
	l := newLab(t)
	address := hub().AuthCodeURL("x", oauth2.S256ChallengeOption("v"))
	res := l.get(address, false)
	to, err := res.location()
	if err != nil || res.code != http.StatusFound || to.Path != "/login" || to.Host != labHost {
		t.Fatalf("%s to %v, %v", res.status, to, err)
	}
	if back := "https://" + labHost + to.Query().Get("next"); back != address {
		t.Errorf("the way back is %s, want %s", back, address)
	}
	res = l.get(address+"&prompt=none", false)
	if to, err := res.location(); err != nil || !strings.HasPrefix(to.String(), callback+"?") || to.Query().Get("error") != "login_required" {
		t.Errorf("prompt=none: %v, %v", to, err)
	}
	res = l.get(strings.Replace(address, "/oidc/authorize", "/oidc/authorize/callback", 1)+"&id=x", true)
	if res.code != http.StatusNotFound {
		t.Errorf("the library's callback answers %s", res.status)
	}
}

// A code goes to the notebooks of the person who is signed in, and to no other person's, whose pages could read it.
func TestCodesGoToTheirPersonAlone(t *testing.T) {
	l := newLab(t)
	for _, host := range []string{labHost + ":8444", "n8444." + labHost} {
		theirs := hub()
		theirs.RedirectURL = "https://" + host + "/hub/oauth_callback"
		address := theirs.AuthCodeURL("state", oauth2.S256ChallengeOption(oauth2.GenerateVerifier()))
		res := l.get(address, true)
		if to, err := res.location(); res.code != http.StatusForbidden || err == nil {
			t.Errorf("a code for another person's notebooks at %s: %s, to %v", host, res.status, to)
		}
		if res = l.get(address, false); res.code != http.StatusFound {
			t.Errorf("nobody is signed in, and no way to sign in: %s", res.status)
		}
	}
}

// Whatever the address says, nobody is sent to a place that is not the hub's callback on the lab's names.
func TestNoOpenRedirect(t *testing.T) {
	l := newLab(t)
	for uri, ok := range map[string]bool{
		callback: true,
		"https://192.0.2.7:8443/hub/oauth_callback":              true,
		"https://[2001:db8::7]:8443/hub/oauth_callback":          true,
		"https://n8443.lab.example.org/hub/oauth_callback":       true,
		"https://n8443.lab.example.org:443/hub/oauth_callback":   false,
		"https://n8443.lab.example.org:8443/hub/oauth_callback":  false,
		"https://N8443.lab.example.org/hub/oauth_callback":       false,
		"https://n08443.lab.example.org/hub/oauth_callback":      false,
		"https://n8445.lab.example.org/hub/oauth_callback":       false,
		"https://n8443.n8443.lab.example.org/hub/oauth_callback": false,
		"https://n8443.192.0.2.7/hub/oauth_callback":             false,
		"https://*.lab.example.org/hub/oauth_callback":           false,
		"": false,
		"https://evil.example/hub/oauth_callback":                           false,
		"https://evil.example:8443/hub/oauth_callback":                      false,
		"https://lab.example.org/hub/oauth_callback":                        false,
		"https://lab.example.org:443/hub/oauth_callback":                    false,
		"https://lab.example.org:08443/hub/oauth_callback":                  false,
		"https://lab.example.org:8443/hub/oauth_callback/":                  false,
		"https://lab.example.org:8443/hub/oauth_callback?x=y":               false,
		"https://lab.example.org:8443/hub/oauth_callback?":                  false,
		"https://lab.example.org:8443/hub/oauth_callback#f":                 false,
		"https://lab.example.org:8443/hub/oauth_callback#":                  false,
		"https://lab.example.org:8443/hub/../user/eve/":                     false,
		"https://lab.example.org:8443/user/eve/hub/oauth_callback":          false,
		"https://lab.example.org:8443/hub%2Foauth_callback":                 false,
		"https%3A%2F%2Flab.example.org%3A8443%2Fhub%2Foauth_callback":       false,
		"https://lab.example.org%3A8443/hub/oauth_callback":                 false,
		"http://lab.example.org:8443/hub/oauth_callback":                    false,
		"HTTPS://lab.example.org:8443/hub/oauth_callback":                   false,
		"https://LAB.example.org:8443/hub/oauth_callback":                   false,
		"https://lab.example.org.:8443/hub/oauth_callback":                  false,
		"https://lab.example.org:8443@evil.example/hub/oauth_callback":      false,
		"https://evil.example@lab.example.org:8443/hub/oauth_callback":      false,
		"https://lab.example.org:8443\\@evil.example/hub/oauth_callback":    false,
		"https://evil.example\\.lab.example.org:8443/hub/oauth_callback":    false,
		"https://evil.example#.lab.example.org:8443/hub/oauth_callback":     false,
		"https://lab.example.org.evil.example:8443/hub/oauth_callback":      false,
		"//lab.example.org:8443/hub/oauth_callback":                         false,
		"/hub/oauth_callback":                                               false,
		"javascript:alert(1)//lab.example.org:8443/hub/oauth_callback":      false,
		" https://lab.example.org:8443/hub/oauth_callback":                  false,
		"https://lab.example.org:8443/hub/oauth_callback\r\nSet-Cookie:a=b": false,
		callback + "\x00": false,
	} {
		q := url.Values{"client_id": {"hub"}, "response_type": {"code"}, "scope": {"openid"}, "redirect_uri": {uri}, "state": {"s"},
			"code_challenge": {strings.Repeat("A", 43)}, "code_challenge_method": {"S256"}}
		for _, extra := range []url.Values{{}, {"response_type": {"token"}}, {"prompt": {"none login"}}, {"request": {"x"}}, {"response_mode": {"form_post"}}} {
			for name, value := range extra {
				q[name] = value
			}
			for _, signedIn := range []bool{true, false} {
				res := l.get("https://"+labHost+"/oidc/authorize?"+q.Encode(), signedIn)
				to := res.header.Get("Location")
				switch {
				case ok && (strings.HasPrefix(to, uri+"?") || strings.HasPrefix(to, "/login?next=%2Foidc%2Fauthorize")):
				case !ok && to == "" && res.code == http.StatusBadRequest:
				default:
					t.Errorf("redirect_uri %q, %v: %s to %q", uri, extra, res.status, to)
				}
			}
		}
	}
}

func TestAuthorizeRefuses(t *testing.T) {
	l := newLab(t)
	base := url.Values{"client_id": {"hub"}, "response_type": {"code"}, "scope": {"openid"}, "redirect_uri": {callback}, "state": {"s"},
		"code_challenge": {strings.Repeat("A", 43)}, "code_challenge_method": {"S256"}}
	for _, tc := range []struct {
		name, set, to string
		status        int
		code          string // of the error that goes to the hub
	}{
		{"another client", "client_id", "other", http.StatusBadRequest, ""},
		{"no PKCE", "code_challenge", "", http.StatusFound, "invalid_request"},
		{"plain PKCE", "code_challenge_method", "plain", http.StatusFound, "invalid_request"},
		{"short challenge", "code_challenge", "A", http.StatusFound, "invalid_request"},
		{"implicit", "response_type", "id_token token", http.StatusFound, "unauthorized_client"},
		{"no type", "response_type", "", http.StatusFound, "invalid_request"},
		{"request object", "request", "e30.e30.", http.StatusFound, "request_not_supported"},
		{"form_post", "response_mode", "form_post", http.StatusFound, "invalid_request"},
		{"fragment", "response_mode", "fragment", http.StatusFound, "invalid_request"},
		{"broken number", "max_age", "-1", http.StatusBadRequest, ""},
		{"endless", "nonce", strings.Repeat("n", maxAddress), http.StatusRequestURITooLong, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := url.Values{}
			for name, value := range base {
				q[name] = value
			}
			q.Set(tc.set, tc.to)
			res := l.get("https://"+labHost+"/oidc/authorize?"+q.Encode(), true)
			if res.code != tc.status {
				t.Fatalf("%s", res.status)
			}
			if tc.code == "" {
				return
			}
			to, err := res.location()
			if err != nil {
				t.Fatal(err)
			}
			told := to.Query()
			if to.Fragment != "" { // where the implicit flow looks
				if told, err = url.ParseQuery(to.Fragment); err != nil {
					t.Fatal(err)
				}
			}
			if to.Host+to.Path != labHost+":8443/hub/oauth_callback" || told.Get("error") != tc.code || told.Get("code") != "" {
				t.Errorf("sent to %v, %v", to, err)
			}
		})
	}
	twice := l.get("https://"+labHost+"/oidc/authorize?"+base.Encode()+"&redirect_uri="+url.QueryEscape(callback), true)
	if twice.code != http.StatusBadRequest {
		t.Errorf("a parameter twice: %s", twice.status)
	}
	post, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+labHost+"/oidc/authorize", strings.NewReader(base.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if res := l.do(post); res.code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", res.status)
	}
	if res := l.get("https://evil.example/oidc/authorize?"+base.Encode(), true); res.code != http.StatusMisdirectedRequest {
		t.Errorf("another name: %s", res.status)
	}
}

func TestCodeIsBound(t *testing.T) {
	l := newLab(t)
	for _, tc := range []struct {
		name   string
		change func(cfg *oauth2.Config, code, verifier *string)
		want   string
	}{
		{"other secret", func(cfg *oauth2.Config, _, _ *string) { cfg.ClientSecret = "guess" }, "invalid_client"},
		{"no secret", func(cfg *oauth2.Config, _, _ *string) { cfg.ClientSecret = "" }, "invalid_client"},
		{"other client", func(cfg *oauth2.Config, _, _ *string) { cfg.ClientID = "other" }, "invalid_client"},
		{"other callback", func(cfg *oauth2.Config, _, _ *string) { cfg.RedirectURL = "https://192.0.2.7:8443/hub/oauth_callback" }, "invalid_grant"},
		{"no callback", func(cfg *oauth2.Config, _, _ *string) { cfg.RedirectURL = "" }, "invalid_grant"},
		{"other verifier", func(_ *oauth2.Config, _, verifier *string) { *verifier = oauth2.GenerateVerifier() }, "invalid_grant"},
		{"no verifier", func(_ *oauth2.Config, _, verifier *string) { *verifier = "" }, "invalid_request"},
		{"changed code", func(_ *oauth2.Config, code, _ *string) { *code = "A" + *code }, "invalid_grant"},
		{"no code", func(_ *oauth2.Config, code, _ *string) { *code = "" }, "invalid_request"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, verifier := hub(), oauth2.GenerateVerifier()
			code := l.code(verifier)
			good := code
			usedVerifier := verifier
			tc.change(cfg, &code, &usedVerifier)
			if _, err := l.exchange(cfg, code, usedVerifier); oauthError(err) != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
			// Without the secret nobody can even spoil a code.
			_, err := l.exchange(hub(), good, verifier)
			if tc.want == "invalid_client" && err != nil {
				t.Errorf("the code was used up by somebody without the secret: %v", err)
			}
		})
	}
}

func TestCodeWorksOnce(t *testing.T) {
	l := newLab(t)
	verifier := oauth2.GenerateVerifier()
	code := l.code(verifier)
	token, err := l.exchange(hub(), code, verifier)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.exchange(hub(), code, verifier); oauthError(err) != "invalid_grant" {
		t.Errorf("second use: %v", err)
	}
	if status, _ := l.userinfo(clusterHost, token.AccessToken); status != http.StatusUnauthorized {
		t.Errorf("after a replay the first token still answers %d", status)
	}
	if _, err := l.exchange(hub(), code, verifier); oauthError(err) != "invalid_grant" {
		t.Errorf("third use: %v", err)
	}
}

func TestConcurrentExchanges(t *testing.T) {
	l := newLab(t)
	verifier := oauth2.GenerateVerifier()
	code := l.code(verifier)
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for range 8 {
		wg.Go(func() {
			if _, err := l.exchange(hub(), code, verifier); err == nil {
				mu.Lock()
				won++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if won > 1 {
		t.Errorf("%d exchanges of one code succeeded", won)
	}
}

func TestTimes(t *testing.T) {
	l := newLab(t)
	verifier := oauth2.GenerateVerifier()
	late := l.code(verifier)
	l.wait(codeLife)
	if _, err := l.exchange(hub(), late, verifier); oauthError(err) != "invalid_grant" {
		t.Errorf("old code: %v", err)
	}
	code := l.code(verifier)
	l.wait(codeLife - time.Second)
	token, err := l.exchange(hub(), code, verifier)
	if err != nil {
		t.Fatal(err)
	}
	l.wait(tokenLife - time.Second)
	if status, _ := l.userinfo(clusterHost, token.AccessToken); status != http.StatusOK {
		t.Errorf("young token: %d", status)
	}
	l.wait(time.Second)
	if status, _ := l.userinfo(clusterHost, token.AccessToken); status != http.StatusUnauthorized {
		t.Errorf("old token: %d", status)
	}
}

func TestSuspendedAtAnyPoint(t *testing.T) {
	l := newLab(t)
	verifier := oauth2.GenerateVerifier()
	suspend := func() {
		t.Helper()
		if err := l.people.Suspend(t.Context(), l.ada.ID); err != nil {
			t.Fatal(err)
		}
	}
	resume := func() {
		t.Helper()
		if err := l.people.Resume(t.Context(), l.ada.ID); err != nil {
			t.Fatal(err)
		}
		l.token = l.session()
	}
	token, err := l.exchange(hub(), l.code(verifier), verifier)
	if err != nil {
		t.Fatal(err)
	}
	code := l.code(verifier)
	suspend()
	if status, _ := l.userinfo(clusterHost, token.AccessToken); status != http.StatusUnauthorized {
		t.Errorf("userinfo: %d", status)
	}
	if _, err := l.exchange(hub(), code, verifier); oauthError(err) != "invalid_grant" {
		t.Errorf("exchange: %v", err)
	}
	resume()
	// A session that outlived the suspension must not be enough either.
	l.p.cfg.Session = func(*http.Request) (users.User, bool) { return l.ada, true }
	suspend()
	res := l.get(hub().AuthCodeURL("x", oauth2.S256ChallengeOption(verifier)), true)
	if res.code != http.StatusForbidden || !strings.Contains(string(res.body), "suspended") {
		t.Errorf("authorize: %s %s", res.status, res.body)
	}
}

func TestTokenEndpointRefuses(t *testing.T) {
	l := newLab(t)
	for _, tc := range []struct {
		name, auth, body string
		status           int
		want             string
	}{
		{"other grant", "", "grant_type=refresh_token&client_id=hub&client_secret=s3cret%2Fwith%2Bsigns%26more&refresh_token=x", 400, "unsupported_grant_type"},
		{"jwt grant", "", "grant_type=urn:ietf:params:oauth:grant-type:jwt-bearer&client_id=hub&client_secret=s3cret%2Fwith%2Bsigns%26more&assertion=x", 400, "unsupported_grant_type"},
		{"no grant", "", "client_id=hub&client_secret=s3cret%2Fwith%2Bsigns%26more", 400, "unsupported_grant_type"},
		{"nothing", "", "", 401, "invalid_client"},
		{"assertion instead of a secret", "", "grant_type=authorization_code&client_id=hub&code=x&client_assertion_type=urn:ietf:params:oauth:client-assertion-type:jwt-bearer&client_assertion=x", 401, "invalid_client"},
		{"broken basic header", "Basic %%%", "grant_type=authorization_code&code=x", 401, "invalid_client"},
		{"badly escaped basic header", "Basic aHViOiUlJQ==", "grant_type=authorization_code&code=x", 401, "invalid_client"},
		{"broken form", "", "grant_type=%zz", 400, "invalid_request"},
		{"huge form", "", "x=" + strings.Repeat("x", maxTokenForm), 400, "invalid_request"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+clusterHost+"/oidc/token", strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			if tc.auth != "" {
				req.Header.Set("Authorization", tc.auth)
			}
			res := l.do(req)
			var told struct{ Error string }
			if err := json.Unmarshal(res.body, &told); err != nil {
				t.Fatal(err)
			}
			if res.code != tc.status || told.Error != tc.want || res.header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s %+v", res.status, told)
			}
		})
	}
}

func TestUserinfoRefuses(t *testing.T) {
	l := newLab(t)
	verifier := oauth2.GenerateVerifier()
	token, err := l.exchange(hub(), l.code(verifier), verifier)
	if err != nil {
		t.Fatal(err)
	}
	code := l.code(verifier)
	for _, bad := range []string{"", "x", code, token.AccessToken + "A", token.AccessToken[1:], l.token} {
		if status, _ := l.userinfo(labHost, bad); status != http.StatusUnauthorized {
			t.Errorf("%q: %d", bad, status)
		}
	}
	// Addresses end up in logs.
	if res := l.get("https://"+labHost+"/oidc/userinfo?access_token="+token.AccessToken, false); res.code != http.StatusUnauthorized {
		t.Errorf("token in the address: %s", res.status)
	}
}

func TestDiscovery(t *testing.T) {
	l := newLab(t)
	for host, want := range map[string]string{labHost: labHost, "LAB.example.org": labHost, "192.0.2.7:444": "192.0.2.7:444"} {
		var d struct {
			Issuer   string   `json:"issuer"`
			Token    string   `json:"token_endpoint"`
			Types    []string `json:"response_types_supported"`
			Refreshs []string `json:"grant_types_supported"`
		}
		if err := json.Unmarshal(l.get("https://"+host+"/oidc/.well-known/openid-configuration", false).body, &d); err != nil {
			t.Fatal(err)
		}
		if d.Issuer != "https://"+want+"/oidc" || d.Token != d.Issuer+"/token" || !slices.Equal(d.Types, []string{"code"}) || !slices.Equal(d.Refreshs, []string{"authorization_code"}) {
			t.Errorf("%s: %+v", host, d)
		}
	}
	for _, path := range []string{"/oidc/healthz", "/oidc/revoke", "/oidc/oauth/token", "/oidc/end_session", "/oidc/device_authorization", "/oidc/oauth/introspect"} {
		res := l.get("https://"+labHost+path, true)
		if res.code != http.StatusNotFound {
			t.Errorf("%s: %s", path, res.status)
		}
	}
	if h := l.get("https://"+labHost+"/oidc/keys", false).header; h.Get("Access-Control-Allow-Origin") != "" {
		t.Error("other origins may read")
	}
}

func TestGrantsAreBounded(t *testing.T) {
	l := newLab(t)
	verifier := oauth2.GenerateVerifier()
	first := l.code(verifier)
	for range grantsPerUser {
		l.code(verifier)
	}
	if n := len(l.p.store.grants); n > grantsPerUser {
		t.Errorf("%d grants", n)
	}
	if _, err := l.exchange(hub(), first, verifier); oauthError(err) != "invalid_grant" {
		t.Errorf("the oldest code: %v", err)
	}
	l.wait(time.Hour)
	l.code(verifier)
	if n := len(l.p.store.grants); n != 1 {
		t.Errorf("%d grants after an hour", n)
	}
}

func TestKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tls", "oidc.pem")
	first, err := loadKey(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := loadKey(path)
	if err != nil || again.ID() != first.ID() {
		t.Errorf("another key after a restart: %v", err)
	}
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	for name, content := range map[string]string{"empty": "", "junk": "junk", "wrong": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"} {
		bad := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(bad, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadKey(bad); err == nil || !strings.Contains(err.Error(), "delete it") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := loadKey(path); err == nil {
		t.Error("a key that everybody can read was accepted")
	}
}

func TestConcurrentKeyCreation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "oidc.pem")
	var wg sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		wg.Go(func() {
			key, err := loadKey(path)
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = key.ID()
		})
	}
	wg.Wait()
	if len(slices.Compact(ids)) != 1 {
		t.Errorf("different keys: %v", ids)
	}
}

func TestConfigIsChecked(t *testing.T) {
	l := newLab(t)
	for name, spoil := range map[string]func(*Config){
		"no secret": func(c *Config) { c.ClientSecret = "" },
		"no hosts":  func(c *Config) { c.AllowedHost = nil },
		"no users":  func(c *Config) { c.User = nil },
		"no key":    func(c *Config) { c.KeyFile = "" },
	} {
		cfg := config(t, l.people)
		spoil(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
