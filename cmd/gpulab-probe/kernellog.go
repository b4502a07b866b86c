//go:build cgo

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// kernelLog reads what NVIDIA's driver writes into the kernel's log: the XID
// errors from before the probe was started, which the library does not tell
// any more, and whose they are, which it never tells. It never waits.
type kernelLog struct {
	path     string
	optional bool      // nobody is told that it is not there
	stderr   io.Writer // is told once why it cannot be read

	fd     int // -1: not open
	failed bool
	mark   string // of a record of the probe's own that has not been read back yet
	// The times of that record, by the machine's clock and by the log's; 0: not known.
	markClock, markStamp time.Duration
	rest                 []byte // of a line that is not complete yet
	torn                 bool   // what comes is the rest of a line that was too long
	buffer               []byte
}

// kernelLogPath finds the log: the kernel's own, or what the simulated driver
// at library has in its place. An empty path is none.
func kernelLogPath(o options, d *driver) (path string, optional bool) {
	switch {
	case o.kmsg == "none":
		return "", true
	case o.kmsg != "":
		return o.kmsg, false
	case d.simulated: // ROOT/usr/lib/MULTIARCH/libnvidia-ml.so.1
		return filepath.Join(filepath.Dir(o.library), "../../../run/simgpu/kmsg"), true
	default:
		return "/dev/kmsg", false
	}
}

func newKernelLog(path string, optional bool, stderr io.Writer) *kernelLog {
	// One read of /dev/kmsg is one record, of at most 8 KiB.
	return &kernelLog{
		path: path, optional: optional, stderr: stderr, fd: -1, failed: path == "", buffer: make([]byte, 8<<10),
	}
}

// longestLine is the longest line that can be about an XID, in bytes.
const longestLine = 4 << 10

// read passes on XID errors that have come into the log since the last call, and tells
// whether those are all.
func (l *kernelLog) read(take func(loggedXID)) (all bool) {
	if l.failed || l.fd < 0 && !l.open() {
		return true
	}
	for range maxAtOnce {
		n, err := unix.Read(l.fd, l.buffer)
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EPIPE): // EPIPE: older records were overwritten
			continue
		case errors.Is(err, unix.EAGAIN):
			return true
		case err != nil:
			l.fail(err)
			return true
		case n <= 0:
			l.followTruncation()
			return true
		}
		l.split(l.buffer[:n], take)
	}
	return false
}

func (l *kernelLog) open() bool {
	fd, err := unix.Open(l.path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		if !l.optional || !errors.Is(err, unix.ENOENT) {
			l.fail(err)
		}
		return false
	}
	l.fd = fd
	l.leaveMark()
	return true
}

// leaveMark writes a record into the kernel's log, which tells what its clock says
// now: no call does, and it goes its own way while the machine's clock is steered
// by what the network says the time is. Without the right to write, the two are
// taken to be the same.
func (l *kernelLog) leaveMark() {
	var st unix.Stat_t
	if unix.Fstat(l.fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return
	}
	fd, err := unix.Open(l.path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	l.markClock = monotonic()
	mark := fmt.Sprintf("gpulab-probe: reads the XID errors of this log, at %.6f of the clock", l.markClock.Seconds())
	if _, err := unix.Write(fd, []byte("<14>"+mark+"\n")); err == nil {
		l.mark = ";" + mark
	}
}

// findMark takes the log's time of the mark.
func (l *kernelLog) findMark(record []byte) {
	head, _, _ := strings.Cut(string(record), ";")
	if _, stamp, ok := parseHead(head); ok && (l.markClock-stamp).Abs() <= time.Second+l.markClock/clockDrift {
		l.markStamp = stamp
	}
	l.mark = ""
}

// age is how long before a moment of the machine's clock something was logged.
// Before the mark the two clocks are taken to have gone apart evenly since the boot.
func (l *kernelLog) age(stamp, clock time.Duration) time.Duration {
	switch {
	case l.markStamp == 0:
		return clock - stamp
	case stamp < l.markStamp:
		return clock - time.Duration(float64(stamp)*float64(l.markClock)/float64(l.markStamp))
	}
	return clock - l.markClock - (stamp - l.markStamp)
}

// fail gives the log up. In a container, or without the right to read it, the
// library still tells of errors from now on.
func (l *kernelLog) fail(err error) {
	l.failed = true
	if l.fd >= 0 {
		_ = unix.Close(l.fd)
		l.fd = -1
	}
	_, _ = fmt.Fprintf(l.stderr, "gpulab-probe: the kernel's log %s cannot be read (%v): XID errors from before this "+
		"start, and whose they are, are not known\n", l.path, err)
}

// followTruncation begins anew with a file that was emptied.
func (l *kernelLog) followTruncation() {
	var st unix.Stat_t
	if unix.Fstat(l.fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	if at, err := unix.Seek(l.fd, 0, io.SeekCurrent); err == nil && st.Size < at {
		_, _ = unix.Seek(l.fd, 0, io.SeekStart)
		l.rest, l.torn = nil, false
	}
}

// split takes the lines in a piece of the log.
func (l *kernelLog) split(piece []byte, take func(loggedXID)) {
	for len(piece) > 0 {
		line, after, complete := bytes.Cut(piece, []byte("\n"))
		piece = after
		if !complete {
			l.torn = l.torn || len(l.rest)+len(line) > longestLine
			l.rest = append(l.rest, line...)
			if l.torn {
				l.rest = nil
			}
			return
		}
		if len(l.rest) > 0 {
			line = append(l.rest, line...)
			l.rest = nil
		}
		if l.torn {
			l.torn = false
			continue
		}
		if l.mark != "" && bytes.Contains(line, []byte(l.mark)) {
			l.findMark(line)
		}
		if e, ok := parseXID(line); ok {
			take(e)
		}
	}
}

// loggedXID is an XID error in the kernel's log.
type loggedXID struct {
	stamp   time.Duration // after the boot, on the log's clock
	busID   string        // of the GPU, as NVML writes it
	xid     uint64
	pid     int           // 0: not known
	program string        // "": not known
	first   bool          // it was there at the first look
	after   time.Duration // on the machine's clock, the look before that in which it was there; 0: none
}

// parseXID reads a record of /dev/kmsg if it is one of NVIDIA's driver about an
// XID error, such as
//
//	3,1421,8512345678,-;NVRM: Xid (PCI:0000:01:00): 31, pid=4711, name=python3, Ch 00000008
func parseXID(record []byte) (e loggedXID, ok bool) {
	if !bytes.Contains(record, []byte(";NVRM: Xid (")) || len(record) > longestLine {
		return e, false
	}
	head, message, _ := strings.Cut(string(record), ";")
	// The upper bits are who wrote it: 0 is the kernel, which no program can claim.
	priority, stamp, ok := parseHead(head)
	if !ok || priority>>3 != 0 {
		return e, false
	}
	message, isXID := strings.CutPrefix(message, "NVRM: Xid (")
	address, message, whole := strings.Cut(message, "): ")
	place, known := parseAddress(strings.TrimPrefix(address, "PCI:"))
	digits, details, _ := strings.Cut(message, ",")
	xid, err := strconv.ParseUint(digits, 10, 32)
	if !isXID || !whole || !known || err != nil {
		return e, false
	}
	e = loggedXID{stamp: stamp, busID: place, xid: xid}
	e.pid, e.program = culprit(details)
	return e, true
}

// parseHead reads what is before a record's text: how urgent it is and who wrote it,
// its number, and when it was written.
func parseHead(head string) (priority uint64, stamp time.Duration, ok bool) {
	fields := strings.Split(head, ",")
	if len(fields) < 3 {
		return 0, 0, false
	}
	priority, err := strconv.ParseUint(fields[0], 10, 32)
	if err != nil {
		return 0, 0, false
	}
	micros, err := strconv.ParseUint(fields[2], 10, 53)
	return priority, time.Duration(micros) * time.Microsecond, err == nil
}

// parseAddress reads DOMAIN:BUS:DEVICE, with or without a function.
func parseAddress(text string) (place string, ok bool) {
	text, _, _ = strings.Cut(text, ".")
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return "", false
	}
	var numbers [3]uint32
	for i, bits := range []int{32, 8, 8} {
		n, err := strconv.ParseUint(parts[i], 16, bits)
		if err != nil {
			return "", false
		}
		numbers[i] = uint32(n)
	}
	return busID(numbers[0], numbers[1], numbers[2]), true
}

// culprit finds the process in what follows an XID's number. The driver may not
// know it: pid='<unknown>', name=<unknown>.
func culprit(details string) (pid int, program string) {
	for part := range strings.SplitSeq(details, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		value = strings.Trim(value, "'")
		switch {
		case value == "" || value == "<unknown>":
		case key == "pid" && pid == 0:
			if n, err := strconv.ParseUint(value, 10, 31); err == nil {
				pid = int(n)
			}
		case key == "name" && program == "":
			program = strings.ToValidUTF8(value[:min(len(value), 64)], "\uFFFD")
		}
	}
	return pid, program
}

// monotonic is the machine's clock since its boot. Neither it nor the log's runs
// while the machine sleeps.
func monotonic() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // always there
	return time.Duration(ts.Nano())
}
