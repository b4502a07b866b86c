package webui_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/signin/signintest"
)

// TestProviderInTheBrowser signs in with the button, as a person does: to the provider's own page and back, with the
// cookies and the Content-Security-Policy of a real browser. Then each page on the way is looked at.
func TestProviderInTheBrowser(t *testing.T) {
	t.Parallel()
	ctx := browser(t)
	d := signintest.StartDirectory(t, "")
	directory := signin.Config{Name: "directory", Type: "ldap", Title: "Department of Physics", URL: d.URL, CAFile: d.Authority.File,
		BindDN: d.BindDN, BindPasswordFile: d.PasswordFile, UserBase: d.UserBase}
	l := newCampus(t, func(cfg *signin.Config) { cfg.Names = []string{"localhost"} }, directory)
	l.vision(t)
	var wrong complaints
	wrong.listen(ctx)
	visit := func(path string) {
		t.Helper()
		if err := chromedp.Do(ctx, chromedp.Navigate(l.server.URL+path)); err != nil {
			t.Fatal(err)
		}
	}
	looks := func(name string) {
		t.Helper()
		checkLooks(ctx, t, name)
		for _, complaint := range wrong.take() {
			t.Errorf("%s: the browser reports: %s", name, complaint)
		}
	}
	there := func(name string) {
		t.Helper()
		eventually(ctx, t, "the provider's page", `location.origin === "`+l.uni.Issuer+`" && document.querySelector("input[name=username]")`)
		wrong.take() // of somebody else's page
		run(ctx, t, `(document.querySelector("input[name=username]").value = "`+name+`", document.querySelector("input[name=password]").value = "`+name+`'s")`)
		run(ctx, t, `document.querySelector("form button, form input[type=submit]").click()`)
	}
	if err := chromedp.Do(ctx, cookie(l.lab, ""), screen(1440, false)); err != nil {
		t.Fatal(err)
	}
	visit("/login?next=/gpus")
	looks("login-providers")
	run(ctx, t, `document.querySelector('form[action="/signin/uni"] button').click()`)
	there("zoe")
	eventually(ctx, t, "signed in", `location.pathname === "/gpus" && document.body.innerText.includes("Zoë Ünal")`)
	visit("/account")
	looks("account-outside")
	visit("/account/identities/uni")
	looks("identity-unlink")
	visit("/account/identities/directory")
	looks("identity-link-directory")

	if err := chromedp.Do(ctx, cookie(l.lab, "")); err != nil {
		t.Fatal(err)
	}
	visit("/login")
	run(ctx, t, `document.querySelector('form[action="/signin/uni"] button').click()`)
	there("eve")
	eventually(ctx, t, "not admitted", `document.body.innerText.includes("is not in a group that may use this lab. Ask the service desk.")`)
	looks("not-admitted")

	visit("/login")
	run(ctx, t, `document.querySelector('form[action="/signin/uni"] button').click()`)
	there("ada")
	eventually(ctx, t, "a name to choose", `location.pathname === "/handle/choose"`)
	looks("choose-handle")
	run(ctx, t, `document.querySelector('form[action="/handle/choose"] button').click()`)
	eventually(ctx, t, "signed in under it", `location.pathname === "/" && document.body.innerText.includes("Another Ada")`)

	// By another of the lab's names that the provider knows, there and back to that name.
	if err := chromedp.Do(ctx, chromedp.Navigate(l.elsewhere()+"/login?next=/gpus")); err != nil {
		t.Fatal(err)
	}
	run(ctx, t, `document.querySelector('form[action="/signin/uni"] button').click()`)
	there("zoe")
	eventually(ctx, t, "signed in by the other name", `location.origin === "`+l.elsewhere()+`" && location.pathname === "/gpus" && document.querySelector(".who")`)

	// Linking goes there and back too, signed in.
	if err := chromedp.Do(ctx, cookie(l.lab, l.session(t, "ben"))); err != nil {
		t.Fatal(err)
	}
	l.users.exec(t, "DELETE FROM identities WHERE subject = '2'")
	visit("/account/identities/uni")
	looks("identity-link")
	run(ctx, t, `document.querySelector("#old").value = "ben-password"`)
	run(ctx, t, `document.querySelector('form[action="/account/identities/uni/link"] button').click()`)
	there("ada")
	eventually(ctx, t, "linked", `location.pathname === "/account" && document.body.innerText.includes("It is linked.")`)
	if err := chromedp.Do(ctx, cookie(l.lab, l.session(t, "ada"))); err != nil {
		t.Fatal(err)
	}
	visit("/users")
	looks("users-outside")
	visit("/users/ben")
	looks("person-outside")
}

// TestPagesOfProvidersAlone looks at what a lab shows that has directories only, and none.
func TestPagesOfProvidersAlone(t *testing.T) {
	l := &campus{lab: newLab(t)}
	c := l.client(t, "")
	if page := c.get("/login"); page.status != http.StatusOK || strings.Contains(page.body, "Or with name") {
		t.Error("a lab without providers speaks of them")
	}
	c.post("/login", "/signin/uni", nil).want(t, http.StatusNotFound)
	c.get("/signin/uni/callback?code=x&state=y").want(t, http.StatusNotFound)
	l.use(t, signin.Config{Name: "directory", Type: "ldap", Title: "Physics", URL: "ldaps://127.0.0.1:1", UserBase: "dc=example", Accounts: "existing"})
	page := c.get("/login")
	page.want(t, http.StatusOK, "Name and password of Physics work here too")
	if strings.Contains(page.body, "Sign in with") {
		t.Error("a directory has a button")
	}
	c.post("/login", "/login", url.Values{"handle": {"ada"}, "password": {"wrong"}}).want(t, http.StatusServiceUnavailable, "does not answer at the moment")
	if _, err := l.users.Authenticate(t.Context(), "ada", "ada-password", "192.0.2.9"); err != nil {
		t.Error(err)
	}
}
