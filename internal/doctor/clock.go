package doctor

import (
	"fmt"
	"os"
	"time"
)

// probeClock: certificates are made with the clock's time. A clock that stands
// before the machine's own files was reset, by an empty battery for example.
func probeClock(h host, _ Options) []Finding {
	now := time.Now()
	newest := time.Time{}
	for _, p := range []string{"/etc/os-release", "/var/lib/dpkg/status", "/etc/machine-id"} {
		if info, err := os.Stat(h.path(p)); err == nil && info.ModTime().After(newest) {
			newest = info.ModTime()
		}
	}
	if newest.After(now.Add(time.Hour)) {
		return []Finding{{
			Probe: "clock", State: Fail,
			Seen:  fmt.Sprintf("The clock says %s, but this machine's own files are from %s.", now.Format("2006-01-02 15:04"), newest.Format("2006-01-02")),
			Means: "Certificates made now would look as if they were from the past.",
			Mend:  "Set the clock: timedatectl set-ntp true, or date -s '2026-01-31 12:00'.",
		}}
	}
	return []Finding{{Probe: "clock", State: OK, Seen: "The clock agrees with this machine's files."}}
}
