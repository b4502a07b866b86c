package notebooks

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/cookies"
)

// TestTwoSessionCookies: with two session cookies nobody is signed in to a notebook or a service, whichever is first.
func TestTwoSessionCookies(t *testing.T) {
	labs := newOrigin(t)
	hello := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }
	labs.notebook("alice", "gpu", hello)
	service, s := labs.door(hello)
	s.change(func() { s.guests = map[int64]bool{2: true} })
	name := cookies.Session + "="
	for _, c := range []struct {
		cookie string
		status int
	}{
		{name + "alice-1", 200}, {name + "alice-1; " + name + "bob-1", 401}, {name + "bob-1; " + name + "alice-1", 401},
		{name + "alice-1; " + name + "dead", 401}, {name + "dead; " + name + "alice-1", 401}, {name + "alice-1; " + name + "alice-1", 401},
		{name + "alice-1; " + strings.ToLower(name) + "bob-1", 200}, {"__Host-gpulab=alice-1", 401},
	} {
		for where, o := range map[string]*origin{"/user/alice/gpu/": labs, "/": service} {
			if got, body := o.get(where, header("Cookie", c.cookie)); got.StatusCode != c.status || (body == "hello") != (c.status == 200) {
				t.Errorf("%s with %q: %d %s, want %d", where, c.cookie, got.StatusCode, body, c.status)
			}
		}
	}
}

// TestSeenBy: which services a session has looked at is known of that session alone.
func TestSeenBy(t *testing.T) {
	labs := newOrigin(t)
	o, _ := labs.door(func(http.ResponseWriter, *http.Request) {})
	o.get("/", cookie("alice-1"), asDocument)
	if got := labs.proxy.SeenBy("s1"); !slices.Equal(got, []int64{7}) {
		t.Errorf("seen are %v", got)
	}
	if got := labs.proxy.SeenBy("s2"); got != nil {
		t.Errorf("another session has seen %v", got)
	}
}

// TestTooManyCookies: a service's script can set more cookies than a request may hold.
func TestTooManyCookies(t *testing.T) {
	labs := newOrigin(t)
	many := cookie("alice-1")
	for range 180 {
		many = func(before change) change {
			return func(r *http.Request) {
				before(r)
				r.Header.Set("Cookie", r.Header.Get("Cookie")+"; a="+strings.Repeat("x", 4000))
			}
		}(many)
	}
	got, body := labs.get("/user/alice/gpu/", many)
	if got.StatusCode != http.StatusRequestHeaderFieldsTooLarge || !strings.Contains(body, "too many cookies") || len(got.Header["Set-Cookie"]) == 0 {
		t.Errorf("%d %s", got.StatusCode, body)
	}
}
