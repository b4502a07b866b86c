package oidc

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"

	"github.com/gpulab/gpulab/internal/users"
)

const (
	codeLife  = time.Minute     // the hub redeems a code within a second
	tokenLife = 5 * time.Minute // and asks once who it is for

	// Bounds of the memory; the oldest makes room. A person has few sign-ins under way.
	grantsPerUser = 20
	maxGrants     = 10_000
)

var (
	errNoToken   = errors.New("oidc: no such access token")
	errNoGrant   = errors.New("oidc: no such code")
	errNotOurs   = errors.New("oidc: not supported by this provider")
	errBadClient = errors.New("oidc: no such client")
)

// grant is one sign-in to the hub, from the code to the access token. It is a copy wherever it leaves
// the storage.
type grant struct {
	id       string
	userID   int64
	clientID string
	redirect string
	state    string
	nonce    string
	scopes   []string
	pkce     oidc.CodeChallenge

	expires  time.Time // of the code, then of the token
	code     string
	redeemed bool
	token    string // its ID; "" before there is one
}

// The methods of op.AuthRequest.

func (g grant) GetID() string                         { return g.id }
func (g grant) GetACR() string                        { return "" }
func (g grant) GetAMR() []string                      { return nil }
func (g grant) GetAudience() []string                 { return []string{g.clientID} }
func (g grant) GetAuthTime() time.Time                { return time.Time{} }
func (g grant) GetClientID() string                   { return g.clientID }
func (g grant) GetCodeChallenge() *oidc.CodeChallenge { return &g.pkce }
func (g grant) GetNonce() string                      { return g.nonce }
func (g grant) GetRedirectURI() string                { return g.redirect }
func (g grant) GetResponseType() oidc.ResponseType    { return oidc.ResponseTypeCode }
func (g grant) GetResponseMode() oidc.ResponseMode    { return oidc.ResponseModeQuery }
func (g grant) GetScopes() []string                   { return g.scopes }
func (g grant) GetState() string                      { return g.state }
func (g grant) GetSubject() string                    { return strconv.FormatInt(g.userID, 10) }
func (g grant) Done() bool                            { return true }

// storage keeps grants in memory, oldest first. It is op.Storage for the library; methods for what this
// provider does not offer return errNotOurs.
type storage struct {
	cfg Config
	key signingKey
	now func() time.Time

	mu     sync.Mutex
	grants []*grant
}

func newStorage(cfg Config, key signingKey, now func() time.Time) *storage {
	return &storage{cfg: cfg, key: key, now: now}
}

// active refuses accounts that were suspended or removed.
func (s *storage) active(ctx context.Context, userID int64) error {
	_, err := s.activeUser(ctx, userID)
	return err
}

func (s *storage) activeUser(ctx context.Context, userID int64) (users.User, error) {
	u, err := s.cfg.User(ctx, userID)
	if err == nil && u.Suspended {
		err = users.ErrSuspended
	}
	return u, err
}

// grantTo records that the checked request was answered for a user.
func (s *storage) grantTo(req *oidc.AuthRequest, userID int64) (op.AuthRequest, error) {
	g := &grant{
		id: rand.Text(), userID: userID, clientID: req.ClientID, redirect: req.RedirectURI, state: req.State,
		nonce: req.Nonce, scopes: req.Scopes, expires: s.now().Add(codeLife),
		pkce: oidc.CodeChallenge{Challenge: req.CodeChallenge, Method: req.CodeChallengeMethod},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.makeRoom(userID)
	s.grants = append(s.grants, g)
	return *g, nil
}

func (s *storage) makeRoom(userID int64) {
	now := s.now()
	s.grants = slices.DeleteFunc(s.grants, func(g *grant) bool { return !now.Before(g.expires) })
	own := func(g *grant) bool { return g.userID == userID }
	count := 0
	for _, g := range s.grants {
		if own(g) {
			count++
		}
	}
	if count >= grantsPerUser {
		i := slices.IndexFunc(s.grants, own)
		s.grants = slices.Delete(s.grants, i, i+1)
	}
	if len(s.grants) >= maxGrants {
		s.grants = slices.Delete(s.grants, 0, 1)
	}
}

// find returns the live grant that matches; the caller holds the lock.
func (s *storage) find(match func(*grant) bool) *grant {
	now := s.now()
	for _, g := range s.grants {
		if match(g) && now.Before(g.expires) {
			return g
		}
	}
	return nil
}

func (s *storage) drop(g *grant) {
	s.grants = slices.DeleteFunc(s.grants, func(other *grant) bool { return other == g })
}

// SaveAuthCode ties the code, which the library made, to its grant.
func (s *storage) SaveAuthCode(_ context.Context, id, code string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.find(func(g *grant) bool { return g.id == id })
	if g == nil {
		return errNoGrant
	}
	g.code = code
	return nil
}

// AuthRequestByCode redeems a code: the first call wins. A second one means that somebody else has the
// code too, and takes back what the first one got (RFC 6749, section 4.1.2).
func (s *storage) AuthRequestByCode(_ context.Context, code string) (op.AuthRequest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.find(func(g *grant) bool { return g.code != "" && same(g.code, code) })
	if g == nil {
		return nil, errNoGrant
	}
	if g.redeemed {
		s.drop(g)
		return nil, errNoGrant
	}
	g.redeemed = true
	return *g, nil
}

// CreateAccessToken starts the life of the access token of a redeemed code.
func (s *storage) CreateAccessToken(ctx context.Context, req op.TokenRequest) (string, time.Time, error) {
	redeemed, ok := req.(grant)
	if !ok {
		return "", time.Time{}, oidc.ErrUnsupportedGrantType()
	}
	if err := s.active(ctx, redeemed.userID); err != nil {
		return "", time.Time{}, oidc.ErrInvalidGrant().WithDescription("the account is not active").WithParent(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.find(func(g *grant) bool { return g.id == redeemed.id })
	if g == nil {
		return "", time.Time{}, oidc.ErrInvalidGrant().WithDescription("the code was used twice")
	}
	g.token, g.expires = rand.Text(), s.now().Add(tokenLife)
	return g.token, g.expires, nil
}

// DeleteAuthRequest keeps the grant: it is the access token now.
func (s *storage) DeleteAuthRequest(context.Context, string) error { return nil }

// SetUserinfoFromToken fills in the claims of a live token's user.
func (s *storage) SetUserinfoFromToken(ctx context.Context, info *oidc.UserInfo, tokenID, subject, _ string) error {
	s.mu.Lock()
	g := s.find(func(g *grant) bool { return g.token != "" && same(g.token, tokenID) })
	s.mu.Unlock()
	if g == nil || g.GetSubject() != subject {
		return errNoToken
	}
	return s.claims(ctx, info, g.userID)
}

// SetUserinfoFromRequest puts the same claims into the ID token.
func (s *storage) SetUserinfoFromRequest(ctx context.Context, info *oidc.UserInfo, req op.IDTokenRequest,
	_ []string) error {
	g, ok := req.(grant)
	if !ok {
		return errNoGrant
	}
	return s.claims(ctx, info, g.userID)
}

// claims are all that the hub needs, whatever the scopes: there is one client, and it is ours.
func (s *storage) claims(ctx context.Context, info *oidc.UserInfo, userID int64) error {
	u, err := s.activeUser(ctx, userID)
	if err != nil {
		return err
	}
	info.Subject = strconv.FormatInt(u.ID, 10)
	info.PreferredUsername = u.Handle
	info.Name = u.Name
	info.AppendClaims("uid", u.UID)
	return nil
}

// GetClientByClientID is asked at the token endpoint, where the library compares the redirect address
// with the grant's itself.
func (s *storage) GetClientByClientID(_ context.Context, id string) (op.Client, error) {
	if id != s.cfg.ClientID {
		return nil, errBadClient
	}
	return client{cfg: s.cfg}, nil
}

// AuthorizeClientIDSecret compares in constant time.
func (s *storage) AuthorizeClientIDSecret(_ context.Context, id, secret string) error {
	if !same(id, s.cfg.ClientID) || !same(secret, s.cfg.ClientSecret) {
		return errBadClient
	}
	return nil
}

// SigningKey, SignatureAlgorithms and KeySet are about the one key.
func (s *storage) SigningKey(context.Context) (op.SigningKey, error) { return s.key, nil }

// SignatureAlgorithms lists the one algorithm.
func (s *storage) SignatureAlgorithms(context.Context) ([]jose.SignatureAlgorithm, error) {
	return []jose.SignatureAlgorithm{signingAlgorithm}, nil
}

// KeySet is the public half.
func (s *storage) KeySet(context.Context) ([]op.Key, error) { return []op.Key{s.key.public()}, nil }

// Health is fine: there is nothing to lose a connection to.
func (s *storage) Health(context.Context) error { return nil }

// What the library wants to see and this provider does not offer.

func (s *storage) CreateAuthRequest(context.Context, *oidc.AuthRequest, string) (op.AuthRequest, error) {
	return nil, errNotOurs
}
func (s *storage) AuthRequestByID(context.Context, string) (op.AuthRequest, error) {
	return nil, errNotOurs
}
func (s *storage) CreateAccessAndRefreshTokens(context.Context, op.TokenRequest,
	string) (string, string, time.Time, error) {
	return "", "", time.Time{}, errNotOurs
}
func (s *storage) TokenRequestByRefreshToken(context.Context, string) (op.RefreshTokenRequest, error) {
	return nil, errNotOurs
}
func (s *storage) TerminateSession(context.Context, string, string) error { return errNotOurs }
func (s *storage) RevokeToken(context.Context, string, string, string) *oidc.Error {
	return oidc.ErrServerError().WithParent(errNotOurs)
}
func (s *storage) GetRefreshTokenInfo(context.Context, string, string) (string, string, error) {
	return "", "", op.ErrInvalidRefreshToken
}
func (s *storage) SetUserinfoFromScopes(context.Context, *oidc.UserInfo, string, string, []string) error {
	return nil // superseded by SetUserinfoFromRequest
}
func (s *storage) SetIntrospectionFromToken(context.Context, *oidc.IntrospectionResponse, string, string,
	string) error {
	return errNotOurs
}
func (s *storage) GetPrivateClaimsFromScopes(context.Context, string, string, []string) (map[string]any, error) {
	return nil, errNotOurs
}
func (s *storage) GetKeyByIDAndClientID(context.Context, string, string) (*jose.JSONWebKey, error) {
	return nil, errNotOurs
}
func (s *storage) ValidateJWTProfileScopes(context.Context, string, []string) ([]string, error) {
	return nil, errNotOurs
}

// client is the hub. redirect is the one callback that was checked for the request at hand.
type client struct {
	cfg      Config
	redirect string
}

// The methods of op.Client.

func (c client) GetID() string                       { return c.cfg.ClientID }
func (c client) RedirectURIs() []string              { return []string{c.redirect} }
func (c client) PostLogoutRedirectURIs() []string    { return nil }
func (c client) ApplicationType() op.ApplicationType { return op.ApplicationTypeWeb }
func (c client) AuthMethod() oidc.AuthMethod         { return oidc.AuthMethodBasic }
func (c client) ResponseTypes() []oidc.ResponseType {
	return []oidc.ResponseType{oidc.ResponseTypeCode}
}
func (c client) GrantTypes() []oidc.GrantType         { return []oidc.GrantType{oidc.GrantTypeCode} }
func (c client) LoginURL(string) string               { return c.cfg.LoginURL }
func (c client) AccessTokenType() op.AccessTokenType  { return op.AccessTokenTypeBearer }
func (c client) IDTokenLifetime() time.Duration       { return tokenLife }
func (c client) DevMode() bool                        { return false }
func (c client) IsScopeAllowed(string) bool           { return false }
func (c client) IDTokenUserinfoClaimsAssertion() bool { return true }
func (c client) ClockSkew() time.Duration             { return 0 }
func (c client) RestrictAdditionalIdTokenScopes() func([]string) []string {
	return func(scopes []string) []string { return scopes }
}
func (c client) RestrictAdditionalAccessTokenScopes() func([]string) []string {
	return func(scopes []string) []string { return scopes }
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The only possible error is a client that went away.
	_ = json.NewEncoder(w).Encode(value)
}
