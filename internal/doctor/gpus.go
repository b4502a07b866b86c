package doctor

import "fmt"

// probeGPUs tells of the GPUs that the running lab has trouble with.
func probeGPUs(h host, _ Options) []Finding {
	lab, err := h.ask()
	if err != nil {
		return nil // the probe daemon says why
	}
	var findings []Finding
	for _, g := range lab.GPUs {
		name := fmt.Sprintf("GPU %d (%s)", g.Index, g.Name)
		if lab.Nodes > 1 {
			name += " of " + g.Node
		}
		switch {
		case g.Trouble != "":
			findings = append(findings, Finding{
				Probe: "gpus", State: Fail, Seen: fmt.Sprintf("%s cannot be read: %s", name, g.Trouble),
				Means: "No new notebook gets it until it answers.",
				Mend: "Look at `dmesg | grep -iE 'nvrm|xid'` and at `gpulab logs probe`; a GPU that has fallen off the bus " +
					"needs a `reboot`.",
			})
		case g.Withheld != "":
			findings = append(findings, Finding{
				Probe: "gpus", State: Warn, Seen: fmt.Sprintf("%s is not lent out: %s", name, g.Withheld),
				Means: "No new notebook gets it.",
				Mend: fmt.Sprintf("When the cause is gone it is lent out again by itself; to do so now, run `gpulab gpus lend %d`.",
					g.Index),
			})
		}
	}
	switch {
	case findings != nil:
		return findings
	case len(lab.GPUs) == 0:
		return []Finding{{Probe: "gpus", State: OK, Seen: "The lab offers no GPU."}}
	}
	return []Finding{{Probe: "gpus", State: OK,
		Seen: fmt.Sprintf("All GPUs of the lab (%d) can be read and are lent out.", len(lab.GPUs))}}
}
