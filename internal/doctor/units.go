package doctor

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	serviceUnit = "gpulab.service"
	podsUnit    = "gpulab-pods.service"
)

// manyRestarts of one start of the machine are no accident.
const manyRestarts = 5

// unitFolders are where systemd finds units, the administrator's first.
var unitFolders = []string{
	"/etc/systemd/system/", "/run/systemd/system/", "/usr/lib/systemd/system/", "/lib/systemd/system/",
}

// probeUnits asks systemd how gpulab's units are.
func probeUnits(h host, opts Options) []Finding {
	if !h.booted() {
		return []Finding{{Probe: "units", State: OK, Seen: "systemd does not run here; gpulab is started by `gpulab " +
			"init`, also after a reboot."}}
	}
	known := false
	for _, folder := range unitFolders {
		known = known || h.exists(folder+serviceUnit)
	}
	switch {
	case !known && h.installed(opts):
		return []Finding{{
			Probe: "units", State: Fail,
			Seen:  "systemd knows no " + serviceUnit + ".",
			Means: "gpulab does not start when the machine does.",
			Mend:  "Run `" + opts.again() + "`, which writes the unit.",
		}}
	case !known:
		return []Finding{{Probe: "units", State: OK, Seen: "systemd knows no unit of gpulab yet."}}
	}
	text, err := h.output(h.ctx, "systemctl", "show", serviceUnit, podsUnit,
		"--property=Id,LoadState,ActiveState,UnitFileState,Result,NRestarts")
	if err != nil {
		return []Finding{{Probe: "units", State: Unseen, Seen: fmt.Sprintf("systemd does not answer: %v.", err)}}
	}
	units := parseUnits(text)
	if f, bad := unitTrouble(units[serviceUnit], units[podsUnit], h.installed(opts)); bad {
		f.Probe = "units"
		f.Mend = strings.ReplaceAll(f.Mend, "gpulab init", opts.again())
		return []Finding{f}
	}
	return []Finding{{Probe: "units", State: OK,
		Seen: "The unit " + serviceUnit + " is " + units[serviceUnit]["ActiveState"] + " and " +
			units[serviceUnit]["UnitFileState"] + "."}}
}

// parseUnits reads blocks of KEY=value lines, one for each unit.
func parseUnits(text string) map[string]map[string]string {
	units := map[string]map[string]string{}
	for block := range strings.SplitSeq(text, "\n\n") {
		unit := parseOSRelease(block)
		units[unit["Id"]] = unit
	}
	return units
}

func unitTrouble(service, pods map[string]string, lab bool) (Finding, bool) {
	restarts, _ := strconv.Atoi(service["NRestarts"])
	switch {
	case service["LoadState"] == "masked":
		return Finding{
			State: Fail,
			Seen:  "The unit " + serviceUnit + " is masked.",
			Means: "systemd refuses to start gpulab, whoever asks.",
			Mend:  "Run `systemctl unmask gpulab && gpulab init`.",
		}, true
	case service["ActiveState"] == "failed":
		return Finding{
			State: Fail,
			Seen:  fmt.Sprintf("The unit %s has failed (%s).", serviceUnit, service["Result"]),
			Means: "gpulab ended, and systemd gave up starting it. Notebooks go on, without their pages.",
			Mend: "Look why with `journalctl -u gpulab -n 30`, then run `systemctl reset-failed gpulab; systemctl start " +
				"gpulab`.",
		}, true
	case lab && service["ActiveState"] == "active" && restarts >= manyRestarts:
		return Finding{
			State: Warn,
			Seen:  fmt.Sprintf("systemd has started gpulab again %d times.", restarts),
			Means: "It ends again and again, or does not answer its watchdog.",
			Mend:  "Look why with `journalctl -u gpulab -p warning -n 50`.",
		}, true
	case lab && service["UnitFileState"] != "enabled" && service["UnitFileState"] != "":
		return Finding{
			State: Warn,
			Seen:  "The unit " + serviceUnit + " is " + service["UnitFileState"] + ".",
			Means: "gpulab does not start when the machine does.",
			Mend:  "Run `systemctl enable gpulab`.",
		}, true
	case service["ActiveState"] == "active" && pods["LoadState"] == "loaded" && pods["ActiveState"] != "active":
		return Finding{
			State: Warn,
			Seen:  "The unit " + podsUnit + " is " + pods["ActiveState"] + ".",
			Means: "When the machine goes down, notebooks are not asked to save, and it waits for them for 90 seconds.",
			Mend:  "Run `systemctl start gpulab-pods`.",
		}, true
	}
	return Finding{}, false
}
