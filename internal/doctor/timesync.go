package doctor

import "golang.org/x/sys/unix"

// probeTimesync asks the kernel whether a program keeps its clock right.
func probeTimesync(h host, _ Options) []Finding {
	synced, known := h.synced()
	switch {
	case !known:
		return nil
	case synced:
		return []Finding{{Probe: "timesync", State: OK, Seen: "The clock is kept right by a time server."}}
	}
	return []Finding{{
		Probe: "timesync", State: Warn,
		Seen: "Nothing keeps this machine's clock right.",
		Means: "It drifts by some seconds a day. When it is off by minutes, sign-in codes and accounts of other providers " +
			"are refused, and machines of the pool refuse one another's certificates.",
		Mend: "Run `apt-get install systemd-timesyncd && timedatectl set-ntp true`; a container takes the time of its " +
			"machine, which is where to do it.",
	}}
}

// clockSynced reads the kernel's state of the clock; it sets nothing.
func clockSynced() (synced, known bool) {
	var timex unix.Timex // no mode: read only
	if _, err := unix.Adjtimex(&timex); err != nil {
		return false, false
	}
	return timex.Status&unix.STA_UNSYNC == 0, true
}
