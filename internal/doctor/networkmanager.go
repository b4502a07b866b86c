package doctor

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpulab/gpulab/internal/wireguard"
)

// probeNetworkManager: NetworkManager takes interfaces it finds for its own
// unless told otherwise, and then changes routes of pods.
func probeNetworkManager(h host, opts Options) []Finding {
	processes, err := h.processes(h.root)
	if err != nil || !slices.ContainsFunc(processes, func(p process) bool { return p.name == "NetworkManager" }) {
		return []Finding{{Probe: "networkmanager", State: OK, Seen: "NetworkManager does not run here."}}
	}
	for _, folder := range []string{
		"/etc/NetworkManager", "/etc/NetworkManager/conf.d", "/usr/lib/NetworkManager/conf.d", "/run/NetworkManager/conf.d",
	} {
		files, _ := filepath.Glob(h.path(folder + "/*.conf"))
		for _, file := range files {
			for line := range strings.Lines(h.read(filepath.Join(folder, filepath.Base(file)))) {
				line = strings.TrimSpace(line)
				if strings.HasPrefix(line, "unmanaged-devices") && strings.Contains(line, "interface-name:cni") &&
					(!opts.Encrypt || strings.Contains(line, "flannel*") || strings.Contains(line, wireguard.Link)) {
					return []Finding{{Probe: "networkmanager", State: OK, Seen: "NetworkManager leaves the pods' network alone."}}
				}
			}
		}
	}
	return []Finding{{
		Probe: "networkmanager", State: Warn,
		Seen:  "NetworkManager runs here and was not told to leave the pods' network alone.",
		Means: "It may take addresses and routes away from notebooks, after a suspend for example.",
		Mend: `Run ` + "`" + `printf '[keyfile]\nunmanaged-devices=interface-name:cni0;interface-name:flannel*;` +
			`interface-name:veth*\n' > /etc/NetworkManager/conf.d/gpulab.conf && ` +
			`systemctl reload NetworkManager` + "`.",
	}}
}
