package charts

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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

// spawn asks the real KubeSpawner, with the chart's configuration, for the pods
// of one start for each of the options.
func spawn(t *testing.T, r Release, handle, server string, starts ...map[string]any) []spawned {
	t.Helper()
	config, env := hubFiles(t, r)
	raw, err := json.Marshal(starts)
	if err != nil {
		t.Fatal(err)
	}
	out := runHubPython(t, env, "testdata/pod.py", config, handle, server, string(raw))
	var pods []spawned
	if err := json.Unmarshal(out, &pods); err != nil || len(pods) != len(starts) {
		t.Fatalf("reading what pod.py printed: %v\n%s", err, out)
	}
	return pods
}

// The pod keeps to the contract between hub, gpulab and the user's namespace.
func TestNotebookPod(t *testing.T) {
	t.Parallel()
	s := spawn(t, release(t, sampleInputs(), "jupyterhub"), "ada-l", "gpu-1",
		map[string]any{"uid": 20001, "profile": "gpu", "launch": 7})[0]
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
		"resources.limits.ephemeral-storage":       "20Gi",
		"resources.requests.ephemeral-storage":     "0",
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
	holds(t, "tolerations", at(t, s.Pod, "spec", "tolerations"), "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "NoExecute")
	if got := fmt.Sprint(at(t, s.Pod, "spec", "dnsConfig")); got != fmt.Sprint(podNames) {
		t.Errorf("names are looked up with %s, want %v", got, podNames)
	}
	if got := named(t, at(t, container, "env"), "JUPYTERHUB_API_URL")["value"]; got != "http://hub.gpulab-system.svc.cluster.local:8081/hub/api" {
		t.Errorf("the hub is at %v", got)
	}
}

// A lab's own settings for names are kept beside gpulab's, and win over them.
func TestNotebookPodKeepsTheLabsNameServer(t *testing.T) {
	t.Parallel()
	in := sampleInputs()
	in.HubValues = parse(t, `singleuser: {extraPodConfig: {dnsConfig: {searches: [uni.example], options: [{name: timeout, value: "2"}]}}}`)
	s := spawn(t, release(t, in, "jupyterhub"), "ada", "n", map[string]any{"uid": 20001, "profile": "cpu"})[0]
	if s.Error != "" {
		t.Fatal(s.Error)
	}
	want := "map[options:[map[name:ndots value:1] map[name:timeout value:2]] searches:[uni.example]]"
	if got := fmt.Sprint(at(t, s.Pod, "spec", "dnsConfig")); got != want {
		t.Errorf("names are looked up with %s, want %s", got, want)
	}
}

// /dev/shm is half of the notebook's memory, unless the chart is told otherwise.
func TestNotebookPodSharedMemory(t *testing.T) {
	t.Parallel()
	size := func(r Release) (sizes []any) {
		for _, s := range spawn(t, r, "ada", "n", map[string]any{"uid": 20001, "profile": "cpu"}, map[string]any{"uid": 20001, "profile": "gpu"}) {
			if s.Error != "" {
				t.Fatal(s.Error)
			}
			sizes = append(sizes, dotted(t, named(t, at(t, s.Pod, "spec", "volumes"), "shm"), "emptyDir.sizeLimit"))
		}
		return sizes
	}
	r := release(t, sampleInputs(), "jupyterhub")
	// The second profile has no limit, and so /dev/shm ends with the memory that
	// the namespace gives it.
	if got := size(r); !slices.Equal(got, []any{strconv.Itoa(1 << 30), nil}) {
		t.Errorf("sizes %v", got)
	}
	r.Values["gpulab"].(map[string]any)["shmSize"] = "3Gi"
	if got := size(r); !slices.Equal(got, []any{"3Gi", "3Gi"}) {
		t.Errorf("sizes %v, want the one that was set", got)
	}
}

// The pod is kept to the machines that gpulab names, beside what its profile asks of
// them, and prefers those it should run on.
func TestNotebookPodMachines(t *testing.T) {
	t.Parallel()
	in := sampleInputs()
	in.Profiles = append(in.Profiles, map[string]any{
		"slug": "kind", "display_name": "Kind", "kubespawner_override": map[string]any{"node_affinity_required": []any{
			map[string]any{"matchExpressions": []any{map[string]any{"key": "nvidia.com/gpu.product", "operator": "In", "values": []any{"T4"}}}},
		}},
	})
	start := func(profile, option string, names ...any) map[string]any {
		return map[string]any{"uid": 20001, "profile": profile, option: append([]any{}, names...)}
	}
	both := start("kind", "machines", "a", "b")
	both["prefer"] = []any{"b"}
	pods := spawn(t, release(t, in, "jupyterhub"), "ada", "n", start("cpu", "machines", "a"), both,
		start("cpu", "machines"), start("cpu", "prefer", "A b"), start("cpu", "machines", 7), map[string]any{"uid": 20001, "profile": "cpu", "prefer": "a"})
	const terms = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
	for i, want := range []string{
		"[map[matchExpressions:[map[key:kubernetes.io/hostname operator:In values:[a]]]]]",
		"[map[matchExpressions:[map[key:nvidia.com/gpu.product operator:In values:[T4]] map[key:kubernetes.io/hostname operator:In values:[a b]]]]]",
	} {
		if pods[i].Error != "" {
			t.Fatal(pods[i].Error)
		}
		if got := fmt.Sprint(dotted(t, pods[i].Pod, terms)); got != want {
			t.Errorf("start %d: %s, want %s", i, got, want)
		}
	}
	const preferred = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"
	if got, want := fmt.Sprint(dotted(t, pods[1].Pod, preferred)), "[map[preference:map[matchExpressions:[map[key:kubernetes.io/hostname operator:In values:[b]]]] weight:100]]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for i, bad := range pods[2:] {
		if !strings.Contains(bad.Error, "gpulab sent the machines") {
			t.Errorf("start %d is taken: %+v", i+2, bad)
		}
	}
}

// What gpulab passes reaches every notebook's environment.
func TestNotebookPodEnvironment(t *testing.T) {
	t.Parallel()
	in := sampleInputs()
	in.NotebookEnv = map[string]string{"HTTP_PROXY": "http://proxy.example:3128", "no_proxy": ".svc,10.42.0.0/16"}
	s := spawn(t, release(t, in, "jupyterhub"), "ada", "n", map[string]any{"uid": 20001, "profile": "cpu"})[0]
	if s.Error != "" {
		t.Fatal(s.Error)
	}
	for name, want := range in.NotebookEnv {
		if got := named(t, at(t, s.Pod, "spec", "containers", 0, "env"), name)["value"]; got != want {
			t.Errorf("%s is %v, want %s", name, got, want)
		}
	}
}

// A proxy that gpulab's configuration does not name reaches no notebook, even if the machine's environment does.
func TestNotebookPodHasNoProxyOfTheMachine(t *testing.T) {
	hubPython(t) // is installed through the machine's own proxy
	for _, name := range []string{"HTTP_PROXY", "https_proxy", "ALL_PROXY", "no_proxy"} {
		t.Setenv(name, "http://other.example:1")
	}
	in := sampleInputs()
	in.NotebookEnv = nil
	s := spawn(t, release(t, in, "jupyterhub"), "ada", "n", map[string]any{"uid": 20001, "profile": "cpu"})[0]
	if s.Error != "" {
		t.Fatal(s.Error)
	}
	for _, e := range at(t, s.Pod, "spec", "containers", 0, "env").([]any) {
		if name := e.(map[string]any)["name"].(string); strings.HasSuffix(strings.ToLower(name), "_proxy") {
			t.Errorf("the pod has %v", e)
		}
	}
}

// Every notebook has a user namespace of its own, but for those with GPUs, real or
// simulated.
func TestNotebookPodUserNamespace(t *testing.T) {
	t.Parallel()
	cpu := map[string]any{"uid": 20001, "profile": "cpu"}
	gpu := map[string]any{"uid": 20001, "profile": "gpu"}
	wants := []bool{false, true}
	for _, simulated := range []bool{true, false} {
		in := sampleInputs()
		in.Simulated = simulated
		for i, s := range spawn(t, release(t, in, "jupyterhub"), "ada", "n", cpu, gpu) {
			if s.Error != "" {
				t.Fatal(s.Error)
			}
			if got := dotted(t, s.Pod, "spec.hostUsers"); got != wants[i] {
				t.Errorf("simulated %t, start %d: spec.hostUsers is %v, want %v", simulated, i, got, wants[i])
			}
		}
	}
}

// A profile may have an image of its own. What is on the machine is not asked
// for anew, and what else holds for notebooks holds for it.
func TestNotebookPodOfAnotherImage(t *testing.T) {
	t.Parallel()
	in := sampleInputs()
	in.Profiles = append(in.Profiles, map[string]any{
		"slug": "torch", "display_name": "PyTorch",
		"kubespawner_override": map[string]any{"image": "lab.example/torch:1", "cmd": []any{"jupyterhub-singleuser"}},
	})
	for profile, image := range map[string]string{"torch": "lab.example/torch:1", "cpu": "gpulab.local/notebook:0123456789ab"} {
		s := spawn(t, release(t, in, "jupyterhub"), "ada", "n", map[string]any{"uid": 20001, "profile": profile})[0]
		if s.Error != "" {
			t.Fatal(s.Error)
		}
		container := at(t, s.Pod, "spec", "containers", 0)
		for path, want := range map[string]any{"image": image, "imagePullPolicy": "IfNotPresent", "securityContext.runAsUser": 20001.0} {
			if got := dotted(t, container, path); got != want {
				t.Errorf("%s: %s is %v, want %v", profile, path, got, want)
			}
		}
		if got := at(t, container, "args", 0); (got == "jupyterhub-singleuser") != (profile == "torch") {
			t.Errorf("%s starts %v", profile, got)
		}
	}
}

// A start without a right user ID makes no pod: it would run as somebody else.
func TestNotebookPodNeedsItsUser(t *testing.T) {
	t.Parallel()
	starts := []map[string]any{
		{"profile": "cpu"},
		{"profile": "cpu", "uid": nil},
		{"profile": "cpu", "uid": 0},
		{"profile": "cpu", "uid": 999},
		{"profile": "cpu", "uid": 19999},
		{"profile": "cpu", "uid": 60000},
		{"profile": "cpu", "uid": "20001"},
		{"profile": "cpu", "uid": true},
		{"profile": "cpu", "uid": 20001.5},
		{"profile": "cpu", "uid": []int{20001}},
		{"profile": "no-such", "uid": 20001},
	}
	for i, s := range spawn(t, release(t, sampleInputs(), "jupyterhub"), "ada", "n", starts...) {
		if s.Error == "" {
			t.Errorf("a start with %v made a pod", starts[i])
		}
	}
}

// Somebody who had an account on the machine before runs as its number.
func TestNotebookPodOfAKeptUID(t *testing.T) {
	t.Parallel()
	for _, s := range spawn(t, release(t, sampleInputs(), "jupyterhub"), "ada", "n", map[string]any{"uid": 1000, "profile": "cpu"}) {
		if s.Error != "" {
			t.Fatal(s.Error)
		}
		if got := dotted(t, at(t, s.Pod, "spec", "containers", 0), "securityContext.runAsUser"); got != 1000.0 {
			t.Errorf("it runs as %v, want 1000", got)
		}
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

// hubConfig returns the hub's configuration as JupyterHub reads it.
func hubConfig(t *testing.T, r Release) map[string]any {
	t.Helper()
	config, env := hubFiles(t, r)
	var parsed map[string]any
	if err := json.Unmarshal(runHubPython(t, env, "testdata/config.py", config), &parsed); err != nil {
		t.Fatal(err)
	}
	return parsed
}

// TestHubLooksOften: a server that answers is seen at once, not seconds later.
func TestHubLooksOften(t *testing.T) {
	t.Parallel()
	config, env := hubFiles(t, release(t, sampleInputs(), "jupyterhub"))
	out := runHubPython(t, env, "testdata/backoff.py", config)
	pause, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	if err != nil || pause > 1 {
		t.Errorf("between two looks pass %s s (%v)", out, err)
	}
}

// Shared folders appear below the home, with the groups they take; the person's
// home can be closed, and the pod have the node's user IDs for their sake.
func TestNotebookPodFolders(t *testing.T) {
	t.Parallel()
	folder := func(claim, name string, readOnly bool, gid any) map[string]any {
		return map[string]any{"claim": claim, "name": name, "readOnly": readOnly, "gid": gid}
	}
	start := func(more map[string]any, folders ...any) map[string]any {
		options := map[string]any{"uid": 20001, "profile": "cpu", "folders": folders}
		for key, value := range more {
			options[key] = value
		}
		return options
	}
	pods := spawn(t, release(t, sampleInputs(), "jupyterhub"), "ada", "n",
		start(nil, folder("folder-12", "vision-data", false, 60004), folder("part-3", "exercises", false, 0), folder("folder-7", "imagenet", true, 60009)),
		start(map[string]any{"homeReadOnly": true, "hostUsers": true}, folder("folder-7", "imagenet", true, 60009)),
		start(nil))
	for _, s := range pods {
		if s.Error != "" {
			t.Fatal(s.Error)
		}
	}
	s := pods[0].Pod
	mounts := at(t, s, "spec", "containers", 0, "volumeMounts")
	for name, want := range map[string]string{"folder-12": "/home/ada/shared/vision-data", "part-3": "/home/ada/shared/exercises", "folder-7": "/home/ada/shared/imagenet"} {
		mount, readOnly := named(t, mounts, name), name == "folder-7"
		if mount["mountPath"] != want || (mount["readOnly"] == true) != readOnly || (mount["recursiveReadOnly"] == "Enabled") != readOnly {
			t.Errorf("%s: %v", name, mount)
		}
		if got := dotted(t, named(t, at(t, s, "spec", "volumes"), name), "persistentVolumeClaim.claimName"); got != name {
			t.Errorf("%s is claim %v", name, got)
		}
	}
	if got := fmt.Sprint(dotted(t, s, "spec.securityContext.supplementalGroups")); got != "[60004 60009]" {
		t.Errorf("groups %s", got)
	}
	if got := dotted(t, s, "spec.hostUsers"); got != false {
		t.Errorf("spec.hostUsers is %v", got)
	}
	closed := pods[1].Pod
	env := at(t, closed, "spec", "containers", 0, "env")
	if named(t, at(t, closed, "spec", "containers", 0, "volumeMounts"), "home")["readOnly"] != true || named(t, env, "HOME")["value"] != "/tmp/home" ||
		named(t, env, "JUPYTERHUB_ROOT_DIR")["value"] != "/home/ada" || dotted(t, closed, "spec.hostUsers") != true {
		t.Errorf("a closed home: %v", closed)
	}
	if got := dotted(t, pods[2].Pod, "spec.securityContext.supplementalGroups"); got != nil {
		t.Errorf("groups without a folder: %v", got)
	}
	var bad []map[string]any
	for _, f := range []map[string]any{
		folder("home", "x1", false, 0), folder("folder-0", "x1", false, 0), folder("folder-1/..", "x1", false, 0), folder("folder-1", "../x", false, 0),
		folder("folder-1", "a", false, 0), folder("folder-1", "x/y", false, 0), folder("folder-1", "x1\n", false, 0), folder("folder-1", "x1", false, 20002), folder("folder-1", "x1", false, 65000),
		folder("folder-1", "x1", false, true), folder("folder-1", "x1", false, "60000"), {"claim": "folder-1", "name": "x1", "gid": 0},
	} {
		bad = append(bad, start(nil, f))
	}
	for i, s := range spawn(t, release(t, sampleInputs(), "jupyterhub"), "ada", "n", bad...) {
		if s.Error == "" {
			t.Errorf("a start with %v made a pod", bad[i]["folders"])
		}
	}
}

// The lab's environments are mounted for all to read, and Jupyter looks for kernels there, unless the lab says where.
func TestNotebookPodEnvironments(t *testing.T) {
	t.Parallel()
	options := func(environments any) map[string]any {
		return map[string]any{"uid": 20001, "profile": "cpu", "environments": environments}
	}
	pods := spawn(t, release(t, sampleInputs(), "jupyterhub"), "ada", "n", options(true), options(nil), options("yes"))
	for _, s := range pods {
		if s.Error != "" {
			t.Fatal(s.Error)
		}
	}
	s := pods[0].Pod
	mount := named(t, at(t, s, "spec", "containers", 0, "volumeMounts"), "environments")
	if mount["mountPath"] != "/opt/gpulab/environments" || mount["readOnly"] != true {
		t.Errorf("they are mounted as %v", mount)
	}
	volume := named(t, at(t, s, "spec", "volumes"), "environments")
	if dotted(t, volume, "persistentVolumeClaim.claimName") != "environments" || dotted(t, volume, "persistentVolumeClaim.readOnly") != true {
		t.Errorf("their volume is %v", volume)
	}
	env := at(t, s, "spec", "containers", 0, "env")
	for name, want := range map[string]string{"JUPYTER_PATH": "/opt/gpulab/environments", "JUPYTER_CONFIG_PATH": "/opt/gpulab/environments/config"} {
		if got := named(t, env, name)["value"]; got != want {
			t.Errorf("%s is %v", name, got)
		}
	}
	for _, s := range pods[1:] {
		if text := fmt.Sprint(s.Pod); strings.Contains(text, "environments") {
			t.Errorf("a pod that was not asked to have them has: %s", text)
		}
	}
}

// A notebook gets the environment that gpulab sends, and from Kubernetes the number of cores that it may use. What the
// lab sets stays.
func TestNotebookEnv(t *testing.T) {
	t.Parallel()
	in := sampleInputs()
	in.HubValues = parse(t, `singleuser: {extraEnv: {MKL_NUM_THREADS: "3", TZ: Europe/Paris}}`)
	options := func(env, threads any) map[string]any {
		return map[string]any{"uid": 20001, "profile": "cpu", "env": env, "threads": threads}
	}
	pods := spawn(t, release(t, in, "jupyterhub"), "ada", "n",
		options(map[string]any{"USER": "ada", "TZ": "Asia/Tokyo", "GPULAB_USER_NAME": "Ada $$(HOME)"}, []any{"OMP_NUM_THREADS", "MKL_NUM_THREADS"}),
		options(nil, nil), options(map[string]any{"a b": "c"}, nil), options(map[string]any{"A": 1}, nil), options(nil, "OMP_NUM_THREADS"), options([]any{"A"}, nil))
	if pods[0].Error != "" || pods[1].Error != "" {
		t.Fatal(pods[0].Error, pods[1].Error)
	}
	env := at(t, pods[0].Pod, "spec", "containers", 0, "env")
	for name, want := range map[string]string{"USER": "ada", "TZ": "Europe/Paris", "MKL_NUM_THREADS": "3", "GPULAB_USER_NAME": "Ada $$(HOME)"} {
		if got := named(t, env, name)["value"]; got != want {
			t.Errorf("%s is %v, want %s", name, got, want)
		}
	}
	if got := dotted(t, named(t, env, "OMP_NUM_THREADS"), "valueFrom.resourceFieldRef.resource"); got != "limits.cpu" {
		t.Errorf("OMP_NUM_THREADS comes from %v", got)
	}
	for _, s := range pods[2:] {
		if !strings.Contains(s.Error, "gpulab sent an environment that cannot be") {
			t.Errorf("an environment that cannot be: %q", s.Error)
		}
	}
}

// A notebook asks the lab's cache for models where gpulab says so.
func TestNotebookModels(t *testing.T) {
	t.Parallel()
	options := func(models any) map[string]any {
		return map[string]any{"uid": 20001, "profile": "cpu", "models": models}
	}
	pods := spawn(t, release(t, sampleInputs(), "jupyterhub"), "ada", "n", options("http://models.gpulab-system.svc.cluster.local"), options(nil), options("https://elsewhere.example/x"), options(true))
	if pods[0].Error != "" || pods[1].Error != "" {
		t.Fatal(pods[0].Error, pods[1].Error)
	}
	env := at(t, pods[0].Pod, "spec", "containers", 0, "env")
	for name, want := range map[string]string{"HF_ENDPOINT": "http://models.gpulab-system.svc.cluster.local", "HF_HUB_DISABLE_XET": "1"} {
		if got := named(t, env, name)["value"]; got != want {
			t.Errorf("%s is %v", name, got)
		}
	}
	if text := fmt.Sprint(pods[1].Pod); strings.Contains(text, "HF_ENDPOINT") {
		t.Errorf("a pod that was not told of the cache asks it: %s", text)
	}
	for _, s := range pods[2:] {
		if !strings.Contains(s.Error, "gpulab sent the cache of models") {
			t.Errorf("an address that is none: %q", s.Error)
		}
	}
}
