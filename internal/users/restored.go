package users

import (
	"context"
	"database/sql"

	"github.com/gpulab/gpulab/internal/audit"
)

// Restored brings the people of a backup up to date before their lab begins again: everybody is signed out, and no
// one-time link or code of then works, for nobody knows what became of it since. What ended since then, such as access
// tokens, is as it was. e is recorded.
func (s *Service) Restored(ctx context.Context, e audit.Entry) error {
	return s.inTx(ctx, "sign everybody out", func(tx *sql.Tx) error {
		for _, table := range []string{"sessions", "links", "device_codes"} {
			if _, err := tx.ExecContext(ctx, "DELETE FROM "+table); err != nil {
				return err
			}
		}
		return s.log.RecordIn(ctx, tx, e)
	})
}
