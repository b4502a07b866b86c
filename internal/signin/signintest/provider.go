package signintest

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// ClientID and ClientSecret are what every provider here knows the lab by.
const (
	ClientID     = "gpulab"
	ClientSecret = "s3cret/with+signs&more"
)

// Person is an account at a provider.
type Person struct {
	ID, Username, Password, Name, Email string
	Unverified                          bool // the e-mail address
	Groups                              []string
}

// Provider is an OpenID Connect provider with a page of its own to sign in on: zitadel's, on a server with TLS.
type Provider struct {
	Issuer    string
	Authority *Authority
	handler   http.Handler
	server    *httptest.Server

	mu      sync.Mutex
	people  map[string]Person // by ID
	clients map[string]*storage.Client
}

// StartProvider starts one for these people on loopback. Tell it with Register where it may send browsers back to.
func StartProvider(t testing.TB, people ...*Person) *Provider {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// Another site than the lab's 127.0.0.1, for a browser.
	return StartProviderAt(t, listener, "localhost", people...)
}

// StartProviderAt starts one on a listener that the lab and its visitors reach by that host: an address or localhost.
func StartProviderAt(t testing.TB, listener net.Listener, host string, people ...*Person) *Provider {
	t.Helper()
	p := &Provider{Authority: NewAuthority(t), people: map[string]Person{}, clients: map[string]*storage.Client{}}
	for _, who := range people {
		p.people[who.ID] = *who
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	p.Issuer = "https://" + net.JoinHostPort(host, port)
	p.handler = exampleop.SetupServer(p.Issuer, &claims{storage.NewStorageWithClients(p, p.clients), p},
		slog.New(slog.DiscardHandler), false)
	var addresses []string
	if net.ParseIP(host) != nil {
		addresses = []string{host}
	}
	p.serve(listener, p.Authority.Server(t, addresses...))
	t.Cleanup(func() { p.server.Close() })
	return p
}

func (p *Provider) serve(listener net.Listener, config *tls.Config) {
	p.server = httptest.NewUnstartedServer(p.handler)
	_ = p.server.Listener.Close()
	p.server.Listener, p.server.TLS = listener, config
	p.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	p.server.StartTLS()
}

// Register lets the provider send browsers back to these addresses alone. Call it before anybody signs in.
func (p *Provider) Register(callbacks ...string) {
	p.clients[ClientID] = storage.WebClient(ClientID, ClientSecret, callbacks...)
}

// SetGroups changes the groups of an account there; it counts from the next sign-in.
func (p *Provider) SetGroups(id string, groups ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	who := p.people[id]
	who.Groups = groups
	p.people[id] = who
}

func (p *Provider) person(id string) (Person, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	who, ok := p.people[id]
	return who, ok
}

// Stop takes the provider away.
func (p *Provider) Stop() { p.server.Close() }

// Resume brings a provider back that was stopped.
func (p *Provider) Resume(listener net.Listener) { p.serve(listener, p.server.TLS) }

// GetUserByID implements storage.UserStore.
func (p *Provider) GetUserByID(id string) *storage.User {
	who, ok := p.person(id)
	if !ok {
		return nil
	}
	first, last, _ := strings.Cut(who.Name, " ")
	return &storage.User{ID: who.ID, Username: who.Username, Password: who.Password, FirstName: first, LastName: last,
		Email: who.Email, EmailVerified: !who.Unverified}
}

// GetUserByUsername implements storage.UserStore.
func (p *Provider) GetUserByUsername(name string) *storage.User {
	p.mu.Lock()
	found := ""
	for id, who := range p.people {
		if who.Username == name {
			found = id
		}
	}
	p.mu.Unlock()
	return p.GetUserByID(found)
}

// ExampleClientID implements storage.UserStore.
func (p *Provider) ExampleClientID() string { return "service" }

// claims tells groups besides what the example tells.
type claims struct {
	*storage.Storage
	of *Provider
}

// SetUserinfoFromToken implements op.Storage.
func (c *claims) SetUserinfoFromToken(ctx context.Context, info *oidc.UserInfo, tokenID, subject, origin string) error {
	if err := c.Storage.SetUserinfoFromToken(ctx, info, tokenID, subject, origin); err != nil {
		return err
	}
	who, _ := c.of.person(subject)
	info.AppendClaims("groups", who.Groups)
	return nil
}

var _ op.Storage = (*claims)(nil)

// Browser is a client that trusts the provider and follows nothing.
func (p *Provider) Browser() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: p.Authority.Pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// SignIn goes to the address that a lab sent the browser to, signs in there, and returns where the provider sends the
// browser back to.
func (p *Provider) SignIn(t testing.TB, address, username, password string) *url.URL {
	t.Helper()
	browser := p.Browser()
	at := mustParse(t, address)
	for range 8 {
		resp, err := browser.Get(at.String())
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if id := at.Query().Get("authRequestID"); id != "" && resp.StatusCode == http.StatusOK {
			form := url.Values{"id": {id}, "username": {username}, "password": {password}}
			if resp, err = browser.PostForm(p.Issuer+"/login/username", form); err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
		}
		next, err := resp.Location()
		if err != nil {
			t.Fatalf("%s leads nowhere: %s", at, resp.Status)
		}
		if at = next; fmt.Sprintf("https://%s", at.Host) != p.Issuer {
			return at
		}
	}
	t.Fatal("the provider never sends the browser back")
	return nil
}

func mustParse(t testing.TB, address string) *url.URL {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
