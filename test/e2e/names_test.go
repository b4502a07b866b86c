//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// resolve asks the network for a name ending in .local, as RFC 6762 has it for
// programs that are no resolvers themselves, and prints who answers.
const resolve = `import socket, struct, sys
name = sys.argv[1]
ask = struct.pack(">6H", 7, 0, 1, 0, 0, 0) + b"".join(bytes([len(p)]) + p.encode() for p in name.split(".")) + b"\0" + struct.pack(">2H", 1, 1)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sys.argv[2]))
s.settimeout(1)
for _ in range(5):
    s.sendto(ask, ("224.0.0.251", 5353))
    try:
        answer = s.recv(9000)
    except TimeoutError:
        continue
    print(socket.inet_ntoa(answer[-4:]))
    break
`

// at makes a client speak with the lab under a name that no server of names has.
func (a *appliance) at(authorities []byte) *http.Client {
	client := a.HTTPClient(authorities)
	client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		return a.Dial(ctx, network, net.JoinHostPort(lab.Address, port))
	}
	return client
}

// testNames: the network knows the lab by a name; a certificate of somebody else's is shown to
// who asks for the name in it; and who comes through the lab's reverse proxy is who they are.
func testNames(t *testing.T, a *appliance) {
	who, err := a.VisitorCommand(a.ctx, "python3", "-c", resolve, "gpulab.local", lab.VisitorAddress).CombinedOutput()
	if err != nil || strings.TrimSpace(string(who)) != lab.Address {
		t.Fatalf("gpulab.local is %q, %v; status: %s", who, err, a.components(t)["local name"])
	}
	status, _, _ := request(t, a.at(a.ca), "GET", "https://gpulab.local/login", nil)
	if status != http.StatusOK {
		t.Errorf("https://gpulab.local/login: status %d", status)
	}
	// Nobody's name leads here but the lab's.
	for _, path := range []string{"/login", "/api/v1/me", "/service/ada/board/", "/user/ada/x/", "/hub-proxy/api/routes", "/oidc/authorize", "/metrics"} {
		r, err := http.NewRequestWithContext(a.ctx, http.MethodGet, pages+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "rebound.example.com"
		response, err := a.HTTPClient(a.ca).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != http.StatusMisdirectedRequest || !strings.Contains(string(body), pages) || strings.Contains(string(body), "rebound") {
			t.Errorf("%s as rebound.example.com: status %d\n%.300s", path, response.StatusCode, body)
		}
	}

	const own = "lab.example.org"
	authority := a.ownCertificate(t, own)
	proxied := fmt.Sprintf("\nnames: [%s]\ntls: {certificate: /srv/own.crt, key: /srv/own.key}\ntrustedProxies: [%s]\n", own, lab.VisitorAddress)
	before := a.MustRun(a.ctx, "cat", "/etc/gpulab/config.yaml")
	a.WriteFile("/etc/gpulab/config.yaml", strings.NewReplacer("\nnames: []\n", "\n", "\ntrustedProxies: []\n", "\n", "\ntls:\n  certificate: \"\"\n  key: \"\"\n", "\n").Replace(before)+proxied)
	a.MustGpulab(a.ctx, initArgs...)
	if got := a.status(t).LocalURL; got != "https://gpulab.local" {
		t.Errorf("status has the lab's local name as %q", got)
	}
	if status, _, _ := request(t, a.at(authority), "GET", "https://"+own+"/login", nil); status != http.StatusOK {
		t.Errorf("https://%s/login: status %d", own, status)
	}
	if status, _, _ := request(t, a.at(a.ca), "GET", pages+"/login", nil); status != http.StatusOK {
		t.Errorf("by its address, with the lab's own authority: status %d", status)
	}
	if got := a.status(t).URL; got != "https://"+own {
		t.Errorf("the lab is at %s", got)
	}

	// The visitor's computer is the proxy now.
	const visitor, liar = "198.51.100.77", "127.0.0.9"
	client := a.HTTPClient(a.ca)
	client.Transport = forwardedFor{client.Transport, liar + ", " + visitor}
	if status, _ := sendForm(t, client, "/login", "/login", url.Values{"handle": {guestHandle}, "password": {"not the right one"}}); status == http.StatusSeeOther {
		t.Error("signed in with a wrong password")
	}
	a.eventually(t, "the audit log has the visitor's address", func() bool {
		var entries []struct{ Remote string }
		text := a.MustGpulab(a.ctx, "audit", "list", "--action", "sign-in.failed", "--json")
		if err := json.Unmarshal([]byte(text), &entries); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		return len(entries) > 0 && entries[0].Remote == visitor
	})
	a.WriteFile("/etc/gpulab/config.yaml", before)
	a.MustGpulab(a.ctx, initArgs...)
}

// testNotebooksByName: with a wildcard name, who comes by the lab's name gets to their notebooks by a name of their own,
// on the port of the pages, with a session there that is not that of the pages.
func testNotebooksByName(t *testing.T, a *appliance) {
	const base = "https://lab.example.org"
	before := a.MustRun(a.ctx, "cat", "/etc/gpulab/config.yaml")
	config := strings.Replace(before, "\nnames: []\n", "\nnames: [lab.example.org, \"*.lab.example.org\"]\n", 1)
	if config == before {
		t.Fatalf("the configuration has other names:\n%s", before)
	}
	a.WriteFile("/etc/gpulab/config.yaml", config)
	a.MustGpulab(a.ctx, "config", "check")
	a.MustGpulab(a.ctx, initArgs...)
	const handle, password = "dora", "seven slow blue doors" // whose home no other chapter looks at
	a.welcome(t, handle, "Dora", password)
	b := a.guest.Private().For(t)
	signInBrowser(b, base, handle, password)
	b.Launch(base, "cpu", "By name")
	b.WaitFor("JupyterLab at a name of one's own", fmt.Sprintf(`/^n21\d\d\d\.lab\.example\.org$/.test(location.host) && location.pathname.startsWith(%q) && document.querySelector(".jp-Launcher")`,
		"/user/"+handle+"/"))
	lab.TypeCell(b, "print('sum', 20 + 22)")
	b.WaitText(".jp-OutputArea-output", "sum 42")
	if cookies := lab.Evaluate[string](b, `async () => document.cookie`); strings.Contains(cookies, "gpulab") {
		t.Errorf("scripts at the label see %q", cookies)
	}
	address := lab.Evaluate[string](b, `async () => location.origin + `+lab.NotebookBase+` + "lab"`)
	// By the lab's address, the port; and without a session, the sign-in of the pages.
	byAddress := a.guest.Private().For(t)
	byAddress.Open(address)
	byAddress.WaitFor("the sign-in page under the lab's name", `location.host === "lab.example.org" && location.pathname === "/login"`)
	signInBrowser(byAddress, pages, handle, password)
	byAddress.Open(hub + strings.TrimPrefix(address, address[:strings.Index(address, "/user/")]))
	waitJupyterLab(byAddress, handle)
	// Signing out ends the session at the label as well.
	out := b.Tab()
	out.Open(base + "/account")
	out.WaitFor("the way out", `(() => { const form = document.querySelector('form[action="/logout"]'); form?.requestSubmit(); return form; })()`)
	out.WaitFor("the sign-in page", `location.pathname === "/login"`)
	b.Open(address)
	b.WaitFor("the sign-in page again", `location.host === "lab.example.org" && location.pathname === "/login"`)

	a.WriteFile("/etc/gpulab/config.yaml", before)
	a.MustGpulab(a.ctx, initArgs...)
}

// forwardedFor adds what a reverse proxy says of the visitor.
type forwardedFor struct {
	http.RoundTripper
	list string
}

func (f forwardedFor) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Forwarded-For", f.list)
	return f.RoundTripper.RoundTrip(r)
}

// ownCertificate leaves a certificate for a name, which signs itself, on the machine.
func (a *appliance) ownCertificate(t *testing.T, name string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 3, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	a.WriteFile("/srv/own.crt", string(certificate))
	a.WriteFile("/srv/own.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	return certificate
}
