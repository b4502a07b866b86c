package users

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/alexedwards/argon2id"
	"github.com/gpulab/gpulab/internal/audit"
)

func newService(db *sql.DB, params argon2id.Params, now func() time.Time) *Service {
	return &Service{db: db, now: now, hasher: newHasher(params), limits: newSignInLimits(), cache: newSessionCache(),
		failures: newFailures(), log: audit.New(db, now)}
}

// AuditLog returns the log in which the service records.
func (s *Service) AuditLog() *audit.Log { return s.log }

// note records what must not keep anybody from signing in when the log cannot be written.
func (s *Service) note(ctx context.Context, entries ...audit.Entry) {
	for _, e := range entries {
		_ = s.log.Record(ctx, e)
	}
}

// Authenticate checks a handle and password from the given remote address. It takes the same time
// whether or not the account exists.
//
// Tries are limited: per account and address together, per account, and per address. A refusal is a *RateError, whether
// or not the password is right; otherwise the error is ErrBadCredentials, or once the password was right ErrSuspended,
// or ErrPending for somebody who asked for an account and waits.
//
// What is no account's name and password here may be one of a directory (UseDirectories): errors are then also
// ErrDirectoryAway, and those of SignInOutside.
func (s *Service) Authenticate(ctx context.Context, handle, password, remote string) (User, error) {
	return s.authenticate(ctx, handle, password, remote, "", "")
}

// AuthenticateIn is Authenticate in a browser that keeps a value of KnownBrowser. Where that fits the name, the
// browser's own tries are all that limits it.
func (s *Service) AuthenticateIn(ctx context.Context, handle, password, remote, browser string) (User, error) {
	return s.authenticate(ctx, handle, password, remote, browser, "")
}

// authenticate is AuthenticateIn; what goes into the log as the detail of the sign-in.
func (s *Service) authenticate(ctx context.Context, handle, password, remote, browser, what string) (User, error) {
	known, err := s.knownAs(ctx, signInName(handle), browser)
	if err != nil {
		return User{}, err
	}
	row, outside, err := s.tryPassword(ctx, handle, password, remote, known, s.directories...)
	if err != nil {
		return User{}, err
	}
	if outside != nil {
		return s.SignInOutside(ctx, *outside, remote)
	}
	if row.ID == 0 {
		return User{}, sentence(ErrPending, "An admin of the lab has not decided about your account yet. Try again later, "+
			"or ask them.")
	}
	if row.Suspended {
		s.fail(ctx, failure{row.Handle, remote, "the account is suspended"})
		return User{}, errSuspended()
	}
	s.note(ctx, audit.Entry{Actor: row.Handle, Action: "sign-in", Target: row.Handle, Detail: what, Remote: remote})
	return row.User, nil
}

// signInName is by which name tries are counted.
func signInName(typed string) string { return clip(fold(typed), maxHandle+1) }

// tryPassword is one limited try at a password, of an account here or else of an outside one in a directory. known is
// the counter of a known browser, empty for others.
func (s *Service) tryPassword(ctx context.Context, name, password, remote, known string,
	directories ...Directory) (userRow, *Outside, error) {
	handle := signInName(name)
	a := attempt{handle: handle, remote: remote, known: known}
	refused, locked := s.limits.take(&a, s.now())
	if refused != nil || locked {
		// Looked up in any case, so that the time tells nothing.
		target, err := s.knownHandle(ctx, handle)
		if err != nil {
			return userRow{}, nil, err
		}
		if locked && target != "" {
			s.note(ctx, audit.Entry{Actor: "system", Action: "sign-in.locked", Target: target, Remote: remote})
		}
		if refused != nil && refused.busy {
			return userRow{}, nil, refused
		}
		if refused != nil {
			s.fail(ctx, failure{target, remote, "too many tries, so the password was not looked at"})
			return userRow{}, nil, refused
		}
	}
	row, ok, err := s.checkPassword(ctx, handle, password)
	if err != nil {
		s.limits.abandon(a, s.now())
		return userRow{}, nil, err
	}
	if ok {
		s.limits.succeed(a, s.now())
		return row, nil, nil
	}
	outside, away := askDirectories(ctx, directories, name, password)
	switch {
	case outside != nil && row.ID == 0:
		s.limits.succeed(a, s.now())
	case outside != nil, away != "" && !row.HasPassword:
		// Somebody there may be called what another is called here: their signing in must not give back the tries at
		// that account. And a directory that does not answer brought no outcome.
		s.limits.abandon(a, s.now())
	default:
		s.limits.fail(a, s.now())
	}
	if outside != nil {
		return row, outside, nil
	}
	why := "wrong password"
	if row.Handle == "" {
		why = "a name that nobody has"
	}
	if away != "" {
		s.fail(ctx, failure{row.Handle, remote, why + "; " + away + " does not answer"})
		return userRow{}, nil, sentence(ErrDirectoryAway, "Name or password is wrong, or they are of %s, which does not "+
			"answer at the moment. Accounts with a password of this lab sign in as always; for the others try again in a few "+
			"minutes.", away)
	}
	s.fail(ctx, failure{row.Handle, remote, why})
	return userRow{}, nil, sentence(ErrBadCredentials, "Name or password is wrong. Check both; if you forgot the "+
		"password, ask an admin of the lab for a new password link.")
}

// askDirectories finds who has that name and password in a directory, nil for nobody, and the title of one that does
// not answer. Each is asked for every name, so that the time tells nothing about who has an account here.
func askDirectories(ctx context.Context, list []Directory, name, password string) (found *Outside, away string) {
	if password == "" || utf8.RuneCountInString(password) > maxPassword {
		return nil, "" // some directories take an empty password for nobody's, and say yes
	}
	for _, d := range list {
		o, err := d.SignIn(ctx, clip(strings.TrimSpace(name), maxOutsideName), password)
		switch {
		case err != nil:
			away = d.Title()
		case o != nil:
			return o, ""
		}
	}
	return nil, away
}

// maxOutsideName is how long a name in a directory may be, in characters.
const maxOutsideName = 200

// fail records a failed sign-in, within limits.
func (s *Service) fail(ctx context.Context, f failure) {
	s.note(context.WithoutCancel(ctx), s.failures.add(f, s.now())...)
}

// knownHandle is the handle where there is such an account, otherwise empty. People type passwords where
// the name belongs, so what nobody is called is not written down.
func (s *Service) knownHandle(ctx context.Context, handle string) (string, error) {
	row, err := s.oneRow(ctx, s.db, "handle = ?", handle)
	if errors.Is(err, ErrNotFound) {
		return "", nil
	}
	return row.Handle, err
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

// newPassword is the hash of a password that somebody may choose: ErrPasswordWeak.
func (s *Service) newPassword(ctx context.Context, password, handle string) (string, error) {
	if err := CheckPassword(password, handle); err != nil {
		return "", err
	}
	return s.hasher.hash(ctx, password)
}

// SetPassword sets a new password and ends all sessions of the account; the caller starts a new one
// where the person did it themself.
func (s *Service) SetPassword(ctx context.Context, id int64, password string) error {
	u, err := s.ByID(ctx, id)
	if err != nil {
		return err
	}
	encoded, err := s.newPassword(ctx, password, u.Handle)
	if err != nil {
		return err
	}
	err = s.inTx(ctx, "set a password", func(tx *sql.Tx) error { return setPassword(ctx, tx, id, encoded) })
	if err != nil {
		return err
	}
	s.limits.forgive(u.Handle)
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
		return errNoUser()
	}
	if err := forgetBrowsers(ctx, tx, id); err != nil {
		return err
	}
	return endAccess(ctx, tx, id)
}

// endPrograms takes away what programs sign in with for an account: access tokens, those that were confirmed and not
// fetched yet, and SSH keys.
func endPrograms(ctx context.Context, tx *sql.Tx, id int64) error {
	for _, table := range []string{"api_tokens", "device_codes", "ssh_keys"} {
		if _, err := tx.ExecContext(ctx, "DELETE FROM "+table+" WHERE user_id = ?", id); err != nil {
			return fmt.Errorf("revoke tokens and keys: %w", err)
		}
	}
	return nil
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
