//go:build cgo

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/packaging/simdriver"
	"github.com/gpulab/gpulab/packaging/simdriver/simtest"
)

func TestParseXID(t *testing.T) {
	at := func(micros, xid uint64, bus string, pid int, program string) loggedXID {
		return loggedXID{stamp: time.Duration(micros) * time.Microsecond, busID: bus, xid: xid, pid: pid, program: program}
	}
	for line, want := range map[string]loggedXID{
		"3,7,8512345678,-;NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.":                         at(8512345678, 79, "00000000:01:00.0", 0, ""),
		"4,7,1,-;NVRM: Xid (PCI:0000:c1:00): 31, pid=4711, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0": at(1, 31, "00000000:C1:00.0", 4711, "python3"),
		"3,7,5,-,caller=T99;NVRM: Xid (PCI:0000:01:00): 43, pid=99, Ch 00000010":                                                                at(5, 43, "00000000:01:00.0", 99, ""),
		"3,7,5,-;NVRM: Xid (0000:0A:00): 13, Graphics Exception: ESR 0x50d730=0x9":                                                              at(5, 13, "00000000:0A:00.0", 0, ""),
		"3,7,5,c;NVRM: Xid (PCI:10de:01:1f.0): 48":                                                                                              at(5, 48, "000010DE:01:1F.0", 0, ""),
		"2,7,5,-;NVRM: Xid (PCI:0000:01:00): 13, pid='12', name='a b', pid=13, name=c":                                                          at(5, 13, "00000000:01:00.0", 12, "a b"),
	} {
		if got, ok := parseXID([]byte(line)); !ok || got != want {
			t.Errorf("%s:\ngot  %+v, %v\nwant %+v", line, got, ok, want)
		}
	}
	for _, line := range []string{
		"",
		"12,7,5,-;NVRM: Xid (PCI:0000:01:00): 79, pid=1", // a program has written it
		"3,7,5,-;somebody said: ;NVRM: Xid (PCI:0000:01:00): 79",
		"3,7,5,-;NVRM: Xid (PCI:0000:01:00)",
		"3,7,5,-;NVRM: Xid (PCI:0000:01): 79",
		"3,7,5,-;NVRM: Xid (PCI:0000:01:100): 79",
		"3,7,5,-;NVRM: Xid (PCI:0000:01:00): -1",
		"3,7,5,-;NVRM: Xid (PCI:0000:01:00): 99999999999999999999",
		"3,7,-5,-;NVRM: Xid (PCI:0000:01:00): 79",
		"3,7;NVRM: Xid (PCI:0000:01:00): 79",
		"NVRM: Xid (PCI:0000:01:00): 79, pid=1",
		"6,7,5,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
	} {
		if got, ok := parseXID([]byte(line)); ok {
			t.Errorf("%q is taken for %+v", line, got)
		}
	}
}

func FuzzParseXID(f *testing.F) {
	f.Add([]byte("3,7,8512345678,-;NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."), 3)
	f.Add([]byte("4,8,1,-;NVRM: Xid (0000:C1:00): 31, pid=4711, name=python3, Ch 8\n SUBSYSTEM=pci\n"), 40)
	f.Add([]byte("6,1,2,-;\xff;NVRM: Xid (\n\n"), 1)
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		if e, ok := parseXID(text); ok {
			if len(e.busID) != len("00000000:01:00.0") || e.pid < 0 || e.stamp < 0 || !utf8.ValidString(e.program) {
				t.Errorf("%q: %+v", text, e)
			}
			if !strings.Contains(string(text), fmt.Sprint(e.xid)) && !strings.Contains(string(text), "0"+fmt.Sprint(e.xid)) {
				t.Errorf("%q: made up the number %d", text, e.xid)
			}
		}
		// What is read does not depend on where the pieces end.
		whole, pieces := newKernelLog("x", true, nil), newKernelLog("x", true, nil)
		var a, b []loggedXID
		whole.split(text, func(e loggedXID) { a = append(a, e) })
		at := max(0, min(cut, len(text)))
		pieces.split(text[:at], func(e loggedXID) { b = append(b, e) })
		pieces.split(text[at:], func(e loggedXID) { b = append(b, e) })
		if fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("whole %v, in pieces %v", a, b)
		}
	})
}

// An error that both tell of counts once, whoever is first; what one of them
// alone tells of counts as well.
func TestErrorsAreCountedOnce(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		reports string // k: the kernel's log, n: NVML, |: a snapshot, _: 3 s, x: of another GPU in the log
		want    int
	}{
		"log first":               {"kn", 1},
		"log first, later":        {"k|_n", 1},
		"NVML first":              {"nk", 1},
		"NVML first, later":       {"n|_k", 1},
		"twice":                   {"kknn", 2},
		"twice, mixed":            {"knkn", 2},
		"the log leaves some out": {"knnn", 3},
		"NVML leaves some out":    {"kkkn", 3},
		"again after a while":     {"k|__n", 2},
		"the log alone":           {"k|__k|__k", 3},
		"another GPU":             {"xn", 2},
	} {
		var l eventLog
		at := now
		var all []gpu.XIDEvent
		for _, report := range c.reports {
			switch report {
			case '_':
				at = at.Add(3 * time.Second)
			case '|':
				events, _ := l.take(at)
				all = append(all, events...)
			case 'x':
				l.add(gpu.XIDEvent{Index: 1, XID: 31, Time: at}, true, at)
			default:
				e := gpu.XIDEvent{XID: 31, Time: at}
				if report == 'k' {
					e.PID, e.Program = 4711, "python3"
				}
				l.add(e, report == 'k', at)
			}
		}
		events, dropped := l.take(at)
		all = append(all, events...)
		if told := len(all) + dropped; told != c.want {
			t.Errorf("%s: %d errors, want %d: %+v", name, told, c.want, all)
		}
		if name == "NVML first" && (all[0].PID != 4711 || all[0].Program != "python3") {
			t.Errorf("%s: whose it is was not added: %+v", name, all[0])
		}
	}
}

// logLine is a record of the kernel's log, age before now.
func logLine(bus string, age time.Duration, what string) string {
	stamp := (monotonic() - age).Microseconds()
	return fmt.Sprintf("3,%d,%d,-;NVRM: Xid (PCI:%s): %s\n", stamp, stamp, bus, what)
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// eventsAre waits until the probe has told of so many errors.
func (p *running) eventsAre(t *testing.T, count int) []gpu.XIDEvent {
	t.Helper()
	simtest.Eventually(t, 6*time.Second, func() string {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.events)+p.dropped != count {
			return fmt.Sprintf("%d errors and %d more, want %d: %+v", len(p.events), p.dropped, count, p.events)
		}
		return ""
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.events
}

// What the log held before the start is told with its time; what comes later
// and NVML tells too is told once, with whose it is.
func TestXIDsOfTheKernelsLog(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 2)
	begun := time.Now()
	appendTo(t, simdriver.KernelLog(root),
		logLine("0000:22:00", 2*time.Minute, "63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping")+
			"6,1,1,-;nvidia: loading\n SUBSYSTEM=pci\n"+
			logLine("0000:99:00", time.Minute, "79, pid=1, name=x")+ // no GPU of this machine
			logLine("0000:21:00", -time.Hour, "79, pid=1, name=x")) // of another boot
	p := start(t, simdriver.Library(root))
	p.gpuReads(t, 1, well)
	early := p.eventsAre(t, 1)[0]
	if before := begun.Sub(early.Time); !early.Earlier || early.XID != 63 || early.Index != 1 || early.UUID != p.gpu(1).UUID || (before-2*time.Minute).Abs() > 5*time.Second {
		t.Errorf("from before the start: %+v, %v before the test", early, before)
	}
	if p.gpu(1).XID != nil {
		t.Error("what happened before the start is shown as an error of now")
	}
	begun = time.Now()
	simtest.Inject(t, root, "gpu 0 xid 31 by 4711 python3")
	simtest.Inject(t, root, "gpu 1 xid 119 logged")
	p.eventsAre(t, 3)
	time.Sleep(1500 * time.Millisecond) // the other's report would have come by now
	events := map[uint64]gpu.XIDEvent{}
	for _, e := range p.eventsAre(t, 3) {
		events[e.XID] = e
	}
	if e := events[31]; e.Index != 0 || e.PID != 4711 || e.Program != "python3" || e.Earlier || begun.Sub(e.Time) > 5*time.Second {
		t.Errorf("told by both: %+v", e)
	}
	if e := events[119]; e.Index != 1 || e.PID != 0 || e.Program != "" || e.UUID != p.gpu(1).UUID {
		t.Errorf("told by the log alone: %+v", e)
	}
	if x := p.gpu(1).XID; x == nil || *x != 119 {
		t.Errorf("the GPU's last XID is %v", x)
	}
}

// TestClocksGoApart: the log's clock is compared with the machine's by a record of the probe's own.
func TestClocksGoApart(t *testing.T) {
	const minute, day = time.Minute, 24 * time.Hour
	for name, c := range map[string]struct {
		clock, mark time.Duration // at the mark
		now, stamp  time.Duration // of another record, and when it is read
		age         time.Duration
	}{
		"before the mark, evenly apart":        {10 * day, 10*day - 100*time.Second, 10 * day, 5*day - 50*time.Second, 5 * day},
		"after it, as far apart as there":      {10 * day, 10*day - 100*time.Second, 10*day + minute, 10*day - 90*time.Second, 50 * time.Second},
		"days after an early mark":             {30 * time.Second, 30*time.Second - 6*time.Millisecond, 5 * day, 5*day - time.Second - 6*time.Millisecond, time.Second},
		"a log that is ahead":                  {10 * day, 10*day + 50*time.Second, 10 * day, 10*day + 40*time.Second, 10 * time.Second},
		"a mark of another machine's age":      {10 * day, 2 * day, 10 * day, 9 * day, day},
		"a mark without a time, and no record": {10 * day, 0, 10 * day, 9 * day, day},
	} {
		l := newKernelLog("", true, os.Stderr)
		l.mark, l.markClock = ";a mark", c.clock
		l.split(fmt.Appendf(nil, "14,1,%d,-;another\n14,2,%d,-;a mark\n", 7, c.mark.Microseconds()), func(e loggedXID) { t.Errorf("%+v", e) })
		if l.mark != "" {
			t.Errorf("%s: the mark is not found", name)
		}
		if age := l.age(c.stamp, c.now); (age - c.age).Abs() > 20*time.Millisecond {
			t.Errorf("%s: %s old, want %s", name, age, c.age)
		}
	}
}

// TestMarkInTheKernelsLog leaves a mark in the machine's own log and finds it.
func TestMarkInTheKernelsLog(t *testing.T) {
	f, err := os.OpenFile("/dev/kmsg", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("the kernel's log cannot be read and written here: %v", err)
	}
	_ = f.Close()
	l := newKernelLog("/dev/kmsg", false, os.Stderr)
	if l.read(func(loggedXID) {}); l.failed {
		t.Fatal("it cannot be read")
	}
	defer func() { _ = unix.Close(l.fd) }()
	if l.mark != "" || l.markStamp == 0 {
		t.Errorf("the mark %q is not found", l.mark)
	}
	if clock := monotonic(); l.age(clock, clock).Abs() > time.Second+clock/clockDrift {
		t.Errorf("the clocks are %s apart", l.age(clock, clock))
	}
}

// TestLiveErrorsAreOfNow: what comes into the log while the probe runs is no older than its last look, whatever the
// log's clock says.
func TestLiveErrorsAreOfNow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	at := func(ago time.Duration) string {
		return fmt.Sprintf("3,1,%d,-;NVRM: Xid (PCI:0000:01:00): 31\n", (monotonic() - ago).Microseconds())
	}
	appendTo(t, path, at(20*time.Second))
	r := &reader{}
	r.last.PCIBusID, _ = parseAddress("0000:01:00")
	p := &probe{kernel: newKernelLog(path, false, os.Stderr), started: monotonic(), readers: []*reader{r}}
	p.readKernelLog(time.Now())
	appendTo(t, path, at(20*time.Second)) // of a log that is behind
	now := time.Now()
	p.readKernelLog(now)
	events, _ := p.events.take(now)
	if len(events) != 2 || !events[0].Earlier || now.Sub(events[0].Time) < 15*time.Second || events[1].Earlier || now.Sub(events[1].Time) > 5*time.Second {
		t.Errorf("told %+v at %s", events, now)
	}
}

// A fifo in place of the log, and a log that is emptied and begun anew.
func TestKernelsLogThatIsNoPlainFile(t *testing.T) {
	var got []uint64
	take := func(e loggedXID) { got = append(got, e.xid) }
	path := filepath.Join(t.TempDir(), "kmsg")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	l := newKernelLog(path, false, os.Stderr)
	l.read(take) // nobody writes yet
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, piece := range []string{"3,1,1,-;NVRM: Xid (PCI:0000:01:", "00): 13\n3,2,2,-;NVRM: Xid (PCI:0000:01:00): 31\n" + strings.Repeat("x", 3*longestLine), "\n3,3,3,-;NVRM: Xid (PCI:0000:01:00): 43\n"} {
		if _, err := w.WriteString(piece); err != nil {
			t.Fatal(err)
		}
		l.read(take)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l.read(take)
	if fmt.Sprint(got) != "[13 31 43]" {
		t.Errorf("through a fifo: %v", got)
	}

	got, path = nil, filepath.Join(t.TempDir(), "kmsg")
	l = newKernelLog(path, true, os.Stderr)
	l.read(take) // not there yet
	appendTo(t, path, "3,1,1,-;NVRM: Xid (PCI:0000:01:00): 13\n3,2,2,-;NVRM: Xid (PCI:0000:01:00): 31\n")
	l.read(take)
	l.read(take)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	appendTo(t, path, "3,3,3,-;NVRM: Xid (PCI:0000:01:00): 43\n")
	l.read(take)
	l.read(take)
	if fmt.Sprint(got) != "[13 31 43]" {
		t.Errorf("a file that was emptied: %v", got)
	}
}

// A log that may not be read is said once, and the rest goes on.
func TestKernelsLogThatCannotBeRead(t *testing.T) {
	var said strings.Builder
	l := newKernelLog(t.TempDir(), false, &said) // a folder: reading it is refused
	for range 3 {
		l.read(func(e loggedXID) { t.Errorf("%+v", e) })
	}
	if strings.Count(said.String(), "\n") != 1 || !strings.Contains(said.String(), "the kernel's log") || !strings.Contains(said.String(), "cannot be read") {
		t.Errorf("it says %q", said.String())
	}
	none := newKernelLog("", true, &said)
	none.read(func(e loggedXID) { t.Errorf("%+v", e) })
	if strings.Count(said.String(), "\n") != 1 {
		t.Errorf("it says %q", said.String())
	}
}
