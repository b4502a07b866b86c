package signin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/pkg/client/rp"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"golang.org/x/oauth2"
)

const (
	// discoverEvery is how long what a provider says about itself is relied on, and keys that it has withdrawn.
	discoverEvery = time.Hour
	// answersFor is for how long a provider that answered is taken to be there. Then it is asked again before a browser
	// is sent to it: a page of the lab can say that it is away, the browser's own only that something is broken.
	answersFor = 5 * time.Second
	// quietAfterFailure is how long a provider that did not answer is not asked again, so that a lecture hall that
	// clicks does not wait in a queue.
	quietAfterFailure = 5 * time.Second
	// skew is how far the clocks may differ. tokenAge is how old an ID token may be that the lab has just asked for.
	// lateUse is how long after its end a token is accepted: at some providers it is valid for only one minute.
	skew, tokenAge, lateUse = 5 * time.Minute, 10 * time.Minute, 2 * time.Minute
)

// algorithms that an ID token may be signed with: those with a public key. Neither "none" nor ones whose key would be
// the client's secret.
var algorithms = []string{
	string(jose.RS256), string(jose.RS384), string(jose.RS512), string(jose.PS256), string(jose.PS384), string(jose.PS512),
	string(jose.ES256), string(jose.ES384), string(jose.ES512), string(jose.EdDSA),
}

// openID is a provider of OpenID Connect.
type openID struct {
	settings
	now     func() time.Time
	contact *contact

	mu     sync.Mutex
	party  rp.RelyingParty // nil as long as it has never answered
	from   string          // secret and certificates that party was made with
	made   time.Time       // when it was
	asked  time.Time       // when the provider was last asked about itself
	failed error           // what came of that
}

// nonceKey finds in a context the nonce that an ID token has to carry.
type nonceKey struct{}

// relyingParty is the library's client, with what the provider says about itself. With present, the provider has
// answered within answersFor; without, what it said within discoverEvery will do.
func (o *openID) relyingParty(ctx context.Context, present bool) (rp.RelyingParty, error) {
	secret, err := secret(o.ClientSecretFile)
	if err != nil {
		return nil, err
	}
	trusted, err := certificates(o.CAFile)
	if err != nil {
		return nil, err
	}
	from := secret + "\n" + string(trusted) // either may be renewed while the lab runs
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	known := o.party != nil && o.from == from && now.Sub(o.made) < discoverEvery
	switch {
	case known && (!present || o.failed == nil && now.Sub(o.asked) < answersFor):
		return o.party, nil
	case o.failed != nil && o.from == from && now.Sub(o.asked) < quietAfterFailure:
		return nil, o.failed
	}
	if known {
		web := o.party.HttpClient()
		if _, _, o.failed = o.about(ctx, web); o.failed != nil {
			web.CloseIdleConnections() // one that leads nowhere any more would be used again
		}
	} else {
		o.party, o.failed = o.discover(ctx, secret)
		o.made, o.from = o.now(), from
	}
	o.asked = o.now()
	o.contact.note(ctx, o.failed)
	if o.failed == nil {
		return o.party, nil
	}
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		o.asked = time.Time{} // the person went away, which says nothing about the provider
	}
	return nil, o.failed
}

func (o *openID) answers(ctx context.Context) error {
	_, err := o.relyingParty(ctx, true)
	return err
}

func (o *openID) discover(ctx context.Context, secret string) (rp.RelyingParty, error) {
	web, err := o.httpClient()
	if err != nil {
		return nil, err
	}
	about, _, err := o.about(ctx, web)
	if err != nil {
		return nil, err
	}
	style := oauth2.AuthStyleInHeader
	if m := about.TokenEndpointAuthMethodsSupported; len(m) > 0 && !slices.Contains(m, oidc.AuthMethodBasic) &&
		slices.Contains(m, oidc.AuthMethodPost) || secret == "" {
		style = oauth2.AuthStyleInParams
	}
	return rp.NewRelyingPartyOIDC(ctx, o.Issuer, o.ClientID, secret, "", o.Scopes,
		rp.WithHTTPClient(web), rp.WithAuthStyle(style), rp.WithVerifierOpts(
			rp.WithSupportedSigningAlgorithms(algorithms...),
			rp.WithNonce(func(ctx context.Context) string {
				nonce, _ := ctx.Value(nonceKey{}).(string)
				return nonce
			})))
}

// about asks a provider about itself. Its name must be the one that was configured, and everything encrypted. ahead is
// how far its clock is ahead of this machine's, to the second; 0 if it does not say.
func (o *openID) about(ctx context.Context,
	web *http.Client) (about *oidc.DiscoveryConfiguration, ahead time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.discovery(), nil)
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := web.Do(req)
	if err != nil {
		return nil, 0, plainReason(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, 0, &statusError{resp.StatusCode}
	}
	about = new(oidc.DiscoveryConfiguration)
	if err := json.NewDecoder(resp.Body).Decode(about); err != nil {
		return nil, 0, fmt.Errorf("what it says about itself is no OpenID Connect: %w", err)
	}
	if about.Issuer != o.Issuer {
		return nil, 0, &issuerError{about.Issuer}
	}
	for what, address := range map[string]string{
		"authorization": about.AuthorizationEndpoint, "token": about.TokenEndpoint, "key": about.JwksURI,
	} {
		if u, err := url.Parse(address); err != nil || u.Scheme != "https" || u.Host == "" {
			return nil, 0, fmt.Errorf("the provider's %s address is %q, which is not encrypted", what, printable(address))
		}
	}
	// An answer with an age comes from a cache, and its date is old.
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil && resp.Header.Get("Age") == "" {
		ahead = date.Sub(o.now().Truncate(time.Second))
	}
	return about, ahead, nil
}

// discovery is the address at which a provider tells about itself.
func (o *openID) discovery() string {
	return strings.TrimSuffix(o.Issuer, "/") + oidc.DiscoveryEndpoint
}

// statusError says that a provider answered something else than was asked for.
type statusError struct{ code int }

func (e *statusError) Error() string {
	return fmt.Sprintf("it answered %d %s", e.code, http.StatusText(e.code))
}

// issuerError says that a provider calls itself by another name than the configuration does.
type issuerError struct{ calls string }

func (e *issuerError) Error() string {
	return fmt.Sprintf("the provider calls itself %q", printable(e.calls))
}

func (o *openID) begin(ctx context.Context, state string, f flow) (string, error) {
	party, err := o.relyingParty(ctx, true)
	if err != nil {
		return "", err
	}
	return party.OAuthConfig().AuthCodeURL(state, oauth2.SetAuthURLParam("redirect_uri", f.redirect),
		oauth2.SetAuthURLParam("nonce", f.nonce), oauth2.S256ChallengeOption(f.verifier)), nil
}

func (o *openID) finish(ctx context.Context, code string, answer url.Values, f flow) (who, error) {
	// RFC 9207: a provider that says who it is must be the one that was asked.
	if iss, said := answer["iss"]; said && (len(iss) != 1 || iss[0] != o.Issuer) {
		return who{}, untrusted("the answer is from the issuer %q", printable(answer.Get("iss")))
	}
	party, err := o.relyingParty(ctx, false)
	if err != nil {
		return who{}, err
	}
	if f.nonce == "" {
		return who{}, untrusted("the sign-in has no nonce")
	}
	ctx = context.WithValue(ctx, nonceKey{}, f.nonce)
	tokens, err := rp.CodeExchange[*idToken](ctx, code, party, func() []oauth2.AuthCodeOption {
		return []oauth2.AuthCodeOption{oauth2.SetAuthURLParam("redirect_uri", f.redirect), oauth2.VerifierOption(f.verifier)}
	})
	if err != nil {
		return who{}, exchangeError(err)
	}
	if err := tokens.IDTokenClaims.checkTimes(o.now()); err != nil {
		return who{}, err
	}
	claims := maps.Clone(tokens.IDTokenClaims.Claims)
	if o.lacks(claims) && party.UserinfoEndpoint() != "" {
		more, err := rp.Userinfo[*oidc.UserInfo](ctx, tokens.AccessToken, tokens.Type(), tokens.IDTokenClaims.Subject, party)
		if errors.Is(err, rp.ErrUserInfoSubNotMatching) {
			return who{}, untrusted("%w", err)
		}
		if err != nil {
			return who{}, fmt.Errorf("ask the provider about somebody: %w", err)
		}
		for name, value := range more.Claims {
			if _, said := claims[name]; !said {
				claims[name] = value
			}
		}
	}
	w := o.who(claims)
	w.subject = tokens.IDTokenClaims.Subject
	w.groupsGap, w.emailGap = o.gaps(claims)
	return w, nil
}

// idToken is an ID token whose times checkTimes checks instead of the library. The library allows for no difference
// between clocks: the offset that it grants the time of issue, it subtracts from the end.
type idToken struct{ oidc.IDTokenClaims }

// GetExpiration implements oidc.Claims. Its value passes the library's check.
func (t *idToken) GetExpiration() time.Time {
	if t.Expiration == 0 {
		return time.Time{}
	}
	return time.Now().Add(time.Hour)
}

// GetIssuedAt implements oidc.Claims. Its value passes the library's check.
func (t *idToken) GetIssuedAt() time.Time {
	if t.IssuedAt == 0 {
		return time.Time{}
	}
	return time.Now().Add(-time.Second)
}

// checkTimes checks when a token was issued and when it ends, by a clock that may differ from the provider's.
func (t *idToken) checkTimes(now time.Time) error {
	issued, begins, ends := t.IssuedAt.AsTime(), t.IDTokenClaims.NotBefore.AsTime(), t.Expiration.AsTime()
	latest := issued
	if begins.After(latest) {
		latest = begins
	}
	switch {
	case !ends.After(issued) || !ends.After(latest):
		return untrusted("the ID token ends at %s, before it begins", ends.Format(time.RFC3339))
	case latest.Sub(now) > skew:
		return &clockError{
			ahead: latest.Sub(now).Round(time.Second), what: "the ID token is of " + latest.Format(time.RFC3339),
		}
	case now.Sub(issued) > tokenAge:
		return &clockError{
			ahead: issued.Sub(now).Round(time.Second), what: "the ID token is of " + issued.Format(time.RFC3339),
		}
	case now.Sub(ends) >= lateUse:
		return &clockError{
			ahead: issued.Sub(now).Round(time.Second), what: "the ID token ended at " + ends.Format(time.RFC3339),
		}
	}
	return nil
}

// clockError says that, by this machine's clock, a token that was just issued is not valid now. It is an errUntrusted.
type clockError struct {
	ahead time.Duration // how far the provider's clock is ahead; below 0 it is behind
	what  string
}

func (e *clockError) Error() string { return clocksApart(e.ahead, "the provider's") + ": " + e.what }
func (e *clockError) Unwrap() error { return errUntrusted }

// clocksApart says how far the lab's clock is ahead of another clock or behind it.
func clocksApart(ahead time.Duration, other string) string {
	word := "behind"
	if ahead < 0 {
		word = "ahead of"
	}
	return fmt.Sprintf("the lab's clock is %s %s %s", ahead.Abs(), word, other)
}

// clockNext is what to do about clocks that differ.
const clockNext = "Run `timedatectl` on the lab's machine. If the clock is not synchronized, run `apt install " +
	"chrony`. If it is, the provider's clock is wrong: tell the people who run the provider."

// lacks tells whether an ID token leaves something out that is asked for; most providers tell it elsewhere.
func (o *openID) lacks(claims map[string]any) bool {
	wanted := []string{o.Claims.Username, o.Claims.Name, o.Claims.Email}
	if o.asksForGroups() {
		wanted = append(wanted, o.Claims.Groups)
	}
	for _, r := range o.Rules {
		if r.Claim != "" {
			wanted = append(wanted, r.Claim)
		}
	}
	return slices.ContainsFunc(wanted, func(name string) bool { return len(claimValues(claims, name)) == 0 })
}

// who reads claims by their names; the subject is the caller's.
func (s *settings) who(claims map[string]any) who {
	return who{
		username: claimText(claims, s.Claims.Username), name: claimText(claims, s.Claims.Name),
		email:    claimText(claims, s.Claims.Email),
		verified: claimTrue(claims, s.Claims.EmailVerified), groups: claimValues(claims, s.Claims.Groups), claims: claims,
	}
}

// exchangeError tells an answer that is wrong from one that did not come.
func exchangeError(err error) error {
	var refused *oauth2.RetrieveError
	if errors.As(err, &refused) {
		if refused.ErrorCode == "invalid_grant" || refused.ErrorCode == "bad_verification_code" { // GitHub's word for it
			return untrusted("the provider does not know the code")
		}
		// Its text may hold what was sent.
		return fmt.Errorf("the provider refused to tell who it is: %s",
			orText(printable(refused.ErrorCode), refused.Response.Status))
	}
	var elsewhere *url.Error
	if errors.As(err, &elsewhere) {
		return fmt.Errorf("ask the provider who it is: %w", elsewhere.Err)
	}
	return untrusted("%w", err)
}

func orText(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
