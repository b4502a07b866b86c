package doctor

import (
	"fmt"
	"strings"

	"github.com/gpulab/gpulab/internal/nvidiadriver"
)

// probeNVIDIA: a card that does not work is never taken for no card. It stops a
// lab that wants real GPUs, and no other.
func probeNVIDIA(h host, opts Options) []Finding {
	s := nvidiadriver.Look(h.root)
	f := Finding{Probe: "nvidia", State: OK, Seen: s.Seen(), Means: s.Means()}
	switch {
	case s.Kind == nvidiadriver.NoCard && opts.GPUMode == "real":
		f.State, f.Means, f.Mend = Fail, "Real GPUs were asked for.",
			"Run `gpulab init` without that choice to try it with simulated GPUs."
	case s.Kind == nvidiadriver.NoCard:
	case opts.GPUMode == "simulated":
		f.State, f.Means = Warn, "Simulated GPUs were asked for, so this card is left alone."
	case s.Usable() && len(s.Sick) == 0:
	case s.Usable(), opts.GPUMode == "none":
		f.State, f.Mend = Warn, mendNVIDIA(s)
	default:
		f.State, f.Mend = Fail, mendNVIDIA(s)
	}
	return []Finding{f}
}

// mendNVIDIA is the next step, in one line.
func mendNVIDIA(s nvidiadriver.Situation) string {
	p := s.Plan()
	var words []string
	if p.Runnable() {
		words = append(words, "Run `gpulab driver install`.")
	} else if len(p.Steps) > 0 {
		words = append(words, "`gpulab driver` shows the commands.")
	}
	if p.Advice != "" {
		words = append(words, p.Advice)
	}
	if p.Reboot && !p.Runnable() {
		words = append(words, "Reboot this machine.")
	}
	if s.Evidence != "" {
		words = append(words, fmt.Sprintf("(%s)", s.Evidence))
	}
	return strings.Join(words, " ")
}
