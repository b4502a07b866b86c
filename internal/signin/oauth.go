package signin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/oauth2"
)

// plainOAuth is a provider of OAuth 2 without OpenID Connect: who it is, an address of its own tells.
type plainOAuth struct{ settings }

func (o *plainOAuth) config(f flow) (*oauth2.Config, error) {
	secret, err := secret(o.ClientSecretFile)
	style := oauth2.AuthStyleAutoDetect
	if o.Type == typeGitHub {
		style = oauth2.AuthStyleInParams
	}
	return &oauth2.Config{ClientID: o.ClientID, ClientSecret: secret, RedirectURL: f.redirect, Scopes: o.Scopes,
		Endpoint: oauth2.Endpoint{AuthURL: o.AuthorizeURL, TokenURL: o.TokenURL, AuthStyle: style}}, err
}

func (o *plainOAuth) begin(_ context.Context, state string, f flow) (string, error) {
	cfg, err := o.config(f)
	if err != nil {
		return "", err
	}
	return cfg.AuthCodeURL(state, oauth2.S256ChallengeOption(f.verifier)), nil
}

func (o *plainOAuth) finish(ctx context.Context, code string, _ url.Values, f flow) (who, error) {
	cfg, err := o.config(f)
	if err != nil {
		return who{}, err
	}
	client, err := o.httpClient()
	if err != nil {
		return who{}, err
	}
	defer client.CloseIdleConnections()
	ctx = context.WithValue(ctx, oauth2.HTTPClient, client)
	token, err := cfg.Exchange(ctx, code, oauth2.VerifierOption(f.verifier))
	if err != nil {
		return who{}, exchangeError(err)
	}
	answer, err := o.ask(ctx, client, o.UserinfoURL, token)
	if err != nil {
		return who{}, err
	}
	claims, ok := answer.(map[string]any)
	if !ok {
		return who{}, untrusted("what it says about somebody is no object")
	}
	w := o.who(claims)
	if w.subject = claimText(claims, o.Claims.ID); w.subject == "" {
		return who{}, untrusted("it says no %s, by which people are known", o.Claims.ID)
	}
	if o.EmailsURL != "" {
		if answer, err = o.ask(ctx, client, o.EmailsURL, token); err != nil {
			return who{}, err
		}
		w.email, w.verified = bestEmail(answer, o.Domains)
	}
	for _, source := range o.groupSources {
		next := source.url
		for range maxPages {
			if answer, next, err = o.askPage(ctx, client, next, token); err != nil {
				return who{}, err
			}
			w.groups = append(w.groups, source.groups(answer)...)
			if next == "" {
				break
			}
		}
		if next != "" {
			w.groupsGap = o.groupsGap(false, "%s has more than %d pages", source.url, maxPages)
		}
	}
	if len(o.groupSources) == 0 && o.looksAtGroups() && !hasClaim(claims, o.Claims.Groups) {
		w.groupsGap = o.groupsGap(true, "the claim %s is not in the answer of %s", o.Claims.Groups, o.UserinfoURL)
	}
	return w, nil
}

// maxPages limits how many pages of a list are read. A page of GitHub's has 100 entries.
const maxPages = 50

// ask reads an address in somebody's name.
func (o *plainOAuth) ask(ctx context.Context, client *http.Client, address string, token *oauth2.Token) (any, error) {
	answer, _, err := o.askPage(ctx, client, address, token)
	return answer, err
}

// askPage is ask for one page of a list. next is the address of the next page, on the same server (RFC 8288); empty on
// the last page.
func (o *plainOAuth) askPage(ctx context.Context, client *http.Client, address string,
	token *oauth2.Token) (answer any, next string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "gpulab")
	token.SetAuthHeader(req)
	resp, err := client.Do(req)
	if err != nil {
		return nil, "", fmt.Errorf("ask %s about somebody: %w", address, plainReason(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, "", fmt.Errorf("ask %s about somebody: it answered %s", address, resp.Status)
	}
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, "", fmt.Errorf("ask %s about somebody: %w", address, err)
	}
	if answer, err = parseAnswer(data); err != nil {
		return nil, "", err
	}
	return answer, nextPage(req.URL, resp.Header.Values("Link")), nil
}

var linkPattern = regexp.MustCompile(`<([^>]*)>([^,]*)`)

// nextPage finds the address of the next page. It ignores an address on another server, which would get the token.
func nextPage(at *url.URL, links []string) string {
	for _, part := range linkPattern.FindAllStringSubmatch(strings.Join(links, ","), -1) {
		if !strings.Contains(part[2], `rel="next"`) && !strings.Contains(part[2], "rel=next") {
			continue
		}
		if next, err := at.Parse(part[1]); err == nil && next.Scheme == at.Scheme && next.Host == at.Host &&
			next.User == nil {
			return next.String()
		}
	}
	return ""
}

// parseAnswer reads JSON with numbers as they are written: an ID that was rounded is somebody else's.
func parseAnswer(data []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var answer any
	if err := decoder.Decode(&answer); err != nil {
		return nil, untrusted("what it says cannot be read: %w", err)
	}
	if decoder.More() {
		return nil, untrusted("it says more than one thing")
	}
	return answer, nil
}

// bestEmail reads a list of addresses in the way of GitHub: a verified one of a domain that may come in, else the
// primary one.
func bestEmail(answer any, domains []string) (email string, verified bool) {
	list, _ := answer.([]any)
	for _, entry := range list {
		claims, _ := entry.(map[string]any)
		address := claimText(claims, "email")
		at := strings.LastIndexByte(address, '@')
		if at < 0 {
			continue
		}
		sure := claimTrue(claims, "verified")
		fits := slices.Contains(domains, strings.ToLower(address[at+1:]))
		if fits && sure {
			return address, true
		}
		if claimTrue(claims, "primary") || email == "" {
			email, verified = address, sure
		}
	}
	return email, verified
}

// groups reads a list of groups.
func (g groupSource) groups(answer any) (out []string) {
	list, ok := answer.([]any)
	if !ok {
		list = []any{answer}
	}
	for _, entry := range list {
		if text, ok := scalar(entry); ok {
			out = append(out, text)
			continue
		}
		claims, _ := entry.(map[string]any)
		if len(g.fields) == 1 {
			out = append(out, claimValues(claims, g.fields[0])...)
			continue
		}
		parts := make([]string, 0, len(g.fields))
		for _, field := range g.fields {
			if text := claimText(claims, field); text != "" && !strings.Contains(text, "/") {
				parts = append(parts, text)
			}
		}
		if len(parts) == len(g.fields) {
			out = append(out, strings.Join(parts, "/"))
		}
	}
	return out
}
