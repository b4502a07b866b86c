package charts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The line runs where the API is, once, and has no
// say about anybody's pods and jobs.
func TestKueue(t *testing.T) {
	t.Parallel()
	objects := mustRender(t, release(t, sampleInputs(), "kueue"))
	deployment := objects["Deployment kueue-controller-manager"]
	for path, want := range map[string]any{
		"spec.strategy.type":                   "Recreate",
		"spec.template.spec.priorityClassName": "gpulab-system",
	} {
		if got := dotted(t, deployment, path); got != want {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
	container := at(t, deployment, "spec", "template", "spec", "containers", 0)
	for path, want := range map[string]any{"image": "gpulab.local/kueue:0123456789ab", "resources.limits.cpu": nil, "resources.requests.cpu": "10m",
		"readinessProbe.timeoutSeconds": float64(5), "livenessProbe.timeoutSeconds": float64(5), "livenessProbe.failureThreshold": float64(8)} {
		if got := dotted(t, container, path); got != want {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
	var settings map[string]any
	if err := yaml.Unmarshal([]byte(at(t, objects["ConfigMap kueue-manager-config"], "data", "controller_manager_config.yaml").(string)), &settings); err != nil {
		t.Fatal(err)
	}
	if got := dotted(t, settings, "leaderElection.leaderElect"); got != false {
		t.Errorf("it elects a leader: %v", got)
	}
	for _, kind := range []string{"Mutating", "Validating"} {
		hooks, _ := objects[kind+"WebhookConfiguration kueue-"+strings.ToLower(kind)+"-webhook-configuration"]["webhooks"].([]any)
		if len(hooks) < 5 {
			t.Errorf("%d %s webhooks", len(hooks), kind)
		}
		for _, h := range hooks {
			for _, rule := range h.(map[string]any)["rules"].([]any) {
				switch group := at(t, rule, "apiGroups", 0); group {
				case "", "apps", "batch":
					if got := at(t, h, "namespaceSelector", "matchLabels", "gpulab.dev/queued"); got != "jobs" {
						t.Errorf("%v is called for every %v", at(t, h, "name"), at(t, rule, "resources"))
					}
				}
			}
		}
	}
	in := sampleInputs()
	in.HasGPU = false
	for _, r := range Plan(in) {
		if r.Name == "kueue" {
			t.Error("a lab without GPUs has a line for them")
		}
	}
}

// The chart in the checkout is the one of the program's version.
func TestKueueChartIsOfTheProgramsVersion(t *testing.T) {
	t.Parallel()
	// Opened here, so that a change of it makes Go run this test again.
	if _, err := os.ReadFile("../../packaging/images/kueue/go.mod"); err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", "sigs.k8s.io/kueue")
	list.Dir = "../../packaging/images/kueue"
	version, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join("..", "..", "assets", "charts", "kueue", "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var chart struct{ AppVersion string }
	if err := yaml.Unmarshal(data, &chart); err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSpace(string(version)); chart.AppVersion != want {
		t.Errorf("the chart is of %s, the program of %s: go run vendor_kueue.go in internal/charts", chart.AppVersion, want)
	}
}
