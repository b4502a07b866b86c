package main

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webca"
)

// atPlace is a lab that has just been started at an address, "" for none.
func atPlace(t *testing.T, dir, address string) *appliance {
	t.Helper()
	cfg, err := loadConfig(writeConfig(t, "lab: Moving"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.DataDir = dir
	l := &appliance{cfg: cfg, boot: newBoot("1", "x", stageAddress), pages: newSwitchHandler()}
	if l.store, err = store.Open(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.store.Close() })
	l.people = users.New(l.store.DB())
	if l.origins, err = notebooks.NewOrigins(t.Context(), l.store.DB(), []int{21000, 21999}, func(int) bool { return true }); err != nil {
		t.Fatal(err)
	}
	here := &place{iface: "eth0"}
	if address != "" {
		here.address = netip.MustParseAddr(address)
		here.all = []netip.Addr{here.address}
	}
	l.where.Store(here)
	if err := l.loadFormer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.newTailnet(); err != nil {
		t.Fatal(err)
	}
	if l.certs, err = webca.Ensure(dir+"/tls", l.certNames()); err != nil {
		t.Fatal(err)
	}
	return l
}

// to is where a request goes on to, "" for where it is.
func (l *appliance) to(method, url string) string {
	w, r := httptest.NewRecorder(), httptest.NewRequest(method, url, nil)
	r.TLS = &tls.ConnectionState{}
	r.Header.Set("Accept", "text/html")
	l.starting(l.pages).ServeHTTP(w, r)
	if w.Code == http.StatusServiceUnavailable {
		return ""
	}
	return w.Header().Get("Location")
}

// TestFormerAddresses: a machine that has moved, while it ran, while it was off,
// or while it was offline, says to whom comes by an old address where to go.
func TestFormerAddresses(t *testing.T) {
	dir := t.TempDir()
	l := atPlace(t, dir, "192.168.1.20")
	if moved, _ := l.elsewhere("192.168.1.20"); moved != "" {
		t.Errorf("at home it sends people to %s", moved)
	}
	if got := l.to("GET", "https://192.168.1.20/setup?token=abc"); got != "" {
		t.Errorf("at home a link leads to %s", got)
	}
	_ = l.store.Close()

	l = atPlace(t, dir, "") // on the way
	if got := l.url(); got != "https://localhost" {
		t.Errorf("offline it is at %s", got)
	}
	_ = l.store.Close()

	l = atPlace(t, dir, "10.0.0.7") // another Wi-Fi
	if moved, others := l.elsewhere("192.168.1.20"); moved != "https://10.0.0.7" || !slices.Contains(others, "https://10.0.0.7") {
		t.Errorf("who comes by the old address is sent to %q, or %v", moved, others)
	}
	for _, name := range []string{"localhost", "127.0.0.1", "svc"} {
		if _, others := l.elsewhere("10.0.0.7"); strings.Contains(strings.Join(others, " "), name) {
			t.Errorf("other ways in: %v", others)
		}
	}
	ada, err := l.people.Create(t.Context(), users.NewUser{Handle: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.origins.Port(t.Context(), ada.ID); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ method, url, want string }{
		{"GET", "https://192.168.1.20:21000/user/ada/work/lab", "https://10.0.0.7:21000/user/ada/work/lab"},
		{"GET", "https://192.168.1.20:21001/user/ada/work/lab", "https://10.0.0.7/user/ada/work/lab"},
		{"GET", "https://192.168.1.20/setup?token=abc", "https://10.0.0.7/setup?token=abc"},
		{"HEAD", "https://192.168.1.20/", "https://10.0.0.7/"},
		{"GET", "https://192.168.1.20:8443/user/ada/work/lab", "https://10.0.0.7:8443/user/ada/work/lab"},
		{"POST", "https://192.168.1.20/login", ""},
		{"GET", "https://evil.example/setup", ""},
		{"GET", "https://10.0.0.7/", ""},
	} {
		if got := l.to(c.method, c.url); got != c.want {
			t.Errorf("%s %s leads to %q, want %q", c.method, c.url, got, c.want)
		}
	}
	if got := l.addressWords(); !strings.HasPrefix(got, "10.0.0.7 on eth0; until ") || !strings.HasSuffix(got, "it was 192.168.1.20") {
		t.Errorf("status says %q", got)
	}
	// And home again, while it runs.
	l.remember(t.Context(), l.where.Load().address, netip.MustParseAddr("192.168.1.20"))
	l.where.Store(&place{address: netip.MustParseAddr("192.168.1.20"), iface: "eth0"})
	if err := l.certs.Renew(l.certNames()); err != nil {
		t.Fatal(err)
	}
	if got := l.to("GET", "https://192.168.1.20/"); got != "" {
		t.Errorf("home again, a link leads to %s", got)
	}
	if got := l.to("GET", "https://10.0.0.7/x"); got != "https://192.168.1.20/x" {
		t.Errorf("home again, the other address leads to %q", got)
	}
	for range 3 * formerKept { // what it is given changes every day
		for _, a := range []string{"10.0.1.1", "10.0.1.2", "10.0.1.3"} {
			l.remember(t.Context(), l.where.Load().address, netip.MustParseAddr(a))
		}
	}
	if n := len(l.former.places.Former); n > formerKept {
		t.Errorf("%d addresses are remembered", n)
	}
}
