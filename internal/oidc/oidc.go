// Package oidc is gpulab's OpenID Connect provider. It has one client, the hub, which needs it to know
// who the visitor is: whoever is signed in to gpulab is signed in to the notebooks, without a second
// password.
//
// The protocol is zitadel/oidc's; this package narrows it to what that one client does: authorization
// code with PKCE and client secret, no refresh tokens, no other grant, nothing stored on disk but the
// signing key. Codes and tokens live in memory, so a restart of gpulab at the wrong second costs one
// click.
//
// The provider answers on every name the lab is reached by. Browser and hub use different ones for the
// same sign-in, so codes and tokens are not bound to the issuer's name; the redirect address is checked
// against the lab's own names on every request.
package oidc

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"

	"github.com/gpulab/gpulab/internal/users"
)

// Prefix is where the handler must be mounted, without stripping it.
const Prefix = "/oidc"

const (
	defaultCallback = "/hub/oauth_callback"

	maxAddress   = 8 << 10  // bytes in an authorize address; the hub's have about 700
	maxTokenForm = 16 << 10 // bytes in a token request
)

// Config is what the provider needs. Everything is required but CallbackPath and Log.
type Config struct {
	ClientID     string
	ClientSecret string
	// KeyFile holds the key that signs ID tokens. It is created, with mode 0600, when missing.
	KeyFile string
	// CallbackPath is where the hub receives codes; "" means /hub/oauth_callback.
	CallbackPath string
	// Owner says whose notebooks are at a host with its port, written as browsers write it, and by which host gpulab's
	// pages are reached there. A code goes to its person's own notebooks and to no others.
	Owner func(authority string) (user int64, host string, ok bool)
	// Session says who is signed in to gpulab in the browser that sent the request.
	Session func(r *http.Request) (users.User, bool)
	// User reads an account anew: one suspended since the sign-in gets nothing.
	User func(ctx context.Context, id int64) (users.User, error)
	// LoginURL is the path of the sign-in page; it gets the way back in the parameter "next".
	LoginURL string
	// AllowedHost reports whether the lab is reached by this name or address (lower case, without port).
	AllowedHost func(host string) bool
	// Log hears of refused requests; nil discards.
	Log *slog.Logger
}

func (c Config) check() (Config, error) {
	if c.ClientID == "" || c.ClientSecret == "" || c.KeyFile == "" || c.Session == nil || c.User == nil ||
		c.LoginURL == "" || c.AllowedHost == nil || c.Owner == nil {
		return c, errors.New("oidc: ClientID, ClientSecret, KeyFile, Session, User, LoginURL, AllowedHost and Owner are " +
			"required")
	}
	if c.CallbackPath == "" {
		c.CallbackPath = defaultCallback
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

type provider struct {
	cfg   Config
	lib   *op.Provider
	store *storage
	mux   *http.ServeMux
}

// New makes the handler for everything under Prefix. It reads or creates the signing key.
func New(cfg Config) (http.Handler, error) {
	return newProvider(cfg, time.Now)
}

func newProvider(cfg Config, now func() time.Time) (*provider, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, err
	}
	key, err := loadKey(cfg.KeyFile)
	if err != nil {
		return nil, err
	}
	seal, err := newSeal()
	if err != nil {
		return nil, err
	}
	p := &provider{cfg: cfg, store: newStorage(cfg, key, now), mux: http.NewServeMux()}
	p.lib, err = op.NewProvider(&op.Config{CodeMethodS256: true, AuthMethodPost: true}, p.store,
		op.IssuerFromHost(Prefix), op.WithCrypto(seal), op.WithLogger(cfg.Log))
	if err != nil {
		return nil, fmt.Errorf("oidc: %w", err)
	}
	// The library's own router is not used: it offers more than we do, to every origin.
	p.mux.HandleFunc("GET "+Prefix+"/authorize", p.authorize)
	p.mux.HandleFunc("POST "+Prefix+"/token", p.token)
	p.mux.HandleFunc("GET "+Prefix+"/userinfo", p.userinfo)
	p.mux.HandleFunc("GET "+Prefix+"/keys", func(w http.ResponseWriter, r *http.Request) { op.Keys(w, r, p.store) })
	p.mux.HandleFunc("GET "+Prefix+"/.well-known/openid-configuration", p.discovery)
	return p, nil
}

// ServeHTTP refuses names that are not the lab's before anything is derived from them.
func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	host, ok := p.ownHost(r.Host)
	if !ok {
		http.Error(w, "This lab does not go by the name in the address. Open it by its own name or address.",
			http.StatusMisdirectedRequest)
		return
	}
	issuer := "https://" + host + Prefix
	p.mux.ServeHTTP(w, r.WithContext(op.ContextWithIssuer(r.Context(), issuer)))
}

// ownHost returns the host and port of a request in canonical form when the host is the lab's.
func (p *provider) ownHost(hostport string) (string, bool) {
	u, err := url.Parse("https://" + strings.ToLower(hostport) + "/")
	if err != nil || u.User != nil || u.Path != "/" || u.Hostname() == "" || !p.cfg.AllowedHost(u.Hostname()) {
		return "", false
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return "", false
		}
	}
	return u.Host, true
}

// callbackOwner returns whose notebooks receive the codes that go to uri. It must be the hub's callback on
// one of the lab's names, written in the one way that browsers and this check read alike.
func (p *provider) callbackOwner(uri string) (user int64, ok bool) {
	authority, https := strings.CutPrefix(uri, "https://")
	authority, callback := strings.CutSuffix(authority, p.cfg.CallbackPath)
	if !https || !callback {
		return 0, false
	}
	user, host, ok := p.cfg.Owner(authority)
	return user, ok && p.cfg.AllowedHost(host)
}

// authorize sends the browser back to the hub with a code, or to the sign-in page first.
func (p *provider) authorize(w http.ResponseWriter, r *http.Request) {
	if len(r.URL.RequestURI()) > maxAddress {
		p.refuse(w, r, http.StatusRequestURITooLong, "This sign-in address is too long. Go back to the home page and open "+
			"the notebook from there.")
		return
	}
	if fromForm(r) {
		w = &onward{ResponseWriter: w}
	}
	req, ok := p.authorizeRequest(w, r)
	if !ok {
		return
	}
	u, signedIn := p.cfg.Session(r)
	if !signedIn {
		if len(req.Prompt) == 1 && req.Prompt[0] == oidc.PromptNone {
			op.AuthRequestError(w, r, req, oidc.ErrLoginRequired(), p.lib)
			return
		}
		http.Redirect(w, r, p.cfg.LoginURL+"?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusFound)
		return
	}
	if owner, _ := p.callbackOwner(req.RedirectURI); owner != u.ID {
		p.refuse(w, r, http.StatusForbidden, "This address is for another person's notebooks. Open yours from the home page.")
		return
	}
	if err := p.store.active(r.Context(), u.ID); err != nil {
		p.refuse(w, r, http.StatusForbidden, "This account is suspended. Ask an admin of the lab.")
		return
	}
	g, err := p.store.grantTo(req, u.ID)
	if err != nil {
		op.AuthRequestError(w, r, req, err, p.lib)
		return
	}
	op.AuthResponseCode(w, r, g, p.lib)
}

// fromForm reports whether a request may be where the form of the sign-in page leads. Everything else comes here from
// the port of somebody's notebooks.
func fromForm(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "same-origin" || site == "" && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// onward leads a browser to another port without a redirect. The Content-Security-Policy of gpulab's pages lets a form
// lead nowhere but to its own port, through every redirect on the way.
type onward struct{ http.ResponseWriter }

func (w *onward) WriteHeader(status int) {
	h := w.Header()
	if to := h.Get("Location"); status == http.StatusFound && strings.HasPrefix(to, "https://") {
		h.Del("Location")
		h.Set("Refresh", "0; url="+to)
		status = http.StatusOK
	}
	w.ResponseWriter.WriteHeader(status)
}

// authorizeRequest reads and checks the request. Until client and callback are known to be right the
// answer is a plain page: an error must not be a way to send people elsewhere.
func (p *provider) authorizeRequest(w http.ResponseWriter, r *http.Request) (*oidc.AuthRequest, bool) {
	const again = " Go back to the home page and open the notebook from there."
	for _, values := range r.URL.Query() {
		if len(values) > 1 {
			p.refuse(w, r, http.StatusBadRequest, "This sign-in address says something twice."+again)
			return nil, false
		}
	}
	req, err := op.ParseAuthorizeRequest(r, p.lib.Decoder())
	if err != nil {
		p.refuse(w, r, http.StatusBadRequest, "This sign-in address cannot be read."+again)
		return nil, false
	}
	if _, ours := p.callbackOwner(req.RedirectURI); req.ClientID != p.cfg.ClientID || !ours {
		p.refuse(w, r, http.StatusBadRequest, "This sign-in address leads to a place that is not this lab's."+again)
		return nil, false
	}
	if len(req.Scopes) == 0 {
		req.Scopes = oidc.SpaceDelimitedArray{oidc.ScopeOpenID, oidc.ScopeProfile}
	}
	req.IDTokenHint = "" // a hint only; the session decides
	if err := p.checkRequest(r.Context(), req); err != nil {
		op.AuthRequestError(w, r, req, err, p.lib)
		return nil, false
	}
	return req, true
}

func (p *provider) checkRequest(ctx context.Context, req *oidc.AuthRequest) error {
	if req.RequestParam != "" {
		return oidc.ErrRequestNotSupported()
	}
	if req.ResponseMode != "" && req.ResponseMode != oidc.ResponseModeQuery {
		req.ResponseMode = "" // the refusal itself goes the usual way
		return oidc.ErrInvalidRequest().WithDescription("response_mode must be query")
	}
	if _, err := op.ValidateAuthRequestClient(ctx, req, client{p.cfg, req.RedirectURI},
		p.lib.IDTokenHintVerifier(ctx)); err != nil {
		return err
	}
	// A SHA-256 in unpadded base64url has 43 characters.
	if req.CodeChallengeMethod != oidc.CodeChallengeMethodS256 || len(req.CodeChallenge) != 43 {
		return oidc.ErrInvalidRequest().WithDescription("PKCE is required: code_challenge with code_challenge_method S256")
	}
	return nil
}

// token exchanges a code. The client proves itself before the code is looked at.
func (p *provider) token(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxTokenForm)
	if err := r.ParseForm(); err != nil {
		op.RequestError(w, r, oidc.ErrInvalidRequest().WithDescription("the form cannot be read"), p.cfg.Log)
		return
	}
	if !p.isClient(r) {
		w.Header().Set("WWW-Authenticate", `Basic realm="gpulab"`)
		op.RequestError(w, r, oidc.ErrInvalidClient().WithDescription("wrong client_id or client_secret"), p.cfg.Log)
		return
	}
	if grant := r.PostForm.Get("grant_type"); grant != string(oidc.GrantTypeCode) {
		op.RequestError(w, r, oidc.ErrUnsupportedGrantType().WithDescription("grant_type must be authorization_code"),
			p.cfg.Log)
		return
	}
	// Only what belongs into this request goes on, from the body, once.
	form := url.Values{"client_id": {p.cfg.ClientID}, "client_secret": {p.cfg.ClientSecret}}
	for _, name := range []string{"grant_type", "code", "redirect_uri", "code_verifier"} {
		form.Set(name, r.PostForm.Get(name))
	}
	r.Form, r.PostForm = form, form
	r.Header.Del("Authorization")
	op.CodeExchange(w, r, p.lib)
}

func (p *provider) isClient(r *http.Request) bool {
	id, secret, ok := r.BasicAuth()
	if ok {
		var err1, err2 error
		id, err1 = url.QueryUnescape(id) // RFC 6749, section 2.3.1
		secret, err2 = url.QueryUnescape(secret)
		ok = err1 == nil && err2 == nil
	} else {
		id, secret = r.PostForm.Get("client_id"), r.PostForm.Get("client_secret")
		ok = true
	}
	return ok && same(id, p.cfg.ClientID) && same(secret, p.cfg.ClientSecret)
}

// same compares in constant time, whatever the lengths.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// userinfo tells the holder of an access token, taken from the Authorization header only, whose it is.
func (p *provider) userinfo(w http.ResponseWriter, r *http.Request) {
	info := new(oidc.UserInfo)
	scheme, sealed, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	opened, err := p.lib.Crypto().Decrypt(strings.TrimSpace(sealed))
	id, subject, ok := strings.Cut(opened, ":")
	if err == nil && ok && strings.EqualFold(scheme, "Bearer") {
		err = p.store.SetUserinfoFromToken(r.Context(), info, id, subject, "")
	} else {
		err = errNoToken
	}
	if err != nil {
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		writeJSON(w, http.StatusUnauthorized, map[string]string{"error": "invalid_token"})
		return
	}
	writeJSON(w, http.StatusOK, info)
}

func (p *provider) discovery(w http.ResponseWriter, r *http.Request) {
	issuer := op.IssuerFromContext(r.Context())
	writeJSON(w, http.StatusOK, &oidc.DiscoveryConfiguration{
		Issuer:                            issuer,
		AuthorizationEndpoint:             issuer + "/authorize",
		TokenEndpoint:                     issuer + "/token",
		UserinfoEndpoint:                  issuer + "/userinfo",
		JwksURI:                           issuer + "/keys",
		ScopesSupported:                   []string{oidc.ScopeOpenID, oidc.ScopeProfile},
		ResponseTypesSupported:            []string{string(oidc.ResponseTypeCode)},
		ResponseModesSupported:            []string{string(oidc.ResponseModeQuery)},
		GrantTypesSupported:               []oidc.GrantType{oidc.GrantTypeCode},
		SubjectTypesSupported:             []string{"public"},
		IDTokenSigningAlgValuesSupported:  []string{string(signingAlgorithm)},
		TokenEndpointAuthMethodsSupported: []oidc.AuthMethod{oidc.AuthMethodBasic, oidc.AuthMethodPost},
		CodeChallengeMethodsSupported:     []oidc.CodeChallengeMethod{oidc.CodeChallengeMethodS256},
		ClaimsSupported: []string{
			"iss", "sub", "aud", "exp", "iat", "nonce", "preferred_username", "name", "uid",
		},
	})
}

// refuse answers a person; text is a sentence with the next step.
func (p *provider) refuse(w http.ResponseWriter, r *http.Request, status int, text string) {
	p.cfg.Log.InfoContext(r.Context(), "sign-in to the notebooks refused", "status", status, "reason", text)
	http.Error(w, text, status)
}
