package doctor

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestProbesAreFiles: each probe is a file of its own name with a test, and is
// described.
func TestProbesAreFiles(t *testing.T) {
	table, err := os.ReadFile("doctor_test.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	group := ""
	for _, p := range all() {
		if seen[p.Name] || !regexp.MustCompile(`^[a-z]+$`).MatchString(p.Name) {
			t.Errorf("%q is no name of a probe, or there are two", p.Name)
		}
		seen[p.Name] = true
		if p.Looks == "" || p.Group == "" || p.look == nil || !slices.Contains([]string{Stops, Warns, Later}, p.Init) {
			t.Errorf("%s is not described: %+v", p.Name, p)
		}
		if p.Group != group && slices.ContainsFunc(all(), func(q Probe) bool { return q.Group == p.Group && seen[q.Name] && q.Name != p.Name }) {
			t.Errorf("the group %s is in two places", p.Group)
		}
		group = p.Group
		code, err := os.ReadFile(p.Name + ".go")
		if err != nil || !strings.Contains(strings.ToLower(string(code)), "func probe"+p.Name+"(h host") && !strings.Contains(strings.ToLower(string(code)), "func probe"+p.Name+"(_ host") {
			t.Errorf("%s.go is not the probe %s (%v)", p.Name, p.Name, err)
		}
		if _, err := os.Stat(p.Name + "_test.go"); err != nil && !strings.Contains(string(table), `probe: "`+p.Name+`"`) {
			t.Errorf("the probe %s has no test", p.Name)
		}
	}
	if len(Probes()) != len(all())-1 || len(forInit()) >= len(all()) {
		t.Errorf("the doctor has %d probes, init %d, of %d", len(Probes()), len(forInit()), len(all()))
	}
}

// strange is a machine whose files hold nothing that one would expect.
func strange(t *testing.T, content string) host {
	h := machine(t, nil)
	h.output = func(context.Context, string, ...string) (string, error) { return content, nil }
	files := []string{"/var/lib/gpulab/identity.json", "/var/lib/gpulab/tls/ca.crt", "/var/lib/gpulab/tls/ca.key", "/var/lib/gpulab/tls/web.pem",
		"/var/lib/gpulab/k3s/server/tls/x.crt", "/etc/environment", "/proc/self/mounts", "/proc/sys/user/max_user_namespaces", "/img/images.json", "/run/systemd/system/x", "/etc/systemd/system/gpulab.service"}
	err := filepath.WalkDir(h.root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, strings.TrimPrefix(path, h.root))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		write(t, h.path(file), content)
	}
	return h
}

// TestStrangeMachines: whatever a machine's files hold, every probe ends, and
// what it says can be followed.
func TestStrangeMachines(t *testing.T) {
	opts := Options{DataDir: "/var/lib/gpulab", ImagesDir: "/img", Socket: "/run/s", Ports: labPorts}
	machines := map[string]func(*testing.T) host{
		"empty":   func(t *testing.T) host { h := machine(t, nil); h.root = t.TempDir(); return h },
		"nothing": func(t *testing.T) host { return strange(t, "") },
		"words": func(t *testing.T) host {
			return strange(t, "lorem ipsum = \"dolor\n*filter\n:INPUT\n-A\n-A INPUT -j\n")
		},
		"null": func(t *testing.T) host { return strange(t, "null") },
		"rules": func(t *testing.T) host {
			return strange(t, `{"nftables":[{"chain":{"family":"ip","table":"a","name":"b","type":"filter","hook":"input","policy":"drop"}},{"rule":{"family":"ip","table":"a","chain":"b","expr":[{"match":null},{"vmap":{}},{"jump":{"target":"b"}},{"match":{"op":"==","left":{"meta":{}},"right":[[]]}}]}}]}`)
		},
		"zeroes": func(t *testing.T) host { return strange(t, strings.Repeat("\x00", 5000)) },
	}
	for name, make := range machines {
		t.Run(name, func(t *testing.T) {
			h := make(t)
			h.run(t.Context(), all(), opts, Watcher{Done: func(p Probe, found []Finding) {
				for _, f := range found {
					checkFinding(t, p.Name, f)
				}
			}})
		})
	}
}

// TestNothingChanges runs everything on a machine of files and compares these.
func TestNothingChanges(t *testing.T) {
	h, _, _ := certified(t, "192.0.2.7")
	state := func() map[string]string {
		files := map[string]string{}
		err := filepath.WalkDir(h.root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			content, _ := os.ReadFile(path)
			files[path] = info.Mode().String() + info.ModTime().String() + string(content)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	before := state()
	h.run(t.Context(), all(), Options{DataDir: "/var/lib/gpulab"}, Watcher{})
	if after := state(); !maps.Equal(before, after) {
		t.Error("the probes have changed files")
	}
}

// readers are the programs that probes may run, which only read.
var readers = map[string]string{"iptables-save": "", "nft": "-j list ruleset", "systemctl": "show", "getent": ""}

// TestOnlyReading looks into the code: no probe calls what changes a machine,
// and none runs another program than those that read.
func TestOnlyReading(t *testing.T) {
	changes := regexp.MustCompile(`^(Write|Create|Remove|Rename|Mkdir|Chmod|Chown|Chtimes|Symlink|Link|Truncate|OpenFile|Setenv|Mount|Unmount|Kill|Reboot|Settime|Setns|Unshare|Start|Run|CombinedOutput)`)
	packages, err := parser.ParseDir(token.NewFileSet(), ".", func(i fs.FileInfo) bool { return !strings.HasSuffix(i.Name(), "_test.go") }, 0) //nolint:staticcheck // it is one package without build tags
	if err != nil {
		t.Fatal(err)
	}
	ran := map[string]bool{}
	ast.Inspect(packages["doctor"], func(n ast.Node) bool {
		call, isCall := n.(*ast.CallExpr)
		if !isCall {
			return true
		}
		selector, isSelector := call.Fun.(*ast.SelectorExpr)
		if !isSelector {
			return true
		}
		from, _ := selector.X.(*ast.Ident)
		if from != nil && slices.Contains([]string{"os", "unix", "syscall", "exec"}, from.Name) && changes.MatchString(selector.Sel.Name) {
			t.Errorf("a probe calls %s.%s", from.Name, selector.Sel.Name)
		}
		if selector.Sel.Name == "output" {
			var words []string
			for _, arg := range call.Args[1:] {
				if literal, ok := arg.(*ast.BasicLit); ok {
					words = append(words, strings.Trim(literal.Value, `"`))
				}
			}
			args, known := readers[words[0]]
			if !known || !strings.HasPrefix(strings.Join(words[1:], " "), args) {
				t.Errorf("a probe runs %q", words)
			}
			ran[words[0]] = true
		}
		return true
	})
	if len(ran) != len(readers) {
		t.Errorf("the probes run %v, and may run %v", ran, readers)
	}
}

// TestHangingProbe: one that hangs does not keep the others, and is named.
func TestHangingProbe(t *testing.T) {
	wait := make(chan struct{})
	defer close(wait)
	probes := []Probe{
		{Name: "first", Looks: "whether it rains", look: func(host, Options) []Finding { <-wait; return nil }},
		{Name: "second", look: func(host, Options) []Finding { return []Finding{{Probe: "second", State: OK, Seen: "Well."}} }},
	}
	var waited, done []string
	var first Finding
	Run(t.Context(), probes, Options{Limit: 2 * time.Second}, Watcher{
		Waiting: func(p Probe) { waited = append(waited, p.Name) },
		Done: func(p Probe, found []Finding) {
			done = append(done, p.Name)
			if p.Name == "first" {
				first = found[0]
			}
		},
	})
	checkFinding(t, "first", first)
	if first.State != Warn || !strings.Contains(first.Seen, "within 2s: whether it rains") || !slices.Equal(waited, []string{"first"}) || !slices.Equal(done, []string{"first", "second"}) {
		t.Errorf("waited for %v, done %v: %s", waited, done, first)
	}
	// An interruption ends it at once, without a word about what was not seen.
	ctx, cancel := context.WithCancel(t.Context())
	go func() { time.Sleep(50 * time.Millisecond); cancel() }()
	Run(ctx, probes, Options{}, Watcher{Done: func(p Probe, _ []Finding) { t.Errorf("%s after the interruption", p.Name) }})
}

// TestInitWarns: what only warns does not stop init, and fails at the doctor's.
func TestInitWarns(t *testing.T) {
	h := walled(t, "ufw.save", "")
	opts := Options{DataDir: "/var/lib/gpulab"}
	at := func(list []Finding) Finding {
		return list[slices.IndexFunc(list, func(f Finding) bool { return f.Probe == "firewall" })]
	}
	if f := at(preflight(t.Context(), h, opts)); f.State != Warn {
		t.Errorf("at init: %s %s", f.State, f)
	}
	if f := at(look(t, h, "firewall", opts)); f.State != Fail {
		t.Errorf("at the doctor's: %s %s", f.State, f)
	}
}
