package webui_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

func (a answer) lacks(t testing.TB, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(a.body, text) {
			t.Errorf("the page says %q:\n%s", text, visible(a.body))
		}
	}
}

// to checks where an answer sends the browser.
func (a answer) to(t testing.TB, path string) {
	t.Helper()
	if a.status != http.StatusSeeOther || a.header.Get("Location") != path {
		t.Errorf("status %d to %q, want %q\n%s", a.status, a.header.Get("Location"), path, visible(a.body))
	}
}

func TestUserListIsSearchedAndPaged(t *testing.T) {
	l := newLab(t)
	l.vision(t)
	for i := range 120 {
		if _, err := l.users.Create(t.Context(), users.NewUser{Handle: fmt.Sprintf("student-%03d", i), Name: fmt.Sprintf("Jürgen %d", i), Role: users.RoleGuest}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.users.Suspend(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	c := l.client(t, "ada")
	got := c.get("/users")
	got.want(t, http.StatusOK, "1–50 of 124", `href="/users/ada"`, "Ada Lovelace", "ada@example.org", `href="/users?page=2"`, "suspended", "no password yet", "vision")
	got.lacks(t, "Previous", "student-060")
	c.get("/users?page=2").want(t, http.StatusOK, "51–100 of 124", `href="/users"`, `href="/users?page=3"`)
	c.get("/users?page=3").want(t, http.StatusOK, "101–124 of 124", "student-119")
	c.get("/users?page=3").lacks(t, ">Next<")
	c.get("/users?page=9").want(t, http.StatusOK, "Nobody fits", `href="/users?page=3"`)
	for _, bad := range []string{"0", "-1", "x", "99999999999999999999"} {
		c.get("/users?page="+bad).want(t, http.StatusNotFound)
	}
	got = c.get("/users?q=jurgen+11&role=guest&page=1")
	got.want(t, http.StatusOK, "1–11 of 11", "student-011", "student-119", `value="jurgen 11"`, "Show all")
	got.lacks(t, `href="/users/ada"`)
	c.get("/users?q=jurgen&role=guest").want(t, http.StatusOK, `href="/users?page=2&amp;q=jurgen&amp;role=guest"`)
	c.get("/users?group=vision").want(t, http.StatusOK, "1–1 of 1", `href="/users/lea"`)
	c.get("/users?state=suspended").want(t, http.StatusOK, "1–1 of 1", `href="/users/ben"`)
	c.get("/users?state=removed").want(t, http.StatusOK, "Nobody fits")
	c.get("/users?q="+url.QueryEscape(`"><script>alert(1)</script>%`)).want(t, http.StatusOK, "Nobody fits", "&lt;script&gt;")
}

func TestPersonPage(t *testing.T) {
	l := newLab(t)
	l.vision(t)
	l.history.usage = someUse()
	if err := l.users.SetMember(t.Context(), "vision", 2, false); err != nil {
		t.Fatal(err)
	}
	l.notebooks.change(func(list *[]notebooks.Launch) {
		*list = []notebooks.Launch{
			{ID: 1, UserID: 2, Handle: "ben", Title: "Seminar 3", Profile: "cpu", State: notebooks.Running, Requested: time.Now(), Ready: time.Now(), URL: "/user/ben/cpu/"},
			{ID: 2, UserID: 1, Handle: "ada", Title: "protein", Profile: "cpu", State: notebooks.Running, Requested: time.Now(), Ready: time.Now()},
		}
	})
	c := l.client(t, "ada")
	got := c.get("/users/ben")
	got.want(t, http.StatusOK, "Ben Okafor", "Seminar 3", "Stop", "vision", "Suspend", "New password link", "Can sign in", "Use of GPUs in the last 30 days", "never", "20001")
	got.lacks(t, "protein", "/user/ben/cpu/")
	c.get("/users/nobody").want(t, http.StatusNotFound)

	// A notebook is stopped here, and one stays here.
	c.post("/users/ben", "/launches/1/stop", url.Values{"next": {"/users/ben"}}).to(t, "/users/ben")
	c.post("/users/ben", "/launches/1/stop", url.Values{"next": {"https://evil.example/"}}).to(t, "/")
	c.get("/users/ben").want(t, http.StatusOK, "No notebook")

	// The lead of one of his groups sees him, and changes nothing.
	lea := l.client(t, "lea")
	got = lea.get("/users/ben")
	got.want(t, http.StatusOK, "Ben Okafor", "vision", "Can sign in")
	got.lacks(t, "Suspend", "New password link", "Save", "Take out", ">Remove", `action="/memberships"`)
	lea.get("/users/gus").want(t, http.StatusForbidden)
	lea.get("/users/nobody").want(t, http.StatusForbidden) // whether there is one is not told
	lea.get("/users/lea").want(t, http.StatusOK)
	l.client(t, "ben").get("/users/ben").want(t, http.StatusForbidden)
	if err := l.users.Remove(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	lea.get("/users/ben").want(t, http.StatusForbidden)
}

// TestUseOnThePageOfAPerson asks the ledger for that person alone.
func TestUseOnThePageOfAPerson(t *testing.T) {
	l := newLab(t)
	l.history.usage = map[history.By][]history.Usage{history.ByTotal: {{Held: 7200, Busy: 3600}}}
	l.client(t, "ada").get("/users/ben").want(t, http.StatusOK, "2.00", "GPU hours")
	for _, f := range l.history.filters {
		if f.User != "ben" || time.Since(f.From) > 31*24*time.Hour || time.Since(f.From) < 28*24*time.Hour {
			t.Errorf("asked about %+v", f)
		}
	}
	if len(l.history.filters) == 0 {
		t.Error("nobody was asked")
	}
}

func TestChangePerson(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	ben := l.client(t, "ben")
	c.post("/users/ben", "/users/ben", url.Values{"name": {" Benedict "}, "email": {"b@example.org"}, "role": {"member"}}).to(t, "/users/ben")
	c.get("/users/ben").want(t, http.StatusOK, "Benedict", "b@example.org")
	ben.get("/").want(t, http.StatusOK) // he is still signed in
	for field, tc := range map[string][3]string{
		"name":  {"Ben\x07", "b2@example.org", "characters that cannot be shown"},
		"email": {"Kept Name", "nonsense", "cannot be right"},
	} {
		got := c.post("/users/ben", "/users/ben", url.Values{"name": {tc[0]}, "email": {tc[1]}, "role": {"guest"}})
		got.want(t, http.StatusUnprocessableEntity, tc[2], `id="`+field+`-note"`)
	}
	c.post("/users/ben", "/users/ben", url.Values{"name": {"B"}, "role": {"king"}}).want(t, http.StatusUnprocessableEntity, "There is no role")
	if who, err := l.users.Person(t.Context(), "ben"); err != nil || who.Name != "Benedict" || who.Role != users.RoleMember {
		t.Errorf("half of a form was taken: %+v, %v", who, err)
	}
	c.post("/users/ben", "/users/ben", url.Values{"name": {"Benedict"}, "email": {"b@example.org"}, "role": {"lead"}}).to(t, "/users/ben")
	ben.get("/").want(t, http.StatusSeeOther) // a role is taken up by signing in
	if got := l.actions(t); got != "ada user.change ben, ada user.role ben" {
		t.Errorf("audit: %s", got)
	}

	// Nobody changes what they are themselves, nor keeps themselves out.
	c.post("/users/ada", "/users/ada", url.Values{"name": {"Ada"}, "role": {"member"}}).want(t, http.StatusConflict, "your own role")
	c.post("/users/ada", "/users/ada", url.Values{"name": {"Ada L."}}).to(t, "/users/ada")
	c.post("/users/ada", "/users/ada/suspend", nil).want(t, http.StatusConflict, "cannot suspend yourself")
	c.post("/users/ada", "/users/ada/remove", nil).want(t, http.StatusConflict, "cannot remove yourself")
	c.get("/users/ada").lacks(t, `action="/users/ada/remove"`, `action="/users/ada/suspend"`, `name="role"`)
	if who, err := l.users.Person(t.Context(), "ada"); err != nil || who.Role != users.RoleAdmin || who.Suspended || who.Name != "Ada L." {
		t.Errorf("%+v, %v", who, err)
	}
}

func TestSuspendAndRemoveByPage(t *testing.T) {
	l := newLab(t)
	c, ben := l.client(t, "ada"), l.client(t, "ben")
	c.post("/users/ben", "/users/ben/suspend", nil).to(t, "/users/ben")
	c.get("/users/ben").want(t, http.StatusOK, "Suspended since", "End the suspension")
	c.get("/users/ben").lacks(t, "New password link")
	ben.get("/").want(t, http.StatusSeeOther)
	c.post("/users/ben", "/users/ben/link", nil).want(t, http.StatusForbidden, "suspended")
	c.post("/users/ben", "/users/ben/resume", nil).to(t, "/users/ben")
	got := c.post("/users/ben", "/users/ben/link", nil)
	got.want(t, http.StatusOK, "One-time link", "/welcome?token=")

	c.post("/users/ben", "/users/ben/remove", nil).to(t, "/users/ben")
	until := time.Now().Add(users.RemovedKept).Local().Format("2 January 2006")
	got = c.get("/users/ben")
	got.want(t, http.StatusOK, "This account is removed.", "until "+until, "Bring back", "Removed on")
	got.lacks(t, "Save", `action="/users/ben/remove"`, `action="/memberships"`)
	c.get("/users").lacks(t, `href="/users/ben"`)
	c.get("/users?state=removed").want(t, http.StatusOK, `href="/users/ben"`, "removed, until "+until)
	c.post("/users/ben", "/users/ben/suspend", nil).want(t, http.StatusNotFound)
	c.post("/users/ben", "/users/ben/undelete", nil).to(t, "/users/ben")
	c.post("/users/ben", "/users/ben/undelete", nil).want(t, http.StatusConflict, "not removed")
	ben.get("/").want(t, http.StatusSeeOther)
	c.get("/users/ben").want(t, http.StatusOK, "Can sign in")
	if err := l.users.Remove(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if err := l.users.Purge(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	c.get("/users/ben").want(t, http.StatusGone, "This account is gone", "deleted for good")
	if got := l.actions(t); got != "ada user.suspend ben, ada user.resume ben, ada user.password-link ben, ada user.remove ben, ada user.undelete ben" {
		t.Errorf("audit: %s", got)
	}
}

func TestGroupsByPage(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	c.get("/groups").want(t, http.StatusOK, "No group yet", "Make a group")
	c.post("/groups", "/groups", url.Values{"title": {"Vision <seminar>"}, "name": {"../x"}}).want(t, http.StatusUnprocessableEntity, "cannot be a group", "Vision &lt;seminar&gt;")
	c.post("/groups", "/groups", url.Values{"title": {"Vision <seminar>"}, "name": {"vision"}}).to(t, "/groups/vision")
	c.post("/groups", "/groups", url.Values{"title": {"Again"}, "name": {"vision"}}).want(t, http.StatusUnprocessableEntity, "There is a group vision already")
	c.get("/groups/vision").want(t, http.StatusOK, "Nobody is in this group", "Vision &lt;seminar&gt;")
	add := func(from, handles, lead string) answer {
		return c.post("/groups/vision", "/memberships", url.Values{"group": {"vision"}, "handles": {handles}, "lead": {lead}, "from": {from}})
	}
	add("", "", "").want(t, http.StatusUnprocessableEntity, "at least one person")
	add("", "ben nobody-1, nobody-2", "").want(t, http.StatusUnprocessableEntity, "Nobody here is called nobody-1, nobody-2", `value="ben nobody-1, nobody-2"`)
	add("", "ben gus", "yes").want(t, http.StatusUnprocessableEntity, "gus is a guest")
	if m, err := l.users.Members(t.Context(), "vision"); err != nil || len(m) != 0 {
		t.Fatalf("half of a list was added: %+v, %v", m, err)
	}
	add("", strings.Repeat("ben ", 201), "").want(t, http.StatusUnprocessableEntity, "at most 200")
	add("", "ben, gus;lea", "").to(t, "/groups/vision")
	add("person", "lea", "yes").to(t, "/users/lea")
	add("person", "gus", "yes").want(t, http.StatusUnprocessableEntity, "guests lead no group", "gus")
	c.get("/groups/vision").want(t, http.StatusOK, `href="/users/ben"`, `href="/users/gus"`, `>lead</span>`)
	c.get("/groups").want(t, http.StatusOK, "3 people", "lea")
	c.get("/users/gus").want(t, http.StatusOK, `href="/groups/vision"`)

	lea := l.client(t, "lea")
	if _, err := l.users.CreateGroup(t.Context(), "robots", ""); err != nil {
		t.Fatal(err)
	}
	lea.get("/").want(t, http.StatusOK, "My groups")
	got := lea.get("/groups")
	got.want(t, http.StatusOK, `href="/groups/vision"`)
	got.lacks(t, "robots", "Make a group")
	got = lea.get("/groups/vision")
	got.want(t, http.StatusOK, `href="/users/ben"`)
	got.lacks(t, "Take out", "Remove this group", "Add people")
	lea.get("/groups/robots").want(t, http.StatusForbidden)

	out := func(from string) answer {
		return c.post("/groups/vision", "/memberships/remove", url.Values{"group": {"vision"}, "handle": {"ben"}, "from": {from}})
	}
	out("").to(t, "/groups/vision")
	out("person").to(t, "/users/ben")
	lea.get("/users/ben").want(t, http.StatusForbidden)
	c.post("/groups/vision", "/groups/vision/remove", nil).to(t, "/groups")
	c.get("/groups/vision").want(t, http.StatusNotFound)
	c.post("/groups", "/memberships", url.Values{"group": {"vision"}, "handles": {"ben"}}).want(t, http.StatusNotFound)
	if got := l.actions(t); !strings.HasPrefix(got, "ada group.add vision, ada group.member ben, ada group.member gus, ada group.member lea, ada group.member lea, ada group.member-remove ben") || !strings.HasSuffix(got, "ada group.remove vision") {
		t.Errorf("audit: %s", got)
	}
}

// BenchmarkUsersPage is one page of the list of 10,000 people, over TLS.
func BenchmarkUsersPage(b *testing.B) {
	l := newLab(b)
	tx, err := l.users.db.Begin()
	if err != nil {
		b.Fatal(err)
	}
	for i := range 10000 {
		if _, err := tx.Exec("INSERT INTO users (handle, name, email, role, uid, created_at, search) VALUES (?1, ?2, ?3, 'member', ?4, 0, ?1 || ' ' || ?2 || ' ' || ?3)",
			fmt.Sprintf("student-%05d", i), fmt.Sprintf("Jurgen Student %d", i), fmt.Sprintf("s%d@example.org", i), 20100+i); err != nil {
			b.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		b.Fatal(err)
	}
	c := l.client(b, "ada")
	for name, path := range map[string]string{"first": "/users", "last": "/users?page=201", "search": "/users?q=jurgen+99", "nobody": "/users?q=nobody"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				c.get(path).want(b, http.StatusOK)
			}
		})
	}
}
