package history

import (
	"context"
	"database/sql"
	"math"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

// EventKind says what happened.
type EventKind string

// The kinds of events.
const (
	EventXID       EventKind = "xid"        // the driver reported an error of a GPU
	EventGPULost   EventKind = "gpu-lost"   // a GPU could not be read any more
	EventGPUBack   EventKind = "gpu-back"   // it can again
	EventProbeDown EventKind = "probe-down" // a machine's readings ceased
	EventProbeUp   EventKind = "probe-up"   // they are there again
	EventAsleep    EventKind = "asleep"     // a machine slept, from First to Last
)

// Event is something that happened to a GPU, or to all of a machine, within
// one minute.
type Event struct {
	Node string `json:"node"`
	// UUID and Number name the GPU; empty and nil for an event of the machine.
	UUID   string    `json:"uuid,omitempty"`
	Number *int      `json:"number,omitempty"`
	Kind   EventKind `json:"kind"`
	// XID is the error's number, for EventXID; gpu.ExplainXID tells what it means.
	XID uint64 `json:"xid,omitempty"`
	// First and Last are when it happened first and last in that minute, Count
	// how often: in a storm of different errors at once about how often.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Count int64     `json:"count"`
	// Detail is what was known about it, as a sentence.
	Detail string `json:"detail,omitempty"`
}

// EventFilter chooses events. The zero value is the newest of all.
type EventFilter struct {
	From, To time.Time // by the last time; zero is open
	UUID     string    // of one GPU
	Node     string    // with UUID: also the sleep of its machine; alone: of one machine
	Kind     EventKind // of one kind
	Limit    int       // default 100
}

const (
	// mostEvents bounds the table, waitingEvents what waits for a disk that is full.
	mostEvents    = 20_000
	waitingEvents = 5_000
	keepEvents    = 366 * 24 * time.Hour
)

// eventKey is what equal events of a minute have in common.
type eventKey struct {
	node, uuid string
	kind       EventKind
	xid        uint64
	minute     int64 // its beginning, unix seconds
	// earlier says that it is from before the probe's start, and may have been
	// noted then.
	earlier bool
}

// events are what has not been written yet.
type events map[eventKey]*Event

// add counts an event; those of kinds that are new while too many wait are
// dropped, and reported as such.
func (l events) add(e Event, earlier bool) (dropped bool) {
	k := eventKey{e.Node, e.UUID, e.Kind, e.XID, floor(e.First.Unix(), 60), earlier}
	have := l[k]
	if have == nil {
		if len(l) >= waitingEvents {
			return true
		}
		l[k] = &e
		return false
	}
	have.Count += e.Count
	if e.First.Before(have.First) {
		have.First = e.First
	}
	if !e.Last.Before(have.Last) {
		have.Last = e.Last
		if e.Detail != "" {
			have.Detail = e.Detail
		}
	}
	return false
}

func (l events) restore(old events) (dropped bool) {
	for k, e := range old {
		dropped = l.add(*e, k.earlier) || dropped
	}
	return dropped
}

// note takes an event. r.mu is held.
func (r *Recorder) note(e Event) { r.noteAny(e, false) }

func (r *Recorder) noteAny(e Event, earlier bool) {
	r.pending.events.add(e, earlier)
	r.noted.Add(1)
}

// Slept notes that a machine was asleep. Nothing of that time is in the ledger:
// it passes on no clock that the ledger is kept by.
func (r *Recorder) Slept(node string, from, to time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(Event{Node: tidy(node), Kind: EventAsleep, First: from, Last: to, Count: 1})
}

// Noted counts the events since the start: where it has changed, Events has
// something new.
func (r *Recorder) Noted() uint64 { return r.noted.Load() }

// noteNode notes XIDs, and whether the machine's readings came or ceased.
func (r *Recorder) noteNode(n *node, s *gpu.Snapshot, wall time.Time) {
	name := tidy(s.Node)
	if down := s.Error != ""; down != n.down {
		n.down = down
		e := Event{Node: name, Kind: EventProbeUp, First: wall, Last: wall, Count: 1}
		if down {
			e.Kind, e.Detail = EventProbeDown, tidy(s.Error)
		}
		r.note(e)
	}
	left := leftOut(s)
	for i, x := range s.Events {
		at := x.Time
		// A machine's clock may be wrong; the head's is the one that all is told by.
		if x.Earlier {
			at = wall.Add(-max(0, s.Time.Sub(at)))
		} else if d := wall.Sub(at); d > time.Minute || d < -time.Minute {
			at = wall
		}
		number := x.Index
		r.noteAny(Event{
			Node: name, UUID: tidy(x.UUID), Number: &number, Kind: EventXID, XID: min(x.XID, math.MaxInt64), First: at, Last: at,
			Count: 1 + left[i], Detail: tidy(x.Culprit()),
		}, x.Earlier)
	}
}

// leftOut says for each event of a snapshot how many like it the probe counted
// and did not pass on: they are taken to be of the kind that there is most of,
// since only equal ones are left out.
func leftOut(s *gpu.Snapshot) []int64 {
	extra := make([]int64, len(s.Events))
	type kind struct {
		uuid string
		xid  uint64
	}
	count := map[kind]int{}
	most := -1
	for i, x := range s.Events {
		k := kind{x.UUID, x.XID}
		count[k]++
		if most < 0 || count[k] > count[kind{s.Events[most].UUID, s.Events[most].XID}] {
			most = i
		}
	}
	if most >= 0 && s.EventsDropped > 0 {
		extra[most] = int64(s.EventsDropped)
	}
	return extra
}

// noteGPU notes that a GPU was lost or is back.
func (r *Recorder) noteGPU(st *gpuState, s *gpu.Snapshot, g *gpu.GPU, wall time.Time) {
	lost := g.Error != ""
	if st.known && lost != st.lost {
		number := g.Index
		e := Event{
			Node: tidy(s.Node), UUID: tidy(g.UUID), Number: &number, Kind: EventGPUBack, First: wall, Last: wall, Count: 1,
		}
		if lost {
			e.Kind, e.Detail = EventGPULost, tidy(g.Error)
		}
		r.note(e)
	}
	st.known, st.lost = true, lost
}

func (l events) write(ctx context.Context, tx *sql.Tx) error {
	for k, e := range l {
		known, err := e.known(ctx, tx, k)
		if err != nil {
			return err
		}
		if known {
			continue
		}
		number := -1
		if e.Number != nil {
			number = *e.Number
		}
		const query = `INSERT INTO events (node, gpu, number, kind, xid, minute, first, last, count, detail)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (node, gpu, kind, xid, minute) DO UPDATE SET count = count + excluded.count,
				first = min(first, excluded.first), last = max(last, excluded.last), detail = iif(excluded.detail = '', detail,
				excluded.detail)`
		if _, err := tx.ExecContext(ctx, query, k.node, k.uuid, number, k.kind, int64(k.xid), k.minute,
			e.First.UnixMilli(), e.Last.UnixMilli(), e.Count, e.Detail); err != nil {
			return err
		}
	}
	return nil
}

// sameEvent is how far the times can be apart that two starts of the probe make
// of one entry in the kernel's log: the clock may have been set between them.
const sameEvent = 5 * time.Second

// known says whether an event from before the probe's start has been noted by
// then. The kernel's log has all of a minute's, so the larger number is right.
func (e *Event) known(ctx context.Context, tx *sql.Tx, k eventKey) (bool, error) {
	if !k.earlier {
		return false, nil
	}
	const query = `UPDATE events SET count = max(count, ?), detail = iif(detail = '', ?, detail)
		WHERE node = ? AND gpu = ? AND kind = ? AND xid = ? AND minute BETWEEN ? AND ? AND first <= ? AND last >= ?`
	changed, err := tx.ExecContext(ctx, query, e.Count, e.Detail, k.node, k.uuid, k.kind, int64(k.xid), k.minute-60,
		k.minute+60,
		e.Last.Add(sameEvent).UnixMilli(), e.First.Add(-sameEvent).UnixMilli())
	if err != nil {
		return false, err
	}
	n, err := changed.RowsAffected()
	return n > 0, err
}

func pruneEvents(ctx context.Context, tx *sql.Tx, now time.Time) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM events WHERE last < ?`, now.Add(-keepEvents).UnixMilli()); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx,
		`DELETE FROM events WHERE id <= (SELECT id FROM events ORDER BY id DESC LIMIT 1 OFFSET ?)`, mostEvents)
	return err
}

func eventsQuery(f EventFilter) (query string, args []any) {
	where := []string{"1"}
	and := func(condition string, value any) { where, args = append(where, condition), append(args, value) }
	switch {
	case f.UUID != "" && f.Node != "":
		// And what happened to its machine.
		and("(gpu = ? OR gpu = '' AND node = ?)", f.UUID)
		args = append(args, f.Node)
	case f.UUID != "":
		and("gpu = ?", f.UUID)
	case f.Node != "":
		and("node = ?", f.Node)
	}
	if f.Kind != "" {
		and("kind = ?", f.Kind)
	}
	if !f.From.IsZero() {
		and("last >= ?", f.From.UnixMilli())
	}
	if !f.To.IsZero() {
		and("first < ?", f.To.UnixMilli())
	}
	if f.Limit <= 0 {
		f.Limit = 100
	}
	return `SELECT node, gpu, number, kind, xid, first, last, count, detail FROM events
		WHERE ` + strings.Join(where, " AND ") + ` ORDER BY last DESC, id DESC LIMIT ?`, append(args, f.Limit)
}

// Events returns what happened, the newest first, up to this moment.
func (r *Recorder) Events(ctx context.Context, f EventFilter) ([]Event, error) {
	r.mu.Lock()
	waiting := len(r.pending.events) > 0
	r.mu.Unlock()
	if waiting {
		// A visitor who leaves is no reason that history cannot be written.
		_ = r.Flush(context.WithoutCancel(ctx)) // Problem tells
	}
	query, args := eventsQuery(f)
	db := r.cfg.Store.Metrics()
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, r.readFailed(db, err)
	}
	defer rows.Close()
	out := []Event{}
	for rows.Next() {
		var e Event
		var number int
		var xid, first, last int64
		if err := rows.Scan(&e.Node, &e.UUID, &number, &e.Kind, &xid, &first, &last, &e.Count, &e.Detail); err != nil {
			return nil, r.readFailed(db, err)
		}
		if number >= 0 {
			e.Number = &number
		}
		e.XID, e.First, e.Last = uint64(xid), time.UnixMilli(first).UTC(), time.UnixMilli(last).UTC()
		out = append(out, e)
	}
	if err := rows.Err(); err != nil {
		return nil, r.readFailed(db, err)
	}
	return out, nil
}
