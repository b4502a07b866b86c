package storage

import (
	"context"
	"errors"
	"fmt"
)

// Restored makes, in a lab that comes back from a backup, the shared folders that are not there, empty; there tells
// which are. What was counted of homes for their quota is forgotten: their files are new ones.
func (s *Service) Restored(ctx context.Context, there func(id int64) bool) error {
	if _, err := s.cfg.DB.ExecContext(ctx, "DELETE FROM home_projects"); err != nil {
		return fmt.Errorf("forget how homes were counted: %w", err)
	}
	list, err := s.Folders(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for i := range list {
		if f := &list[i]; f.Kind != Host && !there(f.ID) {
			errs = append(errs, s.makeFolder(f.ID, f.Kind, f.GID))
		}
	}
	return errors.Join(errs...)
}

// Measured is how large all homes and shared folders were together when each was measured last, in bytes on the disk.
func (s *Service) Measured(ctx context.Context) (bytes int64, err error) {
	if err := s.cfg.DB.QueryRowContext(ctx, "SELECT coalesce(sum(bytes), 0) FROM sizes").Scan(&bytes); err != nil {
		return 0, fmt.Errorf("add up sizes: %w", err)
	}
	return bytes, nil
}
