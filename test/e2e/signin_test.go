//go:build e2e

package e2e

import (
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

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
	t.Run("wrong password 20 times", func(t *testing.T) {
		client := a.HTTPClient(a.ca)
		var status int
		var body string
		for range 20 {
			status, body = tryPassword(t, client, guestHandle, "not the password")
		}
		if status != http.StatusTooManyRequests {
			t.Errorf("the 20th wrong password: status %d\n%.500s", status, body)
		}
	})
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

// tryPassword sends the sign-in form as a browser does.
func tryPassword(t *testing.T, client *http.Client, handle, password string) (int, string) {
	t.Helper()
	_, page, _ := request(t, client, "GET", pages+"/login", nil)
	token := csrfField.FindStringSubmatch(page)
	if token == nil {
		t.Fatalf("no CSRF token in the sign-in page:\n%.500s", page)
	}
	status, body, _ := request(t, client, "POST", pages+"/login", url.Values{"csrf": {token[1]}, "handle": {handle}, "password": {password}})
	return status, body
}

// request sends one request and returns status, body and Location.
func request(t *testing.T, client *http.Client, method, address string, form url.Values) (int, string, string) {
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
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body), response.Header.Get("Location")
}
