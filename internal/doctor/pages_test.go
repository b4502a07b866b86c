package doctor

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"
)

// TestPages opens real pages with the certificates that gpulab makes.
func TestPages(t *testing.T) {
	h, folder, certs := certified(t, "127.0.0.1", "lab.example.org")
	listener, err := tls.Listen("tcp", "127.0.0.1:0", certs.TLSConfig())
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	at := labSays(Lab{URL: "https://127.0.0.1:" + port}, nil)

	finds(t, h, "pages", at, OK, "with a certificate that fits")

	h.now = func() time.Time { return time.Now().AddDate(3, 0, 0) }
	finds(t, h, "pages", at, Fail, "certificate that browsers refuse", "gpulab doctor webcertificates")
	h.now = time.Now

	// The name leads to another machine, which does not answer.
	real := h.dial
	h.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if host, _, _ := net.SplitHostPort(address); host == "lab.example.org" {
			return nil, &net.OpError{Op: "dial", Net: network, Err: context.DeadlineExceeded}
		}
		return real(ctx, network, address)
	}
	finds(t, h, "pages", labSays(Lab{URL: "https://lab.example.org:" + port}, nil), Fail, "answer on this machine, but not at https://lab.example.org", "`gpulab doctor address firewall`")
	h.dial = real

	// Another authority than the one that signed what is shown.
	_, other, _ := certified(t, "127.0.0.1")
	copyFile(t, other+"/ca.crt", folder+"/ca.crt")
	finds(t, h, "pages", at, Fail, "unknown authority")

	server.Close()
	finds(t, h, "pages", at, Fail, "do not answer", "`gpulab logs`")
	finds(t, h, "pages", labSays(Lab{URL: "https://"}, nil), Fail, "in no network")
	if found := look(t, h, "pages", labSays(Lab{}, ErrNoDaemon)); len(found) != 0 {
		t.Errorf("without a lab: %v", found)
	}
}
