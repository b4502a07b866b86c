package webui_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/notebooks/tunneltest"
)

// Who comes through an SSH tunnel signs in, works in a notebook and gets back to the pages, all by the tunnel's port.
func TestThroughATunnel(t *testing.T) {
	ctx := browser(t)
	c := newChainLab(t, func(l *lab) visitorsBrowser {
		if err := chromedp.Do(ctx, cookie(l, "")); err != nil {
			t.Fatal(err)
		}
		return chromium{ctx: ctx, t: t, lab: l}
	})
	mux := http.NewServeMux()
	mux.Handle("/", c.proxy.KeepPort(c.pages))
	mux.Handle("/user/", c.proxy.KeepPort(c.proxy))
	ln, port := listen(t)
	serveOrigin(t, c.proxy, ln, mux)
	tunnel := origin(tunneltest.Open(t, strings.TrimPrefix(origin(port), "https://")))

	at := func(what, where string) {
		t.Helper()
		c.until(t, what, `document.readyState === "complete" && location.href === "`+where+`"`)
	}
	c.browser.open(tunnel + "/user/lea/work/lab")
	at("who is not signed in", tunnel+"/login?next=%2Fuser%2Flea%2Fwork%2Flab")
	c.fill(t)
	at("the notebook", c.lea+"/user/lea/work/lab")
	c.browser.open(c.lea + "/hub/home")
	at("home", tunnel+"/")
	advice := "ssh -L " + strings.TrimPrefix(c.lea, "https://127.0.0.1:") + ":LAB:"
	if text := c.browser.eval("document.body.textContent"); !strings.Contains(text, advice) {
		t.Error("the page does not name the port of the notebooks")
	}
	for _, key := range []string{cookies.Session, cookies.Port} {
		if c.browser.eval(`document.cookie.includes("`+key+`")`) == "true" {
			t.Errorf("a script can read the cookie %s", key)
		}
	}
	// The page of a service, another port of the same host, tries to choose the port.
	tab := c.browser.tab()
	tab.open(c.demo)
	for range 3 {
		tab.eval(`(() => { for (const rest of ["", "; Path=/user/lea/work/", "; SameSite=None; Partitioned"])
			document.cookie = "` + cookies.Port + `=9999.AAAA; Secure; Path=/" + rest; })()`)
	}
	c.browser.open(c.lea + "/hub/home")
	at("home, with a cookie that a service has set", tunnel+"/")
	c.browser.eval(`document.querySelector('form[action="/logout"] button').click()`)
	c.until(t, "signed out", `location.pathname === "/login" && document.querySelector("#password")`)
	c.browser.open(c.lea + "/user/lea/work/lab")
	c.until(t, "what to do", `document.body.innerText.includes("This browser reached the lab through a forwarded port.")`)
}
