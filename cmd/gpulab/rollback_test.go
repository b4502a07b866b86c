package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/upgrade"
	"github.com/gpulab/gpulab/internal/version"
)

// beGpulab is set where the program of these tests is to be gpulab itself.
const beGpulab = "GPULAB_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(beGpulab) != "" {
		main()
	}
	os.Exit(m.Run())
}

// upgraded is a machine that went from version 1 to 2, both of them this program. Only root's commands look at it.
func upgraded(t *testing.T, config string) (dataDir, configPath string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("gpulab's commands about the machine need root")
	}
	t.Setenv(beGpulab, "1") // the kept programs are this one
	dir := t.TempDir()
	dataDir, configPath = filepath.Join(dir, "data"), filepath.Join(dir, "config.yaml")
	images := filepath.Join(dir, "images")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{
		configPath: "dataDir: " + dataDir + "\n" + config, filepath.Join(images, "images.json"): "{}",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	was := version.Version
	t.Cleanup(func() { version.Version = was })
	before := ""
	for _, v := range []string{"1", "2"} {
		version.Version = v
		s, err := store.Open(t.Context(), dataDir)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := upgrade.Keep(dataDir, thisVersion(), exe, images, before); err != nil {
			t.Fatal(err)
		}
		before = v
	}
	return dataDir, configPath
}

func TestRollbackPlan(t *testing.T) {
	_, config := upgraded(t, "")
	socket := filepath.Join(t.TempDir(), "none.sock")
	args := []string{"rollback", "--config", config, "--socket", socket}
	code, out, stderr := gpulab(t, append(args, "--dry-run")...)
	if code != exitOK || !strings.HasPrefix(out, "From gpulab 2 back to gpulab 1.\n") || !strings.Contains(out, "nothing is lost") || !strings.Contains(out, "Notebooks  go on\n") {
		t.Errorf("exit code %d\n%s%s", code, out, stderr)
	}
	var plan upgrade.Plan
	code, out, stderr = gpulab(t, append(args, "--dry-run", "--json")...)
	if err := json.Unmarshal([]byte(out), &plan); code != exitOK || err != nil || plan.From != "2" || plan.To != "1" {
		t.Errorf("exit code %d, %v\n%s%s", code, err, out, stderr)
	}
	// Without a terminal nobody can be asked.
	if code, _, stderr := gpulab(t, args...); code != exitUsage || !strings.Contains(stderr, "--yes") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if code, _, stderr := gpulab(t, append(args, "--json")...); code != exitUsage || !strings.Contains(stderr, "--dry-run") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if u, err := upgrade.Current(filepath.Dir(config), version.Version); err != nil || u.RolledBack() {
		t.Errorf("something happened: %+v, %v", u, err)
	}
}

// A key that the version before does not know would keep it from starting: that is found before anything changes.
func TestRollbackChecksTheConfiguration(t *testing.T) {
	_, config := upgraded(t, "later: 1\n")
	code, out, stderr := gpulab(t, "rollback", "--yes", "--config", config, "--socket", filepath.Join(t.TempDir(), "none.sock"))
	if code != exitPreflight || !strings.Contains(stderr, "gpulab 1 cannot work with the configuration") || !strings.Contains(stderr, "later") {
		t.Errorf("exit code %d\n%s%s", code, out, stderr)
	}
}

func TestRollbackWithoutAVersionBefore(t *testing.T) {
	dataDir, config := upgraded(t, "")
	if err := os.RemoveAll(filepath.Join(dataDir, "versions/1")); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := gpulab(t, "rollback", "--dry-run", "--config", config, "--socket", filepath.Join(filepath.Dir(config), "none.sock"))
	if code != exitPreflight || !strings.Contains(stderr, "gpulab 1 was before, but its program is not kept") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// What ends every notebook happens only when somebody says so.
func TestRollbackToAnotherKubernetes(t *testing.T) {
	dataDir, config := upgraded(t, "")
	path := filepath.Join(dataDir, "versions/1/version.json")
	about, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(about), thisVersion().Kubernetes, "1.1", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := gpulab(t, "rollback", "--yes", "--config", config, "--socket", filepath.Join(filepath.Dir(config), "none.sock"))
	if code != exitPreflight || !strings.Contains(stderr, "--end-notebooks") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	code, out, stderr := gpulab(t, "rollback", "--dry-run", "--end-notebooks", "--config", config, "--socket", filepath.Join(filepath.Dir(config), "none.sock"))
	if code != exitOK || !strings.Contains(out, "all of them end") {
		t.Errorf("exit code %d\n%s%s", code, out, stderr)
	}
}

func TestConfigCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	for content, want := range map[string]string{"lab: A\n": "is right", "labb: A\n": "labb", "httpsPort: 99999\n": "httpsPort is 99999"} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		code, out, stderr := gpulab(t, "config", "check", "--config", path)
		if (code == exitOK) != (want == "is right") || !strings.Contains(out+stderr, want) {
			t.Errorf("%q: exit code %d\n%s%s", content, code, out, stderr)
		}
	}
}

func TestVersionSaysWhatIsInUse(t *testing.T) {
	dataDir, config := upgraded(t, "")
	mark := `{"version": "1", "from": "2", "front": "2", "since": "2026-11-22T10:00:00Z"}`
	if err := os.WriteFile(filepath.Join(dataDir, "versions/in-use.json"), []byte(mark), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, stderr := gpulab(t, "version", "--config", config)
	if code != exitOK || !strings.HasPrefix(out, "gpulab 2\n") || !strings.Contains(out, "runs gpulab 1 since a rollback") {
		t.Errorf("exit code %d\n%s%s", code, out, stderr)
	}
	code, out, stderr = gpulab(t, "rollback", "--dry-run", "--config", config, "--socket", filepath.Join(filepath.Dir(config), "none.sock"))
	if code != exitOK || !strings.HasPrefix(out, "From gpulab 1 forth again to gpulab 2.\n") {
		t.Errorf("exit code %d\n%s%s", code, out, stderr)
	}
}
