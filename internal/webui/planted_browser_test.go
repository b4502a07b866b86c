package webui_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/gpulab/gpulab/internal/cookies"
	testlab "github.com/gpulab/gpulab/test/lab"
)

// A visitorsBrowser is one that somebody uses. The scenarios below need no more of it, so each kind of browser can be
// driven through them.
type visitorsBrowser interface {
	// open loads an address and waits for the page.
	open(address string)
	// eval returns a JavaScript expression's value as text, of a promise its result. The page may open windows.
	eval(expression string) string
	// plant sets the cookie of a session as a script at another port could in a browser that does not know the prefix.
	plant(value string, partitioned bool)
	// tab opens another page, which shares the cookies.
	tab() visitorsBrowser
	// frames are the addresses of what the page's frames show. What a page forbids to be shown has none with https.
	frames() []string
}

// chromium is driven over its DevTools protocol. It knows the prefix, so its cookies are planted from outside.
type chromium struct {
	ctx context.Context
	t   *testing.T
	lab *lab
}

func (c chromium) open(address string) {
	c.t.Helper()
	// A page may lead on before it has loaded.
	if err := chromedp.Do(c.ctx, chromedp.Navigate(address)); err != nil && !strings.Contains(err.Error(), "ERR_ABORTED") {
		c.t.Fatalf("open %s: %v", address, err)
	}
}

func (c chromium) eval(expression string) string {
	text, err := chromedp.Run(c.ctx, chromedp.Evaluate[string]("(async () => String(await ("+expression+")))()", chromedp.EvalAwaitPromise,
		func(p *runtime.EvaluateParams) { p.UserGesture = ptr(true) }))
	if err != nil {
		return "" // while a page is being left
	}
	return text
}

func (c chromium) plant(value string, partitioned bool) {
	params := network.SetCookieParams{Name: cookies.Session, Value: value, URL: c.lab.server.URL, Path: "/", Secure: ptr(true), HTTPOnly: ptr(true)}
	if partitioned {
		params.SameSite = network.CookieSameSiteNone
		params.PartitionKey = &network.CookiePartitionKey{TopLevelSite: "https://127.0.0.1"}
	}
	if err := chromedp.Do(c.ctx, chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, network.SetCookie, params)
		return err
	})); err != nil && c.ctx.Err() == nil {
		c.t.Error(err)
	}
}

func (c chromium) tab() visitorsBrowser {
	ctx, cancel := chromedp.NewContext(c.ctx)
	c.t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		c.t.Fatalf("open a tab: %v", err)
	}
	return chromium{ctx: ctx, t: c.t, lab: c.lab}
}

func (c chromium) frames() (list []string) {
	tree, err := chromedp.Call(c.ctx, page.GetFrameTree, cdp.Empty{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, child := range tree.FrameTree.ChildFrames {
		list = append(list, child.Frame.URL)
	}
	return list
}

// firefox is driven over WebDriver BiDi.
type firefox struct {
	*testlab.FirefoxTab
	t *testing.T
}

func (f firefox) open(address string) {
	f.t.Helper()
	if err := f.Open(address); err != nil {
		f.t.Fatalf("open %s: %v", address, err)
	}
}

func (f firefox) eval(expression string) string {
	text, err := f.Evaluate(expression)
	if err != nil {
		return "" // while a page is being left
	}
	return text
}

func (f firefox) plant(value string, partitioned bool) {
	if err := f.SetCookie("127.0.0.1", cookies.Session, value, partitioned); err != nil {
		f.t.Error(err)
	}
}

func (f firefox) tab() visitorsBrowser { return firefox{f.Tab(), f.t} }

func (f firefox) frames() []string {
	list, err := f.Frames()
	if err != nil {
		f.t.Fatal(err)
	}
	return list
}

// A plantingStory is a lab, the page of another port of the same host, and lea's browser.
type plantingStory struct {
	*lab
	browser   visitorsBrowser
	neighbour string // address of the attacker's page
	evil      string // value of the attacker's own cookie
}

// neighbour serves an empty page at another port.
func neighbour(t *testing.T) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<!doctype html><title>demo</title>demo")
	}))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv.URL
}

func newPlantingStory(t *testing.T, browse func(*lab) visitorsBrowser) *plantingStory {
	t.Helper()
	l := plantingLab(t)
	return &plantingStory{lab: l, browser: browse(l), neighbour: neighbour(t),
		evil: cookies.Credential{Token: l.session(t, "ben"), Key: attackersKey}.String()}
}

// until waits for an expression to be true in the page.
func (s *plantingStory) until(t *testing.T, what, expression string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); s.browser.eval("Boolean("+expression+")") != "true"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so; the page at %s says: %s", what, s.browser.eval("location.href"), s.browser.eval("document.body.innerText"))
		}
	}
}

// signIn uses the form, as lea.
func (s *plantingStory) signIn(t *testing.T) {
	t.Helper()
	s.browser.open(s.server.URL + "/login")
	s.fill(t)
}

func (s *plantingStory) fill(t *testing.T) {
	t.Helper()
	s.until(t, "the form", `document.readyState === "complete" && document.querySelector('form[action="/login"]')`)
	s.browser.eval(`(f => { f.handle.value = "lea"; f.password.value = "lea-password"; f.requestSubmit(f.querySelector("button")) })(document.querySelector('form[action="/login"]'))`)
}

// leave presses the button of the page about another session.
func (s *plantingStory) leave(t *testing.T) {
	t.Helper()
	const button = `document.querySelector('form[action="/logout"] button')`
	s.until(t, "the button", `location.pathname === "/other-session" && document.readyState === "complete" && `+button)
	s.browser.eval(button + `.click()`)
	s.until(t, "the sign-in form", `location.pathname === "/login" && document.querySelector("#password")`)
}

const leasHome = `location.pathname === "/" && document.querySelector(".who .name")?.innerText.includes("Lea")`

// script runs what a service's page can: it sets cookies for the whole host.
func (s *plantingStory) script(t *testing.T, code string) {
	t.Helper()
	for range 20 {
		s.browser.open(s.neighbour)
		if s.browser.eval(`(() => {`+code+`; return location.origin})()`) == s.neighbour {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the script of the other port does not run")
}

// plantByScript tries the real thing: a service's script evicts the visitor's session and sets its owner's.
func (s *plantingStory) plantByScript(t *testing.T) {
	s.signIn(t)
	s.until(t, "lea is signed in", leasHome)
	plant := fmt.Sprintf(`for (const rest of ["", "; SameSite=None; Partitioned"]) document.cookie = %q + "; Secure; Path=/" + rest;`, cookies.Session+"="+s.evil)
	s.script(t, plant)
	s.browser.open(s.server.URL + "/account")
	s.notBens(t)
	// Some hundred cookies push out all that there is; Chromium needs them more than once.
	for range 3 {
		s.script(t, `for (let i = 0; i < 400; i++) document.cookie = "c" + i + "=1; Secure; Path=/";`+plant)
	}
	s.browser.open(s.server.URL + "/account")
	s.until(t, "lea's session was pushed out, and no other is in its place", `location.pathname === "/login" && document.querySelector("#password")`)
	s.notBens(t)
	s.signIn(t)
	s.until(t, "lea signs in again", leasHome)
}

// notBens makes sure that nobody sees a page in the attacker's session.
func (s *plantingStory) notBens(t *testing.T) {
	t.Helper()
	s.until(t, "a page", `document.readyState === "complete" && document.querySelector("h1")`)
	for range 10 { // what leads on does so at once
		if s.browser.eval(`document.querySelector(".who .name")?.innerText ?? ""`) != "" && !strings.Contains(s.browser.eval(`document.querySelector(".who .name").innerText`), "Lea") {
			t.Fatalf("this is the attacker's page: %s", s.browser.eval(`document.body.innerText`))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// variants are the cookies that a script tries to pass for the session's, as an array in JavaScript.
func variants(value string) string {
	var lines []string
	for _, name := range []string{"__Host-gpulab", cookies.Session, strings.ToUpper(cookies.Session), strings.ToLower(cookies.Session),
		"=" + cookies.Session, "==" + cookies.Session, `"` + cookies.Session + `"`, "'" + cookies.Session + "'", " " + cookies.Session, "\u00a0" + cookies.Session} {
		for _, rest := range []string{"; Path=/", "; Path=/; SameSite=None; Partitioned", "; Path=/account", "; Path=/user/ben/work/", "; Path=/; HttpOnly"} {
			lines = append(lines, name+"="+value+"; Secure"+rest)
		}
	}
	list, err := json.Marshal(lines)
	if err != nil {
		panic(err) // they are strings
	}
	return string(list)
}

// lookalikes are what a script may set of them, for some of the pages alone. They are in nobody's way, even though no
// page that signs somebody in can delete them.
func (s *plantingStory) lookalikes(t *testing.T) {
	s.signIn(t)
	s.until(t, "lea is signed in", leasHome)
	for _, value := range []string{s.evil, "dead"} {
		s.script(t, "for (const line of "+variants(value)+") document.cookie = line;")
		s.browser.open(s.server.URL + "/account")
		s.until(t, "lea's page", `location.pathname === "/account" && document.querySelector(".who .name")?.innerText.includes("Lea")`)
	}
}

// evicted is the attack where the prefix is not known: the visitor's cookie is pushed out and the attacker's is alone.
func (s *plantingStory) evicted(t *testing.T) {
	s.signIn(t)
	s.until(t, "lea is signed in", leasHome)
	s.browser.plant(s.evil, false)
	for _, path := range []string{"/account", "/", "/login"} {
		s.browser.open(s.server.URL + path)
		s.until(t, "whose session it is", `location.pathname === "/other-session" && document.body.innerText.includes("the session of Ben Okafor (ben)")`)
		if text := s.browser.eval("document.body.innerText"); !strings.Contains(text, "Ben’s demo of ben, port 8507") {
			t.Errorf("%s: which tabs to close is missing: %s", path, text)
		}
	}
	s.leave(t)
	s.fill(t)
	s.until(t, "lea is back", leasHome)
	// A page that was open when it happened, and live, does not become one of the attacker's.
	s.until(t, "the page is complete", `document.readyState === "complete"`)
	s.browser.eval(`document.getElementById("live").addEventListener("htmx:sse:before:message", () => { window.isLive = true })`)
	for deadline := time.Now().Add(20 * time.Second); s.browser.eval("window.isLive") != "true"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the page is not live")
		}
		s.fleet.publish(snapshotAt(time.Now(), 2, "ada"))
		s.fleet.publish(snapshotAt(time.Now(), 2))
	}
	s.browser.plant(s.evil, false)
	s.server.CloseClientConnections()
	s.until(t, "the open page finds out", `location.pathname === "/other-session"`)
	s.leave(t)
}

// twins is the attack beside the visitor's own cookie, once and then every 100 ms.
func (s *plantingStory) twins(t *testing.T) {
	s.signIn(t)
	s.until(t, "lea is signed in", leasHome)
	for _, value := range []string{s.evil, "dead"} {
		s.browser.plant(value, true)
		s.browser.open(s.server.URL + "/account")
		s.until(t, "what happened", `location.pathname === "/login" && document.body.innerText.includes("Another page in this browser set this lab’s session cookie")`)
		if text := s.browser.eval("document.body.innerText"); !strings.Contains(text, "port 8507") {
			t.Errorf("which tabs to close is missing: %s", text)
		}
		s.fill(t)
		s.until(t, "lea is back", `document.querySelector(".who .name")?.innerText.includes("Lea")`)
	}
	s.browser.plant(s.evil, true)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(100 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			s.browser.plant(s.evil, true)
		}
	}()
	s.browser.open(s.server.URL + "/account")
	s.until(t, "what happened", `location.pathname === "/login" && document.body.innerText.includes("port 8507")`)
	for range 3 {
		s.browser.open(s.server.URL + "/login")
		s.browser.eval(`window.before = true`)
		if s.browser.eval(`location.pathname`) == "/login" {
			s.fill(t)
			s.until(t, "an answer", `!window.before`)
		}
		// Between two plantings the browser has either both cookies or the planted one alone.
		s.until(t, "what happened, and where from", `["/login", "/other-session"].includes(location.pathname) && document.body.innerText.includes("nother page in this browser") && document.body.innerText.includes("port 8507")`)
		s.browser.eval(`window.stays = true`)
		time.Sleep(time.Second)
		if s.browser.eval(`window.stays`) != "true" {
			t.Error("the page goes round")
		}
	}
	stop()
	<-done
	s.browser.open(s.server.URL + "/other-session")
	s.leave(t)
	s.fill(t)
	s.until(t, "the tab is closed, and lea works", leasHome)
}

// flood is more cookies than a request may hold, over HTTP/2.
func (s *plantingStory) flood(t *testing.T) {
	s.signIn(t)
	s.until(t, "lea is signed in", leasHome)
	s.script(t, `for (let i = 0; i < 180; i++) document.cookie = "big" + i + "=" + "x".repeat(4000) + "; Secure; Path=/";`)
	const tooMany = `document.body.innerText.includes("This browser sends too many cookies")`
	for tries := 0; tries < 20 && s.browser.eval(tooMany) != "true"; tries++ {
		s.browser.open(s.server.URL + "/account") // the browser may send them off a moment later
	}
	s.until(t, "what to do", tooMany)
	// What the script had set but not sent off yet comes after that.
	for s.browser.open(s.server.URL + "/login"); strings.Contains(s.browser.eval("document.body.innerText"), "too many cookies"); {
		s.browser.open(s.server.URL + "/")
	}
	s.signIn(t)
	s.until(t, "lea works again", leasHome)
	if got := s.browser.eval(`performance.getEntriesByType("navigation")[0].nextHopProtocol`); got != "h2" {
		t.Errorf("the pages come over %s", got)
	}
}

// TestPlantedSessions goes through what a service's page can do to a visitor's session, in each browser.
func TestPlantedSessions(t *testing.T) {
	t.Run("chromium", func(t *testing.T) {
		t.Parallel()
		ctx := browser(t)
		version, _, _ := strings.Cut(chromiumVersion(ctx, t), ".")
		knowsThePrefix(t, "Chromium", version, 140)
		plantingScenarios(t, func(t *testing.T, l *lab) visitorsBrowser {
			if err := chromedp.Do(ctx, cookie(l, "")); err != nil {
				t.Fatal(err)
			}
			return chromium{ctx: ctx, t: t, lab: l}
		})
	})
	t.Run("firefox", func(t *testing.T) {
		t.Parallel()
		if testing.Short() {
			t.Skip("-short: no browser")
		}
		f := testlab.NewFirefox(t)
		version, _, _ := strings.Cut(f.Version(), ".")
		knowsThePrefix(t, "Firefox", version, 143)
		plantingScenarios(t, func(t *testing.T, _ *lab) visitorsBrowser { return firefox{f.Person(), t} })
	})
}

func plantingScenarios(t *testing.T, browse func(*testing.T, *lab) visitorsBrowser) {
	for name, scenario := range map[string]func(*plantingStory, *testing.T){
		"by script": (*plantingStory).plantByScript, "evicted": (*plantingStory).evicted, "twins": (*plantingStory).twins, "lookalikes": (*plantingStory).lookalikes, "flood": (*plantingStory).flood,
	} {
		t.Run(name, func(t *testing.T) {
			scenario(newPlantingStory(t, func(l *lab) visitorsBrowser { return browse(t, l) }), t)
		})
	}
	t.Run("chain", func(t *testing.T) { attackChain(t, func(l *lab) visitorsBrowser { return browse(t, l) }) })
}

// knowsThePrefix fails with a browser in which these tests would show less than docs/isolation.md says.
func knowsThePrefix(t *testing.T, name, version string, since int) {
	t.Helper()
	if major, err := strconv.Atoi(version); err != nil || major < since {
		t.Errorf("%s %s does not know the prefix of the session's cookie", name, version)
	}
}

func chromiumVersion(ctx context.Context, t *testing.T) string {
	t.Helper()
	agent, err := chromedp.Run(ctx, chromedp.Evaluate[string]("navigator.userAgent"))
	if err != nil {
		t.Fatal(err)
	}
	_, version, _ := strings.Cut(agent, "Chrome/")
	return version
}
