package simdriver

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"strings"
	"time"
)

// state is what the simulated driver knows; its text form is read by
// src/nvml/state.c and, when Run starts again, by readState.
type state struct {
	written      int64 // ns since 1970
	driver       string
	pidNamespace string // in which the processes' numbers count
	initError    int    // what nvmlInit returns, 0 = success
	gpus         []gpuState
	events       []xidEvent
	logged       []loggedXID // since the kernel's log was last written
	// faultXIDs and scriptXIDs count the XID lines of faults and script that
	// have become events, so that a new Run does not repeat them.
	faultXIDs, scriptXIDs uint64
	scriptBegan           int64  // of which script those are, ns since 1970
	sequence              uint64 // of the newest event
}

// gpuState is one GPU.
type gpuState struct {
	uuid  string
	busID string

	utilization, memoryUtilization float64 // percent
	temperature, memoryTemperature float64 // degrees Celsius
	fan                            float64 // percent
	power                          float64 // watts
	memoryUsed                     uint64  // bytes
	smClock, memoryClock           int     // MHz
	throttle                       uint64  // NVML's bits
	pcieGeneration                 int
	pcieReceived, pcieSent         float64 // KB/s
	energy                         float64 // joules
	processes                      []processState
	limits                         []memoryLimit

	condition condition
	scripted  scripted
}

type processState struct {
	pid      int
	memory   uint64 // bytes
	sm       int    // percent
	graphics bool
	part     int // the instance it runs in, counted from 1; 0: none
}

// xidEvent stands for a number of equal events that follow each other.
type xidEvent struct {
	sequence uint64 // the last one's
	times    uint64
	gpu      int
	xid      uint64
}

// What every simulated GPU is: a plausible card of no existing kind. The name
// is what nvidia-smi, pynvml and node labels show, so it says what it is.
const (
	gpuName        = "Simulated GPU 24GB"
	gpuMemory      = 24 << 30 // bytes
	gpuPowerLimit  = 300      // watts
	gpuCores       = 9728
	gpuCompute     = "8.9"
	gpuSMClock     = 2520 // MHz
	gpuMemoryClock = 10501
	gpuPCIe        = 4 // generation
	gpuPCIeWidth   = 16
	cudaVersion    = 13000

	idlePower       = 21.0 // watts
	idleTemperature = 33.0
	idleSMClock     = 210
	idleMemoryClock = 405
	idleFan         = 30 // percent
	idlePCIe        = 1
)

// uuidPrefix makes simulated GPUs recognisable in every record.
const uuidPrefix = "GPU-51390000"

// fit makes the state hold n GPUs, keeping those it has.
func (s *state) fit(n int) {
	s.gpus = s.gpus[:min(n, len(s.gpus))]
	for i := len(s.gpus); i < n; i++ {
		s.gpus = append(s.gpus, gpuState{
			uuid:  newUUID(),
			busID: fmt.Sprintf("00000000:%02X:00.0", 0x21+i),
			power: idlePower, temperature: idleTemperature,
			smClock: idleSMClock, memoryClock: idleMemoryClock,
			memoryTemperature: idleTemperature, fan: idleFan, pcieGeneration: idlePCIe,
		})
	}
}

func newUUID() string {
	var b [12]byte
	_, _ = rand.Read(b[:])  // never fails
	b[2] = b[2]&0x0f | 0x40 // version 4
	b[4] = b[4]&0x3f | 0x80
	h := hex.EncodeToString(b[:])
	return fmt.Sprintf("%s-%s-%s-%s-%s", uuidPrefix, h[0:4], h[4:8], h[8:12], h[12:24])
}

// encode renders the state with its checksum line.
func (s *state) encode() []byte {
	var b bytes.Buffer
	// Readers tell by the first line whether they know this state already.
	fmt.Fprintf(&b, "written=%d\ndriver=%s\ncuda=%d\npid_namespace=%s\ninit=%d\n",
		s.written, s.driver, cudaVersion, s.pidNamespace, s.initError)
	fmt.Fprintf(&b, "fault_xids=%d\nscript_began=%d\nscript_xids=%d\nsequence=%d\n",
		s.faultXIDs, s.scriptBegan, s.scriptXIDs, s.sequence)
	for _, e := range s.events {
		fmt.Fprintf(&b, "event=%d count=%d gpu=%d xid=%d\n", e.sequence, e.times, e.gpu, e.xid)
	}
	for i := range s.gpus {
		s.gpus[i].encode(&b, i)
	}
	fmt.Fprintf(&b, "end %08x\n", checksum(b.Bytes()))
	return b.Bytes()
}

func (g *gpuState) encode(b *bytes.Buffer, index int) {
	fmt.Fprintf(b, "[gpu]\nname=%s\nuuid=%s\nbus=%s\nminor=%d\ncompute=%s\ncores=%d\n",
		gpuName, g.uuid, g.busID, index, gpuCompute, gpuCores)
	fmt.Fprintf(b, "memory=%d\npower_limit_mw=%d\nsm_max_mhz=%d\nmemory_max_mhz=%d\n",
		uint64(gpuMemory), gpuPowerLimit*1000, gpuSMClock, gpuMemoryClock)
	fmt.Fprintf(b, "utilization=%.0f\nmemory_utilization=%.0f\ntemperature=%.0f\npower_mw=%.0f\nmemory_used=%d\n",
		g.utilization, g.memoryUtilization, g.temperature, g.power*1000, g.memoryUsed)
	fmt.Fprintf(b, "sm_mhz=%d\nmemory_mhz=%d\nenergy_mj=%.0f\n", g.smClock, g.memoryClock, g.energy*1000)
	fmt.Fprintf(b, "memory_temperature=%.0f\nfan=%.0f\nthrottle=%d\n", g.memoryTemperature, g.fan, g.throttle)
	fmt.Fprintf(b, "pcie_generation_max=%d\npcie_width=%d\npcie_generation=%d\npcie_received_kb=%.0f\npcie_sent_kb=%.0f\n",
		gpuPCIe, gpuPCIeWidth, g.pcieGeneration, g.pcieReceived, g.pcieSent)
	g.condition.encode(b)
	for _, i := range g.instances() {
		fmt.Fprintf(b, "instance=%s profile=%s memory=%d used=%d\n", i.uuid, i.profile, i.memory, i.used)
	}
	for _, p := range g.processes {
		fmt.Fprintf(b, "process=%d memory=%d sm=%d graphics=%d part=%d\n", p.pid, p.memory, p.sm, flag(p.graphics), p.part)
	}
}

func (c *condition) encode(b *bytes.Buffer) {
	fmt.Fprintf(b, "lost=%d\nhang=%d\nremoved=%d\nfail=%d\nrecovery=%d\npersistence=%d\n",
		flag(c.lost), flag(c.hang), flag(c.removed), c.fail, c.recovery, flag(!c.persistenceOff))
	fmt.Fprintf(b, "ecc_corrected=%d\necc_uncorrected=%d\nremaps_rows=%d\nremapped_correctable=%d\nremapped_uncorrectable=%d\n",
		c.ecc.corrected, c.ecc.uncorrected, flag(!c.retires), c.remapped.corrected, c.remapped.uncorrected)
	fmt.Fprintf(b, "remap_pending=%d\nremap_failed=%d\nretired=%d\nretire_pending=%d\nmig_capable=%d\nmig=%d\nlimits=%d\nunlisted=%d\n",
		flag(c.remapPending), flag(c.remapFailed), c.retired, flag(c.retirePending), flag(c.migCapable), flag(c.instances != ""), flag(!c.noLimits), flag(c.unlisted))
}

func flag(on bool) int {
	if on {
		return 1
	}
	return 0
}

func checksum(text []byte) uint32 {
	h := fnv.New32a()
	_, _ = h.Write(text)
	return h.Sum32()
}

var errNotWhole = errors.New("the state of the simulated GPUs is not whole")

// decodeState reads what must survive a restart of Run: identity, readings,
// counters. Processes and faults are found anew.
func decodeState(text []byte) (state, error) {
	var s state
	body, end, _ := bytes.Cut(text, []byte("\nend "))
	body = append(bytes.Clone(body), '\n')
	// What follows the line is what a longer state left.
	if sum, _, ok := bytes.Cut(end, []byte("\n")); !ok || string(sum) != fmt.Sprintf("%08x", checksum(body)) {
		return s, errNotWhole
	}
	for line := range strings.Lines(string(body)) {
		line = strings.TrimSpace(line)
		if line == "[gpu]" {
			s.gpus = append(s.gpus, gpuState{smClock: idleSMClock, memoryClock: idleMemoryClock})
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		number, _ := strconv.ParseFloat(value, 64)
		if len(s.gpus) > 0 {
			s.gpus[len(s.gpus)-1].set(key, value, number)
			continue
		}
		switch key {
		case "driver":
			s.driver = value
		case "fault_xids":
			s.faultXIDs = uint64(number)
		case "script_xids":
			s.scriptXIDs = uint64(number)
		case "script_began":
			s.scriptBegan, _ = strconv.ParseInt(value, 10, 64)
		case "sequence":
			s.sequence = uint64(number)
		}
	}
	return s, nil
}

func (g *gpuState) set(key, value string, number float64) {
	switch key {
	case "uuid":
		g.uuid = value
	case "bus":
		g.busID = value
	case "temperature":
		g.temperature = number
	case "power_mw":
		g.power = number / 1000
	case "energy_mj":
		g.energy = number / 1000
	}
}

func readState(path string) (state, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return state{}, err
	}
	return decodeState(text)
}

// writeState overwrites the file in place: it is bound to running pods by its
// inode. One write call keeps the time in which it is torn short.
func writeState(path string, s state) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	s.written = time.Now().UnixNano()
	text := s.encode()
	_, err = f.WriteAt(text, 0)
	if err == nil {
		err = f.Truncate(int64(len(text)))
	}
	return errors.Join(err, f.Close())
}
