package lab

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// Browser is a Chromium on the visitor's computer, with one page open. A
// method that does not succeed within Patience ends the test, with a picture.
type Browser struct {
	t          testing.TB
	ctx        context.Context
	pictures   string
	failures   int
	patience   time.Duration
	clicks     *atomic.Int64
	overwrites bool
}

// Patience is how long a page may take to show what a test waits for. A
// launch may unpack an image meanwhile.
const Patience = 2 * time.Minute

// Browser starts a Chromium on the visitor's computer, as [NewBrowser] does.
func (l *Lab) Browser(authorities []byte) *Browser {
	l.t.Helper()
	return NewBrowser(l.t, []string{"nsenter", "--target", strconv.Itoa(l.visitor), "--net"}, authorities,
		// As a computer whose resolver asks its neighbours.
		chromedp.Flag("host-resolver-rules", "MAP gpulab.local "+Address+
			// As one whose name server has these records.
			", MAP lab.example.org "+Address+", MAP *.lab.example.org "+Address))
}

// NewBrowser starts a Chromium through a command that enters the network of
// somebody's computer. It trusts the given authorities (PEM), as a person's
// does after installing them, or no such one (nil). Pictures are
// written to the folder named by GPULAB_SCREENSHOTS, or test/output/screenshots.
func NewBrowser(t testing.TB, enter []string, authorities []byte, flags ...chromedp.ExecAllocatorOption) *Browser {
	t.Helper()
	home := t.TempDir()
	if len(authorities) > 0 {
		trust(t, home, authorities)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("force-color-profile", "srgb"),
		chromedp.Env("HOME="+home),
		chromedp.UserDataDir(filepath.Join(home, "profile")),
		chromedp.ModifyCmdFunc(func(cmd *exec.Cmd) {
			cmd.Args = slices.Concat(enter, []string{cmd.Path}, cmd.Args[1:])
			cmd.Path, cmd.Err = exec.LookPath(enter[0])
		}))
	options = append(options, flags...)
	if path := os.Getenv("GPULAB_CHROMIUM"); path != "" {
		options = append(options, chromedp.ExecPath(path))
	}
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits for the browser, so that its files are gone before their folder
		cancel()
		stop()
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start Chromium (apt-get install chromium, or set GPULAB_CHROMIUM): %v", err)
	}
	pictures := os.Getenv("GPULAB_SCREENSHOTS")
	if pictures == "" {
		pictures = filepath.Join(Repository(t), "test/output/screenshots")
	}
	if err := os.MkdirAll(pictures, 0o755); err != nil {
		t.Fatal(err)
	}
	acceptDialogs(ctx)
	keepFocus(ctx, t)
	return &Browser{t: t, ctx: ctx, pictures: pictures, patience: Patience, clicks: new(atomic.Int64)}
}

// Patient returns the same browser, which waits for a slower lab.
func (b *Browser) Patient(patience time.Duration) *Browser {
	other := *b
	other.patience = patience
	return &other
}

// Overwrites returns the same browser, whose person answers with Overwrite when JupyterLab asks about a notebook that
// changed on disk: the page had just saved it, and gpulab was killed before it passed on the answer.
func (b *Browser) Overwrites() *Browser {
	other := *b
	other.overwrites = true
	return &other
}

// Clicks is how often something was clicked in this page.
func (b *Browser) Clicks() int { return int(b.clicks.Load()) }

// For returns the same browser reporting to another test, a subtest.
func (b *Browser) For(t testing.TB) *Browser {
	other := *b
	other.t = t
	return &other
}

// Tab opens another page of the same browser, which shares the cookies.
func (b *Browser) Tab() *Browser {
	b.t.Helper()
	ctx, cancel := chromedp.NewContext(b.ctx)
	b.t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		b.t.Fatalf("open a tab: %v", err)
	}
	acceptDialogs(ctx)
	keepFocus(ctx, b.t)
	return &Browser{t: b.t, ctx: ctx, pictures: b.pictures, patience: b.patience, clicks: new(atomic.Int64)}
}

// Close closes the page, as one does with a tab; it asks nothing.
func (b *Browser) Close() {
	b.t.Helper()
	if err := chromedp.Cancel(b.ctx); err != nil {
		b.t.Fatalf("close the page: %v", err)
	}
}

// Private opens a page with cookies of its own, as another person would.
func (b *Browser) Private() *Browser {
	b.t.Helper()
	ctx, cancel := chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext())
	b.t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		b.t.Fatalf("open a private window: %v", err)
	}
	acceptDialogs(ctx)
	keepFocus(ctx, b.t)
	return &Browser{t: b.t, ctx: ctx, pictures: b.pictures, patience: b.patience, clicks: new(atomic.Int64)}
}

// acceptDialogs answers the page's dialogs, as "Leave site?" of a JupyterLab
// with unsaved work; the page stands still until somebody does.
func acceptDialogs(ctx context.Context) {
	dialogs := chromedp.Events(ctx, page.JavascriptDialogOpening)
	go func() {
		for _, err := range dialogs {
			if err != nil {
				return
			}
			_, _ = chromedp.Call(ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
		}
	}()
}

// keepFocus lets a page behave as the one that somebody works in, whichever of
// them is in front: several people's pages share one Chromium here.
func keepFocus(ctx context.Context, t testing.TB) {
	t.Helper()
	if _, err := chromedp.Call(ctx, emulation.SetFocusEmulationEnabled,
		emulation.SetFocusEmulationEnabledParams{Enabled: true}); err != nil {
		t.Fatalf("keep the page's focus: %v", err)
	}
}

// trust puts the authorities where Chromium looks for a person's own.
func trust(t testing.TB, home string, authorities []byte) {
	t.Helper()
	store := filepath.Join(home, ".pki/nssdb")
	if err := os.MkdirAll(store, 0o700); err != nil {
		t.Fatal(err)
	}
	certutil := func(args ...string) {
		t.Helper()
		out, err := exec.Command("certutil", append([]string{"-d", "sql:" + store}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("certutil (apt-get install libnss3-tools): %v\n%s", err, out)
		}
	}
	certutil("-N", "--empty-password")
	for n := 1; ; n++ {
		block, rest := pem.Decode(authorities)
		if block == nil {
			if n == 1 {
				t.Fatal("no certificate in the authorities")
			}
			return
		}
		authorities = rest
		file := filepath.Join(home, fmt.Sprintf("ca-%d.crt", n))
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		certutil("-A", "-n", fmt.Sprintf("authority %d", n), "-t", "C,,", "-i", file)
	}
}

// do runs the actions and ends the test when they fail.
func (b *Browser) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, b.patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.Fail(what, err)
	}
}

// Fail ends the test with what the page shows.
func (b *Browser) Fail(what string, err error) {
	b.t.Helper()
	b.failures++
	name := fmt.Sprintf("failed-%s-%d", strings.NewReplacer("/", "-", " ", "-").Replace(b.t.Name()), b.failures)
	b.picture(name)
	b.t.Fatalf("%s: %v\nat %s, the page says:\n%s\npicture: %s.png", what, err, b.Location(), b.Shown(),
		filepath.Join(b.pictures, name))
}

// Open navigates to the URL. Whom a busy machine leaves without an answer loads
// the page again, as people do.
func (b *Browser) Open(url string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, b.patience)
	defer cancel()
	err := chromedp.Do(ctx, chromedp.Navigate(url))
	for tries := 1; err != nil && strings.Contains(err.Error(), "ERR_CONNECTION_CLOSED") && tries < 3; tries++ {
		err = chromedp.Do(ctx, chromedp.Navigate(url))
	}
	if err != nil {
		b.Fail("open "+url, err)
	}
}

// OpenDespiteWarning navigates to a page whose certificate the browser does not
// trust, and chooses what people choose then: to go on to it anyway.
func (b *Browser) OpenDespiteWarning(url string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, b.patience)
	defer cancel()
	err := chromedp.Do(ctx, chromedp.Navigate(url))
	if err == nil || !strings.Contains(err.Error(), "ERR_CERT_AUTHORITY_INVALID") {
		b.Fail("open "+url, fmt.Errorf("the browser does not warn: %w", err))
	}
	b.WaitFor("the browser's warning", `document.querySelector("#proceed-link")`)
	b.Press("thisisunsafe") // what the link does; it heeds no click of a script
	b.WaitFor("the page behind the warning", `location.protocol === "https:"`)
}

// Location returns the URL of the page.
func (b *Browser) Location() string {
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	location, _ := chromedp.Run(ctx, chromedp.Location())
	return location
}

// Shown returns what the page shows, of a long page the beginning and the end.
func (b *Browser) Shown() string {
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](
		`(text => text.length > 6000 ? text.slice(0, 3000) + "\n…\n" + text.slice(-3000) : text)(document.body.innerText)`))
	return text
}

// Fill types into the field with the given label.
func (b *Browser) Fill(label, text string) {
	b.t.Helper()
	b.WaitFor("a field labelled "+label, fmt.Sprintf(
		`[...document.querySelectorAll("label")].some(l => l.innerText.trim().startsWith(%s) && (l.control?.focus(), l.control?.select?.(), l.control))`,
		quote(label)))
	b.Type(text)
}

// Type sends text to whatever has the focus, as a keyboard does.
func (b *Browser) Type(text string) {
	b.t.Helper()
	b.do("type", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, input.InsertText, input.InsertTextParams{Text: text})
		return err
	}))
}

// Press sends keys, such as kb.Enter, with modifiers held down.
func (b *Browser) Press(keys string, modifiers ...chromedp.Modifier) {
	b.t.Helper()
	b.do("press a key", chromedp.KeyEvent(keys, chromedp.KeyModifiers(modifiers...)))
}

// Click clicks the link or button whose accessible text is name, within the
// elements matched by the CSS selector ("" for the page).
func (b *Browser) Click(within, name string) {
	b.t.Helper()
	if within == "" {
		within = "body"
	}
	// A live page may replace the button between looking and clicking, so both
	// are one step.
	b.WaitFor(fmt.Sprintf("a button %q in %s", name, within), fmt.Sprintf(`(() => {
		for (const root of document.querySelectorAll(%s))
			for (const e of root.querySelectorAll("a, button, summary, [role=button]"))
				if (e.textContent.replace(/\s+/g, " ").trim() === %s && e.checkVisibility() && !e.disabled) { e.click(); return true }
		return false
	})()`, quote(within), quote(name)))
	b.clicks.Add(1)
}

// ClickOn clicks the first element that matches the CSS selector, for what has
// no text of its own.
func (b *Browser) ClickOn(selector string) {
	b.t.Helper()
	b.WaitFor(selector, fmt.Sprintf(`(() => { const e = document.querySelector(%s); e?.click(); return e })()`,
		quote(selector)))
	b.clicks.Add(1)
}

// Mouse moves the mouse to the element that a JavaScript expression finds, and
// clicks there: menus of JupyterLab heed no click of a script.
func (b *Browser) Mouse(what, element string) {
	b.t.Helper()
	b.mouse(what, element, input.MouseButtonLeft)
}

// ContextMenu is Mouse with the right button.
func (b *Browser) ContextMenu(what, element string) {
	b.t.Helper()
	b.mouse(what, element, input.MouseButtonRight)
}

func (b *Browser) mouse(what, element string, button input.MouseButton) {
	b.t.Helper()
	b.WaitFor(what,
		fmt.Sprintf(`(() => { const e = %s; e?.scrollIntoView({block: "nearest"}); return e?.checkVisibility() })()`,
			element))
	at := Evaluate[[]float64](b, `async () => { const box = (`+element+
		`).getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2] }`)
	b.do("click on "+what, chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		for _, kind := range []input.DispatchMouseEventType{
			input.DispatchMouseEventTypeMouseMoved, input.DispatchMouseEventTypeMousePressed,
			input.DispatchMouseEventTypeMouseReleased,
		} {
			event := input.DispatchMouseEventParams{Type: kind, X: at[0], Y: at[1]}
			if kind != input.DispatchMouseEventTypeMouseMoved {
				event.Button, event.ClickCount = button, 1
			}
			if _, err := cdp.Call(ctx, target, input.DispatchMouseEvent, event); err != nil {
				return err
			}
		}
		return nil
	}))
	b.clicks.Add(1)
}

// WaitText waits until the element shows the text.
func (b *Browser) WaitText(selector, text string) {
	b.t.Helper()
	b.WaitFor(fmt.Sprintf("%q in %s", text, selector), fmt.Sprintf(
		`[...document.querySelectorAll(%s)].some(e => e.innerText.replace(/\s+/g, " ").includes(%s))`, quote(selector),
		quote(text)))
}

// WaitFor waits until the JavaScript expression is true, over any number of
// navigations.
func (b *Browser) WaitFor(what, expression string) {
	b.t.Helper()
	defer NoteWait(time.Now())
	deadline := time.Now().Add(b.patience)
	ctx, cancel := context.WithDeadline(b.ctx, deadline.Add(time.Second))
	defer cancel()
	for {
		found, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if err == nil && found {
			return
		}
		if time.Now().After(deadline) {
			if err == nil {
				err = fmt.Errorf("not there after %s", b.patience)
			}
			b.Fail("waiting for "+what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Evaluate runs an asynchronous JavaScript function of the given arguments in
// the page and returns its result.
func Evaluate[T any](b *Browser, function string, args ...any) T {
	b.t.Helper()
	result, err := TryEvaluate[T](b, function, args...)
	if err != nil {
		b.Fail("script in the page", err)
	}
	return result
}

// TryEvaluate is Evaluate for scripts that may fail.
func TryEvaluate[T any](b *Browser, function string, args ...any) (T, error) {
	encoded := make([]string, len(args))
	for i, arg := range args {
		encoded[i] = quote(arg)
	}
	ctx, cancel := context.WithTimeout(b.ctx, b.patience)
	defer cancel()
	call := fmt.Sprintf("(%s)(%s)", function, strings.Join(encoded, ", "))
	return chromedp.Run(ctx, chromedp.Evaluate[T](call, chromedp.EvalAwaitPromise))
}

// Text returns what the first element matching the selector shows, "" without one.
func (b *Browser) Text(selector string) string {
	b.t.Helper()
	return Evaluate[string](b, `async s => (document.querySelector(s)?.innerText ?? "").replace(/\s+/g, " ").trim()`,
		selector)
}

// Pictures takes the page at the width of a phone and of a desktop.
func (b *Browser) Pictures(name string) {
	b.t.Helper()
	for _, width := range []int64{390, 1440} {
		b.resize(width)
		time.Sleep(300 * time.Millisecond) // the page's own transitions end
		b.picture(fmt.Sprintf("%s-%d", name, width))
	}
}

func (b *Browser) resize(width int64) {
	b.t.Helper()
	b.do("resize", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
			Width: width, Height: 900, DeviceScaleFactor: 1, Mobile: width < 600})
		return err
	}))
}

// Downloads has the browser put what is downloaded into a folder.
func (b *Browser) Downloads(folder string) {
	b.t.Helper()
	b.do("the folder of downloads", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{
			Behavior: browser.SetDownloadBehaviorBehaviorAllow, DownloadPath: folder})
		return err
	}))
}

// Scheme sets the colour scheme of the visitor's system: light or dark.
func (b *Browser) Scheme(name string) {
	b.t.Helper()
	b.do("the system's colours", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
		return err
	}))
}

func (b *Browser) picture(name string) {
	ctx, cancel := context.WithTimeout(b.ctx, 20*time.Second)
	defer cancel()
	picture, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(b.pictures, name+".png"), picture, 0o644)
	}
	if err != nil {
		b.t.Logf("picture %s: %v", name, err)
	}
}

// quote writes a value as JavaScript.
func quote(value any) string {
	encoded, err := json.Marshal(value)
	if err != nil {
		panic(err) // the tests pass strings and numbers
	}
	return string(encoded)
}
