package lab

import (
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
)

// TestMain keeps pictures out of the repository: Go's cache would take them for input of these tests.
func TestMain(m *testing.M) {
	pictures, err := os.MkdirTemp("", "gpulab-pictures-")
	if err == nil {
		err = os.Setenv("GPULAB_SCREENSHOTS", pictures)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(pictures)
	os.Exit(code)
}

// TestBrowser opens a page of the visitor's own network in a Chromium that
// trusts its certificate, and uses it as a person does.
func TestBrowser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("test hosts need root")
	}
	l := New(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		io.WriteString(w, `<form><label for=n>Name</label><input id=n name=n><button>Go  on</button></form><p>`+r.FormValue("n"))
	}))
	server.Listener.Close()
	var err error
	if server.Listener, err = l.Listen("tcp", "127.0.0.1:443"); err != nil {
		t.Fatal(err)
	}
	server.StartTLS()
	defer server.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})

	b := l.Browser(authority)
	b.Open("https://127.0.0.1/")
	b.Fill("Name", "Ada")
	b.Click("form", "Go on")
	b.WaitText("p", "Ada")
	if got := b.Location(); got != "https://127.0.0.1/?n=Ada" {
		t.Errorf("at %s after the click", got)
	}
	if secure := Evaluate[bool](b, `async () => isSecureContext`); !secure {
		t.Error("the page is no secure context")
	}
	b.Pictures("page")
}
