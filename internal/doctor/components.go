package doctor

import (
	"fmt"
	"strings"
)

// probeComponents passes on what the running gpulab knows of its parts.
func probeComponents(h host, opts Options) []Finding {
	lab, err := h.ask()
	if err != nil {
		return nil // the probe daemon says why
	}
	var findings []Finding
	for _, p := range lab.Parts {
		finding := Finding{
			Probe: "components", State: Warn,
			Seen:  fmt.Sprintf("The part %q needs a look: %s.", p.Name, strings.TrimSuffix(p.Detail, ".")),
			Means: "The lab works all the same.",
			Mend:  nextStep(p),
		}
		switch p.State {
		case OK, Off:
			continue
		}
		if opts.Joined != nil && p.Name == headPart {
			continue // the probe stream tells of it
		}
		if p.Name == NamesPart {
			continue // and the probe resolver of this
		}
		switch p.State {
		case Fail:
			finding.State = Fail
			finding.Seen = fmt.Sprintf("The part %q does not work: %s.", p.Name, strings.TrimSuffix(p.Detail, "."))
			finding.Means = "The lab does not work as it should."
		case Starting:
			finding.Seen = fmt.Sprintf("The part %q is not ready: %s.", p.Name, strings.TrimSuffix(p.Detail, "."))
			finding.Means = "It needs a minute after a start. If it stays like that, notebooks cannot be started."
		}
		findings = append(findings, finding)
	}
	if findings == nil {
		return []Finding{{Probe: "components", State: OK,
			Seen: fmt.Sprintf("All %d parts of the lab are well.", len(lab.Parts))}}
	}
	return findings
}

// nextStep as a sentence.
func nextStep(p Part) string {
	step := p.NextStep
	if step == "" {
		return "Look at `gpulab status` and `gpulab logs`."
	}
	if !strings.HasPrefix(step, "`") {
		step = strings.ToUpper(step[:1]) + step[1:]
	}
	return strings.TrimSuffix(step, ".") + "."
}
