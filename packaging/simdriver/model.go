package simdriver

import (
	"math"
	"math/rand/v2"
	"time"
)

// user is a process on a GPU, as the process scan found it.
type user struct {
	pid      int
	work     float64 // share of a processor it takes, 0 to 1
	resident uint64  // bytes
	gpus     []int
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
	memory map[int]float64 // bytes by process
}

func newGPUModel(g *gpuState) *gpuModel {
	return &gpuModel{heat: g.temperature, memory: make(map[int]float64)}
}

// approach moves value towards target as far as dt allows.
func approach(value, target float64, dt, inertia time.Duration) float64 {
	return target + (value-target)*math.Exp(-float64(dt)/float64(inertia))
}

func noise(amplitude float64) float64 { return (2*rand.Float64() - 1) * amplitude }

// step advances the GPU by dt under its present users.
func (m *gpuModel) step(g *gpuState, users []user, dt time.Duration) {
	var work float64
	for _, u := range users {
		work += u.work
	}
	m.load = approach(m.load, min(96*work, 98), dt, loadInertia)
	g.utilization, g.memoryUtilization = 0, 0
	if m.load >= 1 {
		g.utilization = clamp(m.load+noise(3), 1, 100)
		g.memoryUtilization = clamp(0.55*m.load+noise(2), 0, 100)
	}
	target := idlePower + (0.92*gpuPowerLimit-idlePower)*g.utilization/100
	g.power = clamp(approach(g.power, target, dt, powerInertia)+noise(0.4+g.utilization/25), 15, gpuPowerLimit)
	m.heat = approach(m.heat, idleTemperature+47*(g.power-idlePower)/gpuPowerLimit, dt, heatInertia)
	g.temperature = clamp(m.heat+noise(0.6), 20, 95)
	g.energy += g.power * dt.Seconds()

	g.smClock, g.memoryClock = idleSMClock, idleMemoryClock
	if len(users) > 0 {
		g.smClock = int(gpuSMClock - 60*g.utilization/100 - rand.Float64()*30)
		g.memoryClock = gpuMemoryClock
	}
	m.stepProcesses(g, users, work, dt)
}

// stepProcesses gives each process its share of load and memory.
func (m *gpuModel) stepProcesses(g *gpuState, users []user, work float64, dt time.Duration) {
	g.processes, g.memoryUsed = g.processes[:0], 0
	present := make(map[int]float64, len(users))
	var wanted float64
	for _, u := range users {
		present[u.pid] = approach(m.memory[u.pid], contextMemory+float64(u.resident), dt, memoryInertia)
		wanted += present[u.pid]
	}
	// What does not fit on the card is not on the card.
	fits := min(1, 0.97*gpuMemory/max(wanted, 1))
	for _, u := range users {
		p := processState{pid: u.pid, memory: uint64(present[u.pid] * fits)}
		if work > 0 {
			p.sm = int(math.Round(g.utilization * u.work / work))
		}
		g.processes = append(g.processes, p)
		g.memoryUsed += p.memory
	}
	m.memory = present
}

func clamp(v, low, high float64) float64 { return max(low, min(v, high)) }
