package webui_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/users"
)

func actions(t *testing.T, l *lab) string {
	t.Helper()
	var list []string
	for _, e := range l.users.audit(t) {
		list = append(list, e.Actor+" "+e.Action+" "+e.Target)
	}
	return strings.Join(list, ", ")
}

func TestOwnProfile(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ben")
	c.get("/").want(t, http.StatusOK, `href="/account"`)
	c.get("/account").want(t, http.StatusOK, "Ben Okafor", "ben", "member", "No access tokens")
	c.post("/account", "/account/profile", url.Values{"name": {"Ben O."}, "email": {"no address"}}).want(t, http.StatusUnprocessableEntity, "Ben O.", "no address", `aria-invalid="true"`)
	got := c.post("/account", "/account/profile", url.Values{"name": {" Ben <O.> "}, "email": {"ben@example.org"}})
	got.want(t, http.StatusSeeOther)
	c.get(got.header.Get("Location")).want(t, http.StatusOK, "are changed", "Ben &lt;O.&gt;", "ben@example.org")
	if got := actions(t, l); got != "ben account.change ben" {
		t.Error(got)
	}
	if body := c.get("/account?done=<script>").body; strings.Contains(body, "<script>") {
		t.Error("the address writes into the page")
	}
}

func TestOwnPassword(t *testing.T) {
	l := newLab(t)
	other, c := l.client(t, "ben"), l.client(t, "ben")
	before := c.http.Jar.Cookies(nil)
	form := func(old, password, again string) url.Values {
		return url.Values{"old": {old}, "password": {password}, "again": {again}}
	}
	for what, tc := range map[string]struct {
		form url.Values
		says string
	}{
		"wrong":  {form("not it", "seven loud kettles", "seven loud kettles"), "not your current password"},
		"differ": {form("ben-password", "seven loud kettles", "seven"), "not the same"},
		"weak":   {form("ben-password", "short", "short"), "at least 10"},
		"same":   {form("ben-password", "ben-password", "ben-password"), "that you have"},
	} {
		got := c.post("/account", "/account/password", tc.form)
		got.want(t, http.StatusUnprocessableEntity, tc.says)
		for name, typed := range tc.form {
			if name != "csrf" && strings.Contains(got.body, `value="`+typed[0]+`"`) {
				t.Errorf("%s: the page repeats a password", what)
			}
		}
	}
	other.get("/account").want(t, http.StatusOK)
	got := c.post("/account", "/account/password", form("ben-password", "seven loud kettles", "seven loud kettles"))
	got.want(t, http.StatusSeeOther)
	c.get(got.header.Get("Location")).want(t, http.StatusOK, "The password is changed", "this one")
	other.get("/account").want(t, http.StatusSeeOther)
	if after := c.http.Jar.Cookies(nil); after[0].Value == before[0].Value {
		t.Error("the browser keeps its old token")
	}
	stolen := l.client(t, "")
	stolen.http.Jar.SetCookies(nil, before)
	stolen.get("/account").want(t, http.StatusSeeOther)
	l.client(t, "").post("/login", "/login", url.Values{"handle": {"ben"}, "password": {"ben-password"}}).want(t, http.StatusUnauthorized)
	l.client(t, "").post("/login", "/login", url.Values{"handle": {"ben"}, "password": {"seven loud kettles"}}).want(t, http.StatusSeeOther)
}

func TestOwnPasswordIsLimited(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ben")
	form := url.Values{"old": {"guess"}, "password": {"seven loud kettles"}, "again": {"seven loud kettles"}}
	for tries := 0; ; tries++ {
		got := c.post("/account", "/account/password", form)
		if got.status == http.StatusTooManyRequests {
			if got.header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
			got.want(t, http.StatusTooManyRequests, "Try again in")
			break
		}
		if tries > 20 {
			t.Fatal("guessing is not limited")
		}
	}
	c.get("/account").want(t, http.StatusOK, "somebody tried to sign in as ben")
}

func TestOwnSessions(t *testing.T) {
	l := newLab(t)
	sign := func(agent string) *client {
		t.Helper()
		c := l.client(t, "")
		form := url.Values{"handle": {"ben"}, "password": {"ben-password"}, "csrf": {c.token("/login")}}
		c.do("POST", "/login", form, func(r *http.Request) { r.Header.Set("User-Agent", agent) }).want(t, http.StatusSeeOther)
		return c
	}
	laptop := sign("Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0")
	phone := sign("Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5 Mobile/15E148 Safari/604.1")
	sign(`<script>alert(1)</script>`)
	eve := l.client(t, "lea")
	page := laptop.get("/account")
	page.want(t, http.StatusOK, "Firefox on Linux", "Safari on iPhone", "does not say what it is", "this one", "127.0.0.1", "Sign out everywhere else")
	if strings.Contains(page.body, "<script>alert") {
		t.Error("a browser's name is script")
	}
	at := strings.Index(page.body, `action="/account/sessions/`)
	for page.body[at+len(`action="/account/sessions/`):][:3] == "end" {
		at += strings.Index(page.body[at+1:], `action="/account/sessions/`) + 1
	}
	path := page.body[at+len(`action="`):]
	path = path[:strings.IndexByte(path, '"')]
	eve.post("/account", path, nil).want(t, http.StatusSeeOther) // somebody else's is none to end
	if n := l.users.count(t, "sessions"); n != 4 {
		t.Errorf("%d sessions, want 4", n)
	}
	laptop.post("/account", path, nil).want(t, http.StatusSeeOther)
	if n := l.users.count(t, "sessions"); n != 3 {
		t.Errorf("%d sessions, want 3", n)
	}
	laptop.post("/account", "/account/sessions/end-others", nil).want(t, http.StatusSeeOther)
	phone.get("/account").want(t, http.StatusSeeOther)
	eve.get("/account").want(t, http.StatusOK)
	laptop.get("/account?done=others").want(t, http.StatusOK, "All other browsers are signed out")
	if got := actions(t, l); !strings.HasSuffix(got, "ben session.end ben, ben session.end-others ben") {
		t.Error(got)
	}
}

func TestOwnTokens(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ben")
	for _, bad := range []url.Values{{"name": {""}, "scope": {"read"}, "days": {"30"}}, {"name": {"x"}, "scope": {"root"}, "days": {"30"}}, {"name": {"x"}, "scope": {"read"}, "days": {"none"}}} {
		c.post("/account", "/account/tokens", bad).want(t, http.StatusUnprocessableEntity, `aria-invalid="true"`)
	}
	c.post("/account", "/account/tokens", url.Values{"name": {"<b>job</b>"}, "scope": {"read"}, "days": {"90"}}).want(t, http.StatusOK, "shown only this once", "gpulab_", "&lt;b&gt;job")
	c.get("/account").want(t, http.StatusOK, "never", "&lt;b&gt;job")
	lea := l.client(t, "lea")
	lea.post("/account", "/account/tokens/1/revoke", nil).want(t, http.StatusSeeOther)
	if n := l.users.count(t, "api_tokens"); n != 1 {
		t.Error("somebody else revoked it")
	}
	c.post("/account", "/account/tokens/1/revoke", nil).want(t, http.StatusSeeOther)
	c.post("/account", "/account/tokens/1/revoke", nil).want(t, http.StatusSeeOther) // twice is no error
	if n := l.users.count(t, "api_tokens"); n != 0 {
		t.Error("it is still there")
	}
	if got := actions(t, l); got != "ben token.create ben, ben token.revoke ben" {
		t.Error(got)
	}
	for range users.TokensPerUser {
		l.accessToken(t, "ben", users.ScopeRead)
	}
	c.post("/account", "/account/tokens", url.Values{"name": {"one more"}, "scope": {"read"}, "days": {"90"}}).want(t, http.StatusUnprocessableEntity, "that is the most", "one more")
}

// A session that somebody planted before the sign-in is worth nothing after it: neither an own one of the
// attacker nor a made-up one.
func TestSessionFixation(t *testing.T) {
	l := newLab(t)
	planted := l.session(t, "gus")
	for _, value := range []string{planted, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", ""} {
		victim := l.client(t, "")
		page := "/login"
		if value != "" {
			victim.http.Jar.SetCookies(nil, []*http.Cookie{{Name: cookies.Session, Value: value}})
		}
		if value == planted {
			page = "/" // is signed in as the attacker, and signs in from there
		}
		victim.post(page, "/login", url.Values{"handle": {"ben"}, "password": {"ben-password"}}).want(t, http.StatusSeeOther)
		for _, c := range victim.http.Jar.Cookies(nil) {
			if c.Name == cookies.Session && c.Value == value {
				t.Error("the planted session is used")
			}
		}
		victim.get("/account").want(t, http.StatusOK, "Ben Okafor")
		attacker := l.client(t, "")
		attacker.http.Jar.SetCookies(nil, []*http.Cookie{{Name: cookies.Session, Value: value}})
		attacker.get("/account").want(t, http.StatusSeeOther)
	}
}
