package webui_test

import (
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webui"
)

//go:embed testdata/axe/axe.min.js
var axe string

var screenshots = flag.String("screenshots", "", "also write a picture of every page to this folder")

// browser starts Debian's Chromium, which is one of the things that must be
// installed to test gpulab.
func browser(t *testing.T) context.Context {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no browser")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, chromedp.DisableGPU, chromedp.IgnoreCertErrors,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("force-color-profile", "srgb"),
		chromedp.UserDataDir(t.TempDir()))
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		// Waits for the browser, so that its files are gone before the
		// temporary folder is.
		_ = chromedp.Cancel(ctx)
		cancel()
		stop()
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start Chromium (apt-get install chromium): %v", err)
	}
	const keep = `try { localStorage.setItem("gpulab-browser-key", "` + browserKey + `") } catch {}`
	if err := chromedp.Do(ctx, chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: keep})
		return err
	})); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// browserKey is what the pages keep in the browsers of these tests, as if somebody had signed in there before.
const browserKey = "0123456789abcdef0123456789abcdef"

// complaints collects what the browser reports as errors: broken scripts and
// whatever the Content-Security-Policy refused.
type complaints struct {
	mu   sync.Mutex
	list []string
}

func (c *complaints) listen(ctx context.Context) {
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			// The browser also logs the status of error pages; they are meant.
			if m.Source == "network" || m.Type != "error" && m.Type != "warning" && !m.IsException() {
				continue
			}
			c.mu.Lock()
			c.list = append(c.list, m.Text)
			c.mu.Unlock()
		}
	}()
}

func (c *complaints) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.list
	c.list = nil
	return list
}

// cookie signs the browser in as the session's user; an empty token signs out.
func cookie(l *lab, token string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		// A page whose session ends loads itself again, which would abort the next visit.
		if _, err := chromedp.Navigate("about:blank")(ctx, target); err != nil {
			return err
		}
		if _, err := cdp.Call(ctx, target, network.ClearBrowserCookies, cdp.Empty{}); err != nil || token == "" {
			return err
		}
		_, err := cdp.Call(ctx, target, network.SetCookie, network.SetCookieParams{Name: cookies.Session, Value: token + "." + browserKey,
			URL: l.server.URL, Path: "/", Secure: ptr(true), HTTPOnly: ptr(true)})
		return err
	})
}

func screen(width int64, dark bool) chromedp.Action[chromedp.Void] {
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
			Width: width, Height: 900, DeviceScaleFactor: 1, Mobile: width < 600})
		if err != nil {
			return err
		}
		_, err = cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}})
		return err
	})
}

// A violation is what axe-core found wrong.
type violation struct {
	ID    string `json:"id"`
	Help  string `json:"help"`
	Nodes []struct {
		HTML    string `json:"html"`
		Summary string `json:"failureSummary"`
	} `json:"nodes"`
}

func findViolations(ctx context.Context) ([]violation, error) {
	const run = `axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}).then(r => JSON.stringify(r.violations))`
	found, err := chromedp.Run(ctx, chromedp.Evaluate[string](run, chromedp.EvalAwaitPromise))
	if err != nil {
		return nil, err
	}
	var list []violation
	return list, json.Unmarshal([]byte(found), &list)
}

// TestPagesInABrowser looks at every page on a phone and on a desktop, in light
// and dark: axe-core finds no violation of WCAG AA, nothing is wider than the
// screen, and the browser reports no error.
func TestPagesInABrowser(t *testing.T) {
	t.Parallel()
	ctx := browser(t)
	busy, empty, many, none, cpuOnly := newLab(t, "ada", "ben"), newLab(t), newLab(t), newLab(t), newLab(t)
	cpuOnly.fleet.publish(gpu.Snapshot{Node: "gpu-box", Time: time.Now()})
	empty.unused = true
	empty.machines.Edit(func(m *ctl.Machines) { m.Nodes = m.Nodes[:1] })
	for n, node := range []string{"gpu-box", "gpu-box-2"} {
		s := snapshotAt(time.Now(), 8, "ada", "ben", "lea", "somebody-with-a-long-name-of-30", "ada")
		s.Node = node
		for i := range s.GPUs {
			s.GPUs[i].UUID += strconv.Itoa(n)
		}
		many.fleet.publish(s)
	}
	many.machines.Edit(func(m *ctl.Machines) { m.Nodes = tenMachines(time.Now()) })
	none.fleet.forget("gpu-box")
	for back := 130; back >= 0; back-- {
		busy.fleet.publish(snapshotAt(time.Now().Add(-time.Duration(back)*time.Second), 2, "ada", "ben"))
	}
	busy.busy()
	busy.status.status.Network = someNetwork()
	for _, l := range []*lab{busy, many} {
		_, err := l.tailnet.Up(ctx, ctl.TailnetRequest{AuthKey: "tskey"})
		if l == many {
			l.tailnet.FunnelAllowed = true
			_, err = l.tailnet.Funnel(ctx, true)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	busy.history.usage = someUse()
	busy.traces(t)
	trouble := newLabWith(t, func(c *webui.Config) {
		c.Emptying = func(string) []string {
			return []string{"gpu-two is being emptied (new memory). Your notebook “Mine” there ends at 16:30: save your work."}
		}
	})
	trouble.machines.Edit(func(m *ctl.Machines) {
		m.Nodes[0].Cordon = &ctl.Cordon{Since: time.Now(), By: "ada", Reason: "new memory on Friday, and a larger power supply"}
		m.Nodes[1].Cordon = &ctl.Cordon{Since: time.Now(), By: "root", EmptyAt: time.Now().Add(time.Hour)}
		m.Invitations = []ctl.OpenInvitation{{ID: "0000000000000001", Made: time.Now(), Expires: time.Now().Add(time.Hour)}}
	})
	trouble.fleet.publish(troubled(time.Now()))
	trouble.history.events = someEvents(time.Now())
	busy.vision(t)
	for _, err := range []error{
		busy.users.SetMember(ctx, "vision", 2, false), busy.users.SetMember(ctx, "vision", 4, false),
		trouble.users.Suspend(ctx, 4), trouble.users.Remove(ctx, 2),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	working := newLab(t)
	working.someJobs()
	if os.Geteuid() == 0 { // who alone can build
		working.environments.Make(t, "pytorch", "2026-11-23", "PyTorch")
		working.environments.Make(t, "a-name-of-thirty-characters-xx", "2026-11-23.some-long-version", "Everything that the seminar on computer vision needs, 2026")
		working.environments.Use(environments.Use{Environment: "pytorch/2026-11-23", Handle: "somebody-with-a-long-name-of-30", Notebook: "train-a-model-with-a-long-name"})
	}
	before := newLab(t)
	before.users.exec(t, "UPDATE users SET password_hash = '' WHERE handle = 'ada'")
	setup, err := before.users.CreateLink(ctx, users.Link{Purpose: users.PurposeAdminSetup, Role: users.RoleAdmin}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	welcome, err := busy.users.CreateLink(ctx, users.Link{Purpose: users.PurposePassword, UserID: ptr(int64(4))}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	g := &guests{}
	g.who.Store(guest("somebody.with.a.long.name@another-university.example.org"))
	visited := newLabWith(t, func(c *webui.Config) { c.Network = g.way() })
	visited.users.exec(t, "UPDATE users SET password_hash = '' WHERE id = 4")
	guestLink, err := visited.users.CreateLink(ctx, users.Link{Purpose: users.PurposePassword, UserID: ptr(int64(4))}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	_, invitation, err := visited.users.Invite(ctx, users.Root(), users.NewInvitation{Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	setSomeQuotas(t, busy)
	someFolders(t, busy)
	asked, err := busy.users.AskDevice(ctx, users.DeviceAsk{Client: "lea-laptop (macOS)", Scope: users.ScopeLaunch, Days: 30, Remote: "10.20.30.40"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := busy.users.AddSSHKey(ctx, 1, "laptop", publicKey(t)); err != nil {
		t.Fatal(err)
	}
	busy.door.open = []webui.FileConnection{{Since: time.Now().Add(-25 * time.Minute), Remote: "10.20.30.41", Client: "OpenSSH_9.2p1 Debian-2+deb12u6", Way: "SSH key 1"}}
	doorless := newLabWith(t, func(c *webui.Config) { c.Files = nil })
	unbuilt := newLabOf(t, fstest.MapFS{})
	ways, wayPages := waysInPages(t)
	pages := []struct {
		name, path, user string
		lab              *lab
		status           int
	}{
		{"home", "/", "ada", busy, 200},
		{"home-member", "/", "lea", busy, 200},
		{"home-empty", "/", "ben", empty, 200},
		{"home-many", "/", "lea", many, 200},
		{"home-none", "/", "lea", none, 200},
		{"gpus", "/gpus", "ben", busy, 200},
		{"gpus-many", "/gpus", "ben", many, 200},
		{"gpus-none", "/gpus", "ben", none, 200},
		{"gpu", "/gpus/" + testGPU, "ben", busy, 200},
		{"gpu-day", "/gpus/" + testGPU + "?span=24h", "ada", busy, 200},
		{"gpu-trouble", "/gpus/" + testGPU, "ada", trouble, 200},
		{"use", "/use", "ben", busy, 200},
		{"use-all", "/use?days=30", "ada", busy, 200},
		{"use-empty", "/use", "ben", empty, 200},
		{"report", "/report?weeks=12", "ada", busy, 200},
		{"report-empty", "/report", "ada", empty, 200},
		{"jobs", "/jobs", "ben", working, 200},
		{"jobs-empty", "/jobs", "ben", empty, 200},
		{"environments", "/environments", "ada", working, 200},
		{"environments-member", "/environments", "ben", working, 200},
		{"environments-empty", "/environments", "ben", empty, 200},
		{"job-waiting", "/jobs/1", "ben", working, 200},
		{"job-running", "/jobs/2", "ben", working, 200},
		{"job-failed", "/jobs/3", "ben", working, 200},
		{"job-of-another", "/jobs/2", "ada", working, 200},
		{"gpus-cpu-only", "/gpus", "ben", cpuOnly, 200},
		{"home-cpu-only", "/", "ben", cpuOnly, 200},
		{"launch-starting", "/launches/4", "ada", busy, 200},
		{"launch-waiting", "/launches/3", "lea", busy, 200},
		{"launch-never", "/launches/5", "ada", busy, 200},
		{"launch-failed", "/launches/6", "ada", busy, 200},
		{"launch-running", "/launches/1", "ada", busy, 200},
		{"users", "/users", "ada", busy, 200},
		{"account", "/account", "ben", busy, 200},
		{"account-empty", "/account", "gus", empty, 200},
		{"account-files", "/account", "ada", busy, 200},
		{"account-no-files", "/account", "ben", doorless, 200},
		{"audit", "/audit", "ada", busy, 200},
		{"audit-filtered", "/audit?person=nobody&since=2026-01-01&until=x", "ada", busy, 200},
		{"users-nobody", "/users?q=nobody&state=removed", "ada", busy, 200},
		{"person", "/users/ben", "ada", busy, 200},
		{"person-self", "/users/ada", "ada", busy, 200},
		{"person-suspended", "/users/gus", "ada", trouble, 200},
		{"person-removed", "/users/ben", "ada", trouble, 200},
		{"person-lead", "/users/ben", "lea", busy, 200},
		{"groups", "/groups", "ada", busy, 200},
		{"groups-empty", "/groups", "ada", empty, 200},
		{"groups-lead", "/groups", "lea", busy, 200},
		{"group", "/groups/vision", "ada", busy, 200},
		{"group-lead", "/groups/vision", "lea", busy, 200},
		{"status", "/status", "ada", busy, 200},
		{"tailnet-off", "/tailnet", "ada", empty, 200},
		{"tailnet", "/tailnet", "ada", busy, 200},
		{"tailnet-funnel", "/tailnet", "ada", many, 200},
		{"funnel", "/tailnet/funnel", "ada", busy, 200},
		{"funnel-open", "/tailnet/funnel/open", "ada", busy, 200},
		{"machines", "/machines", "ada", busy, 200},
		{"machines-many", "/machines", "ada", many, 200},
		{"machines-emptied", "/machines", "ada", trouble, 200},
		{"home-emptied", "/", "ada", trouble, 200},
		{"machines-one", "/machines", "ada", empty, 200},
		{"network", "/network", "ben", busy, 200},
		{"network-admin", "/network", "ada", busy, 200},
		{"network-closed", "/network", "ben", empty, 200},
		{"trust", "/trust", "", busy, 200},
		{"login", "/login", "", busy, 200},
		{"folders", "/folders", "ben", busy, 200},
		{"folders-admin", "/folders", "ada", busy, 200},
		{"folders-empty", "/folders", "ben", empty, 200},
		{"folders-full", "/folders?done=cleared", "lea", busy, 200},
		{"folder", "/folders/vision-data", "lea", busy, 200},
		{"folder-dataset", "/folders/imagenet", "ada", busy, 200},
		{"folder-host", "/folders/measurements-of-the-old-group", "ada", busy, 200},
		{"folder-deleted", "/folders/old-data", "ada", busy, 200},
		{"folder-member", "/folders/exercises", "ben", busy, 200},
		{"home-full", "/", "ben", busy, 200},
		{"quotas", "/quotas", "ada", busy, 200},
		{"quotas-none", "/quotas", "ada", empty, 200},
		{"setup", "/setup?token=" + setup, "", before, 200},
		{"welcome", "/welcome?token=" + welcome, "", busy, 200},
		{"welcome-visitor", "/welcome?token=" + guestLink, "", visited, 200},
		{"join-visitor", "/join?token=" + invitation, "", visited, 200},
		{"login-visitor", "/login", "", visited, 200},
		{"link-invalid", "/setup?token=no", "", busy, 404},
		{"not-found", "/nothing", "ada", busy, 404},
		{"forbidden", "/users", "ben", busy, 403},
		{"design", "/design", "ben", busy, 200},
		{"device", "/device?code=" + asked.UserCode, "lea", busy, 200},
		{"device-code", "/device", "lea", busy, 200},
		{"device-wrong", "/device?code=BCDFGHJK", "lea", busy, 404},
		{"api", "/api", "ben", busy, 200},
		{"cli", "/cli", "ben", busy, 200},
		{"cli-none", "/cli", "ben", unbuilt, 200},
		{"api-operation", "/api?open#createFolder", "", busy, 200},
	}
	for _, p := range wayPages {
		pages = append(pages, struct {
			name, path, user string
			lab              *lab
			status           int
		}{p.name, p.path, p.user, ways, p.status})
	}
	var wrong complaints
	wrong.listen(ctx)
	for _, p := range pages {
		t.Run(p.name, func(t *testing.T) {
			token := ""
			if p.user != "" {
				token = p.lab.session(t, p.user)
			}
			if err := chromedp.Do(ctx, cookie(p.lab, token), screen(390, false)); err != nil {
				t.Fatal(err)
			}
			response, err := chromedp.RunResponse(ctx, chromedp.Navigate(p.lab.server.URL+p.path))
			if err != nil {
				t.Fatal(err)
			}
			if response.Status != int64(p.status) {
				t.Errorf("status %d, want %d", response.Status, p.status)
			}
			checkLooks(ctx, t, p.name)
			for _, complaint := range wrong.take() {
				t.Errorf("the browser reports: %s", complaint)
			}
		})
	}
}

// tenMachines are a lab of ten machines with four GPUs each, in many states.
func tenMachines(now time.Time) []ctl.Node {
	var list []ctl.Node
	for i := range 10 {
		ahead := 0.2
		n := ctl.Node{Name: fmt.Sprintf("gpu-%02d", i+1), Address: fmt.Sprintf("10.0.0.%d", i+1), Role: "node", Ready: true, State: ctl.NodeReady, Version: "0.1.0", GPUs: 4,
			LastContact: now, Joined: now.Add(-40 * 24 * time.Hour), ClockOffset: &ahead,
			Host: &ctl.Host{CPUs: 64, Load: float64(i*i) * 0.7, MemoryTotal: 512 << 30, MemoryUsed: int64(i) * 50 << 30, DiskTotal: 3600 << 30, DiskFree: int64(3600-350*i) << 30}}
		for k := range i % 5 {
			n.Notebooks = append(n.Notebooks, ctl.NodeNotebook{User: []string{"ada", "ben", "lea", "gus", "somebody-with-a-long-name-of-30"}[(i+k)%5], Name: "gpu", Launch: int64(10*i + k + 1), GPUs: 1 + k%2, Since: now.Add(-time.Duration(i*k) * time.Hour)})
		}
		list = append(list, n)
	}
	list[0].Role, list[0].Joined, list[0].LastContact = "head", time.Time{}, time.Time{}
	list[2].Title = "Under the window, second from the left"
	list[3].Cordon = &ctl.Cordon{Since: now.Add(-time.Hour), By: "ada", Reason: "new memory on Friday, and a larger power supply", EmptyAt: now.Add(2 * time.Hour)}
	list[5].State, list[5].Ready, list[5].Host, list[5].LastContact = ctl.NodeLost, false, nil, now.Add(-3*time.Hour)
	list[5].Detail = "gpu-06 has not been heard since 10:00:00 on Mon 2 Jan. Notebooks there may well go on, but cannot be reached; they are back with the machine. See that it is on and connected."
	list[7].Cordon = &ctl.Cordon{Since: now.Add(-time.Hour), By: "root"}
	list[9].GPUs = 0
	return list
}

// checkLooks looks at a page on a phone and on a wide screen. Dark differs in
// colours only, so one width is enough for it; light comes last, and stays.
func checkLooks(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[int](axe+"; 0")); err != nil {
		t.Fatal(err)
	}
	for _, look := range []struct {
		name  string
		width int64
		dark  bool
	}{{"390-light", 390, false}, {"1440-dark", 1440, true}, {"1440-light", 1440, false}} {
		if err := chromedp.Do(ctx, screen(look.width, look.dark)); err != nil {
			t.Fatal(err)
		}
		checkPage(ctx, t, name+"-"+look.name, look.width)
	}
}

func checkPage(ctx context.Context, t *testing.T, name string, width int64) {
	t.Helper()
	eventually(ctx, t, name+": curves", `[...document.querySelectorAll("[data-curve]")].every(f => f.querySelector("canvas, [data-empty]:not([hidden])"))`)
	// innerWidth would not do: a phone shows a page that is too wide as a whole.
	wider := `[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > ` + strconv.FormatInt(width, 10) + ` + 1 && !e.closest(".visually-hidden, .nav-box, pre, table.folds thead") && getComputedStyle(e).position !== "absolute").map(e => e.outerHTML.slice(0, 120))`
	overflow, err := chromedp.Run(ctx, chromedp.Evaluate[[]string](wider))
	if err != nil {
		t.Fatal(err)
	}
	if len(overflow) > 0 {
		t.Errorf("%s: wider than the screen: %s", name, overflow[0])
	}
	cut, err := chromedp.Run(ctx, chromedp.Evaluate[[]string](`[...document.querySelectorAll(".card.flush")].filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText.slice(0, 60))`))
	if err != nil {
		t.Fatal(err)
	}
	if len(cut) > 0 {
		t.Errorf("%s: a table does not fit its card: %s", name, cut[0])
	}
	violations, err := findViolations(ctx)
	if err != nil {
		t.Fatalf("%s: axe: %v", name, err)
	}
	for _, v := range violations {
		for _, node := range v.Nodes {
			t.Errorf("%s: %s (%s): %s: %s", name, v.ID, v.Help, node.HTML, node.Summary)
		}
	}
	if *screenshots == "" {
		return
	}
	picture, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(*screenshots, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), picture, 0o644); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until an expression is true in the page.
func eventually(ctx context.Context, t *testing.T, what, expression string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		// While a page is being left, there is nothing to evaluate in.
		done, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if err == nil && done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: still not so after a minute (%v)", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func run(ctx context.Context, t *testing.T, script string) {
	t.Helper()
	if err := chromedp.Do(ctx, chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := chromedp.Evaluate[int]("("+script+", 0)")(ctx, target)
		return err
	})); err != nil {
		t.Fatalf("%s: %v", script, err)
	}
}

// wrongClock makes the clock of every page from now on go wrong by some hours.
func wrongClock(hours int) chromedp.Action[page.ScriptIdentifier] {
	return func(ctx context.Context, target *chromedp.Target) (page.ScriptIdentifier, error) {
		added, err := cdp.Call(ctx, target, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: fmt.Sprintf(`(() => {
			const Right = Date, off = %d * 3600e3;
			Date = class extends Right {
				constructor(...given) { given.length ? super(...given) : super(Right.now() + off); }
				static now() { return Right.now() + off; }
			};
		})()`, hours)})
		return added.Identifier, err
	}
}

func rightClock(id page.ScriptIdentifier) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, page.RemoveScriptToEvaluateOnNewDocument, page.RemoveScriptToEvaluateOnNewDocumentParams{Identifier: id})
		return err
	})
}

// TestPagesLive uses the pages as a person does, over the real connection.
func TestPagesLive(t *testing.T) {
	t.Parallel()
	ctx := browser(t)
	l := newLab(t, "ada", "ben")
	l.busy()
	feed, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for second := time.NewTicker(250 * time.Millisecond); ; {
			select {
			case <-feed.Done():
				second.Stop()
				return
			case at := <-second.C:
				l.fleet.publish(snapshotAt(at, 2, "ada", "ben"))
			}
		}
	}()
	var wrong complaints
	wrong.listen(ctx)
	token := l.session(t, "ada")
	if err := chromedp.Do(ctx, cookie(l, token), screen(1440, false)); err != nil {
		t.Fatal(err)
	}
	visit := func(path string) {
		t.Helper()
		if err := chromedp.Do(ctx, chromedp.Navigate(l.server.URL+path)); err != nil {
			t.Fatal(err)
		}
	}
	streams := func(t *testing.T, want int) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); l.pages.OpenStreams() != want; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d streams are open, want %d", l.pages.OpenStreams(), want)
			}
		}
	}
	const firstGPU = `document.getElementById("` + gpu0 + `")`

	t.Run("readings change, and go on after the connection broke", func(t *testing.T) {
		visit("/gpus")
		run(ctx, t, `window.before = `+firstGPU+`.innerText, `+firstGPU+`.mark = "same element"`)
		eventually(ctx, t, "new readings", firstGPU+`.innerText !== window.before`)
		eventually(ctx, t, "the element was kept", firstGPU+`.mark === "same element"`)
		l.server.CloseClientConnections()
		run(ctx, t, `window.before = `+firstGPU+`.innerText`)
		eventually(ctx, t, "readings after a break", firstGPU+`.innerText !== window.before`)
		eventually(ctx, t, "nothing is said to be lost", `document.getElementById("live-lost").hidden`)
		wrong.take() // htmx reports the break we made
	})

	t.Run("a hidden page rests", func(t *testing.T) {
		visit("/gpus")
		eventually(ctx, t, "it is live", `document.getElementById("live")._htmx?.sse`)
		const turn = `(Object.defineProperty(document, "hidden", {value: %t, configurable: true}), document.dispatchEvent(new Event("visibilitychange")))`
		run(ctx, t, fmt.Sprintf(turn, true))
		streams(t, 0)
		time.Sleep(600 * time.Millisecond) // what is under way arrives
		run(ctx, t, `window.before = `+firstGPU+`.innerText`)
		time.Sleep(time.Second)
		eventually(ctx, t, "readings rest", firstGPU+`.innerText === window.before`)
		run(ctx, t, fmt.Sprintf(turn, false))
		eventually(ctx, t, "readings go on", firstGPU+`.innerText !== window.before`)
		streams(t, 1)
	})

	t.Run("it is said for how long nothing has come", func(t *testing.T) {
		visit("/gpus")
		eventually(ctx, t, "it is live", `document.getElementById("live")._htmx?.sse`)
		run(ctx, t, `window.before = `+firstGPU+`.innerText`)
		eventually(ctx, t, "readings come", firstGPU+`.innerText !== window.before`)
		run(ctx, t, `window.reached = window.fetch, window.fetch = () => Promise.reject(new TypeError("Failed to fetch"))`)
		l.server.CloseClientConnections()
		const said = `(document.getElementById("live-lost").checkVisibility() && document.getElementById("live-lost").innerText.match(/Live values stopped (\d+) s ago\./)?.[1])`
		eventually(ctx, t, "seconds pass", said+` >= 3`)
		run(ctx, t, `window.fetch = window.reached`)
		eventually(ctx, t, "readings again", `document.getElementById("live-lost").hidden && !document.body.classList.contains("stale")`)
		wrong.take()
	})

	t.Run("the viewer's clock does not matter", func(t *testing.T) {
		for _, hours := range []int{1, -1} {
			id, err := chromedp.Run(ctx, wrongClock(hours))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{"/gpus", "/gpus/" + testGPU} {
				visit(path)
				const card = `document.querySelector(".card.gpu")`
				eventually(ctx, t, "the clock is wrong", fmt.Sprintf(`Math.abs(Date.now() - %d) > 3.5e6`, time.Now().UnixMilli()))
				run(ctx, t, `window.before = `+card+`.innerText`)
				eventually(ctx, t, "new readings", card+`.innerText !== window.before`)
				if path == "/gpus" {
					time.Sleep(5500 * time.Millisecond) // silence is looked for every 5 seconds
				}
				eventually(ctx, t, "nothing is said to be old or lost", `document.getElementById("live-lost").hidden && !document.querySelector(".stale") && !document.body.innerText.includes("last seen")`)
			}
			eventually(ctx, t, "curves", `[...document.querySelectorAll("[data-curve]")].every(f => f.querySelector("canvas"))`)
			if err := chromedp.Do(ctx, rightClock(id)); err != nil {
				t.Fatal(err)
			}
		}
	})

	t.Run("what is typed and focused stays while parts change", func(t *testing.T) {
		visit("/")
		run(ctx, t, `(f => (f.focus(), f.value = "my title"))(document.querySelector("#profile-gpu-title"))`)
		run(ctx, t, `window.before = `+firstGPU+`.innerText`)
		eventually(ctx, t, "new readings", firstGPU+`.innerText !== window.before`)
		eventually(ctx, t, "focus and text", `document.activeElement.id === "profile-gpu-title" && document.activeElement.value === "my title"`)
	})

	t.Run("a card that cannot work has no button while it is so", func(t *testing.T) {
		visit("/")
		const form = `document.querySelector("form:has(input[value=gpu])")`
		run(ctx, t, form+`.elements.title.value = "my title"`)
		l.notebooks.block("gpu", "Its image is too new.")
		eventually(ctx, t, "the reason in the form's place", `!`+form+`.checkVisibility() && document.querySelector("#profile-gpu-obstacle").innerText.includes("Its image is too new.")`)
		l.notebooks.block("gpu", "")
		eventually(ctx, t, "the form, as it was", form+`.checkVisibility() && `+form+`.elements.title.value === "my title" && !document.querySelector("#profile-gpu-obstacle").innerText`)
	})

	t.Run("a question before a notebook is stopped", func(t *testing.T) {
		visit("/")
		run(ctx, t, `document.querySelector("#row-1 form button").click()`)
		eventually(ctx, t, "the question", `document.querySelector("#confirm[open]")?.innerText.includes("Stop “protein-folding”?")`)
		run(ctx, t, `document.querySelector("#confirm [data-no]").click()`)
		eventually(ctx, t, "the question goes", `!document.querySelector("#confirm[open]")`)
		run(ctx, t, `document.querySelector("#row-1 form button").click()`)
		eventually(ctx, t, "the question again", `document.querySelector("#confirm[open]")`)
		// Live news may replace the row that asked before somebody answers.
		run(ctx, t, `(() => { const row = document.querySelector("#row-1"); row.replaceWith(row.cloneNode(true)) })()`)
		run(ctx, t, `document.querySelector("#confirm [data-yes]").click()`)
		eventually(ctx, t, "the notebook is gone from the list", `location.pathname === "/" && !document.querySelector("#row-1")`)
	})

	t.Run("a notebook opens when it is ready", func(t *testing.T) {
		visit("/launches/4")
		eventually(ctx, t, "seconds pass", `document.getElementById("launch-clock").innerText.match(/[5-9] s/)`)
		l.notebooks.change(func(list *[]notebooks.Launch) {
			for i := range *list {
				if (*list)[i].ID == 4 {
					(*list)[i].State, (*list)[i].Ready = notebooks.Running, time.Now()
				}
			}
		})
		eventually(ctx, t, "JupyterLab", `location.pathname === "/user/ada/cpu/lab"`)
	})

	t.Run("colours are chosen and kept", func(t *testing.T) {
		visit("/")
		run(ctx, t, `document.querySelector("[data-theme-button]").click()`)
		run(ctx, t, `document.querySelector("[data-theme-button]").click()`)
		eventually(ctx, t, "dark", `getComputedStyle(document.documentElement).backgroundColor === "rgb(15, 18, 20)"`)
		visit("/gpus")
		eventually(ctx, t, "dark on the next page", `document.documentElement.dataset.theme === "dark"`)
	})

	t.Run("a sign-in name is suggested and checked", func(t *testing.T) {
		visit("/users")
		run(ctx, t, `(f => (f.value = "Łukasz Straße", f.dispatchEvent(new Event("input", {bubbles: true}))))(document.getElementById("name"))`)
		eventually(ctx, t, "the suggestion", `document.getElementById("handle").value === "lukasz-strasse"`)
		eventually(ctx, t, "it is free", `document.getElementById("handle-note").innerText === "Free."`)
		run(ctx, t, `(f => (f.value = "ben", f.dispatchEvent(new Event("input", {bubbles: true}))))(document.getElementById("handle"))`)
		eventually(ctx, t, "it is taken", `document.getElementById("handle-note").innerText.includes("taken")`)
	})

	t.Run("a browser that refuses WebSockets is told so", func(t *testing.T) {
		visit("/")
		eventually(ctx, t, "WebSockets were found to work", `sessionStorage.getItem("gpulab-websocket-works")`)
		for banner, refuse := range map[string]*atomic.Bool{"ws-refused": &l.refuseWebSockets, "hub-unreachable": &l.breakHub} {
			refuse.Store(true)
			run(ctx, t, `sessionStorage.clear()`)
			visit("/gpus")
			eventually(ctx, t, "the banner "+banner, `!document.getElementById("`+banner+`").hidden`)
			run(ctx, t, `document.querySelector("#`+banner+` a").click()`)
			eventually(ctx, t, "the steps for this device", `location.pathname === "/trust" && document.getElementById("yours-title").innerText.includes("Ubuntu")`)
			refuse.Store(false)
		}
	})

	t.Run("a notebook does not open where its kernel would stay connecting", func(t *testing.T) {
		started := func(state notebooks.State) {
			l.notebooks.change(func(list *[]notebooks.Launch) {
				for i := range *list {
					if n := &(*list)[i]; n.ID == 4 {
						n.State, n.Started, n.Ready = state, time.Now(), time.Now()
					}
				}
			})
		}
		started(notebooks.Starting)
		l.refuseWebSockets.Store(true)
		defer l.refuseWebSockets.Store(false)
		run(ctx, t, `sessionStorage.clear()`)
		visit("/launches/4")
		eventually(ctx, t, "it starts", `document.getElementById("launch-state").innerText.includes("Starting")`)
		started(notebooks.Running)
		eventually(ctx, t, "the banner, and the way in for who wants it", `!document.getElementById("ws-refused").hidden && document.querySelector("[data-open-when-ready]")`)
		time.Sleep(time.Second)
		eventually(ctx, t, "the page stays", `location.pathname === "/launches/4"`)
	})

	for _, complaint := range wrong.take() {
		t.Errorf("the browser reports: %s", complaint)
	}

	t.Run("signing out elsewhere ends this page", func(t *testing.T) {
		visit("/gpus")
		if err := l.users.EndSession(ctx, token); err != nil {
			t.Fatal(err)
		}
		eventually(ctx, t, "sign-in", `location.pathname === "/login"`)
	})
}

// TestKeyboard starts and stops a notebook without a mouse: every stop of the
// Tab key is visible, a question takes the focus and gives it back.
func TestKeyboard(t *testing.T) {
	ctx := browser(t)
	l := newLab(t, "ada", "ben")
	l.busy()
	if err := chromedp.Do(ctx, cookie(l, l.session(t, "ada")), screen(1440, false), chromedp.Navigate(l.server.URL+"/")); err != nil {
		t.Fatal(err)
	}
	press := func(key string) {
		t.Helper()
		if err := chromedp.Do(ctx, chromedp.KeyEvent(key)); err != nil {
			t.Fatal(err)
		}
	}
	// tabTo presses Tab until the focus is on what the script finds.
	tabTo := func(what, script string) {
		t.Helper()
		for range 60 {
			press(kb.Tab)
			const visible = `(e => { const s = getComputedStyle(e), r = e.getBoundingClientRect(); return r.width > 0 && r.right > 0 && r.bottom > 0 && s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2 })(document.activeElement)`
			if seen, err := chromedp.Run(ctx, chromedp.Evaluate[bool](visible)); err != nil || !seen {
				html, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`document.activeElement.outerHTML.slice(0, 200)`))
				t.Fatalf("the focus is not to be seen (%v): %s", err, html)
			}
			if found, err := chromedp.Run(ctx, chromedp.Evaluate[bool](script)); err == nil && found {
				return
			}
		}
		t.Fatalf("Tab does not lead to %s", what)
	}
	const name = `document.activeElement.textContent.replace(/\s+/g, " ").trim()`

	press(kb.Tab)
	eventually(ctx, t, "the way past the navigation comes first", `document.activeElement.className === "skip"`)
	press(kb.Enter)
	eventually(ctx, t, "the content has the focus", `document.activeElement.id === "main"`)

	tabTo("the button that stops a notebook", name+` === "Stop protein-folding"`)
	press(kb.Enter)
	eventually(ctx, t, "the question, with the focus on what does no harm", `document.querySelector("#confirm[open]") && document.activeElement.matches("[data-no]")`)
	press(kb.Escape)
	eventually(ctx, t, "the focus is back", `!document.querySelector("#confirm[open]") && `+name+` === "Stop protein-folding"`)

	tabTo("the title of a new notebook", `document.activeElement.id === "profile-cpu-title"`)
	if err := chromedp.Do(ctx, chromedp.KeyEvent("typed")); err != nil {
		t.Fatal(err)
	}
	press(kb.Enter)
	eventually(ctx, t, "the new notebook's page", `location.pathname.startsWith("/launches/") && document.querySelector("h1").innerText === "typed"`)
}
