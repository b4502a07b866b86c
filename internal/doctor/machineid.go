package doctor

import (
	"fmt"
	"regexp"
	"strings"
)

var machineID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// newMachineID gives a machine an identity of its own.
const newMachineID = "Run `rm -f /etc/machine-id /var/lib/dbus/machine-id && systemd-machine-id-setup && ln -s " +
	"/etc/machine-id /var/lib/dbus/machine-id`, then reboot."

// probeMachineID: the kernel's network names and hardware addresses of bridges
// are made from this number, so two machines with the same one disturb each
// other's pods. One machine sees no more of a clone than these signs.
func probeMachineID(h host, _ Options) []Finding {
	id, bus := h.read("/etc/machine-id"), h.read("/var/lib/dbus/machine-id")
	means := "Network addresses and logs are made from it; a machine whose number is not its own disturbs the others " +
		"of a pool."
	switch {
	case id == "" || id == "uninitialized":
		return []Finding{{
			Probe: "machineid", State: Warn,
			Seen:  "This machine has no machine-id, as an image that was never started.",
			Means: means, Mend: newMachineID,
		}}
	case !machineID.MatchString(id) || strings.Count(id, id[:1]) == len(id):
		return []Finding{{
			Probe: "machineid", State: Warn,
			Seen:  fmt.Sprintf("The machine-id %.40q is not one that a machine chose by chance.", id),
			Means: means, Mend: newMachineID,
		}}
	case machineID.MatchString(bus) && bus != id:
		return []Finding{{
			Probe: "machineid", State: Warn,
			Seen:  "This machine has two machine-ids: /etc/machine-id and /var/lib/dbus/machine-id differ.",
			Means: "That is what a copied disk looks like. " + means,
			Mend:  newMachineID,
		}}
	}
	return []Finding{{Probe: "machineid", State: OK, Seen: "The machine-id is one that a machine chose by chance."}}
}
