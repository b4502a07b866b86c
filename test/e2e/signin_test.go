//go:build e2e

package e2e

import (
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

var csrfField = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

// testFormsAndSignIn sends what no page of gpulab's would.
func testFormsAndSignIn(t *testing.T, a *appliance) {
	t.Run("plain HTTP leads to HTTPS", func(t *testing.T) {
		status, _, location := request(t, a.HTTPClient(a.ca), "GET", "http://"+lab.Address+"/gpus", nil)
		if status/100 != 3 || location != pages+"/gpus" {
			t.Errorf("status %d to %q", status, location)
		}
	})
	t.Run("a form without its token", func(t *testing.T) {
		client := signIn(t, a, guestHandle, guestPassword)
		status, body, _ := request(t, client, "POST", pages+"/launch", url.Values{"profile": {"cpu"}, "title": {"forged"}})
		if status != http.StatusForbidden {
			t.Errorf("status %d:\n%.500s", status, body)
		}
		if _, home, _ := request(t, client, "GET", pages+"/", nil); strings.Contains(home, "forged") {
			t.Error("the forged form started a notebook")
		}
	})
	t.Run("pages of the lab without a session", func(t *testing.T) {
		for _, path := range []string{"/", "/gpus", "/users", "/status"} {
			if status, _, location := request(t, a.HTTPClient(a.ca), "GET", pages+path, nil); status/100 != 3 || !strings.Contains(location, "/login") {
				t.Errorf("%s: status %d to %q, want the sign-in page", path, status, location)
			}
		}
	})
	t.Run("names that are none", func(t *testing.T) {
		client := signIn(t, a, adminHandle, adminPassword)
		before := a.MustGpulab(a.ctx, "user", "list")
		for _, handle := range hostileHandles {
			status, body := sendForm(t, client, "/users", "/users", url.Values{"name": {"Eve"}, "handle": {handle}, "role": {"member"}})
			checkRefusedForm(t, handle, status, body)
		}
		for _, form := range []url.Values{
			{"name": {strings.Repeat("n", 300)}, "handle": {"eve"}, "role": {"member"}},
			{"name": {"Eve"}, "handle": {"eve"}, "role": {"emperor"}},
			{"name": {"Eve"}, "handle": {"eve"}, "role": {"member"}, "email": {"no address"}},
		} {
			status, body := sendForm(t, client, "/users", "/users", form)
			checkRefusedForm(t, form.Encode(), status, body)
		}
		if after := a.MustGpulab(a.ctx, "user", "list"); after != before {
			t.Errorf("the people were\n%s\nand are\n%s", before, after)
		}
	})
	t.Run("a form that never ends", func(t *testing.T) {
		body, rest := io.Pipe()
		t.Cleanup(func() { rest.Close() })
		go func() { _, _ = rest.Write([]byte("csrf=")) }()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, pages+"/login", body)
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = 1000
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		client := a.HTTPClient(a.ca)
		client.Timeout = 45 * time.Second
		began := time.Now()
		if response, err := client.Do(r); err == nil {
			response.Body.Close()
		}
		if took := time.Since(began); took > 40*time.Second {
			t.Errorf("after %s it still waits for the rest", took)
		}
	})
	t.Run("wrong password 20 times", func(t *testing.T) { testWrongPasswords(t, a) })
}

// hostileHandles are names of files, terminals, people and shells; none may
// become an account. Ada is the administrator in another case.
var hostileHandles = []string{"../x", "Ä b", "Ada", strings.Repeat("a", 300), "a--b", "-a", "root;id", "root", "<b>x</b>", "a\x00b", "\x1b[2J", ""}

// checkRefusedForm checks that a form came back with one sentence at the field.
func checkRefusedForm(t *testing.T, what string, status int, body string) {
	t.Helper()
	if status != http.StatusUnprocessableEntity || strings.Count(body, `<p class="error">`) != 1 {
		t.Errorf("%.40q: status %d, want a form with one sentence:\n%.500s", what, status, body)
	}
}

// testWrongPasswords: whoever guesses one person's password is stopped at their
// address. It keeps nobody out elsewhere, and a new password works at once.
func testWrongPasswords(t *testing.T, a *appliance) {
	client := a.HTTPClient(a.ca)
	for try := range 20 {
		if status, body := tryPassword(t, client, guestHandle, "not the password"); status == http.StatusSeeOther {
			t.Fatalf("try %d: a wrong password is taken:\n%.500s", try+1, body)
		}
	}
	form := url.Values{"handle": {guestHandle}, "password": {guestPassword}, "csrf": {formToken(t, client, "/login")}}
	response := send(t, client, "POST", pages+"/login", form)
	body, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	wait, _ := strconv.Atoi(response.Header.Get("Retry-After"))
	if response.StatusCode != http.StatusTooManyRequests || wait < 200 || wait > 300 || !strings.Contains(string(body), "A browser that you signed in with before does not have to wait.") {
		t.Errorf("status %d, Retry-After %d s:\n%.500s", response.StatusCode, wait, body)
	}
	signIn(t, a, adminHandle, adminPassword)
	elsewhere := fromElsewhere(a)
	if status, body := tryPassword(t, elsewhere, adminHandle, adminPassword); status != http.StatusSeeOther {
		t.Errorf("somebody else, elsewhere: status %d\n%.500s", status, body)
	}
	time.Sleep(time.Second) // the wait that five wrong passwords make for everybody
	if status, _ := tryPassword(t, fromElsewhere(a), guestHandle, "not the password"); status != http.StatusUnauthorized {
		t.Errorf("from another address nobody is locked out: status %d", status)
	}

	invitation := a.MustGpulab(a.ctx, "user", "passwd", guestHandle)
	link := strings.TrimSpace(invitation[strings.Index(invitation, "https://"):])
	address, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	form = url.Values{"token": {address.Query().Get("token")}, "password": {guestPassword}, "again": {guestPassword}}
	if status, body := sendForm(t, a.HTTPClient(a.ca), address.RequestURI(), "/welcome", form); status != http.StatusSeeOther {
		t.Fatalf("the link for a new password: status %d\n%.500s", status, body)
	}
	signIn(t, a, guestHandle, guestPassword)
	// Somebody who finds the link later.
	form.Set("password", "a password of a thief")
	form.Set("again", "a password of a thief")
	if status, body := sendForm(t, a.HTTPClient(a.ca), "/login", "/welcome", form); status != http.StatusGone || !strings.Contains(body, "used already") {
		t.Errorf("the link a second time: status %d\n%.500s", status, body)
	}
	signIn(t, a, guestHandle, guestPassword)
}

// fromElsewhere returns a client that comes from another address than the
// visitor's computer: the machine's own.
func fromElsewhere(a *appliance) *http.Client {
	client := a.HTTPClient(a.ca)
	client.Transport.(*http.Transport).DialContext = a.DialHost
	return client
}

// signIn returns a client with a session of its own.
func signIn(t *testing.T, a *appliance, handle, password string) *http.Client {
	t.Helper()
	client := a.HTTPClient(a.ca)
	if status, body := tryPassword(t, client, handle, password); status != http.StatusSeeOther {
		t.Fatalf("sign in as %s: status %d\n%.500s", handle, status, body)
	}
	return client
}

// signInBrowser signs somebody in by the form of the lab at an address.
func signInBrowser(b *lab.Browser, address, handle, password string) {
	b.Open(address + "/login")
	b.Fill("Sign-in name", handle)
	b.Fill("Password", password)
	b.Click("form", "Sign in")
	waitHome(b)
}

// createAccount fills in the form of somebody who makes an account of their own.
func createAccount(b *lab.Browser, name, handle, password string) {
	b.CreateAccount(name, handle, password)
}

// choosePassword follows the link that a command has printed.
func choosePassword(b *lab.Browser, printed, password string) {
	b.Open(strings.TrimSpace(printed[strings.Index(printed, "https://"):]))
	b.Fill("Password", password)
	b.Fill("Password once more", password)
	b.Click("form", "Set the password")
	waitHome(b)
}

func waitHome(b *lab.Browser) { b.WaitHome() }

// tryPassword sends the sign-in form as a browser does.
func tryPassword(t *testing.T, client *http.Client, handle, password string) (int, string) {
	t.Helper()
	return sendForm(t, client, "/login", "/login", url.Values{"handle": {handle}, "password": {password}})
}

// sendForm opens a page and sends its form with the values.
func sendForm(t *testing.T, client *http.Client, page, action string, form url.Values) (int, string) {
	t.Helper()
	form.Set("csrf", formToken(t, client, page))
	status, body, _ := request(t, client, "POST", pages+action, form)
	return status, body
}

// formToken reads the token that a page gives its forms.
func formToken(t *testing.T, client *http.Client, page string) string {
	t.Helper()
	_, body, _ := request(t, client, "GET", pages+page, nil)
	token := csrfField.FindStringSubmatch(body)
	if token == nil {
		t.Fatalf("no CSRF token at %s:\n%.500s", page, body)
	}
	return token[1]
}

// request sends one request and returns status, body and Location.
func request(t *testing.T, client *http.Client, method, address string, form url.Values) (int, string, string) {
	t.Helper()
	response := send(t, client, method, address, form)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body), response.Header.Get("Location")
}

// send sends one request; the caller closes the response's body.
func send(t *testing.T, client *http.Client, method, address string, form url.Values) *http.Response {
	t.Helper()
	r, err := http.NewRequest(method, address, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", pages)
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return response
}
