package notebooks

import (
	"cmp"
	"maps"
	"slices"
)

// unknownGPU is the kind of GPUs whose model is not known.
const unknownGPU = "GPU"

// room is what the cluster has, as people and the line see it.
func (s *Service) room() Room {
	room := s.cfg.Cluster.Room()
	room.Shared = s.cfg.SharedGPUs
	models := map[string]int{}
	for _, n := range room.machines() {
		if n.Total.GPUs > 0 {
			models[n.GPUModel]++
		}
	}
	apart := s.apart()
	for _, list := range [][]NodeRoom{room.Nodes, room.Cordoned, room.Away} {
		for i := range list {
			n := &list[i]
			n.Title = s.called(n.Name)
			if n.Total.GPUs == 0 {
				continue
			}
			n.Kind = cmp.Or(n.GPUModel, unknownGPU)
			if models[n.GPUModel] > 1 && slices.Contains(apart, n.Name) {
				n.Kind += " on " + n.Name
			}
		}
	}
	if s.cfg.CordonReason != nil {
		for i := range room.Cordoned {
			room.Cordoned[i].Why = s.cfg.CordonReason(room.Cordoned[i].Name)
		}
	}
	s.noteKept(&room)
	return room
}

// noteKept puts into the room what is kept of it.
func (s *Service) noteKept(room *Room) {
	kept := s.keptOn()
	for i := range room.Nodes {
		n := &room.Nodes[i]
		n.Kept = min(kept[n.Name], max(n.Free.GPUs, 0))
	}
}

// apart are the machines that do for other launches than their like do: those
// that are for some people only, that alone have what a profile needs, or whose
// GPUs some images cannot use. In the
// line their GPUs are of a kind of their own, or somebody would be given one that
// they may not use.
func (s *Service) apart() []string {
	var list []string
	if s.cfg.Limited != nil {
		list = s.cfg.Limited()
	}
	if s.cfg.OnlyOn != nil {
		for i := range s.cfg.Profiles {
			if p := &s.cfg.Profiles[i]; p.GPUs > 0 {
				list = append(list, s.cfg.OnlyOn(p.Slug))
			}
		}
	}
	for i := range s.cfg.Profiles {
		list = slices.AppendSeq(list, maps.Keys(s.unfit(s.cfg.Profiles[i])))
	}
	return list
}

// called is what a machine is shown as.
func (s *Service) called(machine string) string {
	if s.cfg.Called == nil {
		return machine
	}
	return s.cfg.Called(machine)
}

// machines are all of the pool.
func (r Room) machines() []NodeRoom { return slices.Concat(r.Nodes, r.Cordoned, r.Away) }

// has reports whether some machine of the pool, empty, would do for it: one that
// takes no new work, is away, or does not have its image yet included.
func (r Room) has(need Need) bool {
	need.Lacking = nil
	return slices.ContainsFunc(r.machines(), func(n NodeRoom) bool { return n.fits(need) })
}

// open is has without machines that are away.
func (r Room) open(need Need) bool {
	return r.opens(need) || slices.ContainsFunc(r.Cordoned, func(n NodeRoom) bool { return n.fits(need) })
}

// opens is has of machines that take new work.
func (r Room) opens(need Need) bool {
	return slices.ContainsFunc(r.Nodes, func(n NodeRoom) bool { return n.fits(need) })
}

// fitting are those of these machines that would do for it, by their names.
func fitting(machines []NodeRoom, need Need) (names []string) {
	for _, n := range machines {
		if n.fits(need) {
			names = append(names, n.Name)
		}
	}
	return names
}

// called is what a machine is shown as.
func (r Room) called(machine string) string {
	for _, n := range r.machines() {
		if n.Name == machine {
			return cmp.Or(n.Title, n.Name)
		}
	}
	return machine
}

// largest is the most GPUs that one machine of the pool has.
func (r Room) largest() int {
	most := 0
	for _, n := range r.machines() {
		most = max(most, n.Total.GPUs)
	}
	return most
}
