package history

import "time"

// card names a GPU in the ledger. A simulated one is another than a real one.
type card struct {
	uuid, node string
	simulated  bool
}

// about is what else is worth knowing of a card once it is gone.
type about struct {
	number int
	name   string
}

// amounts is what somebody had of a card: times in seconds, compute in seconds
// of the whole card, memory in bytes times seconds, energy in joules, and for
// how many seconds each of these was known.
type amounts struct {
	watched, held, busy, unknown float64
	compute, computeFor          float64
	memory, memoryFor            float64
	energy, energyFor            float64
}

func (a *amounts) add(b amounts) {
	a.watched += b.watched
	a.held += b.held
	a.busy += b.busy
	a.unknown += b.unknown
	a.compute += b.compute
	a.computeFor += b.computeFor
	a.memory += b.memory
	a.memoryFor += b.memoryFor
	a.energy += b.energy
	a.energyFor += b.energyFor
}

func (a amounts) times(f float64) amounts {
	return amounts{
		a.watched * f, a.held * f, a.busy * f, a.unknown * f, a.compute * f, a.computeFor * f,
		a.memory * f, a.memoryFor * f, a.energy * f, a.energyFor * f,
	}
}

// use counts held seconds as busy, idle or unknown by a share in percent.
func (a *amounts) use(percent *float64, seconds float64) {
	if percent == nil {
		a.unknown = seconds
		return
	}
	if *percent >= BusyShare {
		a.busy = seconds
	}
	a.compute, a.computeFor = *percent/100*seconds, seconds
}

// entry names a row of the ledger.
type entry struct {
	hour int64 // its beginning, unix seconds
	card card
	who  who
}

// ledger is what has not been written yet.
type ledger map[entry]*line

type line struct {
	about about
	amounts
}

// waitingEntries bounds what waits for a disk that is full: some weeks of a
// large lab, 20 MB.
const waitingEntries = 100_000

func (l ledger) addOne(e entry, ab about, a amounts) {
	if a == (amounts{}) {
		return
	}
	have := l[e]
	if have == nil {
		have = &line{}
		l[e] = have
	}
	have.about = ab
	have.add(a)
}

// add books a stretch of time that ends at wall. One that reaches over the
// full hour is divided there.
func (l ledger) add(c card, ab about, wall time.Time, passed time.Duration, s share) {
	hour := floor(wall.Unix(), 3600)
	inHour := min(wall.Sub(time.Unix(hour, 0)), passed)
	part := 1.0
	if passed > 0 {
		part = float64(inHour) / float64(passed)
	}
	l.addAll(c, ab, hour, part, s)
	if part < 1 {
		l.addAll(c, ab, hour-3600, 1-part, s)
	}
}

func (l ledger) addAll(c card, ab about, hour int64, part float64, s share) {
	l.addOne(entry{hour, c, who{kind: kindCard}}, ab, s.card.times(part))
	for w, a := range s.claims {
		l.addOne(entry{hour, c, w}, ab, a.times(part))
	}
	l.addOne(entry{hour, c, who{kind: KindUnattributed}}, ab, s.unattributed.times(part))
}

// restore puts back what could not be written and reports whether some of it
// had to be dropped. Nothing is, in any lab, before the disk has been full for
// weeks; then what is new is.
func (l ledger) restore(old ledger) (dropped bool) {
	for e, v := range old {
		if _, have := l[e]; !have && len(l) >= waitingEntries {
			dropped = true
			continue
		}
		l.addOne(e, v.about, v.amounts)
	}
	return dropped
}
