package webui_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/webui"
)

// Keys of two browsers.
const (
	victimsKey   = "11111111111111111111111111111111"
	attackersKey = "22222222222222222222222222222222"
)

// plantingLab is one in which ben has a service, at which lea has looked.
func plantingLab(t *testing.T) *lab {
	t.Helper()
	var l *lab
	l = newLabWith(t, func(c *webui.Config) {
		c.SeenBy = func(session string) []int64 {
			var id int64
			if err := l.users.db.QueryRow("SELECT user_id FROM sessions WHERE id = ?", session).Scan(&id); err == nil && id == 3 {
				return []int64{70}
			}
			return nil
		}
	})
	l.notebooks.change(func(list *[]notebooks.Launch) {
		*list = append(*list, notebooks.Launch{ID: 70, UserID: 2, Handle: "ben", Name: "demo", Title: "Ben’s demo", State: notebooks.Running,
			Job: &notebooks.Job{}, Service: &notebooks.WebService{Door: 8507}, URL: "/service/ben/demo/"})
	})
	return l
}

// with sends a request with these Cookie lines, however odd.
func with(lines ...string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Del("Cookie")
		for _, line := range lines {
			r.Header.Add("Cookie", line)
		}
	}
}

func expires(a answer, name string) bool {
	lines := a.header["Set-Cookie"]
	return slices.Contains(lines, name+"=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=None; Partitioned") &&
		slices.Contains(lines, name+"=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=Lax")
}

// With two cookies nobody is signed in, whichever comes first and whatever they hold. The sign-in page says so, says
// which services to close, and makes the browser forget both.
func TestTwoSessionCookies(t *testing.T) {
	l := plantingLab(t)
	evil, lea := l.session(t, "ben"), l.session(t, "lea")
	c := l.client(t, "")
	c.http.Jar = nil // which would make one line of two
	name := cookies.Session + "="
	for what, lines := range map[string][]string{
		"the planted one first":  {name + evil + "; " + name + lea},
		"the planted one second": {name + lea + "; " + name + evil},
		"in two lines":           {name + evil, name + lea},
		"twice the same":         {name + lea + "; " + name + lea},
		"a dead twin":            {name + "dead; " + name + lea},
		"a dead twin, second":    {name + lea + "; " + name + "dead"},
	} {
		got := c.do("GET", "/account", nil, with(lines...))
		if to := got.header.Get("Location"); got.status != http.StatusSeeOther || to != "/login?next=%2Faccount" {
			t.Errorf("%s: %d, to %q", what, got.status, to)
		}
		if got := c.do("GET", "/events?view=home", nil, with(lines...)); got.status != http.StatusUnauthorized {
			t.Errorf("%s: a stream: %d", what, got.status)
		}
		got = c.do("GET", "/login", nil, with(lines...))
		got.want(t, http.StatusOK, "Another page in this browser set this lab’s session cookie", "Ben’s demo of ben, port 8507", "Password")
		if !expires(got, cookies.Session) {
			t.Errorf("%s: expired are %q", what, got.header["Set-Cookie"])
		}
	}
	// One without a name can be a twin for one path. It goes there, or the sign-in page would send the browser back.
	got := c.do("GET", "/account", nil, with(name+lea+"; "+name+evil))
	if !slices.Contains(got.header["Set-Cookie"], "=gone; Path=/account; Max-Age=0; Secure; HttpOnly; SameSite=Lax") {
		t.Errorf("for /account are expired %q", got.header["Set-Cookie"])
	}
	// Who has no session is told of no service.
	got = c.do("GET", "/login", nil, with(name+"dead; "+name+"deader"))
	got.want(t, http.StatusOK, "Another page in this browser set this lab’s session cookie", "Close the tabs of services of this lab.")
	if strings.Contains(got.body, "8507") {
		t.Error("a stranger is told of a service")
	}
	// One that is dead is in nobody's way.
	got = c.do("GET", "/login", nil, with(name+"dead"))
	got.want(t, http.StatusOK, "Password")
	if strings.Contains(got.body, "Another page") || !expires(got, cookies.Session) {
		t.Error(visible(got.body), got.header["Set-Cookie"])
	}
	// What looks like it is in nobody's way.
	for _, like := range []string{strings.ToUpper(name), `"` + cookies.Session + `"=`, "=" + name} {
		c.do("GET", "/account", nil, with(like+evil+"; "+name+lea)).want(t, http.StatusOK, "Lea Marie")
		if got := c.do("GET", "/account", nil, with(like+lea)); got.status != http.StatusSeeOther {
			t.Errorf("%s alone: %d", like, got.status)
		}
	}
	// The names of before are worth nothing.
	got = c.do("GET", "/account", nil, with("__Host-gpulab="+lea))
	if got.status != http.StatusSeeOther || !expires(got, "__Host-gpulab") {
		t.Errorf("%d, expired are %q", got.status, got.header["Set-Cookie"])
	}
}

// A sign-in works with whatever the browser sends of sessions, and leaves one cookie.
func TestSignInPastPlantedCookies(t *testing.T) {
	l := plantingLab(t)
	evil := cookies.Session + "=" + l.session(t, "ben")
	c := l.client(t, "")
	token := c.token("/login")
	form := cookies.Form + "=" + c.http.Jar.Cookies(nil)[0].Value
	c.http.Jar = nil
	fields := url.Values{"csrf": {token}, "handle": {"lea"}, "password": {"lea-password"}, "browser-key": {victimsKey}}
	for what, lines := range map[string]string{
		"a dead one": form + "; " + cookies.Session + "=dead", "two": form + "; " + evil + "; " + cookies.Session + "=dead",
		"one alone":       form + "; " + evil,
		"a second form's": form + "; " + cookies.Form + "=ABCDEFGHIJKLMNOPQRSTUVWXYZ",
	} {
		got := c.do("POST", "/login", fields, with(lines))
		if got.want(t, http.StatusSeeOther); !expires(got, cookies.Session) || !expires(got, cookies.Form) {
			t.Errorf("%s: %d, expired are %q", what, got.status, got.header["Set-Cookie"])
		}
		set := ""
		for _, line := range got.header["Set-Cookie"] {
			if strings.HasPrefix(line, cookies.Session+"=") {
				set = line // the last of them counts
			}
		}
		if !strings.Contains(set, "."+victimsKey+"; Path=/; HttpOnly; Secure") {
			t.Errorf("%s: set is %q", what, set)
		}
	}
	// Where no header says who sent it, a second form's cookie is one too many.
	got := c.do("POST", "/login", fields, func(r *http.Request) {
		with(form + "; " + cookies.Form + "=ABCDEFGHIJKLMNOPQRSTUVWXYZ")(r)
		r.Header.Del("Sec-Fetch-Site")
	})
	got.want(t, http.StatusForbidden)
}

// A page of another port has planted the form's cookie and sends the sign-in form with its own account.
func TestForgedSignIn(t *testing.T) {
	l := newLab(t)
	form := url.Values{"csrf": {"ABCDEFGHIJKLMNOPQRSTUVWXYZ"}, "handle": {"ben"}, "password": {"ben-password"}}
	planted := cookies.Form + "=ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	here := l.server.URL
	neighbour := strings.Replace(here, "127.0.0.1:", "127.0.0.1:1", 1)
	for _, test := range []struct {
		name    string
		headers map[string]string
		in      bool
	}{
		{"of this origin", map[string]string{"Sec-Fetch-Site": "same-origin", "Origin": here}, true},
		{"of this origin, old browser", map[string]string{"Origin": here}, true},
		{"of this origin, very old browser", map[string]string{"Referer": here + "/login"}, true},
		{"a program", nil, true},
		{"another port", map[string]string{"Sec-Fetch-Site": "same-site", "Origin": neighbour}, false},
		{"another port, old browser", map[string]string{"Origin": neighbour, "Referer": here + "/login"}, false},
		{"another port, very old browser", map[string]string{"Referer": neighbour + "/"}, false},
		{"no origin", map[string]string{"Origin": "null"}, false},
		{"plain HTTP", map[string]string{"Origin": strings.Replace(here, "https:", "http:", 1)}, false},
		{"another site", map[string]string{"Sec-Fetch-Site": "cross-site"}, false},
		{"nonsense", map[string]string{"Sec-Fetch-Site": "same-origin, same-site"}, false},
	} {
		got := l.client(t, "").do("POST", "/login", form, func(r *http.Request) {
			with(planted)(r)
			r.Header.Del("Sec-Fetch-Site")
			for name, value := range test.headers {
				r.Header.Set(name, value)
			}
		})
		if in := got.status == http.StatusSeeOther; in != test.in || !in && got.status != http.StatusForbidden {
			t.Errorf("%s: %d", test.name, got.status)
		}
	}
}

// A session that was begun in another browser changes nothing from this one, and signing out of it ends it for nobody.
func TestSessionOfAnotherBrowser(t *testing.T) {
	l := plantingLab(t)
	evil := cookies.Credential{Token: l.session(t, "ben"), Key: attackersKey}
	c := l.client(t, "")
	use := func(credential cookies.Credential) {
		c.http.Jar.SetCookies(nil, []*http.Cookie{{Name: cookies.Session, Value: credential.String()}})
	}
	profile := func(key string) url.Values { return url.Values{"name": {"Mine now"}, "browser-key": {key}} }
	for _, planted := range []cookies.Credential{evil, {Token: evil.Token}} {
		use(planted)
		c.post("/account", "/account/profile", profile(victimsKey)).want(t, http.StatusForbidden, "This session was not started in this browser")
	}
	use(evil)
	c.get("/account").want(t, http.StatusOK, `data-session-key="`+attackersKey+`"`)
	page := c.get("/other-session")
	page.want(t, http.StatusOK, "the session of Ben Okafor (ben)", "Ben’s demo of ben, port 8507", "Sign out and sign in again")
	if strings.Contains(page.body, "data-session-key") {
		t.Error("the page would lead to itself")
	}
	got := c.post("/other-session", "/logout", url.Values{"browser-key": {victimsKey}})
	if got.want(t, http.StatusSeeOther); !expires(got, cookies.Session) {
		t.Errorf("%q", got.header["Set-Cookie"])
	}
	if _, err := l.users.SessionUser(t.Context(), evil.Token); err != nil {
		t.Error("the session of somebody else was ended")
	}
	// In its own browser it works, and without script too.
	for _, key := range []string{attackersKey, ""} {
		use(evil)
		c.post("/account", "/account/profile", profile(key)).want(t, http.StatusSeeOther)
	}
	// With two, signing out ends the one that is this browser's.
	mine := cookies.Credential{Token: l.session(t, "lea"), Key: victimsKey}
	both := with(cookies.Session + "=" + evil.String() + "; " + cookies.Session + "=" + mine.String())
	c.do("POST", "/logout", url.Values{"browser-key": {victimsKey}}, both).want(t, http.StatusSeeOther)
	if _, err := l.users.SessionUser(t.Context(), mine.Token); err == nil {
		t.Error("the session goes on")
	}
	if _, err := l.users.SessionUser(t.Context(), evil.Token); err != nil {
		t.Error("the session of somebody else was ended")
	}
}

// A live page is fed in its own session alone.
func TestStreamOfAnotherSession(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "lea")
	page := c.get("/")
	_, rest, found := strings.Cut(page.body, "&amp;session=")
	if !found {
		t.Fatal("the page does not say which session it is of")
	}
	id, _, _ := strings.Cut(rest, `"`)
	ben := l.client(t, "ben")
	ben.get("/events?view=home&session="+id).want(t, http.StatusUnauthorized)
}

// A password change keeps the browser's key.
func TestNewPasswordKeepsTheKey(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "")
	c.post("/login", "/login", url.Values{"handle": {"lea"}, "password": {"lea-password"}, "browser-key": {victimsKey}}).want(t, http.StatusSeeOther)
	c.post("/account", "/account/password", url.Values{"old": {"lea-password"}, "password": {"correct horse battery"}, "again": {"correct horse battery"}}).want(t, http.StatusSeeOther)
	c.get("/account").want(t, http.StatusOK, `data-session-key="`+victimsKey+`"`)
}

// The way back from a provider is the browser's that began it, even where another port has planted its cookie there.
func TestProviderAnswerWithPlantedCookie(t *testing.T) {
	l := newCampus(t, nil)
	l.vision(t)
	begin := func(key string) (*client, string) {
		c := l.client(t, "")
		got := c.post("/login", "/signin/uni", url.Values{"browser-key": {key}})
		got.want(t, http.StatusOK)
		return c, callback(l.uni.SignIn(t, strings.TrimPrefix(got.header.Get("Refresh"), "0; url="), "zoe", "zoe's"))
	}
	finish := func(c *client, address, key string) answer {
		c.get(address).want(t, http.StatusOK, "Signing in", "data-send")
		path, query, _ := strings.Cut(address, "?")
		form, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		form.Set("csrf", c.token(address))
		form.Set("browser-key", key)
		return c.do("POST", path, form, nil)
	}
	// The attacker's flow in a browser that has the attacker's cookies, but a key of its own.
	victim, lure := begin(attackersKey)
	finish(victim, lure, victimsKey).want(t, http.StatusForbidden, "begun in another browser")
	victim.get("/account").want(t, http.StatusSeeOther)
	c, back := begin(victimsKey)
	finish(c, back, victimsKey).want(t, http.StatusSeeOther)
	c.get("/account").want(t, http.StatusOK, `data-session-key="`+victimsKey+`"`)
	// Opening the address does nothing by itself.
	n := l.users.count(t, "sessions")
	c, back = begin(victimsKey)
	c.get(back).want(t, http.StatusOK)
	if l.users.count(t, "sessions") != n {
		t.Error("a link signed somebody in")
	}
}
