package main

import (
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gpulab/gpulab/packaging/gobuild"
)

// parts are all layers, by name.
var parts = map[string]part{
	"base":  {folder: "base", kind: debian},
	"tools": {folder: "tools", kind: debian, on: []string{"base"}},
	"hub":   {folder: "hub", kind: fromRoot, on: []string{"base"}},
	// What wheels expect of every Linux, and what people expect in a terminal. What is compiled does not depend on it.
	"libraries": {folder: "libraries", kind: debian, on: []string{"base", "tools"}},
	// For what was made while the images were Debian 12: packages in homes, virtual environments, the lab's environments.
	"python3.11": {folder: "python3.11", kind: debian, on: []string{"base", "tools", "libraries"}},
	"notebook":   {folder: "notebook", kind: fromRoot, on: []string{"base", "tools", "libraries", "python3.11"}},
	"pause":      {folder: "pause", kind: compiled, on: []string{"base", "tools"}},
	"nvidia":     {folder: "nvidia", kind: compiled, on: []string{"base", "tools"}},
	"coredns": {folder: "coredns", kind: goProgram, of: program{
		main: ".", module: "github.com/coredns/coredns", name: "coredns",
		flags: "-X k8s.io/client-go/pkg/version.gitVersion=VERSION",
	}},
	"packages": {folder: "packages", kind: goProgram, of: program{main: ".", name: "packages"}},
	// The chart wants the program at /manager.
	"kueue": {folder: "kueue", kind: goProgram, of: program{
		main: "sigs.k8s.io/kueue/cmd/kueue", module: "sigs.k8s.io/kueue", name: "manager",
		flags: "-X sigs.k8s.io/kueue/pkg/version.GitVersion=VERSION -X sigs.k8s.io/kueue/pkg/version.GitCommit= " +
			"-X sigs.k8s.io/kueue/pkg/version.BuildDate=",
		patches: []gobuild.Patch{jobsAlone, helpersForTests},
	}},
}

// gpulab queues Jobs of Kubernetes alone. What Kueue has for other kinds of work is left out, but for pods, whose rules
// its configuration reads.
var jobsAlone = gobuild.Patch{
	Module: "sigs.k8s.io/kueue",
	File:   "pkg/controller/jobs/jobs.go",
	From: `	_ "sigs.k8s.io/kueue/pkg/controller/jobs/appwrapper"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/deployment"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/job"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/jobset"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/kubeflow/jobs"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/leaderworkerset"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/mpijob"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/pod"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/raycluster"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/rayjob"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/rayservice"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/sparkapplication"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/statefulset"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/trainjob"
`,
	To: `	_ "sigs.k8s.io/kueue/pkg/controller/jobs/job"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/pod"
`,
}

// helpersForTests import all of client-go's clients for tests, and no program calls them.
var helpersForTests = gobuild.Patch{
	Module: "k8s.io/apiserver",
	File:   "pkg/admission/plugin/policy/generic/policy_test_context.go",
}

// image is one image: layers, lowest first, and how a container of it starts.
type image struct {
	name   string
	about  string
	layers []string
	config v1.Config
	root   bool // it must run as root
}

// Users without a name: what serves the cluster runs as nobody in particular.
const unprivileged = "65532:65532"

// images are all images.
var images = []image{
	{
		name: "notebook", about: "JupyterLab with a terminal, a compiler and the tools of a workday",
		layers: []string{"base", "tools", "libraries", "python3.11", "notebook"},
		config: v1.Config{
			// Pods run as the person's own user ID; this one is for everybody else.
			User:       "20000:20000",
			Entrypoint: []string{"/usr/bin/tini", "-g", "--", "/usr/local/bin/start-notebook"},
			Cmd:        []string{"/opt/lab/bin/jupyterhub-singleuser"},
			Env: []string{
				"PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/opt/lab/bin:/opt/gpulab/environments/.bin",
				"LANG=C.UTF-8", "SHELL=/bin/bash", "EDITOR=nano", "PAGER=less",
				"JUPYTER_RUNTIME_DIR=/tmp/.gpulab/runtime",
				"PIP_DISABLE_PIP_VERSION_CHECK=1",
				"PIP_NO_WARN_SCRIPT_LOCATION=1",
			},
			ExposedPorts: map[string]struct{}{"8888/tcp": {}},
		},
	},
	{
		name: "hub", about: "JupyterHub with KubeSpawner",
		layers: []string{"base", "hub"},
		config: v1.Config{
			User:         "19999:19999",
			WorkingDir:   "/srv/jupyterhub",
			Entrypoint:   []string{"/usr/bin/tini", "--"},
			Cmd:          []string{"/opt/hub/bin/jupyterhub", "--config", "/etc/jupyterhub/jupyterhub_config.py"},
			Env:          []string{"PATH=/opt/hub/bin:/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/srv/jupyterhub", "PYTHONUNBUFFERED=1"},
			ExposedPorts: map[string]struct{}{"8081/tcp": {}},
		},
	},
	{
		name: "pause", about: "holds a pod's namespaces open",
		layers: []string{"pause"},
		config: v1.Config{User: unprivileged, Entrypoint: []string{"/pause"}},
	},
	{
		name: "coredns", about: "CoreDNS with the plugins a cluster needs",
		layers: []string{"coredns"},
		config: v1.Config{User: unprivileged, Entrypoint: []string{"/coredns"}, ExposedPorts: map[string]struct{}{"53/udp": {}, "53/tcp": {}}},
	},
	{
		name: "packages", about: "the lab's cache of Python packages and models",
		layers: []string{"packages"},
		config: v1.Config{User: unprivileged, Entrypoint: []string{"/packages"}, ExposedPorts: map[string]struct{}{"8080/tcp": {}, "8082/tcp": {}}},
	},
	{
		name: "kueue", about: "Kueue's manager, which decides who gets a GPU next",
		layers: []string{"kueue"},
		config: v1.Config{User: unprivileged, Entrypoint: []string{"/manager"}},
	},
	{
		name: "nvidia-device-plugin", about: "NVIDIA's device plugin, GPU feature discovery, config manager and MPS control daemon",
		layers: []string{"nvidia"},
		// The same environment as NVIDIA's own image: it matters where NVIDIA's
		// runtime, not CDI, hands the driver to the plugin itself.
		config: v1.Config{
			User:       "0:0",
			Entrypoint: []string{"/usr/bin/nvidia-device-plugin"},
			Env: []string{"PATH=/usr/bin", "NVIDIA_DISABLE_REQUIRE=true", "NVIDIA_VISIBLE_DEVICES=all",
				"NVIDIA_DRIVER_CAPABILITIES=compute,utility",
				// gpulab, in the kubelet's place (internal/deviceplugin).
				"KUBELET_SOCKET=/var/lib/kubelet/device-plugins/gpulab.sock"},
		},
		root: true,
	},
}

// imagesNamed returns the named images, or all.
func imagesNamed(names []string) ([]image, error) {
	if len(names) == 0 {
		return images, nil
	}
	var out []image
	for _, img := range images {
		if slices.Contains(names, img.name) {
			out = append(out, img)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(images, func(i image) bool { return i.name == name }) {
			return nil, fmt.Errorf("there is no image %q; there are %s", name, strings.Join(imageNames(), ", "))
		}
	}
	return out, nil
}

func imageNames() []string {
	var names []string
	for _, img := range images {
		names = append(names, img.name)
	}
	return names
}
