package embedk8s

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
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

// TestCheckMinor: Kubernetes goes one minor version forth at a time, and not back.
func TestCheckMinor(t *testing.T) {
	for _, tc := range []struct{ had, minor, says string }{
		{"", "1.35", ""},
		{"1.35\n", "1.35", ""},
		{"1.34\n", "1.35", ""},
		{"1.33\n", "1.35", "install a gpulab with Kubernetes 1.34 first"},
		{"1.9\n", "1.35", "install a gpulab with Kubernetes 1.10 first"},
		{"1.36\n", "1.35", "install the newer gpulab again"},
		{"nonsense", "1.35", "nonsense"},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, minorFile)
		if tc.had != "" {
			if err := os.WriteFile(path, []byte(tc.had), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		changed, err := checkMinor(dir, tc.minor)
		if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("from %q to %s: %v, want %q", tc.had, tc.minor, err, tc.says)
		}
		if want := tc.says == "" && tc.had != tc.minor+"\n"; changed != want {
			t.Errorf("from %q to %s: changed %v", tc.had, tc.minor, changed)
		}
		now, _ := os.ReadFile(path)
		if want := map[bool]string{true: tc.minor + "\n", false: tc.had}[err == nil]; string(now) != want {
			t.Errorf("from %q to %s it says %q afterwards", tc.had, tc.minor, now)
		}
	}
}
