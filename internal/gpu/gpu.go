// Package gpu knows what the GPUs of a machine are and do, and who uses them.
//
// The NVIDIA library is never loaded here: a small helper process of its own,
// cmd/gpulab-probe, asks it and writes one Snapshot a second, so that a driver
// that crashes or hangs cannot take gpulab down. Monitor keeps that process
// running, adds which pod and person each process and each GPU belongs to, and
// publishes the result.
//
// The types are what the whole product speaks about GPUs; every reading is
// optional, because hardware may not have it: nil is unknown, never 0.
package gpu

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Device is what a GPU is.
type Device struct {
	// UUID names the GPU for good, "GPU-…". Empty if the GPU could not be
	// asked since gpulab started.
	UUID string `json:"uuid,omitempty"`
	// Index is its number on this machine since the driver was loaded.
	Index    int    `json:"index"`
	Name     string `json:"name,omitempty"`
	PCIBusID string `json:"pciBusID,omitempty"`
	// MemoryTotal is in bytes.
	MemoryTotal *uint64 `json:"memoryTotal,omitempty"`
	// PowerLimit is the limit in force, in watts.
	PowerLimit        *float64 `json:"powerLimit,omitempty"`
	ComputeCapability string   `json:"computeCapability,omitempty"`
	// SMClockMax and MemoryClockMax are in MHz.
	SMClockMax     *float64 `json:"smClockMax,omitempty"`
	MemoryClockMax *float64 `json:"memoryClockMax,omitempty"`
	// PCIeGenerationMax and PCIeWidthMax (lanes) are what card and slot allow.
	PCIeGenerationMax *float64 `json:"pcieGenerationMax,omitempty"`
	PCIeWidthMax      *float64 `json:"pcieWidthMax,omitempty"`
	// ECC says that memory errors are found and mended.
	ECC *bool `json:"ecc,omitempty"`
	// Persistence says that the driver keeps the card ready while nobody uses it.
	Persistence *bool `json:"persistence,omitempty"`
	// MemoryLimits says whether somebody can be kept within an amount of its
	// memory, one of the MemoryLimits constants; empty where that is not known.
	MemoryLimits string `json:"memoryLimits,omitempty"`
	// Slots is how many pods may hold it at a time; 0 is one.
	Slots int `json:"slots,omitempty"`
	// MIG says that the GPU is split into instances.
	MIG bool `json:"mig,omitempty"`
	// Simulated says that this is no hardware.
	Simulated bool `json:"simulated,omitempty"`
}

// Reading is what a GPU is doing.
type Reading struct {
	// Utilization, MemoryUtilization (of the memory's bandwidth), Encoder and
	// Decoder are in percent of the time.
	Utilization       *float64 `json:"utilization,omitempty"`
	MemoryUtilization *float64 `json:"memoryUtilization,omitempty"`
	Encoder           *float64 `json:"encoder,omitempty"`
	Decoder           *float64 `json:"decoder,omitempty"`
	// MemoryUsed is in bytes.
	MemoryUsed *uint64 `json:"memoryUsed,omitempty"`
	// Power is in watts, Energy in joules since the driver was loaded.
	Power  *float64 `json:"power,omitempty"`
	Energy *float64 `json:"energy,omitempty"`
	// Temperature is in degrees Celsius.
	Temperature *float64 `json:"temperature,omitempty"`
	// MemoryTemperature is in degrees Celsius.
	MemoryTemperature *float64 `json:"memoryTemperature,omitempty"`
	// Fan is in percent of its full speed.
	Fan *float64 `json:"fan,omitempty"`
	// SMClock and MemoryClock are in MHz.
	SMClock     *float64 `json:"smClock,omitempty"`
	MemoryClock *float64 `json:"memoryClock,omitempty"`
	// Throttle is what keeps the clocks down, one of the Throttle constants each:
	// empty if nothing does, nil if that is not known.
	Throttle []string `json:"throttle,omitzero"`
	// PCIeGeneration and PCIeWidth (lanes) are the link's at this moment;
	// PCIeReceived and PCIeSent in bytes per second, seen from the GPU.
	PCIeGeneration *float64 `json:"pcieGeneration,omitempty"`
	PCIeWidth      *float64 `json:"pcieWidth,omitempty"`
	PCIeReceived   *float64 `json:"pcieReceived,omitempty"`
	PCIeSent       *float64 `json:"pcieSent,omitempty"`
	// Health is what the card says about its own condition.
	Health Health `json:"health,omitzero"`
	// Instances are the parts of a GPU in MIG mode.
	Instances []Instance `json:"instances,omitempty"`
	// Asleep says that the card has powered itself down and was not woken to
	// be asked: there are no other readings then.
	Asleep bool `json:"asleep,omitempty"`
	// XID is the number of the latest XID error since the probe started.
	XID       *uint64   `json:"xid,omitempty"`
	Processes []Process `json:"processes,omitempty"`
	// ProcessesUnknown says that the driver does not tell which there are.
	ProcessesUnknown bool `json:"processesUnknown,omitempty"`
	// Error says, as a sentence for people, why the GPU could not be read.
	Error string `json:"error,omitempty"`
}

// What keeps a GPU's clocks down.
const (
	ThrottlePowerCap     = "power limit"    // the limit set for the card
	ThrottlePowerBrake   = "power brake"    // the power supply asks for less
	ThrottleThermal      = "temperature"    // the card is too hot
	ThrottleHardware     = "hardware"       // the card protects itself
	ThrottleSync         = "sync boost"     // as slow as the others of its group
	ThrottleApplications = "fixed clocks"   // somebody has set them
	ThrottleDisplay      = "display clocks" // what a screen needs
)

// Health is what a card says about its own condition. Counts are since the
// card was made unless they say otherwise.
type Health struct {
	// ECCCorrected and ECCUncorrected count memory errors since the driver was
	// loaded.
	ECCCorrected   *uint64 `json:"eccCorrected,omitempty"`
	ECCUncorrected *uint64 `json:"eccUncorrected,omitempty"`
	// RemappedCorrectable and RemappedUncorrectable count memory rows that were
	// replaced by spare ones. RemapPending says that one will be at the next
	// reset, RemapFailed that no spare row was left.
	RemappedCorrectable   *uint64 `json:"remappedCorrectable,omitempty"`
	RemappedUncorrectable *uint64 `json:"remappedUncorrectable,omitempty"`
	RemapPending          bool    `json:"remapPending,omitempty"`
	RemapFailed           bool    `json:"remapFailed,omitempty"`
	// RetiredPages counts pages of memory that are not used any more, on cards
	// that cannot replace rows. RetirePending says that more will be at the
	// next reset.
	RetiredPages  *uint64 `json:"retiredPages,omitempty"`
	RetirePending bool    `json:"retirePending,omitempty"`
	// Recovery is what the driver asks for, one of the Recovery constants;
	// empty where it asks for nothing, or cannot tell; "action 9" where gpulab
	// knows only the number.
	Recovery string `json:"recovery,omitempty"`
}

// What a driver asks for when a GPU has failed.
const (
	RecoveryReset         = "reset"           // reset the GPU
	RecoveryReboot        = "reboot"          // reboot the machine
	RecoveryDrain         = "drain"           // end what uses peers of the GPU
	RecoveryDrainAndReset = "drain and reset" // end what uses it, then reset it
	RecoveryBusReset      = "bus reset"       // reset its PCIe slot; a cold start of the machine does
)

// Instance is a part of a GPU in MIG mode, with memory of its own.
type Instance struct {
	UUID string `json:"uuid"` // "MIG-…"
	// Index is its number on the GPU, ID the driver's number of the GPU instance
	// that it is in, Profile its size, such as "1g.10gb".
	Index   int    `json:"index"`
	ID      *int   `json:"id,omitempty"`
	Profile string `json:"profile,omitempty"`
	// Slices says of how many equal parts of the GPU's multiprocessors it has
	// how many: 1 of 7; 0 where that is not known.
	Slices   int `json:"slices,omitempty"`
	SlicesOf int `json:"slicesOf,omitempty"`
	// MemoryTotal and MemoryUsed are in bytes.
	MemoryTotal *uint64 `json:"memoryTotal,omitempty"`
	MemoryUsed  *uint64 `json:"memoryUsed,omitempty"`
}

// Process is a process that uses a GPU.
type Process struct {
	// PID is the process's number on the host.
	PID int `json:"pid"`
	// Name is the name of its program.
	Name string `json:"name,omitempty"`
	// MemoryUsed is in bytes of the GPU's memory.
	MemoryUsed *uint64 `json:"memoryUsed,omitempty"`
	// SMUtilization is its share of the multiprocessors' time, in percent.
	SMUtilization *float64 `json:"smUtilization,omitempty"`
	// Instance is the UUID of the MIG instance in which it runs, if it runs in one.
	Instance string `json:"instance,omitempty"`
	// Graphics says that it draws, as a desktop session does, and does not compute.
	Graphics bool `json:"graphics,omitempty"`
	// Pod is the pod it runs in; zero for a process outside the cluster.
	Pod PodRef `json:"pod,omitzero"`
	// UnixUser is the host's name, or number, for the user it runs as.
	UnixUser string `json:"unixUser,omitempty"`
}

// PodRef names a pod and the person it belongs to. The zero value is no pod.
type PodRef struct {
	UID       string `json:"uid,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// User is the handle of the person, Notebook the server's name; empty for
	// pods that are not somebody's.
	User     string `json:"user,omitempty"`
	Notebook string `json:"notebook,omitempty"`
}

// Holder is a pod that the kubelet has given a GPU to, whether it uses it or not.
type Holder struct {
	PodRef
	Container string `json:"container,omitempty"`
	// Instance is the UUID of the MIG instance it has been given; empty for the
	// whole GPU, or a turn on it.
	Instance string `json:"instance,omitempty"`
	// Since is when the pod started, or if that is not known, when it was
	// first seen with the GPU.
	Since time.Time `json:"since"`
	// IdleSince is since when its notebook has not been used, zero while it is, or
	// while that is not worth telling.
	IdleSince time.Time `json:"idleSince,omitzero"`
}

// GPU is all that is known about one GPU.
type GPU struct {
	Device
	Reading
	Holders []Holder `json:"holders,omitempty"`
	// Withheld says, as a sentence for people, why no new pod gets this GPU.
	Withheld string `json:"withheld,omitempty"`
	// LentAnyway says that new pods get it whoever else uses it.
	LentAnyway bool `json:"lentAnyway,omitempty"`
}

// XIDEvent is an error the driver reported about a GPU, through its library or
// in the kernel's log.
type XIDEvent struct {
	Time  time.Time `json:"time"`
	UUID  string    `json:"uuid,omitempty"`
	Index int       `json:"index"`
	XID   uint64    `json:"xid"`
	// PID and Program name the process whose work failed, where the driver has
	// written it into the kernel's log.
	PID     int    `json:"pid,omitempty"`
	Program string `json:"program,omitempty"`
	// Earlier says that it happened before the probe was started: an earlier
	// probe may have told of it.
	Earlier bool `json:"earlier,omitempty"`
}

// Culprit says, as a sentence, which program the error is about; "" where the
// driver does not know.
func (e XIDEvent) Culprit() string {
	switch {
	case e.Program != "" && e.PID != 0:
		return fmt.Sprintf("It happened to %s (process %d).", e.Program, e.PID)
	case e.PID != 0:
		return fmt.Sprintf("It happened to process %d.", e.PID)
	default:
		return ""
	}
}

// Snapshot is the state of a node's GPUs at one moment. Once published it is
// never changed.
type Snapshot struct {
	Node string `json:"node,omitempty"`
	// Title is what the machine is shown as, "" where that is its name.
	Title string `json:"title,omitempty"`
	// Time is when the readings were taken. If Error is set it is when they
	// were last taken, and zero if they never were.
	Time          time.Time `json:"time,omitzero"`
	DriverVersion string    `json:"driverVersion,omitempty"`
	// CUDAVersion is the newest CUDA version the driver supports, as "13.0".
	CUDAVersion string `json:"cudaVersion,omitempty"`
	Simulated   bool   `json:"simulated,omitempty"`
	GPUs        []GPU  `json:"gpus"`
	// Events are the XID errors since the snapshot before. Of equal errors of a
	// GPU there are only the first few; EventsDropped counts those left out.
	Events        []XIDEvent `json:"events,omitempty"`
	EventsDropped int        `json:"eventsDropped,omitempty"`
	// Error says, as a sentence for people, why there are no present readings.
	Error string `json:"error,omitempty"`
	// Lost says that the machine is not heard: what it had is what was known last.
	Lost bool `json:"lost,omitempty"`
	// Cordoned says, as a sentence for people, that the machine takes no new work
	// and why; "" where it does.
	Cordoned string `json:"cordoned,omitempty"`
}

// Machine is what the machine is shown as.
func (s Snapshot) Machine() string { return cmp.Or(s.Title, s.Node) }

// After is a snapshot with the events of one before it that nobody got to see;
// at most so many, the latest ones. Neither is changed.
func (s Snapshot) After(missed Snapshot, most int) Snapshot {
	if len(missed.Events) == 0 && missed.EventsDropped == 0 {
		return s
	}
	events := slices.Concat(missed.Events, s.Events)
	surplus := max(len(events)-most, 0)
	s.Events = events[surplus:]
	s.EventsDropped += missed.EventsDropped + surplus
	return s
}
