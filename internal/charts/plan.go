package charts

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strconv"
	"strings"
)

// Inputs is what the releases depend on. No address of a node is among it: a
// node may get another one, and no pod is to restart for that.
type Inputs struct {
	Images      map[string]string // short name (coredns, hub, notebook …) to full reference
	ClusterDNS  string            // address of the Service kube-dns
	UpstreamDNS []string          // resolvers for names outside; none: there are no such names
	Networks    []string          // of pods and services
	HTTPSPort   int               // of gpulab's pages on the head; zero means 443
	APIPort     int               // of the Kubernetes API on the head; zero means 6443

	HasGPU     bool   // some node has GPUs, real or simulated
	Simulated  bool   // the driver is gpulab's own
	DriverRoot string // folder on the node below which the NVIDIA driver lies; "/" for a real one
	HookPath   string // nvidia-cdi-hook on the node
	Sharing    int    // how many pods take turns on each GPU; 0 and 1: none

	Hub         HubSecrets
	HubStateDir string            // folder on the head for the hub's database, owned by UID 19999
	FeaturesDir string            // folder on the node where GPU feature discovery leaves its labels
	HostUsers   bool              // notebooks share the node's user IDs; needed where homes lie on NFS
	NotebookEnv map[string]string // for every notebook, such as the proxy it is to use
	Profiles    []map[string]any  // what a person can launch, in the shape of z2jh's singleuser.profileList
	ScratchSize string            // what a notebook may write beside its home, such as "20Gi"; empty is that
	HubValues   map[string]any    // the lab's own, in z2jh's names; see CheckHubValues
	Packages    Packages
}

// Packages is what the cache of Python packages and models depends on.
type Packages struct {
	Dir    string // folder on the head for what is kept, owned by UID 65001
	Keep   int64  // bytes of it; 0 keeps nothing
	Index  string // address of the index that it asks
	Models Models
	Env    map[string]string // such as the proxy on the way there
	// Authorities tells the head's list of whom it trusts from an earlier one.
	Authorities string
}

// Models is the same of models.
type Models struct {
	Dir  string
	Keep int64
	Hub  string // address of the hub that it asks
}

// HubSecrets are made once by gpulab and kept: what they seal outlives pods.
type HubSecrets struct {
	CookieSecret     string // 64 hexadecimal digits
	ProxyToken       string // the hub shows it to gpulab's proxy API
	ServiceToken     string // gpulab shows it to the Hub API
	OIDCClientID     string
	OIDCClientSecret string
}

// Namespaces of the releases.
const (
	systemNamespace = "gpulab-system"
	kubeNamespace   = "kube-system"
)

// DevicePlugin is the release that offers GPUs to pods.
const DevicePlugin = "nvidia-device-plugin"

// Plan lists the releases for a cluster in the order in which they are applied.
func Plan(in Inputs) []Release {
	releases := []Release{
		base(in),
		coredns(in),
		// Labs of earlier versions have it. Nothing asked it but kubectl top, and it
		// asked every machine every ten seconds.
		{Name: "metrics-server", Namespace: kubeNamespace, Absent: true},
		devicePlugin(in),
		featureDiscovery(in),
		jupyterhub(in),
		packages(in),
	}
	if in.HasGPU {
		// Where there is no GPU any more it is left alone rather than taken away:
		// launches would go with its kinds.
		releases = append(releases, kueue(in))
	}
	return releases
}

// base holds what the others refer to: priority classes before all.
func base(in Inputs) Release {
	return Release{
		Name:      "gpulab-base",
		Namespace: systemNamespace,
		Chart:     "gpulab-base",
		Values: map[string]any{
			"gpulab": map[string]any{"port": orDefault(in.HTTPSPort, 443)},
		},
	}
}

func coredns(in Inputs) Release {
	return Release{
		Name:      "coredns",
		Namespace: kubeNamespace,
		Chart:     "coredns",
		After:     []string{"gpulab-base"},
		Values: map[string]any{
			"image":     in.Images["coredns"],
			"clusterIP": in.ClusterDNS,
			"upstream":  list(in.UpstreamDNS),
			"networks":  list(in.Networks),
		},
	}
}

// devicePlugin sets NVIDIA's chart up for CDI without an nvidia container
// runtime: the plugin then has to be privileged to see the devices itself.
func devicePlugin(in Inputs) Release {
	repository, tag := splitRef(in.Images["nvidia-device-plugin"])
	release := Release{
		Name:      DevicePlugin,
		Namespace: systemNamespace,
		Chart:     "nvidia-device-plugin",
		After:     []string{"gpulab-base"},
		Absent:    !in.HasGPU,
		// The chart has a service account only where several pods share GPUs.
		Replace: true,
		Values: map[string]any{
			"image": map[string]any{
				"repository": repository,
				"tag":        tag,
				"pullPolicy": "IfNotPresent",
			},
			"nvidiaDriverRoot":   in.DriverRoot,
			"deviceListStrategy": "cdi-cri",
			"cdi":                map[string]any{"nvidiaHookPath": in.HookPath},
			"migStrategy":        "none",
			"gfd":                map[string]any{"enabled": false},
			// These default to on in the program and fail without their modules.
			"gdrcopyEnabled":  false,
			"gdsEnabled":      false,
			"mofedEnabled":    false,
			"securityContext": map[string]any{"privileged": true},
			// The chart's own, and machines that take no new notebooks.
			"tolerations": []any{
				map[string]any{"key": "CriticalAddonsOnly", "operator": "Exists"},
				map[string]any{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
				map[string]any{"key": "gpulab.dev/cordoned", "operator": "Exists"},
			},
			"resources": map[string]any{
				"requests": map[string]any{"cpu": "10m", "memory": "32Mi"},
				"limits":   map[string]any{"memory": "256Mi"},
			},
		},
	}
	if config := sharingConfig(in); config != "" {
		release.Values["config"] = map[string]any{"map": map[string]any{"default": config}}
	}
	return release
}

// sharingConfig tells NVIDIA's programs how GPUs are shared, "" where they are
// not. The device plugin acts on it, and feature discovery labels nodes by it.
func sharingConfig(in Inputs) string {
	if in.Sharing < 2 {
		return ""
	}
	return fmt.Sprintf(timeSlicing, in.Sharing)
}

// timeSlicing is the configuration for GPUs on which several pods take turns;
// they share its memory, and none is kept from taking all of it.
const timeSlicing = `version: v1
sharing:
  timeSlicing:
    resources:
      - name: nvidia.com/gpu
        replicas: %d
`

// libraryDir is where Debian and Ubuntu have libraries, by the processor.
var libraryDir = map[string]string{"amd64": "usr/lib/x86_64-linux-gnu", "arm64": "usr/lib/aarch64-linux-gnu"}

func featureDiscovery(in Inputs) Release {
	return Release{
		Name:      "gpu-feature-discovery",
		Namespace: systemNamespace,
		Chart:     "gpu-feature-discovery",
		After:     []string{"gpulab-base"},
		Absent:    !in.HasGPU,
		Values: map[string]any{
			"image":       in.Images["nvidia-device-plugin"],
			"driverRoot":  in.DriverRoot,
			"libraryDir":  libraryDir[runtime.GOARCH],
			"simulated":   in.Simulated,
			"featuresDir": in.FeaturesDir,
			"config":      sharingConfig(in),
		},
	}
}

// kueue decides who gets a GPU next. It acts on gpulab's own Workload objects
// alone: pods and jobs of namespaces without the label are none of its business,
// and start whether it answers or not.
func kueue(in Inputs) Release {
	repository, tag := splitRef(in.Images["kueue"])
	settings, err := json.Marshal(map[string]any{
		"apiVersion":       "config.kueue.x-k8s.io/v1beta2",
		"kind":             "Configuration",
		"health":           map[string]any{"healthProbeBindAddress": ":8081"},
		"metrics":          map[string]any{"bindAddress": ":8443"},
		"webhook":          map[string]any{"port": 9443},
		"leaderElection":   map[string]any{"leaderElect": false},
		"clientConnection": map[string]any{"qps": 200, "burst": 400},         // when a class comes
		"integrations":     map[string]any{"frameworks": []any{"batch/job"}}, // one has to be named
		"managedJobsNamespaceSelector": map[string]any{
			"matchLabels": map[string]any{"gpulab.dev/queued": "jobs"},
		},
		// A namespace's limits would add these to what a launch asks of the line.
		"resources": map[string]any{"excludeResourcePrefixes": []any{"cpu", "memory", "ephemeral-storage"}},
	})
	if err != nil {
		panic(err) // maps of strings can be written
	}
	return Release{
		Name:      "kueue",
		Namespace: systemNamespace,
		Chart:     "kueue",
		After:     []string{"gpulab-base"},
		// Launches that want a GPU wait for it and say so; nothing else needs it.
		Background: true,
		Values: map[string]any{
			"fullnameOverride": "kueue",
			"enablePrometheus": false,
			"controllerManager": map[string]any{
				// Slow is not dead: one that is restarted while the machine is busy has to read all there is again.
				"readinessProbe": map[string]any{"timeoutSeconds": 5},
				"livenessProbe":  map[string]any{"timeoutSeconds": 5, "failureThreshold": 8},
				"manager": map[string]any{
					"image":             map[string]any{"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"},
					"priorityClassName": "gpulab-system",
					"resources": map[string]any{
						"requests": map[string]any{"cpu": "10m", "memory": "64Mi"},
						"limits":   map[string]any{"cpu": nil, "memory": "512Mi"},
					},
				},
				// Where the API is: what it calls is let in from its own machine only.
				"nodeSelector": map[string]any{"node-role.kubernetes.io/control-plane": "true"},
				"tolerations":  []any{map[string]any{"key": "gpulab.dev/cordoned", "operator": "Exists"}},
			},
			"managerConfig": map[string]any{"controllerManagerConfigYaml": string(settings)},
		},
	}
}

// packages is where pip in notebooks asks, and whoever wants a model.
func packages(in Inputs) Release {
	env := map[string]any{}
	for name, value := range in.Packages.Env {
		env[name] = value
	}
	return Release{
		Name:      "packages",
		Namespace: systemNamespace,
		Chart:     "packages",
		After:     []string{"gpulab-base"},
		// Nothing but these needs it.
		Background: true,
		Values: map[string]any{
			"image": in.Images["packages"],
			"dir":   in.Packages.Dir,
			"keep":  strconv.FormatInt(in.Packages.Keep, 10),
			"index": in.Packages.Index,
			"models": map[string]any{
				"dir":  in.Packages.Models.Dir,
				"keep": strconv.FormatInt(in.Packages.Models.Keep, 10),
				"hub":  in.Packages.Models.Hub,
			},
			"env":   env,
			"never": list(in.Networks),

			"authorities": in.Packages.Authorities,
		},
	}
}

// jupyterhub starts beside the cluster's DNS: it takes seconds to load, and then
// tries for half a minute to reach gpulab's proxy API by name.
func jupyterhub(in Inputs) Release {
	hubName, hubTag := splitRef(in.Images["hub"])
	notebookName, notebookTag := splitRef(in.Images["notebook"])
	env := map[string]any{}
	for name, value := range in.NotebookEnv {
		env[name] = value
	}
	defaults := map[string]any{
		"hub": map[string]any{
			"image": map[string]any{"name": hubName, "tag": hubTag},
		},
		"singleuser": map[string]any{
			"image":       map[string]any{"name": notebookName, "tag": notebookTag},
			"profileList": list(in.Profiles),
			"extraEnv":    env,
		},
	}
	fixed := map[string]any{
		"gpulab": map[string]any{
			"oidcClientID":     in.Hub.OIDCClientID,
			"oidcClientSecret": in.Hub.OIDCClientSecret,
			"serviceToken":     in.Hub.ServiceToken,
			"stateDir":         in.HubStateDir,
			"hostUsers":        in.HostUsers,
			"httpsPort":        orDefault(in.HTTPSPort, 443),
			"apiPort":          orDefault(in.APIPort, 6443),
		},
		"hub":   map[string]any{"cookieSecret": in.Hub.CookieSecret},
		"proxy": map[string]any{"secretToken": in.Hub.ProxyToken},
	}
	if in.ScratchSize != "" {
		fixed["gpulab"].(map[string]any)["scratchSize"] = in.ScratchSize
	}
	return Release{
		Name:      "jupyterhub",
		Namespace: systemNamespace,
		Chart:     "jupyterhub",
		After:     []string{"gpulab-base"},
		Values:    overlay(overlay(defaults, in.HubValues), fixed),
	}
}

// CheckHubValues tells, one sentence a line, which of a lab's own values for the
// hub cannot be honoured; nil if all can. The cluster is not asked: it is meant
// for reading a configuration, before anything is changed.
func CheckHubValues(values map[string]any) error {
	for _, path := range [][2]string{{"hub", "cookieSecret"}, {"proxy", "secretToken"}, {"gpulab", ""}} {
		part, ok := values[path[0]].(map[string]any)
		if !ok {
			continue
		}
		if path[1] == "" {
			return errors.New("gpulab: these values are passed by gpulab itself; leave them out")
		}
		if _, ok := part[path[1]]; ok {
			return fmt.Errorf("%s.%s: gpulab makes this secret itself; leave it out", path[0], path[1])
		}
	}
	token := strings.Repeat("0", 64)
	_, err := render(jupyterhub(Inputs{
		Images:      map[string]string{"hub": "hub:0", "notebook": "notebook:0"},
		Hub:         HubSecrets{token, token, token, "hub", token},
		HubStateDir: "/hub",
		HubValues:   values,
	}))
	return err
}

// overlay returns base with the values of top over it, maps merged; neither is
// changed.
func overlay(base, top map[string]any) map[string]any {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]any{}
	}
	for key, value := range top {
		under, ok := out[key].(map[string]any)
		over, both := value.(map[string]any)
		if ok && both {
			value = overlay(under, over)
		}
		out[key] = value
	}
	return out
}

// splitRef divides an image reference at its tag; the charts that keep upstream's
// value names want both parts.
func splitRef(ref string) (repository, tag string) {
	i := strings.LastIndexByte(ref, ':')
	if i < 0 {
		return ref, ""
	}
	return ref[:i], ref[i+1:]
}

// list makes the elements what Helm's templates and schemas expect.
func list[T any](elements []T) []any {
	out := make([]any, len(elements))
	for i, e := range elements {
		out[i] = e
	}
	return out
}

func orDefault(value, fallback int) int {
	if value == 0 {
		return fallback
	}
	return value
}
