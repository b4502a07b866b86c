package charts

import (
	"fmt"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/releaseutil"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// sampleInputs is a head with two simulated GPUs.
func sampleInputs() Inputs {
	return Inputs{
		Images: map[string]string{
			"coredns":              "gpulab.local/coredns:0123456789ab",
			"nvidia-device-plugin": "gpulab.local/nvidia-device-plugin:0123456789ab",
			"kueue":                "gpulab.local/kueue:0123456789ab",
			"packages":             "gpulab.local/packages:0123456789ab",
			"hub":                  "gpulab.local/hub:0123456789ab",
			"notebook":             "gpulab.local/notebook:0123456789ab",
		},
		ClusterDNS:  "10.43.0.10",
		Networks:    []string{"10.42.0.0/16", "10.43.0.0/16"},
		HasGPU:      true,
		Simulated:   true,
		DriverRoot:  "/var/lib/gpulab/simdriver/root",
		HookPath:    "/var/lib/gpulab/bin/current/nvidia-cdi-hook",
		HubStateDir: "/var/lib/gpulab/hub",
		FeaturesDir: "/var/lib/gpulab/features",
		Packages: Packages{Dir: "/var/lib/gpulab/packages", Keep: 20 << 30, Index: "https://pypi.org/simple",
			Models: Models{Dir: "/var/lib/gpulab/models", Keep: 50 << 30, Hub: "https://huggingface.co"},
			Env:    map[string]string{"HTTPS_PROXY": "http://proxy.example.org:3128"}},
		Hub: HubSecrets{
			CookieSecret:     strings.Repeat("c0ffee00", 8),
			ProxyToken:       "proxy-token-0123456789abcdef",
			ServiceToken:     "service-token-0123456789abcdef",
			OIDCClientID:     "hub",
			OIDCClientSecret: "client-secret-0123456789abcdef",
		},
		Profiles: []map[string]any{
			{
				"slug":                 "cpu",
				"display_name":         "CPU notebook",
				"kubespawner_override": map[string]any{"cpu_limit": 2, "mem_limit": "2G"},
			},
			{
				"slug":         "gpu",
				"display_name": "GPU notebook",
				"kubespawner_override": map[string]any{
					"extra_resource_limits": map[string]any{"nvidia.com/gpu": "1"},
				},
			},
		},
	}
}

// release picks one of the sample's releases.
func release(t *testing.T, in Inputs, name string) Release {
	t.Helper()
	for _, r := range Plan(in) {
		if r.Name == name {
			return r
		}
	}
	t.Fatalf("no release %s in the plan", name)
	return Release{}
}

// mustRender returns the objects of a release by "Kind name".
func mustRender(t *testing.T, r Release) map[string]map[string]any {
	t.Helper()
	if r.Chart == "" && r.Absent {
		return nil // of an earlier version
	}
	manifest, err := render(r)
	if err != nil {
		t.Fatalf("rendering %s: %v", r.Name, err)
	}
	objects := map[string]map[string]any{}
	for _, doc := range releaseutil.SplitManifests(manifest) {
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(doc), &object); err != nil {
			t.Fatalf("%s renders what is no YAML: %v\n%s", r.Name, err, doc)
		}
		if object == nil {
			continue
		}
		key := object["kind"].(string) + " " + object["metadata"].(map[string]any)["name"].(string)
		if objects[key] != nil {
			t.Errorf("%s renders %s twice", r.Name, key)
		}
		objects[key] = object
	}
	return objects
}

// at returns the value at a path of keys and list indexes.
func at(t *testing.T, object any, path ...any) any {
	t.Helper()
	for i, step := range path {
		switch step := step.(type) {
		case string:
			m, ok := object.(map[string]any)
			if !ok {
				t.Fatalf("%v: not a map but %T", path[:i], object)
			}
			object = m[step]
		case int:
			l, ok := object.([]any)
			if !ok || step >= len(l) {
				t.Fatalf("%v: no element %d in %v", path[:i], step, object)
			}
			object = l[step]
		}
	}
	return object
}

// The hub runs under a number that no person of the lab has, neither one that
// gpulab gave out (20000 and up) nor one that was somebody's on the machine before
// (up to 19998): its owner owns its database.
func TestHubRunsAsNobodyElse(t *testing.T) {
	hub := mustRender(t, release(t, sampleInputs(), "jupyterhub"))["Deployment hub"]
	for _, key := range []string{"runAsUser", "runAsGroup"} {
		if got := at(t, hub, "spec", "template", "spec", "securityContext", key); got != 19999.0 {
			t.Errorf("%s is %v, want 19999", key, got)
		}
	}
}

// Every object decodes strictly into Kubernetes' own types: a misspelt field
// would otherwise be dropped by the API server without a word.
func TestChartsRenderKnownFields(t *testing.T) {
	inputs := map[string]func(*Inputs){
		"simulated": func(*Inputs) {},
		"real":      func(in *Inputs) { in.Simulated, in.DriverRoot = false, "/" },
		"resolvers": func(in *Inputs) { in.UpstreamDNS = []string{"192.0.2.53", "192.0.2.54"} },
		"NFS homes": func(in *Inputs) { in.HostUsers = true },
		"sharing":   func(in *Inputs) { in.Sharing = 2 },
	}
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for name, change := range inputs {
		t.Run(name, func(t *testing.T) {
			in := sampleInputs()
			change(&in)
			for _, r := range Plan(in) {
				for key, object := range mustRender(t, r) {
					if object["kind"] == "APIService" || object["kind"] == "CustomResourceDefinition" {
						continue // of kube-aggregator and apiextensions
					}
					raw, err := yaml.Marshal(object)
					if err != nil {
						t.Fatal(err)
					}
					if _, _, err := strict.Decode(raw, nil, nil); err != nil {
						t.Errorf("%s: %s: %v", r.Name, key, err)
					}
					if ns := at(t, object, "metadata", "namespace"); hasNamespace(t, raw) && ns == nil {
						t.Errorf("%s: %s names no namespace", r.Name, key)
					}
				}
			}
		})
	}
}

// hasNamespace reports whether an object of this kind lives in a namespace.
func hasNamespace(t *testing.T, raw []byte) bool {
	t.Helper()
	var head runtime.TypeMeta
	if err := yaml.Unmarshal(raw, &head); err != nil {
		t.Fatal(err)
	}
	switch head.Kind {
	case "ClusterRole", "ClusterRoleBinding", "PriorityClass", "RuntimeClass", "APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
		return false
	}
	return true
}

// Feature discovery is told of sharing what the device plugin is told, and
// starts anew when that changes; otherwise its labels would be untrue.
func TestFeatureDiscoveryKnowsHowGPUsAreShared(t *testing.T) {
	render := func(sharing int) (discovery, plugin map[string]map[string]any) {
		in := sampleInputs()
		in.Sharing = sharing
		return mustRender(t, release(t, in, "gpu-feature-discovery")), mustRender(t, release(t, in, DevicePlugin))
	}
	pod := func(objects map[string]map[string]any) any {
		return at(t, objects["DaemonSet gpu-feature-discovery"], "spec", "template")
	}
	two, plugin := render(2)
	config := at(t, two["ConfigMap gpu-feature-discovery"], "data", "config.yaml")
	var parsed struct {
		Version string
		Sharing struct {
			TimeSlicing struct {
				Resources []struct {
					Name     string
					Replicas int
				}
			}
		}
	}
	if err := yaml.UnmarshalStrict([]byte(config.(string)), &parsed); err != nil {
		t.Fatal(err)
	}
	if r := parsed.Sharing.TimeSlicing.Resources; parsed.Version != "v1" || len(r) != 1 || r[0].Name != "nvidia.com/gpu" || r[0].Replicas != 2 {
		t.Errorf("its configuration reads %+v", parsed)
	}
	if got := at(t, plugin["ConfigMap nvidia-device-plugin-configs"], "data", "default"); strings.TrimSpace(got.(string)) != strings.TrimSpace(config.(string)) {
		t.Errorf("the device plugin is told\n%s\nand feature discovery\n%s", got, config)
	}
	container := at(t, pod(two), "spec", "containers", 0)
	holds(t, "its environment", at(t, container, "env"), "name: CONFIG_FILE\n  value: /config/config.yaml")
	holds(t, "its mounts", at(t, container, "volumeMounts"), "mountPath: /config\n  name: config\n")
	holds(t, "its volumes", at(t, pod(two), "spec", "volumes"), "configMap:\n    name: gpu-feature-discovery\n  name: config\n")

	three, _ := render(3)
	sum := func(objects map[string]map[string]any) any {
		return at(t, pod(objects), "metadata", "annotations", "checksum/config")
	}
	if sum(two) == nil || sum(two) == sum(three) {
		t.Errorf("it goes on with two shares when there are three: %v, %v", sum(two), sum(three))
	}
	if one, _ := render(1); one["ConfigMap gpu-feature-discovery"] != nil || at(t, pod(one), "metadata", "annotations") != nil {
		t.Errorf("without sharing it has a configuration: %v", one)
	}
}

// Where the driver's library is not in its place, the kubelet does not make a folder of
// that name in the midst of the system's libraries.
func TestFeatureDiscoveryMakesNothingOnTheMachine(t *testing.T) {
	objects := mustRender(t, release(t, sampleInputs(), "gpu-feature-discovery"))
	pod := at(t, objects["DaemonSet gpu-feature-discovery"], "spec", "template", "spec")
	text, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "subPath") {
		t.Error("a sub-path is made where there is none")
	}
	holds(t, "its volumes", at(t, pod, "volumes"), "-linux-gnu/libnvidia-ml.so.1\n    type: File\n")
}

// Whatever runs the lab starts on a machine too that takes no new notebooks.
func TestCordonedMachinesRunTheLab(t *testing.T) {
	pods := 0
	for _, r := range Plan(sampleInputs()) {
		for name, object := range mustRender(t, r) {
			kind := object["kind"]
			if kind != "Deployment" && kind != "DaemonSet" {
				continue
			}
			if on, ok := object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)["tolerations"]; !ok {
				t.Errorf("%s tolerates nothing", name)
			} else {
				holds(t, "what "+name+" tolerates", on, "key: gpulab.dev/cordoned")
			}
			pods++
		}
	}
	if pods < 5 {
		t.Errorf("only %d of them", pods)
	}
}

// Every pod of a chart asks for names as they are written, but for the cluster's own
// name server.
func TestPodsAskForNamesAsWritten(t *testing.T) {
	pods := 0
	for _, r := range Plan(sampleInputs()) {
		for name, object := range mustRender(t, r) {
			spec, _ := object["spec"].(map[string]any)
			template, ok := spec["template"].(map[string]any)
			if !ok {
				continue
			}
			pods++
			want := fmt.Sprint(podNames)
			if name == "Deployment coredns" {
				want = "<nil>"
			}
			if got := fmt.Sprint(at(t, template, "spec", "dnsConfig")); got != want {
				t.Errorf("%s looks names up with %s, want %s", name, got, want)
			}
		}
	}
	if pods < 6 {
		t.Errorf("only %d of them", pods)
	}
}
