package webui_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/storage"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webui"
)

// TestEveryRouteForEveryRole walks all routes as nobody and in each role. The
// table is written out by hand: a route that lost its check fails here.
func TestEveryRouteForEveryRole(t *testing.T) {
	const (
		nobody = 1 << iota
		guest
		member
		lead
		admin
		everyone = nobody | guest | member | lead | admin
		signedIn = everyone &^ nobody
		managers = lead | admin // of notebooks
	)
	roles := []struct {
		bit    int
		handle string
	}{{nobody, ""}, {guest, "gus"}, {member, "ben"}, {lead, "lea"}, {admin, "ada"}}
	routes := []struct {
		method, path string
		allowed      int
	}{
		{"GET", "/login", everyone},
		{"POST", "/login", everyone},
		{"POST", "/logout", everyone},
		{"GET", "/setup", everyone},
		{"POST", "/setup", everyone},
		{"GET", "/welcome", everyone},
		{"POST", "/welcome", everyone},
		{"POST", "/signin/uni", everyone},
		{"GET", "/signin/uni/callback", everyone},
		{"POST", "/signin/uni/callback", everyone},
		{"GET", "/other-session", everyone},
		{"GET", "/handle/choose", everyone},
		{"POST", "/handle/choose", everyone},
		{"GET", "/join", everyone},
		{"POST", "/join", everyone},
		{"GET", "/signup", everyone},
		{"POST", "/signup", everyone},
		{"GET", "/trust", everyone},
		{"GET", "/ca.crt", everyone},
		{"GET", "/cli/gpulab-linux-amd64", everyone},
		{"GET", "/api", everyone},
		{"GET", "/cli", signedIn},
		{"GET", "/device", signedIn},
		{"POST", "/device", signedIn},
		{"GET", "/handle/check?handle=zoe", admin},
		{"GET", "/", signedIn},
		{"GET", "/gpus", signedIn},
		{"GET", "/gpus/" + testGPU, signedIn},
		{"POST", "/gpus/" + testGPU + "/lend", admin},
		{"GET", "/gpus/" + testGPU + "/curves", signedIn},
		{"POST", "/gpu-check", admin},
		{"GET", "/use", signedIn},
		{"GET", "/design", signedIn},
		{"GET", "/events?view=nothing", signedIn},
		{"POST", "/launch", signedIn},
		{"GET", "/launches/1", managers},
		{"POST", "/launches/1/stop", managers},
		{"POST", "/launches/1/cancel", managers},
		{"POST", "/launches/1/keep", managers},
		{"POST", "/launches/1/free", admin},
		{"GET", "/jobs", signedIn},
		{"POST", "/jobs", signedIn},
		{"POST", "/jobs/notebook", signedIn},
		{"GET", "/jobs/2", managers},
		{"GET", "/jobs/2/log", 0},
		{"POST", "/jobs/2/cancel", managers},
		{"POST", "/jobs/2/again", 0},
		{"GET", "/environments", signedIn},
		{"POST", "/environments", admin},
		{"POST", "/environments/cancel", admin},
		{"POST", "/environments/default", admin},
		{"POST", "/environments/import", 0}, // the form is refused: its token comes with a file
		{"GET", "/environments/small/1", signedIn},
		{"GET", "/environments/small/1/lock", signedIn},
		{"GET", "/environments/small/1/file", admin},
		{"POST", "/environments/small/1/remove", admin},
		{"GET", "/services", signedIn},
		{"POST", "/services", signedIn},
		{"POST", "/services/tensorboard", signedIn},
		{"GET", "/services/3", managers},
		{"GET", "/services/3/log", 0},
		{"POST", "/services/3/share", 0},
		{"POST", "/services/3/keep", 0},
		{"POST", "/services/3/restart", 0},
		{"POST", "/services/3/again", 0},
		{"POST", "/services/3/stop", managers},
		{"GET", "/users", admin},
		{"POST", "/users", admin},
		{"POST", "/users/gus/link", admin},
		{"POST", "/users/gus/remove", admin},
		{"POST", "/users/gus/undelete", admin},
		{"GET", "/users/gus", admin},
		{"GET", "/users/zed", managers},
		{"GET", "/users/nobody", admin},
		{"POST", "/users/gus", admin},
		{"POST", "/users/gus/suspend", admin},
		{"POST", "/users/gus/resume", admin},
		{"GET", "/groups", managers},
		{"POST", "/groups", admin},
		{"GET", "/groups/vision", managers},
		{"GET", "/groups/none", admin},
		{"POST", "/memberships", admin},
		{"POST", "/memberships/remove", admin},
		{"POST", "/groups/vision/remove", admin},
		{"GET", "/quotas", admin},
		{"GET", "/account", signedIn},
		{"POST", "/account/profile", signedIn},
		{"POST", "/account/mail", signedIn},
		{"GET", "/mail", admin},
		{"POST", "/mail/test", admin},
		{"POST", "/account/password", signedIn},
		{"POST", "/account/sessions/1/end", signedIn},
		{"POST", "/account/sessions/end-others", signedIn},
		{"POST", "/account/tokens", signedIn},
		{"POST", "/account/tokens/1/revoke", signedIn},
		{"GET", "/account/identities/uni", signedIn},
		{"POST", "/account/identities/uni/link", signedIn},
		{"POST", "/account/identities/1/unlink", signedIn},
		{"POST", "/users/gus/identities/1/unlink", admin},
		{"POST", "/users/gus/role-by-rules", admin},
		{"POST", "/account/ssh-keys", signedIn},
		{"POST", "/account/ssh-keys/1/remove", signedIn},
		{"POST", "/account/files/close", signedIn},
		{"GET", "/audit", admin},
		{"POST", "/audit/export", admin},
		{"POST", "/quotas", admin},
		{"POST", "/quotas/grants", admin},
		{"POST", "/quotas/grants/1/end", admin},
		{"GET", "/folders", signedIn},
		{"POST", "/folders", managers},
		{"GET", "/folders/vision-data", managers},
		{"POST", "/folders/vision-data", managers},
		{"POST", "/folders/vision-data/delete", managers},
		{"POST", "/folders/vision-data/undelete", managers},
		{"POST", "/home/clear", signedIn},
		{"GET", "/users/import", admin},
		{"POST", "/users/import", admin},
		{"GET", "/requests", admin},
		{"POST", "/requests/1/approve", admin},
		{"POST", "/requests/1/decline", admin},
		{"GET", "/invitations", lead | admin},
		{"POST", "/invitations", lead | admin},
		{"POST", "/invitations/1/revoke", lead | admin},
		{"GET", "/network", signedIn},
		{"GET", "/status", admin},
		{"GET", "/report", admin},
		{"GET", "/report.csv", admin},
		{"GET", "/tailnet", admin},
		{"POST", "/tailnet/up", admin},
		{"POST", "/tailnet/down", admin},
		{"GET", "/tailnet/funnel", admin},
		{"GET", "/tailnet/funnel/open", admin},
		{"POST", "/tailnet/funnel/open", admin},
		{"POST", "/tailnet/funnel/close", admin},
		{"POST", "/tailnet/logout", admin},
		{"GET", "/machines", admin},
		{"POST", "/machines/invite", admin},
		{"POST", "/machines/invitations/0000000000000001/withdraw", admin},
		{"POST", "/machines/requests/012345/accept", admin},
		{"POST", "/machines/requests/012345/refuse", admin},
		{"POST", "/machines/cordon", admin},
		{"POST", "/machines/limit", admin},
		{"POST", "/machines/placing", admin},
		{"POST", "/machines/rename", admin},
		{"POST", "/machines/gpu-two/uncordon", admin},
		{"POST", "/machines/gpu-two/keep", admin},
		{"POST", "/machines/gpu-two/remove", admin},
	}
	for _, rt := range newLab(t).pages.Routes() {
		path := samplePath(rt[1])
		if !slices.ContainsFunc(routes, func(r struct {
			method, path string
			allowed      int
		}) bool {
			return r.method == rt[0] && strings.SplitN(r.path, "?", 2)[0] == path
		}) {
			t.Errorf("%s %s is not in this table", rt[0], path)
		}
	}
	for _, role := range roles {
		t.Run(role.handle, func(t *testing.T) {
			l := newLab(t)
			zed, err := l.users.Create(t.Context(), users.NewUser{Handle: "zed"})
			if err == nil {
				_, err = l.users.CreateGroup(t.Context(), "vision", "")
			}
			for id, leads := range map[int64]bool{zed.ID: false, 3: true} {
				if err == nil {
					err = l.users.SetMember(t.Context(), "vision", id, leads)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			l.folder(t, "vision-data", storage.Group, "vision") // which lea manages, and nobody else of those who ask sees
			for _, rt := range routes {
				// Somebody's launch that is nobody's of those who ask, in a group that lea leads.
				l.notebooks.change(func(list *[]notebooks.Launch) {
					*list = []notebooks.Launch{{ID: 1, UserID: zed.ID, Handle: "zed", Title: "zed's", Profile: "cpu", State: notebooks.Running, URL: "/user/zed/cpu/"},
						{ID: 2, UserID: zed.ID, Handle: "zed", Title: "zed's job", Profile: "cpu", State: notebooks.Running, Job: &notebooks.Job{Limit: time.Hour, Output: "jobs/zed-2.log"}},
						{ID: 3, UserID: zed.ID, Handle: "zed", Title: "zed's page", Profile: "cpu", State: notebooks.Running, Job: &notebooks.Job{Limit: time.Hour, Output: "services/zed-3.log"},
							Service: &notebooks.WebService{Port: 6006, Door: 8500, Share: notebooks.Share{With: notebooks.SharePrivate}}}}
				})
				c := l.client(t, role.handle)
				var got answer
				if rt.method == "POST" {
					page := "/"
					if role.bit == nobody {
						page = "/login"
					}
					got = c.post(page, rt.path, nil)
				} else {
					got = c.get(rt.path)
				}
				refused := got.status == http.StatusUnauthorized && rt.path != "/login" || got.status == http.StatusForbidden ||
					strings.HasPrefix(got.header.Get("Location"), "/login?next=") ||
					got.status == http.StatusNotFound && (strings.HasPrefix(rt.path, "/launches/") || strings.HasPrefix(rt.path, "/jobs/") || strings.HasPrefix(rt.path, "/services/"))
				if allowed := rt.allowed&role.bit != 0; allowed == refused {
					t.Errorf("%s %s as %q: status %d %s, want allowed %v", rt.method, rt.path, role.handle, got.status, got.header.Get("Location"), allowed)
				}
				body := strings.NewReplacer(url.QueryEscape(rt.path), "", rt.path, "").Replace(got.body) // what they know anyway
				if role.bit == nobody && rt.allowed&nobody == 0 && strings.Contains(body, "zed") {
					t.Errorf("%s %s tells a stranger about people", rt.method, rt.path)
				}
			}
		})
	}
}

// samplePath fills a route's pattern in.
func samplePath(pattern string) string {
	return strings.NewReplacer("/jobs/{id}", "/jobs/2", "/environments/{name}/{version}", "/environments/small/1", "/services/{id}", "/services/3", "{id}", "1", "{handle}", "gus", "{group}", "vision", "{name}", "vision-data", "{code}", "0000000000000001", "{machine}", "gpu-two", "{number}", "012345", "{$}", "", "{uuid}", testGPU, "{provider}", "uni", "{file}", "gpulab-linux-amd64").Replace(pattern)
}

// TestEveryFormNeedsItsToken walks all routes that change something, as nobody
// and as an admin, with forms that no page of the lab sent.
func TestEveryFormNeedsItsToken(t *testing.T) {
	for _, handle := range []string{"", "ada"} {
		l := newLab(t)
		l.busy()
		link, err := l.users.CreateLink(t.Context(), users.Link{Purpose: users.PurposePassword, UserID: ptr(int64(4))}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		c := l.client(t, handle)
		page := "/"
		if handle == "" {
			page = "/login"
		}
		token := c.token(page)
		stranger := l.client(t, "ben").token("/")
		if _, _, err := l.users.CreateToken(t.Context(), 1, users.NewToken{Name: "laptop", Scope: users.ScopeRead, Days: 30}); err != nil {
			t.Fatal(err)
		}
		tokens, sessions := l.users.count(t, "api_tokens"), l.users.count(t, "sessions")
		people, running, audit := l.users.count(t, "users"), len(l.notebooks.filter(notebooks.Launch.Active)), l.users.count(t, "audit")
		walked := 0
		for _, rt := range l.pages.Routes() {
			if rt[0] != http.MethodPost {
				continue
			}
			walked++
			path := samplePath(rt[1])
			// Everything that would be right but for the token.
			form := func(csrf ...string) url.Values {
				return url.Values{"csrf": csrf, "handle": {"ada"}, "password": {"ada-password"}, "again": {"ada-password"},
					"token": {link}, "name": {"Eve"}, "role": {"admin"}, "profile": {"cpu"},
					"old": {"ada-password"}, "scope": {"full"}, "days": {"30"}, "format": {"csv"}}
			}
			for what, got := range map[string]answer{
				"no token":              c.do("POST", path, form(), nil),
				"an empty token":        c.do("POST", path, form(""), nil),
				"somebody else's token": c.do("POST", path, form(stranger), nil),
				"the token in the address": c.do("POST", path, form(), func(r *http.Request) {
					r.URL.RawQuery = url.Values{"csrf": {token}}.Encode()
				}),
			} {
				refused := got.status == http.StatusForbidden && strings.Contains(got.body, "This form was not accepted")
				if handle == "" && got.status == http.StatusUnauthorized && strings.Contains(got.body, "You are signed out") {
					refused = true // asked for a session even before the token
				}
				if !refused || got.header.Get("Location") != "" {
					t.Errorf("%s with %s as %q: status %d:\n%s", path, what, handle, got.status, visible(got.body))
				}
			}
		}
		if walked < 8 {
			t.Errorf("only %d routes take forms", walked)
		}
		_, unused := l.users.LinkInfo(t.Context(), link)
		if l.users.count(t, "users") != people || len(l.notebooks.filter(notebooks.Launch.Active)) != running || l.users.count(t, "audit") != audit || unused != nil ||
			l.users.count(t, "api_tokens") != tokens || l.users.count(t, "sessions") != sessions {
			t.Error("a form without its token changed something")
		}
		if handle != "" {
			c.get("/").want(t, http.StatusOK) // nor did it sign anybody out
		}
	}
}

func TestSuspendedSessionsMayNothing(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ben")
	if err := l.users.Suspend(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	c.get("/gpus").want(t, http.StatusSeeOther)
}

// TestForms checks that no form is taken without its token, from elsewhere, or
// beyond its size, and that nothing changes then.
func TestForms(t *testing.T) {
	tests := []struct {
		name   string
		status int
		says   string
		edit   func(*http.Request)
		form   url.Values
	}{
		{"no token", http.StatusForbidden, "Nothing was changed", nil, url.Values{}},
		{"wrong token", http.StatusForbidden, "Nothing was changed", nil, url.Values{"csrf": {"guessed"}}},
		{"other site", http.StatusForbidden, "nothing was changed", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, url.Values{"csrf": {"TOKEN"}}},
		{"notebooks' origin", http.StatusForbidden, "nothing was changed", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }, url.Values{"csrf": {"TOKEN"}}},
		{"other origin, old browser", http.StatusForbidden, "nothing was changed", func(r *http.Request) {
			r.Header.Del("Sec-Fetch-Site")
			r.Header.Set("Origin", "https://evil.example")
		}, url.Values{"csrf": {"TOKEN"}}},
		{"too large", http.StatusRequestEntityTooLarge, "too large", nil, url.Values{"csrf": {"TOKEN"}, "title": {strings.Repeat("x", 100<<10)}}},
		{"token in the address", http.StatusForbidden, "Nothing was changed", func(r *http.Request) { r.URL.RawQuery = "csrf=" + r.Header.Get("X-Token") }, url.Values{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t)
			c := l.client(t, "ben")
			token := c.token("/")
			if test.form.Get("csrf") == "TOKEN" {
				test.form.Set("csrf", token)
			}
			test.form.Set("profile", "cpu")
			got := c.do("POST", "/launch", test.form, func(r *http.Request) {
				r.Header.Set("X-Token", token)
				if test.edit != nil {
					test.edit(r)
				}
			})
			got.want(t, test.status, test.says)
			if n := len(l.notebooks.filter(notebooks.Launch.Active)); n != 0 {
				t.Errorf("%d notebooks were started", n)
			}
		})
	}
}

func TestAnotherSessionsTokenIsRefused(t *testing.T) {
	l := newLab(t)
	token := l.client(t, "ada").token("/")
	l.client(t, "ben").do("POST", "/launch", url.Values{"csrf": {token}, "profile": {"cpu"}}, nil).want(t, http.StatusForbidden)
}

func TestErrorPages(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ben")
	c.get("/nothing/here").want(t, http.StatusNotFound, "There is no such page")
	c.get("/launches/999").want(t, http.StatusNotFound, "There is no such page")
	c.get("/launches/x").want(t, http.StatusNotFound)
	got := c.do("DELETE", "/gpus", nil, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-origin") })
	got.want(t, http.StatusMethodNotAllowed, "cannot be used that way")
	if allow := got.header.Get("Allow"); allow != "GET" {
		t.Errorf("Allow: %q", allow)
	}
	l.status.status.Components = nil // makes the fake fail
	l.client(t, "ada").get("/status").want(t, http.StatusInternalServerError, "gpulab logs")
}

func TestSecurityHeaders(t *testing.T) {
	l := newLab(t)
	got := l.client(t, "ben").get("/")
	policy := got.header.Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "frame-ancestors 'none'", "base-uri 'none'", "wss://127.0.0.1:"} {
		if !strings.Contains(policy, part) {
			t.Errorf("policy lacks %q: %s", part, policy)
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Errorf("policy allows unsafe things: %s", policy)
	}
	for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Cache-Control": "no-store",
		"Referrer-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin", "Strict-Transport-Security": ""} {
		if got := got.header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if strings.Contains(got.body, " style=") || strings.Contains(got.body, "<style") || strings.Contains(got.body, " onclick") {
		t.Error("the page has inline style or script, which the policy refuses")
	}
}

// TestHostInjection sends host names that would end a header's value early.
func TestHostInjection(t *testing.T) {
	l := newLab(t)
	for _, host := range []string{"lab;script-src *", "lab.example:99999999", "'unsafe-inline'", "[::1]:443", "LAB-1.example"} {
		request := httptest.NewRequest(http.MethodGet, "/login", nil)
		request.Host = host
		recorder := httptest.NewRecorder()
		l.server.Config.Handler.ServeHTTP(recorder, request)
		policy := recorder.Header().Get("Content-Security-Policy")
		if strings.Contains(policy, "*") || strings.Contains(policy, "unsafe") {
			t.Errorf("host %q reached the policy: %s", host, policy)
		}
	}
}

var assetURL = func(body string) []string {
	var urls []string
	for _, part := range strings.Split(body, `"`) {
		if strings.HasPrefix(part, "/assets/") {
			urls = append(urls, part)
		}
	}
	return urls
}

func TestAssets(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "")
	urls := assetURL(c.get("/login").body)
	if len(urls) < 4 {
		t.Fatalf("page loads only %v", urls)
	}
	for _, u := range urls {
		got := c.get(u)
		got.want(t, http.StatusOK)
		if cache := got.header.Get("Cache-Control"); !strings.Contains(cache, "immutable") {
			t.Errorf("%s: Cache-Control %q", u, cache)
		}
		zipped := c.do("GET", u, nil, func(r *http.Request) { r.Header.Set("Accept-Encoding", "gzip") })
		if zipped.header.Get("Content-Encoding") != "gzip" || len(zipped.body) == 0 {
			t.Errorf("%s is not compressed", u)
		}
	}
	c.get("/assets/000000000000/app.css").want(t, http.StatusNotFound)
	c.get("/assets/").want(t, http.StatusNotFound)
}

func TestLaunchFlow(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ben")
	got := c.post("/", "/launch", url.Values{"profile": {"gpu"}, "title": {" Seminar <3> "}})
	got.want(t, http.StatusSeeOther)
	if to := got.header.Get("Location"); to != "/launches/1" {
		t.Fatalf("sent to %q", to)
	}
	c.get("/launches/1").want(t, http.StatusOK, "Seminar &lt;3&gt;", "Starting", "/events?view=launch&amp;id=1")
	c.get("/").want(t, http.StatusOK, "Seminar &lt;3&gt;")
	if strings.Contains(l.client(t, "gus").get("/").body, "Seminar") {
		t.Error("others see a notebook's title")
	}
	c.post("/launches/1", "/launches/1/stop", nil).want(t, http.StatusSeeOther)
	c.post("/launches/1", "/launches/1/stop", nil).want(t, http.StatusSeeOther) // twice is no error
	c.get("/launches/1").want(t, http.StatusOK, "Stopped", "Start it again")

	for _, bad := range []url.Values{{"profile": {"tpu"}}, {"profile": {"cpu"}, "title": {strings.Repeat("ä", 81)}}} {
		c.post("/", "/launch", bad).want(t, http.StatusBadRequest, "The notebook was not started")
	}
}

// What cannot work on the lab's GPUs is not offered, and not started for who
// had the page open before.
func TestProfileThatCannotWork(t *testing.T) {
	l := newLab(t)
	const why = "The image X needs CUDA 99.0 or newer; the driver of this machine (570.86.10) offers 12.8."
	l.notebooks.block("gpu", why)
	c := l.client(t, "ben")
	c.get("/").want(t, http.StatusOK, why, "cannot start here", "starts at once")
	c.post("/", "/launch", url.Values{"profile": {"gpu"}}).want(t, http.StatusConflict, "The notebook was not started", why)
	c.post("/", "/launch", url.Values{"profile": {"cpu"}}).want(t, http.StatusSeeOther)
	l.notebooks.block("gpu", "")
	if strings.Contains(c.get("/").body, why) {
		t.Error("the card says so still")
	}
	c.post("/", "/launch", url.Values{"profile": {"gpu"}}).want(t, http.StatusSeeOther)
}

// Administrators read on their home page that a disk fills up, nobody else.
func TestDiskNotice(t *testing.T) {
	notice := "The disk is 86 % full."
	l := newLabWith(t, func(c *webui.Config) { c.DiskNotice = func() string { return notice } })
	l.client(t, "ada").get("/").want(t, http.StatusOK, notice)
	if strings.Contains(l.client(t, "ben").get("/").body, notice) {
		t.Error("a member reads it too")
	}
	notice = ""
	if strings.Contains(l.client(t, "ada").get("/").body, "% full") {
		t.Error("it is still there")
	}
}

// Administrators read on their home page and on Quotas which quotas to set.
func TestQuotaAdvice(t *testing.T) {
	text := "No quota bounds what one person may run"
	l := newLabWith(t, func(c *webui.Config) {
		c.QuotaAdvice = func(context.Context) (string, string, error) {
			return text, "`gpulab quota recommended --set` sets them", nil
		}
	})
	for _, path := range []string{"/", "/quotas"} {
		l.client(t, "ada").get(path).want(t, http.StatusOK, text, "<code>gpulab quota recommended --set</code>")
	}
	if strings.Contains(l.client(t, "ben").get("/").body, text) {
		t.Error("a member reads it too")
	}
	text = ""
	if strings.Contains(l.client(t, "ada").get("/").body, "quota-advice") {
		t.Error("it is still there")
	}
}

func TestWaitingNotebookCanBecomeAnother(t *testing.T) {
	l := newLab(t, "ada", "lea")
	l.notebooks.change(func(list *[]notebooks.Launch) {
		*list = []notebooks.Launch{{ID: 1, UserID: 2, Handle: "ben", Title: "Mine", Profile: "gpu", GPUs: 1, State: notebooks.Waiting, Requested: time.Now(),
			Reason: "Both GPUs are in use.", Position: 2, Detail: []notebooks.Step{{Name: notebooks.StepQueue, State: "active", Text: "Both GPUs are in use"}}, Holders: []notebooks.Holder{{Handle: "ada", Pod: "jupyter-ada", GPUs: 1, Since: time.Now().Add(-5 * time.Minute)}}}}
	})
	c := l.client(t, "ben")
	c.get("/launches/1").want(t, http.StatusOK, "Waiting for 1 GPU", "Both GPUs are in use.", "It starts by itself", "ada", "5 min", "Start a CPU notebook instead", "Cancel")
	if body := c.get("/launches/1").body; strings.Count(body, "GPUs are in use") != 1 {
		t.Errorf("the reason is said more than once:\n%s", visible(body))
	}
	cordoned := snapshotAt(time.Now(), 2)
	cordoned.Cordoned = "gpu-box takes no new work: new memory."
	l.fleet.publish(cordoned)
	if body := c.get("/launches/1").body; strings.Contains(body, "Start a CPU notebook instead") {
		t.Errorf("no machine takes new work, and one without a GPU is offered:\n%s", visible(body))
	}
	l.fleet.publish(snapshotAt(time.Now(), 2))
	got := c.post("/launches/1", "/launch", url.Values{"profile": {"cpu"}, "title": {"Mine"}, "instead": {"1"}})
	got.want(t, http.StatusSeeOther)
	c.get("/launches/1").want(t, http.StatusOK, "Cancelled")
	c.get(got.header.Get("Location")).want(t, http.StatusOK, "CPU notebook")

	// Somebody else's launch cannot be taken away that way.
	l.notebooks.change(func(list *[]notebooks.Launch) { (*list)[0].UserID, (*list)[0].State = 1, notebooks.Waiting })
	c.post("/", "/launch", url.Values{"profile": {"cpu"}, "instead": {"1"}}).want(t, http.StatusNotFound)
}

func TestRunningNotebookIsOpenedOnTheOtherOrigin(t *testing.T) {
	l := newLab(t)
	l.busy()
	body := l.client(t, "ada").get("/launches/1").body
	if want := `href="` + l.server.URL + `/user/ada/gpu/lab"`; !strings.Contains(body, want) {
		t.Errorf("no %s on the page", want)
	}
	if strings.Contains(l.client(t, "lea").get("/launches/1").body, "/user/ada/") {
		t.Error("a lead is led into somebody else's notebook")
	}
}

// TestSimulatedStandsBesideEveryGPU: nobody takes a simulated GPU for a card.
func TestSimulatedStandsBesideEveryGPU(t *testing.T) {
	l := newLab(t, "ada", "ben")
	l.busy()
	c := l.client(t, "ada")
	home := c.get("/").body
	for _, row := range []string{"protein-folding", "eight-gpus", "Seminar exercise 3"} { // held, wanted, somebody else's
		at := strings.Index(home, row)
		if at < 0 || !strings.Contains(home[at:at+strings.Index(home[at:], "</tr>")], ">simulated<") {
			t.Errorf("the row of %s does not say it", row)
		}
	}
	for _, want := range []string{"1 simulated GPU", `<span class="tag simulated">`} {
		if !strings.Contains(home, want) {
			t.Errorf("the home page lacks %q", want)
		}
	}
	for _, page := range []string{"/gpus", "/launches/1", "/launches/5"} {
		c.get(page).want(t, http.StatusOK, ">simulated<")
	}
	if strings.Contains(c.get("/launches/4").body, ">simulated<") {
		t.Error("a notebook without a GPU is called simulated")
	}
}
