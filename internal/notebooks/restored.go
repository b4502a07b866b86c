package notebooks

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// EndRestored ends every launch of a lab that comes back from a backup, the waiting ones too: they run no more, and
// none is to start by itself days later.
func EndRestored(ctx context.Context, db *sql.DB, now time.Time) error {
	_, err := db.ExecContext(ctx,
		`UPDATE launches SET state = 'ended', end_code = ?, reason = ?, ended_at = max(?, coalesce(ready_at, 0),
			requested_at) WHERE state <> 'ended'`,
		EndInterrupted, "It was interrupted: the lab was restored from a backup.", now.UnixMilli())
	if err != nil {
		return fmt.Errorf("end the launches of the backup: %w", err)
	}
	return nil
}
