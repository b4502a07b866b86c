package lab

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// TestHost checks what tests rely on: the host is apart from this machine in
// every way, and its changes are not this machine's.
func TestHost(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("test hosts need root")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l := New(t)

	if got := l.MustRun(ctx, "ip", "-brief", "address", "show", "eth0"); !strings.Contains(got, Address+"/24") {
		t.Errorf("eth0 is %q, want the address %s", got, Address)
	}
	if got := l.MustRun(ctx, "cat", "/proc/1/comm"); got != "bash\n" {
		t.Errorf("process 1 is %q, want the host's own", got)
	}
	for line := range strings.Lines(l.MustRun(ctx, "cat", "/proc/self/cgroup")) {
		if strings.Contains(line, "..") {
			t.Errorf("a command runs outside of the host's control groups: %s", line)
		}
	}
	l.MustRun(ctx, "sh", "-c", "echo x >/etc/gl-test && mkdir /usr/share/gl-test")
	for _, path := range []string{"/etc/gl-test", "/usr/share/gl-test"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("the host wrote %s on this machine", path)
		}
		if _, err := os.Stat(l.Path(path)); err != nil {
			t.Errorf("the host's own file is not seen: %v", err)
		}
	}
	if code := l.Run(ctx, "sh", "-c", "exit 7").Code; code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}

	l.WriteFile("/srv/www/index.html", "hello")
	server := l.Command(ctx, "python3", "-m", "http.server", "--directory", "/srv/www", "80")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(l.Proxy())}}
	for {
		response, err := client.Get("http://" + Address + "/")
		if err == nil && response.StatusCode == http.StatusOK {
			body, _ := io.ReadAll(response.Body)
			response.Body.Close()
			if string(body) != "hello" {
				t.Errorf("got %q from the host", body)
			}
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the host's server did not answer: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
