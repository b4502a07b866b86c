package tailnet_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/tailnet"
	"github.com/gpulab/gpulab/internal/tailnet/tailnettest"
)

var somebody = netip.MustParseAddrPort("203.0.113.7:4711")

// fromInternet opens the lab's page through the relay, and returns what it says and the connection, which is still open.
func fromInternet(ctx context.Context, relay *tailnettest.Visitor, control *tailnettest.Control) (string, net.Conn, error) {
	name := strings.TrimSuffix(control.Named("gpulab").Name, ".")
	conn, err := relay.FromInternet(ctx, control.Named("gpulab"), somebody, name+":443")
	if err != nil {
		return "", nil, err
	}
	over := tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) //nolint:gosec // no authority here knows it
	if _, err := io.WriteString(over, "GET / HTTP/1.1\r\nHost: "+name+"\r\n\r\n"); err != nil {
		return "", nil, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(over), nil)
	if err != nil {
		return "", nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), over, err
}

// TestFunnel: the lab is open to the internet only where the tailnet allows it and somebody wants it, over a restart too,
// and until it is closed, which ends connections; who comes that way is told by their own address. Who turns the tailnet
// off and on again finds the lab closed.
func TestFunnel(t *testing.T) {
	control := tailnettest.Start(t, "127.0.0.1", "0")
	control.AllowFunnel("443,8443")
	dir := filepath.Join(t.TempDir(), "tailnet")
	l := newLab(t, dir)
	var wrong *tailnet.Error
	if err := l.Funnel(t.Context(), true); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "not in its tailnet") {
		t.Errorf("a lab that is in no tailnet: %v", err)
	}
	up := func() {
		t.Helper()
		st := l.up(t, tailnet.UpRequest{LoginServer: control.URL})
		if st.Funnel || st.Public {
			t.Errorf("a lab that has just been turned on: %+v", st)
		}
	}
	up()
	relay := control.Visit(t, "relay")
	if text, _, err := fromInternet(t.Context(), relay, control); err == nil {
		t.Errorf("before it is open, the internet is answered: %s", text)
	}
	open := func(conn *net.Conn) func() bool {
		return func() bool {
			text, c, err := fromInternet(t.Context(), relay, control)
			if err == nil && text != "from the internet: "+somebody.String() {
				t.Errorf("the internet is told %q", text)
			}
			if err == nil {
				*conn = c
			}
			return err == nil
		}
	}
	if err := l.Funnel(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	var conn net.Conn
	eventually(t, "the lab is open", open(&conn))
	if st := l.Status(); !st.Funnel || !st.Public || st.FunnelError != nil {
		t.Errorf("open: %+v", st)
	}
	l.end()
	l = newLab(t, dir)
	eventually(t, "the lab is open after a restart", open(&conn))
	node := control.Named("gpulab")
	node.Name = "gpu-room." + tailnettest.Domain + "."
	control.DNSConfig.CertDomains = []string{"gpu-room." + tailnettest.Domain}
	control.UpdateNode(node)
	eventually(t, "the lab is open under its new name", open(&conn))

	if err := l.Funnel(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var late net.Error
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.As(err, &late) && late.Timeout() {
		t.Errorf("a connection of before goes on: %v", err)
	}
	if text, _, err := fromInternet(t.Context(), relay, control); err == nil {
		t.Errorf("closed, the internet is answered: %s", text)
	}
	if st := l.Status(); st.Funnel || st.Public || st.State != tailnet.Up {
		t.Errorf("closed: %+v", st)
	}

	if err := l.Funnel(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lab is open again", open(&conn))
	// What cannot be kept is closed all the same.
	kept := filepath.Join(dir, "wanted.json")
	if err := errors.Join(os.Remove(kept), os.Mkdir(kept, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := l.Funnel(t.Context(), false); err == nil {
		t.Error("that it cannot be kept is not said")
	}
	if text, _, err := fromInternet(t.Context(), relay, control); err == nil || l.Status().Public {
		t.Errorf("the internet is answered by a lab that could not keep that it is closed: %s", text)
	}
	if err := os.Remove(kept); err != nil {
		t.Fatal(err)
	}
	if err := l.Funnel(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lab is open once more", open(&conn))
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	up()
}

// TestFunnelNotAllowed: what the tailnet forbids is refused at once, with the next step, and nothing is kept.
func TestFunnelNotAllowed(t *testing.T) {
	for ports, want := range map[string]string{"": "not allowed", "8080": "443"} {
		control := tailnettest.Start(t, "127.0.0.1", "0")
		control.AllowFunnel(ports)
		l := newLab(t, filepath.Join(t.TempDir(), "tailnet"))
		l.up(t, tailnet.UpRequest{LoginServer: control.URL})
		var wrong *tailnet.Error
		if err := l.Funnel(t.Context(), true); !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "access controls") {
			t.Errorf("ports %q: %v", ports, err)
		}
		if st := l.Status(); st.Funnel {
			t.Errorf("ports %q: %+v", ports, st)
		}
	}
}
