package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/packaging/gobuild"
)

// Key is the key of the configuration that only Newer's gpulab knows.
const Key = "later"

// Newer builds a gpulab with its runtime bundle that is newer than that in the sources, and returns its path: it has
// another version, a table more in its database, and knows Key.
func Newer(t testing.TB, version string) string {
	t.Helper()
	repo, folder := Repository(t), t.TempDir()
	config := filepath.Join(repo, "cmd/gpulab/config.go")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	const last = "\tK3s K3sConfig `json:\"k3s,omitempty\"`\n"
	if !strings.Contains(string(text), last) {
		t.Fatalf("%s has changed", config)
	}
	replaced := map[string]string{
		config: strings.Replace(string(text), last,
			last+"\t// Later is a newer version's.\n\tLater string `json:\""+Key+",omitempty\"`\n", 1),
		filepath.Join(repo, "internal/store/migrations/9000_newer.sql"): "-- A newer version's.\n\n-- +goose Up\n\nCREATE " +
			"TABLE newer (id INTEGER PRIMARY KEY) STRICT;\n",
	}
	files := map[string]string{}
	for path, content := range replaced {
		files[path] = filepath.Join(folder, filepath.Base(path))
		if err := os.WriteFile(files[path], []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": files})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(folder, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	from := version + fmt.Sprint(replaced) + Contents(t, filepath.Join(programs(t), "gpulab"))
	kept := Kept(t, "newer-"+version, from, func(into string) {
		build(t, repo, list, version, filepath.Join(into, "gpulab"))
	})
	return filepath.Join(kept, "gpulab")
}

// build builds a gpulab of a version, with files replaced by those of a list.
func build(t testing.TB, repo, list, version, program string) {
	t.Helper()
	gpulab := gobuild.Gpulab(version, program)
	gpulab.Flags = append(gpulab.Flags, "-overlay", list)
	cmd := exec.Command("go", gpulab.Args()...)
	cmd.Dir, cmd.Env = repo, append(gpulab.Env, "PWD="+repo)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("a newer gpulab: %v\n%s", err, out)
	}
}
