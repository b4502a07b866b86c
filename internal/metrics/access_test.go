package metrics

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

func TestAccess(t *testing.T) {
	access := Access{
		Token:    "s3cret",
		Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")},
		Except:   []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")},
		Admin:    func(r *http.Request) bool { _, err := r.Cookie("admin"); return err == nil },
	}
	const far = "192.0.2.7:4000"
	for _, c := range []struct {
		name, from, authorization string
		headers                   map[string]string
		want                      int
	}{
		{"nothing", far, "", nil, 401},
		{"the token", far, "Bearer s3cret", nil, 200},
		{"the token, however the scheme is written", far, "bearer  s3cret", nil, 200},
		{"a wrong token", far, "Bearer s3cres", nil, 401},
		{"a longer token", far, "Bearer s3cret2", nil, 401},
		{"the beginning of the token", far, "Bearer s3cre", nil, 401},
		{"an empty token", far, "Bearer ", nil, 401},
		{"no scheme", far, "s3cret", nil, 401},
		{"another scheme", far, "Basic s3cret", nil, 401},
		{"a near machine", "10.1.2.3:5000", "", nil, 200},
		{"a near machine with a wrong token", "10.1.2.3:5000", "Bearer no", nil, 200},
		{"a near machine as IPv6 writes it", "[::ffff:10.1.2.3]:5000", "", nil, 200},
		{"a near machine of IPv6", "[fd00::1]:5000", "", nil, 200},
		{"a pod in a near network", "10.42.0.9:5000", "", nil, 401},
		{"a pod with the token", "10.42.0.9:5000", "Bearer s3cret", nil, 200},
		{"a far machine that claims to be near", far, "", map[string]string{"X-Forwarded-For": "10.1.2.3", "Forwarded": "for=10.1.2.3", "X-Real-Ip": "10.1.2.3"}, 401},
		{"no address", "", "", nil, 401},
		{"an administrator's browser", far, "", map[string]string{"Cookie": "admin=1"}, 200},
	} {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.RemoteAddr = c.from
		if c.authorization != "" {
			r.Header.Set("Authorization", c.authorization)
		}
		for name, value := range c.headers {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		access.Guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("secret figures")) })).ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s: %d, want %d", c.name, w.Code, c.want)
		}
		body := w.Body.String()
		if w.Code == http.StatusUnauthorized {
			if strings.Count(body, "\n") != 1 || strings.Contains(body, "s3cret") || strings.Contains(body, "figures") {
				t.Errorf("%s: the refusal is %q", c.name, body)
			}
			if !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer ") {
				t.Errorf("%s: the refusal does not say what is wanted: %v", c.name, w.Header())
			}
		}
	}
}

// A lab whose token could not be read lets nobody in with an empty one.
func TestNoTokenIsNoEntrance(t *testing.T) {
	for _, header := range []string{"Bearer ", "Bearer", "Bearer x", ""} {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Authorization", header)
		w := httptest.NewRecorder()
		Access{}.Guard(http.NotFoundHandler()).ServeHTTP(w, r)
		if w.Code != http.StatusUnauthorized {
			t.Errorf("%q: %d", header, w.Code)
		}
	}
}
