package users

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/store"
)

// What goes wrong with requests for an account.
var (
	ErrPending        = errors.New("account not approved yet")
	ErrTooManySignUps = errors.New("too many requests are waiting")
	ErrSignUpNotFound = errors.New("no such request")
	ErrNoteInvalid    = errors.New("note not allowed")
)

const (
	// maxSignUps bounds what strangers can write into the database.
	maxSignUps = 200
	// signUpsKept is how long an undecided request, and the name it keeps, stays.
	signUpsKept = 60 * 24 * time.Hour

	maxReason = 500 // characters
)

// SignUp is somebody who asks for an account.
type SignUp struct {
	ID        int64     `json:"id"`
	Handle    string    `json:"handle"` // what the account would have
	Wanted    string    `json:"wanted"` // what they asked for; another one if that was taken
	Name      string    `json:"name"`
	Email     string    `json:"email,omitempty"`
	Note      string    `json:"note,omitempty"` // why they ask
	Remote    string    `json:"remote"`
	Requested time.Time `json:"requested"`
}

// AskToJoin keeps a request for an account until an admin decides. n.Role is not looked at. To a stranger the answer
// is the same whether or not somebody has the handle: others could list the lab's people. Where it is taken, another
// one is kept, which whoever approves tells them. ErrTooManySignUps; *RateError for too many from one address.
func (s *Service) AskToJoin(ctx context.Context, n NewUser, note, password, remote string) error {
	n.Role = RoleMember
	n, err := n.checked()
	if err != nil {
		return err
	}
	if note, err = checkReason(note); err != nil {
		return err
	}
	if err := CheckPassword(password, n.Handle); err != nil {
		return err
	}
	key := remoteKey(remote)
	if err := s.limits.signUps.try(key, s.now()); err != nil {
		return err
	}
	if err := s.askToJoin(ctx, n, note, password, remote); err != nil {
		s.limits.signUps.giveBack(key)
		return err
	}
	return nil
}

func (s *Service) askToJoin(ctx context.Context, n NewUser, note, password, remote string) error {
	if err := roomForSignUp(ctx, s.db); err != nil {
		return err // before the work of hashing
	}
	encoded, err := s.hasher.hash(ctx, password)
	if err != nil {
		return err
	}
	return s.inTx(ctx, "ask for an account", func(tx *sql.Tx) error {
		if err := roomForSignUp(ctx, tx); err != nil {
			return err
		}
		handle, err := s.nextFree(ctx, tx, n.Handle)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO signups (handle, wanted, name, email, note, password_hash, remote,
			requested_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
			handle, n.Handle, n.Name, n.Email, note, encoded, audit.Tidy(remote, 64), s.now().UnixMilli())
		if err != nil {
			return err
		}
		return s.log.RecordIn(ctx, tx, audit.Entry{Actor: "system", Action: "sign-up.ask", Target: handle, Remote: remote})
	})
}

func checkReason(note string) (string, error) {
	note = strings.Join(strings.Fields(note), " ")
	if utf8.RuneCountInString(note) > maxReason || audit.Tidy(note, maxReason) != note {
		return "", sentence(ErrNoteInvalid, "Say in at most %d characters of ordinary text why you ask for an account.",
			maxReason)
	}
	return note, nil
}

func roomForSignUp(ctx context.Context, q querier) error {
	n, err := countSignUps(ctx, q)
	if err == nil && n >= maxSignUps {
		err = sentence(ErrTooManySignUps, "So many people ask for an account at the moment that no more requests are "+
			"taken. Tell an admin of the lab, or come back in a few days.")
	}
	return err
}

// CountSignUps counts the requests that wait for an admin.
func (s *Service) CountSignUps(ctx context.Context) (int, error) { return countSignUps(ctx, s.db) }

func countSignUps(ctx context.Context, q querier) (int, error) {
	var n int
	if err := q.QueryRowContext(ctx, "SELECT count(*) FROM signups").Scan(&n); err != nil {
		return 0, fmt.Errorf("count requests for an account: %w", err)
	}
	return n, nil
}

// nextFree is handle, or the first of handle-2, handle-3, … that nobody has, had, or asked for.
func (s *Service) nextFree(ctx context.Context, q querier, handle string) (string, error) {
	for n := 1; ; n++ {
		try := numbered(handle, n)
		err := s.handleFree(ctx, q, try)
		if err == nil || !errors.Is(err, ErrHandleTaken) {
			return try, err
		}
	}
}

// numbered puts a number behind a handle, within its length; 1 is none.
func numbered(handle string, n int) string {
	if n == 1 {
		return handle
	}
	suffix := "-" + strconv.Itoa(n)
	return strings.TrimRight(handle[:min(len(handle), maxHandle-len(suffix))], "-") + suffix
}

// notAskedFor reports whether a handle is kept for somebody who asked for it.
func notAskedFor(ctx context.Context, q querier, handle string) error {
	var taken bool
	if err := q.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM signups WHERE handle = ?)",
		handle).Scan(&taken); err != nil {
		return fmt.Errorf("look up requests for an account: %w", err)
	}
	if taken {
		return sentence(ErrHandleTaken, "Somebody has asked for an account with the name %s, and no admin has decided "+
			"yet. Choose another one.", handle)
	}
	return nil
}

// pendingPassword is the hash of somebody who waits for an admin, "" for nobody.
func (s *Service) pendingPassword(ctx context.Context, handle string) (string, error) {
	var encoded string
	err := s.db.QueryRowContext(ctx, "SELECT password_hash FROM signups WHERE handle = ?", handle).Scan(&encoded)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("look up requests for an account: %w", err)
	}
	return encoded, nil
}

// SignUps lists the requests that wait for an admin, the oldest first.
func (s *Service) SignUps(ctx context.Context) ([]SignUp, error) {
	list, err := store.All(ctx, s.db, func(row store.Row) (SignUp, error) {
		r, _, err := scanSignUp(row)
		return r, err
	}, selectSignUp+"1 ORDER BY id")
	if err != nil {
		return nil, fmt.Errorf("list requests for an account: %w", err)
	}
	return list, nil
}

const selectSignUp = "SELECT id, handle, wanted, name, email, note, password_hash, remote, requested_at FROM " +
	"signups WHERE "

func scanSignUp(row store.Row) (r SignUp, passwordHash string, err error) {
	var requested int64
	err = row.Scan(&r.ID, &r.Handle, &r.Wanted, &r.Name, &r.Email, &r.Note, &passwordHash, &r.Remote, &requested)
	r.Requested = time.UnixMilli(requested).UTC()
	return r, passwordHash, err
}

// Approve makes the account that somebody asked for, with the password they chose. The request goes. A lead leads the
// group. ErrSignUpNotFound where another admin was faster.
func (s *Service) Approve(ctx context.Context, id int64, role Role, group string) (User, error) {
	if err := checkRole(role); err != nil {
		return User{}, err
	}
	var u User
	err := s.inTx(ctx, "approve an account", func(tx *sql.Tx) error {
		r, encoded, err := takeSignUp(ctx, tx, id)
		if err != nil {
			return err
		}
		if u, err = s.insert(ctx, tx, NewUser{Handle: r.Handle, Name: r.Name, Email: r.Email, Role: role},
			encoded); err != nil {
			return err
		}
		if group != "" {
			g, err := groupID(ctx, tx, group)
			if err == nil {
				err = s.setMember(ctx, tx, g, u, role == RoleLead)
			}
			if err != nil {
				return err
			}
		}
		if s.post == nil {
			return nil
		}
		return s.post.Approved(ctx, tx, u)
	})
	if err != nil {
		return User{}, err
	}
	s.cache.drop()
	return u, nil
}

// Decline forgets a request with everything in it; ErrSignUpNotFound.
func (s *Service) Decline(ctx context.Context, id int64) (SignUp, error) {
	var r SignUp
	err := s.inTx(ctx, "decline an account", func(tx *sql.Tx) error {
		var err error
		r, _, err = takeSignUp(ctx, tx, id)
		return err
	})
	return r, err
}

func takeSignUp(ctx context.Context, tx *sql.Tx, id int64) (SignUp, string, error) {
	r, encoded, err := scanSignUp(tx.QueryRowContext(ctx, selectSignUp+"id = ?", id))
	if errors.Is(err, sql.ErrNoRows) {
		return SignUp{}, "", sentence(ErrSignUpNotFound, "This request is not there any more: somebody has decided about "+
			"it, or it has waited for too long.")
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, "DELETE FROM signups WHERE id = ?", id)
	}
	return r, encoded, err
}

func (s *Service) sweepSignUps(ctx context.Context) error {
	if _, err := s.db.ExecContext(ctx, "DELETE FROM signups WHERE requested_at < ?",
		s.now().Add(-signUpsKept).UnixMilli()); err != nil {
		return fmt.Errorf("forget old requests for an account: %w", err)
	}
	return nil
}
