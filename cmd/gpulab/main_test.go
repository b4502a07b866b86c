package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/users"
)

// gpulab runs one command line and returns what it did.
func gpulab(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// commands lists all commands but those that cobra brings.
func commands(c *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		if sub.Name() != "help" && sub.Name() != "completion" {
			list = append(list, commands(sub)...)
		}
	}
	return list
}

func TestEveryCommandExplainsItself(t *testing.T) {
	for _, c := range commands(newRoot()) {
		if c.Short == "" || c.Runnable() && c.Example == "" {
			t.Errorf("%s has no description or no example", c.CommandPath())
		}
		for line := range strings.Lines(c.Example) {
			if !strings.HasPrefix(line, "  sudo gpulab ") && !strings.HasPrefix(line, "  gpulab ") {
				t.Errorf("%s: an example that cannot be typed: %s", c.CommandPath(), line)
			}
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s: no word about --%s", c.CommandPath(), f.Name)
			}
		})
		code, out, _ := gpulab(t, append(strings.Fields(c.CommandPath())[1:], "--help")...)
		if c.Name() != "kubectl" && (code != exitOK || !strings.Contains(out, c.Short) && !strings.Contains(out, c.Long)) {
			t.Errorf("%s --help: exit code %d\n%s", c.CommandPath(), code, out)
		}
	}
}

func TestManualPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "man1")
	if code, _, stderr := gpulab(t, "man", dir); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, c := range commands(newRoot()) {
		if c.Hidden {
			continue // for a unit, not for people
		}
		page, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1"))
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.Contains(string(page), ".TH") || c.Example != "" && !strings.Contains(string(page), "EXAMPLE") {
			t.Errorf("the page of %s:\n%s", c.CommandPath(), page)
		}
	}
	if page, err := os.ReadFile(filepath.Join(dir, "gpulab-exit-codes.1")); err != nil || !strings.Contains(string(page), "wrong") {
		t.Errorf("no exit codes in the manual: %v", err)
	}
	if code, _, stderr := gpulab(t, "man", "/dev/null/x"); code != exitFailure || strings.Count(stderr, "\n") != 1 {
		t.Errorf("into no folder: exit code %d: %s", code, stderr)
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if code, out, _ := gpulab(t, "completion", shell); code != exitOK || !strings.Contains(out, "gpulab") {
			t.Errorf("%s: exit code %d\n%.200s", shell, code, out)
		}
	}
	for line, want := range map[string]string{
		"init --gpus ":                    "real simulated none :4",
		"user add x --role ":              "admin lead member guest :4",
		"logs ":                           "gpulab k3s hub probe :4",
		"status ":                         ":4",
		"user remove ":                    "ada ben :4",
		"user undelete ":                  "eve :4",
		"user list --group ":              "vision :4",
		"user set ben --role ":            "admin lead member guest :4",
		"group show ":                     "vision :4",
		"group member add ":               "vision :4",
		"group member add vision ":        "ada ben :4",
		"group member remove vision ben ": "ada :4",
		"init --config ":                  "yaml yml :8",
	} {
		socket := serve(t, &daemon{})
		words := append([]string{"__complete", "--socket", socket}, strings.Split(line, " ")...)
		if _, out, _ := gpulab(t, words...); strings.Join(strings.Fields(out), " ") != want {
			t.Errorf("after %q: %q, want %q", line, out, want)
		}
	}
}

// A command line with a mistake gets one line that names the mistake or the next step, before anything is done.
func TestWrongUse(t *testing.T) {
	for line, says := range map[string]string{
		"--bogus":                    "--help",
		"frobnicate":                 `unknown command "frobnicate"`,
		"statu":                      `did you mean "status"?`,
		"status --bogus":             "gpulab status --help",
		"status surplus":             "gpulab status --help",
		"user frobnicate":            "frobnicate",
		"user add":                   "gpulab user add --help",
		"user add a b":               "gpulab user add --help",
		"logs a b":                   "gpulab logs --help",
		"init surplus":               "gpulab init --help",
		"init --gpus imaginary":      "real, simulated or none",
		"init --simulated-gpus many": "gpulab init --help",
		"init --driver please":       "install, show or skip",
		"driver instal":              `did you mean "install"`,
		"ca --trust --untrust":       "--trust and --untrust exclude each other",
		"man":                        "gpulab man --help",
	} {
		code, out, stderr := gpulab(t, strings.Fields(line)...)
		if code != exitUsage || out != "" || !strings.HasPrefix(stderr, "gpulab: ") || strings.Count(stderr, "\n") != 1 ||
			!strings.Contains(stderr, says) {
			t.Errorf("gpulab %s: exit code %d\n%s%s", line, code, out, stderr)
		}
	}
	if code, out, _ := gpulab(t); code != exitOK || !strings.Contains(out, "Usage:") {
		t.Errorf("without a command: exit code %d", code)
	}
}

// daemon answers on the socket as a running gpulab does.
type daemon struct {
	ctl.Daemon
	state ctl.State
}

func (d *daemon) Status(context.Context) (ctl.Status, error) {
	return ctl.Status{
		Ready: d.state == ctl.OK, URL: "https://10.0.0.5", Version: "1.2.3",
		Nodes: []ctl.Node{{Name: "box", Address: "10.0.0.5", Role: "head", Ready: true}}, GPUs: []gpu.Snapshot{},
		Components: []ctl.Component{{Name: "k3s", State: d.state, Detail: "up"}, {Name: "hub", State: d.state, Detail: "its pod is not ready", NextStep: "wait a minute"}},
	}, nil
}

func (d *daemon) Users(_ context.Context, q users.Query) ([]users.Person, error) {
	if q.State == users.StateRemoved {
		return []users.Person{{User: users.User{Handle: "eve"}}}, nil
	}
	return []users.Person{{User: users.User{Handle: "ada", Role: users.RoleAdmin, UID: 20000}}, {User: users.User{Handle: "ben", Role: users.RoleMember, UID: 20001}}}, nil
}

func (d *daemon) Groups(context.Context) ([]users.Group, error) {
	return []users.Group{{Name: "vision"}}, nil
}

func (d *daemon) Charts(context.Context) ([]ctl.Chart, error) {
	return []ctl.Chart{{Name: "coredns", State: "deployed"}}, nil
}

func (d *daemon) AdminLink(context.Context) (ctl.Link, error) {
	return ctl.Link{}, errors.New("this lab has an admin already: ada")
}

func (d *daemon) PasswordLink(_ context.Context, handle string) (ctl.UserWithLink, error) {
	return ctl.UserWithLink{User: users.User{Handle: handle}, Link: ctl.Link{URL: "https://10.0.0.5/welcome?token=x", Expires: time.Now().Add(time.Hour)}}, nil
}

// serve runs a daemon on a socket of its own.
func serve(t *testing.T, d ctl.Daemon) (socket string) {
	t.Helper()
	socket, _ = serveUntil(t, d)
	return socket
}

// serveUntil is serve for a daemon that may end before the test.
func serveUntil(t *testing.T, d ctl.Daemon) (socket string, end func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpulab") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "s")
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ctl.Serve(ctx, socket, d) }()
	end = sync.OnceFunc(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	t.Cleanup(end)
	for began := time.Now(); time.Since(began) < 30*time.Second; time.Sleep(10 * time.Millisecond) {
		if _, err := ctl.NewClient(socket).Status(t.Context()); err == nil {
			return socket, end
		}
	}
	t.Fatal("the daemon does not answer")
	return "", nil
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func TestStatus(t *testing.T) {
	needRoot(t)
	for state, want := range map[ctl.State]int{ctl.OK: exitOK, ctl.Starting: exitNotReady} {
		socket := serve(t, &daemon{state: state})
		code, out, _ := gpulab(t, "status", "--json", "--socket", socket)
		if code != want {
			t.Errorf("%s: exit code %d, want %d", state, code, want)
		}
		var status map[string]json.RawMessage
		if err := json.Unmarshal([]byte(out), &status); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		if keys := slices.Sorted(maps.Keys(status)); !slices.Equal(keys, []string{"components", "gpus", "network", "nodes", "ready", "url", "version"}) {
			t.Errorf("status --json holds %v", keys)
		}
		var parts []map[string]string
		if err := json.Unmarshal(status["components"], &parts); err != nil {
			t.Fatal(err)
		}
		if keys := slices.Sorted(maps.Keys(parts[1])); !slices.Equal(keys, []string{"detail", "name", "nextStep", "state"}) {
			t.Errorf("a component holds %v", keys)
		}
		if string(status["gpus"]) != "[]" {
			t.Errorf("no GPU is %s", status["gpus"])
		}
		code, out, stderr := gpulab(t, "status", "--socket", socket)
		if code != want || !strings.Contains(out, "https://10.0.0.5  gpulab 1.2.3") || !strings.Contains(out, "wait a minute") {
			t.Errorf("%s: exit code %d\n%s%s", state, code, out, stderr)
		}
	}
}

// TestReadingCommands: everything there is to read is also there as JSON.
func TestReadingCommands(t *testing.T) {
	needRoot(t)
	socket := serve(t, &daemon{state: ctl.OK})
	for _, args := range [][]string{{"gpus"}, {"charts"}, {"user", "list"}, {"group", "list"}, {"user", "passwd", "ada"}, {"version"}, {"status"}} {
		code, out, stderr := gpulab(t, append(args, "--json", "--socket", socket)...)
		if code != exitOK || !json.Valid([]byte(out)) || stderr != "" {
			t.Errorf("%v --json: exit code %d\n%s%s", args, code, out, stderr)
		}
		if code, out, stderr := gpulab(t, append(args, "--socket", socket)...); code != exitOK || out == "" || stderr != "" {
			t.Errorf("%v: exit code %d\n%s%s", args, code, out, stderr)
		}
	}
	code, out, stderr := gpulab(t, "admin-link", "--socket", socket)
	if code != exitFailure || out != "" || !strings.Contains(stderr, "has an admin already") {
		t.Errorf("a refusal: exit code %d\n%s%s", code, out, stderr)
	}
	code, _, stderr = gpulab(t, "status", "--socket", socket+".none")
	if code != exitNotRunning || !strings.Contains(stderr, "gpulab init") {
		t.Errorf("nobody there: exit code %d: %s", code, stderr)
	}
	code, _, stderr = gpulab(t, "user", "remove", "ada", "--socket", socket)
	if code != exitUsage || !strings.Contains(stderr, "--yes") {
		t.Errorf("a removal without a terminal or --yes: exit code %d: %s", code, stderr)
	}
}
