package webui_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/users"
)

// laptop asks for a token as a program does.
func laptop(t *testing.T, l *lab, remote string) users.DeviceCode {
	t.Helper()
	made, err := l.users.AskDevice(t.Context(), users.DeviceAsk{Client: "<b>ben’s laptop</b>", Scope: users.ScopeFull, Days: 7, Remote: remote})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestDevicePage(t *testing.T) {
	l := newLab(t)
	made := laptop(t, l, "10.20.30.40")
	path := "/device?code=" + made.UserCode
	stranger := l.client(t, "").get(path)
	stranger.want(t, http.StatusSeeOther)
	if to := stranger.header.Get("Location"); to != "/login?next="+url.QueryEscape(path) {
		t.Errorf("a stranger is sent to %q", to)
	}
	c := l.client(t, "ben")
	c.get("/device").want(t, http.StatusOK, "Type it here")
	page := c.get(path)
	page.want(t, http.StatusOK, made.UserCode, "&lt;b&gt;ben’s laptop&lt;/b&gt;", "10.20.30.40", "everything that your role may", "7 days", "This browser is at", "just now?")
	if strings.Contains(page.body, made.Code) {
		t.Error("the page holds the program's secret")
	}
	c.get("/device?code=BCDFGHJK").want(t, http.StatusNotFound, "No program waits", `value="BCDFGHJK"`)
	c.post(path, "/device", url.Values{"code": {made.UserCode}}).want(t, http.StatusBadRequest)
	if _, _, _, err := l.users.DeviceToken(t.Context(), made.Code, ""); !errors.Is(err, users.ErrDevicePending) {
		t.Fatalf("before it is allowed: %v", err)
	}
	c.post(path, "/device", url.Values{"code": {made.UserCode}, "decision": {"allow"}}).want(t, http.StatusOK, "It is let in", "Go back to the terminal")
	c.post("/device", "/device", url.Values{"code": {made.UserCode}, "decision": {"deny"}}).want(t, http.StatusNotFound)
	secret, token, user, err := l.users.DeviceToken(t.Context(), made.Code, "10.20.30.40")
	if err != nil || user.Handle != "ben" || token.Scope != users.ScopeFull {
		t.Fatalf("%+v for %s, %v", token, user.Handle, err)
	}
	c.get("/account").want(t, http.StatusOK, "&lt;b&gt;ben’s laptop&lt;/b&gt;")
	if log := fmt.Sprint(l.users.audit(t)); !strings.Contains(log, "device.confirm") || !strings.Contains(log, "token.create") || strings.Contains(log, secret) {
		t.Errorf("the log: %s", log)
	}

	denied := laptop(t, l, "127.0.0.1")
	path = "/device?code=" + strings.ToLower(strings.ReplaceAll(denied.UserCode, "-", ""))
	if strings.Contains(c.get(path).body, "This browser is at") {
		t.Error("the same address is called another one")
	}
	c.post(path, "/device", url.Values{"code": {denied.UserCode}, "decision": {"deny"}}).want(t, http.StatusOK, "It is kept out")
	if _, _, _, err := l.users.DeviceToken(t.Context(), denied.Code, ""); !errors.Is(err, users.ErrDeviceDenied) {
		t.Errorf("denied: %v", err)
	}
}

func TestGuessedDeviceCodes(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ben")
	for tries := 0; ; tries++ {
		got := c.get("/device?code=BCDFGHJK")
		if got.status == http.StatusTooManyRequests {
			if got.header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
			return
		}
		got.want(t, http.StatusNotFound)
		if tries > 20 {
			t.Fatal("codes may be guessed without end")
		}
	}
}
