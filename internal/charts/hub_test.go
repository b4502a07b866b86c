package charts

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// hubFiles writes what the hub's pod would have mounted and returns the path of
// its configuration and the environment that goes with it.
func hubFiles(t *testing.T, r Release) (config string, env []string) {
	t.Helper()
	objects := mustRender(t, r)
	dir := t.TempDir()
	config = filepath.Join(dir, "jupyterhub_config.py")
	write(t, config, at(t, objects["ConfigMap hub"], "data", "jupyterhub_config.py").(string))
	values, err := base64.StdEncoding.DecodeString(at(t, objects["Secret hub"], "data", "values.json").(string))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "values.json"), string(values))
	kubeconfig := filepath.Join(dir, "kubeconfig")
	write(t, kubeconfig, nobodysKubeconfig)
	return config, append(os.Environ(),
		"POD_NAMESPACE=gpulab-system",
		"GPULAB_HUB_VALUES="+filepath.Join(dir, "values.json"),
		"KUBECONFIG="+kubeconfig,
	)
}

// nobodysKubeconfig lets KubeSpawner start; nothing listens there.
const nobodysKubeconfig = `{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:9"}}],
"users":[{"name":"u","user":{}}],
"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}]}`

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// spawned is what testdata/pod.py prints.
type spawned struct {
	Error       string
	Namespace   string
	HTTPTimeout int
	Pod         map[string]any
}

// spawn asks the real KubeSpawner, with the chart's configuration, for the pod
// of one start.
func spawn(t *testing.T, r Release, handle, server string, options map[string]any) spawned {
	t.Helper()
	config, env := hubFiles(t, r)
	raw, err := json.Marshal(options)
	if err != nil {
		t.Fatal(err)
	}
	out := runHubPython(t, env, "testdata/pod.py", config, handle, server, string(raw))
	var s spawned
	if err := json.Unmarshal(out, &s); err != nil {
		t.Fatalf("reading what pod.py printed: %v\n%s", err, out)
	}
	return s
}

// The pod keeps to the contract between hub, gpulab and the user's namespace.
func TestNotebookPod(t *testing.T) {
	t.Parallel()
	s := spawn(t, release(t, sampleInputs(), "jupyterhub"), "ada-l", "gpu-1",
		map[string]any{"uid": 20001, "profile": "gpu", "launch": 7})
	if s.Error != "" {
		t.Fatal(s.Error)
	}
	if s.Namespace != "user-ada-l" {
		t.Errorf("namespace %q", s.Namespace)
	}
	if s.HTTPTimeout < 600 {
		t.Errorf("a hub that restarts would stop servers after %d s", s.HTTPTimeout)
	}
	container := at(t, s.Pod, "spec", "containers", 0)
	for path, want := range map[string]any{
		"metadata.labels.app.kubernetes.io/component": "notebook",
		"metadata.labels.gpulab.dev/user":             "ada-l",
		"metadata.labels.gpulab.dev/notebook":         "gpu-1",
		"metadata.labels.gpulab.dev/launch":           "7",
		"spec.automountServiceAccountToken":           false,
		"spec.enableServiceLinks":                     false,
		"spec.hostUsers":                              false,
		"spec.restartPolicy":                          "Never",
		"spec.priorityClassName":                      "gpulab-notebook",
		"spec.securityContext.seccompProfile.type":    "RuntimeDefault",
	} {
		if got := dotted(t, s.Pod, path); got != want {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
	for path, want := range map[string]any{
		"image":                                    "gpulab.local/notebook:0123456789ab",
		"imagePullPolicy":                          "IfNotPresent",
		"workingDir":                               "/home/ada-l",
		"resources.limits.nvidia.com/gpu":          "1",
		"securityContext.runAsUser":                20001.0,
		"securityContext.runAsGroup":               20001.0,
		"securityContext.runAsNonRoot":             true,
		"securityContext.allowPrivilegeEscalation": false,
		"securityContext.privileged":               nil,
	} {
		if got := dotted(t, container, path); got != want {
			t.Errorf("container: %s is %v, want %v", path, got, want)
		}
	}
	if got := at(t, container, "securityContext", "capabilities", "drop", 0); got != "ALL" {
		t.Errorf("capabilities: drops %v", got)
	}
	if got := named(t, at(t, container, "env"), "HOME")["value"]; got != "/home/ada-l" {
		t.Errorf("HOME is %v", got)
	}
	if got := named(t, at(t, container, "volumeMounts"), "home")["mountPath"]; got != "/home/ada-l" {
		t.Errorf("the home is mounted at %v", got)
	}
	if got := at(t, named(t, at(t, s.Pod, "spec", "volumes"), "home"), "persistentVolumeClaim", "claimName"); got != "home" {
		t.Errorf("the home is claim %v", got)
	}
	if got := at(t, named(t, at(t, s.Pod, "spec", "volumes"), "shm"), "emptyDir", "medium"); got != "Memory" {
		t.Errorf("/dev/shm lies on %v", got)
	}
}

// A start without a right user ID makes no pod: it would run as somebody else.
func TestNotebookPodNeedsItsUser(t *testing.T) {
	t.Parallel()
	r := release(t, sampleInputs(), "jupyterhub")
	for name, options := range map[string]map[string]any{
		"none":      {"profile": "cpu"},
		"root":      {"profile": "cpu", "uid": 0},
		"too low":   {"profile": "cpu", "uid": 19999},
		"too high":  {"profile": "cpu", "uid": 60000},
		"text":      {"profile": "cpu", "uid": "20001"},
		"truth":     {"profile": "cpu", "uid": true},
		"fraction":  {"profile": "cpu", "uid": 20001.5},
		"no such":   {"profile": "huge", "uid": 20001},
		"list":      {"profile": "cpu", "uid": []int{20001}},
		"not given": {"profile": "cpu", "uid": nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if s := spawn(t, r, "ada", "n", options); s.Error == "" {
				t.Errorf("options %v made a pod", options)
			}
		})
	}
}

// dotted is at for a path of names joined by dots; names with dots in them are
// found by trying the longest first.
func dotted(t *testing.T, object any, path string) any {
	t.Helper()
	m, ok := object.(map[string]any)
	if !ok {
		return nil
	}
	if value, ok := m[path]; ok {
		return value
	}
	for i := len(path) - 1; i > 0; i-- {
		if path[i] != '.' {
			continue
		}
		if deeper, ok := m[path[:i]]; ok {
			return dotted(t, deeper, path[i+1:])
		}
	}
	return nil
}

// named returns the element of a list whose name is given.
func named(t *testing.T, elements any, name string) map[string]any {
	t.Helper()
	list, _ := elements.([]any)
	for _, e := range list {
		if m, ok := e.(map[string]any); ok && m["name"] == name {
			return m
		}
	}
	t.Fatalf("no %s in %v", name, elements)
	return nil
}
