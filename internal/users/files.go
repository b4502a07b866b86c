package users

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/gpulab/gpulab/internal/audit"
)

// FilesAccess is somebody who signed in to bring files in and out, without a session: by which way, so that it can
// be asked later whether that way is still open.
type FilesAccess struct {
	User User
	Way  string // in words, such as "the password"

	tokenID, keyID int64 // 0 where it was by something else
}

// SignInForFiles lets somebody in with a handle and, as the secret, the account's password or an access token
// whose scope covers files. Wrong ones count for the limits of the sign-in page and stand in the log as its do.
// Errors are those of Authenticate and TokenUser.
func (s *Service) SignInForFiles(ctx context.Context, handle, secret, remote string) (FilesAccess, error) {
	if strings.HasPrefix(secret, tokenPrefix) && len(secret) == tokenLength {
		return s.tokenForFiles(ctx, handle, secret, remote)
	}
	u, err := s.authenticate(ctx, handle, secret, remote, "", "for files, with the password")
	if err != nil {
		return FilesAccess{}, err
	}
	return s.allowFiles(ctx, FilesAccess{User: u, Way: "the password"})
}

func (s *Service) tokenForFiles(ctx context.Context, handle, secret, remote string) (FilesAccess, error) {
	u, t, err := s.TokenUser(ctx, secret, remote, true)
	if err == nil && u.Handle != fold(handle) {
		err = sentence(ErrTokenRefused, "This access token is of another account. Sign in with the name that it belongs to.")
	}
	if err == nil && !u.May(ActionFiles, u.ID) {
		err = sentence(ErrTokenRefused, "The scope of this access token is %s, which does not cover files. Make one with "+
			"the scope files on the page of your account.", string(t.Scope))
	}
	if errors.Is(err, ErrTokenRefused) || errors.Is(err, ErrTooManyTries) {
		known, lookErr := s.knownHandle(ctx, clip(fold(handle), maxHandle+1))
		if lookErr != nil {
			return FilesAccess{}, lookErr
		}
		s.fail(ctx, failure{known, remote, "an access token that was refused"})
	}
	if err != nil {
		return FilesAccess{}, err
	}
	return s.signedInForFiles(ctx, FilesAccess{User: u, Way: fmt.Sprintf("access token %d", t.ID), tokenID: t.ID}, remote)
}

// KeyForFiles reports whether the public key, in SSH's wire format, is one of an account that may come in. Whoever
// asks has proven nothing yet.
func (s *Service) KeyForFiles(ctx context.Context, handle string, key []byte) (bool, error) {
	_, err := s.keyForFiles(ctx, handle, key)
	if errors.Is(err, ErrSSHKeyNotFound) {
		return false, nil
	}
	return err == nil, err
}

// SignInForFilesByKey lets somebody in who has proven to have the key; ErrSSHKeyNotFound where it is none of theirs.
func (s *Service) SignInForFilesByKey(ctx context.Context, handle string, key []byte,
	remote string) (FilesAccess, error) {
	access, err := s.keyForFiles(ctx, handle, key)
	if err != nil {
		return FilesAccess{}, err
	}
	_, err = s.db.ExecContext(ctx, "UPDATE ssh_keys SET last_used_at = ?, last_remote = ? WHERE id = ?",
		s.now().UnixMilli(), audit.Tidy(remote, 64), access.keyID)
	if err != nil {
		return FilesAccess{}, fmt.Errorf("note that an SSH key is in use: %w", err)
	}
	return s.signedInForFiles(ctx, access, remote)
}

// keyForFiles is one question to the database, whatever the answer.
func (s *Service) keyForFiles(ctx context.Context, handle string, key []byte) (FilesAccess, error) {
	hash := sha256.Sum256(key)
	var keyID, userID int64
	err := s.db.QueryRowContext(ctx, `SELECT k.id, u.id FROM users u JOIN ssh_keys k ON k.user_id = u.id
		WHERE u.handle = ? AND k.fingerprint = ? AND u.suspended_at IS NULL
		AND u.removed_at IS NULL`, fold(handle), hash[:]).Scan(&keyID, &userID)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return FilesAccess{}, sentence(ErrSSHKeyNotFound, "This SSH key is not one of that account. Add it on the page of "+
			"your account.")
	case err != nil:
		return FilesAccess{}, fmt.Errorf("look up an SSH key: %w", err)
	}
	u, err := s.ByID(ctx, userID)
	if err != nil {
		return FilesAccess{}, err
	}
	return FilesAccess{User: u, Way: fmt.Sprintf("SSH key %d", keyID), keyID: keyID}, nil
}

// signedInForFiles records a sign-in that was not by password.
func (s *Service) signedInForFiles(ctx context.Context, a FilesAccess, remote string) (FilesAccess, error) {
	s.note(ctx, audit.Entry{
		Actor: a.User.Handle, Action: "sign-in", Target: a.User.Handle, Detail: "for files, with " + a.Way, Remote: remote,
	})
	return s.allowFiles(ctx, a)
}

func (s *Service) allowFiles(ctx context.Context, a FilesAccess) (FilesAccess, error) {
	if !a.User.May(ActionFiles, a.User.ID) {
		return FilesAccess{}, sentence(ErrSuspended, "This account may not bring files in or out. Ask an admin of the lab.")
	}
	if _, err := s.db.ExecContext(ctx, "UPDATE users SET signed_in_at = ? WHERE id = ?", s.now().UnixMilli(),
		a.User.ID); err != nil {
		return FilesAccess{}, fmt.Errorf("note a sign-in: %w", err)
	}
	return a, nil
}

// StillForFiles reports whether what let somebody in would do so now: an error for people where the account, the
// token or the key is gone. A new password or role ends connections by OnSessionsEnded.
func (s *Service) StillForFiles(ctx context.Context, a FilesAccess) error {
	u, err := s.ByID(ctx, a.User.ID)
	if err != nil {
		return err
	}
	if u.Suspended {
		return errSuspended()
	}
	var there int
	if a.tokenID != 0 {
		if err := s.db.QueryRowContext(ctx, "SELECT count(*) FROM api_tokens WHERE id = ? AND expires_at > ?", a.tokenID,
			s.now().UnixMilli()).Scan(&there); err != nil {
			return fmt.Errorf("look up a token: %w", err)
		}
		if there == 0 {
			return sentence(ErrTokenRefused, "The access token of this connection was revoked or has expired. Make a new one "+
				"on the page of your account.")
		}
	}
	if a.keyID != 0 {
		if err := s.db.QueryRowContext(ctx, "SELECT count(*) FROM ssh_keys WHERE id = ?", a.keyID).Scan(&there); err != nil {
			return fmt.Errorf("look up an SSH key: %w", err)
		}
		if there == 0 {
			return sentence(ErrSSHKeyNotFound, "The SSH key of this connection was removed. Add it again on the page of your "+
				"account.")
		}
	}
	return nil
}

// OnSignedOutElsewhere registers a function that hears of everybody who signs out everywhere but where they are:
// what is signed in without a session ends with that. It must return soon.
func (s *Service) OnSignedOutElsewhere(f func(userID int64)) {
	s.hookMu.Lock()
	defer s.hookMu.Unlock()
	s.elsewhere = append(s.elsewhere, f)
}

func (s *Service) signedOutElsewhere(userID int64) {
	s.hookMu.RLock()
	hooks := s.elsewhere
	s.hookMu.RUnlock()
	for _, f := range hooks {
		f(userID)
	}
}
