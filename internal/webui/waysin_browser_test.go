package webui_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/gpulab/gpulab/internal/users"
)

// A wayPage is one of the pages through which people come in.
type wayPage struct {
	name, path, user string
	status           int
}

// waysInPages is a lab with invitations in every state and people who ask, and
// the pages that a link leads to.
func waysInPages(t *testing.T) (*lab, []wayPage) {
	t.Helper()
	l := newLab(t)
	l.vision(t)
	l.pages.SetSignUp(true)
	ctx := context.Background()
	token := ""
	for i, n := range []users.NewInvitation{
		{Role: users.RoleLead, Group: "vision", Uses: 1, Note: "Dr. Ünal, who looks after the new students of the summer school"},
		{Uses: 30}, {Role: users.RoleAdmin, Uses: 1}, {Role: users.RoleGuest, Group: "vision", Uses: 12, Note: "Open day"},
	} {
		ada, err := l.users.ByHandle(ctx, "ada")
		if err != nil {
			t.Fatal(err)
		}
		if _, token, err = l.users.Invite(ctx, ada, n); err != nil {
			t.Fatal(err)
		}
		l.users.exec(t, "UPDATE invitations SET uses = ?, revoked_at = ? WHERE id = ?", min(i, n.Uses), map[bool]any{true: int64(1)}[i == 1], i+1)
	}
	for _, who := range []string{"zoe", "ada"} {
		n := users.NewUser{Handle: who, Name: "Zoë Marie Ünal-Villanueva", Email: who + "@a-rather-long-department-name.example.org"}
		if err := l.users.AskToJoin(ctx, n, "I write my thesis about <segmentation> of very large images with Lea; she knows me.", "a long password", "10.0.0.17"); err != nil {
			t.Fatal(err)
		}
	}
	return l, []wayPage{
		{"users-ways", "/users", "ada", 200},
		{"invitations", "/invitations", "ada", 200},
		{"invitations-lead", "/invitations", "lea", 200},
		{"join", "/join?token=" + token, "", 200},
		{"join-signed-in", "/join?token=" + token, "ben", 200},
		{"join-invalid", "/join?token=no", "", 404},
		{"login-signup", "/login", "", 200},
		{"signup", "/signup", "", 200},
		{"signup-sent", "/signup?sent", "", 200},
		{"requests", "/requests", "ada", 200},
		{"import", "/users/import", "ada", 200},
	}
}

// TestClassInTheBrowser brings a class in from a file, as an admin does:
// upload, report, import, links; then one of them comes in with theirs.
func TestClassInTheBrowser(t *testing.T) {
	t.Parallel()
	ctx := browser(t)
	l := newLab(t)
	var wrong complaints
	wrong.listen(ctx)
	if err := chromedp.Do(ctx, cookie(l, l.session(t, "ada")), screen(1440, false), chromedp.Navigate(l.server.URL+"/users")); err != nil {
		t.Fatal(err)
	}
	clicks := 0
	click := func(selector string) {
		t.Helper()
		clicks++
		run(ctx, t, fmt.Sprintf(`document.querySelector(%q).click()`, selector))
	}
	looks := func(name string) { checkLooks(ctx, t, name) }
	folder := t.TempDir()
	file := filepath.Join(folder, "class.csv")
	list := class(28) + "Ada Lovelace,ada@example.org,\nBroken,nonsense,\nX,,Not a group\n"
	if err := os.WriteFile(file, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}

	click(`a[href="/users/import"]`)
	eventually(ctx, t, "the form", `document.querySelector("#file")`)
	if err := chromedp.Do(ctx, chromedp.SetUploadFiles("#file", []string{file})); err != nil {
		t.Fatal(err)
	}
	clicks++ // the file
	run(ctx, t, `document.querySelector("#new-group").value = "ml-2026"`)
	click(`form[enctype] button.primary`)
	eventually(ctx, t, "the report", `document.body.innerText.includes("28 new, 1 there already (1 of them for a group), 2 rows with an error.")`)
	looks("import-report")
	click(`button[value="import-good"]`)
	eventually(ctx, t, "28 slips", `document.querySelectorAll(".slip").length === 28`)
	looks("link-sheet")
	if clicks > 9 {
		t.Errorf("it took %d clicks", clicks)
	}

	// On paper there are the slips alone, none of them broken across pages.
	onPaper := func(media string) chromedp.Action[chromedp.Void] {
		return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
			_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: media})
			return err
		})
	}
	if err := chromedp.Do(ctx, onPaper("print")); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "only slips are printed", `[...document.querySelectorAll("header, footer, h1, .banner, .button")].every(e => !e.checkVisibility()) &&
		[...document.querySelectorAll(".slip")].every(e => e.checkVisibility() && getComputedStyle(e).breakInside === "avoid")`)
	if err := chromedp.Do(ctx, onPaper("")); err != nil {
		t.Fatal(err)
	}

	if err := chromedp.Do(ctx, chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, cdpbrowser.SetDownloadBehavior, cdpbrowser.SetDownloadBehaviorParams{Behavior: "allow", DownloadPath: folder})
		return err
	})); err != nil {
		t.Fatal(err)
	}
	click(`a[download]`)
	var saved []byte
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		var err error
		if saved, err = os.ReadFile(filepath.Join(folder, "gpulab-links.csv")); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no file was saved: %v", err)
		}
	}
	lines := strings.Split(strings.TrimSpace(string(saved)), "\n")
	if len(lines) != 29 || !strings.HasPrefix(lines[0], "\ufeffname,handle,email,link") {
		t.Fatalf("%d lines, the first %q", len(lines), lines[0])
	}
	link := strings.Split(lines[28], ",")[3]
	if err := chromedp.Do(ctx, cookie(l, ""), chromedp.Navigate(link)); err != nil {
		t.Fatal(err)
	}
	run(ctx, t, `(document.querySelector("#password").value = "violet tractor 91", document.querySelector("#again").value = "violet tractor 91")`)
	run(ctx, t, `document.querySelector("main form button").click()`)
	eventually(ctx, t, "the student is in", `location.pathname === "/" && document.body.innerText.includes("Student 28")`)
	for _, complaint := range wrong.take() {
		t.Errorf("the browser reports: %s", complaint)
	}
}
