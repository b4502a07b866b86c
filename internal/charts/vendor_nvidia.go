//go:build ignore

// Command vendor_nvidia copies NVIDIA's chart of the device plugin, unchanged,
// out of the Go module that also holds the plugin's source, so that chart and
// program are always of one version. Run it with "go generate" after changing
// the version; a test holds the copy against the module.
package main

import (
	"encoding/json"
	"log"
	"os"
	"os/exec"
	"path/filepath"
)

const (
	module = "github.com/NVIDIA/k8s-device-plugin@v0.19.0"
	inside = "deployments/helm/nvidia-device-plugin"
	target = "../../assets/charts/nvidia-device-plugin"
)

func main() {
	log.SetFlags(0)
	out, err := exec.Command("go", "mod", "download", "-json", module).Output()
	if err != nil {
		log.Fatalf("downloading %s: %v", module, err)
	}
	var m struct{ Dir string }
	if err := json.Unmarshal(out, &m); err != nil {
		log.Fatalf("reading go's answer: %v", err)
	}
	if err := os.RemoveAll(target); err != nil {
		log.Fatal(err)
	}
	if err := os.CopyFS(target, os.DirFS(filepath.Join(m.Dir, inside))); err != nil {
		log.Fatalf("copying the chart: %v", err)
	}
	// Files of the module cache are read-only; the copy is an ordinary part of
	// the checkout.
	err = filepath.WalkDir(target, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Chmod(path, 0o755)
		}
		return os.Chmod(path, 0o644)
	})
	if err != nil {
		log.Fatal(err)
	}
}
