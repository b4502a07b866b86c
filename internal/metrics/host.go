package metrics

import (
	"maps"
	"slices"
	"strconv"

	"github.com/gpulab/gpulab/internal/hoststat"
)

// hostFamilies are the machine in node_exporter's names.
func hostFamilies() []family {
	list := []family{
		{
			name: "node_boot_time_seconds", kind: gauge, unit: "s since 1970", help: "When the machine started.",
			source: "/proc/stat",
			series: func(v *view, emit emit) {
				if v.Host.Boot != nil {
					emit(nil, *v.Host.Boot)
				}
			},
		},
		{
			name: "node_uname_info", kind: gauge, unit: "1", help: "Which kernel runs.", source: "uname",
			labels: []string{"sysname", "release", "version", "machine", "nodename", "domainname"},
			series: func(v *view, emit emit) {
				if k := v.Host.Kernel; k != nil {
					emit(labels("sysname", k.System, "release", k.Release, "version", k.Version, "machine", k.Machine, "nodename",
						k.Node, "domainname", k.Domain), 1)
				}
			},
		},
		{
			name: "node_cpu_seconds_total", kind: counter, unit: "s", help: "What the processor has spent its time on.",
			source: "/proc/stat",
			labels: []string{"cpu", "mode"}, series: processors,
		},
		load("node_load1", "1 minute", func(l *hoststat.Load) float64 { return l.Over1 }),
		load("node_load5", "5 minutes", func(l *hoststat.Load) float64 { return l.Over5 }),
		load("node_load15", "15 minutes", func(l *hoststat.Load) float64 { return l.Over15 }),
	}
	for _, name := range slices.Sorted(maps.Keys(memory)) {
		list = append(list, family{
			name: "node_memory_" + name + "_bytes", kind: gauge, unit: "B", help: memory[name], source: "/proc/meminfo",
			series: func(v *view, emit emit) {
				if bytes, known := v.Host.Memory[name]; known {
					emit(nil, bytes)
				}
			},
		})
	}
	return slices.Concat(list, filesystemFamilies(), diskFamilies(), networkFamilies())
}

func processors(v *view, emit emit) {
	for _, c := range v.Host.CPUs {
		for _, m := range []struct {
			mode    string
			seconds float64
		}{
			{"idle", c.Idle}, {"iowait", c.IOWait}, {"irq", c.IRQ}, {"nice", c.Nice},
			{"softirq", c.SoftIRQ}, {"steal", c.Stolen}, {"system", c.System}, {"user", c.User},
		} {
			emit(labels("cpu", strconv.FormatInt(c.Number, 10), "mode", m.mode), m.seconds)
		}
	}
}

func load(name, over string, value func(*hoststat.Load) float64) family {
	return family{
		name: name, kind: gauge, unit: "processes", help: "Processes that wanted to run, on average over " + over + ".",
		source: "/proc/loadavg",
		series: func(v *view, emit emit) {
			if v.Host.Load != nil {
				emit(nil, value(v.Host.Load))
			}
		},
	}
}

// memory says what each of the kernel's figures is.
var memory = map[string]string{
	"MemTotal": "Memory of the machine.", "MemFree": "Memory that nobody uses.",
	"MemAvailable": "Memory that programs could have without swapping.",
	"Buffers":      "Memory with raw blocks of disks.", "Cached": "Memory with files.",
	"Shmem": "Memory that processes share, tmpfs included.",
	"Slab":  "Memory of the kernel's own objects.", "Dirty": "Memory that waits to be written to a disk.",
	"SwapTotal": "Swap space.", "SwapFree": "Swap space that nobody uses.",
}

func filesystemFamilies() []family {
	one := func(name, unit, help string, value func(hoststat.Filesystem) *float64) family {
		return family{
			name: name, kind: gauge, unit: unit, help: help, source: "/proc/1/mountinfo, statfs",
			labels: []string{"device", "fstype", "mountpoint"},
			series: func(v *view, emit emit) {
				for _, f := range v.Host.Filesystems {
					if x := value(f); x != nil {
						emit(labels("device", f.Device, "fstype", f.Type, "mountpoint", f.MountPoint), *x)
					}
				}
			},
		}
	}
	size := func(value func(hoststat.Filesystem) float64) func(hoststat.Filesystem) *float64 {
		return func(f hoststat.Filesystem) *float64 {
			if f.Failed {
				return nil
			}
			v := value(f)
			return &v
		}
	}
	return []family{
		one("node_filesystem_size_bytes", "B", "Size of the file system.", size(func(f hoststat.Filesystem) float64 {
			return f.Size
		})),
		one("node_filesystem_free_bytes", "B", "Free space.", size(func(f hoststat.Filesystem) float64 { return f.Free })),
		one("node_filesystem_avail_bytes", "B", "Free space for users other than root.",
			size(func(f hoststat.Filesystem) float64 { return f.Available })),
		one("node_filesystem_files", "inodes", "How many files the file system can hold.",
			size(func(f hoststat.Filesystem) float64 { return f.Files })),
		one("node_filesystem_files_free", "inodes", "How many more files it can hold.",
			size(func(f hoststat.Filesystem) float64 { return f.FilesFree })),
		one("node_filesystem_readonly", "0 or 1", "Whether nothing can be written to it.",
			func(f hoststat.Filesystem) *float64 { return yes(&f.ReadOnly) }),
		one("node_filesystem_device_error", "0 or 1", "Whether it does not answer.", func(f hoststat.Filesystem) *float64 {
			return yes(&f.Failed)
		}),
	}
}

func diskFamilies() []family {
	one := func(name, unit, help string, value func(hoststat.Disk) float64) family {
		return series(name, unit, help, "/proc/diskstats", func(v *view) []hoststat.Disk {
			return v.Host.Disks
		}, func(d hoststat.Disk) string { return d.Device }, value)
	}
	return []family{
		one("node_disk_reads_completed_total", "reads", "Reads that were completed.", func(d hoststat.Disk) float64 {
			return d.Reads
		}),
		one("node_disk_writes_completed_total", "writes", "Writes that were completed.", func(d hoststat.Disk) float64 {
			return d.Writes
		}),
		one("node_disk_read_bytes_total", "B", "What was read.", func(d hoststat.Disk) float64 { return d.ReadBytes }),
		one("node_disk_written_bytes_total", "B", "What was written.", func(d hoststat.Disk) float64 {
			return d.WrittenBytes
		}),
		one("node_disk_read_time_seconds_total", "s", "What all reads took together.", func(d hoststat.Disk) float64 {
			return d.ReadSeconds
		}),
		one("node_disk_write_time_seconds_total", "s", "What all writes took together.", func(d hoststat.Disk) float64 {
			return d.WriteSeconds
		}),
		one("node_disk_io_time_seconds_total", "s", "For how long at least one read or write was under way.",
			func(d hoststat.Disk) float64 { return d.BusySeconds }),
	}
}

func networkFamilies() []family {
	one := func(name, unit, help string, value func(hoststat.Interface) float64) family {
		return series(name, unit, help, "/proc/net/dev", func(v *view) []hoststat.Interface {
			return v.Host.Interfaces
		}, func(i hoststat.Interface) string { return i.Name }, value)
	}
	return []family{
		one("node_network_receive_bytes_total", "B", "What was received.", func(i hoststat.Interface) float64 {
			return i.ReceivedBytes
		}),
		one("node_network_transmit_bytes_total", "B", "What was sent.", func(i hoststat.Interface) float64 {
			return i.SentBytes
		}),
		one("node_network_receive_packets_total", "packets", "Packets that were received.",
			func(i hoststat.Interface) float64 { return i.ReceivedPackets }),
		one("node_network_transmit_packets_total", "packets", "Packets that were sent.", func(i hoststat.Interface) float64 {
			return i.SentPackets
		}),
		one("node_network_receive_errs_total", "packets", "Packets that arrived damaged.",
			func(i hoststat.Interface) float64 { return i.ReceiveErrors }),
		one("node_network_transmit_errs_total", "packets", "Packets that could not be sent.",
			func(i hoststat.Interface) float64 { return i.SendErrors }),
		one("node_network_receive_drop_total", "packets", "Packets that were received and thrown away.",
			func(i hoststat.Interface) float64 { return i.ReceiveDropped }),
		one("node_network_transmit_drop_total", "packets", "Packets that were thrown away rather than sent.",
			func(i hoststat.Interface) float64 { return i.SendDropped }),
	}
}

// series is a counter with one series for each device.
func series[T any](name, unit, help, source string, list func(*view) []T, device func(T) string,
	value func(T) float64) family {
	return family{
		name: name, kind: counter, unit: unit, help: help, source: source, labels: []string{"device"},
		series: func(v *view, emit emit) {
			for _, x := range list(v) {
				emit(labels("device", device(x)), value(x))
			}
		},
	}
}
