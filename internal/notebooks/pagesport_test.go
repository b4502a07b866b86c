package notebooks

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/cookies"
)

// visitPages opens a page of gpulab at an address, and returns the browser's cookies afterwards.
func visitPages(t *testing.T, p *Proxy, address, have string, changes ...change) (value string, set bool) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, address, nil)
	asPage(r)
	r.Header.Set("Sec-Fetch-Dest", "document")
	if have != "" {
		r.AddCookie(&http.Cookie{Name: cookies.Port, Value: have})
	}
	for _, c := range changes {
		c(r)
	}
	w := httptest.NewRecorder()
	p.KeepPort(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })).ServeHTTP(w, r)
	if w.Code != http.StatusNoContent {
		t.Fatalf("%s: %d", address, w.Code)
	}
	for _, c := range w.Result().Cookies() {
		if c.Name == cookies.Port {
			value, set = c.Value, true
		}
	}
	return value, set
}

// TestLinksKeepThePort: links lead a visitor who comes by another port, through a tunnel for example, back to that port.
func TestLinksKeepThePort(t *testing.T) {
	o := newOrigin(t)
	o.proxy.cfg.AllowedHost = func(host string) bool { return host == "localhost" || host == "lab.example" || host == "::1" }
	kept, _ := visitPages(t, o.proxy, "https://localhost:9443/", "")
	if !strings.HasPrefix(kept, "9443.") {
		t.Fatalf("the port is kept as %q", kept)
	}
	at := func(path, value string, changes ...change) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "https://localhost:21001"+path, nil)
		asPage(r)
		if value != "" {
			r.AddCookie(&http.Cookie{Name: cookies.Port, Value: value})
		}
		for _, c := range changes {
			c(r)
		}
		w := httptest.NewRecorder()
		AtPort(21001, o.proxy).ServeHTTP(w, r)
		return w
	}
	for path, to := range map[string]string{
		"/hub/home": "/", "/hub/admin": "/", "/gpulab/logout": "/", "/gpulab/authorize?client_id=x": "/oidc/authorize?client_id=x",
		"/gpulab/job?notebook=a": "/jobs?kernel=&notebook=a", "/elsewhere": "/", "/user/alice/gone/": "/?stopped=gone", "/user/alice/No!/": "/",
	} {
		if got := at(path, kept, cookie("alice-1")).Header().Get("Location"); got != "https://localhost:9443"+to {
			t.Errorf("%s leads to %s", path, got)
		}
		if got := at(path, "", cookie("alice-1")).Header().Get("Location"); got != "https://localhost:4443"+to {
			t.Errorf("without a tunnel, %s leads to %s", path, got)
		}
	}
	if got := at("/user/alice/nb/lab", kept).Header().Get("Location"); got != "https://localhost:9443/login?next=%2Fuser%2Falice%2Fnb%2Flab" {
		t.Errorf("an ended session leads to %s", got)
	}
	if got := at("/user/bob/nb/lab", kept, cookie("alice-1")); got.Code != http.StatusForbidden || !strings.Contains(got.Body.String(), `"https://localhost:9443/"`) {
		t.Errorf("a refusal: %d %s", got.Code, got.Body)
	}
	o.door(func(http.ResponseWriter, *http.Request) {})
	r := httptest.NewRequest(http.MethodGet, "https://localhost:8500/", nil)
	asDocument(r)
	r.AddCookie(&http.Cookie{Name: cookies.Port, Value: kept})
	w := httptest.NewRecorder()
	o.proxy.Door(8500).ServeHTTP(w, r)
	if got := w.Header().Get("Location"); got != "https://localhost:9443/login?next=%2Fservice%2Falice%2Fboard%2F" {
		t.Errorf("a service leads who is not signed in to %s", got)
	}
	// A cookie that gpulab has not written, or has written for another name, has no effect.
	other, _ := visitPages(t, o.proxy, "https://lab.example:9443/", "")
	for _, forged := range []string{"9443", "9443.", "9443.AAAA", "8501" + kept[4:], "0" + kept, "+" + kept, "99999" + kept[4:], "evil.example", other} {
		if got := at("/hub/home", forged, cookie("alice-1")).Header().Get("Location"); got != "https://localhost:4443/" {
			t.Errorf("%q leads to %s", forged, got)
		}
	}
	if got := at("/hub/home", kept, cookie("alice-1"), func(r *http.Request) { r.AddCookie(&http.Cookie{Name: cookies.Port, Value: kept}) }).Header().Get("Location"); got != "https://localhost:4443/" {
		t.Errorf("two of them lead to %s", got)
	}
}

func TestWhichPortsAreKept(t *testing.T) {
	o := newOrigin(t)
	o.proxy.cfg.AllowedHost = func(host string) bool { return host == "localhost" || host == "::1" }
	kept, _ := visitPages(t, o.proxy, "https://localhost:9443/", "")
	for name, tc := range map[string]struct {
		address, have string
		edit          change
		want          string // the beginning of the value
		set           bool
	}{
		"the lab's own":             {"https://localhost:4443/", "", nil, "", false},
		"the lab's own, again":      {"https://localhost:4443/", kept, nil, "", true},
		"the same again":            {"https://localhost:9443/gpus", kept, nil, "", false},
		"another":                   {"https://localhost:10443/", kept, nil, "10443.", true},
		"none, as from a proxy":     {"https://localhost/", "", nil, "", false},
		"IPv6":                      {"https://[::1]:9443/", "", nil, "9443.", true},
		"a name that is not ours":   {"https://evil.example:9443/", "", nil, "", false},
		"an impossible one":         {"https://localhost:99999/", "", nil, "", false},
		"a request of a script":     {"https://localhost:9443/events", "", func(r *http.Request) { r.Header.Set("Sec-Fetch-Mode", "cors"); r.Header.Set("Sec-Fetch-Dest", "empty") }, "", false},
		"a page in another's frame": {"https://localhost:9443/", "", func(r *http.Request) { r.Header.Set("Sec-Fetch-Dest", "iframe") }, "", false},
	} {
		var changes []change
		if tc.edit != nil {
			changes = append(changes, tc.edit)
		}
		if value, set := visitPages(t, o.proxy, tc.address, tc.have, changes...); set != tc.set || !strings.HasPrefix(value, tc.want) || tc.want == "" && value != "" {
			t.Errorf("%s: %q, %v", name, value, set)
		}
	}
}
