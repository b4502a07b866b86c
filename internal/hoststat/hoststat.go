// Package hoststat reads what this machine's processors, memory, disks and
// network do, from the kernel's own tables. It imports no other package of
// gpulab and keeps nothing but the file systems that do not answer.
//
// What belongs to containers is left out: their network interfaces, and what
// Kubernetes mounts for them.
package hoststat

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/prometheus/procfs"
	"github.com/prometheus/procfs/blockdevice"
	"golang.org/x/sys/unix"
)

// Reading is the machine at one moment. Parts that could not be read are nil.
// All counts are since the machine started.
type Reading struct {
	// Boot is when the machine started, in seconds since 1970.
	Boot *float64
	CPUs []CPU
	Load *Load
	// Memory holds the kernel's figures under its own names ("MemAvailable"),
	// in bytes.
	Memory      map[string]float64
	Filesystems []Filesystem
	Disks       []Disk
	Interfaces  []Interface
	Kernel      *Kernel
}

// CPU is what one processor has spent its time on, in seconds.
type CPU struct {
	Number                                                 int64
	User, Nice, System, Idle, IOWait, IRQ, SoftIRQ, Stolen float64
}

// Load is how many processes wanted to run, on average over 1, 5 and 15 minutes.
type Load struct{ Over1, Over5, Over15 float64 }

// Filesystem is a mounted file system. Sizes are in bytes.
type Filesystem struct {
	Device, MountPoint, Type string
	ReadOnly                 bool
	// Failed says that it does not answer: there are no sizes then.
	Failed                bool
	Size, Free, Available float64
	Files, FilesFree      float64
}

// Disk is a whole block device.
type Disk struct {
	Device                  string
	Reads, Writes           float64 // completed
	ReadBytes, WrittenBytes float64
	// ReadSeconds and WriteSeconds are what all reads and writes took together,
	// BusySeconds how long at least one was under way.
	ReadSeconds, WriteSeconds, BusySeconds float64
}

// Interface is a network interface.
type Interface struct {
	Name                         string
	ReceivedBytes, SentBytes     float64
	ReceivedPackets, SentPackets float64
	ReceiveErrors, SendErrors    float64
	ReceiveDropped, SendDropped  float64
}

// Kernel says which kernel runs, in the words of uname.
type Kernel struct{ System, Release, Version, Machine, Node, Domain string }

// Host reads one machine. Its methods may be called at the same time.
type Host struct {
	proc   procfs.FS
	block  blockdevice.FS
	sys    string
	statfs func(path string, buf *unix.Statfs_t) error

	measuring sync.Mutex // one at a time, so that only those that hang are in stuck
	mu        sync.Mutex
	stuck     map[string]bool // mount points that are being asked
}

// New returns the machine this program runs on.
func New() (*Host, error) { return open("/proc", "/sys") }

func open(proc, sys string) (*Host, error) {
	p, err := procfs.NewFS(proc)
	if err != nil {
		return nil, fmt.Errorf("the kernel's tables of processes: %w", err)
	}
	b, err := blockdevice.NewFS(proc, sys)
	if err != nil {
		return nil, fmt.Errorf("the kernel's tables of disks: %w", err)
	}
	return &Host{proc: p, block: b, sys: sys, statfs: unix.Statfs, stuck: map[string]bool{}}, nil
}

// Read reads everything there is to read; the error tells of the parts that
// are missing.
func (h *Host) Read() (Reading, error) {
	var r Reading
	err := errors.Join(
		h.processors(&r), h.load(&r), h.memory(&r), h.filesystems(&r), h.disks(&r), h.network(&r), h.kernel(&r),
	)
	return r, err
}

func (h *Host) processors(r *Reading) error {
	stat, err := h.proc.Stat()
	if err != nil {
		return fmt.Errorf("the processors' times: %w", err)
	}
	boot := float64(stat.BootTime)
	r.Boot = &boot
	for n, c := range stat.CPU {
		r.CPUs = append(r.CPUs, CPU{
			Number: n, User: c.User, Nice: c.Nice, System: c.System, Idle: c.Idle,
			IOWait: c.Iowait, IRQ: c.IRQ, SoftIRQ: c.SoftIRQ, Stolen: c.Steal,
		})
	}
	slices.SortFunc(r.CPUs, func(a, b CPU) int { return cmp.Compare(a.Number, b.Number) })
	return nil
}

func (h *Host) load(r *Reading) error {
	l, err := h.proc.LoadAvg()
	if err != nil {
		return fmt.Errorf("the load: %w", err)
	}
	r.Load = &Load{l.Load1, l.Load5, l.Load15}
	return nil
}

func (h *Host) memory(r *Reading) error {
	m, err := h.proc.Meminfo()
	if err != nil {
		return fmt.Errorf("the memory: %w", err)
	}
	r.Memory = map[string]float64{}
	for name, bytes := range map[string]*uint64{
		"MemTotal": m.MemTotalBytes, "MemFree": m.MemFreeBytes, "MemAvailable": m.MemAvailableBytes,
		"Buffers": m.BuffersBytes, "Cached": m.CachedBytes, "Shmem": m.ShmemBytes, "Slab": m.SlabBytes,
		"Dirty": m.DirtyBytes, "SwapTotal": m.SwapTotalBytes, "SwapFree": m.SwapFreeBytes,
	} {
		if bytes != nil {
			r.Memory[name] = float64(*bytes)
		}
	}
	return nil
}

func (h *Host) disks(r *Reading) error {
	stats, err := h.block.ProcDiskstats()
	if err != nil {
		return fmt.Errorf("the disks: %w", err)
	}
	r.Disks = []Disk{}
	for _, s := range stats {
		if !h.wholeDisk(s.DeviceName) {
			continue
		}
		const sector, tick = 512, 1000 // bytes; per second
		r.Disks = append(r.Disks, Disk{
			Device: s.DeviceName, Reads: float64(s.ReadIOs), Writes: float64(s.WriteIOs),
			ReadBytes: float64(s.ReadSectors) * sector, WrittenBytes: float64(s.WriteSectors) * sector,
			ReadSeconds: float64(s.ReadTicks) / tick, WriteSeconds: float64(s.WriteTicks) / tick,
			BusySeconds: float64(s.IOsTotalTicks) / tick,
		})
	}
	return nil
}

// wholeDisk leaves out partitions, whose traffic is their disk's, and what is
// made of memory or of files.
func (h *Host) wholeDisk(device string) bool {
	if unwantedDisk.MatchString(device) {
		return false
	}
	_, err := os.Stat(filepath.Join(h.sys, "class/block", device, "partition"))
	return err != nil
}

func (h *Host) network(r *Reading) error {
	lines, err := h.proc.NetDev()
	if err != nil {
		return fmt.Errorf("the network interfaces: %w", err)
	}
	r.Interfaces = []Interface{}
	for _, l := range lines {
		if containers.MatchString(l.Name) {
			continue
		}
		r.Interfaces = append(r.Interfaces, Interface{
			Name:          l.Name,
			ReceivedBytes: float64(l.RxBytes), SentBytes: float64(l.TxBytes),
			ReceivedPackets: float64(l.RxPackets), SentPackets: float64(l.TxPackets),
			ReceiveErrors: float64(l.RxErrors), SendErrors: float64(l.TxErrors),
			ReceiveDropped: float64(l.RxDropped), SendDropped: float64(l.TxDropped),
		})
	}
	slices.SortFunc(r.Interfaces, func(a, b Interface) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

func (h *Host) kernel(r *Reading) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("the kernel's version: %w", err)
	}
	text := func(b [65]byte) string { return unix.ByteSliceToString(b[:]) }
	r.Kernel = &Kernel{
		text(u.Sysname), text(u.Release), text(u.Version), text(u.Machine), text(u.Nodename), text(u.Domainname),
	}
	return nil
}
