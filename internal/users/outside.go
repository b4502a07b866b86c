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

// What goes wrong with accounts at outside identity providers.
var (
	ErrNotAdmitted      = errors.New("outside account not admitted")
	ErrNoAccount        = errors.New("no account for the outside one")
	ErrIdentityTaken    = errors.New("outside account linked to another account")
	ErrIdentityExists   = errors.New("another outside account is linked")
	ErrIdentityNotFound = errors.New("no such outside account")
	ErrLastWayIn        = errors.New("last way to sign in")
	ErrDirectoryAway    = errors.New("directory does not answer")
)

// Outside is somebody as an outside identity provider vouches for them, with what the lab's rules make of it.
type Outside struct {
	Provider string // its name in the configuration
	Title    string // its name for people
	Realm    string // within it, Subject is never given to somebody else
	Subject  string
	// Also has further IDs of the same person. They find an account if Subject finds none.
	Also     []string
	Username string // what they are called there
	Name     string
	Email    string // only one that the provider has verified

	Role    Role           // by the rules; empty = they do not decide about roles
	Groups  []OutsideGroup // by the rules
	Create  bool           // an account is made for whoever has none
	Refused string         // the sentence for somebody who may not come in; empty = they may
	Suspend bool           // a refusal suspends the account
	Why     string         // more about a refusal, for admins; may be empty
	Rules   string         // differs whenever the rules do

	// Told says that the provider sent everything that the rules need. If it left something out, Untold is the reason, for
	// admins: Role and Groups then have only what is certain, and an existing account keeps what it has for keptFor.
	Told   bool
	Untold string
	// MayBeNone says that there may be nothing to send. What was left out then counts as empty once the provider has sent
	// it for somebody else in the meantime.
	MayBeNone bool
	// ByHand lets the account be linked by hand although the rules refuse it, which know nobody like it.
	ByHand bool
	// Machine says that it is nobody's: no account of somebody can be linked with it.
	Machine bool
}

// OutsideGroup is a group of the lab that the rules put somebody into. One that does not exist is left out.
type OutsideGroup struct {
	Name string `json:"name"`
	Lead bool   `json:"lead,omitempty"` // as far as the role allows it
}

// Directory knows names and passwords that are not the lab's own.
type Directory interface {
	// SignIn checks a name and password: nil where they do not fit. An error means that the directory did not answer.
	SignIn(ctx context.Context, name, password string) (*Outside, error)
	// Title is its name for people.
	Title() string
}

// UseDirectories makes Authenticate ask them, in this order, when name and password are not those of an account of
// the lab's own. Call it before the first sign-in.
func (s *Service) UseDirectories(list ...Directory) { s.directories = list }

// UseRules tells, by realm, which rules hold now; see Outside.Rules. What was decided by others, or for a provider that
// the lab no longer has, is not applied later. Call it before the first sign-in.
func (s *Service) UseRules(rules map[string]string) { s.rules = rules }

// SuspendWith makes accounts whose outside account the rules refuse, where they say so, be suspended by f, which ends
// more than this service knows of. Without it they are suspended all the same.
func (s *Service) SuspendWith(f func(ctx context.Context, userID int64) error) {
	s.hookMu.Lock()
	defer s.hookMu.Unlock()
	s.suspend = f
}

// decision is what the rules have made of an account.
type decision struct {
	ended   bool     // the sessions
	detail  string   // for the audit log
	refusal *Refusal // nil = the person may come in
}

// decide applies the rules to an account: the person is refused, or gets the role and groups of o. u gets the new role.
// Nobody's account is suspended only because a provider left out groups.
func (s *Service) decide(ctx context.Context, tx *sql.Tx, id identityRow, u *User, o Outside,
	state untold) (d decision, err error) {
	if state == countsNone || state == keptEnough {
		if err := s.noteLapse(ctx, tx, id, *u, o, state); err != nil {
			return d, err
		}
	}
	if o.Refused != "" {
		d.refusal = &Refusal{Text: o.Refused, Handle: u.Handle, UserID: u.ID, Suspend: o.Suspend && state != keptEnough &&
			!u.Suspended}
		d.ended = !u.HasPassword
		return d, s.shutOut(ctx, tx, id, *u, o)
	}
	d.ended, d.detail, err = s.applyRules(ctx, tx, id, u, o)
	return d, err
}

// suspendRefused suspends the account of somebody who was refused, where the rules say so, whichever way they came.
func (s *Service) suspendRefused(ctx context.Context, err error, remote string) error {
	var refused *Refusal
	if !errors.As(err, &refused) || !refused.Suspend || refused.UserID == 0 {
		return nil
	}
	s.hookMu.RLock()
	suspend := s.suspend
	s.hookMu.RUnlock()
	if suspend == nil {
		suspend = s.Suspend
	}
	ctx = context.WithoutCancel(ctx)
	entry := audit.Entry{
		Actor: "system", Action: "user.suspend", Target: refused.Handle, Detail: "no rule for the outside account fits",
		Remote: remote,
	}
	switch err := suspend(ctx, refused.UserID); {
	case errors.Is(err, ErrLastAdmin): // who is let in by nobody else stays, and was not let in
		entry.Action, entry.Detail = "sign-in.failed", "no rule for the outside account fits; the lab's last admin is not "+
			"suspended"
	case err != nil:
		return fmt.Errorf("suspend %s, whom the rules refuse: %w", refused.Handle, err)
	}
	return s.log.Record(ctx, entry)
}

// Refusal says that an outside account may not come in. It is an ErrNotAdmitted.
type Refusal struct {
	Text    string // a sentence
	Handle  string // of the account that it is linked to; empty for none
	UserID  int64
	Suspend bool // the rules want that account suspended, and it is
}

func (r *Refusal) Error() string { return r.Text }
func (r *Refusal) Unwrap() error { return ErrNotAdmitted }

// HandleNeeded says that somebody new has to choose a sign-in name, because theirs cannot be had; then JoinOutside
// makes the account. It is an ErrHandleTaken.
type HandleNeeded struct {
	Outside Outside
	Wanted  string // what they would have been called
	Suggest string // a name that was free a moment ago
}

func (h *HandleNeeded) Error() string {
	return fmt.Sprintf("The sign-in name %s cannot be had here. Sign in on the lab's page once, and choose another "+
		"one there.",
		quote(h.Wanted))
}
func (h *HandleNeeded) Unwrap() error { return ErrHandleTaken }

// SignInOutside signs somebody in whom a provider vouches for, and applies the rules: role and groups are those of
// this sign-in from now on. A role that was given by hand stays. If the provider left out what the rules need, an
// existing account keeps role, groups, access tokens and SSH keys for keptFor. Whoever is new gets an account where the
// provider makes some. Errors are *Refusal, ErrSuspended, ErrNoAccount and *HandleNeeded.
func (s *Service) SignInOutside(ctx context.Context, o Outside, remote string) (User, error) {
	return s.signInOutside(ctx, o, "", remote)
}

// JoinOutside makes the account of somebody who was told HandleNeeded, and signs them in. Errors are those of
// SignInOutside, ErrHandleInvalid and ErrHandleTaken.
func (s *Service) JoinOutside(ctx context.Context, o Outside, handle, remote string) (User, error) {
	if err := CheckHandle(handle); err != nil {
		return User{}, s.explainCase(ctx, handle, err)
	}
	return s.signInOutside(ctx, o, handle, remote)
}

func (s *Service) signInOutside(ctx context.Context, o Outside, handle, remote string) (User, error) {
	if o.Realm == "" || o.Subject == "" {
		return User{}, fmt.Errorf("sign in with %s: nobody is named", o.Provider)
	}
	var u User
	var refusal error
	ended := false
	err := s.inTx(ctx, "sign in with an outside account", func(tx *sql.Tx) error {
		id, err := findIdentity(ctx, tx, o)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			u, err = s.joinOutside(ctx, tx, o, handle, remote)
			return err
		case err != nil:
			return err
		}
		row, err := s.oneRow(ctx, tx, "id = ?", id.userID)
		switch {
		case errors.Is(err, ErrNotFound):
			refusal = &Refusal{Text: "The account of this lab that your account at " + o.Title +
				" belongs to was removed. Ask an admin of the lab."}
			return nil
		case err != nil:
			return err
		}
		u = row.User
		if u.Suspended {
			refusal = errSuspended()
			return nil
		}
		state, err := s.untold(ctx, tx, id, u, o)
		var detail string
		switch {
		case err != nil:
			return err
		case state == keeps && id.refused && o.Refused != "": // who was refused stays refused
			refusal = &Refusal{Text: o.Refused, Handle: u.Handle, UserID: u.ID}
			return nil
		case state == keeps && !id.refused:
			detail, err = s.keepUntold(ctx, tx, id, u, o, remote)
		default:
			var d decision
			d, err = s.decide(ctx, tx, id, &u, o, state)
			ended, detail = d.ended, d.detail
			if d.refusal != nil {
				refusal = d.refusal
				return err
			}
		}
		if err != nil {
			return err
		}
		name := audit.Tidy(o.Username, 100)
		if id.username != "" && id.username != name {
			detail += ", where the account was called " + id.username + " and is now " + name
		}
		_, err = tx.ExecContext(ctx, "UPDATE identities SET provider = ?, username = ?, used_at = ? WHERE id = ?",
			o.Provider, name, s.now().UnixMilli(), id.id)
		if err != nil {
			return err
		}
		return s.log.RecordIn(ctx, tx, audit.Entry{
			Actor: u.Handle, Action: "sign-in", Target: u.Handle, Remote: remote, Detail: "with " + o.Provider + detail,
		})
	})
	if ended && err == nil {
		s.sessionsEnded(u.ID, "")
	}
	s.cache.drop() // a group may have grown: who leads it may do more
	if err == nil && o.Told {
		_ = s.settleUntold(ctx) // Sweep tries again
	}
	if err == nil {
		err = refusal
	}
	if err != nil {
		s.failOutside(ctx, o, u.Handle, remote, err)
		if wrong := s.suspendRefused(ctx, err, remote); wrong != nil {
			return User{}, wrong
		}
		return User{}, err
	}
	return u, nil
}

// failOutside records why somebody whom a provider vouches for did not come in.
func (s *Service) failOutside(ctx context.Context, o Outside, handle, remote string, err error) {
	var why string
	switch {
	case errors.Is(err, ErrNotAdmitted):
		why = "not admitted by the rules"
		switch {
		case o.Untold != "":
			why += "; " + untoldMark + o.Untold
		case o.Why != "":
			why += "; " + o.Why
		}
	case errors.Is(err, ErrSuspended):
		why = "the account is suspended"
	case errors.Is(err, ErrNoAccount):
		why = "no account is linked"
	default:
		return // they go on and choose a name, or it is ours
	}
	s.fail(ctx, failure{handle, remote, audit.Tidy(o.Provider+", "+audit.Tidy(o.Username, 100)+": "+why, 400)})
}

// LimitOutside begins a sign-in with an outside account, or refuses it with a *RateError where too many of the same
// browser or account failed: who. Others at that address do not wait for those. The address is who where that is empty,
// and bounds how many are under way at once. Unless it is refused, call done with what became of it.
func (s *Service) LimitOutside(who, remote string) (done func(failed bool), err error) {
	key := remoteKey(remote)
	failures := key
	if who != "" {
		sum := sha256.Sum256([]byte(who))
		failures = "who " + string(sum[:])
	}
	if refused := s.limits.outside.waits(failures, s.now()); refused != nil {
		return nil, refused
	}
	if refused := s.limits.outside.enter(key, s.now()); refused != nil {
		return nil, refused
	}
	return func(failed bool) {
		s.limits.outside.leave(key, false, s.now())
		if failed {
			s.limits.outside.failed(failures, s.now())
		}
	}, nil
}

// FailOutside records a sign-in that a provider did not vouch for. handle is of the account that asked to be linked,
// empty for none.
func (s *Service) FailOutside(ctx context.Context, handle, provider, why, remote string) {
	s.fail(ctx, failure{handle, remote, audit.Tidy(provider+": "+why, 200)})
}

// joinOutside makes the account of somebody new.
func (s *Service) joinOutside(ctx context.Context, tx *sql.Tx, o Outside, handle, remote string) (User, error) {
	if o.Refused != "" {
		return User{}, sentence(ErrNotAdmitted, "%s", o.Refused)
	}
	if !o.Create {
		return User{}, sentence(ErrNoAccount, "Your account at %s belongs to no account of this lab yet. If you have one "+
			"here, sign in with its password and link them on the page of your account; otherwise ask an admin of the lab.",
			o.Title)
	}
	if handle == "" {
		wanted := wantedHandle(o.Username)
		free, err := s.freeHandle(ctx, tx, wanted)
		if err != nil {
			return User{}, err
		}
		if free != wanted {
			needed := &HandleNeeded{Outside: o, Wanted: wanted, Suggest: free}
			return User{}, &Error{Kind: needed, Text: needed.Error()}
		}
		handle = wanted
	}
	n := NewUser{Handle: handle, Role: o.Role}
	// What a provider says must not keep anybody out: a name that cannot be shown is left out.
	if name, err := checkName(clip(strings.TrimSpace(o.Name), 80)); err == nil {
		n.Name = name
	}
	if email, err := checkEmail(o.Email); err == nil {
		n.Email = email
	}
	n, err := n.checked()
	if err != nil {
		return User{}, err
	}
	u, err := s.insert(ctx, tx, n, "")
	if err != nil {
		return User{}, err
	}
	id, err := s.addIdentity(ctx, tx, u.ID, o)
	if err != nil {
		return User{}, err
	}
	// Nobody has given it by hand.
	id.role = u.Role
	if _, err := tx.ExecContext(ctx, "UPDATE identities SET role = ?, used_at = ? WHERE id = ?", u.Role,
		s.now().UnixMilli(), id.id); err != nil {
		return User{}, err
	}
	if err := s.noteTold(ctx, tx, id, o); err != nil {
		return User{}, err
	}
	if _, _, err := s.applyRules(ctx, tx, id, &u, o); err != nil {
		return User{}, err
	}
	return u, s.log.RecordIn(ctx, tx, audit.Entry{Actor: u.Handle, Action: "identity.join", Target: u.Handle,
		Remote: remote,
		Detail: fmt.Sprintf("%s at %s, role %s", o.Username, o.Provider, u.Role)})
}

// wantedHandle is how somebody would be called here who is called that elsewhere; it may be reserved.
func wantedHandle(username string) string {
	local, _, _ := strings.Cut(username, "@")
	if lower := fold(local); isReserved(lower) {
		return lower
	}
	return SuggestHandle(local)
}

// freeHandle is the wanted name, or else one like it that is free.
func (s *Service) freeHandle(ctx context.Context, q querier, wanted string) (string, error) {
	if isReserved(wanted) {
		wanted = SuggestHandle(wanted)
	}
	return s.nextFree(ctx, q, wanted)
}
