package users

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
)

func laptop(remote string) DeviceAsk {
	return DeviceAsk{Client: "laptop (Linux)", Scope: ScopeLaunch, Days: 30, Remote: remote}
}

// TestDeviceCode: a program gets a token once somebody has confirmed its code, once and for the account that confirmed.
func TestDeviceCode(t *testing.T) {
	l, _ := newTest(t)
	ada := create(t, l, "ada", RoleMember)
	made, err := l.AskDevice(t.Context(), laptop("10.0.0.9"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := l.DeviceToken(t.Context(), made.Code, "10.0.0.9"); !errors.Is(err, ErrDevicePending) {
		t.Fatalf("before: %v", err)
	}
	var limited *RateError
	if _, _, _, err := l.DeviceToken(t.Context(), made.Code, "10.0.0.9"); !errors.As(err, &limited) {
		t.Errorf("again at once: %v", err)
	}
	typed := strings.ToLower(strings.ReplaceAll(made.UserCode, "-", " "))
	d, err := l.DeviceRequest(t.Context(), ada, typed)
	if err != nil || d.Client != "laptop (Linux)" || d.Remote != "10.0.0.9" || d.Scope != ScopeLaunch || d.Days != 30 || d.UserCode != made.UserCode {
		t.Fatalf("%+v, %v", d, err)
	}
	if _, err := l.DecideDevice(t.Context(), ada, typed, true, "10.0.0.7"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.DecideDevice(t.Context(), ada, typed, false, "10.0.0.7"); !errors.Is(err, ErrDeviceUnknown) {
		t.Errorf("decided twice: %v", err)
	}
	// Of many who ask at once with the code, one gets the token.
	var wait sync.WaitGroup
	var mu sync.Mutex
	var secrets []string
	for range 8 {
		wait.Go(func() {
			secret, token, u, err := l.DeviceToken(t.Context(), made.Code, "10.0.0.9")
			if err != nil {
				if !errors.Is(err, ErrDeviceUnknown) {
					t.Errorf("the others: %v", err)
				}
				return
			}
			if u.Handle != "ada" || token.Scope != ScopeLaunch || token.Expires.Sub(token.Created) != 30*24*time.Hour {
				t.Errorf("%+v for %s", token, u.Handle)
			}
			mu.Lock()
			defer mu.Unlock()
			secrets = append(secrets, secret)
		})
	}
	wait.Wait()
	if len(secrets) != 1 {
		t.Fatalf("%d tokens", len(secrets))
	}
	who, _, err := l.TokenUser(t.Context(), secrets[0], "10.0.0.9", true)
	if err != nil || who.Handle != "ada" || !who.May(ActionLaunch, ada.ID) || who.May(ActionOwnAccount, ada.ID) {
		t.Errorf("the token is of %+v, %v", who, err)
	}
	text := ""
	log, err := l.AuditLog().List(t.Context(), audit.Filter{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range log {
		text += e.Actor + " " + e.Action + " " + e.Detail + " " + e.Remote + "\n"
	}
	for _, want := range []string{`ada device.confirm "laptop (Linux)" from 10.0.0.9, scope launch, 30 days 10.0.0.7`, `ada token.create token 1 for "laptop (Linux)"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the log lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, secrets[0]) || strings.Contains(text, made.Code) {
		t.Error("the log holds a secret")
	}
}

func TestDeviceCodeEnds(t *testing.T) {
	l, clock := newTest(t)
	ada := create(t, l, "ada", RoleMember)
	ask := func() DeviceCode {
		t.Helper()
		made, err := l.AskDevice(t.Context(), laptop("10.0.0.9"))
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	confirm := func(made DeviceCode) {
		t.Helper()
		if _, err := l.DecideDevice(t.Context(), ada, made.UserCode, true, ""); err != nil {
			t.Fatal(err)
		}
	}
	gets := func(made DeviceCode, want error, what string) {
		t.Helper()
		if _, _, _, err := l.DeviceToken(t.Context(), made.Code, ""); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	denied := ask()
	if _, err := l.DecideDevice(t.Context(), ada, denied.UserCode, false, ""); err != nil {
		t.Fatal(err)
	}
	gets(denied, ErrDeviceDenied, "denied")
	gets(denied, ErrDeviceUnknown, "denied, once more")

	old := ask()
	clock.add(DeviceTTL)
	if _, err := l.DeviceRequest(t.Context(), ada, old.UserCode); !errors.Is(err, ErrDeviceUnknown) {
		t.Errorf("too old: %v", err)
	}
	gets(old, ErrDeviceUnknown, "too old")
	late := ask()
	confirm(late)
	clock.add(DeviceTTL)
	gets(late, ErrDeviceUnknown, "confirmed and fetched too late")

	for what, end := range map[string]func() error{
		"tokens revoked": func() error { _, err := l.RevokeTokens(t.Context(), ada.ID); return err },
		"new password":   func() error { return l.SetPassword(t.Context(), ada.ID, "seven grey boats on a lake") },
		"suspended": func() error {
			return errors.Join(l.Suspend(t.Context(), ada.ID), l.Resume(t.Context(), ada.ID))
		},
		"removed": func() error {
			return errors.Join(l.Remove(t.Context(), ada.ID), l.Undelete(t.Context(), ada.ID))
		},
	} {
		made := ask()
		confirm(made)
		if err := end(); err != nil {
			t.Fatal(err)
		}
		gets(made, ErrDeviceUnknown, what)
	}
	gets(DeviceCode{Code: "guessed"}, ErrDeviceUnknown, "a guess")
	if err := l.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestDeviceCodeLimits(t *testing.T) {
	l, _ := newTest(t)
	ada, ben := create(t, l, "ada", RoleMember), create(t, l, "ben", RoleMember)
	for _, wrong := range []DeviceAsk{
		{Client: "", Scope: ScopeRead, Days: 30}, {Client: strings.Repeat("x", 61), Scope: ScopeRead, Days: 30}, {Client: "a\x1b[2Jb", Scope: ScopeRead, Days: 30},
		{Client: "x", Scope: "root", Days: 30}, {Client: "x", Scope: ScopeRead, Days: 31}, {Client: "x", Scope: ScopeRead},
	} {
		if _, err := l.AskDevice(t.Context(), wrong); !errors.Is(err, ErrTokenInvalid) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	made, err := l.AskDevice(t.Context(), laptop("10.0.0.9"))
	if err != nil {
		t.Fatal(err)
	}
	var limited *RateError
	tries := 0
	for ; tries < 100; tries++ {
		if _, err := l.DeviceRequest(t.Context(), ada, "BCDF-GHJK"); errors.As(err, &limited) {
			break
		}
	}
	if tries > knownPolicy.free {
		t.Errorf("%d codes may be guessed in a row", tries)
	}
	if _, err := l.DeviceRequest(t.Context(), ada, made.UserCode); !errors.As(err, &limited) {
		t.Errorf("the right one while others have to wait: %v", err)
	}
	for range 30 { // right ones cost nothing
		if _, err := l.DeviceRequest(t.Context(), ben, made.UserCode); err != nil {
			t.Fatal(err)
		}
	}
	asked := 0
	for ; asked < 1000; asked++ {
		if _, err := l.AskDevice(t.Context(), laptop("10.0.0.66")); errors.As(err, &limited) {
			break
		}
	}
	if asked > devicePolicy.free {
		t.Errorf("one address asks %d times in a row", asked)
	}
	for i := 0; ; i++ {
		_, err := l.AskDevice(t.Context(), laptop("10.1."+string(rune('0'+i/200))+"."+string(rune('0'+i/20%10))))
		if errors.As(err, &limited) {
			break
		}
		if err != nil || i > 2*maxDevices {
			t.Fatalf("after %d: %v", i, err)
		}
	}
}

func TestUserCodes(t *testing.T) {
	seen := map[string]bool{}
	for range 200 {
		code := newUserCode()
		if len(code) != 9 || code[4] != '-' || plainUserCode(code) != code || seen[code] {
			t.Fatalf("%q", code)
		}
		seen[code] = true
	}
	for typed, want := range map[string]string{"bcdfghjk": "BCDF-GHJK", " BCDF - GHJK ": "BCDF-GHJK", "BCDF-GHJ": "", "BCDF-GHJKL": "", "": "", strings.Repeat("B", 1000): ""} {
		if got := plainUserCode(typed); got != want {
			t.Errorf("%.20q: %q, want %q", typed, got, want)
		}
	}
}
