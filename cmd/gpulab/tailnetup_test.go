package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/tailnet/tailnettest"
)

// onNetwork opens a door of the lab on this machine's own network, and returns its address.
func (l *appliance) onNetwork(t *testing.T, d door) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.serve(ctx, d.server(l.certs.GetCertificate), ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}

// TestSlowControlServer: while the lab waits for it, pages on the lab's own network come as fast as ever.
func TestSlowControlServer(t *testing.T) {
	const late = 2 * time.Second
	control := tailnettest.Start(t, "127.0.0.1", "0")
	l := tailnetLab(t, "")
	at := l.onNetwork(t, l.doors()[0])
	client := l.trusting(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, at)
	})
	began := time.Now()
	if _, err := l.TailnetUp(t.Context(), ctl.TailnetRequest{LoginServer: control.Slow(t, late)}); err != nil {
		t.Fatal(err)
	}
	for pages := 0; ; pages++ {
		asked := time.Now()
		response, err := client.Get("https://localhost/")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		if took := time.Since(asked); took > late/2 || response.StatusCode != http.StatusOK {
			t.Errorf("page %d: status %d after %s", pages, response.StatusCode, took)
		}
		if l.tailnetNow().State == ctl.TailnetUp {
			if took := time.Since(began); took < late {
				t.Errorf("the control server is not slow: it took %s", took)
			}
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("not in the tailnet: %+v", l.tailnetNow())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// inTailnet is the daemon of a lab, as far as its tailnet goes.
type inTailnet struct {
	daemon
	l *appliance
}

func (d *inTailnet) Tailnet(ctx context.Context) (ctl.Tailnet, error) { return d.l.Tailnet(ctx) }

func (d *inTailnet) TailnetUp(ctx context.Context, r ctl.TailnetRequest) (ctl.Tailnet, error) {
	return d.l.TailnetUp(ctx, r)
}

// TestTailnetUpCommand: it shows where somebody lets the lab in, once, with the QR code, and ends when they have; it ends by
// itself when nobody does, and when it is interrupted, and the lab goes on trying.
func TestTailnetUpCommand(t *testing.T) {
	needRoot(t)
	control := tailnettest.Start(t, "127.0.0.1", "0")
	control.RequireAuth = true
	l := tailnetLab(t, "")
	socket := serve(t, &inTailnet{l: l})
	up := func(more ...string) (code int, out, errs string) {
		return gpulab(t, append([]string{"tailnet", "up", "--socket", socket}, more...)...)
	}
	if code, _, errs := up("--login-server", "nonsense"); code == exitOK || !strings.Contains(errs, "no address") {
		t.Errorf("nonsense: %d %s", code, errs)
	}
	code, out, errs := up("--login-server", control.URL, "--wait", "2s")
	address := regexp.MustCompile(regexp.QuoteMeta(control.URL)+`/auth/\S+`).FindAllString(errs, -1)
	if code != exitNotReady || len(address) != 1 || !strings.Contains(errs, "▀") || strings.Contains(out, "/auth/") || !strings.Contains(errs, "gpulab tailnet status") {
		t.Fatalf("nobody lets the lab in: %d\n%s\n%s", code, out, errs)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	a := &app{socket: socket}
	if _, err := a.followTailnet(ended, io.Discard, l.tailnetNow(), time.Minute); err == nil || !strings.Contains(err.Error(), "gpulab goes on trying") {
		t.Errorf("interrupted: %v", err)
	}
	letIn := time.AfterFunc(time.Second, func() { control.CompleteAuth(address[0]) })
	defer letIn.Stop()
	code, out, errs = up()
	if code != exitOK || strings.Count(errs, address[0]) != 1 || !strings.Contains(out, "gpulab."+tailnettest.Domain) {
		t.Errorf("somebody lets the lab in: %d\n%s\n%s", code, out, errs)
	}
	if code, out, errs = up(); code != exitOK || strings.Contains(errs, "/auth/") || !strings.Contains(out, "gpulab."+tailnettest.Domain) {
		t.Errorf("once more: %d\n%s\n%s", code, out, errs)
	}
}

// TestTailnetUpEnds: the command that waits for somebody to let the lab in ends when gpulab does, when somebody else turns
// the tailnet off, and when it is interrupted, which changes nothing; it has shown the address once.
func TestTailnetUpEnds(t *testing.T) {
	needRoot(t)
	control := tailnettest.Start(t, "127.0.0.1", "0")
	control.RequireAuth = true
	for name, c := range map[string]struct {
		end   func(l *appliance, interrupt, stop func()) error
		code  int
		says  string
		state string
	}{
		"gpulab ends": {func(_ *appliance, _, stop func()) error { stop(); return nil }, exitNotRunning, "gpulab init", ctl.TailnetLogin},
		"turned off":  {func(l *appliance, _, _ func()) error { _, err := l.TailnetDown(t.Context()); return err }, exitNotReady, "not in the tailnet yet", ctl.TailnetOff},
		"interrupted": {func(_ *appliance, interrupt, _ func()) error { interrupt(); return nil }, exitFailure, "gpulab goes on trying", ctl.TailnetLogin},
	} {
		t.Run(name, func(t *testing.T) {
			l := tailnetLab(t, "")
			socket, stop := serveUntil(t, &inTailnet{l: l})
			following, interrupt := context.WithCancel(t.Context())
			says, errs := io.Pipe()
			code := make(chan int, 1)
			go func() {
				code <- run(following, []string{"tailnet", "up", "--socket", socket, "--login-server", control.URL}, strings.NewReader(""), io.Discard, errs)
				_ = errs.Close()
			}()
			var address string
			var rest []string
			for lines := bufio.NewScanner(says); lines.Scan(); {
				rest = append(rest, lines.Text())
				if address == "" && strings.Contains(lines.Text(), control.URL+"/auth/") {
					address = strings.TrimSpace(lines.Text())
					if err := c.end(l, interrupt, stop); err != nil {
						t.Error(err)
					}
				}
			}
			text := strings.Join(rest, "\n") + "\n"
			if got := <-code; got != c.code || !strings.Contains(text, c.says) || strings.Count(text, address) != 1 || strings.Count(text, terminalQR(address)) != 1 {
				t.Errorf("exit code %d, want %d:\n%s", got, c.code, text)
			}
			if now := l.tailnetNow(); now.State != c.state {
				t.Errorf("then it is %+v", now)
			}
			if c.state == ctl.TailnetLogin {
				control.CompleteAuth(address)
				for end := time.Now().Add(time.Minute); l.tailnetNow().State != ctl.TailnetUp; time.Sleep(20 * time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("somebody has let the lab in, and it is %+v", l.tailnetNow())
					}
				}
			}
			interrupt()
		})
	}
}
