package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/tailnet/tailnettest"
	"github.com/gpulab/gpulab/internal/webca"
)

// namedLab is a lab that goes by these names.
func namedLab(t *testing.T, httpsPort int, names ...string) *appliance {
	t.Helper()
	l := &appliance{cfg: config.Config{Names: names, HTTPSPort: httpsPort}}
	l.where.Store(&place{})
	var err error
	if l.certs, err = webca.Ensure(filepath.Join(t.TempDir(), "tls"), append(names, "10.0.0.9", "fd00::9")); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestRedirectToHTTPS: whoever comes without encryption goes on under the name they typed, and to no other site's.
func TestRedirectToHTTPS(t *testing.T) {
	for port, goOn := range map[int]map[string]string{
		443: {
			"lab.example.org": "https://lab.example.org", "LAB.example.org:80": "https://LAB.example.org", "10.0.0.9": "https://10.0.0.9",
			"[fd00::9]": "https://[fd00::9]", "[fd00::9]:80": "https://[fd00::9]",
			"evil.example": "https://lab.example.org", "lab.example.org.evil.example": "https://lab.example.org", "lab.example.org@evil.example": "https://lab.example.org",
			"[fd00::bad]:80": "https://lab.example.org", "": "https://lab.example.org",
		},
		8000: {"lab.example.org:80": "https://lab.example.org:8000", "[fd00::9]:80": "https://[fd00::9]:8000", "evil.example:8000": "https://lab.example.org:8000"},
	} {
		l := namedLab(t, port, "lab.example.org")
		for host, want := range goOn {
			for path, to := range map[string]string{"/gpus?since=1": "/gpus?since=1", "//evil.example/x": "//evil.example/x"} {
				r := httptest.NewRequest(http.MethodPost, "http://x"+path, nil)
				r.Host, r.RequestURI = host, path
				w := httptest.NewRecorder()
				l.redirect(w, r)
				if got := w.Header().Get("Location"); w.Code != http.StatusPermanentRedirect || got != want+to {
					t.Errorf("port %d, %q%s: %d to %q, want %q", port, host, path, w.Code, got, want+to)
				}
			}
		}
	}
}

// TestUnencryptedOverTailnet: whoever types http:// on the tailnet goes on to HTTPS under the lab's name there, and is
// told so at the doors where only HTTPS is spoken.
func TestUnencryptedOverTailnet(t *testing.T) {
	control := tailnettest.Start(t, "127.0.0.1", "0")
	l := tailnetLab(t, "httpPort: 80\nnames: [lab.example.org]\n")
	now := l.join(t, control)
	laptop := control.Visit(t, "laptop")
	client := &http.Client{
		Timeout:       30 * time.Second,
		Transport:     &http.Transport{DisableKeepAlives: true, DialContext: dialFrom(laptop, now.Addresses[0])},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	get := func(port, host string) (status int, to, text string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://lab:"+port+"/gpus?since=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, response.Header.Get("Location"), string(body)
	}
	for host, want := range map[string]string{
		now.Name: "https://" + now.Name, now.Name + ":80": "https://" + now.Name, "gpulab": "https://gpulab",
		now.Addresses[0]: "https://" + now.Addresses[0], "[" + now.Addresses[1] + "]:80": "https://[" + now.Addresses[1] + "]",
		"evil." + tailnettest.Domain: "https://lab.example.org", "evil.example": "https://lab.example.org",
	} {
		if status, to, _ := get("80", host); status != http.StatusPermanentRedirect || to != want+"/gpus?since=1" {
			t.Errorf("%s: %d to %q, want %s", host, status, to, want)
		}
	}
	for _, port := range []string{"443", "8443"} {
		if status, to, text := get(port, now.Name); status != http.StatusBadRequest || to != "" || !strings.Contains(text, "HTTPS") {
			t.Errorf("port %s: %d to %q: %s", port, status, to, text)
		}
	}
}

// TestEveryRouteByName: nothing on the port of the pages answers under a name that is not the lab's, nor leads there.
func TestEveryRouteByName(t *testing.T) {
	l := namedLab(t, 443, "lab.example.org")
	l.cfg.DataDir = t.TempDir()
	leads := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://"+r.Host+":8443/", http.StatusFound)
	})
	for _, metrics := range []bool{true, false} {
		l.cfg.Metrics.Enabled = &metrics
		door, err := l.routes(map[string]http.Handler{"/api/v1/": leads, "/oidc/": leads, "/hub-proxy/": leads, "/user/": leads, "/service/": leads, "/": leads})
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{
			"/", "/login", "/service/ada/board/", "/service/", "/service", "/user/ada/n/", "/user", "/hub/login", "/hub-proxy/api/routes", "/oidc/authorize",
			"/oidc/token", "/api/v1/me", "/api/v1", "/metrics", "/metrics/dashboard.json", "/ca.crt", "//evil.example/", "/service/../login",
		} {
			for host, ours := range map[string]bool{
				"lab.example.org": true, "10.0.0.9": true, "evil.example": false, "evil.example:443": false, "lab.example.org.evil.example": false, "": false,
			} {
				r := httptest.NewRequest(http.MethodGet, "https://x/", nil)
				r.URL.Path, r.RequestURI, r.Host = path, path, host
				w := httptest.NewRecorder()
				door.ServeHTTP(w, r)
				if refused := w.Code == http.StatusMisdirectedRequest; refused == ours || !ours && w.Header().Get("Location") != "" {
					t.Errorf("%s under %q: %d, to %q", path, host, w.Code, w.Header().Get("Location"))
				}
			}
		}
	}
}

// TestByName: the lab answers under its own names and addresses alone, so that no site elsewhere can have a name of its own
// lead here.
func TestByName(t *testing.T) {
	l := namedLab(t, 443, "lab.example.org")
	door := l.byName(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for host, want := range map[string]int{
		"lab.example.org": http.StatusOK, "lab.example.org:443": http.StatusOK, "Lab.Example.ORG": http.StatusOK, "10.0.0.9": http.StatusOK, "[fd00::9]:443": http.StatusOK,
		"evil.example": http.StatusMisdirectedRequest, "": http.StatusMisdirectedRequest, "lab.example.org.": http.StatusMisdirectedRequest,
		"lab.example.org:443:443": http.StatusMisdirectedRequest, "[10.0.0.8]": http.StatusMisdirectedRequest,
	} {
		r := httptest.NewRequest(http.MethodGet, "https://x/", nil)
		r.Host = host
		w := httptest.NewRecorder()
		door.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%q: %d", host, w.Code)
		}
	}
}
