package notebooks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// notebookPods says where one notebook is; its server listens elsewhere than at the usual port.
type notebookPods struct{ pod PodInfo }

func (p *notebookPods) PodFor(handle, server string) (PodInfo, bool) {
	return p.pod, p.pod.Handle == handle && p.pod.Server == server
}
func (p *notebookPods) PodAddress(string) (string, bool) { return "", false }
func (p *notebookPods) HubAddress() (string, bool)       { return "", false }

type fakeTokens struct {
	mu   sync.Mutex
	made []string
}

func (f *fakeTokens) ServerToken(_ context.Context, handle, name string, lasting time.Duration) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made = append(f.made, fmt.Sprintf("%s/%s %s", handle, name, lasting))
	return fmt.Sprintf("token-%d", len(f.made)), nil
}

func TestDoing(t *testing.T) {
	kernels, terminals := `[]`, `[]`
	status := http.StatusOK
	var seen []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization"))
		switch {
		case status != http.StatusOK:
			http.Redirect(w, r, "/elsewhere", status)
		case strings.HasSuffix(r.URL.Path, "/api/kernels"):
			_, _ = w.Write([]byte(kernels))
		case terminals == "":
			http.NotFound(w, r)
		default:
			_, _ = w.Write([]byte(terminals))
		}
	}))
	defer server.Close()
	tokens, pods := &fakeTokens{}, &notebookPods{PodInfo{UID: "one", Handle: "ada", Server: "gpu", IP: "192.0.2.7", Ready: true}}
	j := NewJupyter(tokens, pods)
	at := time.Date(2026, 11, 2, 9, 0, 0, 0, time.UTC)
	j.now = func() time.Time { return at }
	j.client.Transport = &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if address != "192.0.2.7:8888" {
			return nil, errors.New("dialled " + address)
		}
		u, _ := url.Parse(server.URL)
		return (&net.Dialer{}).DialContext(ctx, network, u.Host)
	}}
	ask := func() Doing {
		t.Helper()
		d, err := j.Doing(t.Context(), "ada", "gpu")
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := ask(); d != (Doing{}) {
		t.Errorf("nothing runs, and it does %+v", d)
	}
	if got := strings.Join(seen, ", "); got != "GET /user/ada/gpu/api/kernels token token-1, GET /user/ada/gpu/api/terminals token token-1" {
		t.Errorf("it was asked %s", got)
	}
	kernels = `[{"execution_state": "idle", "last_activity": "2026-11-02T08:00:00.000000Z"}, {"execution_state": "busy", "last_activity": "2026-11-02T08:30:00Z"}]`
	terminals = `[{"name": "1", "last_activity": "2026-11-02T08:10:00Z"}]`
	if d := ask(); !d.KernelBusy || !d.Kernel.Equal(at.Add(-30*time.Minute)) || !d.Terminal.Equal(at.Add(-50*time.Minute)) {
		t.Errorf("it does %+v", d)
	}
	terminals = "" // it has none
	if d := ask(); !d.KernelBusy || !d.Terminal.IsZero() {
		t.Errorf("without terminals it does %+v", d)
	}
	if len(tokens.made) != 1 || tokens.made[0] != "ada/gpu 1h0m0s" {
		t.Errorf("tokens: %v", tokens.made)
	}
	at = at.Add(56 * time.Minute)
	ask()
	pods.pod.UID = "two" // another pod of the name does not get to see an earlier one's token
	ask()
	if len(tokens.made) != 3 {
		t.Errorf("tokens: %v", tokens.made)
	}

	// What a notebook answers leads nowhere, and breaks nothing.
	for _, bad := range []struct {
		status  int
		kernels string
	}{{http.StatusFound, ""}, {http.StatusForbidden, ""}, {http.StatusOK, "no JSON"}, {http.StatusOK, "[" + strings.Repeat(" ", 2<<20) + "]"}} {
		status, kernels = bad.status, bad.kernels
		if d, err := j.Doing(t.Context(), "ada", "gpu"); err == nil {
			t.Errorf("%d %.20q: %+v", bad.status, bad.kernels, d)
		}
	}
	status, kernels = http.StatusOK, "[]"
	ask()
	if len(tokens.made) != 4 {
		t.Errorf("a refused token was not made anew: %v", tokens.made)
	}
	if _, err := j.Doing(t.Context(), "ben", "gpu"); err == nil {
		t.Error("one that does not run does something")
	}
}

func TestServerToken(t *testing.T) {
	var asked string
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := make([]byte, 1000)
		n, _ := r.Body.Read(body)
		asked = r.Method + " " + r.URL.Path + " " + string(body[:n])
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"token": "secret"}`))
	}))
	defer hub.Close()
	h := NewHub(HubConfig{Token: "service", Address: func() (string, bool) { return strings.TrimPrefix(hub.URL, "http://"), true }})
	got, err := h.ServerToken(t.Context(), "ada", "gpu", time.Hour)
	if err != nil || got != "secret" {
		t.Fatalf("%q, %v", got, err)
	}
	if want := `POST /hub/api/users/ada/tokens {"expires_in":3600,"note":"gpulab looks whether the notebook is used","scopes":["access:servers!server=ada/gpu"]}`; asked != want {
		t.Errorf("asked\n%s, want\n%s", asked, want)
	}
}

func TestReadSummary(t *testing.T) {
	got, err := readSummary([]byte(`{"node": {"nodeName": "head"}, "pods": [
		{"podRef": {"name": "jupyter-ada", "uid": "one"}, "cpu": {"time": "2026-11-02T09:00:00Z", "usageNanoCores": 5, "usageCoreNanoSeconds": 1500000000}, "network": {"rxBytes": 100, "txBytes": 23, "interfaces": []}},
		{"podRef": {"uid": "two"}, "containers": [{"name": "notebook", "cpu": {"time": "2026-11-02T09:00:00Z", "usageCoreNanoSeconds": 7}}],
			"ephemeral-storage": {"usedBytes": 4096, "inodesUsed": 140000}},
		{"podRef": {"uid": "three"}, "cpu": {"time": "2026-11-02T09:00:00Z"}},
		{"podRef": {"uid": "four"}}]}`))
	at := time.Date(2026, 11, 2, 9, 0, 0, 0, time.UTC)
	if err != nil || len(got) != 2 || got["one"] != (PodUsage{at, 1500 * time.Millisecond, 123, 0}) || got["two"] != (PodUsage{at, 7, 0, 140000}) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := readSummary([]byte("forbidden")); err == nil {
		t.Error("what is no summary is read")
	}
}
