package nodes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrNoGroup says that a machine was to be for a group that there is not.
var ErrNoGroup = errors.New("there is no such group")

// Limit says whom a machine is for: who has one of the roles, or is in one of the
// groups. Without any it is for nobody.
type Limit struct{ Roles, Groups []string }

// Lets tells whether somebody may use the machine.
func (l Limit) Lets(role string, groups []string) bool {
	return slices.Contains(l.Roles, role) || slices.ContainsFunc(l.Groups, func(g string) bool {
		return slices.Contains(groups, g)
	})
}

// Limits are the machines that are not for everybody, by name.
func (r *Registry) Limits(ctx context.Context) (map[string]Limit, error) {
	rows, err := r.db.QueryContext(ctx, `SELECT l.machine, l.roles, coalesce(group_concat(g.name, ' '), '')
		FROM machine_limits l LEFT JOIN machine_groups m ON m.machine = l.machine LEFT JOIN groups g ON g.id = m.group_id
		GROUP BY l.machine`)
	if err != nil {
		return nil, fmt.Errorf("whom machines are for: %w", err)
	}
	defer rows.Close()
	list := map[string]Limit{}
	for rows.Next() {
		var machine, roles, groups string
		if err := rows.Scan(&machine, &roles, &groups); err != nil {
			return nil, fmt.Errorf("whom machines are for: %w", err)
		}
		l := Limit{strings.Fields(roles), strings.Fields(groups)}
		slices.Sort(l.Groups)
		list[machine] = l
	}
	return list, rows.Err()
}

// Limit says whom a machine is for from now on; nil is everybody. ErrNoGroup says
// that there is no group of a name.
func (r *Registry) Limit(ctx context.Context, machine string, l *Limit) error {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(ctx, `DELETE FROM machine_limits WHERE machine = ?`, machine)
	if err == nil && l != nil {
		_, err = tx.ExecContext(ctx, `INSERT INTO machine_limits (machine, roles) VALUES (?, ?)`, machine,
			strings.Join(l.Roles, " "))
		for _, group := range l.Groups {
			if err != nil {
				break
			}
			result, problem := tx.ExecContext(ctx,
				`INSERT OR IGNORE INTO machine_groups (machine, group_id) SELECT ?, id FROM groups WHERE name = ?`, machine, group)
			if err = problem; err == nil {
				if n, problem := result.RowsAffected(); problem != nil || n == 0 {
					return errors.Join(problem, ErrNoGroup)
				}
			}
		}
	}
	if err != nil {
		return fmt.Errorf("say whom %s is for: %w", machine, err)
	}
	return tx.Commit()
}
