package doctor

import (
	"net"
	"strings"
	"testing"
)

func TestProxy(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	at := listener.Addr().String()

	h := machine(t, nil)
	finds(t, h, "proxy", Options{}, OK, "No proxy is set.")
	h.environ = []string{"PATH=/bin", "https_proxy=http://" + at, "HTTPS_PROXY=http://" + at, "no_proxy=::::"}
	finds(t, h, "proxy", Options{}, OK, at, "https_proxy in the environment")
	h.environ = nil
	finds(t, h, "proxy", Options{Proxies: []string{"http://" + at}}, OK, "network.proxy in the configuration")
	// Without http://, as many write it.
	h = machine(t, map[string]string{"/etc/environment": "export HTTP_PROXY=\"" + at + "\"\n"})
	finds(t, h, "proxy", Options{}, OK, "HTTP_PROXY in /etc/environment")

	h = machine(t, nil)
	h.environ = []string{"HTTP_PROXY=http://user:secret@"}
	if f := finds(t, h, "proxy", Options{}, Warn, "is no address"); f.Seen != "The proxy of HTTP_PROXY in the environment is no address." {
		t.Errorf("a password may be shown: %s", f)
	}
	listener.Close()
	h.environ = []string{"HTTP_PROXY=http://user:secret@" + at}
	f := finds(t, h, "proxy", Options{}, Warn, at, "does not answer", "`curl ")
	if got := f.String(); strings.Contains(got, "secret") {
		t.Errorf("a password is shown: %s", got)
	}
}
