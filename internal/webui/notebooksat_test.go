package webui_test

import (
	"cmp"
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/api/apitest"
	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webui"
)

// The script of a page may ask the visitor's own notebooks, wherever they are for who came by this name.
func TestPageNamesNotebooks(t *testing.T) {
	people, books := newUsers(t), &fakeNotebooks{}
	quotas, files := newQuotas(t, people, books)
	pages, err := webui.New(webui.Config{Users: people, Audit: people.AuditLog(), Notebooks: books,
		Machines: apitest.NewMachines(), Environments: apitest.NewEnvironments(t), Fleet: &fakeFleet{}, Status: &fakeStatus{},
		History: &fakeHistory{}, Quotas: quotas, Storage: files, LendGPU: (&fakeLending{}).set, CheckGPU: func(context.Context) (string, error) { return "", nil },
		NotebooksAt: func(_ context.Context, host string, _ int64) (string, error) { return "n21042." + host, nil }})
	if err != nil {
		t.Fatal(err)
	}
	ada, err := people.ByHandle(t.Context(), "ada")
	if err != nil {
		t.Fatal(err)
	}
	token, err := people.StartSession(t.Context(), ada.ID, users.SessionMeta{})
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"lab.example.org", "lab.example.org:4443"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+host+"/account", nil)
		r.AddCookie(&http.Cookie{Name: cookies.Session, Value: token})
		w := httptest.NewRecorder()
		pages.ServeHTTP(w, r)
		if policy := w.Header().Get("Content-Security-Policy"); w.Code != http.StatusOK || !strings.Contains(policy, "connect-src 'self' https://n21042.lab.example.org wss://n21042.lab.example.org;") {
			t.Errorf("%s: %d, policy %s", host, w.Code, policy)
		}
		if !strings.Contains(w.Body.String(), `data-notebooks="n21042.lab.example.org"`) {
			t.Errorf("%s: the page does not name the notebooks", host)
		}
	}
}

// Pages tell visitors who come by another port than the lab's own which further ports to forward.
func TestPageNamesPortsToForward(t *testing.T) {
	at := "" // of notebooks
	l := newLabWith(t, func(c *webui.Config) {
		c.HTTPSPort, c.HubPort = 443, 8443
		c.NotebooksAt = func(_ context.Context, host string, _ int64) (string, error) {
			return cmp.Or(at, host+":21000"), nil
		}
	})
	ben := l.client(t, "ben")
	page := ben.post("/services", "/services", url.Values{"command": {"python app.py"}, "name": {"demo"}, "port": {"7860"}, "share": {"private"}, "stop-after": {"12h"}}).header.Get("Location")
	token := l.session(t, "ben")
	open := func(host, path string) string {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+host+path, nil)
		r.AddCookie(&http.Cookie{Name: cookies.Session, Value: token})
		w := httptest.NewRecorder()
		l.pages.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			t.Fatalf("%s%s: %d", host, path, w.Code)
		}
		return w.Body.String()
	}
	const sentence, notebooks = "You reach the lab through a forwarded port", "ssh -L 21000:LAB:21000"
	for host, forwarded := range map[string]bool{"lab.example": false, "lab.example:9443": true, "localhost": true, "127.0.0.1:9443": true, "[::1]:9443": true} {
		if got := open(host, "/account"); strings.Contains(got, sentence) != forwarded || strings.Contains(got, notebooks) != forwarded {
			t.Errorf("%s: a page says it: %v", host, !forwarded)
		}
		service := "https://lab.example:8443/service/ben/"
		if forwarded {
			service = "https://" + host + "/service/ben/"
		}
		if got := open(host, page); !strings.Contains(got, `href="`+service) || strings.Contains(got, "The service answers at port") != forwarded {
			t.Errorf("%s: the service is not at %s", host, service)
		}
	}
	// With a wildcard name, notebooks are at the lab's own port.
	at = "n21000.lab.example"
	if got := open("lab.example:9443", "/account"); !strings.Contains(got, "ssh -L 443:LAB:443") {
		t.Error("with a wildcard name, a page does not name the port to forward")
	}
	for _, host := range []string{"localhost:9443", "[::1]:9443"} {
		if got := open(host, "/api"); !strings.Contains(got, "https://"+host) {
			t.Errorf("%s: the page about the API has another address", host)
		}
	}
}
