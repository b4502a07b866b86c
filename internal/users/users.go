// Package users is the people of the lab: accounts, passwords, roles, sessions, one-time links and the
// audit log. It keeps them in gpulab.db (package store) and is the only package that reads or writes
// those tables.
//
// Every error that a person can cause is an *Error: a sentence for that person with the next step, which
// wraps one of the sentinel errors below. Any other error is ours (database, cancelled context) and is
// for the log.
package users

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/store"
)

// User is one account. The zero value is nobody.
type User struct {
	ID          int64     `json:"id"`
	Handle      string    `json:"handle"` // name to sign in with; never changes, never given to anybody else
	Name        string    `json:"name"`   // shown name, free text
	Email       string    `json:"email,omitempty"`
	Role        Role      `json:"role"`
	UID         int       `json:"uid"` // UID and GID on disk and in pods: 20000–59999, or the one they had before gpulab
	Created     time.Time `json:"created"`
	Suspended   bool      `json:"suspended"`
	HasPassword bool      `json:"hasPassword"`

	led   *circle // nil for nobody; set for the user of a session or token
	limit limit   // what a token leaves of the rights; "" for all
}

// Service answers every question about people. Its methods may be called from any goroutine.
type Service struct {
	db     *sql.DB
	now    func() time.Time
	hasher *hasher
	limits *signInLimits
	cache  *sessionCache

	directories []Directory       // asked after the accounts of the lab's own
	rules       map[string]string // see UseRules; nil = not known
	post        Post              // nil where the lab writes to nobody

	failures *failures
	log      *audit.Log

	hookMu    sync.RWMutex
	hooks     []func(userID int64, sessionID string)
	elsewhere []func(userID int64)
	suspend   func(ctx context.Context, userID int64) error // nil = Suspend
	taken     func(ctx context.Context, number int) bool    // nil = none is
}

// New makes the service over an open gpulab.db.
func New(db *sql.DB) *Service {
	return newService(db, passwordParams, time.Now)
}

// Run ends expired sessions, forgets expired links and tokens and audit entries that are too old, and applies the rules
// to people who no longer keep role and groups (see Kept), once a minute until ctx ends. Without it they are refused
// just the same, but connections that live on them are closed later.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		// A failed round is repeated by the next one; expired rows are refused meanwhile.
		_ = s.Sweep(ctx)
		select {
		case <-ctx.Done():
			s.note(context.WithoutCancel(ctx), s.failures.flush(s.now(), true)...)
			return nil
		case <-tick.C:
		}
	}
}

// Sweep does one round of what Run does.
func (s *Service) Sweep(ctx context.Context) error {
	s.note(ctx, s.failures.flush(s.now(), false)...)
	return errors.Join(s.sweepSessions(ctx), s.sweepLinks(ctx), s.sweepInvitations(ctx), s.sweepSignUps(ctx),
		s.sweepTokens(ctx), s.sweepDevices(ctx), s.log.Sweep(ctx), s.settleUntold(ctx))
}

// ByID finds an account that was not removed; ErrNotFound otherwise.
func (s *Service) ByID(ctx context.Context, id int64) (User, error) {
	return s.one(ctx, "id = ?", id)
}

// ByHandle finds an account that was not removed; ErrNotFound otherwise. Case does not matter.
func (s *Service) ByHandle(ctx context.Context, handle string) (User, error) {
	return s.one(ctx, "handle = ?", fold(handle))
}

// List returns all accounts that were not removed, by handle.
func (s *Service) List(ctx context.Context) ([]User, error) {
	list, err := store.All(ctx, s.db, func(row store.Row) (User, error) {
		r, err := scanUser(row)
		return r.User, err
	}, selectUser+" ORDER BY handle")
	if err != nil {
		return nil, fmt.Errorf("list users: %w", err)
	}
	return list, nil
}

const selectUser = `SELECT id, handle, name, email, role, coalesce(kept_uid, uid), password_hash, created_at,
	suspended_at
	FROM users WHERE removed_at IS NULL`

// userRow is a user with what must not leave this package.
type userRow struct {
	User
	passwordHash string
}

func scanUser(row store.Row) (userRow, error) {
	var r userRow
	var created int64
	var suspended sql.NullInt64
	err := row.Scan(&r.ID, &r.Handle, &r.Name, &r.Email, &r.Role, &r.UID, &r.passwordHash, &created, &suspended)
	if err != nil {
		return userRow{}, err
	}
	r.Created = time.UnixMilli(created).UTC()
	r.Suspended = suspended.Valid
	r.HasPassword = r.passwordHash != ""
	return r, nil
}

// querier is a database or a transaction.
type querier interface {
	store.Asker
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func (s *Service) one(ctx context.Context, where string, arg any) (User, error) {
	r, err := s.oneRow(ctx, s.db, where, arg)
	return r.User, err
}

func (s *Service) oneRow(ctx context.Context, q querier, where string, arg any) (userRow, error) {
	r, err := scanUser(q.QueryRowContext(ctx, selectUser+" AND "+where, arg))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return userRow{}, errNoUser()
	case err != nil:
		return userRow{}, fmt.Errorf("look up a user: %w", err)
	}
	return r, nil
}

func errNoUser() error {
	return sentence(ErrNotFound, "There is no such user. The list of users shows who there is.")
}

func errSuspended() error {
	return sentence(ErrSuspended, "This account is suspended. Ask an admin of the lab.")
}

// inTx runs f in a transaction. doing begins the errors, except those that are for people.
func (s *Service) inTx(ctx context.Context, doing string, f func(tx *sql.Tx) error) error {
	err := store.InTx(ctx, s.db, f)
	var forPeople *Error
	if err == nil || errors.As(err, &forPeople) {
		return err
	}
	return fmt.Errorf("%s: %w", doing, err)
}
