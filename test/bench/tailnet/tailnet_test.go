package tailnet_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/gpulab/gpulab/internal/tailnet"
	"github.com/gpulab/gpulab/internal/tailnet/tailnettest"
	"github.com/gpulab/gpulab/internal/webca"
)

const (
	download = 100 << 20 // bytes
	messages = 500       // there and back over a WebSocket
	idle     = 30 * time.Second
)

// labEnv makes TestLab be the lab that is measured.
const labEnv = "GPULAB_BENCH_TAILNET"

// measured is what the lab says of itself.
type measured struct {
	Plain  string // address of its plain listener
	Before usage  // the tailnet is off
	After  usage  // and on, with nobody there
	// CPU is the share of one processor, in percent, while the tailnet was on and nobody there.
	CPU float64
}

type usage struct {
	MB  float64 // resident
	CPU time.Duration
}

func self() (u usage, err error) {
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		if kb, is := strings.CutPrefix(line, "VmRSS:"); is {
			n, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kb), "kB")), 64)
			if err != nil {
				return u, err
			}
			u.MB = n / 1024
		}
	}
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return u, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
	for _, field := range fields[11:13] { // user and system time, in hundredths of a second
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return u, err
		}
		u.CPU += time.Duration(n) * 10 * time.Millisecond
	}
	return u, nil
}

func handler() http.Handler {
	mux := http.NewServeMux()
	block := make([]byte, 1<<20)
	mux.HandleFunc("/download", func(w http.ResponseWriter, _ *http.Request) {
		for range download / len(block) {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/socket", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = c.CloseNow() }()
		for {
			kind, text, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, text) != nil {
				return
			}
		}
	})
	return mux
}

// TestLab is no test of its own but the lab's process.
func TestLab(t *testing.T) {
	control := os.Getenv(labEnv)
	if control == "" {
		t.SkipNow()
	}
	dir := t.TempDir()
	certs, err := webca.Ensure(filepath.Join(dir, "tls"), []string{"localhost", "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	serve := func(ctx context.Context, l net.Listener) error {
		srv := &http.Server{Handler: handler(), ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certs.GetCertificate, NextProtos: []string{"http/1.1"}}}
		context.AfterFunc(ctx, func() { _ = srv.Close() })
		return srv.ServeTLS(l, "", "")
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = serve(t.Context(), plain) }()
	lab := tailnet.New(tailnet.Config{Dir: filepath.Join(dir, "tailnet"), Doors: []tailnet.Door{{Port: 443, Serve: serve}}, OwnCertificate: certs.GetCertificate})
	go func() { _ = lab.Run(t.Context()) }()
	m := measured{Plain: plain.Addr().String()}
	if m.Before, err = self(); err != nil {
		t.Fatal(err)
	}
	if err := lab.Up(t.Context(), tailnet.UpRequest{LoginServer: control}); err != nil {
		t.Fatal(err)
	}
	for lab.Status().State != tailnet.Up {
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(5 * time.Second) // it has found its relay
	from, err := self()
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(idle)
	if m.After, err = self(); err != nil {
		t.Fatal(err)
	}
	m.CPU = 100 * float64(m.After.CPU-from.CPU) / float64(idle)
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("measured", string(text))
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// BenchmarkTailnet prints the figures.
func BenchmarkTailnet(b *testing.B) {
	control := tailnettest.Start(b, "127.0.0.1", "0")
	program, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), program, "-test.run=^TestLab$", "-test.timeout=30m")
	cmd.Env = append(os.Environ(), labEnv+"="+control.URL)
	cmd.Stderr = os.Stderr
	end, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = end.Close()
		_ = cmd.Wait()
	}()
	var m measured
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if text, is := strings.CutPrefix(lines.Text(), "measured "); is {
			if err := json.Unmarshal([]byte(text), &m); err != nil {
				b.Fatal(err)
			}
			break
		}
	}
	if m.Plain == "" {
		b.Fatal("the lab ended before it said anything")
	}
	visitor := control.Visit(b, "laptop")
	lab := control.Named("gpulab").Addresses[0].Addr().String() + ":443"
	ways := map[string]*http.Client{
		"plain": client(func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, m.Plain)
		}),
		"tailnet": client(func(ctx context.Context, network, _ string) (net.Conn, error) { return visitor.Dial(ctx, network, lab) }),
	}
	for b.Loop() {
		for way, c := range ways {
			rate, err := fetch(b.Context(), c)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(rate, way+"-MB/s")
			middle, err := there(b.Context(), c)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(middle.Seconds()*1000, way+"-socket-ms")
		}
	}
	b.ReportMetric(m.After.MB-m.Before.MB, "more-MB")
	b.ReportMetric(m.CPU, "idle-cpu-%")
}

func client(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: dial, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}}} //nolint:gosec // servers of this benchmark
}

// fetch is how many megabytes a second a download gets.
func fetch(ctx context.Context, c *http.Client) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://lab/download", nil)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	response, err := c.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	n, err := io.Copy(io.Discard, response.Body)
	if err == nil && n != download {
		err = fmt.Errorf("%d bytes came", n)
	}
	return float64(n) / 1e6 / time.Since(began).Seconds(), err
}

// there is how long a message takes there and back over a WebSocket, at the median.
func there(ctx context.Context, c *http.Client) (time.Duration, error) {
	socket, _, err := websocket.Dial(ctx, "wss://lab/socket", &websocket.DialOptions{HTTPClient: c}) //nolint:bodyclose // Dial leaves none open
	if err != nil {
		return 0, err
	}
	defer func() { _ = socket.CloseNow() }()
	var took []time.Duration
	for range messages {
		began := time.Now()
		if err := socket.Write(ctx, websocket.MessageText, []byte(`{"msg_type": "execute_request"}`)); err != nil {
			return 0, err
		}
		if _, _, err := socket.Read(ctx); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}
