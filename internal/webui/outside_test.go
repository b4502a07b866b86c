package webui_test

import (
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/signin/signintest"
	"github.com/gpulab/gpulab/internal/users"
)

// A campus is a lab with an OpenID Connect provider of somebody else's.
type campus struct {
	*lab
	uni *signintest.Provider
	cfg signin.Config
}

// newCampus starts one; edit changes how the lab uses the provider.
func newCampus(t testing.TB, edit func(*signin.Config), more ...signin.Config) *campus {
	t.Helper()
	c := &campus{lab: newLab(t), uni: signintest.StartProvider(t,
		&signintest.Person{ID: "1", Username: "zoe", Password: "zoe's", Name: "Zoë Ünal", Email: "zoe@example.org", Groups: []string{"students"}},
		&signintest.Person{ID: "2", Username: "ada", Password: "ada's", Name: "Another Ada", Email: "ada@example.org", Groups: []string{"students", "gpu-admins"}},
		&signintest.Person{ID: "3", Username: "eve", Password: "eve's", Name: "Eve Stranger", Email: "eve@evil.example"})}
	c.uni.Register(c.server.URL+"/signin/uni/callback", c.elsewhere()+"/signin/uni/callback")
	c.cfg = signin.Config{Name: "uni", Type: "oidc", Title: "Example University", Issuer: c.uni.Issuer, ClientID: signintest.ClientID,
		ClientSecretFile: signintest.SecretFile(t, signintest.ClientSecret), CAFile: c.uni.Authority.File, Help: "the service desk",
		Rules: []signin.Rule{{Groups: []string{"students"}, Role: users.RoleMember, Group: "vision"}, {Groups: []string{"gpu-admins"}, Role: users.RoleAdmin}}}
	if edit != nil {
		edit(&c.cfg)
	}
	c.use(t, append([]signin.Config{c.cfg}, more...)...)
	return c
}

// elsewhere is the lab by another name than its own.
func (c *campus) elsewhere() string {
	return strings.Replace(c.server.URL, "127.0.0.1", "localhost", 1)
}

// use makes the lab use these providers.
func (c *campus) use(t testing.TB, list ...signin.Config) {
	t.Helper()
	service, err := signin.New(signin.ServiceConfig{Providers: list, URL: func() string { return c.server.URL }, Log: slog.New(slog.NewTextHandler(testWriter{t}, nil))})
	if err != nil {
		t.Fatal(err)
	}
	c.pages.SetSignIn(service)
	c.users.UseDirectories(service.Directories()...)
}

// begin clicks on the button and returns where the lab sends the browser.
func (c *client) begin(t testing.TB, next string) string {
	t.Helper()
	got := c.post("/login", "/signin/uni", url.Values{"next": {next}})
	got.want(t, http.StatusOK, "Going on to Example University")
	address, found := strings.CutPrefix(got.header.Get("Refresh"), "0; url=")
	if !found || !strings.Contains(got.body, "Go on") {
		t.Fatalf("sent to %q", got.header.Get("Refresh"))
	}
	return address
}

// callback is the path and query with which the provider sends the browser back.
func callback(u *url.URL) string { return u.Path + "?" + u.RawQuery }

func TestSignInWithAProvider(t *testing.T) {
	l := newCampus(t, nil)
	l.vision(t)
	c := l.client(t, "")
	c.get("/login?next=/gpus").want(t, http.StatusOK, "Sign in with Example University", "Or with name and password")
	planted := c.http.Jar.Cookies(nil)
	back := l.uni.SignIn(t, c.begin(t, "/gpus"), "zoe", "zoe's")
	got := c.comeBack(callback(back))
	got.want(t, http.StatusSeeOther)
	if to := got.header.Get("Location"); to != "/gpus" {
		t.Errorf("goes on to %q", to)
	}
	c.get("/").want(t, http.StatusOK, "Zoë Ünal")
	page := c.get("/account")
	page.want(t, http.StatusOK, "Example University", "zoe", "has no password of the lab’s own")
	u, err := l.users.Person(t.Context(), "zoe")
	if err != nil || u.Role != users.RoleMember || len(u.Groups) != 1 || u.Groups[0].Group != "vision" || u.Email != "zoe@example.org" {
		t.Errorf("%+v, %v", u, err)
	}
	// The same answer once more, here and in another browser, is worth nothing.
	c.comeBack(callback(back)).want(t, http.StatusForbidden, "This sign-in cannot go on")
	other := l.client(t, "")
	other.get("/login")
	other.comeBack(callback(back)).want(t, http.StatusForbidden, "begun in another browser")
	other.get("/account").want(t, http.StatusSeeOther)
	// What a browser had before it signed in is worth nothing either.
	stale := l.client(t, "")
	stale.http.Jar.SetCookies(nil, planted)
	stale.get("/account").want(t, http.StatusSeeOther)
	ada := l.client(t, "ada")
	ada.get("/users").want(t, http.StatusOK, "with Example University")
	ada.get("/users/zoe").want(t, http.StatusOK, "Signs in with", "Example University", "Unlink")
	if got := actions(t, l.lab); !strings.Contains(got, "zoe identity.join zoe") || !strings.Contains(got, "system sign-in.failed") {
		t.Error(got)
	}
}

// One browser whose sign-ins fail keeps nobody else at its address out.
func TestBadReturnsLockNobodyOut(t *testing.T) {
	l := newCampus(t, nil)
	student := l.client(t, "")
	student.get("/login")
	bad := func() answer { return student.comeBack("/signin/uni/callback?state=guessed&code=x") }
	for range 110 {
		bad()
	}
	bad().want(t, http.StatusTooManyRequests)
	mate := l.client(t, "")
	got := mate.comeBack(callback(l.uni.SignIn(t, mate.begin(t, "/gpus"), "zoe", "zoe's")))
	got.want(t, http.StatusSeeOther)
}

// A sign-in leads nowhere but into the lab.
func TestSignInLeadsNowhereElse(t *testing.T) {
	l := newCampus(t, nil)
	for _, next := range []string{"https://evil.example/", "//evil.example", `/\evil.example`, "javascript:alert(1)", "/login"} {
		c := l.client(t, "")
		got := c.comeBack(callback(l.uni.SignIn(t, c.begin(t, next), "zoe", "zoe's")))
		if to := got.header.Get("Location"); got.status != http.StatusSeeOther || to != "/" {
			t.Errorf("%q leads to %d %q", next, got.status, to)
		}
	}
}

// Somebody who is lured to the end of an attacker's sign-in stays who they are.
func TestLuredIntoAnothersSignIn(t *testing.T) {
	l := newCampus(t, nil)
	attacker := l.client(t, "")
	lure := callback(l.uni.SignIn(t, attacker.begin(t, "/"), "zoe", "zoe's"))
	victim, stranger := l.client(t, "ben"), l.client(t, "")
	stranger.get("/login")
	victim.comeBack(lure).want(t, http.StatusForbidden, "begun in another browser")
	stranger.comeBack(lure).want(t, http.StatusForbidden)
	victim.get("/account").want(t, http.StatusOK, "Ben Okafor", "not linked")
	stranger.get("/account").want(t, http.StatusSeeOther)
	// The attacker's own account, to be linked to the victim's.
	zoe := l.client(t, "")
	zoe.comeBack(callback(l.uni.SignIn(t, zoe.begin(t, "/"), "zoe", "zoe's"))).want(t, http.StatusSeeOther)
	l.users.exec(t, "DELETE FROM identities")
	got := zoe.post("/account/identities/uni", "/account/identities/uni/link", nil)
	got.want(t, http.StatusOK, "Going on")
	lure = callback(l.uni.SignIn(t, strings.TrimPrefix(got.header.Get("Refresh"), "0; url="), "zoe", "zoe's"))
	victim.comeBack(lure).want(t, http.StatusForbidden, "begun in another browser")
	if n := l.users.count(t, "identities"); n != 0 {
		t.Errorf("%d accounts were linked", n)
	}
	// Nor does a form of another site, or one without the password.
	victim.do("POST", "/account/identities/uni/link", url.Values{"old": {"ben-password"}}, nil).want(t, http.StatusForbidden)
	victim.do("POST", "/account/identities/uni/link", url.Values{"old": {"ben-password"}, "csrf": {victim.token("/account")}}, func(r *http.Request) {
		r.Header.Set("Sec-Fetch-Site", "cross-site")
	}).want(t, http.StatusForbidden)
	victim.post("/account/identities/uni", "/account/identities/uni/link", nil).want(t, http.StatusUnprocessableEntity, "not your current password")
}

func TestLinkAnOutsideAccount(t *testing.T) {
	l := newCampus(t, nil)
	ben := l.client(t, "ben")
	ben.get("/account").want(t, http.StatusOK, "Other ways to sign in", "not linked")
	ben.get("/account/identities/uni").want(t, http.StatusOK, "Link Example University", "Your password here")
	ben.get("/account/identities/none").want(t, http.StatusNotFound)
	link := func(c *client, password, name string) answer {
		got := c.post("/account/identities/uni", "/account/identities/uni/link", url.Values{"old": {password}})
		got.want(t, http.StatusOK, "Going on")
		return c.comeBack(callback(l.uni.SignIn(t, strings.TrimPrefix(got.header.Get("Refresh"), "0; url="), name, name+"'s")))
	}
	got := link(ben, "ben-password", "ada")
	got.want(t, http.StatusSeeOther)
	ben.get(got.header.Get("Location")).want(t, http.StatusOK, "It is linked.", "Unlink")
	lea := l.client(t, "lea")
	link(lea, "lea-password", "ada").want(t, http.StatusConflict, "belongs to another account of this lab")
	link(lea, "lea-password", "eve").want(t, http.StatusForbidden, "is not in a group that may use this lab. Ask the service desk.")
	// Ben's role was given by hand, so the rules of the linked account leave it.
	c := l.client(t, "")
	c.comeBack(callback(l.uni.SignIn(t, c.begin(t, "/"), "ada", "ada's"))).want(t, http.StatusSeeOther)
	c.get("/").want(t, http.StatusOK, "Ben Okafor")
	c.get("/users").want(t, http.StatusForbidden)
	admin := l.client(t, "ada")
	admin.get("/users/ben").want(t, http.StatusOK, "The role was given by hand")
	admin.post("/users/ben", "/users/ben/role-by-rules", nil).want(t, http.StatusSeeOther)
	c = l.client(t, "")
	c.comeBack(callback(l.uni.SignIn(t, c.begin(t, "/"), "ada", "ada's"))).want(t, http.StatusSeeOther)
	c.get("/users").want(t, http.StatusOK)
	if u, err := l.users.ByHandle(t.Context(), "ben"); err != nil || u.Role != users.RoleAdmin {
		t.Errorf("%+v, %v", u, err)
	}
	id := regexp.MustCompile(`/account/identities/(\d+)/unlink`).FindStringSubmatch(c.get("/account/identities/uni").body)
	if id == nil {
		t.Fatal("no form to unlink")
	}
	lea.post("/account", "/account/identities/"+id[1]+"/unlink", url.Values{"old": {"lea-password"}}).want(t, http.StatusSeeOther)
	c.post("/account/identities/uni", "/account/identities/"+id[1]+"/unlink", url.Values{"old": {"wrong"}}).want(t, http.StatusUnprocessableEntity, "not your current password")
	if n := l.users.count(t, "identities"); n != 1 {
		t.Errorf("%d identities", n)
	}
	c.post("/account/identities/uni", "/account/identities/"+id[1]+"/unlink", url.Values{"old": {"ben-password"}}).want(t, http.StatusSeeOther)
	if n := l.users.count(t, "identities"); n != 0 {
		t.Errorf("%d identities", n)
	}
	if got := actions(t, l.lab); !strings.Contains(got, "ben identity.link ben") || !strings.Contains(got, "ada user.role-by-rules ben") || !strings.Contains(got, "ben identity.unlink ben") {
		t.Error(got)
	}
}

// Without a password of the lab's own, only a fresh sign-in changes the ways to sign in, and the last one stays.
func TestLastWayIn(t *testing.T) {
	l := newCampus(t, nil)
	c := l.client(t, "")
	c.comeBack(callback(l.uni.SignIn(t, c.begin(t, "/"), "zoe", "zoe's"))).want(t, http.StatusSeeOther)
	c.post("/account/identities/uni", "/account/identities/1/unlink", nil).want(t, http.StatusConflict, "only way to sign in")
	l.users.exec(t, "UPDATE sessions SET created_at = ?", time.Now().Add(-time.Hour).UnixMilli())
	l.users.exec(t, "UPDATE users SET name = name") // nothing; the next line drops what is kept of sessions
	if err := l.users.SetProfile(t.Context(), 5, "Zoë", ""); err != nil {
		t.Fatal(err)
	}
	c.get("/account/identities/uni").want(t, http.StatusOK, "Sign out and in again")
	c.post("/account", "/account/identities/1/unlink", nil).want(t, http.StatusForbidden, "Sign out and in again")
	admin := l.client(t, "ada")
	admin.post("/users/zoe", "/users/zoe/identities/1/unlink", nil).want(t, http.StatusSeeOther)
	if n := l.users.count(t, "identities"); n != 0 {
		t.Errorf("%d identities", n)
	}
}

func TestChooseASignInName(t *testing.T) {
	l := newCampus(t, nil)
	c := l.client(t, "")
	got := c.comeBack(callback(l.uni.SignIn(t, c.begin(t, "/gpus"), "ada", "ada's")))
	got.want(t, http.StatusSeeOther)
	page := got.header.Get("Location")
	if !strings.HasPrefix(page, "/handle/choose?key=") {
		t.Fatalf("sent to %q", page)
	}
	c.get(page).want(t, http.StatusOK, "Welcome, Another Ada", "Only the name ada cannot be had", `value="ada-2"`)
	l.client(t, "").get(page).want(t, http.StatusGone)
	l.client(t, "ben").get(page).want(t, http.StatusGone)
	key := strings.TrimPrefix(page, "/handle/choose?key=")
	for handle, says := range map[string]string{"ada": "taken", "root": "reserved", "": "Choose a sign-in name", "../x": "cannot be a sign-in name"} {
		c.post(page, "/handle/choose", url.Values{"key": {key}, "handle": {handle}}).want(t, http.StatusUnprocessableEntity, says)
	}
	thief := l.client(t, "")
	thief.post("/login", "/handle/choose", url.Values{"key": {key}, "handle": {"mallory"}}).want(t, http.StatusGone)
	got = c.post(page, "/handle/choose", url.Values{"key": {key}, "handle": {"countess"}})
	got.want(t, http.StatusSeeOther)
	if to := got.header.Get("Location"); to != "/gpus" {
		t.Errorf("goes on to %q", to)
	}
	u, err := l.users.ByHandle(t.Context(), "countess")
	if err != nil || u.Role != users.RoleAdmin {
		t.Errorf("%+v, %v", u, err)
	}
	again := l.client(t, "")
	again.comeBack(callback(l.uni.SignIn(t, again.begin(t, "/"), "ada", "ada's"))).want(t, http.StatusSeeOther)
	if n := l.users.count(t, "users"); n != 5 {
		t.Errorf("%d accounts", n)
	}
}

func TestNotAdmitted(t *testing.T) {
	l := newCampus(t, func(c *signin.Config) { c.NoMatch = "suspend" })
	c := l.client(t, "")
	c.comeBack(callback(l.uni.SignIn(t, c.begin(t, "/"), "eve", "eve's"))).want(t, http.StatusForbidden,
		"Your account at Example University is not in a group that may use this lab. Ask the service desk.")
	c.get("/account").want(t, http.StatusSeeOther)
	c = l.client(t, "")
	c.comeBack(callback(l.uni.SignIn(t, c.begin(t, "/"), "zoe", "zoe's"))).want(t, http.StatusSeeOther)
	// The rules change: zoe is out at her next sign-in, and signed out where she was signed in.
	l.cfg.Rules = l.cfg.Rules[1:]
	l.use(t, l.cfg)
	again := l.client(t, "")
	again.comeBack(callback(l.uni.SignIn(t, again.begin(t, "/"), "zoe", "zoe's"))).want(t, http.StatusForbidden, "not in a group")
	c.get("/account").want(t, http.StatusSeeOther)
	if u, err := l.users.ByHandle(t.Context(), "zoe"); err != nil || !u.Suspended {
		t.Errorf("%+v, %v", u, err)
	}
	if got := actions(t, l.lab); !strings.HasSuffix(got, "system user.suspend zoe") {
		t.Error(got)
	}
	l.cfg.Rules, l.cfg.NoMatch, l.cfg.Accounts = nil, "", "existing"
	l.use(t, l.cfg)
	again = l.client(t, "")
	again.comeBack(callback(l.uni.SignIn(t, again.begin(t, "/"), "eve", "eve's"))).want(t, http.StatusForbidden, "belongs to no account of this lab yet")
}

// A role that the provider's groups give is the one at once, also where somebody is signed in already.
func TestRoleChangesAtOnce(t *testing.T) {
	l := newCampus(t, nil)
	c := l.client(t, "")
	c.comeBack(callback(l.uni.SignIn(t, c.begin(t, "/"), "zoe", "zoe's"))).want(t, http.StatusSeeOther)
	l.cfg.Rules[0].Role = users.RoleAdmin
	l.use(t, l.cfg)
	second := l.client(t, "")
	second.comeBack(callback(l.uni.SignIn(t, second.begin(t, "/"), "zoe", "zoe's"))).want(t, http.StatusSeeOther)
	second.get("/users").want(t, http.StatusOK)
	c.get("/users").want(t, http.StatusSeeOther)
	l.cfg.Rules[0].Role = users.RoleGuest
	l.use(t, l.cfg)
	third := l.client(t, "")
	third.comeBack(callback(l.uni.SignIn(t, third.begin(t, "/"), "zoe", "zoe's"))).want(t, http.StatusSeeOther)
	third.get("/users").want(t, http.StatusForbidden)
	second.get("/users").want(t, http.StatusSeeOther)
}

func TestProviderDoesNotAnswer(t *testing.T) {
	l := newCampus(t, nil)
	l.uni.Stop()
	c := l.client(t, "")
	c.post("/login", "/signin/uni", nil).want(t, http.StatusBadGateway, "Example University does not answer this lab at the moment", "accounts with a password of this lab sign in as always")
	c.post("/login", "/login", url.Values{"handle": {"ben"}, "password": {"ben-password"}}).want(t, http.StatusSeeOther)
	c = l.client(t, "")
	c.post("/login", "/signin/none", nil).want(t, http.StatusNotFound)
	c.get("/signin/none/callback?state=x&code=y").want(t, http.StatusNotFound)
}

func TestFailedCallbacksAreLimited(t *testing.T) {
	l := newCampus(t, nil)
	c := l.client(t, "")
	c.get("/login")
	for tries := 0; c.comeBack("/signin/uni/callback?state=guess&code=guess").status != http.StatusTooManyRequests; tries++ {
		if tries == 60 {
			t.Fatal("guessing is not limited")
		}
	}
}

// Who opens the lab by a name that a provider does not know is sent to the lab's own first: cookies do not follow.
func TestAnotherNameOfTheLab(t *testing.T) {
	l := newCampus(t, nil)
	c := l.client(t, "")
	elsewhere := func(r *http.Request) { r.Host = "localhost" }
	got := c.do("GET", "/login?next=/gpus", nil, elsewhere)
	got.want(t, http.StatusOK, "You opened this lab by a name that Example University does not send people back to", l.server.URL+"/login?next=%2Fgpus")
	c.do("POST", "/signin/uni", url.Values{"csrf": {c.token("/login")}}, elsewhere).want(t, http.StatusMisdirectedRequest, "Open the lab by its own name first")
}

// Who opens it by another name that the provider knows comes back to that one, and is signed in there.
func TestAnotherNameThatAProviderKnows(t *testing.T) {
	other := signin.Config{Name: "other", Type: "oidc", Title: "Other University", Issuer: "https://other.example", ClientID: "x"}
	l := newCampus(t, func(cfg *signin.Config) { cfg.Names = []string{"nas.example", "localhost"} }, other)
	l.vision(t)
	c := l.client(t, "")
	by := func(host string) func(*http.Request) { return func(r *http.Request) { r.Host = host } }
	here := by(strings.TrimPrefix(l.elsewhere(), "https://"))
	page := c.do("GET", "/login", nil, here)
	page.want(t, http.StatusOK, "Sign in with Example University", "a name that Other University does not send people back to", l.server.URL+"/login?next=%2F")
	token := tokenField.FindStringSubmatch(page.body)[1]
	began := c.do("POST", "/signin/uni", url.Values{"csrf": {token}, "next": {"/gpus"}}, here)
	address, _ := strings.CutPrefix(began.header.Get("Refresh"), "0; url=")
	back := l.uni.SignIn(t, address, "zoe", "zoe's")
	if got := "https://" + back.Host; got != l.elsewhere() {
		t.Errorf("sent back to %s", got)
	}
	got := c.comeBackAs(callback(back), here)
	if got.want(t, http.StatusSeeOther); got.header.Get("Location") != "/gpus" {
		t.Errorf("goes on to %q", got.header.Get("Location"))
	}
	c.do("GET", "/", nil, here).want(t, http.StatusOK, "Zoë Ünal")
	// An address that only looks like one of the lab's is none.
	for _, host := range []string{"localhost", "localhost.evil.example", "evil.example"} {
		other := l.client(t, "")
		token := tokenField.FindStringSubmatch(other.do("GET", "/login", nil, by(host)).body)
		got := other.do("POST", "/signin/uni", url.Values{"csrf": {token[1]}}, by(host))
		if got.want(t, http.StatusMisdirectedRequest, "Open the lab by its own name first"); got.header.Get("Refresh") != "" {
			t.Errorf("from %s somebody is sent to %q", host, got.header.Get("Refresh"))
		}
	}
}

func TestSignInWithADirectory(t *testing.T) {
	d := signintest.StartDirectory(t, "")
	directory := signin.Config{Name: "directory", Type: "ldap", Title: "Example Directory", URL: d.URL, CAFile: d.Authority.File,
		BindDN: d.BindDN, BindPasswordFile: d.PasswordFile, UserBase: d.UserBase, GroupBase: d.GroupBase,
		Rules: []signin.Rule{{Groups: []string{"gpu-users"}, Role: users.RoleGuest}}}
	l := newCampus(t, nil, directory)
	form := func(name string) url.Values {
		return url.Values{"handle": {name}, "password": {signintest.DirectoryPassword(name)}, "next": {"/gpus"}}
	}
	c := l.client(t, "")
	c.get("/login").want(t, http.StatusOK, "Name and password of Example Directory work here too")
	got := c.post("/login", "/login", form("o'neil"))
	got.want(t, http.StatusSeeOther)
	if u, err := l.users.ByHandle(t.Context(), "oneil"); err != nil || u.Role != users.RoleGuest || u.Name != "Shaun O'Neil" {
		t.Errorf("%+v, %v", u, err)
	}
	c.get("/account").want(t, http.StatusOK, "Example Directory")
	// ben is somebody else here, and root cannot be anybody.
	for _, name := range []string{"ben", "root"} {
		c = l.client(t, "")
		got = c.post("/login", "/login", form(name))
		if to := got.header.Get("Location"); got.status != http.StatusSeeOther && got.status != http.StatusForbidden || got.status == http.StatusSeeOther && !strings.HasPrefix(to, "/handle/choose?key=") {
			t.Errorf("%s: %d %q", name, got.status, to)
		}
	}
	c = l.client(t, "")
	c.post("/login", "/login", url.Values{"handle": {"ada"}, "password": {"wrong"}}).want(t, http.StatusUnauthorized, "Name or password is wrong.")
	c.post("/login", "/login", url.Values{"handle": {"ben"}, "password": {"ben-password"}}).want(t, http.StatusSeeOther)
	// Linking takes both passwords.
	link := func(old, name, password string) answer {
		return c.post("/account/identities/directory", "/account/identities/directory/link", url.Values{"old": {old}, "username": {name}, "password": {password}})
	}
	c.get("/account/identities/directory").want(t, http.StatusOK, "Name at Example Directory", "Password at Example Directory")
	link("wrong", "ben", signintest.DirectoryPassword("ben")).want(t, http.StatusUnprocessableEntity, "not your current password", `value="ben"`)
	link("ben-password", "ben", "wrong").want(t, http.StatusUnprocessableEntity, "Name or password is wrong there")
	link("ben-password", "ben", "").want(t, http.StatusUnprocessableEntity)
	link("ben-password", "ben", signintest.DirectoryPassword("ben")).want(t, http.StatusSeeOther)
	c = l.client(t, "")
	c.post("/login", "/login", form("ben")).want(t, http.StatusSeeOther)
	c.get("/").want(t, http.StatusOK, "Ben Okafor")
	d.Stop()
	c = l.client(t, "")
	c.post("/login", "/login", form("o'neil")).want(t, http.StatusServiceUnavailable, "they are of Example Directory, which does not answer at the moment")
	c.post("/login", "/login", url.Values{"handle": {"lea"}, "password": {"lea-password"}}).want(t, http.StatusSeeOther)
}

// Where a provider leaves out groups, the person and admins read until when role and groups are kept, and what holds then.
func TestPagesTellOfGroupsLeftOut(t *testing.T) {
	l := newCampus(t, nil)
	o := users.Outside{Provider: "uni", Title: "Example University", Realm: l.uni.Issuer, Subject: "9", Username: "kim", Create: true, Role: users.RoleLead, Told: true}
	kim, err := l.users.SignInOutside(t.Context(), o, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.users.SetPassword(t.Context(), kim.ID, "kim-password"); err != nil {
		t.Fatal(err)
	}
	l.client(t, "kim").get("/account").lacks(t, "sign-in rules need about you")
	o.Role, o.Told, o.Untold = users.RoleGuest, false, "there are too many"
	if _, err := l.users.SignInOutside(t.Context(), o, ""); err != nil {
		t.Fatal(err)
	}
	l.client(t, "kim").get("/account").want(t, http.StatusOK, "Example University has not sent everything that this lab's sign-in rules need about you", "You keep your role and groups until")
	admin := l.client(t, "ada")
	admin.get("/users/kim").want(t, http.StatusOK, "Example University has not sent everything that the sign-in rules need about this person", "This person keeps role and groups until")
	if _, err := l.users.db.ExecContext(t.Context(), "UPDATE identities SET kept_until = 1"); err != nil {
		t.Fatal(err)
	}
	if err := l.users.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin.get("/users/kim").want(t, http.StatusOK, "The lab applies the rules without it.", "guest")
}
