package simdriver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// scanner finds the processes that have our libcuda mapped. Reading the maps
// of every process each second would cost too much, so a process's maps are
// read when it is new, when its address space has changed its size (loading a
// library does that), and for safety once in recheckEvery scans.
type scanner struct {
	root    string
	needles [][]byte // how our libcuda looks in a line of /proc/PID/maps
	uuids   []string
	known   map[int]*process
	scans   int
	buffer  []byte
}

const (
	recheckEvery = 60
	// warmUp is how long a process that has just opened the GPU works it at
	// least somewhat, as making a context and loading kernels does.
	warmUp = 20 * time.Second
	// ticksPerSecond is the unit of processor times in /proc (USER_HZ), 100
	// on every architecture Go supports.
	ticksPerSecond = 100
)

// process is what is remembered about one process.
type process struct {
	stat   procStat
	seen   int // the scan that met it last
	usesUs bool
	opened time.Time // when it was first seen with our libcuda
	gpus   []int
	exact  *exactLoad // asked for with loadVariable
	work   float64
}

// procStat is the part of /proc/PID/stat that matters here.
type procStat struct {
	start    uint64 // ticks after boot
	virtual  uint64 // bytes; 0 for kernel threads
	ticks    uint64 // processor time
	resident uint64 // bytes
	zombie   bool
}

func newScanner(root string, uuids []string) (*scanner, error) {
	s := &scanner{root: root, uuids: uuids, known: make(map[int]*process), buffer: make([]byte, 64<<10)}
	libraries, err := filepath.Glob(filepath.Join(keptDir(root), "*"))
	if err != nil || len(libraries) == 0 {
		return nil, fmt.Errorf("no %s in %s", cudaName, keptDir(root))
	}
	for _, path := range libraries {
		needle, err := mapsNeedle(path)
		if err != nil {
			return nil, err
		}
		s.needles = append(s.needles, needle)
	}
	return s, nil
}

// mapsNeedle returns " <device> <inode> " as /proc/PID/maps shows it for the
// file. On overlay and btrfs that is not what stat says, so the file is mapped
// and looked up in our own maps.
func mapsNeedle(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	mapped, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("mapping %s: %w", path, err)
	}
	defer func() { _ = unix.Munmap(mapped) }()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	start := fmt.Sprintf("%x-", uintptr(unsafe.Pointer(unsafe.SliceData(mapped))))
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); len(f) >= 5 && strings.HasPrefix(strings.TrimLeft(f[0], "0"), start) {
			return []byte(" " + f[3] + " " + f[4] + " "), nil
		}
	}
	return nil, fmt.Errorf("%s was mapped but is not in /proc/self/maps", path)
}

// scan returns the processes that use GPUs. first says that no scan came
// before: whoever is there already has warmed up.
func (s *scanner) scan(now time.Time, dt time.Duration) ([]user, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	_ = dir.Close()
	if err != nil {
		return nil, err
	}
	first := s.scans == 0
	s.scans++
	var users []user
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p := s.look(pid, now, dt, first); p != nil && p.usesUs {
			users = append(users, user{pid: pid, work: p.work, resident: p.stat.resident, gpus: p.gpus, exact: p.exact})
		}
	}
	for pid, p := range s.known {
		if p.seen != s.scans {
			delete(s.known, pid)
		}
	}
	slices.SortFunc(users, func(a, b user) int { return a.pid - b.pid })
	return users, nil
}

// look brings what is known about one process up to date. Nil: it is gone or
// a kernel thread.
func (s *scanner) look(pid int, now time.Time, dt time.Duration, first bool) *process {
	stat, ok := s.readStat(pid)
	if !ok || stat.zombie || stat.virtual == 0 {
		return nil
	}
	p := s.known[pid]
	fresh := p == nil || p.stat.start != stat.start
	if fresh {
		p = &process{stat: stat}
		s.known[pid] = p
	}
	grown := p.stat.virtual != stat.virtual
	p.work = min(1, float64(stat.ticks-min(p.stat.ticks, stat.ticks))/ticksPerSecond/max(dt.Seconds(), 0.1))
	p.stat, p.seen = stat, s.scans
	if fresh || grown || (pid+s.scans)%recheckEvery == 0 {
		s.inspect(pid, p, now, first)
	}
	if p.usesUs {
		warm := 1 - now.Sub(p.opened).Seconds()/warmUp.Seconds()
		p.work = max(p.work, 0.7*warm)
	}
	return p
}

// inspect reads a process's maps and, if it uses us, its GPUs.
func (s *scanner) inspect(pid int, p *process, now time.Time, first bool) {
	uses := s.mapsUs(pid)
	if uses && !p.usesUs {
		p.opened = now
		if first {
			p.opened = now.Add(-warmUp)
		}
	}
	p.usesUs = uses
	if !uses {
		return
	}
	env := environment(pid)
	visible, limited := env["CUDA_VISIBLE_DEVICES"]
	p.gpus = s.nodesOf(pid)
	if limited {
		p.gpus = narrow(p.gpus, s.uuids, visible)
	}
	p.exact = nil
	if asked, ok := env[loadVariable]; ok {
		load, err := parseLoad(asked)
		if err != nil {
			slog.Warn("a process asks for a load that cannot be simulated", "pid", pid, "err", err)
			return
		}
		p.exact = &load
	}
}

// readStat reads /proc/PID/stat without allocating much.
func (s *scanner) readStat(pid int) (procStat, bool) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return procStat{}, false
	}
	n, err := unix.Read(fd, s.buffer)
	_ = unix.Close(fd)
	if err != nil || n <= 0 {
		return procStat{}, false
	}
	return parseStat(s.buffer[:n])
}

// parseStat reads proc_pid_stat(5). The command name, in parentheses, may hold
// anything, so fields are counted from its end.
func parseStat(line []byte) (procStat, bool) {
	var st procStat
	fields := bytes.Fields(line[bytes.LastIndexByte(line, ')')+1:])
	if len(fields) < 22 {
		return st, false
	}
	number := func(i int) uint64 {
		n, _ := strconv.ParseUint(string(fields[i-3]), 10, 64)
		return n
	}
	st.zombie = fields[0][0] == 'Z' || fields[0][0] == 'X'
	st.ticks = number(14) + number(15)
	st.start = number(22)
	st.virtual = number(23)
	st.resident = number(24) * uint64(os.Getpagesize())
	return st, true
}

// mapsUs says whether the process has our libcuda mapped.
func (s *scanner) mapsUs(pid int) bool {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	kept := 0 // bytes of the last, incomplete line
	for {
		n, err := unix.Read(fd, s.buffer[kept:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return false
		}
		text := s.buffer[:kept+n]
		for _, needle := range s.needles {
			if bytes.Contains(text, needle) {
				return true
			}
		}
		kept = copy(s.buffer, text[bytes.LastIndexByte(text, '\n')+1:])
		if kept == len(s.buffer) {
			kept = 0
		}
	}
}

// nodesOf returns the GPUs whose device nodes the process has: in its /dev as
// a container does, or in the driver root as a program on the host does.
func (s *scanner) nodesOf(pid int) []int {
	base := "/proc/" + strconv.Itoa(pid) + "/root"
	for _, dev := range []string{base + "/dev", filepath.Join(base, s.root, "dev")} {
		var found []int
		for i := range s.uuids {
			n := gpuNode(i)
			var st unix.Stat_t
			if unix.Stat(filepath.Join(dev, n.name), &st) == nil && st.Rdev == unix.Mkdev(n.major, n.minor) {
				found = append(found, i)
			}
		}
		if found != nil {
			return found
		}
	}
	return nil
}

// environment returns those of the variables a process was started with that
// matter here.
func environment(pid int) map[string]string {
	found := make(map[string]string)
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return found
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return found
	}
	for variable := range bytes.SplitSeq(text, []byte{0}) {
		for _, name := range []string{"CUDA_VISIBLE_DEVICES", loadVariable} {
			if value, ok := bytes.CutPrefix(variable, []byte(name+"=")); ok {
				found[name] = string(value)
			}
		}
	}
	return found
}

// narrow applies CUDA_VISIBLE_DEVICES as CUDA does: numbers count among the
// GPUs the process has, UUIDs may be cut short, and the first entry that names
// no GPU ends the list.
func narrow(has []int, uuids []string, visible string) []int {
	var chosen []int
	for entry := range strings.SplitSeq(visible, ",") {
		gpu := -1
		entry = strings.TrimSpace(entry)
		if n, err := strconv.Atoi(entry); err == nil && n >= 0 && n < len(has) {
			gpu = has[n]
		}
		for _, i := range has {
			if strings.HasPrefix(entry, "GPU-") && strings.HasPrefix(uuids[i], entry) {
				gpu = i
			}
		}
		if gpu < 0 {
			break
		}
		chosen = append(chosen, gpu)
	}
	return chosen
}
