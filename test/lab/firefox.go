package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// Firefox is a Firefox without windows, driven over WebDriver BiDi. It accepts
// any certificate. Debian has no geckodriver, and this protocol needs none.
type Firefox struct {
	t       testing.TB
	home    string
	socket  *websocket.Conn
	version string

	mu      sync.Mutex
	last    int
	waiting map[int]chan bidiAnswer
	gone    error // why the connection has ended
}

// A FirefoxTab is one page of a [Firefox].
type FirefoxTab struct {
	Firefox *Firefox
	Context string // its browsing context
	user    string // its user context: the cookies and the storage it uses
}

type bidiAnswer struct {
	ID      int             `json:"id"`
	Type    string          `json:"type"`
	Result  json.RawMessage `json:"result"`
	Error   string          `json:"error"`
	Message string          `json:"message"`
}

// callPatience bounds one command. On a machine with other work, a new profile's first takes a while.
const callPatience = time.Minute

var bidiAddress = regexp.MustCompile(`WebDriver BiDi listening on (ws://\S+)`)

// NewFirefox starts a Firefox that ends with the test, and so do its processes and files.
func NewFirefox(t testing.TB) *Firefox {
	t.Helper()
	home := t.TempDir()
	profile := filepath.Join(home, "profile")
	if err := os.Mkdir(profile, 0o700); err != nil {
		t.Fatal(err)
	}
	// No processes in advance, for pages that nobody opens.
	const prefs = `user_pref("network.proxy.type", 0);
user_pref("dom.ipc.processPrelaunch.enabled", false);
user_pref("browser.ml.enable", false);
`
	if err := os.WriteFile(filepath.Join(profile, "user.js"), []byte(prefs), 0o600); err != nil {
		t.Fatal(err)
	}
	program := os.Getenv("GPULAB_FIREFOX")
	if program == "" {
		program = "firefox-esr"
	}
	cmd := exec.Command(program, "--headless", "--no-remote", "--profile", profile, "--remote-debugging-port", "0")
	cmd.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home, "MOZ_HEADLESS=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatalf("start Firefox (apt-get install firefox-esr, or set GPULAB_FIREFOX): %v", err)
	}
	f := &Firefox{t: t, home: home, waiting: map[int]chan bidiAnswer{}}
	said := make(chan string, 1)
	silent := make(chan struct{})
	go func() {
		defer close(silent)
		var lines []string
		scanner := bufio.NewScanner(stderr)
		for scanner.Scan() {
			if found := bidiAddress.FindStringSubmatch(scanner.Text()); found != nil {
				said <- found[1]
			} else if len(lines) < 100 {
				lines = append(lines, scanner.Text())
			}
		}
		select {
		case said <- "ended: " + strings.Join(lines, "\n"):
		default:
		}
	}()
	t.Cleanup(func() { f.end(cmd, silent) })
	select {
	case address := <-said:
		if err := f.connect(address); err != nil {
			t.Fatalf("Firefox: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Firefox does not start within a minute")
	}
	return f
}

func (f *Firefox) connect(address string) error {
	if !strings.HasPrefix(address, "ws://") {
		return errors.New(address)
	}
	ctx, cancel := context.WithTimeout(context.Background(), callPatience)
	defer cancel()
	socket, _, err := websocket.Dial(ctx, address+"/session", nil) //nolint:bodyclose // Dial leaves none open
	if err != nil {
		return err
	}
	socket.SetReadLimit(-1)
	f.socket = socket
	go f.read()
	var session struct {
		Capabilities struct {
			BrowserVersion string `json:"browserVersion"`
		} `json:"capabilities"`
	}
	err = f.Call("session.new", map[string]any{"capabilities": map[string]any{"alwaysMatch": map[string]any{
		"acceptInsecureCerts": true, "unhandledPromptBehavior": map[string]any{"default": "accept"}}}}, &session)
	f.version = session.Capabilities.BrowserVersion
	return err
}

// end kills the browser's processes and waits until they are gone: they write to a folder that is about to be removed.
func (f *Firefox) end(cmd *exec.Cmd, silent <-chan struct{}) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	<-silent // each of them had standard error
	_ = cmd.Wait()
	if f.socket != nil {
		_ = f.socket.CloseNow()
	}
}

func (f *Firefox) read() {
	for {
		_, text, err := f.socket.Read(context.Background())
		var answer bidiAnswer
		if err == nil {
			err = json.Unmarshal(text, &answer)
		}
		f.mu.Lock()
		if err != nil {
			f.gone = err
			for id, c := range f.waiting {
				close(c)
				delete(f.waiting, id)
			}
			f.mu.Unlock()
			return
		}
		if c, ok := f.waiting[answer.ID]; ok && answer.Type != "event" {
			c <- answer
			delete(f.waiting, answer.ID)
		}
		f.mu.Unlock()
	}
}

// Version is what Firefox calls itself, such as 140.3.0.
func (f *Firefox) Version() string { return f.version }

// Call sends a command of WebDriver BiDi and reads its result, unless that is nil.
// Several calls may be under way.
func (f *Firefox) Call(method string, params, result any) error {
	c := make(chan bidiAnswer, 1)
	f.mu.Lock()
	if f.gone != nil {
		f.mu.Unlock()
		return fmt.Errorf("%s: the connection to Firefox has ended: %w", method, f.gone)
	}
	f.last++
	id := f.last
	f.waiting[id] = c
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), callPatience)
	defer cancel()
	text, err := json.Marshal(map[string]any{"id": id, "method": method, "params": params})
	if err == nil {
		err = f.socket.Write(ctx, websocket.MessageText, text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	select {
	case answer, ok := <-c:
		switch {
		case !ok:
			return fmt.Errorf("%s: the connection to Firefox has ended", method)
		case answer.Type == "error":
			return fmt.Errorf("%s: %s: %s", method, answer.Error, answer.Message)
		case result == nil:
			return nil
		}
		return json.Unmarshal(answer.Result, result)
	case <-ctx.Done():
		f.mu.Lock()
		delete(f.waiting, id)
		f.mu.Unlock()
		return fmt.Errorf("%s: no answer within %s", method, callPatience)
	}
}

// Person opens a page with cookies and storage of its own, as another person would.
func (f *Firefox) Person() *FirefoxTab {
	f.t.Helper()
	var user struct {
		UserContext string `json:"userContext"`
	}
	if err := f.Call("browser.createUserContext", map[string]any{}, &user); err != nil {
		f.t.Fatal(err)
	}
	return f.tab(user.UserContext)
}

// Tab opens another page of the same person, which shares cookies and storage.
func (t *FirefoxTab) Tab() *FirefoxTab { return t.Firefox.tab(t.user) }

func (f *Firefox) tab(user string) *FirefoxTab {
	f.t.Helper()
	var tab struct {
		Context string `json:"context"`
	}
	if err := f.Call("browsingContext.create", map[string]any{"type": "tab", "userContext": user, "background": true},
		&tab); err != nil {
		f.t.Fatal(err)
	}
	return &FirefoxTab{Firefox: f, Context: tab.Context, user: user}
}

// Open loads an address and waits for the page, or for the one that it leads to at once. It does not ask Firefox to
// wait: that never ends when the page that is left goes elsewhere by itself at that moment.
func (t *FirefoxTab) Open(address string) error {
	navigate := map[string]any{"context": t.Context, "url": address, "wait": "none"}
	again, end := time.Time{}, time.Now().Add(callPatience)
	for {
		if time.Now().After(again) {
			_, _ = t.Evaluate("window.isLeft = true")
			switch err := t.Firefox.Call("browsingContext.navigate", navigate, nil); {
			case err != nil && strings.Contains(err.Error(), "NS_BINDING_ABORTED") && time.Now().Before(end):
				// The page that is left went elsewhere by itself, and won.
				time.Sleep(20 * time.Millisecond)
				continue
			case err != nil:
				return err
			}
			again = time.Now().Add(callPatience / 3)
		}
		if state, err := t.Evaluate("window.isLeft ?? document.readyState"); err == nil && state == "complete" {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s is not loaded within %s", address, callPatience)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Evaluate returns the value of a JavaScript expression as text, of a promise its result.
func (t *FirefoxTab) Evaluate(expression string) (string, error) {
	return t.Firefox.evaluate(t.Context, "(async () => String(await ("+expression+")))()")
}

func (f *Firefox) evaluate(context, script string) (string, error) {
	var answer struct {
		Type   string `json:"type"`
		Result struct {
			Value string `json:"value"`
		} `json:"result"`
		Details struct {
			Text string `json:"text"`
		} `json:"exceptionDetails"`
	}
	// As a person's click does, this lets the page open a window.
	if err := f.Call("script.evaluate", map[string]any{"expression": script, "target": map[string]any{"context": context},
		"awaitPromise": true, "userActivation": true}, &answer); err != nil {
		return "", err
	}
	if answer.Type != "success" {
		return "", errors.New(answer.Details.Text)
	}
	return answer.Result.Value, nil
}

// Frames returns the address of what each frame of the page shows. A browser shows a page of its own, whose address is
// no https, in place of one that forbids it.
func (t *FirefoxTab) Frames() ([]string, error) {
	var tree struct {
		Contexts []struct {
			Children []struct {
				Context string `json:"context"`
			} `json:"children"`
		} `json:"contexts"`
	}
	if err := t.Firefox.Call("browsingContext.getTree", map[string]any{"root": t.Context, "maxDepth": 1},
		&tree); err != nil {
		return nil, err
	}
	var list []string
	for _, c := range tree.Contexts {
		for _, child := range c.Children {
			address, err := t.Firefox.evaluate(child.Context, `document.documentURI`)
			if err != nil {
				return nil, err
			}
			list = append(list, address)
		}
	}
	return list, nil
}

// SetCookie sets a cookie of a host that no script can read, whatever its name promises. In a partition it is that of
// pages of this host.
func (t *FirefoxTab) SetCookie(host, name, value string, partitioned bool) error {
	cookie := map[string]any{"name": name, "value": map[string]any{"type": "string", "value": value},
		"domain": host, "path": "/", "secure": true, "httpOnly": true, "sameSite": "lax"}
	partition := map[string]any{"type": "storageKey", "userContext": t.user}
	if partitioned {
		cookie["sameSite"], partition["sourceOrigin"] = "none", "https://"+host
	}
	return t.Firefox.Call("storage.setCookie", map[string]any{"cookie": cookie, "partition": partition}, nil)
}
