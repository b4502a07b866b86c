package history

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/store"
)

// Filter chooses a part of the ledger. The zero value is all of it.
type Filter struct {
	// From and To bound the time; zero is open. The ledger knows whole hours:
	// the one that From lies in counts as a whole.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// User is a person's handle.
	User string `json:"user,omitempty"`
	// GPU is a UUID, MACHINE/NUMBER, or the number alone where one machine has it.
	GPU string `json:"gpu,omitempty"`
}

// By is what one row of an answer stands for.
type By string

// The groupings.
const (
	ByUser  By = "user" // somebody: a person, a user of the machine, a pod, or nobody who can be told
	ByGPU   By = "gpu"  // a card
	ByHour  By = "hour"
	ByTotal By = "total" // all in one
)

// Groupings lists the values of By that make a table.
func Groupings() []string { return []string{string(ByUser), string(ByGPU), string(ByHour)} }

// Usage is one row of an answer: what somebody had of the GPUs, or what a card,
// or all of them, did. Real and simulated cards never share a row. Times are in
// seconds.
//
// In rows of people each counts in full who held a card, also beside others on
// a shared one; in rows of cards, hours or totals of no one person, Held is the
// time in which anybody held the card, and Busy that in which it worked.
type Usage struct {
	// Kind and Name say who, with ByUser or a filter for a user.
	Kind Kind   `json:"kind,omitempty"`
	Name string `json:"name,omitempty"`
	// UUID, Node, Number and GPU (its product's name) say which card, with ByGPU.
	UUID   string `json:"uuid,omitempty"`
	Node   string `json:"node,omitempty"`
	Number *int   `json:"number,omitempty"`
	GPU    string `json:"gpu,omitempty"`
	// Hour is its beginning, with ByHour.
	Hour      time.Time `json:"hour,omitzero"`
	Simulated bool      `json:"simulated"`

	// Watched is how long cards were looked at; 0 in rows of people.
	Watched float64 `json:"watchedSeconds,omitempty"`
	// Held is Busy + Idle + Unknown. Unknown is the time in which the driver did
	// not say whether a held card was used, or was not heard.
	Held    float64 `json:"heldSeconds"`
	Busy    float64 `json:"busySeconds"`
	Idle    float64 `json:"idleSeconds"`
	Unknown float64 `json:"unknownSeconds"`
	// Compute is seconds of a whole card's time, nil if never known.
	Compute *float64 `json:"computeSeconds,omitempty"`
	// Memory is the mean in bytes over the time in which it was known, nil if
	// it never was. For people it is what they had while they held a card.
	Memory *float64 `json:"meanMemoryBytes,omitempty"`
	// Energy is in joules, nil if never known.
	Energy *float64 `json:"energyJoules,omitempty"`
}

// IdleShare is the part of the held time, as far as it is known, in which
// nothing happened: 0 to 1, nil if none is known.
func (u Usage) IdleShare() *float64 {
	known := u.Busy + u.Idle
	if known <= 0 {
		return nil
	}
	v := u.Idle / known
	return &v
}

// keys are the columns of a grouping, what makes its groups beside simulated,
// and how they are sorted.
var keys = map[By]struct{ columns, group, order string }{
	ByUser:  {"kind, part.name, '', '', 0, '', 0", "kind, part.name, ", "sum(held) DESC, kind, part.name"},
	ByGPU:   {"'', '', uuid, node, number, usage_gpus.name, 0", "uuid, node, ", "node, number, uuid"},
	ByHour:  {"'', '', '', '', 0, '', hour", "hour, ", "hour"},
	ByTotal: {"'', '', '', '', 0, '', 0", "", "simulated"},
}

// usageQuery builds the query for a filter. cards are the numbers of the cards
// it asks for, nil for all.
func usageQuery(f Filter, by By, cards []int64) (query string, args []any, err error) {
	key, ok := keys[by]
	if !ok {
		return "", nil, wrong("use can be shown by %s, not by %q", strings.Join(Groupings(), ", "), by)
	}
	if !f.From.IsZero() && !f.To.IsZero() && !f.From.Before(f.To) {
		return "", nil, wrong("the window of time is empty: its end must lie after its beginning")
	}
	var conditions []string
	var values []any
	and := func(condition string, value ...any) {
		conditions, values = append(conditions, condition), append(values, value...)
	}
	switch {
	case f.User != "":
		and("kind = ? AND name = ?", KindUser, f.User)
	case by == ByUser:
		and("kind <> ?", kindCard)
	default:
		and("kind = ? AND name = ''", kindCard)
	}
	if cards != nil {
		ids := make([]any, len(cards))
		for i, id := range cards {
			ids[i] = id
		}
		and("gpu IN (?"+strings.Repeat(", ?", len(cards)-1)+")", ids...)
	}
	parts := f.stretches()
	if by == ByHour {
		parts = []stretch{{anHour, parts[0].from, parts[len(parts)-1].to}}
	}
	var rows []string
	for _, part := range parts {
		query, more := part.rows(strings.Join(conditions, " AND "), values)
		rows, args = append(rows, query), append(args, more...)
	}
	return `SELECT ` + key.columns + `, simulated, sum(watched), sum(held), sum(busy), sum(unknown), sum(compute),
		sum(compute_for),
			sum(memory), sum(memory_for), sum(energy), sum(energy_for)
		FROM (` + strings.Join(rows, " UNION ALL ") + `) AS part JOIN usage_gpus ON usage_gpus.id = part.gpu
		GROUP BY ` + key.group + `simulated ORDER BY ` + key.order, args, nil
}

// stretches are what sums answer the filter's window, which is of whole hours.
func (f Filter) stretches() []stretch {
	from, to := int64(math.MinInt64), int64(never)
	if !f.From.IsZero() {
		from = floor(f.From.Unix(), anHour)
	}
	if !f.To.IsZero() {
		to = roundUp(f.To.Unix(), anHour)
	}
	return stretches(from, to)
}

// Usage reads the ledger. People and cards without any use in the window have
// no row. It knows all but the last seconds, which Flush has not written yet.
func (r *Recorder) Usage(ctx context.Context, f Filter, by By) ([]Usage, error) {
	var cards []int64
	if f.GPU != "" {
		var err error
		if cards, err = r.findCards(ctx, f.GPU); err != nil {
			return nil, err
		}
	}
	query, args, err := usageQuery(f, by, cards)
	if err != nil {
		return nil, err
	}
	rows, err := r.cfg.Store.DB().QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the ledger of use: %w", err)
	}
	defer rows.Close()
	out := []Usage{}
	for rows.Next() {
		u, err := scanUsage(rows, f, by)
		if err != nil {
			return nil, fmt.Errorf("read the ledger of use: %w", err)
		}
		out = append(out, u)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the ledger of use: %w", err)
	}
	return out, nil
}

func scanUsage(rows *sql.Rows, f Filter, by By) (Usage, error) {
	var u Usage
	var a amounts
	var number int
	var hour int64
	err := rows.Scan(&u.Kind, &u.Name, &u.UUID, &u.Node, &number, &u.GPU, &hour, &u.Simulated, &a.watched, &a.held,
		&a.busy, &a.unknown,
		&a.compute, &a.computeFor, &a.memory, &a.memoryFor, &a.energy, &a.energyFor)
	if err != nil {
		return Usage{}, err
	}
	switch by {
	case ByGPU:
		u.Number = &number
	case ByHour:
		u.Hour = time.Unix(hour, 0).UTC()
	case ByUser, ByTotal:
	}
	if f.User != "" {
		u.Kind, u.Name = KindUser, f.User
	}
	u.Watched, u.Held, u.Busy, u.Unknown = a.watched, a.held, a.busy, a.unknown
	u.Idle = max(a.held-a.busy-a.unknown, 0)
	if a.computeFor > 0 {
		u.Compute = &a.compute
	}
	if a.memoryFor > 0 {
		mean := a.memory / a.memoryFor
		u.Memory = &mean
	}
	if a.energyFor > 0 {
		u.Energy = &a.energy
	}
	return u, nil
}

// Totals is the whole lab's use in a window of time, real and simulated cards
// apart.
func (r *Recorder) Totals(ctx context.Context, f Filter) (actual, simulated Usage, err error) {
	rows, err := r.Usage(ctx, f, ByTotal)
	simulated.Simulated = true
	for _, u := range rows {
		if u.Simulated {
			simulated = u
		} else {
			actual = u
		}
	}
	return actual, simulated, err
}

// findCards finds the ledger's numbers of a GPU: by its UUID, or by the number
// it last had on its machine, which other machines may have too.
func (r *Recorder) findCards(ctx context.Context, name string) ([]int64, error) {
	node, number, ofNode := strings.Cut(name, "/")
	if !ofNode {
		node, number = "", name
	}
	query, args := `SELECT id, node, number FROM usage_gpus WHERE uuid = ?`, []any{name}
	n, err := strconv.Atoi(number)
	byNumber := err == nil
	if byNumber {
		query, args = `SELECT id, node, number FROM usage_gpus WHERE number = ? AND ? IN ('', node) ORDER BY node`,
			[]any{n, node}
	}
	type card struct {
		id   int64
		name string
	}
	cards, err := store.All(ctx, r.cfg.Store.DB(), func(row store.Row) (c card, err error) {
		var n int64
		err = row.Scan(&c.id, &c.name, &n)
		c.name += "/" + strconv.FormatInt(n, 10)
		return c, err
	}, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the ledger of use: %w", err)
	}
	var ids []int64
	var names []string
	for _, c := range cards {
		ids, names = append(ids, c.id), append(names, c.name)
	}
	switch names = slices.Compact(names); {
	case len(ids) == 0:
		return nil, wrong("the ledger knows no GPU %q; `gpulab gpus` lists numbers, `gpulab gpus --json` UUIDs", name)
	case byNumber && len(names) > 1:
		return nil, wrong("GPU %s is on several machines; name one of %s", name, strings.Join(names, ", "))
	}
	return ids, nil
}

// cardRow is a card as gpulab.db knows it.
type cardRow struct {
	id    int64
	about about
}

// writeUsage writes the ledger to gpulab.db, in one transaction.
func (r *Recorder) writeUsage(ctx context.Context, l ledger) error {
	if len(l) == 0 {
		return nil
	}
	tx, err := r.cfg.Store.DB().BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("write the ledger of use: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	cards, err := r.numberCards(ctx, tx, l)
	if err == nil {
		err = l.write(ctx, tx, cards)
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return fmt.Errorf("write the ledger of use: %w", err)
	}
	for c, row := range cards {
		r.cardIDs[c] = row
	}
	return nil
}

// numberCards returns the rows of all cards in l, and writes those that are new
// or have changed.
func (r *Recorder) numberCards(ctx context.Context, tx *sql.Tx, l ledger) (map[card]cardRow, error) {
	cards := map[card]cardRow{}
	for e, v := range l {
		if _, done := cards[e.card]; done {
			continue
		}
		row, known := r.cardIDs[e.card]
		if !known || row.about != v.about {
			row.about = v.about
			const query = `INSERT INTO usage_gpus (uuid, node, simulated, number, name) VALUES (?, ?, ?, ?, ?)
				ON CONFLICT (uuid, node, simulated) DO UPDATE SET number = excluded.number, name = excluded.name RETURNING id`
			if err := tx.QueryRowContext(ctx, query, e.card.uuid, e.card.node, e.card.simulated, v.about.number,
				v.about.name).Scan(&row.id); err != nil {
				return nil, err
			}
		}
		cards[e.card] = row
	}
	return cards, nil
}

// addSums is what inserting a row does that is there already.
const addSums = ` ON CONFLICT DO UPDATE SET watched = watched + excluded.watched,
	held = held + excluded.held, busy = busy + excluded.busy, unknown = unknown + excluded.unknown,
	compute = compute + excluded.compute, compute_for = compute_for + excluded.compute_for,
	memory = memory + excluded.memory, memory_for = memory_for + excluded.memory_for,
	energy = energy + excluded.energy, energy_for = energy_for + excluded.energy_for`

func (l ledger) write(ctx context.Context, tx *sql.Tx, cards map[card]cardRow) error {
	hours, err := tx.PrepareContext(ctx, `INSERT INTO usage (hour, gpu, kind, name, `+sumColumns+
		`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`+addSums)
	if err != nil {
		return err
	}
	defer hours.Close()
	longer, err := tx.PrepareContext(ctx, `INSERT INTO usage_sums (span, start, gpu, kind, name, `+sumColumns+
		`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`+addSums)
	if err != nil {
		return err
	}
	defer longer.Close()
	for e, v := range l {
		a := v.amounts
		row := []any{
			e.hour, cards[e.card].id, e.who.kind, e.who.name, a.watched, a.held, a.busy, a.unknown,
			a.compute, a.computeFor, a.memory, a.memoryFor, a.energy, a.energyFor,
		}
		if _, err := hours.ExecContext(ctx, row...); err != nil {
			return err
		}
		for _, span := range []int64{aDay, aMonth} {
			row[0] = floor(e.hour, span)
			if _, err := longer.ExecContext(ctx, append([]any{span}, row...)...); err != nil {
				return err
			}
		}
	}
	return nil
}
