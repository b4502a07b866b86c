package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// proxyToken is what both proxies expect on their REST API.
const proxyToken = "bench"

// partConfig is what a part of the benchmark is started with.
type partConfig struct {
	Backend     string        `json:",omitempty"`
	Dir         string        `json:",omitempty"`
	Address     string        `json:",omitempty"`
	Cookies     []string      `json:",omitempty"`
	Duration    time.Duration `json:",omitempty"`
	Connections int           `json:",omitempty"`
	WebSocket   bool          `json:",omitempty"`
}

// ready is the one line by which a part says that it serves.
type ready struct {
	Address string
	API     string   `json:",omitempty"`
	Cookies []string `json:",omitempty"` // one session per route
	// WithoutProxy is the process's memory in MiB with database and accounts alone.
	WithoutProxy float64 `json:",omitempty"`
}

// process is a part that runs.
type process struct {
	name  string
	cmd   *exec.Cmd
	ready ready
}

func startPart(ctx context.Context, dir, name string, cfg partConfig) (*process, error) {
	file, err := writeConfig(dir, name, cfg)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "part-"+name, file)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{name: name, cmd: cmd}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &p.ready)
	}
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

func writeConfig(dir, name string, cfg partConfig) (string, error) {
	b, err := json.Marshal(cfg)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, name+".json")
	return file, os.WriteFile(file, b, 0o600)
}

func readConfig(file string) (cfg partConfig, err error) {
	b, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return cfg, err
	}
	return cfg, json.Unmarshal(b, &cfg)
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Wait()
}

func (p *process) resident() float64 { return resident(p.cmd.Process.Pid) }

// resident is a process's memory in MiB.
func resident(pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kib / 1024
		}
	}
	return 0
}

// cpu is the processor time that the process has used.
func (p *process) cpu() time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	// Fields count from after the name, which may hold spaces: utime and stime are the 12th and 13th.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	const tick = time.Second / 100
	return time.Duration(user+system) * tick
}

//go:embed package.json package-lock.json
var lockFiles embed.FS

// installStock puts the stock proxy into the cache folder, once per lock file.
func installStock(ctx context.Context) (script, node string, err error) {
	locked, err := lockFiles.ReadFile("package-lock.json")
	if err != nil {
		return "", "", err
	}
	version, err := exec.CommandContext(ctx, "node", "--version").Output()
	if err != nil {
		return "", "", fmt.Errorf("node and npm are needed (apt-get install npm): %w", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", "", err
	}
	sum := sha256.Sum256(locked)
	dir := filepath.Join(cache, "gpulab", "bench-proxy-"+hex.EncodeToString(sum[:6]))
	script = filepath.Join(dir, "node_modules", "configurable-http-proxy", "bin", "configurable-http-proxy")
	if _, err := os.Stat(script); err == nil {
		return script, strings.TrimSpace(string(version)), nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", "", err
	}
	for _, name := range []string{"package.json", "package-lock.json"} {
		b, err := lockFiles.ReadFile(name)
		if err != nil {
			return "", "", err
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return "", "", err
		}
	}
	cmd := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund", "--loglevel=error")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	return script, strings.TrimSpace(string(version)), nil
}

func startStock(ctx context.Context, script string) (*process, error) {
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "node", script, "--ip", "127.0.0.1", "--port", ports[0],
		"--api-ip", "127.0.0.1", "--api-port", ports[1], "--log-level", "error")
	cmd.Env = append(os.Environ(), "CONFIGPROXY_AUTH_TOKEN="+proxyToken, "NODE_ENV=production")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{
		name: "configurable-http-proxy", cmd: cmd,
		ready: ready{Address: "127.0.0.1:" + ports[0], API: "127.0.0.1:" + ports[1]},
	}
	for range 100 {
		conn, err := net.DialTimeout("tcp", p.ready.API, time.Second)
		if err == nil {
			return p, conn.Close()
		}
		time.Sleep(100 * time.Millisecond)
	}
	p.stop()
	return nil, errors.New("configurable-http-proxy did not start")
}

func freePorts(n int) ([]string, error) {
	var ports []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }()
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}

func handle(i int) string { return fmt.Sprintf("student-%d", i) }

func routePath(i int) string { return "/user/" + handle(i) + "/gpu" }

// podAddress gives every student's notebook an address of its own, as pods have;
// the backend listens on all of them.
func podAddress(backend string, i int) string {
	_, port, _ := net.SplitHostPort(backend)
	return fmt.Sprintf("127.0.1.%d:%s", i+1, port)
}

// addRoutes tells a proxy of every server, as JupyterHub does.
func addRoutes(ctx context.Context, p *process, backend string) error {
	for i := range routeCount {
		body, err := json.Marshal(map[string]any{
			"target": "http://" + podAddress(backend, i), "jupyterhub": true, "user": handle(i), "server_name": "gpu",
		})
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.ready.API+"/api/routes"+routePath(i),
			bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "token "+proxyToken)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusCreated {
			return fmt.Errorf("%s refused a route: %s", p.name, res.Status)
		}
	}
	return nil
}

// outcome is what the load generator reports, and the proxy's time per exchange.
type outcome struct {
	Rate float64 // exchanges per second
	P99  float64 // milliseconds
	Bad  int     // answers that were not what was asked for
	cpu  float64 // microseconds per exchange
}

func (b bench) load(ctx context.Context, dir string, p *process, cookies []string, webSocket bool) (outcome, error) {
	file, err := writeConfig(dir, "load", partConfig{
		Address: p.ready.Address, Cookies: cookies, Duration: b.duration, Connections: b.connections, WebSocket: webSocket,
	})
	if err != nil {
		return outcome{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return outcome{}, err
	}
	cmd := exec.CommandContext(ctx, self, "part-load", file)
	cmd.Stderr = os.Stderr
	before := p.cpu()
	out, err := cmd.Output()
	if err != nil {
		return outcome{}, err
	}
	used := p.cpu() - before
	var o outcome
	if err := json.Unmarshal(out, &o); err != nil {
		return outcome{}, err
	}
	if o.Bad > 0 {
		return outcome{}, fmt.Errorf("%d wrong answers", o.Bad)
	}
	if o.Rate == 0 {
		return outcome{}, errNoRequests
	}
	o.cpu = float64(used.Microseconds()) / (o.Rate * b.duration.Seconds())
	return o, nil
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}
