package webui_test

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webui"
)

func TestSignIn(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "")
	c.get("/gpus").want(t, http.StatusSeeOther)
	if to := c.get("/gpus").header.Get("Location"); to != "/login?next=%2Fgpus" {
		t.Errorf("sent to %q", to)
	}
	c.post("/login", "/login", url.Values{"handle": {"ben"}, "password": {"wrong"}}).want(t, http.StatusUnauthorized, `value="ben"`)
	got := c.post("/login", "/login", url.Values{"handle": {" ben "}, "password": {"ben-password"}, "next": {"/gpus?x=1"}})
	got.want(t, http.StatusSeeOther)
	if to := got.header.Get("Location"); to != "/gpus?x=1" {
		t.Errorf("sent to %q", to)
	}
	var set string
	for _, line := range got.header["Set-Cookie"] {
		if strings.HasPrefix(line, cookies.Session+"=") && !strings.Contains(line, "Max-Age=0") {
			set = line
		}
	}
	for _, part := range []string{cookies.Session + "=", "Secure", "HttpOnly", "SameSite=Lax", "Path=/"} {
		if !strings.Contains(set, part) {
			t.Errorf("cookie lacks %s: %s", part, set)
		}
	}
	c.get("/gpus").want(t, http.StatusOK, "Ben Okafor")
	if to := c.get("/login?next=//evil.example").header.Get("Location"); to != "/" {
		t.Errorf("somebody signed in is sent to %q", to)
	}
	before := c.http.Jar.Cookies(nil)
	c.post("/", "/logout", nil).want(t, http.StatusSeeOther)
	if got := len(c.http.Jar.Cookies(nil)); got >= len(before) {
		t.Error("the cookie stays after signing out")
	}
	c.http.Jar.SetCookies(nil, before)
	c.get("/gpus").want(t, http.StatusSeeOther) // the old token is worth nothing
}

func TestSignInIsLimited(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "")
	for tries := 0; c.post("/login", "/login", url.Values{"handle": {"ben"}, "password": {"wrong"}}).status != http.StatusTooManyRequests; tries++ {
		if tries == 20 {
			t.Fatal("guessing is not limited")
		}
	}
	got := c.post("/login", "/login", url.Values{"handle": {"ben"}, "password": {"ben-password"}})
	got.want(t, http.StatusTooManyRequests, "Try again in")
	if wait, err := strconv.Atoi(got.header.Get("Retry-After")); err != nil || wait < 1 {
		t.Errorf("Retry-After: %q", got.header.Get("Retry-After"))
	}
}

func TestReturnPathStaysHere(t *testing.T) {
	tests := map[string]string{
		"/gpus": "/gpus", "/launches/3?x=%2F": "/launches/3?x=%2F", "/oidc/authorize?a=b&c=https%3A%2F%2Fx": "/oidc/authorize?a=b&c=https%3A%2F%2Fx",
		"": "/", "gpus": "/", "//evil.example": "/", "///evil.example": "/", `/\evil.example`: "/", "https://evil.example/": "/",
		"javascript:alert(1)": "/", "/\tevil": "/", "/login?next=/login": "/", "/logout": "/", "/%zz": "/",
	}
	for next, want := range tests {
		l := newLab(t)
		got := l.client(t, "").post("/login", "/login", url.Values{"handle": {"ben"}, "password": {"ben-password"}, "next": {next}})
		if to := got.header.Get("Location"); to != want {
			t.Errorf("next %q leads to %q, want %q", next, to, want)
		}
	}
}

func TestAdminLink(t *testing.T) {
	l := newLab(t)
	l.users.exec(t, "UPDATE users SET password_hash = '' WHERE handle = 'ada'")
	token, err := l.users.CreateLink(context.Background(), users.Link{Purpose: users.PurposeAdminSetup}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	page := "/setup?token=" + token
	c := l.client(t, "")
	c.get(page).want(t, http.StatusOK, "Create your account")
	c.get(page).want(t, http.StatusOK) // looking does not use it up
	form := func(handle, password, again string) url.Values {
		return url.Values{"token": {token}, "name": {"Grace Hopper"}, "handle": {handle}, "password": {password}, "again": {again}}
	}
	c.post(page, "/setup", form("grace", "short", "short")).want(t, http.StatusUnprocessableEntity, "Grace Hopper", `aria-invalid="true"`)
	c.post(page, "/setup", form("grace", "a long password", "another long one")).want(t, http.StatusUnprocessableEntity, "The two passwords are not the same.")
	c.post(page, "/setup", form("../x", "a long password", "a long password")).want(t, http.StatusUnprocessableEntity, "sign-in name")
	c.post(page, "/setup", form("ada", "a long password", "a long password")).want(t, http.StatusUnprocessableEntity)
	got := c.post(page, "/setup", form("grace", "a long password", "a long password"))
	got.want(t, http.StatusSeeOther)
	c.get("/users").want(t, http.StatusOK, "Grace Hopper")
	again := l.client(t, "").get(page)
	again.want(t, http.StatusGone, "already used")
	l.client(t, "").get("/setup?token=stolen").want(t, http.StatusNotFound, "not valid")
	l.client(t, "").get("/setup").want(t, http.StatusNotFound)
	l.users.exec(t, "UPDATE links SET used_at = NULL, expires_at = 0")
	l.client(t, "").get(page).want(t, http.StatusGone, "expired")
}

func TestLiveHandleCheck(t *testing.T) {
	l := newLab(t)
	l.users.exec(t, "UPDATE users SET password_hash = '' WHERE handle = 'ada'")
	token, err := l.users.CreateLink(context.Background(), users.Link{Purpose: users.PurposeAdminSetup}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c := l.client(t, "")
	for handle, says := range map[string]string{"grace": "Free.", "ada": "taken", "Ä b": "a-b", "": "2 to 30", "root": "reserved"} {
		c.get("/handle/check?token="+token+"&handle="+url.QueryEscape(handle)).want(t, http.StatusOK, says)
	}
	c.get("/handle/check?handle=ada").want(t, http.StatusForbidden)
	c.get("/handle/check?token=guessed&handle=ada").want(t, http.StatusForbidden)
}

func TestUsersPage(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	c.post("/users", "/users", url.Values{"name": {"Zoë"}, "handle": {"Zoë"}, "role": {"member"}}).want(t, http.StatusUnprocessableEntity, `value="Zoë"`, "zoe")
	got := c.post("/users", "/users", url.Values{"name": {"Zoë"}, "handle": {"zoe"}, "role": {"member"}})
	got.want(t, http.StatusOK, "Zoë was added.", l.server.URL+"/welcome?token=")
	at := strings.Index(got.body, "/welcome?token=")
	link := got.body[at : at+strings.IndexByte(got.body[at:], '"')]

	zoe := l.client(t, "")
	zoe.get(link).want(t, http.StatusOK, "Choose a password", "zoe")
	zoe.post(link, "/welcome", url.Values{"token": {strings.TrimPrefix(link, "/welcome?token=")}, "password": {"correct horse battery"}, "again": {"correct horse battery"}}).want(t, http.StatusSeeOther)
	zoe.get("/").want(t, http.StatusOK, "Zoë")
	zoe.get("/users").want(t, http.StatusForbidden, "does not allow")

	c.post("/users", "/users/zoe/remove", nil).want(t, http.StatusSeeOther)
	c.post("/users", "/users/zoe/remove", nil).want(t, http.StatusNotFound) // removed by now
	c.post("/users", "/users/ada/remove", nil).want(t, http.StatusConflict, "cannot remove yourself")
	var actions []string
	for _, entry := range l.users.audit(t) {
		actions = append(actions, entry.Actor+" "+entry.Action+" "+entry.Target)
	}
	if got, want := strings.Join(actions, ", "), "ada user.add zoe, ada user.password-link zoe, zoe password.chosen zoe, ada user.remove zoe"; got != want {
		t.Errorf("audit: %s, want %s", got, want)
	}
}

func TestTrustPage(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "")
	for agent, says := range map[string]string{
		"Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) Safari/604.1":  "Steps for this device: iPhone and iPad",
		"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) Safari/605.1.15":      "Steps for this device: Mac",
		"Mozilla/5.0 (Windows NT 10.0; Win64; x64) Chrome/140.0 Safari/537.36": "Steps for this device: Windows",
		"Mozilla/5.0 (Linux; Android 15; Pixel 9) Chrome/140.0 Mobile":         "Steps for this device: Android",
		"Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Firefox/145.0":              "Steps for this device: Firefox",
		"curl/8.14": "Steps for this device: Debian, Ubuntu",
	} {
		c.do("GET", "/trust", nil, func(r *http.Request) { r.Header.Set("User-Agent", agent) }).want(t, http.StatusOK, says, "gpulab web CA (gpu-box)", "gpulab ca")
	}
	got := c.get("/ca.crt")
	if got.body != string(l.ca) || got.header.Get("Content-Type") != "application/x-x509-ca-cert" {
		t.Errorf("download: %s %q", got.header.Get("Content-Type"), got.body)
	}
	l.ca = nil
	c.get("/ca.crt").want(t, http.StatusNotFound, "no certificate authority of its own")
}

// Strangers who guess make nobody wait who comes back with their browser.
func TestKnownBrowser(t *testing.T) {
	l := newLab(t)
	const name = "__Host-Http-gpulab-known"
	right := url.Values{"handle": {"ben"}, "password": {"ben-password"}}
	owner := l.client(t, "")
	got := owner.post("/login", "/login", right)
	got.want(t, http.StatusSeeOther)
	var set string
	for _, c := range got.header.Values("Set-Cookie") {
		if strings.HasPrefix(c, name+"=") {
			set = c
		}
	}
	for _, part := range []string{"Secure", "HttpOnly", "Path=/", "Max-Age=34560000", "SameSite=Lax"} {
		if !strings.Contains(set, part) {
			t.Errorf("the cookie lacks %s: %q", part, set)
		}
	}
	owner.post("/", "/logout", nil).want(t, http.StatusSeeOther)

	stranger := l.client(t, "")
	for range 40 {
		stranger.post("/login", "/login", url.Values{"handle": {"ben"}, "password": {"wrong"}})
	}
	got = l.client(t, "").post("/login", "/login", right)
	got.want(t, http.StatusTooManyRequests, "signed in with before", "one-time link", "gpulab user passwd")
	if wait, err := strconv.Atoi(got.header.Get("Retry-After")); err != nil || wait < 1 || wait > 300 {
		t.Errorf("Retry-After: %q", got.header.Get("Retry-After"))
	}
	var value string
	for _, c := range owner.http.Jar.Cookies(nil) {
		if c.Name == name {
			value = c.Value
		}
	}
	// It signs nobody in, and is none where a page on another port may have added one.
	owner.get("/gpus").want(t, http.StatusSeeOther)
	twice := &http.Request{Header: http.Header{"Cookie": {name + "=" + value + "; " + name + "=" + value}}}
	if got := webui.KnownBrowser(twice); got != "" {
		t.Errorf("of two cookies %q is taken", got)
	}
	owner.post("/login", "/login", right).want(t, http.StatusSeeOther)
	owner.post("/", "/logout", nil).want(t, http.StatusSeeOther)
	// The next sign-in takes the twin away: it would make the browser a new one for ever.
	token := owner.token("/login")
	got = owner.do(http.MethodPost, "/login", url.Values{"handle": {"ada"}, "password": {"ada-password"}, "csrf": {token}}, func(r *http.Request) {
		r.Header.Set("Cookie", name+"=planted")
	})
	got.want(t, http.StatusSeeOther)
	var gone, anew bool
	for _, c := range got.header.Values("Set-Cookie") {
		if strings.HasPrefix(c, name+"=") {
			twin := strings.Contains(c, "Partitioned")
			gone, anew = gone || twin && strings.Contains(c, "Max-Age=0"), anew || !twin && strings.Contains(c, "Max-Age=34560000")
		}
	}
	if !gone || !anew {
		t.Errorf("after a twin: %q", got.header.Values("Set-Cookie"))
	}
}
