package webui_test

import (
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webui"
)

// TestTailnetPage: an admin turns it on with an address to open, with a key, off, and leaves.
func TestTailnetPage(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	c.get("/tailnet").want(t, http.StatusOK, "The lab is in no tailnet.", "Turn on", "Control server")
	c.post("/tailnet", "/tailnet/up", url.Values{"server": {"nonsense"}, "key": {"tskey-secret"}}).want(t, http.StatusUnprocessableEntity, "no address", `value="nonsense"`)
	c.post("/tailnet", "/tailnet/up", nil).want(t, http.StatusSeeOther)
	got := c.get("/tailnet")
	got.want(t, http.StatusOK, "has to be let in", `href="https://control.example/a/123"`, `class="qr"`)
	if got.header.Get("Refresh") == "" {
		t.Error("the page stays as it is while somebody lets the lab in elsewhere")
	}
	c.post("/tailnet", "/tailnet/up", url.Values{"key": {" tskey-secret "}}).want(t, http.StatusSeeOther)
	if l.tailnet.Asked.AuthKey != "tskey-secret" {
		t.Errorf("the key is %q", l.tailnet.Asked.AuthKey)
	}
	c.get("/tailnet").want(t, http.StatusOK, "https://gpulab.example.ts.net", "Turn off", "Leave the tailnet")
	c.post("/tailnet", "/tailnet/down", nil).want(t, http.StatusSeeOther)
	c.get("/tailnet").want(t, http.StatusOK, "Turn on")
	c.post("/tailnet", "/tailnet/logout", nil).want(t, http.StatusSeeOther)
	got = c.get("/audit")
	got.want(t, http.StatusOK, "turned the tailnet on", "turned the tailnet off", "leave its tailnet")
	if strings.Contains(got.body, "tskey") {
		t.Error("the audit log holds the key")
	}
}

// TestFunnelPages: the lab is opened to the internet by an admin who is asked twice, with its name and their password;
// closing it takes one click.
func TestFunnelPages(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	if got := c.get("/tailnet/funnel"); got.status != http.StatusSeeOther {
		t.Errorf("a lab that is in no tailnet: %d", got.status)
	}
	c.post("/tailnet", "/tailnet/up", url.Values{"key": {"tskey-secret"}}).want(t, http.StatusSeeOther)
	c.get("/tailnet").want(t, http.StatusOK, "The public internet", "closed", `href="/tailnet/funnel"`)
	c.get("/tailnet/funnel").want(t, http.StatusOK, "Everybody on the internet", "Leave it closed", `href="/tailnet/funnel/open"`)
	const form, name, password = "/tailnet/funnel/open", "gpulab.example.ts.net", "ada-password"
	c.get(form).want(t, http.StatusOK, name, "Your password")
	for want, values := range map[string]url.Values{
		"not the lab’s name":             {"name": {"gpulab"}, "password": {password}},
		"This is not your current":       {"name": {name}, "password": {"wrong password"}},
		"The tailnet does not allow it.": {"name": {name}, "password": {password}},
	} {
		got := c.post(form, form, values)
		got.want(t, http.StatusUnprocessableEntity, want)
		if strings.Contains(got.body, password) {
			t.Errorf("%s: the page holds the password", want)
		}
	}
	c.get("/tailnet").want(t, http.StatusOK, "closed")
	l.tailnet.FunnelAllowed = true
	c.post(form, form, url.Values{"name": {" GPUlab.example.ts.net "}, "password": {password}}).want(t, http.StatusSeeOther)
	c.get("/tailnet").want(t, http.StatusOK, "Everybody on the internet reaches the lab", "Close it")
	if got := c.get("/tailnet/funnel/open"); got.status != http.StatusSeeOther {
		t.Errorf("a lab that is open: %d", got.status)
	}
	c.post("/tailnet", "/tailnet/funnel/close", nil).want(t, http.StatusSeeOther)
	c.get("/tailnet").want(t, http.StatusOK, "Only devices that are in the tailnet")
	c.get("/audit").want(t, http.StatusOK, "opened the lab to the public internet", "closed the lab to the public internet")
	for range 12 {
		if c.post(form, form, url.Values{"name": {name}, "password": {"wrong password"}}).status == http.StatusTooManyRequests {
			return
		}
	}
	t.Error("passwords can be tried without end")
}

// guests is a network that vouches for one visitor, or for nobody.
type guests struct {
	who      atomic.Pointer[users.Outside]
	unknown  atomic.Bool // at the moment
	required bool
}

func (g *guests) way() *webui.Network {
	return &webui.Network{Info: signin.Info{Name: "tailnet", Title: "the tailnet", Network: true},
		Visitor: func(*http.Request) (users.Outside, bool) {
			who := g.who.Load()
			if who == nil || g.unknown.Load() {
				return users.Outside{}, false
			}
			return *who, true
		}, Required: func(*http.Request) bool { return g.required && g.who.Load() != nil }}
}

func guest(login string) *users.Outside {
	return &users.Outside{Provider: "tailnet", Title: "the tailnet", Realm: "tailnet https://control.example", Subject: "7 " + login, Username: login, Role: users.RoleMember, Create: true}
}

// TestSignInByTheNetwork: who is vouched for signs in with one click, and others cannot; a login that is called like an
// account chooses another name, or is linked by whoever has the account's password.
func TestSignInByTheNetwork(t *testing.T) {
	g := &guests{}
	l := newLabWith(t, func(c *webui.Config) { c.Network = g.way() })
	c := l.client(t, "")
	if body := c.get("/login").body; strings.Contains(body, "/signin/tailnet") {
		t.Error("a visitor of the LAN is offered to sign in by the tailnet")
	}
	c.post("/login", "/signin/tailnet", nil).want(t, http.StatusForbidden, "You did not come over the tailnet")
	c.do("GET", "/signin/tailnet/callback?state=x&code=y", nil, nil).want(t, http.StatusNotFound)

	g.who.Store(guest("zoe@example.org"))
	c.get("/login").want(t, http.StatusOK, "Sign in as zoe@example.org", "Or with name and password", `name="password"`)
	c.post("/login", "/signin/tailnet", url.Values{"next": {"//evil.example"}}).want(t, http.StatusSeeOther)
	c.get("/account").want(t, http.StatusOK, "zoe", "the tailnet")

	g.who.Store(guest("ada@example.org")) // an admin's name
	eve := l.client(t, "")
	got := eve.post("/login", "/signin/tailnet", nil)
	got.want(t, http.StatusSeeOther)
	if to := got.header.Get("Location"); !strings.HasPrefix(to, "/handle/choose") {
		t.Errorf("whoever is called like an admin goes on to %q", to)
	}
	eve.get("/account").want(t, http.StatusSeeOther)
	ada := l.client(t, "ada")
	ada.get("/account/identities/tailnet").want(t, http.StatusOK, "You are ada@example.org")
	ada.post("/account/identities/tailnet", "/account/identities/tailnet/link", url.Values{"old": {"wrong"}}).want(t, http.StatusUnprocessableEntity)
	ada.post("/account/identities/tailnet", "/account/identities/tailnet/link", url.Values{"old": {"ada-password"}}).want(t, http.StatusSeeOther)
	eve.post("/login", "/signin/tailnet", nil).want(t, http.StatusSeeOther)
	eve.get("/account").want(t, http.StatusOK, "ada@example.org")

	stranger := guest("mallory@example.org")
	stranger.Refused = "Your account at the tailnet is not in a group that may use this lab. Ask an admin of the lab."
	g.who.Store(stranger)
	m := l.client(t, "")
	m.get("/login").want(t, http.StatusOK, "not in a group that may use this lab", `name="password"`)
	m.post("/login", "/signin/tailnet", nil).want(t, http.StatusForbidden)

	g.required = true
	g.who.Store(guest("zoe@example.org"))
	if body := l.client(t, "").get("/login").body; strings.Contains(body, `name="password"`) || !strings.Contains(body, "Sign in as zoe") {
		t.Error("where the tailnet is required, the sign-in page asks for a password")
	}
	g.who.Store(nil)
	ben := l.client(t, "ben")
	ben.get("/account/identities/tailnet").want(t, http.StatusOK, "You did not come over the tailnet")
}

// TestInvitedOverTheNetwork: somebody of another network, whom no rule names, comes in by it once an invitation or a
// one-time link of this lab has linked them, and not before; where that is the only way in, no password is taken.
func TestInvitedOverTheNetwork(t *testing.T) {
	g := &guests{}
	l := newLabWith(t, func(c *webui.Config) { c.Network = g.way() })
	visit := func(login string) *client {
		who := guest(login)
		who.Role, who.Refused, who.ByHand = "", "Your account at the tailnet is not in a group that may use this lab.", true
		if linked, err := l.users.LinkedByHand(t.Context(), *who); err != nil {
			t.Fatal(err)
		} else if linked {
			who.Refused, who.Create = "", false
		}
		g.who.Store(who)
		return l.client(t, "")
	}
	invite := func() string {
		_, token, err := l.users.Invite(t.Context(), users.Root(), users.NewInvitation{Uses: 1})
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	form := func(token, handle string, more ...string) url.Values {
		values := url.Values{"token": {token}, "name": {"A Guest"}, "handle": {handle}}
		for i := 0; i < len(more); i += 2 {
			values.Set(more[i], more[i+1])
		}
		return values
	}
	const password = "guest-long-password"

	c := visit("zoe@example.org")
	c.get("/login").want(t, http.StatusOK, "link the two on its page")
	c.post("/login", "/signin/tailnet", nil).want(t, http.StatusForbidden)
	token := invite()
	c.get("/join?token="+token).want(t, http.StatusOK, "Over the tailnet, sign me in without it", "You are zoe@example.org there", `name="guest" value="yes" checked`)
	c.post("/join?token="+token, "/join", form(token, "zoe", "guest", "yes")).want(t, http.StatusUnprocessableEntity, "at least 10")
	c.post("/join?token="+token, "/join", form(token, "zoe", "password", password, "again", password, "guest", "yes")).want(t, http.StatusSeeOther)
	c = visit("zoe@example.org")
	c.get("/login").want(t, http.StatusOK, `action="/signin/tailnet"`, "Sign in as zoe@example.org")
	c.post("/login", "/signin/tailnet", nil).want(t, http.StatusSeeOther)
	c.get("/account").want(t, http.StatusOK, "zoe@example.org", "A Guest")
	l.client(t, "ada").get("/audit").want(t, http.StatusOK, "zoe@example.org at tailnet, by the invitation")

	// One login is one account's; nothing is used up by trying.
	token = invite()
	c.post("/join?token="+token, "/join", form(token, "second", "password", password, "again", password, "guest", "yes")).
		want(t, http.StatusUnprocessableEntity, "belongs to another account", `value="second"`)
	c.post("/join?token="+token, "/join", form(token, "second", "password", password, "again", password)).want(t, http.StatusSeeOther)

	c = visit("max@example.org")
	ben, err := l.users.ByHandle(t.Context(), "ben")
	if err != nil {
		t.Fatal(err)
	}
	link := func() string {
		token, err := l.users.CreateLink(t.Context(), users.Link{Purpose: users.PurposePassword, UserID: &ben.ID}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	// A link that replaces a password is for a password: others may know the old one.
	token = link()
	if got := c.get("/welcome?token=" + token); strings.Contains(got.body, "max@example.org") || !strings.Contains(got.body, "Choose a password") {
		t.Error("a new password is not asked for")
	}
	elsewhere := l.client(t, "ben")
	l.users.exec(t, "UPDATE users SET password_hash = '' WHERE handle = 'ben'")
	c.get("/welcome?token="+token).want(t, http.StatusOK, "Sign in as max@example.org", "Set the password")
	c.post("/welcome?token="+token, "/welcome", url.Values{"token": {token}, "guest": {"yes"}}).want(t, http.StatusSeeOther)
	c.get("/account").want(t, http.StatusOK, "max@example.org")
	elsewhere.get("/account").want(t, http.StatusSeeOther) // who needs a link may have lost more
	c.post("/account", "/welcome", url.Values{"token": {token}, "guest": {"yes"}}).want(t, http.StatusGone, "already used")
	token = link()
	visit("else@example.org").post("/welcome?token="+token, "/welcome", url.Values{"token": {token}, "guest": {"yes"}}).want(t, http.StatusUnprocessableEntity, "Another account at the tailnet is linked")

	// Or whoever has the account's password links them.
	visit("gus@example.org")
	gus := l.client(t, "gus")
	gus.post("/account/identities/tailnet", "/account/identities/tailnet/link", url.Values{"old": {"gus-password"}}).want(t, http.StatusSeeOther)
	c = visit("gus@example.org")
	c.post("/login", "/signin/tailnet", nil).want(t, http.StatusSeeOther)
	c.get("/account").want(t, http.StatusOK, "gus@example.org")

	g.required = true
	token = invite()
	c = visit("tom@example.org")
	if got := c.get("/join?token=" + token); !strings.Contains(got.body, "no password is needed") || strings.Contains(got.body, `name="password"`) {
		t.Error("where the tailnet is the only way in, the invitation asks for a password")
	}
	c.post("/join?token="+token, "/join", form(token, "tom", "password", password, "again", password)).want(t, http.StatusSeeOther)
	if _, err := l.users.Authenticate(t.Context(), "tom", password, ""); err == nil {
		t.Error("a password was taken")
	}
	c = visit("tom@example.org")
	c.post("/login", "/signin/tailnet", nil).want(t, http.StatusSeeOther)
	c.get("/account").want(t, http.StatusOK, "tom@example.org")

	// While nobody vouches for who sends the form, it is not taken.
	token = invite()
	c = visit("who@example.org")
	c.get("/join?token="+token).want(t, http.StatusOK)
	g.unknown.Store(true)
	c.post("/join?token="+token, "/join", form(token, "who", "password", password, "again", password)).want(t, http.StatusForbidden)
	g.unknown.Store(false)

	// An account that lives by it alone ends with it.
	tom, err := l.users.ByHandle(t.Context(), "tom")
	if err != nil {
		t.Fatal(err)
	}
	tomHere := visit("tom@example.org")
	tomHere.post("/login", "/signin/tailnet", nil).want(t, http.StatusSeeOther)
	list, err := l.users.Identities(t.Context(), tom.ID)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	if _, err := l.users.Unlink(t.Context(), tom.ID, list[0].ID, true); err != nil {
		t.Fatal(err)
	}
	tomHere.get("/account").want(t, http.StatusSeeOther)

	// A machine that is nobody's becomes nobody's account.
	g.required = false
	kiosk := guest("kiosk-1")
	kiosk.Machine = true
	g.who.Store(kiosk)
	token = invite()
	if got := l.client(t, "").get("/join?token=" + token); strings.Contains(got.body, `name="guest"`) {
		t.Error("an account is offered to be linked with a machine that is nobody's")
	}
	lea := l.client(t, "lea")
	lea.post("/account/identities/tailnet", "/account/identities/tailnet/link", url.Values{"old": {"lea-password"}}).want(t, http.StatusForbidden, "Whoever sits at kiosk-1")

	// Whom the rules refuse is not linked with anything, whoever has invited them.
	refused := guest("mallory@example.org")
	refused.Refused = "Your account at the tailnet is not in a group that may use this lab."
	g.who.Store(refused)
	token = invite()
	c = l.client(t, "")
	if got := c.get("/join?token=" + token); strings.Contains(got.body, `name="guest"`) {
		t.Error("somebody whom the rules refuse is asked whether to be linked")
	}
	c.post("/join?token="+token, "/join", form(token, "mallory", "password", password, "again", password, "guest", "yes")).want(t, http.StatusSeeOther)
	l.client(t, "").post("/login", "/signin/tailnet", nil).want(t, http.StatusForbidden)
}
