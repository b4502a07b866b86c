package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// clockFiles are written while a machine lives; the data folder's are added.
var clockFiles = []string{
	"/etc/os-release", "/var/lib/dpkg/status", "/etc/machine-id", "/etc/ld.so.cache",
	"/var/lib/systemd/timesync/clock", "/var/log/wtmp", "/var/log/dpkg.log",
}

// setClock is what mends a clock that is wrong.
const setClock = "Run `timedatectl set-ntp true`, or without a network `date -s '2026-01-31 12:00'` with the " +
	"right time."

// probeClock: certificates are made with the clock's time. A clock that stands
// before the machine's own files was reset, by an empty battery for example;
// one that is a year after all of them has jumped. A single file from the future
// may have been copied with that date; a clock that was reset leaves several.
func probeClock(h host, opts Options) []Finding {
	now, newest := h.now(), time.Time{}
	files := clockFiles
	for _, name := range []string{"gpulab.db", "gpulab.db-wal", "metrics.db-wal"} {
		files = append(files, filepath.Join(opts.DataDir, name))
	}
	type file struct {
		path string
		time time.Time
	}
	var future []file
	for _, p := range files {
		info, err := os.Stat(h.path(p))
		switch {
		case err != nil:
		case info.ModTime().After(now.Add(time.Hour)):
			future = append(future, file{p, info.ModTime()})
		case info.ModTime().After(newest):
			newest = info.ModTime()
		}
	}
	says := now.Format("2006-01-02 15:04")
	switch {
	case len(future) > 1:
		// The second newest date counts: a single one may be wrong.
		slices.SortFunc(future, func(a, b file) int { return b.time.Compare(a.time) })
		return []Finding{{
			Probe: "clock", State: Fail,
			Seen: fmt.Sprintf("The clock says %s, but this machine's own files are from %s.", says,
				future[1].time.Format(time.DateOnly)),
			Means: "Certificates made now would look as if they were from the past.",
			Mend:  setClock,
		}}
	case len(future) == 1:
		return []Finding{{
			Probe: "clock", State: Warn,
			Seen: fmt.Sprintf("The clock says %s, but %s is from %s.", says, future[0].path,
				future[0].time.Format(time.DateOnly)),
			Means: "Where the clock is right, nothing comes of it. Where it is wrong, certificates made now would look as if " +
				"they were from the past.",
			Mend: fmt.Sprintf("If the clock is right: `touch %s`. If not: %s", future[0].path, setClock),
		}}
	case !newest.IsZero() && now.Sub(newest) > 300*24*time.Hour:
		return []Finding{{
			Probe: "clock", State: Warn,
			Seen: fmt.Sprintf("The clock says %s, but nothing was written on this machine since %s.", says,
				newest.Format(time.DateOnly)),
			Means: "Either it was off for long, or its clock has jumped ahead: then certificates look as if they had run out.",
			Mend:  "If that is not today's date: " + setClock,
		}}
	}
	return []Finding{{Probe: "clock", State: OK,
		Seen: fmt.Sprintf("The clock says %s and agrees with this machine's files.", says)}}
}
