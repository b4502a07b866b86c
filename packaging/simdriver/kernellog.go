package simdriver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// mostLogged is how many of a storm of equal errors come into the log: the
	// kernel, too, leaves most of them out.
	mostLogged = 10
	// logSize is how large the log may grow before it begins anew, in bytes.
	logSize = 256 << 10
)

// loggedXID is an XID error that the kernel's log is to tell of.
type loggedXID struct {
	gpu     int
	xid     uint64
	times   uint64
	pid     uint64 // 0: the driver does not know whose fault it is
	program string
}

// writeKernelLog adds errors to the log, as records of /dev/kmsg are: priority,
// number, µs since the boot, flags, and the text.
func writeKernelLog(path string, errs []loggedXID, gpus []gpuState) error {
	if len(errs) == 0 {
		return nil
	}
	boot, err := sinceBoot()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	stamp := boot.Microseconds()
	for _, e := range errs {
		process := "pid='<unknown>', name=<unknown>"
		if e.pid != 0 {
			process = fmt.Sprintf("pid=%d, name=%s", e.pid, e.program)
		}
		for range min(e.times, mostLogged) {
			fmt.Fprintf(&b, "3,%d,%d,-;NVRM: Xid (PCI:%s): %d, %s, simulated\n", stamp, stamp, logAddress(gpus[e.gpu].busID), e.xid, process)
			stamp++
		}
	}
	return appendLog(path, b.Bytes())
}

// logAddress writes a GPU's address the driver's way: 0000:21:00 of 00000000:21:00.0.
func logAddress(busID string) string {
	return busID[len("0000"):max(len("0000"), len(busID)-len(".0"))]
}

// appendLog writes to a file, or to a fifo if somebody reads it.
func appendLog(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NONBLOCK, 0o600)
	if errors.Is(err, unix.ENXIO) {
		return nil // a fifo that nobody reads
	}
	if err != nil {
		return err
	}
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Size() > logSize {
		_ = f.Truncate(0)
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// forgetOldLog removes a log that was written before the machine was started:
// the kernel's does not outlive it either.
func forgetOldLog(path string) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	var up unix.Timespec // suspended time included, unlike sinceBoot
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) == nil && info.ModTime().Before(time.Now().Add(-time.Duration(up.Nano()))) {
		_ = os.Remove(path)
	}
}

// sinceBoot is the kernel's clock for its log.
func sinceBoot() (time.Duration, error) {
	var ts unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano()), err
}
