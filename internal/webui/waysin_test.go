package webui_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/csv"
	"html"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// vision is a group that lea leads.
func (l *lab) vision(t testing.TB) {
	t.Helper()
	_, err := l.users.CreateGroup(context.Background(), "vision", "Computer vision")
	if err == nil {
		err = l.users.SetMember(context.Background(), "vision", 3, true)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// actions are the lines of the audit log, in short.
func (l *lab) actions(t testing.TB) string {
	t.Helper()
	var lines []string
	for _, e := range l.users.audit(t) {
		lines = append(lines, strings.TrimSpace(e.Actor+" "+e.Action+" "+e.Target))
	}
	return strings.Join(lines, ", ")
}

var joinLink = regexp.MustCompile(`/join\?token=([A-Za-z0-9_-]+)`)

func TestInvitations(t *testing.T) {
	l := newLab(t)
	l.vision(t)
	c := l.client(t, "ada")
	c.get("/users").want(t, http.StatusOK, `href="/invitations"`)
	c.get("/invitations").want(t, http.StatusOK, "No invitation yet.", "Computer vision (vision)", `value="admin"`)
	for field, bad := range map[string]url.Values{
		"1 to 500 people":   {"uses": {"501"}},
		"works for one":     {"uses": {"2"}, "role": {"admin"}},
		"1 to 90 days":      {"uses": {"1"}, "days": {"91"}},
		"no group":          {"uses": {"1"}, "group": {"nothing"}},
		"no role":           {"uses": {"1"}, "role": {"king"}},
		"at most 200":       {"uses": {"1"}, "note": {strings.Repeat("x", 201)}},
		"1 to 500 people. ": {"uses": {"many"}},
	} {
		c.post("/invitations", "/invitations", bad).want(t, http.StatusUnprocessableEntity, field)
	}
	got := c.post("/invitations", "/invitations", url.Values{"role": {"guest"}, "group": {"vision"}, "uses": {"2"}, "days": {"3"}, "note": {"Summer <school>"}})
	got.want(t, http.StatusOK, "up to 2 people (Guest, in Computer vision)", l.server.URL+"/join?token=", "2 of 2 left", "Summer &lt;school&gt;")
	token := joinLink.FindStringSubmatch(got.body)[1]
	if strings.Contains(c.get("/invitations").body, token) {
		t.Error("the link is shown again")
	}

	link := "/join?token=" + token
	zoe := l.client(t, "")
	zoe.get(link).want(t, http.StatusOK, "Join Vision lab", "Guest, in Computer vision", "/handle/check?token="+token)
	zoe.get("/handle/check?handle=ada&token="+token).want(t, http.StatusOK, "taken")
	zoe.get("/handle/check?handle=zoe&token="+token).want(t, http.StatusOK, "Free.")
	form := func(handle, password, again string) url.Values {
		return url.Values{"token": {token}, "name": {"Zoë"}, "handle": {handle}, "email": {"zoe@example.org"}, "password": {password}, "again": {again}, "role": {"admin"}}
	}
	for says, bad := range map[string]url.Values{
		"it needs at least 10":             form("zoe", "short", "short"),
		"The two passwords are not":        form("zoe", "a long password", "another one"),
		"The name ada is taken":            form("ada", "a long password", "a long password"),
		"cannot be a sign-in name":         form("../x", "a long password", "a long password"),
		"differs from the existing name":   form("Ada", "a long password", "a long password"),
		"The e-mail address &#34;zoe&#34;": {"token": {token}, "handle": {"zoe"}, "email": {"zoe"}, "password": {"a long password"}, "again": {"a long password"}},
	} {
		got := zoe.post(link, "/join", bad)
		got.want(t, http.StatusUnprocessableEntity, `aria-invalid="true"`)
		if !strings.Contains(html.UnescapeString(got.body), html.UnescapeString(says)) {
			t.Errorf("the page does not say %q: %s", says, visible(got.body))
		}
	}
	zoe.post(link, "/join", form("zoe", "a long password", "a long password")).want(t, http.StatusSeeOther)
	zoe.get("/").want(t, http.StatusOK, "Zoë") // signed in
	zoe.get("/users").want(t, http.StatusForbidden)
	u, err := l.users.ByHandle(t.Context(), "zoe")
	if err != nil || u.Role != users.RoleGuest || u.Email != "zoe@example.org" {
		t.Errorf("%+v, %v", u, err)
	}
	c.get("/invitations").want(t, http.StatusOK, "1 of 2 left")
	c.post("/invitations", "/invitations/1/revoke", nil).want(t, http.StatusSeeOther)
	c.get("/invitations").want(t, http.StatusOK, "taken back")
	c.post("/invitations", "/invitations/99/revoke", nil).want(t, http.StatusNotFound)
	c.post("/invitations", "/invitations/x/revoke", nil).want(t, http.StatusNotFound)
	if got, want := l.actions(t), "ada invitation.add 1, zoe invitation.join zoe, ada invitation.revoke 1"; got != want {
		t.Errorf("audit: %s, want %s", got, want)
	}
}

// Each reason why an invitation does not work has words of its own.
func TestInvitationsThatDoNotWork(t *testing.T) {
	l := newLab(t)
	ada, err := l.users.ByHandle(t.Context(), "ada")
	if err != nil {
		t.Fatal(err)
	}
	invite := func() string {
		_, token, err := l.users.Invite(t.Context(), ada, users.NewInvitation{Uses: 1})
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	revoked, expired, used := invite(), invite(), invite()
	l.users.exec(t, "UPDATE invitations SET revoked_at = 1 WHERE id = 1")
	l.users.exec(t, "UPDATE invitations SET expires_at = 1 WHERE id = 2")
	l.users.exec(t, "UPDATE invitations SET uses = 1 WHERE id = 3")
	c := l.client(t, "")
	for token, want := range map[string]struct {
		status int
		says   string
	}{
		revoked: {http.StatusGone, "taken back"}, expired: {http.StatusGone, "expired"}, used: {http.StatusGone, "used up"},
		"guessed": {http.StatusNotFound, "not valid"}, "": {http.StatusNotFound, "not valid"},
	} {
		got := c.get("/join?token=" + token)
		got.want(t, want.status, want.says)
		if got.header.Get("Referrer-Policy") != "same-origin" || got.header.Get("Cache-Control") != "no-store" {
			t.Errorf("headers: %v", got.header)
		}
		form := url.Values{"token": {token}, "name": {"Zoë"}, "handle": {"zoe"}, "password": {"a long password"}, "again": {"a long password"}}
		c.post("/login", "/join", form).want(t, want.status, want.says)
		form.Set("again", "another one")
		c.post("/login", "/join", form).want(t, want.status, want.says)
		c.get("/handle/check?handle=zoe&token="+token).want(t, http.StatusForbidden)
	}
	for tries := 0; ; tries++ {
		got := c.post("/login", "/join", url.Values{"token": {"guessed"}, "handle": {"zoe"}, "password": {"x"}, "again": {"x"}})
		if got.status == http.StatusTooManyRequests {
			if wait, err := strconv.Atoi(got.header.Get("Retry-After")); err != nil || wait < 1 {
				t.Errorf("Retry-After: %q", got.header.Get("Retry-After"))
			}
			break
		}
		if tries == 100 {
			t.Fatal("guessing invitations is not limited")
		}
	}
}

// Who leads a group invites members and guests into it, and sees no other
// invitations.
func TestLeadInvites(t *testing.T) {
	l := newLab(t)
	l.vision(t)
	ada := l.client(t, "ada")
	ada.post("/invitations", "/invitations", url.Values{"role": {"lead"}, "uses": {"1"}, "note": {"Secret plan"}}).want(t, http.StatusOK)
	c := l.client(t, "lea")
	page := c.get("/invitations")
	page.want(t, http.StatusOK, `value="member"`, `value="vision"`)
	for _, not := range []string{`value="admin"`, `value="lead"`, ">No group<", "Secret plan", `href="/users"`} {
		if strings.Contains(page.body, not) {
			t.Errorf("a lead's page has %s", not)
		}
	}
	c.get("/").want(t, http.StatusOK, `href="/invitations"`)
	for _, bad := range []url.Values{{"role": {"admin"}, "group": {"vision"}}, {"role": {"lead"}, "group": {"vision"}}, {"role": {"member"}}} {
		bad.Set("uses", "1")
		c.post("/invitations", "/invitations", bad).want(t, http.StatusUnprocessableEntity, "banner bad")
	}
	c.post("/invitations", "/invitations", url.Values{"role": {"member"}, "group": {"vision"}, "uses": {"30"}}).want(t, http.StatusOK, "30 of 30 left")
	c.post("/invitations", "/invitations/1/revoke", nil).want(t, http.StatusNotFound) // the admin's
	c.post("/invitations", "/invitations/2/revoke", nil).want(t, http.StatusSeeOther)
	if err := l.users.SetMember(t.Context(), "vision", 3, false); err != nil {
		t.Fatal(err)
	}
	c.get("/invitations").want(t, http.StatusOK, "You lead no group.")
}

func TestSignUp(t *testing.T) {
	l := newLab(t)
	l.vision(t)
	l.pages.SetSignUp(true)
	c := l.client(t, "")
	c.get("/login").want(t, http.StatusOK, `href="/signup"`)
	form := func(handle string) url.Values {
		return url.Values{"name": {"Zoë <b>"}, "handle": {handle}, "note": {"thesis"}, "email": {"zoe@example.org"}, "password": {"a long password"}, "again": {"a long password"}}
	}
	bad := form("zoe")
	bad.Set("again", "another")
	c.post("/signup", "/signup", bad).want(t, http.StatusUnprocessableEntity, "not the same", "Zoë &lt;b&gt;", "thesis")
	c.post("/signup", "/signup", form("Zoë!")).want(t, http.StatusUnprocessableEntity, `aria-invalid="true"`)
	// The same answer whether or not somebody has the name.
	for _, handle := range []string{"zoe", "ada"} {
		got := c.post("/signup", "/signup", form(handle))
		got.want(t, http.StatusSeeOther)
		if to := got.header.Get("Location"); to != "/signup?sent" {
			t.Errorf("sent to %q", to)
		}
	}
	c.get("/signup?sent").want(t, http.StatusOK, "Your request is sent")
	c.post("/login", "/login", url.Values{"handle": {"zoe"}, "password": {"a long password"}}).want(t, http.StatusUnauthorized, "has not decided about your account yet")

	admin := l.client(t, "ada")
	admin.get("/users").want(t, http.StatusOK, "2 people ask for an account")
	admin.get("/requests").want(t, http.StatusOK, "Zoë &lt;b&gt;", "zoe@example.org", "thesis", "(asked for ada, which is taken)")
	admin.post("/requests", "/requests/1/approve", url.Values{"role": {"king"}}).want(t, http.StatusConflict)
	admin.post("/requests", "/requests/1/approve", url.Values{"role": {"guest"}, "group": {"nothing"}}).want(t, http.StatusConflict, "no group")
	admin.post("/requests", "/requests/1/approve", url.Values{"role": {"guest"}, "group": {"vision"}}).want(t, http.StatusOK, "signs in as zoe.")
	admin.post("/requests", "/requests/1/approve", url.Values{"role": {"guest"}}).want(t, http.StatusNotFound, "not there any more")
	c.post("/login", "/login", url.Values{"handle": {"zoe"}, "password": {"a long password"}}).want(t, http.StatusSeeOther)
	if in, err := l.users.Memberships(t.Context(), 5); err != nil || len(in) != 1 || in[0].Role != users.RoleGuest {
		t.Errorf("%+v, %v", in, err)
	}
	admin.get("/users").want(t, http.StatusOK, "1 person asks for an account")
	admin.post("/requests", "/requests/2/approve", url.Values{"role": {"member"}}).want(t, http.StatusOK, "signs in as ada-2. Tell them: they asked for ada")
	l.client(t, "").post("/signup", "/signup", form("yan")).want(t, http.StatusSeeOther)
	admin.post("/requests", "/requests/3/decline", nil).want(t, http.StatusSeeOther)
	admin.post("/requests", "/requests/3/decline", nil).want(t, http.StatusNotFound)
	admin.get("/requests").want(t, http.StatusOK, "Nobody asks for an account.")
	if got := l.actions(t); !strings.Contains(got, "ada sign-up.approve zoe") || !strings.Contains(got, "ada sign-up.decline yan") || !strings.Contains(got, "system sign-up.ask zoe") {
		t.Errorf("audit: %s", got)
	}
}

// A lab that takes no requests has no page for them.
func TestSignUpIsOff(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "")
	c.get("/signup").want(t, http.StatusNotFound)
	c.post("/login", "/signup", url.Values{"handle": {"zoe"}, "password": {"a long password"}, "again": {"a long password"}}).want(t, http.StatusNotFound)
	if strings.Contains(c.get("/login").body, "/signup") {
		t.Error("the sign-in page offers it")
	}
	if l.users.count(t, "signups") != 0 {
		t.Error("a request was kept")
	}
	l.client(t, "ada").get("/requests").want(t, http.StatusOK, "Nobody can ask for an account.", "signUp: approval")
}

func TestSignUpIsLimited(t *testing.T) {
	l := newLab(t)
	l.pages.SetSignUp(true)
	c := l.client(t, "")
	for i := range 100 {
		got := c.post("/signup", "/signup", url.Values{"name": {"x"}, "handle": {"x" + strconv.Itoa(i)}, "password": {"a long password"}, "again": {"a long password"}})
		if got.status == http.StatusTooManyRequests {
			got.want(t, http.StatusTooManyRequests, "from your address. Try again in")
			return
		}
	}
	t.Error("requests from one address are not limited")
}

// upload sends a form with a file, as the browser does.
func (c *client) upload(path string, fields map[string]string, file []byte) answer {
	c.t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	for name, value := range fields {
		if err := w.WriteField(name, value); err != nil {
			c.t.Fatal(err)
		}
	}
	part, err := w.CreateFormFile("file", "class.csv")
	if err == nil {
		_, err = part.Write(file)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return c.do(http.MethodPost, path, nil, func(r *http.Request) {
		r.Body, r.ContentLength = http.NoBody, int64(body.Len())
		r.Body = readCloser{&body}
		r.GetBody = nil
		r.Header.Set("Content-Type", w.FormDataContentType())
	})
}

type readCloser struct{ *bytes.Buffer }

func (readCloser) Close() error { return nil }

var (
	hiddenField = regexp.MustCompile(`(?s)<input type="hidden" name="([^"]+)" value="([^"]*)"`)
	download    = regexp.MustCompile(`href="data:text/csv;charset=utf-8;base64,([^"]+)" download="gpulab-links.csv"`)
)

// confirmed is the form below a report, as a browser would send it.
func confirmed(t testing.TB, page, step string) map[string]string {
	t.Helper()
	start := strings.Index(page, `name="agreed"`)
	if start < 0 {
		t.Fatalf("no form below the report:\n%s", visible(page))
	}
	start = strings.LastIndex(page[:start], "<form")
	form := page[start : start+strings.Index(page[start:], "</form>")]
	fields := map[string]string{"step": step}
	for _, f := range hiddenField.FindAllStringSubmatch(form, -1) {
		fields[f[1]] = html.UnescapeString(f[2])
	}
	if !strings.Contains(form, `name="step" value="`+step+`"`) {
		t.Errorf("no button for %s in %s", step, form)
	}
	return fields
}

func TestImport(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	token := c.token("/users/import")
	const list = "\ufeffName;E-Mail;Matrikel\r\nZoë \"Z\" Ünal;zoe@example.org;4711\r\n=Yan+Li;;4712\r\nGrace;ada@example.org;4713\r\nBen;not an address;4714\r\n"
	got := c.upload("/users/import", map[string]string{"csrf": token, "step": "look", "new-group": "ml-2026", "make-groups": "yes", "role": "guest", "days": "3", "text": "ignored"}, []byte(list))
	if !strings.Contains(got.body, "quotes") {
		t.Errorf("a quote inside a cell: %s", visible(got.body))
	}
	good := strings.Replace(list, `Zoë "Z" Ünal`, `"Zoë ""Z"" Ünal"`, 1)
	got = c.upload("/users/import", map[string]string{"csrf": token, "step": "look", "new-group": "ml-2026", "make-groups": "yes", "role": "guest", "days": "3"}, []byte(good))
	got.want(t, http.StatusOK, "2 new, 1 there already (1 of them for a group), 1 row with an error.", "Nothing is changed yet", "New groups: ml-2026",
		"Columns that are not used: Matrikel", "zoe-z-unal", "yan-li", "joins the group", "not an address", "Import the 3 good rows")
	if l.users.count(t, "users") != 4 || l.users.count(t, "groups") != 0 {
		t.Fatal("a look changed something")
	}
	if at, first := strings.Index(got.body, ">error<"), strings.Index(got.body, ">new<"); at > first {
		t.Error("the rows that need mending do not come first")
	}

	// Whoever asks for all of it although rows are wrong gets none of it.
	fields := confirmed(t, got.body, "import-good")
	all := map[string]string{}
	for name, value := range fields {
		all[name] = value
	}
	all["step"] = "import"
	c.upload("/users/import", all, nil).want(t, http.StatusConflict, "Nothing was imported", "Import the 3 good rows")
	// Nor is a plan taken from the form: another list is another plan.
	other := map[string]string{}
	for name, value := range fields {
		other[name] = value
	}
	other["text"] = "name,handle,role\nEve,eve,admin\n"
	c.upload("/users/import", other, nil).want(t, http.StatusConflict, "has changed since you looked")
	if l.users.count(t, "users") != 4 || l.users.count(t, "links") != 0 {
		t.Fatal("something was imported")
	}

	got = c.upload("/users/import", fields, nil)
	got.want(t, http.StatusOK, "2 people added, 1 there already (1 of them for a group), 1 row left out.", "shown only now", "zoe-z-unal", l.server.URL+"/welcome?token=")
	if l.users.count(t, "users") != 6 || l.users.count(t, "links") != 2 {
		t.Errorf("%d accounts, %d links", l.users.count(t, "users"), l.users.count(t, "links"))
	}
	encoded := download.FindStringSubmatch(got.body)
	if encoded == nil {
		t.Fatalf("no file:\n%s", visible(got.body))
	}
	file, err := base64.StdEncoding.DecodeString(html.UnescapeString(encoded[1]))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(file, []byte("\ufeff")))).ReadAll()
	if err != nil || len(rows) != 3 || rows[1][0] != `Zoë "Z" Ünal` || rows[2][0] != "'=Yan+Li" {
		t.Fatalf("%q, %v", rows, err)
	}
	link := strings.TrimPrefix(rows[2][3], l.server.URL)
	yan := l.client(t, "")
	yan.get(link).want(t, http.StatusOK, "Choose a password", "yan-li")
	yan.post(link, "/welcome", url.Values{"token": {strings.TrimPrefix(link, "/welcome?token=")}, "password": {"a long password"}, "again": {"a long password"}}).want(t, http.StatusSeeOther)
	yan.get("/").want(t, http.StatusOK, "=Yan+Li")

	// The same click again, such as by a reload, adds nobody twice.
	c.upload("/users/import", fields, nil).want(t, http.StatusConflict, "has changed since you looked")
	if got := l.actions(t); !strings.Contains(got, "ada group.add ml-2026, ada user.add zoe-z-unal, ada user.add yan-li, ada group.member ada, ada user.import") {
		t.Errorf("audit: %s", got)
	}
}

func TestImportRefuses(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	token := c.token("/users/import")
	look := func(file string, edit ...string) answer {
		t.Helper()
		fields := map[string]string{"csrf": token, "step": "look", "days": "7", "role": "member"}
		for i := 0; i < len(edit); i += 2 {
			fields[edit[i]] = edit[i+1]
		}
		return c.upload("/users/import", fields, []byte(file))
	}
	look("", "text", "").want(t, http.StatusUnprocessableEntity, "The list is empty")
	unicodeText := "\xff\xfen\x00a\x00m\x00e\x00\n\x00Z\x00o\x00\xeb\x00\n\x00"
	look(unicodeText).want(t, http.StatusOK, "Zoë", "name\nZoë")
	look("\xff\xfen\x00x").want(t, http.StatusUnprocessableEntity, "CSV UTF-8")
	look("name\nZo\xeb\n").want(t, http.StatusUnprocessableEntity, "CSV UTF-8")
	look("name\nZoë\n", "group", "nothing").want(t, http.StatusUnprocessableEntity, "no group", "Zoë")
	look("name\nZoë\n", "new-group", "A B", "make-groups", "yes").want(t, http.StatusUnprocessableEntity, "a-b")
	look("name\nZoë\n", "role", "king").want(t, http.StatusUnprocessableEntity, "no role")
	look("name\nZoë\n", "days", "31").want(t, http.StatusUnprocessableEntity, "1 to 30 days")
	look("name\n"+strings.Repeat("x\n", 2001)).want(t, http.StatusUnprocessableEntity, "more than 2000")
	look("name\n"+strings.Repeat("x", 1<<20)).want(t, http.StatusUnprocessableEntity, "larger than 1 MB")
	look("name\n"+strings.Repeat("x", 5<<20)).want(t, http.StatusRequestEntityTooLarge, "too large")
	look("", "text", "name\n<script>alert(1)</script>\n").want(t, http.StatusOK, "&lt;script&gt;")

	// A list as large as may be goes through both steps, though browsers send
	// each of its line ends as two characters.
	large := "name,email\n" + strings.Repeat("Zoë,\n", 1999) + "\"x" + strings.Repeat("\n", 1<<20-20000) + "x\","
	large = large[:len(large)-1]
	report := look(large)
	report.want(t, http.StatusOK, "cannot be shown")
	fields := confirmed(t, report.body, "import-good")
	for name, value := range fields {
		fields[name] = strings.ReplaceAll(value, "\n", "\r\n")
	}
	if got := c.upload("/users/import", fields, nil); got.status != http.StatusOK {
		t.Errorf("status %d: %.300s", got.status, visible(got.body))
	}

	// Only the import takes files and large forms.
	c.upload("/users", map[string]string{"csrf": token, "name": "Eve", "handle": "eve"}, nil).want(t, http.StatusForbidden)
	for _, csrf := range []string{"", "guessed", l.client(t, "ben").token("/")} {
		c.upload("/users/import", map[string]string{"csrf": csrf, "step": "import", "text": "name\nEve\n"}, nil).want(t, http.StatusForbidden, "This form was not accepted")
	}
	if _, err := l.users.ByHandle(t.Context(), "eve"); err == nil {
		t.Error("a form without its token was taken")
	}
}

// A class of 30 is 30 slips.
func TestLinkSheet(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	got := c.upload("/users/import", map[string]string{"csrf": c.token("/users/import"), "step": "import", "days": "7", "role": "member"}, []byte(class(30)))
	got.want(t, http.StatusOK, "30 people added.", "Student 30")
	if n := strings.Count(got.body, `class="slip"`); n != 30 {
		t.Errorf("%d slips", n)
	}
	if day := time.Now().Add(7 * 24 * time.Hour).Format("2 January 2006"); !strings.Contains(got.body, day) {
		t.Errorf("the slips do not say %s", day)
	}
}

// class is a list of n students.
func class(n int) string {
	var list strings.Builder
	list.WriteString("name,email,group\n")
	for i := range n {
		list.WriteString("Student " + strconv.Itoa(i+1) + ",student" + strconv.Itoa(i+1) + "@example.org,\n")
	}
	return list.String()
}
