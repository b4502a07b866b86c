package users

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/gpulab/gpulab/internal/store"
)

// RemovedKept is how long a removed account can come back. Then its personal data and home are deleted.
const RemovedKept = 30 * 24 * time.Hour

// Suspend keeps somebody out, signed-in browsers included, and leaves everything else in place.
func (s *Service) Suspend(ctx context.Context, id int64) error {
	return s.change(ctx, id, "suspend a user", func(tx *sql.Tx, u User) (bool, error) {
		if u.Suspended {
			return false, nil
		}
		if err := notLastAdmin(ctx, tx, u); err != nil {
			return false, err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE users SET suspended_at = ? WHERE id = ?", s.now().UnixMilli(),
			id); err != nil {
			return false, err
		}
		if err := forgetBrowsers(ctx, tx, id); err != nil {
			return false, err
		}
		return true, endAccess(ctx, tx, id)
	})
}

// Resume ends a suspension.
func (s *Service) Resume(ctx context.Context, id int64) error {
	return s.change(ctx, id, "resume a user", func(tx *sql.Tx, _ User) (bool, error) {
		_, err := tx.ExecContext(ctx, "UPDATE users SET suspended_at = NULL WHERE id = ?", id)
		return false, err
	})
}

// Remove takes an account out of use: it is in no list any more but that of Removed, and nobody signs in
// with it. For RemovedKept, Undelete brings it back; then Purge is due. Its id, handle and UID are never
// given to anybody else.
func (s *Service) Remove(ctx context.Context, id int64) error {
	return s.change(ctx, id, "remove a user", func(tx *sql.Tx, u User) (bool, error) {
		if err := notLastAdmin(ctx, tx, u); err != nil {
			return false, err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE users SET removed_at = ? WHERE id = ?", s.now().UnixMilli(),
			id); err != nil {
			return false, err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM api_tokens WHERE user_id = ?", id); err != nil {
			return false, err
		}
		if err := forgetBrowsers(ctx, tx, id); err != nil {
			return false, err
		}
		return true, endAccess(ctx, tx, id)
	})
}

// Removed lists the accounts that can still come back, those to be purged first at the head.
func (s *Service) Removed(ctx context.Context) ([]Person, error) {
	return s.people(ctx, "removed_at IS NOT NULL AND purged_at IS NULL ORDER BY removed_at, id")
}

// Undelete brings a removed account back as it was: handle, UID, home, password, groups, and suspended if
// it was. Its sessions, links and access tokens do not come back. ErrNotFound, ErrNotRemoved, ErrPurged.
func (s *Service) Undelete(ctx context.Context, id int64) error {
	return s.changeRemoved(ctx, id, "bring a user back", func(tx *sql.Tx, _ string) error {
		_, err := tx.ExecContext(ctx, "UPDATE users SET removed_at = NULL WHERE id = ?", id)
		return err
	})
}

// Purge erases the personal data of a removed account, due or not: name, e-mail address, password and
// groups. What stays keeps its id, handle and UID from being given to anybody else. The home folder is
// the caller's to delete, see HomesToDelete. ErrNotFound, ErrNotRemoved, ErrPurged.
func (s *Service) Purge(ctx context.Context, id int64) error {
	return s.changeRemoved(ctx, id, "delete a user for good", func(tx *sql.Tx, handle string) error {
		for _, table := range []string{
			"group_members", "sessions", "links", "api_tokens", "identities", "device_codes", "ssh_keys", "mails",
			"mail_choices", "mail_told",
		} {
			if _, err := tx.ExecContext(ctx, "DELETE FROM "+table+" WHERE user_id = ?", id); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, `UPDATE users
			SET purged_at = ?, purge_home = 1, name = '', email = '', password_hash = '',
			signed_in_at = NULL, search = ? WHERE id = ?`, s.now().UnixMilli(), searchable(handle, "", ""), id)
		return err
	})
}

// changeRemoved runs f on an account that is removed and not purged.
func (s *Service) changeRemoved(ctx context.Context, id int64, doing string,
	f func(tx *sql.Tx, handle string) error) error {
	err := s.inTx(ctx, doing, func(tx *sql.Tx) error {
		var handle string
		var removed, purged sql.NullInt64
		err := tx.QueryRowContext(ctx, "SELECT handle, removed_at, purged_at FROM users WHERE id = ?", id).Scan(&handle,
			&removed, &purged)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return errNoUser()
		case err != nil:
			return err
		case purged.Valid:
			return errPurged(handle, purged.Int64)
		case !removed.Valid:
			return sentence(ErrNotRemoved, "The account %s is not removed. The list of users shows it.", handle)
		}
		return f(tx, handle)
	})
	s.cache.drop()
	return err
}

func errPurged(handle string, at int64) error {
	return sentence(ErrPurged, "The account %s was deleted for good on %s and cannot come back. Add the person under "+
		"another name.",
		handle, time.UnixMilli(at).Format("2 January 2006"))
}

// HomesToDelete lists purged accounts whose home folder has not been deleted yet; only ID, Handle and UID
// are set.
func (s *Service) HomesToDelete(ctx context.Context) ([]User, error) {
	list, err := store.All(ctx, s.db, func(row store.Row) (u User, err error) {
		return u, row.Scan(&u.ID, &u.Handle, &u.UID)
	}, "SELECT id, handle, coalesce(kept_uid, uid) FROM users WHERE purge_home = 1 ORDER BY id")
	if err != nil {
		return nil, fmt.Errorf("list the homes to delete: %w", err)
	}
	return list, nil
}

// HomeDeleted notes that nothing of a purged account's home is left.
func (s *Service) HomeDeleted(ctx context.Context, id int64) error {
	if _, err := s.db.ExecContext(ctx, "UPDATE users SET purge_home = 0 WHERE id = ?", id); err != nil {
		return fmt.Errorf("note that a home is deleted: %w", err)
	}
	return nil
}
