// Package signin asks outside identity providers who somebody is: OpenID Connect, plain OAuth 2 in the way of GitHub,
// and directories (LDAP, Active Directory). It reads their configuration, keeps what is under way between a click and
// the return of the browser, checks what providers say, and turns it into a users.Outside by the lab's rules. Accounts
// are package users' and pages are package webui's.
//
// A sign-in by browser is bound three times: to the browser that began it, to the provider it was begun with (each has
// a return address of its own), and to one use. Secrets are read from their files when they are needed and appear in
// no log.
//
// cmd/gpulab and webui may import it.
package signin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// What an error is about. Test with errors.Is; show people the text of the *Error around it.
var (
	ErrNoProvider  = errors.New("no such provider")
	ErrUnavailable = errors.New("provider does not answer")
	ErrExpired     = errors.New("sign-in not begun here, or too long ago")
	ErrCancelled   = errors.New("sign-in refused by the provider")
	ErrInvalid     = errors.New("the provider's answer cannot be trusted")
)

// Error is a sentence for a person. Cause is for the log and may be nil. Why is for the audit log, and may be empty.
type Error struct {
	Kind  error
	Text  string
	Why   string
	Cause error
}

func (e *Error) Error() string {
	if e.Cause != nil {
		return e.Text + " (" + e.Cause.Error() + ")"
	}
	return e.Text
}

// Unwrap makes errors.Is find the kind.
func (e *Error) Unwrap() error { return e.Kind }

const (
	// flowTTL is how long somebody may take at the provider.
	flowTTL = 10 * time.Minute
	// maxFlows are under way at once, perAddress from one address: a class behind a router is one.
	maxFlows, perAddress = 5000, 200
	// answerTime is how long a provider has for each part of a sign-in.
	answerTime = 10 * time.Second
)

// Flow is a sign-in by browser that is under way, with what its beginner wants to know again at its end.
type Flow struct {
	Browser string // what ties it to one browser; never empty
	Remote  string // address of that browser
	Home    string // one of Homes, by which it came; "" is the first
	Next    string // where the browser goes on to, a path
	// LinkTo is the account to link, 0 to sign in; Session is the one that asked.
	LinkTo  int64
	Session string
}

// flow is a Flow with what ties it to the provider's answer.
type flow struct {
	Flow
	provider, nonce, verifier, redirect string
}

// Info is a provider as pages show it.
type Info struct {
	Name, Title string
	Directory   bool // people type name and password here rather than there
	Network     bool // the connection tells who somebody is: see Way
}

// ServiceConfig is what a Service needs. All but Proxy and Log are required where there are providers.
type ServiceConfig struct {
	Providers []Config
	// URL is the lab's own address, the one that providers know: https://gpu.lab.example.
	URL func() string
	// Proxy tells for an address which proxy leads there, nil for none; without it the environment does.
	Proxy func(*url.URL) (*url.URL, error)
	Log   *slog.Logger
}

// Service is all providers of a lab. Its methods may be called from any goroutine.
type Service struct {
	cfg       ServiceConfig
	providers []provider
	flows     *Vault[flow]
}

// provider is one of them. Exactly one of browser and dir is set.
type provider struct {
	settings
	browser browserProvider
	dir     *directory
	contact *contact
}

// browserProvider is one where people sign in on its own page.
type browserProvider interface {
	// begin returns the address to send the browser to.
	begin(ctx context.Context, state string, f flow) (string, error)
	// finish checks an answer and says who it is. A reason that cannot be trusted is an ErrInvalid.
	finish(ctx context.Context, code string, answer url.Values, f flow) (who, error)
	// answers asks whether it is there.
	answers(ctx context.Context) error
	// test looks at what can be seen without a person.
	test(ctx context.Context, r *Report)
}

// New checks the configuration; nothing is contacted yet, so that a lab starts while a provider is away.
func New(cfg ServiceConfig) (*Service, error) {
	if err := Check(cfg.Providers); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{cfg: cfg, flows: NewVault[flow](flowTTL, maxFlows, perAddress)}
	for i := range cfg.Providers {
		p := provider{settings: cfg.Providers[i].complete(), contact: &contact{}}
		p.proxy = cfg.Proxy
		switch {
		case p.directory():
			p.dir = &directory{settings: p.settings, log: cfg.Log, contact: p.contact}
		case p.Type == typeOAuth, p.Type == typeGitHub:
			p.browser = &plainOAuth{settings: p.settings}
		default:
			p.browser = &openID{settings: p.settings, now: time.Now, contact: p.contact}
		}
		s.providers = append(s.providers, p)
	}
	return s, nil
}

// Providers lists them in the order of the configuration.
func (s *Service) Providers() []Info {
	list := make([]Info, 0, len(s.providers))
	for i := range s.providers {
		p := &s.providers[i]
		list = append(list, Info{Name: p.Name, Title: p.Title, Directory: p.dir != nil})
	}
	return list
}

// Directories are those of them that are asked for a name and password, for users.Service.UseDirectories.
func (s *Service) Directories() []users.Directory {
	var list []users.Directory
	for i := range s.providers {
		if d := s.providers[i].dir; d != nil {
			list = append(list, d)
		}
	}
	return list
}

// Rules returns, by realm, what Outside.Rules is for the providers of the configuration.
func (s *Service) Rules() map[string]string {
	rules := map[string]string{}
	for i := range s.providers {
		rules[s.providers[i].realm] = s.providers[i].ruleSum()
	}
	return rules
}

// Homes are the addresses of the lab at which a provider may send browsers back: the lab's own, and those by the names
// that the configuration has for the provider. A browser that uses another one has to come to the first of them.
func (s *Service) Homes(provider string) []string {
	own := strings.ToLower(s.cfg.URL())
	list := []string{own}
	p, err := s.provider(provider)
	u, wrong := url.Parse(own)
	if err != nil || wrong != nil {
		return list
	}
	port := u.Port()
	for _, name := range p.Names {
		u.Host = strings.ToLower(name)
		if strings.Contains(name, ":") {
			u.Host = "[" + u.Host + "]"
		}
		if port != "" {
			u.Host += ":" + port
		}
		if !slices.Contains(list, u.String()) {
			list = append(list, u.String())
		}
	}
	return list
}

// callback is where a provider sends browsers back to, by one of the lab's addresses; it has to know this address.
func callback(home, provider string) string { return home + "/signin/" + provider + "/callback" }

func (s *Service) provider(name string) (*provider, error) {
	for i := range s.providers {
		if s.providers[i].Name == name {
			return &s.providers[i], nil
		}
	}
	return nil, errNoProvider()
}

func errNoProvider() error {
	return &Error{Kind: ErrNoProvider, Text: "This lab knows no such way to sign in."}
}

// Begin notes that a browser is on its way to a provider and returns the address to send it to. Errors are
// ErrNoProvider and ErrUnavailable.
func (s *Service) Begin(ctx context.Context, name string, about Flow) (address string, err error) {
	p, err := s.provider(name)
	if err != nil {
		return "", err
	}
	if p.browser == nil {
		return "", &Error{Kind: ErrNoProvider, Text: "Type name and password of " + p.Title + " into the form of this lab."}
	}
	if about.Browser == "" {
		return "", errors.New("signin: a flow without a browser")
	}
	homes := s.Homes(name)
	if about.Home == "" {
		about.Home = homes[0]
	}
	if !slices.Contains(homes, about.Home) {
		return "", fmt.Errorf("signin: %s sends nobody back to %q", name, printable(about.Home))
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	f := newFlow(about, name, callback(about.Home, name))
	state := s.flows.Put(f, about.Browser, about.Remote)
	address, err = p.browser.begin(ctx, state, f)
	if err != nil {
		s.flows.Take(state, about.Browser)
		return "", s.away(p, err)
	}
	return address, nil
}

// away is the error for a provider that cannot be used now; the reason goes to the log.
func (s *Service) away(p *provider, err error) error {
	s.cfg.Log.Warn("an identity provider cannot be used; `gpulab signin check` says more", "provider", p.Name, "err", err)
	return &Error{Kind: ErrUnavailable, Cause: err, Text: fmt.Sprintf(
		"%s does not answer this lab at the moment. Try again in a few minutes; accounts with a password of this lab sign "+
			"in as always.", p.Title)}
}

// Finish takes the answer with which a provider sent a browser back. The flow is the one that was begun; it is used up
// whatever comes of it. Errors are ErrNoProvider, ErrExpired, ErrCancelled, ErrUnavailable and ErrInvalid.
func (s *Service) Finish(ctx context.Context, name, browser string, answer url.Values) (Flow, users.Outside, error) {
	p, err := s.provider(name)
	if err != nil || p.browser == nil {
		return Flow{}, users.Outside{}, errNoProvider()
	}
	f, ok := s.flows.Take(answer.Get("state"), browser)
	if !ok || len(answer["state"]) != 1 {
		return Flow{}, users.Outside{}, &Error{Kind: ErrExpired, Text: "This sign-in was begun in another browser, more " +
			"than 10 minutes ago, or is over already. Begin it again."}
	}
	invalid := func(cause error) (Flow, users.Outside, error) {
		s.cfg.Log.Warn("a sign-in was refused", "provider", p.Name, "remote", f.Remote, "err", cause)
		var clock *clockError
		if errors.As(cause, &clock) {
			return f.Flow, users.Outside{}, &Error{Kind: ErrInvalid, Cause: cause,
				Why: clocksApart(clock.ahead, "the provider's"), Text: fmt.Sprintf(
					"You were not signed in, because the clocks of this lab and of %s differ too much: %s. Tell an admin of "+
						"the lab. %s",
					p.Title, clocksApart(clock.ahead, "the provider's"), clockNext)}
		}
		return f.Flow, users.Outside{}, &Error{Kind: ErrInvalid, Cause: cause, Text: fmt.Sprintf(
			"You were not signed in, because the answer of %s failed a security check. Try again. If this happens again, "+
				"tell an admin of the lab.", p.Title)}
	}
	if f.provider != name {
		return invalid(fmt.Errorf("the sign-in was begun with %s", f.provider))
	}
	if code := answer.Get("error"); code != "" {
		if code == "server_error" || code == "temporarily_unavailable" {
			return f.Flow, users.Outside{}, s.away(p, fmt.Errorf("it answered %q", code))
		}
		s.cfg.Log.Info("a provider refused a sign-in", "provider", p.Name, "error", printable(code), "description",
			printable(answer.Get("error_description")))
		return f.Flow, users.Outside{}, &Error{
			Kind: ErrCancelled, Text: fmt.Sprintf("%s did not sign you in, or you went back. Nothing was changed here.",
				p.Title),
		}
	}
	if len(answer["code"]) != 1 || answer.Get("code") == "" {
		return invalid(errors.New("there is no code in the answer"))
	}
	ctx, cancel := context.WithTimeout(ctx, 2*answerTime)
	defer cancel()
	w, err := p.browser.finish(ctx, answer.Get("code"), answer, f)
	if !errors.Is(err, errUntrusted) { // which says more about the answer than about the provider
		p.contact.note(ctx, err)
	}
	switch {
	case errors.Is(err, errUntrusted):
		return invalid(err)
	case err != nil:
		return f.Flow, users.Outside{}, s.away(p, err)
	case w.subject == "":
		return invalid(errors.New("it names nobody"))
	}
	return f.Flow, p.judge(w), nil
}

// SignIn checks a name and password with one directory, for linking; nil where they do not fit.
func (s *Service) SignIn(ctx context.Context, name, username, password string) (*users.Outside, error) {
	p, err := s.provider(name)
	if err != nil || p.dir == nil {
		return nil, errNoProvider()
	}
	o, err := p.dir.SignIn(ctx, username, password)
	if err != nil {
		return nil, s.away(p, err)
	}
	return o, nil
}

// errUntrusted marks an answer that must not sign anybody in.
var errUntrusted = errors.New("untrusted")

func untrusted(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errUntrusted, fmt.Errorf(format, args...))
}

// printable is a text from outside for the log: short and on one line.
func printable(text string) string {
	if len(text) > 200 {
		text = text[:200]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, ""))
}
