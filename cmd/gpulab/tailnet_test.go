package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/tailnet/tailnettest"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webca"
)

// tailnetLab is a lab whose doors say who comes in, with the tailnet wired as the appliance does.
func tailnetLab(t *testing.T, config string) *appliance {
	t.Helper()
	dir := t.TempDir()
	if !strings.Contains(config, "httpPort:") {
		config = "httpPort: 0\n" + config
	}
	cfg, err := loadConfig(writeConfig(t, "dataDir: "+dir+"\n"+config))
	if err != nil {
		t.Fatal(err)
	}
	l := &appliance{cfg: cfg, boot: newBoot("1", "x", stageAddress), pages: newSwitchHandler(), labs: newSwitchHandler()}
	if l.store, err = store.Open(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.store.Close() })
	l.people = users.New(l.store.DB())
	l.where.Store(&place{})
	if err := l.newTailnet(); err != nil {
		t.Fatal(err)
	}
	if l.certs, err = webca.Ensure(filepath.Join(dir, "tls"), l.certNames()); err != nil {
		t.Fatal(err)
	}
	says := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, ok := l.visitor(r)
		if !ok {
			fmt.Fprint(w, "nobody known")
			return
		}
		u, err := l.people.SignInOutside(r.Context(), who, r.RemoteAddr)
		fmt.Fprintf(w, "%s, role %s: signed in as %q, %v", who.Username, who.Role, u.Handle, err)
	})
	l.pages.set(says)
	l.labs.set(says)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.tailnet.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

func (l *appliance) join(t *testing.T, control *tailnettest.Control) ctl.Tailnet {
	t.Helper()
	if _, err := l.TailnetUp(t.Context(), ctl.TailnetRequest{LoginServer: control.URL}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		now := l.tailnetNow()
		if now.State == ctl.TailnetUp && len(now.Addresses) > 0 && l.allowedHost(now.Addresses[0]) {
			return now
		}
		if time.Now().After(end) {
			t.Fatalf("not in the tailnet: %+v", now)
		}
	}
}

// trusting is a client that connects by dial, and trusts the lab's own authority alone.
func (l *appliance) trusting(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(l.certs.CAPEM())
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: trusted}}}
}

// dialFrom connects from a machine of the tailnet to the lab's address there, whatever name is asked for.
func dialFrom(from *tailnettest.Visitor, at string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		_, port, _ := net.SplitHostPort(address)
		return from.Dial(ctx, network, net.JoinHostPort(at, port))
	}
}

// visitPage opens an address from a machine of the tailnet.
func (l *appliance) visitPage(t *testing.T, from *tailnettest.Visitor, at, name, method, path string) (int, string) {
	t.Helper()
	client := l.trusting(dialFrom(from, at))
	request, err := http.NewRequestWithContext(t.Context(), method, "https://"+name+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Tailscale-User-Login", "ada@example.org")
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// TestTailnetDoors: pages and notebooks are served on the tailnet under the lab's name there, by a certificate of the
// lab's own for that name; who is let in is who the control server says, whatever a request claims, and a login that is
// called like an account gets no hold of it.
func TestTailnetDoors(t *testing.T) {
	control := tailnettest.Start(t, "127.0.0.1", "0")
	l := tailnetLab(t, "tailnet:\n  signIn: offer\n  allow:\n    - {login: \"*@fake-control.example.net\", role: guest}\n")
	if _, err := l.people.Create(t.Context(), users.NewUser{Handle: "user-2", Role: users.RoleAdmin}); err != nil {
		t.Fatal(err)
	}
	now := l.join(t, control)
	if now.URL != "https://gpulab."+tailnettest.Domain || now.Trusted || !strings.Contains(now.Detail, "lab’s own certificate") {
		t.Errorf("%+v", now)
	}
	if !l.allowedHost("gpulab."+tailnettest.Domain) || !l.allowedHost(now.Addresses[0]) || l.allowedHost("evil."+tailnettest.Domain) {
		t.Errorf("names: %v", l.certs.Names())
	}
	laptop := control.Visit(t, "laptop")
	for _, port := range []string{"", ":8443"} {
		status, text := l.visitPage(t, laptop, now.Addresses[0], now.Name+port, http.MethodGet, "/")
		if status != http.StatusOK || !strings.Contains(text, "user-2@fake-control.example.net, role guest") || !strings.Contains(text, `signed in as ""`) || !strings.Contains(text, "cannot be had") {
			t.Errorf("port %q: %d %s", port, status, text)
		}
	}
	if u, err := l.people.ByHandle(t.Context(), "user-2"); err != nil || u.Role != users.RoleAdmin {
		t.Errorf("the account that was there: %+v, %v", u, err)
	}
	phone := control.Visit(t, "phone")
	if status, text := l.visitPage(t, phone, now.Addresses[0], now.Name, http.MethodGet, "/"); status != http.StatusOK || !strings.Contains(text, `signed in as "user-3", <nil>`) {
		t.Errorf("somebody new: %d %s", status, text)
	}

	// The same door on the lab's own network knows nobody, whatever a request claims.
	for _, d := range l.doors() {
		r := httptest.NewRequest(http.MethodGet, "https://"+now.Name+"/", nil)
		r.RemoteAddr = laptop.Address + ":5555"
		r.Header.Set("Tailscale-User-Login", "user-3@fake-control.example.net")
		w := httptest.NewRecorder()
		d.handler.ServeHTTP(w, r)
		if w.Body.String() != "nobody known" {
			t.Errorf("%s over the LAN: %s", d.what, w.Body)
		}
	}
	if _, err := l.TailnetLogout(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l.allowedHost(now.Name) {
		t.Errorf("after logout, names are %v", l.certs.Names())
	}
}

// TestTailnetRequired: strangers get no page, passwords are not taken, and the lab's own network is as it was.
func TestTailnetRequired(t *testing.T) {
	control := tailnettest.Start(t, "127.0.0.1", "0")
	l := tailnetLab(t, "tailnet:\n  signIn: require\n  allow:\n    - {login: user-2@fake-control.example.net, role: member}\n")
	now := l.join(t, control)
	laptop, phone := control.Visit(t, "laptop"), control.Visit(t, "phone")
	if status, text := l.visitPage(t, laptop, now.Addresses[0], now.Name, http.MethodGet, "/"); status != http.StatusOK || !strings.Contains(text, `signed in as "user-2", <nil>`) {
		t.Errorf("whom allow names: %d %s", status, text)
	}
	for _, path := range []string{"/login", "/api/v1/tokens", "/setup", "/signup", "/signin/university"} {
		if status, text := l.visitPage(t, laptop, now.Addresses[0], now.Name, http.MethodPost, path); status != http.StatusForbidden || !strings.Contains(text, "passwords are not taken") {
			t.Errorf("a password at %s: %d %s", path, status, text)
		}
	}
	for _, port := range []string{"", ":8443"} {
		if status, text := l.visitPage(t, phone, now.Addresses[0], now.Name+port, http.MethodGet, "/"); status != http.StatusForbidden || !strings.Contains(text, "not in a group that may use this lab") {
			t.Errorf("a stranger at port %q: %d %s", port, status, text)
		}
	}
	w := httptest.NewRecorder()
	l.doors()[0].handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "https://lab/login", nil))
	if w.Code != http.StatusOK {
		t.Errorf("on the lab's own network: %d %s", w.Code, w.Body)
	}
}

// TestSharedVisitor: somebody of another tailnet, whom no entry names, gets where an invitation leads, and everywhere once
// an account was linked with them; one whom an entry named before does not.
func TestSharedVisitor(t *testing.T) {
	control := tailnettest.Start(t, "127.0.0.1", "0")
	l := tailnetLab(t, "tailnet:\n  signIn: require\n  allow:\n    - {login: nobody@example.org, role: member}\n")
	now := l.join(t, control)
	laptop := control.Visit(t, "laptop")
	// The machine tells about itself now and then, and takes it back by that.
	shared := func() {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
			n := control.Named("laptop")
			hi := n.Hostinfo.AsStruct()
			hi.ShareeNode = true
			n.Hostinfo = hi.View()
			control.UpdateNode(n)
			if v, err := l.tailnet.Visitor(t.Context(), net.JoinHostPort(laptop.Address, "40000")); err == nil && v.Shared {
				return
			} else if time.Now().After(end) {
				t.Fatalf("%+v, %v", v, err)
			}
		}
	}
	page := func(path string) (int, string) {
		t.Helper()
		for {
			shared()
			status, text := l.visitPage(t, laptop, now.Addresses[0], now.Name, http.MethodGet, path)
			// Asked once more where the machine took it back meanwhile.
			if v, err := l.tailnet.Visitor(t.Context(), net.JoinHostPort(laptop.Address, "40000")); err == nil && v.Shared {
				return status, text
			}
		}
	}
	shared()
	for _, path := range []string{"/", "/login", "/joint", "/api/v1/me"} {
		if status, text := page(path); status != http.StatusForbidden || !strings.Contains(text, "open that here") {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	for _, path := range []string{"/join?token=x", "/welcome?token=x", "/assets/app.css"} {
		if status, text := page(path); status != http.StatusOK || !strings.Contains(text, `signed in as "", `) || strings.Contains(text, "<nil>") {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	for _, path := range []string{"/join?token=x", "/assets/app.css"} {
		if status, text := l.visitPage(t, laptop, now.Addresses[0], now.Name+":8443", http.MethodGet, path); status != http.StatusForbidden {
			t.Errorf("%s at the notebooks' door: %d %s", path, status, text)
		}
	}
	ada, err := l.people.Create(t.Context(), users.NewUser{Handle: "ada", Role: users.RoleGuest})
	if err != nil {
		t.Fatal(err)
	}
	v, err := l.tailnet.Visitor(t.Context(), net.JoinHostPort(laptop.Address, "40000"))
	if err != nil {
		t.Fatal(err)
	}
	who := users.Outside{
		Provider: config.TailnetWay, Title: "the tailnet", Realm: l.tailnet.Realm(), Subject: v.Subject, Username: v.Login,
		Refused: "no", ByHand: true,
	}
	if err := l.people.LinkOutside(t.Context(), ada.ID, who); err != nil {
		t.Fatal(err)
	}
	if status, text := page("/"); status != http.StatusOK || !strings.Contains(text, `signed in as "ada", <nil>`) {
		t.Errorf("linked: %d %s", status, text)
	}
	if err := l.people.RoleByRules(t.Context(), ada.ID); err != nil { // as if an entry had named them
		t.Fatal(err)
	}
	if status, text := page("/"); status != http.StatusForbidden {
		t.Errorf("named no more: %d %s", status, text)
	}
}

// TestServiceOnTailnet: a service's port is there again after the tailnet was turned off and on.
func TestServiceOnTailnet(t *testing.T) {
	control := tailnettest.Start(t, "127.0.0.1", "0")
	l := tailnetLab(t, "")
	shut := l.serviceOnTailnet(8500, func() *http.Server {
		return &http.Server{ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: l.tailnet.GetCertificate},
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a service") })}
	})
	defer shut()
	laptop := control.Visit(t, "laptop")
	for range 2 {
		now := l.join(t, control)
		if status, text := l.visitPage(t, laptop, now.Addresses[0], now.Name+":8500", http.MethodGet, "/"); status != http.StatusOK || text != "a service" {
			t.Errorf("%d %s", status, text)
		}
		if _, err := l.TailnetDown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTailnetFunnel: who comes from the internet is nobody whom the tailnet knows, whatever address they come from, and
// where signing in by the tailnet is required, the lab is not opened.
func TestTailnetFunnel(t *testing.T) {
	control := tailnettest.Start(t, "127.0.0.1", "0")
	control.AllowFunnel("443") // notebooks, which need ports of their own, are not open there
	l := tailnetLab(t, "tailnet:\n  signIn: offer\n  allow:\n    - {login: \"*\", role: admin}\n")
	now := l.join(t, control)
	relay := control.Visit(t, "relay")
	if now, err := (tailnets{l}).Funnel(t.Context(), true); err != nil || now.Funnel == ctl.FunnelOff {
		t.Fatalf("%+v, %v", now, err)
	}
	for _, from := range []string{"203.0.113.7:4711", relay.Address + ":4711"} {
		if text := l.fromInternet(t, relay, control, now.Name, "443", netip.MustParseAddrPort(from)); text != "nobody known" {
			t.Errorf("from %s: %s", from, text)
		}
	}
	if now := l.tailnetNow(); now.Funnel != ctl.FunnelOpen || !strings.Contains(now.Detail, "Everybody on the internet") {
		t.Errorf("%+v", now)
	}
	if now, err := l.TailnetFunnelOff(t.Context()); err != nil || now.Funnel != ctl.FunnelOff {
		t.Errorf("%+v, %v", now, err)
	}

	l = tailnetLab(t, "tailnet:\n  signIn: require\n  allow:\n    - {login: \"*\", role: member}\n")
	if _, err := l.TailnetUp(t.Context(), ctl.TailnetRequest{LoginServer: control.URL, Hostname: "second"}); err != nil {
		t.Fatal(err)
	}
	if _, err := (tailnets{l}).Funnel(t.Context(), true); !errors.Is(err, ctl.ErrTailnet) || !strings.Contains(err.Error(), "signIn: require") {
		t.Errorf("required: %v", err)
	}
}

// fromInternet is what the lab says to somebody on the internet, once it is open.
func (l *appliance) fromInternet(t *testing.T, relay *tailnettest.Visitor, control *tailnettest.Control, name, port string, from netip.AddrPort) string {
	t.Helper()
	client := l.trusting(func(ctx context.Context, _, _ string) (net.Conn, error) {
		return relay.FromInternet(ctx, control.Named("gpulab"), from, net.JoinHostPort(name, port))
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		response, err := client.Get("https://" + net.JoinHostPort(name, port) + "/")
		if err != nil {
			if time.Now().After(end) {
				t.Fatal(err)
			}
			continue
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
}

// TestAuthKeyFile: a key comes from a file or from standard input, and an empty one is refused.
func TestAuthKeyFile(t *testing.T) {
	if key, err := readAuthKey("-", strings.NewReader(" tskey-auth-1\n")); err != nil || key != "tskey-auth-1" {
		t.Errorf("%q, %v", key, err)
	}
	if _, err := readAuthKey("-", strings.NewReader("\n")); err == nil {
		t.Error("an empty key is taken")
	}
	if _, err := readAuthKey(filepath.Join(t.TempDir(), "none"), nil); err == nil {
		t.Error("a file that is not there is taken")
	}
	if lines := strings.Split(terminalQR("https://login.tailscale.com/a/0123456789ab"), "\n"); len(lines) < 15 || !strings.Contains(lines[3], "▀") {
		t.Errorf("the QR code:\n%s", strings.Join(lines, "\n"))
	}
}

// Whoever can answer in the control server's place can visit as anybody.
func TestUnencryptedControlServer(t *testing.T) {
	for server, want := range map[string]bool{
		"https://controlplane.tailscale.com": false, "": false, "http://127.0.0.1:8080": false, "http://[::1]:8080": false, "http://localhost": false,
		"http://headscale.lab": true, "http://10.0.0.9:8080": true,
	} {
		if got := unencrypted(server); got != want {
			t.Errorf("%q: %v", server, got)
		}
	}
}
