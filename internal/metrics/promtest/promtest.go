// Package promtest runs Debian's Prometheus in tests: what it understands is
// what metrics have to be. Only tests import it.
package promtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Program finds prometheus or promtool; the test fails where it is missing.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("there is no %s; install it with `packaging/prerequisites.sh test`, or `apt-get install "+
			"--no-install-recommends prometheus`", name)
	}
	return path
}

// Server is a Prometheus of a test's own, on loopback.
type Server struct{ url string }

// Start runs a Prometheus with a configuration until the test ends, and returns
// when it is ready.
func Start(t testing.TB, config string) *Server {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	var log bytes.Buffer
	cmd := exec.Command(Program(t, "prometheus"),
		"--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address,
		"--log.level=warn")
	cmd.Stdout, cmd.Stderr = &log, &log
	// A test that is killed leaves nothing behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var end error // once ended is closed
	go func() {
		end = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		if t.Failed() {
			t.Logf("Prometheus said:\n%s", log.String())
		}
	})
	s := &Server{url: "http://" + address}
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); time.Sleep(50 * time.Millisecond) {
		select {
		case <-ended:
			t.Fatalf("Prometheus ended: %v", end)
		default:
		}
		if resp, err := http.Get(s.url + "/-/ready"); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return s
			}
		}
	}
	t.Fatal("Prometheus is not ready after a minute")
	return nil
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Sample is one series in an answer.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Query asks for an expression's value now.
func (s *Server) Query(ctx context.Context, expression string) ([]Sample, error) {
	var answer struct {
		ResultType string `json:"resultType"`
		Result     []struct {
			Metric map[string]string `json:"metric"`
			Value  [2]any            `json:"value"`
		} `json:"result"`
	}
	if err := s.get(ctx, "query", url.Values{"query": {expression}}, &answer); err != nil {
		return nil, fmt.Errorf("%s: %w", expression, err)
	}
	if answer.ResultType != "vector" {
		return nil, fmt.Errorf("%s is a %s", expression, answer.ResultType)
	}
	var out []Sample
	for _, r := range answer.Result {
		text, _ := r.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", expression, err)
		}
		out = append(out, Sample{r.Metric, value})
	}
	return out, nil
}

// Wait asks until there is an answer with at least one series.
func (s *Server) Wait(t testing.TB, expression string) []Sample {
	t.Helper()
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		var found []Sample
		if found, err = s.Query(t.Context(), expression); err == nil && len(found) > 0 {
			return found
		}
	}
	t.Fatalf("%s: nothing after 30 s (%v); the targets are %v", expression, err, s.LastErrors(t))
	return nil
}

// LastErrors says what went wrong at the latest scrape of each target, "" for
// one that went well.
func (s *Server) LastErrors(t testing.TB) []string {
	t.Helper()
	var answer struct {
		ActiveTargets []struct {
			LastError string `json:"lastError"`
		} `json:"activeTargets"`
	}
	if err := s.get(t.Context(), "targets", nil, &answer); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, target := range answer.ActiveTargets {
		out = append(out, target.LastError)
	}
	return out
}

func (s *Server) get(ctx context.Context, path string, query url.Values, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/api/v1/"+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct {
		Status string          `json:"status"`
		Error  string          `json:"error"`
		Data   json.RawMessage `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("the answer %s: %w", resp.Status, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("refused: %s", answer.Error)
	}
	return json.Unmarshal(answer.Data, into)
}
