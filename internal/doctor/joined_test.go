package doctor

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/nodes"
)

// member is a machine that has joined, and what it knows of its pool.
func member(t *testing.T) (host, Options) {
	t.Helper()
	h := machine(t, map[string]string{"/var/lib/gpulab/identity.json": "{}", "/srv/lab/.gpulab-lab": "abc\n"})
	authority, err := nodes.LoadAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	key, _ := nodes.NewKey()
	der, _ := nodes.NewRequest(key)
	request, err := nodes.ParseRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := authority.Sign(request, "gpu-two")
	if err != nil {
		t.Fatal(err)
	}
	path := h.path("/var/lib/gpulab/tls/node.crt")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, certificate, 0o600)); err != nil {
		t.Fatal(err)
	}
	opts := Options{Joined: &Joined{
		Name: "gpu-two", Lab: "Pool lab", Head: "gpu-one", Shared: "/srv/lab", Mark: "abc",
		Doors:      []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:8444"), netip.MustParseAddrPort("198.51.100.1:8444")},
		Kubernetes: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:6443"), netip.MustParseAddrPort("198.51.100.1:6443")},
		Greet:      func(context.Context) (Greeting, error) { return Greeting{Version: "1", Time: time.Now()}, nil },
	}}
	h.dial = closed()
	return h, opts
}

// closed is a network in which only these addresses answer.
func closed(open ...string) func(context.Context, string, string) (net.Conn, error) {
	return func(_ context.Context, _, address string) (net.Conn, error) {
		if slices.Contains(open, address) {
			one, other := net.Pipe()
			return one, other.Close()
		}
		return nil, errors.New("no route to host")
	}
}

// TestWhoLooksAtWhat: a machine that has joined is not looked at as a head, nor
// a head as one that has joined; and mends are of the machine's kind.
func TestWhoLooksAtWhat(t *testing.T) {
	names := func(joined bool) (out []string) {
		for _, p := range ProbesFor(joined) {
			out = append(out, p.Name)
		}
		return out
	}
	for _, name := range []string{"head", "membership", "headclock", "stream", "sharedstorage"} {
		if slices.Contains(names(false), name) || !slices.Contains(names(true), name) {
			t.Errorf("%s looks at the wrong machines", name)
		}
	}
	for _, name := range []string{"address", "webcertificates", "pages"} {
		if !slices.Contains(names(false), name) || slices.Contains(names(true), name) {
			t.Errorf("%s looks at the wrong machines", name)
		}
	}
	h, opts := member(t)
	finds(t, h, "daemon", opts, Fail, "shows this machine as lost", "`gpulab join`")
	finds(t, h, "configuration", opts, OK, "What the head wants")
	opts.ConfigError = errors.New("node.json is damaged")
	finds(t, h, "configuration", opts, Fail, "node.json is damaged", "`gpulab leave`")
	// One that may not look says so, and one that cannot know says nothing.
	for _, name := range []string{"head", "membership", "headclock", "sharedstorage"} {
		finds(t, h, name, Options{Joined: &Joined{Unseen: true}}, Unseen, "Only root")
		if found := look(t, h, name, Options{Joined: &Joined{}}); found != nil {
			t.Errorf("%s knows nothing and says %v", name, found)
		}
	}
	walled := walled(t, "ufw.save", "")
	found := look(t, walled, "firewall", Options{Joined: opts.Joined, Ports: []int{10250}})
	if len(found) == 0 || strings.Contains(found[len(found)-1].String(), "8444") || !strings.Contains(found[len(found)-1].String(), "ufw allow 10250/tcp") {
		t.Errorf("the firewall of a machine: %v", found)
	}
}

func executable(t *testing.T, path string) {
	t.Helper()
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
}
