//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// signedIn is a computer that knows the lab by an address and has a token for it.
func signedIn(t *testing.T, a *appliance, at, handle, scope, token string) *laptop {
	t.Helper()
	dir := a.lifeOf.TempDir() // for the chapters after this one, too
	l := &laptop{a: a, dir: dir, login: filepath.Join(dir, "login.json")}
	text, err := json.Marshal(map[string]any{"server": at, "lab": "Class lab", "handle": handle, "scope": scope,
		"ca": string(a.ca), "token": token, "expires": time.Now().Add(time.Hour)})
	if err == nil {
		err = os.WriteFile(l.login, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// tokenOf makes a token for the API.
func tokenOf(t *testing.T, a *appliance, handle, password, scope string) string {
	t.Helper()
	body, err := json.Marshal(map[string]string{
		"handle": handle, "password": password, "name": "laptop", "scope": scope})
	if err != nil {
		t.Fatal(err)
	}
	response, err := a.HTTPClient(a.ca).Post(pages+"/api/v1/tokens", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var made struct{ Secret string }
	if err := json.NewDecoder(response.Body).Decode(&made); err != nil || made.Secret == "" {
		t.Fatalf("no token: %s, %v", response.Status, err)
	}
	return made.Secret
}

// computers are people's own, by their names in the lab. What they do in the lab they do on a command line.
type computers map[string]*laptop

// newComputers signs them in with tokens that the API has made.
func newComputers(t *testing.T, a *appliance, handles ...string) computers {
	t.Helper()
	c := computers{}
	for _, handle := range handles {
		password := studentPassword(handle)
		for _, p := range people {
			if p.Handle == handle {
				password = p.Password
			}
		}
		c[handle] = signedIn(t, a, pages, handle, "launch", tokenOf(t, a, handle, password, "launch"))
	}
	return c
}

// script writes a file there.
func (l *laptop) script(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.WriteFile(filepath.Join(l.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// gpulab runs a command there, and wants an exit code and some words.
func (l *laptop) gpulab(t *testing.T, code int, args []string, words ...string) string {
	t.Helper()
	cmd, said := l.command(args...)
	err := cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("gpulab %v: exit code %d, want %d (%v)\n%s", args, got, code, err, said)
	}
	for _, word := range words {
		if !strings.Contains(said.String(), word) {
			t.Errorf("gpulab %v does not say %q:\n%s", args, word, said)
		}
	}
	return said.String()
}

// start starts a notebook, and waits until it runs.
func (l *laptop) start(t *testing.T, profile, title string) {
	t.Helper()
	l.gpulab(t, 0, []string{"launch", profile, "--title", title, "--wait"})
}

// stop ends a notebook, and waits until it is gone.
func (l *laptop) stop(t *testing.T, title string) {
	t.Helper()
	l.gpulab(t, 0, []string{"stop", title}, title+" is being stopped")
	l.a.eventually(t, title+" is gone", func() bool {
		return !strings.Contains(l.gpulab(t, 0, []string{"ps"}), title)
	})
}

// atOnce does several things at the same time. If one of them fails, the test stops.
func atOnce(t *testing.T, things ...func()) {
	t.Helper()
	var all sync.WaitGroup
	for _, do := range things {
		all.Go(do)
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// nothingLeft: when all has ended, neither Kueue nor Kubernetes knows of any of it.
func (c computers) nothingLeft(t *testing.T, a *appliance) {
	for _, l := range c {
		l.gpulab(t, 0, []string{"stop", "--all"})
	}
	a.eventually(t, "Kueue knows of nothing", func() bool { return strings.TrimSpace(a.workloads(t)) == "" })
	a.eventually(t, "no job has a pod", func() bool {
		return a.MustGpulab(a.ctx, "kubectl", "get", "pods", "-A", "-l", "app.kubernetes.io/component=job", "-o", "name") == ""
	})
}
