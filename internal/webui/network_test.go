package webui_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/ctl"
)

// someNetwork is a lab with a server for everybody, one for a group, one that
// cannot be opened, and a proxy.
func someNetwork() ctl.Network {
	return ctl.Network{
		Allow: []ctl.Allowed{
			{Name: "licence server", To: "10.1.7.3", Ports: []uint16{27000, 27001}},
			{Name: "nas", To: "192.168.1.0/24", Groups: []string{"vision"}},
			{Name: "old nas", To: "10.42.0.9", Problem: "It lies within the lab's own machines."},
		},
		Proxy: &ctl.Proxy{URL: "http://proxy.example.org:3128", Addresses: []string{"10.1.1.1"}},
	}
}

// Everybody sees what is open for them; administrators see it all, and why
// something is not open.
func TestNetworkPage(t *testing.T) {
	l := newLab(t)
	ben := l.client(t, "ben")
	ben.get("/network").want(t, http.StatusOK, "All private addresses are closed.", "Connection refused")
	l.status.status.Network = someNetwork()
	page := ben.get("/network")
	page.want(t, http.StatusOK, "licence server", "27000, 27001", "http://proxy.example.org:3128")
	for _, others := range []string{"nas", "vision", "10.1.1.1", "/etc/gpulab"} {
		if strings.Contains(page.body, others) {
			t.Errorf("ben is shown %q", others)
		}
	}
	u, err := l.users.ByHandle(t.Context(), "ben")
	if err == nil {
		_, err = l.users.CreateGroup(t.Context(), "vision", "")
	}
	if err == nil {
		err = l.users.SetMember(t.Context(), "vision", u.ID, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	ben.get("/network").want(t, http.StatusOK, "licence server", "192.168.1.0/24")
	admin := l.client(t, "ada")
	for _, path := range []string{"/network", "/status"} {
		admin.get(path).want(t, http.StatusOK, "old nas", "It lies within the lab", "not open", "vision", "10.1.1.1")
	}
}
