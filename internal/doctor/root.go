package doctor

// probeRoot: gpulab mounts, makes network interfaces and owns system folders.
func probeRoot(h host, _ Options) []Finding {
	if h.euid == 0 {
		return []Finding{{Probe: "root", State: OK, Seen: "Running as root."}}
	}
	return []Finding{{
		Probe: "root", State: Fail,
		Seen:  "Not running as root.",
		Means: "gpulab starts containers and makes network interfaces, which only root may.",
		Mend:  "Run the command again with sudo.",
	}}
}
