package lab

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
)

// TestBrowser opens a page of the visitor's own network in a Chromium that
// trusts its certificate, and uses it as a person does.
func TestBrowser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("test hosts need root")
	}
	t.Setenv("GPULAB_SCREENSHOTS", t.TempDir())
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
