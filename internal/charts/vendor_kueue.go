//go:build ignore

// Command vendor_kueue copies Kueue's chart out of the Go module that also holds
// the manager's source, so that chart and program are always of one version: the
// one in packaging/images/kueue/go.mod. After changing that, go run it in this
// folder; a test compares the versions.
//
// Left out is what a lab has no use for: the dashboard, the monitoring of
// another operator, and roles for people with access to the cluster. Of the
// definitions of kinds their descriptions are left out, two thirds of them. Its
// Deployment never runs two managers at once: without the election of a leader,
// which would write to the cluster's database every two seconds, they would give
// the same GPU away twice.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	module = "sigs.k8s.io/kueue"
	builds = "../../packaging/images/kueue"
	inside = "charts/kueue"
	target = "../../assets/charts/kueue"
)

// unused matches files of the chart that the copy leaves out.
var unused = regexp.MustCompile(`^(README|tests/|templates/(kueueviz|prometheus|certmanager|visibility-apf)/|templates/rbac/.*_(editor|viewer)_role\.yaml$|templates/rbac/batch_.*_role\.yaml$)`)

func main() {
	log.SetFlags(0)
	list := exec.Command("go", "list", "-m", "-json", module)
	list.Dir = builds
	out, err := list.Output()
	if err != nil {
		log.Fatalf("finding %s: %v", module, err)
	}
	var m struct{ Dir string }
	if err := json.Unmarshal(out, &m); err != nil {
		log.Fatalf("reading go's answer: %v", err)
	}
	if m.Dir == "" {
		log.Fatalf("%s is not in the module cache; run go mod download in %s", module, builds)
	}
	if err := os.RemoveAll(target); err != nil {
		log.Fatal(err)
	}
	if err := copyChart(filepath.Join(m.Dir, inside)); err != nil {
		log.Fatalf("copying the chart: %v", err)
	}
}

func copyChart(from string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil || unused.MatchString(name) {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text := string(data)
		switch {
		case strings.HasPrefix(name, "templates/crd/"):
			text = withoutDescriptions(text)
		case name == "templates/manager/manager.yaml":
			if text, err = oneAtATime(text); err != nil {
				return err
			}
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(target, name)), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(target, name), []byte(text), 0o644)
	})
}

// oneAtATime makes the Deployment end the old manager before it starts the new one.
func oneAtATime(text string) (string, error) {
	const replicas = "  replicas: {{ .Values.controllerManager.replicas }}\n"
	if strings.Count(text, replicas) != 1 {
		return "", fmt.Errorf("the Deployment has no line %q any more", replicas)
	}
	return strings.Replace(text, replicas, replicas+"  strategy:\n    type: Recreate\n", 1), nil
}

// withoutDescriptions works on lines, because a template is no YAML yet. What is
// called description and has no text of its own is a field of some kind.
func withoutDescriptions(text string) string {
	var kept []string
	within := -1 // the indentation of the description that is being left out
	for _, line := range strings.Split(text, "\n") {
		rest := strings.TrimLeft(line, " ")
		indent := len(line) - len(rest)
		if within >= 0 && (rest == "" || indent > within) {
			continue
		}
		within = -1
		if strings.HasPrefix(rest, "description: ") {
			within = indent
			continue
		}
		kept = append(kept, line)
	}
	return strings.TrimRight(strings.Join(kept, "\n"), "\n") + "\n"
}
