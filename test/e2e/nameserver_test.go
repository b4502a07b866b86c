//go:build e2e

package e2e

import (
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
	"golang.org/x/net/dns/dnsmessage"
)

// What the name server of testNameServers does.
const (
	serverSilent   = iota // it hears, and says nothing
	serverWildcard        // its search domain has every name
	serverBroken          // its search domain fails
	serverSlow            // it answers after 4 seconds
)

const (
	searchDomain  = "cs.example.edu"
	outsideIs     = "192.0.2.10"
	strangerIs    = "192.0.2.80"
	slowServer    = 4 * time.Second
	clusterSuffix = ".gpulab-system.svc.cluster.local"
)

// nameServer answers on the visitor's computer, where the host's resolv.conf leads, until
// the test ends. How is to be changed by what it returns.
func (a *appliance) nameServer(t *testing.T) *atomic.Int32 {
	t.Helper()
	conn, err := a.ListenPacket("udp", net.JoinHostPort(lab.VisitorAddress, "53"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	mode := new(atomic.Int32)
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buffer[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			go func() {
				if answerAs(mode.Load(), &m) {
					if data, err := m.Pack(); err == nil {
						_, _ = conn.WriteTo(data, from)
					}
				}
			}()
		}
	}()
	return mode
}

// answerAs makes a question its answer; false says that there is none.
func answerAs(mode int32, m *dnsmessage.Message) bool {
	q := m.Questions[0]
	name := strings.ToLower(q.Name.String())
	within := strings.HasSuffix(name, "."+searchDomain+".")
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	address := outsideIs
	switch {
	case mode == serverSilent:
		return false
	case mode == serverSlow:
		time.Sleep(slowServer)
	case within && mode == serverBroken:
		m.RCode = dnsmessage.RCodeServerFailure
		return true
	}
	switch {
	case within && mode == serverWildcard:
		address = strangerIs
	case within || strings.HasSuffix(name, ".example."): // the other search domains
		m.RCode = dnsmessage.RCodeNameError
		return true
	}
	if q.Type == dnsmessage.TypeA {
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
			Body:   &dnsmessage.AResource{A: netip.MustParseAddr(address).As4()},
		}}
	}
	return true
}

// addressOf prints the address that a notebook gets for a name, and with SLOW before it
// that it took a second or more.
const addressOf = `
def address(name):
    import subprocess, time
    began = time.monotonic()
    out = subprocess.run(["getent", "ahostsv4", name], capture_output=True, text=True, timeout=60).stdout.split()
    return ("SLOW " if time.monotonic() - began > 1 else "") + (out[0] if out else "none")
`

// testNameServers: notebooks start, run and save whatever the network's name server does,
// and get the lab's own parts by their names. status and doctor tell.
func testNameServers(t *testing.T, a *appliance) {
	mode := a.nameServer(t)
	before := a.MustRun(a.ctx, "cat", "/etc/resolv.conf")
	defer a.WriteFile("/etc/resolv.conf", before)
	a.WriteFile("/etc/resolv.conf", "search a.example b.example c.example d.example e.example "+searchDomain+"\nnameserver "+lab.VisitorAddress+"\n")
	serviceIP := func(name string) string {
		return a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
	}
	hubIP, packagesIP := serviceIP("hub"), serviceIP("packages")

	b := a.guest.For(t).Tab()
	start := func(title string) *kernel {
		began := time.Now()
		launch(b, "cpu", title)
		waitJupyterLab(b, guestHandle)
		t.Logf("%s is there after %s", title, time.Since(began).Round(100*time.Millisecond))
		k := newKernel(b)
		k.run(t, addressOf)
		return k
	}
	stop := func(title string) {
		b.Open(pages + "/")
		b.Click("#mine", "Stop "+title)
		b.Click("dialog[open]", "Stop")
		waitGone(b, title)
	}
	gets := func(k *kernel, want map[string]string) {
		t.Helper()
		for name, address := range want {
			if got := k.run(t, "print(address('"+name+"'))"); got != address {
				t.Errorf("a notebook gets %s for %s, want %s", got, name, address)
			}
		}
	}
	own := map[string]string{"hub" + clusterSuffix: hubIP, "packages.gpulab-system.svc": packagesIP, "nosuch" + clusterSuffix: "none",
		// As a pod of an earlier version asks.
		"hub" + clusterSuffix + "." + searchDomain + ".": "none"}
	tells := func(words string) {
		t.Helper()
		if state, seen, _ := a.doctor(t, "resolver").of(t, "resolver"); state != "warn" || !strings.Contains(seen, words) {
			t.Errorf("the doctor says %s: %s", state, seen)
		}
	}

	mode.Store(serverSilent)
	k := start("Silent")
	gets(k, own)
	k.run(t, "open('saved-without-names.txt', 'w').write('here')")
	tells("does not answer")
	a.eventually(t, "status says so", func() bool { return strings.Contains(a.components(t)["name servers"], "does not answer") })
	stop("Silent")

	mode.Store(serverWildcard)
	k = start("Wildcard")
	gets(k, own)
	gets(k, map[string]string{"github.com": outsideIs})
	tells(searchDomain + " has an address for")

	mode.Store(serverBroken)
	gets(k, own)
	gets(k, map[string]string{"gitlab.com": outsideIs})
	tells("in the search domain " + searchDomain)

	mode.Store(serverSlow)
	gets(k, map[string]string{"hub" + clusterSuffix: hubIP, "slow.example.org": "SLOW " + outsideIs})
	tells("took ")
	stop("Wildcard")
}
