package notebooks

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

func ports(first, last int) (list []int) {
	for p := first; p <= last; p++ {
		list = append(list, p)
	}
	return list
}

// A port belongs to one person forever: over restarts, when the range changes, and
// after the account is gone.
func TestPortsOfNotebooks(t *testing.T) {
	st, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	people := users.New(st.DB())
	var ids []int64
	for _, handle := range []string{"ada", "ben", "cleo", "dan", "eve"} {
		u, err := people.Create(t.Context(), users.NewUser{Handle: handle})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, u.ID)
	}
	busy := map[int]bool{21002: true} // another program's, where the third person's would be
	open := func(list []int) (*Origins, *[]int) {
		o, err := NewOrigins(t.Context(), st.DB(), list, func(p int) bool { return !busy[p] })
		if err != nil {
			t.Fatal(err)
		}
		var opened []int
		o.OnAssigned(func(p int) { opened = append(opened, p) })
		return o, &opened
	}
	want := func(o *Origins, user int64, port int) {
		t.Helper()
		got, err := o.Port(t.Context(), user)
		owner, ok := o.Owner(port)
		if err != nil || got != port || !ok || owner != user {
			t.Errorf("person %d has port %d, %v; port %d is %d's", user, got, err, port, owner)
		}
	}
	o, opened := open(ports(21000, 21003))
	want(o, ids[0], 21000)
	want(o, ids[1], 21001)
	want(o, ids[2], 21003)
	want(o, ids[0], 21000)
	if !slices.Equal(*opened, []int{21000, 21001, 21003}) || !slices.Equal(o.Ports(), *opened) {
		t.Errorf("opened %v of %v", *opened, o.Ports())
	}
	busy[21002] = false
	want(o, ids[3], 21002)
	var told *users.Error
	if _, err := o.Port(t.Context(), ids[4]); !errors.Is(err, ErrNoOrigin) || !errors.As(err, &told) || !strings.Contains(told.Text, "21000 to 21003") || !strings.Contains(told.Text, "notebookPorts") {
		t.Errorf("with no port left: %v", err)
	}
	if _, ok := o.Owner(21004); ok {
		t.Error("a port of no one has an owner")
	}

	if err := people.Remove(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	o, opened = open(ports(20999, 21004)) // longer at both ends: the first would now get the second's
	want(o, ids[1], 21001)
	want(o, ids[4], 21004) // 21003 is taken
	if !slices.Equal(*opened, []int{21004}) {
		t.Errorf("opened %v", *opened)
	}
	if owner, _ := o.Owner(21000); owner != ids[0] {
		t.Errorf("the port of an account that is gone is %d's", owner)
	}

	o, _ = open(ports(23000, 23009)) // elsewhere, and back
	want(o, ids[1], 23001)
	if _, ok := o.Owner(21001); ok {
		t.Error("a port outside of the range is still served")
	}
	o, _ = open(ports(21000, 21009))
	want(o, ids[1], 21001)
}

// Each person's notebooks are an origin: at another person's port nobody gets in, not
// even its visitors to their own notebooks.
func TestOriginOfEachPerson(t *testing.T) {
	o := newOrigin(t)
	o.notebook("alice", "gpu", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Content-Security-Policy", "frame-ancestors *")
		w.Header().Set("X-Frame-Options", "ALLOW-FROM https://evil.example")
		w.WriteHeader(http.StatusOK)
	})
	o.notebook("bob", "gpu", func(http.ResponseWriter, *http.Request) {})
	o.hub(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) })
	at := func(port int, path string, changes ...change) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "https://lab.example"+path, nil)
		for _, c := range changes {
			c(r)
		}
		w := httptest.NewRecorder()
		AtPort(port, o.proxy).ServeHTTP(w, r)
		return w
	}
	for _, c := range []struct {
		port   int
		path   string
		who    string
		status int
	}{
		{21001, "/user/alice/gpu/lab", "alice-1", 200},
		{21002, "/user/bob/gpu/lab", "bob-1", 200},
		{21002, "/user/alice/gpu/lab", "alice-1", 403},
		{21001, "/user/bob/gpu/lab", "bob-1", 403},
		{21001, "/user/alice/gpu/lab", "bob-1", 403},
		{21003, "/user/alice/gpu/lab", "alice-1", 403},
		{21001, "/hub/oauth_callback?code=x&state=y", "alice-1", 400}, // the hub's answer
		{21002, "/hub/oauth_callback?code=x&state=y", "alice-1", 403},
		{21002, "/gpulab/notices", "alice-1", 403},
		{21001, "/service/alice/board/", "alice-1", 404},
	} {
		w := at(c.port, c.path, cookie(c.who))
		if w.Code != c.status {
			t.Errorf("%s at %d as %s: %d, want %d", c.path, c.port, c.who, w.Code, c.status)
		}
		h := w.Header()
		framed := strings.Contains(strings.Join(h.Values("Content-Security-Policy"), ", "), "frame-ancestors 'self'") && h.Get("X-Frame-Options") == "SAMEORIGIN"
		refused := strings.Contains(h.Get("Content-Security-Policy"), "frame-ancestors 'none'") && h.Get("X-Frame-Options") == "DENY"
		if !framed && !refused {
			t.Errorf("%s at %d as %s may be framed: %v", c.path, c.port, c.who, h)
		}
	}
}

// The one port that notebooks had leads on to each person's own, and serves nothing.
func TestFormerOriginOfNotebooks(t *testing.T) {
	o := newOrigin(t)
	o.notebook("alice", "gpu", func(w http.ResponseWriter, _ *http.Request) { t.Error("reached through 8443") })
	o.hub(func(http.ResponseWriter, *http.Request) { t.Error("the hub is reached through 8443") })
	for _, c := range []struct {
		path     string
		changes  []change
		status   int
		refresh  string
		location string
	}{
		{"/user/alice/gpu/lab?x=%20y", []change{cookie("alice-1"), asDocument}, 200, "0; url=https://lab.example:21001/user/alice/gpu/lab?x=%20y", ""},
		{"/user/alice/gpu/lab", []change{cookie("bob-1"), asDocument}, 403, "", ""},
		{"/user/alice/gpu/api/contents", []change{cookie("alice-1")}, 410, "", ""},
		{"/user/alice/gpu/lab", []change{asDocument}, 302, "", "https://lab.example:4443/login?next=%2Fuser%2Falice%2Fgpu%2Flab"},
		{"/hub/oauth_callback?code=x&state=y", []change{cookie("alice-1"), asDocument}, 302, "", "https://lab.example:4443/"},
		{"/hub/oauth_callback?code=x&state=y", []change{cookie("alice-1")}, 404, "", ""},
		{"/gpulab/notices", []change{cookie("alice-1")}, 404, "", ""},
	} {
		got, _ := o.atHubPort(c.path, append(c.changes, func(r *http.Request) { r.Host = "lab.example:8443" })...)
		if got.StatusCode != c.status || got.Header.Get("Refresh") != c.refresh || got.Header.Get("Location") != c.location {
			t.Errorf("%s: %d, refresh %q, location %q", c.path, got.StatusCode, got.Header.Get("Refresh"), got.Header.Get("Location"))
		}
		if !strings.Contains(got.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
			t.Errorf("%s may be framed: %v", c.path, got.Header)
		}
	}
}

// What a page of another origin makes a browser send reaches no notebook; a link may
// be followed. Without Sec-Fetch headers, Origin and Referer decide.
func TestCrossOrigin(t *testing.T) {
	const here, neighbour = "https://lab.example:21001", "https://lab.example:8501"
	for _, c := range []struct {
		method  string
		headers string // name: value, separated by |
		foreign bool
	}{
		{"GET", "Sec-Fetch-Site: same-origin|Sec-Fetch-Mode: cors", false},
		{"GET", "Sec-Fetch-Site: none|Sec-Fetch-Mode: navigate|Sec-Fetch-Dest: document", false},
		{"GET", "Sec-Fetch-Site: same-site|Sec-Fetch-Mode: navigate|Sec-Fetch-Dest: document", false},
		{"GET", "Sec-Fetch-Site: same-site|Sec-Fetch-Mode: navigate|Sec-Fetch-Dest: iframe", true},
		{"GET", "Sec-Fetch-Site: same-site|Sec-Fetch-Mode: no-cors|Sec-Fetch-Dest: script", true},
		{"GET", "Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: cors|Origin: null", true},
		{"GET", "Sec-Fetch-Site: same-origin|Sec-Fetch-Site: same-site", true},
		{"POST", "Sec-Fetch-Site: same-site|Sec-Fetch-Mode: navigate|Sec-Fetch-Dest: document|Origin: " + neighbour, true},
		{"POST", "Sec-Fetch-Site: same-origin|Origin: " + here, false},
		// Safari before 16.4.
		{"GET", "Origin: " + neighbour, true},
		{"GET", "Origin: " + here, false},
		{"POST", "Origin: null", true},
		{"POST", "Origin: " + neighbour, true},
		{"DELETE", "Origin: " + here + "|Origin: " + neighbour, true},
		{"GET", "Referer: " + here + "/user/alice/gpu/lab|Accept: */*", false},
		{"GET", "Referer: " + neighbour + "/|Accept: */*", true},
		{"GET", "Referer: https://lab.example/|Accept: text/html,application/xhtml+xml", false},
		{"POST", "Referer: " + neighbour + "/|Accept: text/html", true},
		// WebSockets always name their origin.
		{"GET", "Connection: Upgrade|Upgrade: websocket|Origin: " + here, false},
		{"GET", "Connection: Upgrade|Upgrade: websocket|Origin: " + neighbour + "|Sec-Fetch-Site: same-origin", true},
		{"GET", "Connection: Upgrade|Upgrade: websocket", true},
		// A program with the session's cookie.
		{"GET", "", false},
		{"POST", "", false},
	} {
		r := httptest.NewRequest(c.method, here+"/user/alice/gpu/api", nil)
		for line := range strings.SplitSeq(c.headers, "|") {
			if name, value, ok := strings.Cut(line, ": "); ok {
				r.Header.Add(name, value)
			}
		}
		if got := crossOrigin(r); got != c.foreign {
			t.Errorf("%s %s: foreign %v", c.method, c.headers, got)
		}
	}
}
