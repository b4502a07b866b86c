package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
)

// alone tells a test that it runs in a network of its own.
const alone = "GPULAB_TEST_ALONE"

// TestServeGoesOnTrying: gpulab itself, on a machine without a network, says so
// to command and browser; when an address appears it is there at once, and the
// next thing in its way, a data folder that is broken, is told and tried again.
func TestServeGoesOnTrying(t *testing.T) {
	needRoot(t)
	if os.Getenv(alone) == "" {
		cmd := exec.CommandContext(t.Context(), "unshare", "--net", os.Args[0], "-test.v", "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), alone+"=yes")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	ip(t, "link", "set", "lo", "up")
	dir, err := os.MkdirTemp("/tmp", "gpulab") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config, socket := servable(t, dir), filepath.Join(dir, "s")
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan int, 1)
	go func() {
		served <- run(ctx, []string{"serve", "--config", config, "--socket", socket}, strings.NewReader(""), io.Discard, t.Output())
	}()
	status := func() (s ctl.Status, parts map[string]string) {
		parts = map[string]string{}
		s, err := ctl.NewClient(socket).Status(ctx)
		if err == nil {
			for _, c := range s.Components {
				parts[c.Name] = fmt.Sprintf("%s: %s; %s", c.State, c.Detail, c.NextStep)
			}
		}
		return s, parts
	}
	var s ctl.Status
	var parts map[string]string
	until := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(3 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
			if s, parts = status(); is() {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("after 3 minutes it is not so: %s\n%v", what, parts)
			}
		}
	}
	until("status says that there is no network", func() bool { return strings.Contains(parts["address"], "no network address") })
	if s.Ready || s.URL != "https://localhost" || s.Nodes[0].Address != "" {
		t.Errorf("without a network: ready %v, at %s, node at %q", s.Ready, s.URL, s.Nodes[0].Address)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	page, err := client.Get("https://127.0.0.1/")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(page.Body)
	_ = page.Body.Close()
	if page.StatusCode != http.StatusServiceUnavailable || !bytes.Contains(body, []byte("no network address")) {
		t.Errorf("the page without a network: status %d\n%s", page.StatusCode, body)
	}

	ip(t, "link", "add", "wifi0", "type", "veth", "peer", "name", "air0")
	ip(t, "link", "set", "wifi0", "up")
	ip(t, "address", "add", "10.9.8.7/24", "dev", "wifi0")
	until("it is at the new address", func() bool {
		return s.URL == "https://10.9.8.7" && strings.HasPrefix(parts["address"], "ok: 10.9.8.7 on wifi0")
	})
	until("the next obstacle is told, with the next try", func() bool {
		return strings.HasPrefix(parts["start"], "failed") && strings.Contains(parts["runtime"], "failed") && strings.Contains(parts["start"], "tried again by itself at")
	})
	until("it is tried again", func() bool {
		return strings.Contains(parts["start"], "try ") || strings.HasPrefix(parts["start"], "failed")
	})
	// init, which watches, ends with the try.
	var out bytes.Buffer
	if _, err := followBoot(ctx, &app{socket: socket}, &out); err == nil || !strings.Contains(err.Error(), "again by itself at") || strings.Contains(err.Error(), "\n") {
		t.Errorf("init says %v\n%s", err, out.String())
	}
	stop()
	if code := <-served; code != 0 {
		t.Errorf("ended with code %d", code)
	}
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// servable is a configuration that gpulab starts with, and gets as far with as
// unpacking the runtime: where that belongs, there is a file.
func servable(t *testing.T, dir string) (config string) {
	t.Helper()
	var images []string
	for _, name := range []string{"pause", "coredns", "nvidia-device-plugin", "kueue", "packages", "hub", "notebook"} {
		images = append(images, fmt.Sprintf(`{"name": %q, "ref": "gpulab.local/%s:1", "digest": "sha256:00"}`, name, name))
	}
	config = filepath.Join(dir, "config.yaml")
	for path, text := range map[string]string{
		config:                                   fmt.Sprintf("dataDir: %[1]s/data\nimagesDir: %[1]s/images\n", dir),
		filepath.Join(dir, "images/images.json"): `{"images": [` + strings.Join(images, ", ") + `]}`,
		filepath.Join(dir, "data/bin"):           "no folder",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return config
}
