package simdriver

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// condition is what scripts and faults have made of a GPU; zero is a GPU as it
// left the factory.
type condition struct {
	lost, hang, removed bool
	fail                uint64 // NVML error, 0 = none
	recovery            int    // index in recoveries
	throttle            uint64 // NVML's bits
	persistenceOff      bool
	ecc                 counts
	remapped            counts
	remapPending        bool
	remapFailed         bool
	retires             bool // an older card, which retires pages instead of replacing rows
	retired             uint64
	retirePending       bool
	migCapable          bool
	unlisted            bool   // it does not say which processes are on it
	noLimits            bool   // it cannot limit what a control group takes of its memory
	instances           string // MIG profiles with a space between, "" = MIG is off
}

// counts are of memory errors, or of what followed them.
type counts struct{ corrected, uncorrected uint64 }

func (c *counts) add(kind string, n uint64) {
	if kind == "corrected" {
		c.corrected += n
	} else {
		c.uncorrected += n
	}
}

// scripted is the load that scripts put on a GPU.
type scripted struct {
	use       *float64 // percent, nil = as its processes make it
	processes map[int]exactLoad
}

// script is a timeline and when it began.
type script struct {
	began time.Time
	steps []step
}

// maxEvents is how many kinds of XID event the state keeps for slow readers.
const maxEvents = 32

// replay brings the GPUs to where the script, up to now, and then the faults
// lead them from a healthy start.
func (s *state) replay(t script, faults []step, now time.Time) {
	s.initError = 0
	for i := range s.gpus {
		s.gpus[i].condition, s.gpus[i].scripted = condition{}, scripted{processes: make(map[int]exactLoad)}
	}
	if began := t.began.UnixNano(); len(t.steps) > 0 && began != s.scriptBegan {
		s.scriptBegan, s.scriptXIDs = began, 0
	}
	age := now.Sub(t.began)
	due := t.steps
	if i := slices.IndexFunc(due, func(st step) bool { return st.at > age }); i >= 0 {
		due = due[:i]
	}
	s.scriptXIDs = s.applyAll(due, age, s.scriptXIDs)
	s.faultXIDs = s.applyAll(faults, 0, s.faultXIDs)
}

// applyAll applies steps that are due. The first told of their XIDs have been
// told before; it returns how many have been now.
func (s *state) applyAll(steps []step, age time.Duration, told uint64) uint64 {
	var xids uint64
	for _, st := range steps {
		switch {
		case st.verb == "init":
			s.initError = int(st.number)
		case st.gpu >= len(s.gpus):
		case st.verb == "xid":
			if xids++; xids > told {
				s.tell(st)
			}
		default:
			s.gpus[st.gpu].apply(st, age-st.at)
		}
	}
	return xids
}

// apply does one step that was due some time ago.
func (g *gpuState) apply(st step, since time.Duration) {
	c := &g.condition
	has := func(word string) bool { return slices.Contains(st.words, word) }
	switch st.verb {
	case "ok":
		*c = condition{}
	case "lost":
		c.lost = true
	case "hang":
		c.hang = true
	case "removed":
		c.removed = true
	case "fail":
		c.fail = st.number
	case "recovery":
		c.recovery = slices.Index(recoveries, st.words[0])
	case "persistence":
		c.persistenceOff = has("off")
	case "limits":
		c.noLimits = has("off")
	case "lists":
		c.unlisted = has("off")
	case "throttle":
		c.throttle = 0
		for _, word := range st.words {
			c.throttle |= throttles[word]
		}
	case "ecc":
		c.ecc.add(st.kind, st.number)
	case "remapped":
		c.remapped.add(st.kind, st.number)
		c.remapPending, c.remapFailed = has("pending"), has("failed")
	case "retired":
		c.retires, c.retired, c.retirePending = true, st.number, has("pending")
	case "mig":
		c.migCapable, c.instances = true, strings.Join(st.words, " ")
	case "use", "process":
		g.scripted.apply(st, since)
	}
}

func (l *scripted) apply(st step, since time.Duration) {
	over := st.length > 0 && since >= st.length
	if st.verb == "process" {
		delete(l.processes, int(st.number))
		if !over && st.words == nil {
			l.processes[int(st.number)] = st.load
		}
		return
	}
	if over {
		return
	}
	use := st.to
	if since < st.over {
		use = st.from + (st.to-st.from)*float64(since)/float64(st.over)
	}
	l.use = &use
}

// tell adds an XID error, or a number of equal ones.
func (s *state) tell(st step) {
	logged := loggedXID{gpu: st.gpu, xid: st.number, times: st.times, pid: st.pid}
	if len(st.words) > 0 {
		logged.program = st.words[0]
	}
	s.logged = append(s.logged, logged)
	if st.logged {
		return
	}
	s.sequence += st.times
	s.events = append(s.events, xidEvent{s.sequence, st.times, st.gpu, st.number})
	if len(s.events) > maxEvents {
		s.events = s.events[len(s.events)-maxEvents:]
	}
}

// instance is a part of a GPU in MIG mode.
type instance struct {
	uuid, profile string
	memory, used  uint64 // bytes
}

// instances are what MIG makes of the GPU. What is used by processes that no
// script has put into one fills them one after the other.
func (g *gpuState) instances() []instance {
	var all []instance
	var own [maxInstances]uint64
	used := g.memoryUsed
	for _, p := range g.processes {
		if p.part > 0 {
			own[p.part-1] += p.memory
			used -= min(used, p.memory)
		}
	}
	for i, profile := range strings.Fields(g.condition.instances) {
		var gibibytes uint64
		_, _ = fmt.Sscan(migProfile.FindStringSubmatch(profile)[1], &gibibytes)
		in := instance{profile: profile, memory: gibibytes << 30}
		in.uuid = fmt.Sprintf("MIG-%s%02x", g.uuid[len("GPU-"):len(g.uuid)-2], i)
		in.used = min(own[i], in.memory)
		more := min(used, in.memory-in.used)
		in.used += more
		used -= more
		all = append(all, in)
	}
	return all
}
