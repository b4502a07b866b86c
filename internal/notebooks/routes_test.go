package notebooks

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func apiCall(h http.Handler, method, target, token, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	if token != "" {
		r.Header.Set("Authorization", "token "+token)
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec
}

func testAPI(t *testing.T, file string) (*Proxy, http.Handler) {
	t.Helper()
	p, err := NewProxy(ProxyConfig{Sessions: &sessionsByCookie{}, Pods: &podsByHand{}, AuthToken: testToken, Origins: portsByID{}, RoutesFile: file})
	if err != nil {
		t.Fatal(err)
	}
	return p, p.RoutesAPI()
}

func TestRoutesAPI(t *testing.T) {
	_, api := testAPI(t, "")
	for _, c := range []struct {
		name, method, path, token, body string
		status                          int
		text                            string
	}{
		{"no token", "GET", "/api/routes", "", "", 403, ""},
		{"wrong token", "GET", "/api/routes", "proxy-toke", "", 403, ""},
		{"wrong token learns nothing of a route", "DELETE", "/api/routes/user/a/b", "x", "", 403, ""},
		{"empty table", "GET", "/api/routes", testToken, "", 200, "{}"},
		{"empty table, slash", "GET", "/api/routes/", testToken, "", 200, "{}"},
		{"missing route", "GET", "/api/routes/user/a/b", testToken, "", 404, ""},
		{"delete of a missing route", "DELETE", "/api/routes/user/a/b", testToken, "", 404, ""},
		{"no target", "POST", "/api/routes/user/a/b", testToken, `{"jupyterhub":true}`, 400, "Must specify 'target' as string"},
		{"target is a number", "POST", "/api/routes/user/a/b", testToken, `{"target":1}`, 400, "Must specify 'target' as string"},
		{"target is null", "POST", "/api/routes/user/a/b", testToken, `{"target":null}`, 400, "Must specify 'target' as string"},
		{"no object", "POST", "/api/routes/user/a/b", testToken, `[1]`, 400, "Must specify 'target' as string"},
		{"null", "POST", "/api/routes/user/a/b", testToken, `null`, 400, "Must specify 'target' as string"},
		{"no JSON", "POST", "/api/routes/user/a/b", testToken, `{"target":`, 400, "Body not valid JSON"},
		{"too long", "POST", "/api/routes/user/a/b", testToken, `{"target":"` + strings.Repeat("x", maxRouteBody) + `"}`, 400, "Body could not be read"},
		{"other method", "PUT", "/api/routes/user/a/b", testToken, `{}`, 405, "Method not supported"},
		{"other path", "GET", "/api/other", testToken, "", 404, "Not Found"},
		{"path that only begins alike", "GET", "/api/routesx", testToken, "", 404, "Not Found"},
		{"add", "POST", "/hub-proxy/api/routes/user/a/b", testToken, `{"target":"http://x","jupyterhub":true,"user":"a","server_name":"b"}`, 201, ""},
		{"bad date", "GET", "/api/routes?inactiveSince=yesterday", testToken, "", 400, "Invalid datestamp 'yesterday' must be ISO8601."},
		{"bad date, old spelling", "GET", "/api/routes?inactive_since=endoftheuniverse", testToken, "", 400, "Invalid datestamp 'endoftheuniverse' must be ISO8601."},
		{"inactive since long ago", "GET", "/api/routes?inactiveSince=2001-01-01T00:00:00Z", testToken, "", 200, "{}"},
		{"delete", "DELETE", "/api/routes/user/a/b/", testToken, "", 204, ""},
		{"gone", "GET", "/api/routes/user/a/b", testToken, "", 404, ""},
	} {
		rec := apiCall(api, c.method, c.path, c.token, c.body)
		if rec.Code != c.status || c.text != "" && rec.Body.String() != c.text {
			t.Errorf("%s: got %d %q, want %d %q", c.name, rec.Code, rec.Body, c.status, c.text)
		}
	}
}

func TestRoutesAPIKeepsNoConnection(t *testing.T) {
	_, h := testAPI(t, "")
	if got := apiCall(h, "GET", "/api/routes", testToken, "").Header().Get("Connection"); got != "close" {
		t.Errorf("Connection: %q: after a change of address the hub would go on using it", got)
	}
}

func TestRoutesKeepWhatTheHubSent(t *testing.T) {
	_, api := testAPI(t, "")
	add := func(path, body string) {
		t.Helper()
		if rec := apiCall(api, "POST", "/api/routes"+path, testToken, body); rec.Code != 201 {
			t.Fatalf("%s: %d %s", path, rec.Code, rec.Body)
		}
	}
	add("/", `{"target":"http://hub:8081","jupyterhub":true,"hub":true}`)
	add("/has%20space/%40/", `{"target":"http://x","jupyterhub":true,"user":"a","server_name":"b","last_activity":"never","n":12345678901234567890}`)
	before := time.Now().Add(-time.Minute)
	var all map[string]map[string]any
	rec := apiCall(api, "GET", "/api/routes", testToken, "")
	if err := json.Unmarshal(rec.Body.Bytes(), &all); err != nil {
		t.Fatal(err)
	}
	got := all["/has space/@"]
	if len(all) != 2 || got["target"] != "http://x" || got["user"] != "a" || got["server_name"] != "b" || got["jupyterhub"] != true || all["/"]["hub"] != true {
		t.Errorf("table: %s", rec.Body)
	}
	if !strings.Contains(rec.Body.String(), `"n":12345678901234567890`) {
		t.Errorf("a number changed: %s", rec.Body)
	}
	last, err := time.Parse(time.RFC3339, got["last_activity"].(string))
	if err != nil || last.Before(before) {
		t.Errorf("last_activity: %v %v", got["last_activity"], err)
	}
	one := apiCall(api, "GET", "/api/routes/has%20space/@", testToken, "")
	if one.Code != 200 || !strings.Contains(one.Body.String(), `"target":"http://x"`) || one.Header().Get("Content-Type") != "application/json" {
		t.Errorf("single route: %d %s", one.Code, one.Body)
	}
	soon := apiCall(api, "GET", "/api/routes?inactiveSince="+url.QueryEscape(time.Now().Add(time.Hour).Format(time.RFC3339)), testToken, "")
	if soon.Body.String() == "{}" {
		t.Error("inactive routes are missing")
	}
	if rec := apiCall(api, "DELETE", "/api/routes/", testToken, ""); rec.Code != 204 {
		t.Errorf("delete of the hub's route: %d", rec.Code)
	}
}

func TestRoutesOutliveGpulabButNotABoot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "routes.json")
	first, api := testAPI(t, file)
	apiCall(api, "POST", "/api/routes/user/alice/gpu", testToken, `{"target":"http://x","jupyterhub":true}`)
	apiCall(api, "POST", "/api/routes/user/alice/old", testToken, `{"target":"http://x","jupyterhub":true}`)
	apiCall(api, "DELETE", "/api/routes/user/alice/old", testToken, "")
	if !first.HasServer("alice", "gpu") {
		t.Fatal("not added")
	}
	if second, _ := testAPI(t, file); !second.HasServer("alice", "gpu") || second.HasServer("alice", "old") {
		t.Error("routes were not taken up as they were")
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(b), bootID(), "earlier", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if third, _ := testAPI(t, file); third.HasServer("alice", "gpu") {
		t.Error("a route of an earlier boot was taken up")
	}
	if err := os.WriteFile(file, []byte(`{"boot":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if fourth, api := testAPI(t, file); fourth.HasServer("alice", "gpu") {
		t.Error("routes out of a damaged file")
	} else if rec := apiCall(api, "POST", "/api/routes/user/alice/gpu", testToken, `{"target":"http://x"}`); rec.Code != 201 {
		t.Errorf("a damaged file stops new routes: %d", rec.Code)
	}
}

func TestRouteSentAgainKeepsItsTraffic(t *testing.T) {
	p, api := testAPI(t, "")
	post := func() {
		apiCall(api, "POST", "/api/routes/user/alice/gpu", testToken, `{"target":"http://x","jupyterhub":true}`)
	}
	post()
	before, _ := p.table.server("alice", "gpu")
	post()
	before.out.Add(7) // a WebSocket that began before
	if got, ok := p.Traffic("alice", "gpu"); !ok || got.Out != 7 {
		t.Errorf("traffic: %+v", got)
	}
}

func TestProxyNeedsAToken(t *testing.T) {
	if _, err := NewProxy(ProxyConfig{Sessions: &sessionsByCookie{}, Pods: &podsByHand{}, Origins: portsByID{}}); err == nil {
		t.Error("a proxy without a token would obey everybody")
	}
}
