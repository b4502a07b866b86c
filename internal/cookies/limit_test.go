package cookies

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// server answers "let in" where the limit lets a request through.
func server(t *testing.T, http2 bool) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(Limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "let in over "+r.Proto)
	})))
	Server(srv.Config)
	srv.EnableHTTP2 = http2
	if !http2 {
		srv.TLS = &tls.Config{NextProtos: []string{"http/1.1"}}
	}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

// many are so many cookies as a service's script can set them.
func many(n, size int) string {
	var list []string
	for i := range n {
		name := fmt.Sprintf("c%d", i)
		list = append(list, name+"="+strings.Repeat("x", size-len(name)-1))
	}
	return strings.Join(list, "; ")
}

// As many cookies as a browser sends are answered with a page, and the browser is told to delete them; over HTTP/2
// the connection stays.
func TestTooManyCookies(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		srv := server(t, http2)
		get := func(cookies string) (*http.Response, string) {
			t.Helper()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/jobs/3", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Cookie", cookies)
			response, err := srv.Client().Do(r)
			if err != nil {
				t.Fatalf("%d bytes of cookies, HTTP/2 %v: %v", len(cookies), http2, err)
			}
			body, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			return response, string(body)
		}
		for _, n := range []int{17, 100, 180, 185} {
			response, body := get(many(n, 4096)) //nolint:bodyclose // get closes it
			if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge || !strings.Contains(body, "This browser sends too many cookies") {
				t.Errorf("%d cookies over %s: %d %s", n, response.Proto, response.StatusCode, body)
			}
			lines := response.Header["Set-Cookie"]
			for _, name := range []string{"c0", fmt.Sprintf("c%d", n-1)} {
				for _, path := range []string{"/", "/jobs", "/jobs/", "/jobs/3"} {
					for _, rest := range []string{"Lax", "None; Partitioned"} {
						if want := name + "=; Path=" + path + "; Max-Age=0; Secure; HttpOnly; SameSite=" + rest; !slices.Contains(lines, want) {
							t.Errorf("%d cookies: %s does not go", n, want)
						}
					}
				}
			}
			if got := response.Header.Get("Clear-Site-Data"); got != `"cookies"` {
				t.Errorf("an address clears %q", got)
			}
		}
		//nolint:bodyclose // get closes it
		if response, body := get(many(15, 4096)); response.StatusCode != http.StatusOK || (response.ProtoMajor == 2) != http2 {
			t.Errorf("%d over %s: %s", response.StatusCode, response.Proto, body)
		}
	}
}

// What a host shares with others is cleared at the press of a button that says so, and only from this page.
func TestClearSiteData(t *testing.T) {
	answer := func(method, address, site string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, address, nil)
		r.Header.Set("Cookie", many(20, 4096))
		r.Header.Set("Sec-Fetch-Site", site)
		w := httptest.NewRecorder()
		Limit(http.NotFoundHandler()).ServeHTTP(w, r)
		return w
	}
	for host, alone := range map[string]bool{
		"192.168.1.9": true, "[fd00::1]:8443": true, "gpu-box": true, "lab.local": true, "lab-physics.de": true, "uni.edu": true,
		"lab.cs.uni.edu": false, "gpu.lab-physics.de:8500": false, "box.tailnet.ts.net": false,
	} {
		w := answer(http.MethodGet, "https://"+host+"/", "none")
		if got := w.Header().Get("Clear-Site-Data") != ""; got != alone {
			t.Errorf("%s: cleared: %v, want %v", host, got, alone)
		}
		if got := strings.Contains(w.Body.String(), "<button>"); got == alone {
			t.Errorf("%s: a button: %v", host, got)
		}
	}
	got := answer(http.MethodGet, "https://lab.cs.uni.edu/a", "none")
	if !strings.Contains(got.Body.String(), "Delete the cookies of uni.edu") {
		t.Error(got.Body)
	}
	for _, line := range []string{"c0=; Path=/; Domain=uni.edu; ", "c0=; Path=/; Domain=cs.uni.edu; ", "c19=; Path=/a; Domain=lab.cs.uni.edu; "} {
		if !strings.Contains(strings.Join(got.Header()["Set-Cookie"], "\n"), line) {
			t.Errorf("%s does not go", line)
		}
	}
	for site, want := range map[string]bool{"same-origin": true, "same-site": false, "cross-site": false, "": false} {
		if got := answer(http.MethodPost, "https://lab.cs.uni.edu"+clearPath, site).Header().Get("Clear-Site-Data") != ""; got != want {
			t.Errorf("%q: cleared: %v", site, got)
		}
	}
}

// However many cookies there are, the answer fits what browsers take, and each one brings them fewer.
func TestExpiringFits(t *testing.T) {
	for _, where := range []string{"/", "/user/ada/gpu/lab/tree/a/very/long/way/to/a/notebook.ipynb"} {
		left := map[string]bool{}
		for i := range 180 {
			left[fmt.Sprintf("%d-%s", i, strings.Repeat("n", 4000))] = true
		}
		tries := 0
		for ; len(left) > 15; tries++ {
			if tries == 100 {
				t.Fatalf("%s: %d are left", where, len(left))
			}
			h, r := []string{}, &http.Request{Header: http.Header{}, URL: &url.URL{Path: where}}
			for name := range left {
				h = append(h, name+"=")
			}
			r.Header.Set("Cookie", strings.Join(h, "; "))
			size := 0
			for _, line := range expiringAll(r, "lab.cs.uni.edu", "uni.edu") {
				size += len("set-cookie: ") + len(line)
				name, rest, _ := strings.Cut(line, "=")
				if strings.HasPrefix(rest, "; Path=/; Max-Age") {
					delete(left, name)
				}
			}
			if size > 200<<10 {
				t.Fatalf("%d bytes", size)
			}
		}
		t.Logf("%s: %d answers", where, tries)
	}
}

// A request that is too large without cookies is told so.
func TestTooLarge(t *testing.T) {
	w := httptest.NewRecorder()
	Limit(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "https://lab.example/"+strings.Repeat("a", Most), nil))
	if w.Code != http.StatusRequestHeaderFieldsTooLarge || !strings.Contains(w.Body.String(), "This request is too large") || w.Header()["Set-Cookie"] != nil {
		t.Error(w.Code, w.Body)
	}
}

// A long link on any page of the web signs nobody out.
func TestLongLinkSignsNobodyOut(t *testing.T) {
	for _, length := range []int{Most - 100, 2 * Most} {
		r := httptest.NewRequest(http.MethodGet, "https://192.0.2.7/login?next="+strings.Repeat("a", length), nil)
		r.Header.Set("Cookie", Session+"="+strings.Repeat("s", 100)+"; theme=dark")
		w := httptest.NewRecorder()
		Limit(http.NotFoundHandler()).ServeHTTP(w, r)
		if w.Code != http.StatusRequestHeaderFieldsTooLarge || !strings.Contains(w.Body.String(), "This request is too large") ||
			w.Header()["Set-Cookie"] != nil || w.Header().Get("Clear-Site-Data") != "" {
			t.Errorf("%d bytes: %d %q", length, w.Code, w.Header())
		}
	}
}
