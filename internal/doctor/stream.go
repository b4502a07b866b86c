package doctor

import "strings"

// headPart is the part of a joined machine's status that tells of its connection.
const headPart = "head"

// probeStream looks whether readings go to the head and orders come back.
func probeStream(h host, _ Options) []Finding {
	lab, err := h.ask()
	if err != nil {
		return nil // the probe daemon says why
	}
	for _, p := range lab.Parts {
		if p.Name != headPart {
			continue
		}
		detail := strings.TrimSuffix(p.Detail, ".")
		switch p.State {
		case OK:
			return []Finding{{Probe: "stream", State: OK, Seen: "Readings go to the head: " + detail + "."}}
		case Starting:
			return []Finding{{Probe: "stream", State: Warn, Seen: "There is no connection to the head yet.",
				Means: "It needs a few seconds after a start.", Mend: "Run `gpulab doctor stream` again."}}
		}
		return []Finding{{
			Probe: "stream", State: Fail,
			Seen:  "No readings go to the head: " + detail + ".",
			Means: "The head shows this machine as lost, or as not ready. Notebooks here go on.",
			Mend:  "Run `gpulab doctor head`; gpulab tries again every few seconds by itself.",
		}}
	}
	return nil
}
