package doctor

import (
	"fmt"
	"os"
	"strings"
)

// pluginFolder is where programs that offer devices to Kubernetes open their
// sockets.
const pluginFolder = "/var/lib/kubelet/device-plugins"

// probeDevicePlugins looks for a plugin that offers GPUs to Kubernetes beside
// gpulab's own, which has gpulab between it and the kubelet: each of its
// sockets has a second one whose name begins with gpulab.
func probeDevicePlugins(h host, _ Options) []Finding {
	entries, err := os.ReadDir(h.path(pluginFolder))
	if os.IsPermission(err) {
		return []Finding{{Probe: "deviceplugins", State: Unseen, Seen: "Only root can see which programs offer devices to " +
			"Kubernetes."}}
	}
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name()] = true
	}
	var findings []Finding
	for _, e := range entries {
		name := e.Name()
		gpuish := strings.Contains(name, "nvidia") || strings.Contains(name, "gpu")
		if !strings.HasSuffix(name, ".sock") || strings.HasPrefix(name, "gpulab") || !gpuish || names["gpulab-"+name] {
			continue
		}
		findings = append(findings, Finding{
			Probe: "deviceplugins", State: Warn,
			Seen: fmt.Sprintf("Something else offers GPUs to Kubernetes: %s in %s.", name, pluginFolder),
			Means: "The same GPU would be given to two notebooks. Often it is NVIDIA's GPU operator, which gpulab does " +
				"not need.",
			Mend: "Find it with `gpulab kubectl get daemonsets -A`, and take it out with `gpulab kubectl -n NAMESPACE " +
				"delete daemonset NAME`.",
		})
	}
	if findings == nil {
		return []Finding{{Probe: "deviceplugins", State: OK, Seen: "Nothing but gpulab offers GPUs to Kubernetes."}}
	}
	return findings
}
