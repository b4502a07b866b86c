package simdriver

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// user is a process on a GPU, as the process scan found it.
type user struct {
	pid      int
	work     float64 // share of a processor it takes, 0 to 1
	resident uint64  // bytes
	gpus     []int
	exact    *exactLoad // nil: the load follows work and resident
}

// How fast a reading follows its cause.
const (
	loadInertia   = 1200 * time.Millisecond
	powerInertia  = 2 * time.Second
	heatInertia   = 25 * time.Second
	memoryInertia = 2 * time.Second
)

// contextMemory is what a CUDA context takes on a card before any data.
const contextMemory = 420 << 20

// gpuModel moves one GPU's readings. The noise is what real sensors show.
type gpuModel struct {
	load   float64         // percent, without noise
	heat   float64         // degrees Celsius, without noise
	memory map[int]float64 // bytes by process, as its resident memory asks for
	taken  map[int]uint64  // bytes by process, as it has got
}

func newGPUModel(g *gpuState) *gpuModel {
	return &gpuModel{heat: g.temperature, memory: make(map[int]float64), taken: make(map[int]uint64)}
}

// approach moves value towards target as far as dt allows.
func approach(value, target float64, dt, inertia time.Duration) float64 {
	return target + (value-target)*math.Exp(-float64(dt)/float64(inertia))
}

func noise(amplitude float64) float64 { return (2*rand.Float64() - 1) * amplitude }

// step advances the GPU by dt under its present users.
func (m *gpuModel) step(g *gpuState, users []user, dt time.Duration) {
	users = append(users, g.scripted.users()...)
	var work, exact float64
	for _, u := range users {
		if u.exact != nil {
			exact += float64(u.exact.sm)
		} else {
			work += u.work
		}
	}
	m.load = approach(m.load, min(96*work, 98), dt, loadInertia)
	var measured float64
	if m.load >= 1 {
		measured = clamp(m.load+noise(3), 1, 100)
	}
	g.utilization = min(exact+measured, 100)
	if g.scripted.use != nil {
		g.utilization = *g.scripted.use
	}
	g.memoryUtilization = 0
	if g.utilization >= 1 {
		g.memoryUtilization = clamp(0.55*g.utilization+noise(2), 0, 100)
	}
	target := idlePower + (0.92*gpuPowerLimit-idlePower)*g.utilization/100
	g.power = clamp(approach(g.power, target, dt, powerInertia)+noise(0.4+g.utilization/25), 15, gpuPowerLimit)
	m.heat = approach(m.heat, idleTemperature+47*(g.power-idlePower)/gpuPowerLimit, dt, heatInertia)
	g.temperature = clamp(m.heat+noise(0.6), 20, 95)
	g.energy += g.power * dt.Seconds()

	g.memoryTemperature = clamp(m.heat+7+0.05*g.utilization+noise(0.6), 20, 105)
	g.fan = clamp(idleFan+1.6*(m.heat-45)+noise(1), idleFan, 100)

	working := len(users) > 0 || g.utilization > 0
	m.stepClocks(g, working)
	m.stepLink(g, working)
	m.stepProcesses(g, users, shares{exact: exact, work: work}, dt)
}

// users are the processes that scripts have put on the GPU.
func (l *scripted) users() []user {
	var users []user
	for pid, load := range l.processes {
		users = append(users, user{pid: pid, exact: &load})
	}
	slices.SortFunc(users, func(a, b user) int { return a.pid - b.pid })
	return users
}

// stepClocks sets the clocks and what keeps them down.
func (m *gpuModel) stepClocks(g *gpuState, working bool) {
	const idle, powerCap = 0x1, 0x4 // NVML's bits
	g.smClock, g.memoryClock, g.throttle = idleSMClock, idleMemoryClock, idle
	if working {
		g.smClock = int(gpuSMClock - 60*g.utilization/100 - rand.Float64()*30)
		g.memoryClock = gpuMemoryClock
		g.throttle = 0
	}
	if g.power > 0.91*gpuPowerLimit {
		g.throttle |= powerCap
	}
	if g.condition.throttle != 0 {
		g.throttle = g.condition.throttle
		g.smClock = min(g.smClock, gpuSMClock/2)
	}
}

// stepLink sets the PCIe link, which idles in its first generation.
func (m *gpuModel) stepLink(g *gpuState, working bool) {
	g.pcieGeneration = idlePCIe
	if working {
		g.pcieGeneration = gpuPCIe
	}
	g.pcieReceived = max(0, 60+28000*g.utilization+noise(50+3000*g.utilization))
	g.pcieSent = max(0, 60+7000*g.utilization+noise(50+900*g.utilization))
}

// shares are the sums over a GPU's users.
type shares struct{ exact, work float64 }

// stepProcesses gives each process its share of load and memory. Exact loads
// are as they were asked for while the GPU has room for all of them.
func (m *gpuModel) stepProcesses(g *gpuState, users []user, total shares, dt time.Duration) {
	g.processes, g.memoryUsed = g.processes[:0], 0
	present, taken := make(map[int]float64, len(users)), maps.Clone(m.taken)
	free, wanted := uint64(gpuMemory), 0.0
	for _, u := range users {
		if u.exact != nil {
			free -= min(free, u.exact.memory)
			continue
		}
		present[u.pid] = approach(m.memory[u.pid], contextMemory+float64(u.resident), dt, memoryInertia)
		wanted += present[u.pid]
	}
	// What does not fit on the card is not on the card.
	fits := min(1, 0.97*float64(free)/max(wanted, 1))
	left := max(0, g.utilization-total.exact)
	for _, u := range users {
		p := processState{pid: u.pid, memory: uint64(present[u.pid] * fits)}
		if u.exact != nil {
			p.sm = int(math.Round(float64(u.exact.sm) * min(1, 100/max(total.exact, 1))))
			p.memory = min(u.exact.memory, gpuMemory-g.memoryUsed)
			p.graphics, p.part = u.exact.graphics, u.exact.part
		} else if total.work > 0 {
			p.sm = int(math.Round(left * u.work / total.work))
		}
		// What a process has it keeps; what goes beyond a limit it is refused.
		p.memory = min(p.memory, max(m.taken[u.pid], room(g.limits, u.pid, taken)))
		taken[u.pid] = p.memory
		g.processes = append(g.processes, p)
		g.memoryUsed += p.memory
	}
	maps.DeleteFunc(taken, func(pid int, _ uint64) bool {
		return !slices.ContainsFunc(users, func(u user) bool { return u.pid == pid })
	})
	m.memory, m.taken = present, taken
}

func clamp(v, low, high float64) float64 { return max(low, min(v, high)) }
