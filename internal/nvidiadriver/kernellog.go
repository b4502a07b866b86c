package nvidiadriver

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// What the driver and the kernel write about cards that do not work.
var (
	openNeeded   = regexp.MustCompile(`requires use of the NVIDIA open kernel modules`)
	legacy       = regexp.MustCompile(`supported through the NVIDIA [\d.x]+ Legacy drivers`)
	notSupported = regexp.MustCompile(`not supported by the (NVIDIA )?[\d.]+ (NVIDIA )?driver|` +
		`not supported by the open nvidia\.ko`)
	noWindow    = regexp.MustCompile(`PCI I/O region assigned to your NVIDIA device is invalid`)
	noPower     = regexp.MustCompile(`GPU does not have the necessary power cables connected`)
	keyRejected = regexp.MustCompile(`with unavailable key is rejected|unsigned module loading is restricted`)
)

func initFailed(address string) *regexp.Regexp {
	return regexp.MustCompile(regexp.QuoteMeta(address) + `: RmInitAdapter failed`)
}

func lostCard(address string) *regexp.Regexp {
	return regexp.MustCompile(`(Xid \(PCI:` + regexp.QuoteMeta(strings.TrimSuffix(address, ".0")) + `(\.0)?\): 79\b|` +
		regexp.QuoteMeta(address) + `: GPU has fallen off the bus)`)
}

// kernelLog is what the kernel has written since it was booted, as far as it still has it.
type kernelLog []string

// last is the last line with the pattern, "" for none.
func (l kernelLog) last(pattern *regexp.Regexp) string {
	for _, line := range slices.Backward(l) {
		if pattern.MatchString(line) {
			return line
		}
	}
	return ""
}

// kernelLog reads /dev/kmsg up to now. Each record there begins with its priority, number and time.
func (t tree) kernelLog() kernelLog {
	fd, err := unix.Open(t.path("/dev/kmsg"), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var text strings.Builder
	record := make([]byte, 64<<10)
	for {
		n, err := unix.Read(fd, record)
		if n > 0 {
			_, _ = text.Write(record[:n])
		}
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.EINTR) {
			continue // records were overwritten meanwhile
		}
		if err != nil || n == 0 {
			break
		}
	}
	var log kernelLog
	for line := range strings.Lines(text.String()) {
		if _, message, ok := strings.Cut(strings.TrimRight(line, "\n"), ";"); ok && !strings.HasPrefix(line, " ") {
			log = append(log, message)
		}
	}
	return log
}
