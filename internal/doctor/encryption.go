package doctor

import "github.com/gpulab/gpulab/internal/wireguard"

// probeEncryption looks whether what pods of different machines say to each other
// can be encrypted, where that is wanted.
func probeEncryption(h host, opts Options) []Finding {
	if !opts.Encrypt {
		return []Finding{{Probe: "encryption", State: OK, Seen: "Traffic of notebooks between machines is not to be " +
			"encrypted; nothing is needed for that."}}
	}
	if err := wireguard.Look(h.root); err != nil {
		return []Finding{{
			Probe: "encryption", State: Fail,
			Seen: sentence(err.Error()),
			Means: "Notebooks of different machines reach neither the hub nor the head: network.encrypt in the head's " +
				"configuration asks for WireGuard.",
			Mend: "Install the kernel's modules (`apt-get install linux-image-amd64` on Debian, `apt-get install " +
				"linux-modules-extra-$(uname -r)` on Ubuntu), then `reboot`; or take network.encrypt out of the head's " +
				"configuration, and run `gpulab init` there.",
		}}
	}
	return []Finding{{Probe: "encryption", State: OK, Seen: "This machine can encrypt traffic of notebooks between " +
		"machines."}}
}
