package users

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/alexedwards/argon2id"
)

func newService(db *sql.DB, params argon2id.Params, now func() time.Time) *Service {
	return &Service{db: db, now: now, hasher: newHasher(params), limits: newSignInLimits(), cache: newSessionCache()}
}

// Authenticate checks a handle and password from the given remote address. It takes the same time
// whether or not the account exists.
//
// Tries are limited per account and per address, with a growing wait: the account's 20th wrong try in a
// row locks it for 15 minutes, and until then the right password is refused too. Such a refusal is a
// *RateError; otherwise the error is ErrBadCredentials, or once the password was right ErrSuspended, or ErrPending for
// somebody who asked for an account and waits.
func (s *Service) Authenticate(ctx context.Context, handle, password, remote string) (User, error) {
	handle = clip(fold(handle), maxHandle+1)
	wait, locked := s.limits.take(handle, remote, s.now())
	if locked {
		s.note(ctx, Entry{Actor: "system", Action: "sign-in.locked", Target: handle, Remote: remote})
	}
	if wait > 0 {
		return User{}, &RateError{RetryAfter: wait}
	}
	row, ok, err := s.checkPassword(ctx, handle, password)
	if err != nil {
		s.limits.abandon(handle, remote)
		return User{}, err
	}
	if !ok {
		return User{}, sentence(ErrBadCredentials, "Name or password is wrong. Check both; if you forgot the password, ask an admin of the lab for a new password link.")
	}
	s.limits.succeed(handle, remote)
	if row.ID == 0 {
		return User{}, sentence(ErrPending, "An admin of the lab has not decided about your account yet. Try again later, or ask them.")
	}
	if row.Suspended {
		return User{}, sentence(ErrSuspended, "This account is suspended. Ask an admin of the lab.")
	}
	s.note(ctx, Entry{Actor: row.Handle, Action: "sign-in", Target: row.Handle, Remote: remote})
	return row.User, nil
}

// checkPassword does the same work for an account without password and for no account at all.
func (s *Service) checkPassword(ctx context.Context, handle, password string) (userRow, bool, error) {
	row, err := s.oneRow(ctx, s.db, "handle = ?", handle)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return userRow{}, false, err
	}
	if errors.Is(err, ErrNotFound) {
		if row.passwordHash, err = s.pendingPassword(ctx, handle); err != nil {
			return userRow{}, false, err
		}
	}
	encoded := row.passwordHash
	if encoded == "" {
		encoded = s.hasher.nobody
	}
	if utf8.RuneCountInString(password) > maxPassword {
		password = "" // no account has such a one; do not hash megabytes
	}
	match, outdated, err := s.hasher.verify(ctx, password, encoded)
	if err != nil {
		return userRow{}, false, err
	}
	ok := match && row.passwordHash != ""
	if ok && outdated && row.ID != 0 {
		s.rehash(ctx, row, password)
	}
	return row, ok, nil
}

// rehash brings an old hash to today's parameters. It is repeated at the next sign-in should it fail.
func (s *Service) rehash(ctx context.Context, row userRow, password string) {
	encoded, err := s.hasher.hash(ctx, password)
	if err != nil {
		return
	}
	_, _ = s.db.ExecContext(ctx, "UPDATE users SET password_hash = ? WHERE id = ? AND password_hash = ?",
		encoded, row.ID, row.passwordHash)
}

// SetPassword sets a new password and ends all sessions of the account; the caller starts a new one
// where the person did it themself.
func (s *Service) SetPassword(ctx context.Context, id int64, password string) error {
	u, err := s.ByID(ctx, id)
	if err != nil {
		return err
	}
	if err := CheckPassword(password, u.Handle); err != nil {
		return err
	}
	encoded, err := s.hasher.hash(ctx, password)
	if err != nil {
		return err
	}
	err = s.inTx(ctx, "set a password", func(tx *sql.Tx) error { return setPassword(ctx, tx, id, encoded) })
	if err != nil {
		return err
	}
	s.limits.handles.clear(u.Handle)
	s.sessionsEnded(id, "")
	return nil
}

// setPassword ends the sessions, and every other way in that was waiting, together with the old password.
func setPassword(ctx context.Context, tx *sql.Tx, id int64, encoded string) error {
	res, err := tx.ExecContext(ctx, "UPDATE users SET password_hash = ? WHERE id = ? AND removed_at IS NULL", encoded, id)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil {
		return err
	} else if n == 0 {
		return sentence(ErrNotFound, "There is no such user. The list of users shows who there is.")
	}
	return endAccess(ctx, tx, id)
}

// endAccess ends all sessions and unused links of an account; call sessionsEnded after the commit.
func endAccess(ctx context.Context, tx *sql.Tx, id int64) error {
	if _, err := tx.ExecContext(ctx, "DELETE FROM sessions WHERE user_id = ?", id); err != nil {
		return fmt.Errorf("end sessions: %w", err)
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM links WHERE user_id = ? AND used_at IS NULL", id); err != nil {
		return fmt.Errorf("withdraw links: %w", err)
	}
	return nil
}
