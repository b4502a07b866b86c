package signin

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-ldap/ldap/v3"
	"github.com/zitadel/oidc/v3/pkg/client/rp"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"golang.org/x/oauth2"

	"github.com/gpulab/gpulab/internal/users"
)

// Report is how one provider is.
type Report struct {
	Name      string    `json:"name"`
	Type      string    `json:"type"`
	Title     string    `json:"title"`
	Callbacks []string  `json:"callbacks,omitempty"` // what the provider has to send browsers back to
	OK        bool      `json:"ok"`                  // no finding keeps people from signing in
	Findings  []Finding `json:"findings"`
	// Person is what would become of somebody who was asked about.
	Person *Preview `json:"person,omitempty"`
}

// Finding is one thing that was looked at.
type Finding struct {
	What  string `json:"what"`
	State string `json:"state"` // ok, warning or failed
	Text  string `json:"text"`
	Next  string `json:"next,omitempty"` // what to do where State is not ok
}

// Preview is somebody in a directory, and what the rules make of them.
type Preview struct {
	Name    string     `json:"name"`
	Email   string     `json:"email,omitempty"`
	Groups  []string   `json:"groups"` // of the directory
	Role    users.Role `json:"role,omitempty"`
	Joins   []string   `json:"joins"` // groups of the lab
	Refused string     `json:"refused,omitempty"`
}

func (r *Report) ok(what, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{What: what, State: "ok", Text: fmt.Sprintf(format, args...)})
}

func (r *Report) warn(what, text, next string) {
	r.Findings = append(r.Findings, Finding{What: what, State: "warning", Text: text, Next: next})
}

func (r *Report) fail(what string, err error, next string) {
	r.OK = false
	r.Findings = append(r.Findings, Finding{What: what, State: "failed", Text: printable(err.Error()), Next: next})
}

// Test looks at all providers, or at the named one, as far as it can be seen without a person who signs in. With a
// person's name, directories are asked for them.
func (s *Service) Test(ctx context.Context, name, person string) ([]Report, error) {
	list := []Report{}
	for i := range s.providers {
		p := &s.providers[i]
		if name != "" && p.Name != name {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, 2*answerTime)
		r := Report{Name: p.Name, Type: p.Type, Title: p.Title, OK: true, Findings: []Finding{}}
		r.testFiles(&p.settings)
		if p.dir != nil {
			p.dir.test(ctx, &r, person)
		} else {
			for _, home := range s.Homes(p.Name) {
				r.Callbacks = append(r.Callbacks, callback(home, p.Name))
				r.testHome(&p.settings, home)
			}
			p.browser.test(ctx, &r)
		}
		cancel()
		list = append(list, r)
	}
	if name != "" && len(list) == 0 {
		return nil, &Error{Kind: ErrNoProvider, Text: "The configuration has no provider " + name + " below signin."}
	}
	return list, nil
}

// Untold adds a warning to the report of each provider that left out groups or e-mail addresses that its domains and
// rules need. why has the text of the warning, by the name of the provider.
func (s *Service) Untold(reports []Report, why map[string]string) {
	for i := range reports {
		r := &reports[i]
		if p, err := s.provider(r.Name); err == nil && why[r.Name] != "" {
			next := p.groupsNext()
			if !p.looksAtGroups() {
				next = "Configure the provider to send the lab's client e-mail addresses, and whether they are verified."
			}
			r.warn("groups", why[r.Name], next)
		}
	}
}

// LabGroups are the groups of the lab that rules name.
func (s *Service) LabGroups() (list []string) {
	for i := range s.providers {
		for _, r := range s.providers[i].Rules {
			if r.Group != "" && !slices.Contains(list, r.Group) {
				list = append(list, r.Group)
			}
		}
	}
	return list
}

func (r *Report) testFiles(s *settings) {
	for what, file := range map[string]string{"client secret": s.ClientSecretFile, "bind password": s.BindPasswordFile} {
		if file == "" {
			continue
		}
		if _, err := secret(file); err != nil {
			r.fail(what, err, "Write the secret alone into "+file+", for root to read.")
			continue
		}
		if info, err := os.Stat(file); err == nil && info.Mode().Perm()&0o077 != 0 {
			r.warn(what, "others on this machine may read "+file, "Run: chmod 600 "+file)
			continue
		}
		r.ok(what, "in %s", file)
	}
	if s.CAFile != "" {
		if _, err := roots(s.CAFile); err != nil {
			r.fail("certificates", err, "Write the certificate of the authority into "+s.CAFile+", in PEM.")
		}
	}
}

func (r *Report) testHome(s *settings, home string) {
	u, err := url.Parse(home)
	if err != nil {
		return
	}
	if _, err := netip.ParseAddr(u.Hostname()); err == nil && (s.Type == typeGoogle || s.Type == typeMicrosoft) {
		r.warn("address", s.Title+" sends browsers back to names only, not to the address "+u.Hostname(),
			"Give the lab a name: the key names of the configuration.")
	}
}

func (o *openID) test(ctx context.Context, r *Report) {
	web, err := o.httpClient()
	if err != nil {
		return // said already
	}
	defer web.CloseIdleConnections()
	about, ahead, err := o.about(ctx, web)
	if err != nil {
		r.fail("discovery", err, o.discoveryNext(err))
		return
	}
	r.ok("discovery", "%s answers", o.Issuer)
	switch {
	case ahead.Abs() > skew:
		r.fail("clock", errors.New(clocksApart(ahead, "the provider's")+", so the lab refuses sign-ins"), clockNext)
	case ahead.Abs() > clockWarning:
		r.warn("clock", clocksApart(ahead, "the provider's"), clockNext)
	}
	if algs := about.IDTokenSigningAlgValuesSupported; len(algs) > 0 && !slices.ContainsFunc(algs, func(a string) bool {
		return slices.Contains(algorithms, a)
	}) {
		r.fail("signature", fmt.Errorf("the provider signs with %s only", strings.Join(algs, ", ")),
			"Make it sign with RS256 or ES256 for this client.")
	}
	right, err := secret(o.ClientSecretFile)
	if err != nil {
		return // said already
	}
	r.testClient(right, func(secret string) error {
		party, err := o.discover(ctx, secret)
		if err != nil {
			return err
		}
		_, err = rp.CodeExchange[*oidc.IDTokenClaims](ctx, nobodysCode, party, func() []oauth2.AuthCodeOption {
			return []oauth2.AuthCodeOption{
				oauth2.SetAuthURLParam("redirect_uri", r.Callbacks[0]), oauth2.VerifierOption(oauth2.GenerateVerifier()),
			}
		})
		return err
	})
}

// clockWarning is the difference between clocks above which the check warns. People can sign in up to skew.
const clockWarning = 30 * time.Second

// discoveryNext is what to do about a provider that cannot be asked about itself.
func (o *openID) discoveryNext(err error) string {
	var calls *issuerError
	var status *statusError
	switch {
	case errors.As(err, &calls) && calls.calls != "":
		return fmt.Sprintf("Write %s exactly as the provider does; this lab has %s.", o.issuerKeys(), o.Issuer)
	case errors.As(err, &calls), errors.As(err, &status):
		return fmt.Sprintf("Check %s: the provider has to tell about itself at %s.", o.issuerKeys(), o.discovery())
	}
	return orText(o.trustNext(err, o.issuerKeys()),
		"Check the name and the way there: open "+o.discovery()+" from this machine.")
}

// issuerKeys are the keys of the configuration that the issuer is made of.
func (o *openID) issuerKeys() string {
	switch o.Type {
	case typeKeycloak:
		return "url and realm"
	case typeMicrosoft:
		return "tenant"
	}
	return "issuer"
}

// trustNext is what to do where the certificate is what keeps the lab from a provider whose address stands at key;
// empty where it is not.
func (s *settings) trustNext(err error, key string) string {
	var unknown x509.UnknownAuthorityError
	var names x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknown) && s.CAFile == "":
		return "Write the certificate of the authority that signed it into a file, and its path as caFile: this machine " +
			"does not know that authority."
	case errors.As(err, &unknown):
		return "Another authority than that in " + s.CAFile + " has signed it: write the right one's certificate into " +
			"that file."
	case errors.As(err, &names):
		return "Write " + key + " with a name that stands in its certificate."
	case errors.As(err, &invalid):
		return "Let those who run it renew its certificate, and check this machine's clock."
	}
	return ""
}

// nobodysCode is a code that no provider has given to anybody.
const nobodysCode = "gpulab-check"

func (o *plainOAuth) test(ctx context.Context, r *Report) {
	cfg, err := o.config(flow{redirect: r.Callbacks[0]})
	if err != nil {
		return // said already
	}
	web, err := o.httpClient()
	if err != nil {
		return
	}
	defer web.CloseIdleConnections()
	r.testClient(cfg.ClientSecret, func(secret string) error {
		with := oauth2.Config{
			ClientID: cfg.ClientID, ClientSecret: secret, RedirectURL: cfg.RedirectURL, Endpoint: cfg.Endpoint,
		}
		_, err := with.Exchange(context.WithValue(ctx, oauth2.HTTPClient, web), nobodysCode,
			oauth2.VerifierOption(oauth2.GenerateVerifier()))
		return err
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.UserinfoURL, nil)
	if err != nil {
		return
	}
	resp, err := web.Do(req)
	if err != nil {
		r.fail("userinfo", plainReason(err), orText(o.trustNext(err, "userinfoURL"),
			"Check the name and the way there: open "+o.UserinfoURL+" from this machine."))
		return
	}
	_ = resp.Body.Close()
	r.ok("userinfo", "%s answers", o.UserinfoURL)
}

// testClient finds out whether the provider takes client ID and secret, without anybody signing in: it asks with a code
// that nobody was given, once with the secret and once with another. Which of them is refused for what tells, unless
// the provider looks at the code first.
func (r *Report) testClient(right string, exchange func(secret string) error) {
	err := exchange(right)
	var refused *oauth2.RetrieveError
	switch {
	case err == nil:
		r.fail("client", errors.New("the provider took a code that it never gave out"), "Do not use this provider.")
		return
	case !errors.As(err, &refused):
		r.fail("client", plainReason(err), "Check the way to the provider's token address from this machine.")
		return
	case refusesClient(refused):
		r.fail("client", errors.New("the provider does not take client ID and secret"),
			"Copy both anew from the provider's page of this client.")
		return
	}
	if err := exchange(right + "-and-more"); right != "" && errors.As(err, &refused) && refusesClient(refused) {
		r.ok("client", "the provider knows client ID and secret")
		return
	}
	r.warn("client", "the provider does not tell whether client ID and secret are right", "Sign in once to see.")
}

// refusesClient tells whether a provider's refusal is about the client rather than the code.
func refusesClient(refused *oauth2.RetrieveError) bool {
	// The last is GitHub's word.
	return slices.Contains([]string{"invalid_client", "unauthorized_client", "incorrect_client_credentials"},
		refused.ErrorCode) ||
		refused.Response != nil && refused.Response.StatusCode == http.StatusUnauthorized
}

// plainReason leaves the address out of an error: it may hold what was sent.
func plainReason(err error) error {
	var at *url.Error
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

func (d *directory) test(ctx context.Context, r *Report, person string) {
	conn, err := d.connect(ctx)
	if err != nil {
		r.fail("connection", plainReason(err), orText(d.trustNext(err, "url"),
			"Check url and the way there from this machine."))
		return
	}
	defer func() { _ = conn.Close() }()
	r.ok("connection", "%s answers, encrypted", d.URL)
	if err := d.bind(conn); err != nil {
		r.fail("bind", err, "Check bindDN and the password in its file.")
		return
	}
	r.ok("bind", "as %s", orText(d.BindDN, "nobody"))
	bases := []string{d.UserBase}
	if d.GroupBase != "" {
		bases = append(bases, d.GroupBase)
	}
	for _, base := range bases {
		_, err := conn.Search(ldap.NewSearchRequest(base, ldap.ScopeBaseObject, ldap.NeverDerefAliases, 1,
			seconds(directoryTime), false,
			"(objectClass=*)", []string{"1.1"}, nil))
		if err != nil {
			r.fail("search", fmt.Errorf("below %s: %w", base, err),
				"Check how it is written, and that "+orText(d.BindDN, "everybody")+" may read there.")
			return
		}
	}
	r.ok("search", "below %s", strings.Join(bases, " and "))
	if person != "" {
		d.testPerson(conn, r, person)
	}
}

func (d *directory) testPerson(conn *ldap.Conn, r *Report, person string) {
	entry, err := d.find(conn, person)
	if err != nil {
		if errors.Is(err, errNobody) {
			err = fmt.Errorf("%s fits nobody, or more than one", fillFilter(d.UserFilter, person, ""))
		}
		r.fail("person", err, "Check userBase and userFilter.")
		return
	}
	r.ok("person", "%s", entry.DN)
	w, err := d.describe(conn, person, entry)
	if err != nil {
		r.fail("person", err, "")
		return
	}
	if w.groupsGap.is() {
		r.warn("groups", "some groups of this person are missing: "+w.groupsGap.why, d.groupsNext())
	}
	o := d.judge(w)
	view := &Preview{
		Name: w.name, Email: w.email, Groups: append([]string{}, w.groups...), Role: o.Role, Joins: []string{},
		Refused: o.Refused,
	}
	for _, g := range o.Groups {
		view.Joins = append(view.Joins, g.Name)
	}
	r.Person = view
}
