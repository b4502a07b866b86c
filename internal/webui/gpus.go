package webui

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// staleAfter is the age from which readings are no longer called live.
const staleAfter = 5 * time.Second

// you is the visitor's own name on their pages.
const you = "you"

// nearlyFull is the fraction of memory from which a meter warns.
const nearlyFull = 0.92

// A machineView is one node of the pool with its GPUs.
type machineView struct {
	ID, Name  string
	Node      string // its name, where Name is its title
	Simulated bool
	Driver    string
	Problem   string // why there are no readings, for people
	LastSeen  string // set where the readings are stale
	Cordoned  string // why the machine takes no new work
	GPUs      []gpuView
}

// A gpuView is one GPU as a card or a row shows it.
type gpuView struct {
	ID, UUID, Name string
	Index          int
	Simulated      bool
	Readings       []reading
	Holders        []holderView
	Outside        []string // people who use it without gpulab
	Processes      []processView
	Problem        string
	Ailment        string // what has to be done about the card, for people
	Withheld       string // why no new pod gets it
	Asleep         bool
	Crowded        string // for one of several people on it: its memory is nearly full
	LastSeen       string
	memory         uint64 // bytes, 0 = not known
	cordoned       bool   // its machine takes no new work, or is away
	slots          int    // how many pods may hold it at a time
}

type holderView struct {
	User, Notebook, For string
	// Instance says which part of a GPU in MIG mode they have.
	Instance string
	// Idle is for how long nobody has used their notebook, "" while somebody does.
	Idle string
}

// instanceWords describes a part of a GPU in MIG mode; "" for none.
func instanceWords(i *gpu.Instance) string {
	if i == nil {
		return ""
	}
	return joined("instance "+strconv.Itoa(i.Index), i.Profile, instanceMemory(*i))
}

type processView struct{ User, Name, PID, Memory, Use string }

// names reports whether the GPU's view says "you" to the visitor.
func (g gpuView) names(v visitor) bool {
	if !v.signedIn {
		return false
	}
	return slices.ContainsFunc(g.Holders, func(h holderView) bool { return h.User == you }) ||
		slices.ContainsFunc(g.Processes, func(p processView) bool { return p.User == you })
}

// free is how many new notebooks could get the GPU.
func (g gpuView) free() int {
	if g.Withheld != "" || g.Problem != "" || g.cordoned {
		return 0
	}
	return max(0, g.slots-len(g.Holders))
}

// freeWords says so.
func (g gpuView) freeWords() string {
	if g.slots == 1 || len(g.Holders) == 0 {
		return "free"
	}
	return fmt.Sprintf("%d of %d shares free", g.free(), g.slots)
}

// fits reports whether it is a GPU of that kind; a machine is labelled by the
// same facts.
func (g gpuView) fits(kind notebooks.GPUKind) bool {
	return kind.Fits(notebooks.NodeRoom{GPUModel: strings.ReplaceAll(g.Name, " ", "-"), GPUMemory: int64(g.memory)})
}

// short leaves the maker's name off, where there is little room.
func (g gpuView) short() gpuView {
	g.Name = strings.TrimPrefix(g.Name, "NVIDIA ")
	return g
}

// called is what a machine is shown as.
func (s *Server) called(node string) string {
	for _, snapshot := range s.cfg.Fleet.Snapshots() {
		if snapshot.Node == node {
			return snapshot.Machine()
		}
	}
	return node
}

// machines is the state of every node, in the order of their names. With
// drawings, readings carry their last two minutes.
func (s *Server) machines(snapshots []gpu.Snapshot, v visitor, drawings bool) []machineView {
	snapshots = slices.SortedFunc(slices.Values(snapshots), func(a, b gpu.Snapshot) int {
		return cmp.Compare(a.Node, b.Node)
	})
	views := make([]machineView, 0, len(snapshots))
	for i := range snapshots {
		views = append(views, s.machine(&snapshots[i], v, drawings))
	}
	return views
}

func (s *Server) machine(snapshot *gpu.Snapshot, v visitor, drawings bool) machineView {
	now := s.now()
	m := machineView{ID: elementID("machine", snapshot.Node), Name: snapshot.Machine(), Node: snapshot.Node,
		Simulated: snapshot.Simulated,
		Problem:   snapshot.Error, Cordoned: snapshot.Cordoned}
	if snapshot.DriverVersion != "" {
		m.Driver = "driver " + snapshot.DriverVersion
		if snapshot.CUDAVersion != "" {
			m.Driver += ", CUDA " + snapshot.CUDAVersion
		}
	}
	if age := now.Sub(snapshot.Time); !snapshot.Time.IsZero() && age > staleAfter {
		m.LastSeen = "last seen " + units.Duration(age) + " ago"
	}
	for i := range snapshot.GPUs {
		g := gpuViewOf(&snapshot.GPUs[i], v, now)
		g.ID = elementID("gpu", orElse(g.UUID, snapshot.Node+"-"+strconv.Itoa(g.Index)))
		g.LastSeen = m.LastSeen
		g.Simulated = g.Simulated || snapshot.Simulated
		g.cordoned = m.Cordoned != "" || snapshot.Lost
		if drawings {
			for measure := range g.Readings {
				drawn := s.trends.draw(g.UUID, measureOf(measure), now)
				g.Readings[measure].Drawing = &drawn
			}
		}
		m.GPUs = append(m.GPUs, g)
	}
	return m
}

// measureOf maps the place in gpuView.Readings to what history keeps.
func measureOf(place int) measure { return measure(place) }

func gpuViewOf(g *gpu.GPU, v visitor, now time.Time) gpuView {
	view := gpuView{UUID: g.UUID, Name: g.Name, Index: g.Index,
		Simulated: g.Simulated, slots: max(g.Slots, 1, len(g.Instances)), Problem: g.Error, Ailment: ailment(&g.Health),
		Withheld: g.Withheld, Asleep: g.Asleep, Readings: readingsOf(g)}
	if g.MemoryTotal != nil {
		view.memory = *g.MemoryTotal
	}
	if v.signedIn {
		view.Crowded = g.Crowded(v.session.User.Handle)
	}
	for _, h := range g.Holders {
		view.Holders = append(view.Holders, holderView{
			User: personName(h.User, h.Namespace, v), Notebook: h.Notebook, Instance: instanceWords(g.Instance(h.Instance)),
			For:  since(h.Since, now),
			Idle: since(h.IdleSince, now),
		})
	}
	for _, p := range g.Processes {
		view.Processes = append(view.Processes, processViewOf(p, v))
	}
	for _, p := range g.Outsiders() {
		if !slices.Contains(view.Outside, p.UnixUser) {
			view.Outside = append(view.Outside, p.UnixUser)
		}
	}
	return view
}

// readingsOf lists the four readings in the order of the measures of history.
func readingsOf(g *gpu.GPU) []reading {
	list := []reading{
		{Name: "Use", Unit: "%"},
		{Name: "Memory", Unit: "GiB"},
		{Name: "Power", Unit: "W"},
		{Name: "Temperature", Unit: "°C"},
	}
	for i := range list {
		list[i].Fraction = fraction(g, measureOf(i))
	}
	if g.Utilization != nil {
		list[use].Value = whole(*g.Utilization)
	}
	if g.MemoryUsed != nil {
		list[memory].Value = units.GiB(*g.MemoryUsed)
	}
	if g.MemoryTotal != nil {
		list[memory].Of = "of " + units.GiB(*g.MemoryTotal) + " GiB"
	}
	if g.Power != nil {
		list[power].Value = whole(*g.Power)
	}
	if g.PowerLimit != nil {
		list[power].Of = "of " + whole(*g.PowerLimit) + " W"
	}
	if g.Temperature != nil {
		list[temperature].Value = whole(*g.Temperature)
	}
	list[memory].High = list[memory].Fraction != nil && *list[memory].Fraction >= nearlyFull
	return list
}

func processViewOf(p gpu.Process, v visitor) processView {
	view := processView{Name: p.Name, PID: strconv.Itoa(p.PID)}
	switch {
	case p.Pod != (gpu.PodRef{}):
		view.User = personName(p.Pod.User, p.Pod.Namespace, v)
	case p.UnixUser != "":
		view.User = p.UnixUser + " (outside gpulab)"
	default:
		view.User = "not known"
	}
	if p.MemoryUsed != nil {
		view.Memory = units.Bytes(*p.MemoryUsed)
	}
	if p.SMUtilization != nil {
		view.Use = whole(*p.SMUtilization) + " %"
	}
	return view
}

// personName is a pod's owner as the visitor knows them.
func personName(handle, namespace string, v visitor) string {
	switch {
	case handle == "" && namespace != "":
		return "system (" + namespace + ")"
	case handle == "":
		return "somebody"
	case v.signedIn && handle == v.session.User.Handle:
		return you
	}
	return handle
}

// since is how long ago t was, and empty for no time at all.
func since(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return units.Lasting(now.Sub(t))
}

// gpuRoom counts GPUs of a kind, or where several notebooks take turns on one,
// its shares: all and those that are free, in the lab and on
// one machine. A notebook gets all its GPUs from one machine.
type gpuRoom struct {
	total, free, largest, mostFree int
	simulated                      bool // all of them
	cordoned                       int  // those of machines that take no new work
	closed                         bool // no machine takes new work
	shared                         bool // several notebooks take turns on some
}

// noun names what is counted.
func (r gpuRoom) noun() string {
	if r.shared {
		return "shares of GPUs"
	}
	return "GPUs"
}

func roomIn(machines []machineView, kind notebooks.GPUKind) gpuRoom {
	room := gpuRoom{simulated: true, closed: len(machines) > 0}
	for _, m := range machines {
		room.closed = room.closed && m.Cordoned != ""
		all, free := 0, 0
		for _, g := range m.GPUs {
			if !g.fits(kind) {
				continue
			}
			all += g.slots
			room.shared = room.shared || g.slots > 1
			free += g.free()
		}
		room.simulated = room.simulated && (m.Simulated || all == 0)
		room.total += all
		if m.Cordoned != "" {
			room.cordoned += all
		}
		room.free += free
		room.largest = max(room.largest, all)
		room.mostFree = max(room.mostFree, free)
	}
	room.simulated = room.simulated && room.total > 0
	return room
}

func (s *Server) gpusPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	s.render(w, r, http.StatusOK, gpusPage(s.page(w, r, v, "GPUs", "view=gpus"),
		s.machines(s.cfg.Fleet.Snapshots(), v, true), v.may(users.ActionManageLab), s.check.view(s.now())))
	return nil
}

// gpusParts are the live parts of the GPU page.
func (s *Server) gpusParts(v visitor) parts {
	return func(_ context.Context, t *tick) ([]part, error) {
		return machineParts(t.reader(v), s.machinesAt(t, v, true), machinesDetail, gpuDetail), nil
	}
}

// machineParts are a frame that changes when machines or GPUs come and go, and
// what is in it: every machine's head and every GPU.
func machineParts(reader visitor, machines []machineView, frame func([]machineView) templ.Component,
	card func(gpuView) templ.Component) []part {
	list := []part{{id: "machines", body: frame(machines), shape: shapeOf(machines),
		same: "reader " + reader.session.User.Handle}}
	for _, m := range machines {
		list = append(list, part{id: m.ID + "-head", body: machineHead(m), same: everybody})
		for _, g := range m.GPUs {
			list = append(list, part{id: g.ID, body: card(g), same: sameFor(reader, g)})
		}
	}
	return list
}

// shapeOf names which GPUs there are, so that a frame is sent again only when
// that changes.
func shapeOf(machines []machineView) string {
	var shape strings.Builder
	shape.WriteString("machines")
	for _, m := range machines {
		shape.WriteString("\n" + m.Name + "\t" + strconv.FormatBool(len(m.GPUs) == 0) + m.Problem)
		for _, g := range m.GPUs {
			shape.WriteString("\t" + g.ID)
		}
	}
	return shape.String()
}
