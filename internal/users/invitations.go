package users

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/store"
)

// What goes wrong with invitations.
var (
	ErrInvitationUnknown = errors.New("unknown invitation")
	ErrInvitationUsed    = errors.New("invitation used up")
	ErrInvitationExpired = errors.New("invitation expired")
	ErrInvitationRevoked = errors.New("invitation revoked")
	ErrInvitationInvalid = errors.New("invitation not possible")
	ErrUsesInvalid       = errors.New("number of uses not possible")
	ErrDaysInvalid       = errors.New("number of days not possible")
	ErrMayNot            = errors.New("not allowed")
	ErrNoMail            = errors.New("no mail server")
)

// How long an invitation works and for how many people.
const (
	InvitationTTL    = 14 * 24 * time.Hour // unless said otherwise
	MaxInvitationTTL = 90 * 24 * time.Hour
	MaxInvitees      = 500

	maxNote = 200 // characters
)

// NewInvitation is what it takes to invite people.
type NewInvitation struct {
	Role  Role   // of the accounts; member if empty
	Group string // which they join; empty for none
	Note  string // for those who see the list, such as "Summer school"
	Uses  int    // how many accounts, 1–500; an invitation for admins makes one
	TTL   time.Duration
	// Emails are the addresses that it is sent to, where the lab has a mail server; no more than Uses.
	Emails []string
}

// Invitation is a link with which people make accounts of their own.
type Invitation struct {
	ID      int64     `json:"id"`
	Role    Role      `json:"role"`
	Group   string    `json:"group,omitempty"` // name; empty for none
	Title   string    `json:"title,omitempty"` // of the group
	Note    string    `json:"note,omitempty"`
	Uses    int       `json:"uses"` // accounts made with it so far
	MaxUses int       `json:"maxUses"`
	By      string    `json:"by"` // handle of who made it; Root's for the command line
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	Revoked bool      `json:"revoked,omitempty"`
}

// Left is how many more accounts can be made with it.
func (i Invitation) Left() int { return i.MaxUses - i.Uses }

// State is "open", or why no more accounts are made with it: "revoked", "used up" or "expired".
func (i Invitation) State(now time.Time) string {
	switch {
	case i.Revoked:
		return "revoked"
	case i.Left() <= 0:
		return "used up"
	case !now.Before(i.Expires):
		return "expired"
	}
	return "open"
}

// Detail is what the audit log tells of an invitation that was made.
func (i Invitation) Detail() string {
	return fmt.Sprintf("%s, %d uses, until %s", RoleDetail(i.Role, i.Group), i.MaxUses, i.Expires.Format(time.DateOnly))
}

// Root is who runs commands on the head: everything allowed, but no account. None can have its handle, nor its ID.
func Root() User { return User{ID: -1, Handle: "root", Role: RoleAdmin} }

// Invite makes an invitation in by's name and returns the token for its address; only a hash of it is kept. Who may
// invite everybody may do so for any role; who leads groups, for members and guests of those: otherwise ErrMayNot.
// ErrUsesInvalid, ErrDaysInvalid, ErrRoleInvalid, ErrGroupNotFound and ErrInvitationInvalid say what else is wrong.
func (s *Service) Invite(ctx context.Context, by User, n NewInvitation) (inv Invitation, token string, err error) {
	if n, err = n.checked(); err != nil {
		return Invitation{}, "", err
	}
	if len(n.Emails) > 0 && s.post == nil {
		return Invitation{}, "", sentence(ErrNoMail, "This lab has no mail server, so it cannot send the invitation. "+
			"Leave the addresses out and send the link yourself.")
	}
	token, hash := newToken()
	err = s.inTx(ctx, "invite", func(tx *sql.Tx) error {
		var group sql.NullInt64
		if n.Group != "" {
			id, err := groupID(ctx, tx, n.Group)
			if err != nil {
				return err
			}
			group = sql.NullInt64{Int64: id, Valid: true}
		}
		if err := mayInvite(ctx, tx, by, n.Role, group); err != nil {
			return err
		}
		now := s.now()
		res, err := tx.ExecContext(ctx, `INSERT INTO invitations (token_hash, role, group_id, note, max_uses, created_by,
			created_at, expires_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
			hash[:], n.Role, group, n.Note, n.Uses, by.Handle, now.UnixMilli(), now.Add(n.TTL).UnixMilli())
		if err != nil {
			return err
		}
		id, err := res.LastInsertId()
		if err != nil {
			return err
		}
		if inv, err = invitation(ctx, tx, "i.id = ?", id); err != nil || len(n.Emails) == 0 {
			return err
		}
		return s.post.Invited(ctx, tx, by, inv, token, n.Emails)
	})
	if err != nil {
		return Invitation{}, "", err
	}
	return inv, token, nil
}

func (n NewInvitation) checked() (NewInvitation, error) {
	if n.Role == "" {
		n.Role = RoleMember
	}
	if n.TTL == 0 {
		n.TTL = InvitationTTL
	}
	n.Note = strings.TrimSpace(n.Note)
	switch err := checkRole(n.Role); {
	case err != nil:
		return n, err
	case n.Uses < 1 || n.Uses > MaxInvitees:
		return n, sentence(ErrUsesInvalid, "An invitation works for 1 to %d people. Make another one for more.", MaxInvitees)
	case n.Role == RoleAdmin && n.Uses != 1:
		return n, sentence(ErrUsesInvalid, "An invitation for an admin works for one person. Make one for each.")
	case n.TTL < 0 || n.TTL > MaxInvitationTTL:
		return n, sentence(ErrDaysInvalid, "An invitation works for 1 to %d days.", MaxInvitationTTL/(24*time.Hour))
	case utf8.RuneCountInString(n.Note) > maxNote || audit.Tidy(n.Note, maxNote) != n.Note:
		return n, sentence(ErrInvitationInvalid, "The note is one line of at most %d characters. Shorten it.", maxNote)
	}
	for i := range n.Emails {
		var err error
		if n.Emails[i], err = checkEmail(n.Emails[i]); err != nil {
			return n, err
		}
	}
	n.Emails = slices.DeleteFunc(n.Emails, func(address string) bool { return address == "" })
	slices.Sort(n.Emails)
	if n.Emails = slices.Compact(n.Emails); len(n.Emails) > n.Uses {
		return n, sentence(ErrUsesInvalid, "The invitation works for %s, but there are %d addresses to send it to. Let it "+
			"work for as many.", plural(n.Uses, "account"), len(n.Emails))
	}
	return n, nil
}

// mayInvite asks the policy, and for a lead the group, now: somebody may have stopped leading it.
func mayInvite(ctx context.Context, q querier, by User, role Role, group sql.NullInt64) error {
	switch by.Scope(ActionInvite) {
	case Everybody:
		return nil
	case OwnGroups:
		if role != RoleMember && role != RoleGuest {
			return sentence(ErrMayNot, "Who leads a group invites members and guests. An admin of the lab invites others.")
		}
		var leads bool
		err := q.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM group_members WHERE group_id = ? AND user_id = ? AND "+
			"lead = 1)", group, by.ID).Scan(&leads)
		if err != nil {
			return fmt.Errorf("look up who leads a group: %w", err)
		}
		if leads {
			return nil
		}
		return sentence(ErrMayNot, "You invite people into groups that you lead. Choose one of those.")
	}
	return sentence(ErrMayNot, "Your account does not allow you to invite people. Ask an admin of the lab to do it.")
}

const selectInvitation = `SELECT i.id, i.role, i.group_id, coalesce(g.name, ''), coalesce(g.title, ''), i.note,
	i.uses, i.max_uses, i.created_by,
	i.created_at, i.expires_at, i.revoked_at IS NOT NULL FROM invitations i LEFT JOIN groups g ON g.id = i.group_id WHERE `

func scanInvitation(row store.Row) (inv Invitation, group sql.NullInt64, err error) {
	var created, expires int64
	err = row.Scan(&inv.ID, &inv.Role, &group, &inv.Group, &inv.Title, &inv.Note, &inv.Uses, &inv.MaxUses, &inv.By,
		&created, &expires, &inv.Revoked)
	inv.Created, inv.Expires = time.UnixMilli(created).UTC(), time.UnixMilli(expires).UTC()
	return inv, group, err
}

func invitation(ctx context.Context, q querier, where string, arg any) (Invitation, error) {
	inv, _, err := scanInvitation(q.QueryRowContext(ctx, selectInvitation+where, arg))
	if errors.Is(err, sql.ErrNoRows) {
		return Invitation{}, errInvitationUnknown()
	}
	if err != nil {
		return Invitation{}, fmt.Errorf("look up an invitation: %w", err)
	}
	return inv, nil
}

func errInvitationUnknown() error {
	return sentence(ErrInvitationUnknown, "This invitation is not one of this lab's. Check that the whole address was "+
		"copied, or ask whoever sent it for another.")
}

// Invitations lists those that by could have made, the newest first.
func (s *Service) Invitations(ctx context.Context, by User) ([]Invitation, error) {
	type row struct {
		Invitation
		group sql.NullInt64
	}
	all, err := store.All(ctx, s.db, func(r store.Row) (one row, err error) {
		one.Invitation, one.group, err = scanInvitation(r)
		return one, err
	}, selectInvitation+"1 ORDER BY i.id DESC")
	if err != nil {
		return nil, fmt.Errorf("list invitations: %w", err)
	}
	list := []Invitation{}
	for i := range all {
		switch err := mayInvite(ctx, s.db, by, all[i].Role, all[i].group); {
		case err == nil:
			list = append(list, all[i].Invitation)
		case !errors.Is(err, ErrMayNot):
			return nil, err
		}
	}
	return list, nil
}

// RevokeInvitation makes an invitation that by could have made work no longer; the accounts made with it stay. Again is
// no error.
func (s *Service) RevokeInvitation(ctx context.Context, by User, id int64) (Invitation, error) {
	var inv Invitation
	err := s.inTx(ctx, "revoke an invitation", func(tx *sql.Tx) error {
		var group sql.NullInt64
		var err error
		inv, group, err = scanInvitation(tx.QueryRowContext(ctx, selectInvitation+"i.id = ?", id))
		if errors.Is(err, sql.ErrNoRows) {
			return errInvitationUnknown()
		}
		if err != nil {
			return err
		}
		if err := mayInvite(ctx, tx, by, inv.Role, group); err != nil {
			if errors.Is(err, ErrMayNot) {
				return errInvitationUnknown() // nor does by learn that it is there
			}
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE invitations SET revoked_at = coalesce(revoked_at, ?) WHERE id = ?",
			s.now().UnixMilli(), id)
		inv.Revoked = true
		return err
	})
	return inv, err
}

// InvitationInfo says what a token is good for without using anything up: ErrInvitationUnknown, ErrInvitationUsed,
// ErrInvitationExpired or ErrInvitationRevoked when for nothing.
func (s *Service) InvitationInfo(ctx context.Context, token string) (Invitation, error) {
	_, hash, ok := parseToken(token)
	if !ok {
		return Invitation{}, errInvitationUnknown()
	}
	inv, _, err := s.openInvitation(ctx, s.db, hash)
	return inv, err
}

// openInvitation finds one that still works. Whoever made it must still be allowed to: the link of a lead who was
// suspended would otherwise let them in again.
func (s *Service) openInvitation(ctx context.Context, q querier,
	hash [sha256.Size]byte) (Invitation, sql.NullInt64, error) {
	inv, group, err := scanInvitation(q.QueryRowContext(ctx, selectInvitation+"i.token_hash = ?", hash[:]))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Invitation{}, group, errInvitationUnknown()
	case err != nil:
		return Invitation{}, group, fmt.Errorf("look up an invitation: %w", err)
	case inv.Revoked:
		return Invitation{}, group, sentence(ErrInvitationRevoked,
			"This invitation was taken back. Ask whoever sent it for another.")
	case inv.Left() <= 0:
		return Invitation{}, group, sentence(ErrInvitationUsed, "Everybody this invitation was for has an account by now. "+
			"If you have one, sign in; otherwise ask whoever sent it for another.")
	case !s.now().Before(inv.Expires):
		return Invitation{}, group, sentence(ErrInvitationExpired,
			"This invitation is too old. Ask whoever sent it for a new one.")
	}
	if inv.By == Root().Handle {
		return inv, group, nil
	}
	maker, err := s.oneRow(ctx, q, "handle = ?", inv.By)
	if err == nil {
		err = mayInvite(ctx, q, maker.User, inv.Role, group)
	}
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrMayNot) {
		err = sentence(ErrInvitationRevoked, "Whoever sent this invitation does not invite people any more. Ask an admin "+
			"of the lab for another.")
	}
	return inv, group, err
}

// Join makes the account of somebody who was invited, with the invitation's role and group, whatever n says. Of any
// number of people at once no more get in than it has uses left. Input that is refused (a bad handle, a weak password)
// uses nothing up. Who shows invitations that do not work waits after many of them, by address: *RateError. Those that
// work do not wait for them: a class joins from one address, and nobody guesses an invitation.
func (s *Service) Join(ctx context.Context, token string, n NewUser, password, remote string) (User, error) {
	key := remoteKey(remote)
	if refused := s.limits.joins.enter(key, s.now()); refused != nil {
		return User{}, refused
	}
	u, err := s.join(ctx, token, n, password, remote)
	s.limits.joins.leave(key, false, s.now())
	wrong := []error{ErrInvitationUnknown, ErrInvitationUsed, ErrInvitationExpired, ErrInvitationRevoked}
	if slices.ContainsFunc(wrong, func(w error) bool { return errors.Is(err, w) }) {
		if refused := s.limits.joins.try(key, s.now()); refused != nil {
			return User{}, refused
		}
	}
	return u, err
}

func (s *Service) join(ctx context.Context, token string, n NewUser, password, remote string) (User, error) {
	inv, err := s.InvitationInfo(ctx, token)
	if err != nil {
		return User{}, err
	}
	n.Role = inv.Role
	if n, err = s.openFor(ctx, n); err != nil {
		return User{}, err
	}
	var encoded string
	if password != "" || n.Outside == nil {
		if encoded, err = s.newPassword(ctx, password, n.Handle); err != nil {
			return User{}, err
		}
	}
	var u User
	err = s.inTx(ctx, "join with an invitation", func(tx *sql.Tx) error {
		_, hash, _ := parseToken(token)
		inv, group, err := s.openInvitation(ctx, tx, hash)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE invitations SET uses = uses + 1 WHERE id = ?", inv.ID); err != nil {
			return err
		}
		n.Role = inv.Role
		if u, err = s.insert(ctx, tx, n, encoded); err != nil {
			return err
		}
		if group.Valid {
			if err := s.setMember(ctx, tx, group.Int64, u, u.Role == RoleLead); err != nil {
				return err
			}
		}
		err = s.log.RecordIn(ctx, tx, audit.Entry{Actor: u.Handle, Action: "invitation.join", Target: u.Handle,
			Remote: remote,
			Detail: fmt.Sprintf("invitation %d by %s, %s", inv.ID, inv.By, RoleDetail(u.Role, inv.Group))})
		if err != nil || n.Outside == nil {
			return err
		}
		return s.linkInvited(ctx, tx, u, *n.Outside, "by the invitation", remote)
	})
	if err != nil {
		return User{}, err
	}
	s.cache.drop() // the group has grown: who leads it may do more
	return u, nil
}

// RoleDetail is what an account got, for the audit log.
func RoleDetail(role Role, group string) string {
	if group == "" {
		return "role " + string(role)
	}
	return "role " + string(role) + ", group " + group
}

// sweepInvitations forgets those that have not worked for a long time.
func (s *Service) sweepInvitations(ctx context.Context) error {
	if _, err := s.db.ExecContext(ctx, "DELETE FROM invitations WHERE expires_at < ?",
		s.now().Add(-linksKept).UnixMilli()); err != nil {
		return fmt.Errorf("forget old invitations: %w", err)
	}
	return nil
}
