package users

import (
	"context"
	"fmt"
)

// Fresh tells whether nobody has used this lab yet: there is no account, no link to make one with, and nothing in the
// audit log.
func (s *Service) Fresh(ctx context.Context) (fresh bool, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT NOT EXISTS (SELECT 1 FROM users) AND NOT EXISTS (SELECT 1 FROM links)
		AND NOT EXISTS (SELECT 1 FROM audit)`).Scan(&fresh)
	if err != nil {
		return false, fmt.Errorf("see whether the lab is new: %w", err)
	}
	return fresh, nil
}
