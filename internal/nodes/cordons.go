package nodes

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrNotCordoned says that a machine takes new work as it is.
var ErrNotCordoned = errors.New("this machine takes new work")

// Cordon says of a machine, which may be the head, that it takes no new work.
type Cordon struct {
	Machine string
	Since   time.Time
	By      string // a handle, or root
	Reason  string // for everybody to read, "" for none
	// EmptyAt is when notebooks end that are still there; zero where they may stay.
	EmptyAt time.Time
}

// Cordons lists the machines that take no new work, by name.
func (r *Registry) Cordons(ctx context.Context) (map[string]Cordon, error) {
	rows, err := r.db.QueryContext(ctx, `SELECT machine, since, by, reason, coalesce(empty_at, 0) FROM cordons`)
	if err != nil {
		return nil, fmt.Errorf("the machines that take no new work: %w", err)
	}
	defer rows.Close()
	list := map[string]Cordon{}
	for rows.Next() {
		var c Cordon
		var since, emptyAt int64
		if err := rows.Scan(&c.Machine, &since, &c.By, &c.Reason, &emptyAt); err != nil {
			return nil, fmt.Errorf("the machines that take no new work: %w", err)
		}
		c.Since = time.UnixMilli(since)
		if emptyAt != 0 {
			c.EmptyAt = time.UnixMilli(emptyAt)
		}
		list[c.Machine] = c
	}
	return list, rows.Err()
}

// Cordon makes a machine take no new work. One that does not already keeps its
// time, and when it is to be empty; what is said of it is replaced.
func (r *Registry) Cordon(ctx context.Context, machine, by, reason string) error {
	_, err := r.db.ExecContext(ctx, `INSERT INTO cordons (machine, since, by, reason) VALUES (?, ?, ?, ?)
		ON CONFLICT (machine) DO UPDATE SET by = excluded.by,
		reason = excluded.reason`, machine, r.now().UnixMilli(), by, reason)
	if err != nil {
		return fmt.Errorf("let %s take no new work: %w", machine, err)
	}
	return nil
}

// Drain makes a machine take no new work, and says when the notebooks end that
// are there then. An empty reason leaves one that is there.
func (r *Registry) Drain(ctx context.Context, machine, by, reason string, at time.Time) error {
	_, err := r.db.ExecContext(ctx, `INSERT INTO cordons (machine, since, by, reason, empty_at) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (machine) DO UPDATE SET by = excluded.by, empty_at = excluded.empty_at,
			reason = CASE WHEN excluded.reason = '' THEN reason ELSE excluded.reason END`,
		machine, r.now().UnixMilli(), by, reason, at.UnixMilli())
	if err != nil {
		return fmt.Errorf("empty %s: %w", machine, err)
	}
	return nil
}

// Keep lets the notebooks of a machine stay that was to be emptied; it still
// takes no new work. ErrNotCordoned says that it was not to be emptied.
func (r *Registry) Keep(ctx context.Context, machine string) error {
	return r.changed(ctx, `UPDATE cordons SET empty_at = NULL WHERE machine = ? AND empty_at IS NOT NULL`, machine)
}

// Uncordon lets a machine take work again. ErrNotCordoned says that it does.
func (r *Registry) Uncordon(ctx context.Context, machine string) error {
	return r.changed(ctx, `DELETE FROM cordons WHERE machine = ?`, machine)
}

func (r *Registry) changed(ctx context.Context, statement, machine string) error {
	result, err := r.db.ExecContext(ctx, statement, machine)
	if err != nil {
		return fmt.Errorf("let %s take work: %w", machine, err)
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, ErrNotCordoned)
	}
	return nil
}
