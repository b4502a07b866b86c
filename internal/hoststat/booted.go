package hoststat

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// Booted is when this machine, or the container that passes for one, was
// started: when its first process was.
func Booted() (time.Time, error) {
	first, err := procfs.NewProc(1)
	if err != nil {
		return time.Time{}, fmt.Errorf("the machine's first process: %w", err)
	}
	stat, err := first.Stat()
	if err != nil {
		return time.Time{}, fmt.Errorf("the machine's first process: %w", err)
	}
	at, err := stat.StartTime()
	if err != nil {
		return time.Time{}, fmt.Errorf("when the machine was started: %w", err)
	}
	return time.UnixMilli(int64(at * 1000)), nil
}
