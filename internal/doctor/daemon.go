package doctor

import (
	"context"
	"errors"
	"fmt"
)

// probeDaemon asks the running gpulab for an answer.
func probeDaemon(h host, opts Options) []Finding {
	lab, err := h.ask()
	switch {
	case errors.Is(err, ErrNotAllowed):
		return []Finding{{Probe: "daemon", State: Unseen, Seen: "Only root may ask the running gpulab how it is."}}
	case errors.Is(err, ErrNoDaemon) && !h.installed(opts):
		return []Finding{{Probe: "daemon", State: OK, Seen: "This machine is not a lab yet; `gpulab init` makes it one."}}
	case errors.Is(err, ErrNoDaemon):
		start := opts.again()
		if h.booted() {
			start = "systemctl start gpulab"
		}
		return []Finding{{
			Probe: "daemon", State: Fail,
			Seen:  "gpulab does not run on this machine.",
			Means: meansNoDaemon(opts),
			Mend:  "Run `" + start + "`; if it ends again, `gpulab logs` says why.",
		}}
	case errors.Is(err, context.DeadlineExceeded):
		return []Finding{{
			Probe: "daemon", State: Fail,
			Seen:  "gpulab runs, but does not answer.",
			Means: "It hangs, often because of a disk that does not answer. Notebooks go on.",
			Mend:  "Run `" + h.restartHung(opts) + "`; `gpulab logs` says what it did last.",
		}}
	case err != nil:
		return []Finding{{
			Probe: "daemon", State: Fail,
			Seen:  fmt.Sprintf("gpulab runs, but cannot say how it is: %v.", err),
			Means: "Its parts cannot be looked at.",
			Mend:  "Run `" + h.restart(opts) + "`; `gpulab logs` says what it did last.",
		}}
	case opts.Version != "" && lab.Version != opts.Version:
		return []Finding{{
			Probe: "daemon", State: Warn,
			Seen:  fmt.Sprintf("gpulab %s runs, but %s is installed.", lab.Version, opts.Version),
			Means: "After an upgrade it was not started anew; what was repaired meanwhile is not in force.",
			Mend:  "Run `" + opts.again() + "`; notebooks go on.",
		}}
	}
	return []Finding{{Probe: "daemon", State: OK, Seen: fmt.Sprintf("gpulab %s runs and answers.", lab.Version)}}
}

func meansNoDaemon(opts Options) string {
	if opts.Joined != nil {
		return "The head shows this machine as lost; notebooks that run here go on."
	}
	return "There are no pages, and nobody can start a notebook; those that run go on."
}
