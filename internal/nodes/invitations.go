package nodes

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// ErrNoInvitation says that a code is not open: it was used, withdrawn or has
// expired.
var ErrNoInvitation = errors.New("this invitation is not open any more: it was used, withdrawn or has expired")

// Invitation is a code that can still be used. Its secret is known only to whom
// it was shown.
type Invitation struct {
	ID            string // hexadecimal
	Made, Expires time.Time
}

// Invitations lists the codes that can still be used, the newest first.
func (r *Registry) Invitations(ctx context.Context) ([]Invitation, error) {
	rows, err := r.db.QueryContext(ctx,
		`SELECT id, created_at, expires_at FROM join_codes WHERE used_at IS NULL AND expires_at > ? ORDER BY created_at DESC`,
		r.now().UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("the open invitations: %w", err)
	}
	defer rows.Close()
	var list []Invitation
	for rows.Next() {
		var id []byte
		var made, expires int64
		if err := rows.Scan(&id, &made, &expires); err != nil {
			return nil, fmt.Errorf("the open invitations: %w", err)
		}
		list = append(list, Invitation{hex.EncodeToString(id), time.UnixMilli(made), time.UnixMilli(expires)})
	}
	return list, rows.Err()
}

// Withdraw makes a code worthless that nobody has used; ErrNoInvitation says
// that there is none.
func (r *Registry) Withdraw(ctx context.Context, id string) error {
	code, err := hex.DecodeString(id)
	if err != nil {
		return ErrNoInvitation
	}
	result, err := r.db.ExecContext(ctx, `DELETE FROM join_codes WHERE id = ? AND used_at IS NULL AND expires_at > ?`,
		code, r.now().UnixMilli())
	if err != nil {
		return fmt.Errorf("withdraw an invitation: %w", err)
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, ErrNoInvitation)
	}
	return nil
}
