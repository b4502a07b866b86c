package deb

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/store"
)

// TestPreinst: what cannot work is refused before anything changes, with the way that does.
//
//test:about packaging/deb
func TestPreinst(t *testing.T) {
	known, _ := store.Known()
	const back = "sudo gpulab rollback"
	for _, tc := range []struct {
		what       string
		schema     int64  // that the package knows
		minor      string // of Kubernetes, in the package
		lab, runs  string // what there is of a lab: nothing, a database, a database elsewhere; its Kubernetes
		action     string
		says, next string
	}{
		{what: "a first installation", schema: known, minor: "1.35", action: "install"},
		{what: "an upgrade without a lab", schema: known, minor: "1.35", action: "upgrade"},
		{what: "the same form", schema: known, minor: "1.35", lab: "var/lib/gpulab", runs: "1.35", action: "upgrade"},
		{what: "a newer form", schema: known + 5, minor: "1.35", lab: "var/lib/gpulab", runs: "1.35", action: "upgrade"},
		{what: "an older form", schema: known - 1, minor: "1.35", lab: "var/lib/gpulab", runs: "1.35", action: "upgrade", says: "cannot read it", next: back},
		{what: "an older form elsewhere", schema: known - 1, minor: "1.35", lab: "srv/lab", action: "install", says: "cannot read it", next: back},
		{what: "the next Kubernetes", schema: known, minor: "1.36", lab: "var/lib/gpulab", runs: "1.35", action: "upgrade"},
		{what: "an older Kubernetes", schema: known, minor: "1.34", lab: "var/lib/gpulab", runs: "1.35", action: "upgrade", says: "brings 1.34", next: back},
		{what: "a jump", schema: known, minor: "1.37", lab: "var/lib/gpulab", runs: "1.35", action: "upgrade", says: "one version at a time", next: "sudo apt install gpulab=0.8.3"},
		{what: "a jump over what this package does not know", schema: known, minor: "1.39", lab: "var/lib/gpulab", runs: "1.37", action: "upgrade", says: "with Kubernetes 1.38", next: "sudo apt install gpulab"},
		{what: "an upgrade that is taken back", schema: known - 1, minor: "1.34", lab: "var/lib/gpulab", runs: "1.35", action: "abort-upgrade"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			machine := t.TempDir()
			if tc.lab != "" {
				makeLab(t, machine, tc.lab, tc.runs)
			}
			script := filepath.Join(t.TempDir(), "preinst")
			text, err := os.ReadFile("../../packaging/deb/gpulab/preinst")
			if err != nil {
				t.Fatal(err)
			}
			filled := strings.NewReplacer("@VERSION@", "1.2.3", "@SCHEMA@", fmt.Sprint(tc.schema), "@KUBERNETES@", tc.minor,
				"@RELEASES@", "1.35 0.7.9\n1.36 0.8.3").Replace(string(text))
			if err := os.WriteFile(script, []byte(filled), 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("sh", script, tc.action, "0.7.0")
			cmd.Env = append(os.Environ(), "DPKG_ROOT="+machine)
			out, err := cmd.CombinedOutput()
			if (err != nil) != (tc.says != "") {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, want := range []string{tc.says, tc.next} {
				if !strings.Contains(string(out), want) {
					t.Errorf("it does not say %q:\n%s", want, out)
				}
			}
			if tc.says == "" && len(out) > 0 || strings.Contains(string(out), "@") {
				t.Errorf("it says:\n%s", out)
			}
		})
	}
}

// makeLab makes what a lab leaves on a machine, with a real database that is open.
func makeLab(t *testing.T, machine, data, kubernetes string) {
	t.Helper()
	dir := filepath.Join(machine, data)
	s, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	files := map[string]string{"etc/gpulab/config.yaml": fmt.Sprintf("lab: \"A\"\ndataDir: \"/%s\"\n", data)}
	if kubernetes != "" {
		files[filepath.Join(data, "k3s/minor")] = kubernetes + "\n"
	}
	for name, content := range files {
		path := filepath.Join(machine, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
