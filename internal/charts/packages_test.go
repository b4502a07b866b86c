package charts

import (
	"fmt"
	"testing"
)

// The cache of packages has no rights, keeps what the configuration says, and asks
// nothing that runs in the cluster.
func TestPackages(t *testing.T) {
	t.Parallel()
	objects := mustRender(t, release(t, sampleInputs(), "packages"))
	pod := at(t, objects["Deployment packages"], "spec", "template", "spec")
	for path, want := range map[string]any{
		"automountServiceAccountToken":  false,
		"securityContext.runAsNonRoot":  true,
		"securityContext.runAsUser":     float64(65001),
		"securityContext.runAsGroup":    float64(65001),
		"nodeSelector":                  map[string]any{"node-role.kubernetes.io/control-plane": "true"},
		"priorityClassName":             "gpulab-system",
		"terminationGracePeriodSeconds": float64(10),
	} {
		if got := dotted(t, pod, path); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
	container := at(t, pod, "containers", 0)
	for path, want := range map[string]any{
		"image":                                  "gpulab.local/packages:0123456789ab",
		"args":                                   []any{"-dir=/cache", "-index=https://pypi.org/simple", "-keep=21474836480", "-models-dir=/models", "-hub=https://huggingface.co", "-hub-files=.hf.co,.huggingface.co", "-models-keep=53687091200"},
		"env":                                    []any{map[string]any{"name": "GOMEMLIMIT", "value": "192MiB"}, map[string]any{"name": "HTTPS_PROXY", "value": "http://proxy.example.org:3128"}},
		"securityContext.readOnlyRootFilesystem": true,
		"securityContext.allowPrivilegeEscalation": false,
		"securityContext.capabilities.drop":        []any{"ALL"},
	} {
		if got := dotted(t, container, path); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
	in := sampleInputs()
	in.Packages.Authorities = "a8b9"
	if got := at(t, mustRender(t, release(t, in, "packages"))["Deployment packages"], "spec", "template", "metadata", "annotations"); fmt.Sprint(got) != "map[gpulab.dev/authorities:a8b9]" {
		t.Errorf("with another list of authorities the pod is %v", got)
	}
	policy := objects["NetworkPolicy packages"]
	if got := at(t, policy, "spec", "egress", 1, "to", 0, "ipBlock", "except"); fmt.Sprint(got) != "[127.0.0.0/8 169.254.0.0/16 10.42.0.0/16 10.43.0.0/16]" {
		t.Errorf("it never asks %v", got)
	}
	if got := at(t, policy, "spec", "ingress", 0, "from", 0); fmt.Sprint(got) != "map[namespaceSelector:map[matchExpressions:[map[key:gpulab.dev/user operator:Exists]]]]" {
		t.Errorf("it is asked by %v", got)
	}
}
