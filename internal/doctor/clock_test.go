package doctor

import (
	"os"
	"testing"
	"time"
)

func TestClock(t *testing.T) {
	h := machine(t, map[string]string{"/var/lib/gpulab/gpulab.db-wal": "x", "/var/lib/gpulab/metrics.db-wal": "x", "/var/log/dpkg.log": "x"})
	finds(t, h, "clock", Options{}, OK)

	// The machine's files are of today.
	h.now = func() time.Time { return time.Now().AddDate(-1, 0, 0) }
	finds(t, h, "clock", Options{}, Fail, "own files are from "+time.Now().Format(time.DateOnly), "`timedatectl set-ntp true`")
	h.now = func() time.Time { return time.Now().AddDate(1, 0, 0) }
	finds(t, h, "clock", Options{}, Warn, "nothing was written", "jumped ahead")

	// A single file from the future does not mean that the clock is wrong.
	h.now = time.Now
	from := func(path string, at time.Time) {
		t.Helper()
		if err := os.Chtimes(h.path(path), at, at); err != nil {
			t.Fatal(err)
		}
	}
	from("/var/log/dpkg.log", time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC))
	finds(t, h, "clock", Options{}, Warn, "/var/log/dpkg.log is from 2099-01-01", "`touch /var/log/dpkg.log`", "`timedatectl set-ntp true`")
	from("/var/log/dpkg.log", time.Now())

	// Only the lab's databases are newer than everything else.
	later := time.Now().Add(48 * time.Hour)
	from("/var/lib/gpulab/gpulab.db-wal", later)
	from("/var/lib/gpulab/metrics.db-wal", later.Add(time.Hour))
	finds(t, h, "clock", Options{}, Fail, "own files are from "+later.Format(time.DateOnly))
}
