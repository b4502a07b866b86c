package embedk8s

import (
	"os"
	"regexp"
	"testing"
)

// TestKubernetesMinor: what is said of the Kubernetes in the bundle is so.
func TestKubernetesMinor(t *testing.T) {
	gomod, err := os.ReadFile("../../packaging/runtime/k3s/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes => github\.com/k3s-io/kubernetes v(\d+\.\d+)\.`).FindSubmatch(gomod)
	if found == nil || string(found[1]) != KubernetesMinor {
		t.Errorf("KubernetesMinor is %s, and packaging/runtime/k3s/go.mod has %q", KubernetesMinor, found)
	}
}
