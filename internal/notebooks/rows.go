package notebooks

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// rows is the table launches. Every change of state is conditional on the state
// it was decided from, so that a stop that arrives in between is never undone.
type rows struct{ db *sql.DB }

const launchColumns = `id, user_id, handle, name, title, profile, gpus, state, reason, end_code,
	requested_at, started_at, ready_at, ended_at, node, pod, gpu_uuids, simulated, placement`

// insert adds a waiting launch under the first free name after stem, unless the
// user has limit active launches already.
func (t rows) insert(ctx context.Context, l Launch, stem string, limit int) (Launch, error) {
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return Launch{}, fmt.Errorf("record the launch: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	taken, err := activeNames(ctx, tx, l.UserID)
	if err != nil {
		return Launch{}, fmt.Errorf("record the launch: %w", err)
	}
	if len(taken) >= limit {
		return Launch{}, ErrTooMany
	}
	l.Name = freeName(stem, func(s string) bool { return taken[s] })
	l.State, l.URL = Waiting, launchURL(l.Handle, l.Name)
	res, err := tx.ExecContext(ctx, `INSERT INTO launches
		(user_id, handle, name, title, profile, gpus, state, reason, requested_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		l.UserID, l.Handle, l.Name, l.Title, l.Profile, l.GPUs, l.State, l.Reason, l.Requested.UnixMilli())
	if err == nil {
		l.ID, err = res.LastInsertId()
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return Launch{}, fmt.Errorf("record the launch: %w", err)
	}
	return l, nil
}

func activeNames(ctx context.Context, tx *sql.Tx, userID int64) (map[string]bool, error) {
	r, err := tx.QueryContext(ctx, `SELECT name FROM launches WHERE user_id = ? AND state <> 'ended'`, userID)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	names := map[string]bool{}
	for r.Next() {
		var name string
		if err := r.Scan(&name); err != nil {
			return nil, err
		}
		names[name] = true
	}
	return names, r.Err()
}

func (t rows) get(ctx context.Context, id int64) (Launch, error) {
	list, err := t.query(ctx, `WHERE id = ?`, id)
	if err != nil {
		return Launch{}, err
	}
	if len(list) == 0 {
		return Launch{}, ErrNotFound
	}
	return list[0], nil
}

// active is every launch that has not ended, oldest request first.
func (t rows) active(ctx context.Context) ([]Launch, error) {
	return t.query(ctx, `WHERE state <> 'ended' ORDER BY requested_at, id`)
}

// ofUser is the user's active launches, newest first, then the ended ones, at most limit in all.
func (t rows) ofUser(ctx context.Context, userID int64, limit int) ([]Launch, error) {
	return t.query(ctx, `WHERE user_id = ? ORDER BY state = 'ended', requested_at DESC, id DESC LIMIT ?`, userID, limit)
}

func (t rows) query(ctx context.Context, where string, args ...any) ([]Launch, error) {
	r, err := t.db.QueryContext(ctx, `SELECT `+launchColumns+` FROM launches `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read the launches: %w", err)
	}
	defer func() { _ = r.Close() }()
	var list []Launch
	for r.Next() {
		l, err := scanLaunch(r)
		if err != nil {
			return nil, fmt.Errorf("read the launches: %w", err)
		}
		list = append(list, l)
	}
	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("read the launches: %w", err)
	}
	return list, nil
}

func scanLaunch(r *sql.Rows) (Launch, error) {
	var (
		l                     Launch
		requested             int64
		started, ready, ended sql.NullInt64
		uuids, placement      string
	)
	err := r.Scan(&l.ID, &l.UserID, &l.Handle, &l.Name, &l.Title, &l.Profile, &l.GPUs, &l.State, &l.Reason, &l.EndCode,
		&requested, &started, &ready, &ended, &l.Node, &l.Pod, &uuids, &l.Simulated, &placement)
	if err != nil {
		return Launch{}, err
	}
	if err := json.Unmarshal([]byte(uuids), &l.GPUUUIDs); err != nil {
		return Launch{}, fmt.Errorf("launch %d: GPU list: %w", l.ID, err)
	}
	if err := json.Unmarshal([]byte(placement), &l.Placement); err != nil {
		return Launch{}, fmt.Errorf("launch %d: where it runs: %w", l.ID, err)
	}
	l.Requested, l.Started, l.Ready, l.Ended = time.UnixMilli(requested), unixMilli(started), unixMilli(ready), unixMilli(ended)
	l.URL = launchURL(l.Handle, l.Name)
	return l, nil
}

func unixMilli(v sql.NullInt64) time.Time {
	if !v.Valid || v.Int64 == 0 {
		return time.Time{}
	}
	return time.UnixMilli(v.Int64)
}

// errMoved: the row was no longer in the state the change was decided from.
var errMoved = errors.New("the launch moved on meanwhile")

// move writes the changeable fields of l if the row is still in state from.
func (t rows) move(ctx context.Context, from State, l Launch) error {
	uuids, err := json.Marshal(l.GPUUUIDs)
	if err != nil {
		return fmt.Errorf("launch %d: %w", l.ID, err)
	}
	if l.GPUUUIDs == nil {
		uuids = []byte("[]")
	}
	res, err := t.db.ExecContext(ctx, `UPDATE launches SET state = ?, reason = ?, end_code = ?,
		started_at = ?, ready_at = ?, ended_at = ?, node = ?, pod = ?, gpu_uuids = ?, simulated = ?
		WHERE id = ? AND state = ?`,
		l.State, l.Reason, l.EndCode, nullMilli(l.Started), nullMilli(l.Ready), nullMilli(l.Ended),
		l.Node, l.Pod, string(uuids), l.Simulated, l.ID, from)
	if err != nil {
		return fmt.Errorf("update launch %d: %w", l.ID, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("update launch %d: %w", l.ID, err)
	}
	if n == 0 {
		return errMoved
	}
	return nil
}

func nullMilli(t time.Time) sql.NullInt64 {
	return sql.NullInt64{Int64: t.UnixMilli(), Valid: !t.IsZero()}
}
