package idle

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/gpulab/gpulab/internal/store"
)

const columns = `launch_id, looked_at, began_at, gpu_at, cpu_at, kernel_at, terminal_at, network_at, opened_at,
	state, cause, reason, warned_at, ends_at, until, extensions, wanted_launch, wanted_by`

func scan(from store.Row) (r row, err error) {
	var looked, began, opened, warned, ends, until int64
	var seen [5]int64
	err = from.Scan(&r.launch, &looked, &began, &seen[0], &seen[1], &seen[2], &seen[3], &seen[4], &opened,
		&r.state, &r.cause, &r.reason, &warned, &ends, &until, &r.extensions, &r.wantedLaunch, &r.wantedBy)
	r.looked, r.began, r.opened, r.warned, r.ends, r.until = timeOf(looked), timeOf(began), timeOf(opened), timeOf(warned),
		timeOf(ends), timeOf(until)
	for i := range seen {
		r.seen[i] = timeOf(seen[i])
	}
	return r, err
}

func timeOf(milli int64) time.Time {
	if milli == 0 {
		return time.Time{}
	}
	return time.UnixMilli(milli)
}

func milli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// load reads every row.
func load(ctx context.Context, tx store.Asker) (map[int64]row, error) {
	list, err := store.All(ctx, tx, scan, "SELECT "+columns+" FROM idle")
	if err != nil {
		return nil, fmt.Errorf("read what is idle: %w", err)
	}
	rows := make(map[int64]row, len(list))
	for _, r := range list {
		rows[r.launch] = r
	}
	return rows, nil
}

// save writes a row whole; the caller's transaction has read it.
func save(ctx context.Context, tx *sql.Tx, r row) error {
	_, err := tx.ExecContext(ctx, `INSERT OR REPLACE INTO idle (`+columns+
		`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.launch, milli(r.looked), milli(r.began), milli(r.seen[0]), milli(r.seen[1]), milli(r.seen[2]), milli(r.seen[3]),
		milli(r.seen[4]), milli(r.opened),
		r.state, r.cause, r.reason, milli(r.warned), milli(r.ends), milli(r.until), r.extensions, r.wantedLaunch, r.wantedBy)
	if err != nil {
		return fmt.Errorf("note what is idle: %w", err)
	}
	return nil
}

// decide notes that a notebook is stopped, and enters it into the ledger. It reports false where the notebook has ended
// by itself, or that was decided before.
func decide(ctx context.Context, tx *sql.Tx, r *row, h Holding, cause Cause, reason, by string,
	now time.Time) (bool, error) {
	res, err := tx.ExecContext(ctx, `INSERT INTO reclaims (at, launch_id, user_id, handle, profile, node, gpus, cause,
		idle_ms, ran_ms, wanted_launch, wanted_by, by)
		SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM launches WHERE id = ? AND state = 'running')
		ON CONFLICT DO NOTHING`,
		milli(now), h.Launch, h.UserID, h.Handle, h.Profile, h.Node, h.GPUs, cause, h.Idle.Milliseconds(),
		now.Sub(h.Since).Milliseconds(),
		h.WantedLaunch, h.WantedBy, by, h.Launch)
	if err != nil {
		return false, fmt.Errorf("enter a notebook that is taken back: %w", err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return false, err
	}
	r.state, r.cause, r.reason = Stopped, cause, reason
	return true, save(ctx, tx, *r)
}

// Reclaims lists what was taken back since then, the newest first: everybody's, or one person's (userID not 0).
func (s *Service) Reclaims(ctx context.Context, userID int64, from time.Time, limit int) ([]Reclaim, error) {
	return s.reclaims(ctx, "(? = 0 OR user_id = ?) AND at >= ? ORDER BY at DESC, id DESC LIMIT ?", userID, userID,
		milli(from), limit)
}

func (s *Service) reclaims(ctx context.Context, where string, args ...any) ([]Reclaim, error) {
	list, err := store.All(ctx, s.cfg.DB, func(from store.Row) (r Reclaim, err error) {
		var at, idle, ran int64
		err = from.Scan(&r.ID, &at, &r.Launch, &r.User, &r.Profile, &r.Node, &r.GPUs, &r.Cause, &idle, &ran, &r.ForLaunch,
			&r.For, &r.By)
		r.At, r.Idle, r.Ran = time.UnixMilli(at).UTC(), time.Duration(idle)*time.Millisecond,
			time.Duration(ran)*time.Millisecond
		return r, err
	}, `SELECT id, at, launch_id, handle, profile, node, gpus, cause, idle_ms, ran_ms, wanted_launch, wanted_by, by
		FROM reclaims WHERE `+where,
		args...)
	if err != nil {
		return nil, fmt.Errorf("read what was taken back: %w", err)
	}
	return list, nil
}
