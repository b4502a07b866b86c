package users

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// The range of UIDs, and GIDs of the same number, for people. It ends below 65536 so that an account has
// the same UID on disk with and without user namespaces.
const (
	FirstUID = 20000
	LastUID  = 59999
)

// The UIDs that somebody may bring along from a Linux account (see ImportPasswd). Below them are the system's own, and
// 19999 is the hub's.
const (
	FirstKeptUID = 1000
	LastKeptUID  = 19998
)

// PersonalUID reports whether uid can be a person's: files and pods of nobody else ever carry it.
func PersonalUID(uid int) bool {
	return uid >= FirstUID && uid <= LastUID || uid >= FirstKeptUID && uid <= LastKeptUID
}

// AvoidNumbers keeps new accounts from getting a UID or GID that the machine already uses: its owner would own the
// accounts' files. taken reports whether a number is used. It runs while the database is being written, so all its
// answers together must take seconds only.
func (s *Service) AvoidNumbers(taken func(ctx context.Context, number int) bool) {
	s.hookMu.Lock()
	defer s.hookMu.Unlock()
	s.taken = taken
}

// isTaken calls the function that AvoidNumbers was given.
func (s *Service) isTaken(ctx context.Context, number int) bool {
	s.hookMu.RLock()
	taken := s.taken
	s.hookMu.RUnlock()
	return taken != nil && taken(ctx, number)
}

// NewUser is what it takes to create an account. Name and Email may be empty; Role defaults to member.
type NewUser struct {
	Handle, Name, Email string
	Role                Role
	// Outside is linked with the account at once; nil for none.
	Outside *Outside

	keptUID int // of a Linux account; 0 for none
}

// Create makes an account without password: send its owner a link (CreateLink). The handle is for ever,
// and the UID is assigned here once.
func (s *Service) Create(ctx context.Context, n NewUser) (User, error) {
	n, err := n.checked()
	if err != nil {
		return User{}, s.explainCase(ctx, n.Handle, err)
	}
	var created User
	err = s.inTx(ctx, "create a user", func(tx *sql.Tx) error {
		created, err = s.insert(ctx, tx, n, "")
		return err
	})
	return created, err
}

func (n NewUser) checked() (NewUser, error) {
	if n.Role == "" {
		n.Role = RoleMember
	}
	err := CheckHandle(n.Handle)
	if err == nil {
		err = checkRole(n.Role)
	}
	if err == nil {
		n.Name, err = checkName(n.Name)
	}
	if err == nil {
		n.Email, err = checkEmail(n.Email)
	}
	if n.Name == "" {
		n.Name = n.Handle
	}
	return n, err
}

// openFor checks what somebody typed for an account of their own, before anything is done for it.
func (s *Service) openFor(ctx context.Context, n NewUser) (NewUser, error) {
	typed := n.Handle
	n, err := n.checked()
	if err != nil {
		return n, s.explainCase(ctx, typed, err)
	}
	return n, s.handleFree(ctx, s.db, n.Handle)
}

// explainCase does not propose a name in lower case that is taken.
func (s *Service) explainCase(ctx context.Context, handle string, err error) error {
	if !errors.Is(err, ErrHandleInvalid) || handle == fold(handle) {
		return err
	}
	if taken := s.handleFree(ctx, s.db, fold(handle)); errors.Is(taken, ErrHandleTaken) {
		return sentence(ErrHandleTaken, "The name %s differs from the existing name %s only by case. Choose another one.",
			quote(handle), fold(handle))
	}
	return err
}

// HandleFree reports whether an account could be made under the handle now: ErrHandleTaken if not.
func (s *Service) HandleFree(ctx context.Context, handle string) error {
	return s.handleFree(ctx, s.db, fold(handle))
}

// handleFree also knows the names of removed accounts, and of those that are asked for.
func (s *Service) handleFree(ctx context.Context, q querier, handle string) error {
	var removed, purged sql.NullInt64
	err := q.QueryRowContext(ctx, "SELECT removed_at, purged_at FROM users WHERE handle = ?", handle).Scan(&removed,
		&purged)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return notAskedFor(ctx, q, handle)
	case err != nil:
		return err
	case removed.Valid && !purged.Valid:
		return sentence(ErrHandleTaken, "The name %s belongs to a removed account and is given to nobody else. An admin "+
			"can bring that account back, or choose another name.", handle)
	case removed.Valid:
		return sentence(ErrHandleTaken, "The name %s belonged to somebody who left, and is not given to anybody else. "+
			"Choose another one.", handle)
	}
	return sentence(ErrHandleTaken, "The name %s is taken. Choose another one.", handle)
}

func (s *Service) insert(ctx context.Context, tx *sql.Tx, n NewUser, passwordHash string) (User, error) {
	if err := s.handleFree(ctx, tx, n.Handle); err != nil {
		return User{}, err
	}
	// Removed accounts keep their row, so the next UID was never given to anybody; of those that a rollback has taken
	// away, the setting tells.
	var last sql.NullInt64
	if err := tx.QueryRowContext(ctx, `SELECT max(uid) FROM (SELECT max(uid) AS uid FROM users
		UNION ALL SELECT CAST(value AS INTEGER) FROM settings WHERE key = 'last.uid')`).Scan(&last); err != nil {
		return User{}, err
	}
	uid := int64(FirstUID)
	if last.Valid {
		uid = last.Int64 + 1
	}
	for uid <= LastUID && s.isTaken(ctx, int(uid)) {
		uid++
	}
	if uid > LastUID {
		return User{}, sentence(ErrUIDsExhausted, "All %d numbers for accounts have been given out or are known to this "+
			"machine, and none is used twice. Set up a new lab for new people.", LastUID-FirstUID+1)
	}
	res, err := tx.ExecContext(ctx, `INSERT INTO users (handle, name, email, role, uid, kept_uid, password_hash,
		created_at, search)
		VALUES (?, ?, ?, ?, ?, nullif(?, 0), ?, ?, ?)`,
		n.Handle, n.Name, n.Email, n.Role, uid, n.keptUID, passwordHash, s.now().UnixMilli(),
		searchable(n.Handle, n.Name, n.Email))
	if err != nil {
		return User{}, err
	}
	id, err := res.LastInsertId()
	if err != nil {
		return User{}, err
	}
	row, err := s.oneRow(ctx, tx, "id = ?", id)
	return row.User, err
}

// Change is what may change of an account; nil leaves as it is.
type Change struct {
	Name  *string `json:"name,omitempty"` // shown name; empty becomes the handle
	Email *string `json:"email,omitempty"`
	Role  *Role   `json:"role,omitempty"`
}

// SetProfile changes the shown name and e-mail address.
func (s *Service) SetProfile(ctx context.Context, id int64, name, email string) error {
	return s.Change(ctx, id, Change{Name: &name, Email: &email})
}

// Change changes an account, all of it or nothing. A new role ends its sessions. The last admin stays admin; who is to
// be a member or guest leads no group any more.
func (s *Service) Change(ctx context.Context, id int64, c Change) error {
	c, err := c.checked()
	if err != nil {
		return err
	}
	return s.change(ctx, id, "change a user", func(tx *sql.Tx, u User) (bool, error) {
		if c.Name != nil {
			u.Name = *c.Name
		}
		if c.Email != nil {
			u.Email = *c.Email
		}
		if u.Name == "" {
			u.Name = u.Handle
		}
		if _, err := tx.ExecContext(ctx, "UPDATE users SET name = ?, email = ?, search = ? WHERE id = ?",
			u.Name, u.Email, searchable(u.Handle, u.Name, u.Email), id); err != nil {
			return false, err
		}
		if c.Role == nil || u.Role == *c.Role {
			return false, nil
		}
		return true, setRole(ctx, tx, u, *c.Role)
	})
}

func (c Change) checked() (Change, error) {
	if c.Name != nil {
		name, err := checkName(*c.Name)
		if err != nil {
			return c, err
		}
		c.Name = &name
	}
	if c.Email != nil {
		email, err := checkEmail(*c.Email)
		if err != nil {
			return c, err
		}
		c.Email = &email
	}
	if c.Role != nil {
		return c, checkRole(*c.Role)
	}
	return c, nil
}

func setRole(ctx context.Context, tx *sql.Tx, u User, role Role) error {
	if err := notLastAdmin(ctx, tx, u); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE users SET role = ? WHERE id = ?", role, u.ID); err != nil {
		return err
	}
	if role == RoleMember || role == RoleGuest {
		if _, err := tx.ExecContext(ctx, "UPDATE group_members SET lead = 0 WHERE user_id = ?", u.ID); err != nil {
			return err
		}
	}
	return endAccess(ctx, tx, u.ID)
}

// change runs f on an account; f says whether it ended the account's sessions.
func (s *Service) change(ctx context.Context, id int64, doing string,
	f func(tx *sql.Tx, u User) (ended bool, err error)) error {
	ended := false
	err := s.inTx(ctx, doing, func(tx *sql.Tx) error {
		row, err := s.oneRow(ctx, tx, "id = ?", id)
		if err != nil {
			return err
		}
		ended, err = f(tx, row.User)
		return err
	})
	if err != nil {
		return err
	}
	if ended {
		s.sessionsEnded(id, "")
	} else {
		s.cache.drop()
	}
	return nil
}

// notLastAdmin refuses to take away the last admin who can sign in. One without password counts only
// where the admin in question has none either.
func notLastAdmin(ctx context.Context, tx *sql.Tx, u User) error {
	if u.Role != RoleAdmin || u.Suspended {
		return nil
	}
	var others int
	err := tx.QueryRowContext(ctx, `SELECT count(*) FROM users WHERE role = 'admin' AND id <> ? AND suspended_at IS NULL
		AND removed_at IS NULL AND (password_hash <> '' OR ?)`, u.ID, !u.HasPassword).Scan(&others)
	if err != nil {
		return fmt.Errorf("count the other admins: %w", err)
	}
	if others == 0 {
		return sentence(ErrLastAdmin, "The account %s is the only admin who can sign in. Make somebody else an admin first.",
			u.Handle)
	}
	return nil
}
