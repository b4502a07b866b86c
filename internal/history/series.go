package history

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"
)

// Series is what a GPU did in a window of time.
type Series struct {
	UUID string    `json:"uuid"`
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Step is how much time a point stands for, in nanoseconds.
	Step   time.Duration `json:"step"`
	Points []Point       `json:"points"` // oldest first
}

// Point is what a GPU did in one step; what was not read is nil. Where nothing
// was read for a while there is one point in which all is nil: a line is to be
// broken there.
type Point struct {
	Time time.Time `json:"time"` // when the step begins
	// Use and UseMax are the mean and the largest share of the time in which the
	// GPU worked, in percent.
	Use    *float64 `json:"use,omitempty"`
	UseMax *float64 `json:"useMax,omitempty"`
	// Memory is the largest use of its memory, in bytes.
	Memory *float64 `json:"memory,omitempty"`
	// Power and PowerMax are the mean and the largest, in watts.
	Power    *float64 `json:"power,omitempty"`
	PowerMax *float64 `json:"powerMax,omitempty"`
	// Temperature is the highest, in degrees Celsius.
	Temperature *float64 `json:"temperature,omitempty"`
	// SMClock is the mean clock of the multiprocessors, in MHz.
	SMClock *float64 `json:"smClock,omitempty"`
}

// mostPoints bounds an answer.
const mostPoints = 5000

// jitter is how many seconds in a row may be without a snapshot before that
// counts as a gap: snapshots come about once a second.
const jitter = 2

// span is a reading of some length.
type span struct {
	start, length int64 // unix seconds, seconds
	// late says that there is nothing before it by no more than jitter.
	late bool
	reading
}

// Series returns a GPU's readings in [from, to) as at most points points, from
// the finest level that reaches back to from: single seconds for ten minutes,
// ten of them for a day, five minutes beyond. A GPU that is not known has no
// points.
func (r *Recorder) Series(ctx context.Context, uuid string, from, to time.Time, points int) (Series, error) {
	if !from.Before(to) {
		return Series{}, wrong("the window of time is empty: its end must lie after its beginning")
	}
	if points < 1 || points > mostPoints {
		return Series{}, wrong("a chart has 1 to %d points, not %d", mostPoints, points)
	}
	now, _ := r.cfg.Clock()
	age := now.Sub(from)
	lo, hi := from.Unix(), to.Unix()
	if to.After(time.Unix(hi, 0)) {
		hi++
	}
	var lv level
	switch {
	case age <= (recentSeconds-1)*time.Second:
		lv = level{step: 1}
	case age <= tens.keep:
		lv = tens
	default:
		lv = fives
	}
	// Bins begin at multiples of their length, so that a chart that moves on
	// keeps its shape.
	step := roundUp(max((hi-lo+int64(points)-1)/int64(points), 1), lv.step)
	first := roundUp(lo, step)
	out := Series{UUID: uuid, From: from, To: to, Step: time.Duration(step) * time.Second}
	var spans []span
	var err error
	if lv.step == 1 {
		spans, err = r.seconds(ctx, uuid, first, hi, step)
	} else {
		spans, err = r.rows(ctx, lv, uuid, first, hi, step)
	}
	if err != nil {
		return Series{}, err
	}
	out.Points = pointsOf(spans)
	// Rows from before a restart may be one more, because their bins are coarser.
	out.Points = out.Points[max(len(out.Points)-points, 0):]
	return out, nil
}

// floor is the multiple of a number at or below n, also before 1970.
func floor(n, of int64) int64 {
	if n < 0 {
		n -= of - 1
	}
	return n / of * of
}

func roundUp(n, of int64) int64 { return floor(n+of-1, of) }

// seconds returns what memory holds, and before the first of that, after a
// restart, what was written every ten seconds.
func (r *Recorder) seconds(ctx context.Context, uuid string, from, to, step int64) ([]span, error) {
	var fine []span
	r.mu.Lock()
	if ring := r.recent[uuid]; ring != nil {
		fine = ring.since(from, to)
	}
	r.mu.Unlock()
	begin := to
	if len(fine) > 0 {
		begin = floor(fine[0].start, step)
	}
	before, err := r.rows(ctx, tens, uuid, from, begin, roundUp(step, tens.step))
	if err != nil {
		return nil, err
	}
	if n := len(before); n > 0 {
		before[n-1].length = min(before[n-1].length, begin-before[n-1].start)
	}
	return append(before, binned(fine, step)...), nil
}

// binned sums seconds up to bins of step seconds.
func binned(seconds []span, step int64) []span {
	if step == 1 {
		return seconds
	}
	var out []span
	for _, s := range seconds {
		start := floor(s.start, step)
		if n := len(out); n > 0 && out[n-1].start == start {
			out[n-1].add(s.reading)
			continue
		}
		s.start, s.length = start, step
		out = append(out, s)
	}
	return out
}

const sums = `sum(use_sum), sum(use_n), max(use_max), max(memory_max), sum(power_sum), sum(power_n), max(power_max),
	max(temperature_max), sum(clock_sum), sum(clock_n)`

// rowsQuery reads a GPU's rows of a level in bins.
func rowsQuery(lv level) string {
	return `SELECT slot / ?1 * ?1, ` + sums + ` FROM ` + lv.table + `
		WHERE gpu = (SELECT id FROM gpus WHERE uuid = ?2) AND slot >= ?3 AND slot < ?4 GROUP BY 1 ORDER BY 1`
}

func (r *Recorder) rows(ctx context.Context, lv level, uuid string, from, to, step int64) ([]span, error) {
	db := r.cfg.Store.Metrics()
	rows, err := db.QueryContext(ctx, rowsQuery(lv), step, uuid, from, to)
	if err != nil {
		return nil, r.readFailed(db, err)
	}
	defer rows.Close()
	var out []span
	for rows.Next() {
		s := span{length: step, late: true}
		var useMax, memoryMax, powerMax, temperatureMax sql.NullFloat64
		if err := rows.Scan(&s.start, &s.use.sum, &s.use.n, &useMax, &memoryMax, &s.power.sum, &s.power.n, &powerMax,
			&temperatureMax, &s.clock.sum, &s.clock.n); err != nil {
			return nil, r.readFailed(db, err)
		}
		s.useMax, s.memoryMax = peak{useMax.Float64, useMax.Valid}, peak{memoryMax.Float64, memoryMax.Valid}
		s.powerMax, s.temperature = peak{powerMax.Float64, powerMax.Valid}, peak{temperatureMax.Float64, temperatureMax.Valid}
		out = append(out, s)
	}
	if err := rows.Err(); err != nil {
		return nil, r.readFailed(db, err)
	}
	return out, nil
}

// pointsOf turns spans into points, with an empty one for each gap.
func pointsOf(spans []span) []Point {
	points := make([]Point, 0, len(spans))
	for i, s := range spans {
		if i > 0 {
			if end := spans[i-1].start + spans[i-1].length; s.late && s.start > end {
				points = append(points, Point{Time: time.Unix(end, 0).UTC()})
			}
		}
		points = append(points, Point{
			Time: time.Unix(s.start, 0).UTC(),
			Use:  s.use.value(1), UseMax: s.useMax.in(1), Memory: s.memoryMax.in(1),
			Power: s.power.value(1000), PowerMax: s.powerMax.in(1000),
			Temperature: s.temperature.in(1), SMClock: s.clock.value(1),
		})
	}
	return points
}

// value is the mean in a unit of so many of the kept ones.
func (m mean) value(unit float64) *float64 {
	if m.n == 0 {
		return nil
	}
	v := m.sum / float64(m.n) / unit
	return &v
}

func (p peak) in(unit float64) *float64 {
	if !p.known {
		return nil
	}
	v := p.value / unit
	return &v
}

// writeSeries writes readings and events to metrics.db, in one transaction.
func (r *Recorder) writeSeries(ctx context.Context, db *sql.DB, b batch) error {
	_, running := r.cfg.Clock()
	prune := !r.pruned || running-r.prunedAt >= pruneEvery
	if len(b.readings.tens)+len(b.readings.fives)+len(b.events) == 0 && !prune {
		return nil
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("write the history: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	ids, err := r.numberGPUs(ctx, tx, b.readings)
	if err == nil {
		err = writeReadings(ctx, tx, tens, ids, b.readings.tens)
	}
	if err == nil {
		err = writeReadings(ctx, tx, fives, ids, b.readings.fives)
	}
	if err == nil {
		err = b.events.write(ctx, tx)
	}
	if err == nil && prune {
		wall, _ := r.cfg.Clock()
		err = pruneAll(ctx, tx, wall)
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return fmt.Errorf("write the history: %w", err)
	}
	for uuid, id := range ids {
		r.gpuIDs[uuid] = id
	}
	if prune {
		r.pruned, r.prunedAt = true, running
	}
	return nil
}

// numberGPUs returns the rows of all GPUs in a batch, new ones among them.
func (r *Recorder) numberGPUs(ctx context.Context, tx *sql.Tx, b readings) (map[string]int64, error) {
	ids := map[string]int64{}
	for _, m := range []map[slot]*reading{b.tens, b.fives} {
		for at := range m {
			if _, done := ids[at.uuid]; done {
				continue
			}
			id, known := r.gpuIDs[at.uuid]
			if !known {
				const query = `INSERT INTO gpus (uuid) VALUES (?) ON CONFLICT (uuid) DO UPDATE SET uuid = excluded.uuid
					RETURNING id`
				if err := tx.QueryRowContext(ctx, query, at.uuid).Scan(&id); err != nil {
					return nil, err
				}
			}
			ids[at.uuid] = id
		}
	}
	return ids, nil
}

// writeReadings adds slots to what their rows hold already.
func writeReadings(ctx context.Context, tx *sql.Tx, lv level, ids map[string]int64, slots map[slot]*reading) error {
	insert, err := tx.PrepareContext(ctx, `INSERT INTO `+lv.table+` (gpu, slot, use_sum, use_n, use_max, memory_max,
			power_sum, power_n, power_max, temperature_max, clock_sum, clock_n) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET
			use_sum = use_sum + excluded.use_sum, use_n = use_n + excluded.use_n,
			power_sum = power_sum + excluded.power_sum, power_n = power_n + excluded.power_n,
			clock_sum = clock_sum + excluded.clock_sum, clock_n = clock_n + excluded.clock_n,
			use_max = `+larger("use_max")+`, memory_max = `+larger("memory_max")+`,
			power_max = `+larger("power_max")+`, temperature_max = `+larger("temperature_max"))
	if err != nil {
		return err
	}
	defer insert.Close()
	for _, at := range inOrder(slots) {
		v := slots[at]
		if _, err := insert.ExecContext(ctx, ids[at.uuid], at.start, v.use.sum, v.use.n, v.useMax.in(1), v.memoryMax.in(1),
			v.power.sum, v.power.n, v.powerMax.in(1), v.temperature.in(1), v.clock.sum, v.clock.n); err != nil {
			return err
		}
	}
	return nil
}

// larger is SQL for the larger of the kept and the new value; either may be
// NULL.
func larger(column string) string {
	return fmt.Sprintf("max(coalesce(%[1]s, excluded.%[1]s), coalesce(excluded.%[1]s, %[1]s))", column)
}

// inOrder sorts slots, because rows that are written in order fill their pages.
func inOrder(slots map[slot]*reading) []slot {
	keys := make([]slot, 0, len(slots))
	for at := range slots {
		keys = append(keys, at)
	}
	slices.SortFunc(keys, func(a, b slot) int {
		return cmp.Or(cmp.Compare(a.uuid, b.uuid), cmp.Compare(a.start, b.start))
	})
	return keys
}

// pruneEvery is how often old rows are deleted.
const pruneEvery = 10 * time.Minute

// pruneQuery deletes a level's rows before a time. The list of GPUs lets
// SQLite go to each one's oldest rows, rather than look at all.
func pruneQuery(lv level) string {
	return `DELETE FROM ` + lv.table + ` WHERE gpu IN (SELECT id FROM gpus) AND slot < ?`
}

func pruneAll(ctx context.Context, tx *sql.Tx, now time.Time) error {
	for _, lv := range []level{tens, fives} {
		if _, err := tx.ExecContext(ctx, pruneQuery(lv), now.Add(-lv.keep).Unix()); err != nil {
			return err
		}
	}
	return pruneEvents(ctx, tx, now)
}
