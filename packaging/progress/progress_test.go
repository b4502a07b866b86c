package progress

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// screen returns a reporter that writes to a file, and what the file holds.
func screen(t *testing.T) (*Reporter, func() string) {
	t.Helper()
	t.Setenv(environment, "")
	path := filepath.Join(t.TempDir(), "screen")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close() })
	return New(out), func() string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

func TestFinishedPartsStayAsLines(t *testing.T) {
	r, shown := screen(t)
	k3s := r.Begin("k3s")
	r.running[0].since = time.Now().Add(-83 * time.Second)
	k3s.Status("1 of 2 packages")
	broken := r.Begin("broken")
	k3s.Done("%d MB", 88)
	broken.Failed()
	r.Cached("oci")
	r.Line("two\nlines")
	r.Cached("cni")
	r.Close()
	const want = "  k3s          built in 1 min 23 s, 88 MB\n  two\n  lines\n  from the cache: oci, cni\n"
	if got := shown(); got != want {
		t.Errorf("the screen shows\n%s, want\n%s", got, want)
	}
}

func TestWhatIsAtWork(t *testing.T) {
	for name, c := range map[string]struct {
		width int
		want  string
	}{
		"in a log":           {0, "  0 s · k3s 2 of 9 packages · hub · 2 modules downloaded\n"},
		"on a terminal":      {80, "\r\x1b[K  0 s · k3s 2 of 9 packages · hub · 2 modules downloaded\r\x1b[K"},
		"on a small display": {20, "\r\x1b[K  0 s · k3s 2 of 9…\r\x1b[K"},
	} {
		t.Run(name, func(t *testing.T) {
			r, shown := screen(t)
			r.width = c.width
			var rest bytes.Buffer
			k3s := r.Begin("k3s").Build("", 9, &rest)
			r.Begin("hub")
			for _, text := range []string{
				"go: downloading example.com/a v1.0.0\ngo: downl", "oading example.com/b v1.2.3\nexample.com/a\n",
				"example.com/b\n# example.com/c\nc.go:1:2: not Go\n",
			} {
				if _, err := k3s.Write([]byte(text)); err != nil {
					t.Fatal(err)
				}
			}
			r.mu.Lock()
			r.status()
			r.mu.Unlock()
			r.Close()
			if got := shown(); got != c.want {
				t.Errorf("the screen shows %q, want %q", got, c.want)
			}
			if want := "# example.com/c\nc.go:1:2: not Go\n"; rest.String() != want {
				t.Errorf("the rest is %q, want %q", rest.String(), want)
			}
		})
	}
}

// A program that reports shows its parts on the screen of the one that started it.
func TestProgramThatReports(t *testing.T) {
	if os.Getenv(environment) == "json" {
		r := New(os.Stdout)
		r.Begin("k3s").Done("88 MB")
		r.Cached("oci")
		r.Line("a line")
		r.Begin("hub").Status("unpacking")
		os.Stderr.WriteString("go: downloading example.com/a v1.0.0\nan error without an end of line")
		r.Close()
		os.Exit(0)
	}
	r, shown := screen(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestProgramThatReports$")
	ended := r.Show(cmd)
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	ended()
	if len(r.running) != 1 || r.running[0].name != "hub" || r.running[0].status != "unpacking" || r.downloads != 1 {
		t.Errorf("%d parts are at work and %d modules downloaded", len(r.running), r.downloads)
	}
	r.Close()
	for _, want := range []string{
		"  k3s          built in 0 s, 88 MB\n", "  a line\n", "  an error without an end of line\n", "  from the cache: oci\n",
	} {
		if !strings.Contains(shown(), want) {
			t.Errorf("the screen shows\n%swhich has no line %q", shown(), want)
		}
	}
}
