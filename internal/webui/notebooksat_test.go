package webui_test

import (
	"context"
	"net/http"
	"net/http/httptest"
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
	pages, err := webui.New(webui.Config{Users: people, Notebooks: books, Machines: apitest.NewMachines(), Environments: apitest.NewEnvironments(t), Fleet: &fakeFleet{}, Status: &fakeStatus{},
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
