package users

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
)

// Purpose is what a one-time link is for.
type Purpose string

// The purposes.
const (
	PurposeAdminSetup Purpose = "admin-setup" // create the lab's first admin
	PurposePassword   Purpose = "password"    // choose a password: an invitation, or a forgotten one
)

// LinkTTL is how long a link works unless said otherwise.
const LinkTTL = time.Hour

// PasswordLinkTTL is how long a link works with which an admin lets somebody choose a password.
const PasswordLinkTTL = 72 * time.Hour

// linksKept is how long a used or expired link can still be told from one that never existed.
const linksKept = 30 * 24 * time.Hour

// Link is a one-time way in. CreateLink reads Purpose and UserID; LinkInfo fills in the rest.
type Link struct {
	Purpose Purpose
	UserID  *int64 // whose password; nil for PurposeAdminSetup
	Handle  string // of that user; empty for PurposeAdminSetup
	Name    string // shown name of that user
	Role    Role   // of that user; RoleAdmin for PurposeAdminSetup
	// HasPassword tells whether that user has one that this link replaces.
	HasPassword bool
	Expires     time.Time
}

// CreateLink makes a link that works once within ttl (LinkTTL if 0) and returns the token to put into its
// address. It replaces an unused link for the same person: at most one is in circulation. A
// lab that has an admin with a password gets no admin-setup link any more: ErrAdminExists.
func (s *Service) CreateLink(ctx context.Context, link Link, ttl time.Duration) (token string, err error) {
	if ttl <= 0 {
		ttl = LinkTTL
	}
	err = s.inTx(ctx, "create a link", func(tx *sql.Tx) error {
		if err := s.mayLink(ctx, tx, link); err != nil {
			return err
		}
		// Of links for a lab's first administrator each works, so that one in
		// another window does; the first that is used ends them all.
		if link.Purpose != PurposeAdminSetup {
			if _, err := tx.ExecContext(ctx, "DELETE FROM links WHERE purpose = ? AND user_id IS ? AND used_at IS NULL",
				link.Purpose, link.UserID); err != nil {
				return err
			}
		}
		var err error
		token, _, err = s.insertLink(ctx, tx, link.Purpose, link.UserID, ttl)
		return err
	})
	if err != nil {
		return "", err
	}
	return token, nil
}

func (s *Service) insertLink(ctx context.Context, tx *sql.Tx, purpose Purpose, userID *int64,
	ttl time.Duration) (token string, expires time.Time, err error) {
	token, hash := newToken()
	now := s.now()
	expires = now.Add(ttl)
	_, err = tx.ExecContext(ctx, "INSERT INTO links (token_hash, purpose, user_id, created_at, expires_at) VALUES (?, "+
		"?, ?, ?, ?)",
		hash[:], purpose, userID, now.UnixMilli(), expires.UnixMilli())
	return token, expires.UTC(), err
}

func (s *Service) mayLink(ctx context.Context, tx *sql.Tx, link Link) error {
	switch {
	case link.Purpose == PurposeAdminSetup && link.UserID == nil:
		return noAdminYet(ctx, tx)
	case link.Purpose == PurposePassword && link.UserID != nil:
		u, err := s.oneRow(ctx, tx, "id = ?", *link.UserID)
		if err == nil && u.Suspended {
			return sentence(ErrSuspended, "The account %s is suspended. End the suspension before you send a link.", u.Handle)
		}
		return err
	}
	return fmt.Errorf("link for purpose %q with user %v is not possible", link.Purpose, link.UserID)
}

func noAdminYet(ctx context.Context, tx *sql.Tx) error {
	var handle string
	err := tx.QueryRowContext(ctx, `SELECT handle FROM users WHERE role = 'admin' AND suspended_at IS NULL
		AND removed_at IS NULL AND password_hash <> '' ORDER BY id LIMIT 1`).Scan(&handle)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	return sentence(ErrAdminExists, "This lab has an admin already: %s. For a new password run “gpulab user passwd %s” "+
		"on the head machine.", handle, handle)
}

// LinkInfo says what a token is good for without using it up: ErrLinkUnknown, ErrLinkUsed or
// ErrLinkExpired when for nothing.
func (s *Service) LinkInfo(ctx context.Context, token string) (Link, error) {
	_, hash, ok := parseToken(token)
	if !ok {
		return Link{}, errLinkUnknown()
	}
	return s.linkInfo(ctx, s.db, hash)
}

func errLinkUnknown() error {
	return sentence(ErrLinkUnknown, "This link is not one of this lab's, or a newer one has replaced it. Use the "+
		"newest link, or ask an admin for another.")
}

func (s *Service) linkInfo(ctx context.Context, q querier, hash [sha256.Size]byte) (Link, error) {
	var l Link
	var userID, used sql.NullInt64
	var expires int64
	err := q.QueryRowContext(ctx, "SELECT purpose, user_id, expires_at, used_at FROM links WHERE token_hash = ?", hash[:]).
		Scan(&l.Purpose, &userID, &expires, &used)
	l.Expires = time.UnixMilli(expires).UTC()
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Link{}, errLinkUnknown()
	case err != nil:
		return Link{}, fmt.Errorf("look up a link: %w", err)
	case used.Valid:
		return Link{}, sentence(ErrLinkUsed, "This link was used already. If that was you, sign in; otherwise tell an "+
			"admin of the lab and ask for another.")
	case !s.now().Before(l.Expires):
		return Link{}, sentence(ErrLinkExpired, "This link is too old. %s", nextLink(l.Purpose))
	}
	if !userID.Valid {
		l.Role = RoleAdmin
		return l, nil
	}
	u, err := s.oneRow(ctx, q, "id = ?", userID.Int64)
	if errors.Is(err, ErrNotFound) {
		return Link{}, errLinkUnknown()
	}
	l.UserID, l.Handle, l.Name, l.Role, l.HasPassword = &u.ID, u.Handle, u.Name, u.Role, u.HasPassword
	return l, err
}

func nextLink(p Purpose) string {
	if p == PurposeAdminSetup {
		return "Run “gpulab admin-link” on the head machine for a new one."
	}
	return "Ask an admin of the lab for a new one."
}

// RedeemLink uses a link up: PurposeAdminSetup creates the lab's first admin with the given handle, shown
// name and password; PurposePassword gives the link's user the password (handle and name are ignored),
// and ends their sessions. Of any number of tries at once exactly one wins. Input that is refused (bad
// handle, weak password) leaves the link unused.
func (s *Service) RedeemLink(ctx context.Context, token, handle, name, password string) (User, error) {
	link, err := s.LinkInfo(ctx, token)
	if err != nil {
		return User{}, err
	}
	n := NewUser{Handle: link.Handle, Role: RoleAdmin}
	if link.Purpose == PurposeAdminSetup {
		if n, err = s.openFor(ctx, NewUser{Handle: handle, Name: name, Role: RoleAdmin}); err != nil {
			return User{}, err
		}
	}
	encoded, err := s.newPassword(ctx, password, n.Handle)
	if err != nil {
		return User{}, err
	}
	var u User
	err = s.inTx(ctx, "redeem a link", func(tx *sql.Tx) error {
		u, err = s.redeem(ctx, tx, token, n, encoded)
		return err
	})
	if err != nil {
		return User{}, err
	}
	s.limits.forgive(u.Handle)
	s.sessionsEnded(u.ID, "")
	return u, nil
}

// RedeemLinkOutside uses a PurposePassword link up to link an outside account with the link's user, whose password
// stays as it is, and whose sessions end. Errors are those of LinkOutside besides.
func (s *Service) RedeemLinkOutside(ctx context.Context, token string, o Outside, remote string) (User, error) {
	var u User
	err := s.inTx(ctx, "link by a one-time link", func(tx *sql.Tx) error {
		link, err := s.useLink(ctx, tx, token)
		if err != nil {
			return err
		}
		if link.Purpose != PurposePassword {
			return errLinkUnknown()
		}
		row, err := s.oneRow(ctx, tx, "id = ?", *link.UserID)
		if err != nil {
			return err
		}
		if u = row.User; u.Suspended {
			return errSuspended()
		}
		// Whoever needs a link may have lost more than a password.
		if err := endAll(ctx, tx, u.ID); err != nil {
			return err
		}
		return s.linkInvited(ctx, tx, u, o, "by a one-time link", remote)
	})
	if err != nil {
		return User{}, err
	}
	s.sessionsEnded(u.ID, "")
	return u, nil
}

// useLink uses a link up, unless its transaction fails.
func (s *Service) useLink(ctx context.Context, tx *sql.Tx, token string) (Link, error) {
	_, hash, _ := parseToken(token)
	link, err := s.linkInfo(ctx, tx, hash)
	if err != nil {
		return Link{}, err
	}
	_, err = tx.ExecContext(ctx, "UPDATE links SET used_at = ? WHERE token_hash = ?", s.now().UnixMilli(), hash[:])
	return link, err
}

// linkInvited links an outside account with that of somebody who holds what an admin has sent.
func (s *Service) linkInvited(ctx context.Context, tx *sql.Tx, u User, o Outside, how, remote string) error {
	if err := s.linkOutside(ctx, tx, u.ID, o); err != nil {
		return err
	}
	return s.log.RecordIn(ctx, tx, audit.Entry{Actor: u.Handle, Action: "identity.link", Target: u.Handle, Remote: remote,
		Detail: audit.Tidy(o.Username+" at "+o.Provider+", "+how, 200)})
}

// redeem decides inside one write transaction, where nobody else can use the link at the same time.
func (s *Service) redeem(ctx context.Context, tx *sql.Tx, token string, n NewUser, passwordHash string) (User, error) {
	link, err := s.useLink(ctx, tx, token)
	if err != nil {
		return User{}, err
	}
	if link.Purpose == PurposeAdminSetup {
		if err := noAdminYet(ctx, tx); err != nil {
			return User{}, err
		}
		u, err := s.insert(ctx, tx, n, passwordHash)
		if err != nil {
			return User{}, err
		}
		return u, s.log.RecordIn(ctx, tx, audit.Entry{Actor: u.Handle, Action: "admin.created", Target: u.Handle})
	}
	if err := setPassword(ctx, tx, *link.UserID, passwordHash); err != nil {
		return User{}, err
	}
	// Whoever needs a link may have lost more than a password.
	if err := endPrograms(ctx, tx, *link.UserID); err != nil {
		return User{}, err
	}
	u, err := s.oneRow(ctx, tx, "id = ?", *link.UserID)
	if err != nil {
		return User{}, err
	}
	if u.Suspended {
		return User{}, errSuspended()
	}
	return u.User, s.log.RecordIn(ctx, tx, audit.Entry{Actor: u.Handle, Action: "password.chosen", Target: u.Handle})
}

func (s *Service) sweepLinks(ctx context.Context) error {
	if _, err := s.db.ExecContext(ctx, "DELETE FROM links WHERE expires_at < ?",
		s.now().Add(-linksKept).UnixMilli()); err != nil {
		return fmt.Errorf("forget old links: %w", err)
	}
	return nil
}
