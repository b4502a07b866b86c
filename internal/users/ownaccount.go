package users

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/store"
)

// SessionInfo is one browser that somebody is signed in with, for them to recognise it.
type SessionInfo struct {
	ID        string
	Created   time.Time
	LastSeen  time.Time // to the minute
	Remote    string    // from where it signed in
	UserAgent string    // as the browser called itself
}

// ChangePassword changes one's own password, knowing the one before. Tries are limited as those to sign in
// are. Every session of the account ends; the caller starts a new one in the browser that asked. Errors
// are those of Authenticate, and ErrPasswordWeak.
func (s *Service) ChangePassword(ctx context.Context, id int64, old, password, remote string) error {
	u, err := s.ByID(ctx, id)
	if err != nil {
		return err
	}
	if err := CheckPassword(password, u.Handle); err != nil {
		return err // before a try is used up
	}
	if err := s.tryOwnPassword(ctx, u, old, remote); err != nil {
		return err
	}
	if normalPassword(old) == normalPassword(password) {
		return sentence(ErrPasswordWeak, "This is the password that you have. Choose another one.")
	}
	encoded, err := s.hasher.hash(ctx, password)
	if err != nil {
		return err
	}
	err = s.inTx(ctx, "change a password", func(tx *sql.Tx) error {
		if err := setPassword(ctx, tx, id, encoded); err != nil {
			return err
		}
		return s.log.RecordIn(ctx, tx, audit.Entry{
			Actor: u.Handle, Action: "password.changed", Target: u.Handle, Remote: remote,
		})
	})
	if err != nil {
		return err
	}
	s.sessionsEnded(id, "")
	return nil
}

// ConfirmPassword makes sure that it is the owner of an account who asks for something. Tries are limited as those to
// sign in are. An account without password has none to confirm. Errors are those of Authenticate.
func (s *Service) ConfirmPassword(ctx context.Context, id int64, password, remote string) error {
	u, err := s.ByID(ctx, id)
	if err != nil || !u.HasPassword {
		return err
	}
	return s.tryOwnPassword(ctx, u, password, remote)
}

func (s *Service) tryOwnPassword(ctx context.Context, u User, password, remote string) error {
	// Somebody is signed in already, so strangers must not make them wait.
	_, _, err := s.tryPassword(ctx, u.Handle, password, remote, "own "+strconv.FormatInt(u.ID, 10))
	if errors.Is(err, ErrBadCredentials) {
		return sentence(ErrBadCredentials, "This is not your current password. If you forgot it, ask an admin of the lab "+
			"for a new password link.")
	}
	return err
}

// Sessions lists the browsers somebody is signed in with, the one last used first.
func (s *Service) Sessions(ctx context.Context, userID int64) ([]SessionInfo, error) {
	now := s.now()
	list, err := store.All(ctx, s.db, func(row store.Row) (i SessionInfo, err error) {
		var created, seen int64
		err = row.Scan(&i.ID, &created, &seen, &i.Remote, &i.UserAgent)
		i.Created, i.LastSeen = time.UnixMilli(created).UTC(), time.UnixMilli(seen).UTC()
		return i, err
	}, `SELECT id, created_at, last_seen_at, remote, user_agent FROM sessions
		WHERE user_id = ? AND expires_at > ? AND last_seen_at > ? ORDER BY last_seen_at DESC, created_at DESC`,
		userID, now.UnixMilli(), now.Add(-SessionIdle).UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	return list, nil
}

// EndOneSession signs one browser of a person out, by the session's ID. One that is not theirs, or has
// ended, is none to end.
func (s *Service) EndOneSession(ctx context.Context, userID int64, sessionID string) (ended bool, err error) {
	return s.endSome(ctx, userID, "id = ?", sessionID)
}

// EndOtherSessions signs a person out everywhere but in the session with that ID.
func (s *Service) EndOtherSessions(ctx context.Context, userID int64, keep string) (ended bool, err error) {
	ended, err = s.endSome(ctx, userID, "id <> ?", keep)
	if err == nil {
		s.signedOutElsewhere(userID)
	}
	return ended, err
}

func (s *Service) endSome(ctx context.Context, userID int64, which, sessionID string) (bool, error) {
	var ids []string
	err := s.inTx(ctx, "end sessions", func(tx *sql.Tx) (err error) {
		ids, err = deleteSessions(ctx, tx, "user_id = ? AND "+which, userID, sessionID)
		return err
	})
	for _, id := range ids {
		s.sessionsEnded(userID, id)
	}
	return len(ids) > 0, err
}
