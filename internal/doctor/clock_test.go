package doctor

import (
	"os"
	"testing"
	"time"
)

func TestClock(t *testing.T) {
	h := machine(t, map[string]string{"/var/lib/gpulab/gpulab.db-wal": "x"})
	finds(t, h, "clock", Options{}, OK)

	// The machine's files are of today.
	h.now = func() time.Time { return time.Now().AddDate(-1, 0, 0) }
	finds(t, h, "clock", Options{}, Fail, "own files are from "+time.Now().Format(time.DateOnly), "`timedatectl set-ntp true`")
	h.now = func() time.Time { return time.Now().AddDate(1, 0, 0) }
	finds(t, h, "clock", Options{}, Warn, "nothing was written", "jumped ahead")

	// The database alone is newer than everything else.
	h.now = time.Now
	later := time.Now().Add(48 * time.Hour)
	if err := os.Chtimes(h.path("/var/lib/gpulab/gpulab.db-wal"), later, later); err != nil {
		t.Fatal(err)
	}
	finds(t, h, "clock", Options{}, Fail)
}
