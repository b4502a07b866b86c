package users

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/store"
)

// keptFor is how long a person keeps role and groups while a provider leaves out what the rules need.
const keptFor = 30 * 24 * time.Hour

// untoldMark begins the part of an audit entry's detail that says what a provider left out. Entries from before have
// oldUntoldMark.
const (
	untoldMark    = "the provider did not send everything that the rules need: "
	oldUntoldMark = "what the rules look at was not told: "
)

// afterwards is what a person gets when the time is over for which they keep role and groups.
type afterwards struct {
	Role      Role           `json:"role,omitempty"`
	Groups    []OutsideGroup `json:"groups,omitempty"`
	Refused   string         `json:"refused,omitempty"`
	Suspend   bool           `json:"suspend,omitempty"`
	Why       string         `json:"why"`
	MayBeNone bool           `json:"mayBeNone,omitempty"`
	Rules     string         `json:"rules,omitempty"` // by which that was decided
}

// untold says what is done in a sign-in in which a provider left out what the rules need.
type untold int

const (
	toldAll    untold = iota // nothing that the rules need is left out
	keeps                    // the person keeps what they have
	countsNone               // what is left out is known to be empty
	keptEnough               // the person has kept what they had for keptFor
)

// untold reports what to do about what a provider left out. If that may be because it is empty, it counts as empty
// once the provider has since sent it for somebody else. The lab's last admin keeps what they have.
func (s *Service) untold(ctx context.Context, tx *sql.Tx, id identityRow, u User, o Outside) (untold, error) {
	if o.Untold == "" {
		return toldAll, nil
	}
	over := keptEnough
	if o.MayBeNone && id.untoldAt != 0 {
		var others bool
		err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM identities WHERE realm = ? AND id <> ? AND told_at > ?)",
			o.Realm, id.id, id.untoldAt).Scan(&others)
		if err != nil {
			return keeps, err
		}
		if others {
			over = countsNone
		}
	}
	if over == keptEnough && (id.keptUntil == 0 || s.now().UnixMilli() < id.keptUntil) {
		return keeps, nil
	}
	if o.Refused != "" {
		if err := notLastAdmin(ctx, tx, u); errors.Is(err, ErrLastAdmin) {
			return keeps, nil
		} else if err != nil {
			return keeps, err
		}
	}
	return over, nil
}

// noteTold records that the rules have decided about a person, and whether the provider sent what they need.
func (s *Service) noteTold(ctx context.Context, tx *sql.Tx, id identityRow, o Outside) error {
	set := "refused_at = NULL"
	var args []any
	if o.Untold == "" {
		set += ", untold_at = NULL, kept_until = NULL, kept_then = NULL"
	}
	if o.Told {
		set += ", told_at = ?"
		args = append(args, s.now().UnixMilli())
	}
	_, err := tx.ExecContext(ctx, "UPDATE identities SET "+set+" WHERE id = ?", append(args, id.id)...)
	return err
}

// keepUntold leaves a person what they have for now, and writes that to the audit log.
func (s *Service) keepUntold(ctx context.Context, tx *sql.Tx, id identityRow, u User, o Outside,
	remote string) (detail string, err error) {
	then, err := json.Marshal(afterwards{o.Role, o.Groups, o.Refused, o.Suspend, o.Untold, o.MayBeNone, o.Rules})
	if err != nil {
		return "", err
	}
	until := id.keptUntil
	if until == 0 {
		until = s.now().Add(keptFor).UnixMilli()
	}
	_, err = tx.ExecContext(ctx, "UPDATE identities SET untold_at = coalesce(untold_at, ?), kept_until = ?, kept_then "+
		"= ? WHERE id = ?",
		s.now().UnixMilli(), until, string(then), id.id)
	if err != nil {
		return "", err
	}
	detail = ", role and groups are kept until " + time.UnixMilli(until).Local().Format(time.DateOnly)
	return detail, s.log.RecordIn(ctx, tx, audit.Entry{Actor: "system", Action: "identity.untold", Target: u.Handle,
		Remote: remote,
		Detail: audit.Tidy(o.Provider+", "+audit.Tidy(o.Username, 100)+": "+untoldMark+o.Untold, 400)})
}

// noteLapse writes to the audit log, once, that a person no longer keeps role and groups.
func (s *Service) noteLapse(ctx context.Context, tx *sql.Tx, id identityRow, u User, o Outside, state untold) error {
	if id.keptThen == "" {
		return nil
	}
	if _, err := tx.ExecContext(ctx, "UPDATE identities SET kept_then = NULL WHERE id = ?", id.id); err != nil {
		return err
	}
	why := "the provider has not sent the groups for 30 days"
	if state == countsNone {
		why = "the provider sends the groups of others, so this person is in none"
	}
	then := "the rules give no role"
	switch {
	case o.Refused != "":
		then = "the rules refuse the person"
	case o.Role != "":
		then = "the rules give the role " + string(o.Role)
	}
	return s.log.RecordIn(ctx, tx, audit.Entry{Actor: "system", Action: "identity.lapse", Target: u.Handle,
		Detail: audit.Tidy(o.Provider+", "+audit.Tidy(o.Username, 100)+": "+why+"; "+then, 400)})
}

// settleUntold applies the rules to everybody who no longer keeps role and groups.
func (s *Service) settleUntold(ctx context.Context) error {
	due, err := store.All(ctx, s.db, func(row store.Row) (id int64, err error) { return id, row.Scan(&id) },
		`SELECT id FROM identities i WHERE kept_then IS NOT NULL AND (kept_until <= ?
			OR json_extract(kept_then, '$.mayBeNone')
			AND EXISTS (SELECT 1 FROM identities o WHERE o.realm = i.realm AND o.id <> i.id AND o.told_at > i.untold_at))`,
		s.now().UnixMilli())
	errs := []error{err}
	for _, id := range due {
		errs = append(errs, s.settle(ctx, id))
	}
	return errors.Join(errs...)
}

func (s *Service) settle(ctx context.Context, identity int64) error {
	var u User
	var d decision
	err := s.inTx(ctx, "apply the rules without the groups that a provider left out", func(tx *sql.Tx) error {
		var o Outside
		row := tx.QueryRowContext(ctx, "SELECT "+identityColumns+", provider, realm FROM identities WHERE id = ?", identity)
		id, err := scanIdentity(row, &o.Provider, &o.Realm)
		if errors.Is(err, sql.ErrNoRows) || err == nil && id.keptThen == "" {
			return nil // unlinked or decided by a sign-in in the meantime
		}
		if err != nil {
			return err
		}
		var a afterwards
		if err := json.Unmarshal([]byte(id.keptThen), &a); err != nil {
			return err
		}
		if s.rules != nil && s.rules[o.Realm] != a.Rules {
			// Today's rules decide at the next sign-in; until then the person keeps what they have.
			_, err := tx.ExecContext(ctx, "UPDATE identities SET kept_then = NULL, kept_until = NULL WHERE id = ?", identity)
			return err
		}
		o.Username, o.Role, o.Groups, o.Refused, o.Suspend = id.username, a.Role, a.Groups, a.Refused, a.Suspend
		o.Untold, o.MayBeNone = a.Why, a.MayBeNone
		account, err := s.oneRow(ctx, tx, "id = ?", id.userID)
		if errors.Is(err, ErrNotFound) {
			_, err = tx.ExecContext(ctx, "UPDATE identities SET kept_then = NULL WHERE id = ?", identity)
			return err
		}
		if err != nil {
			return err
		}
		u = account.User
		state, err := s.untold(ctx, tx, id, u, o)
		if err != nil || state == keeps {
			return err
		}
		d, err = s.decide(ctx, tx, id, &u, o, state)
		return err
	})
	if err != nil {
		return err
	}
	if d.ended {
		s.sessionsEnded(u.ID, "")
	}
	s.cache.drop()
	if d.refusal == nil {
		return nil
	}
	return s.suspendRefused(ctx, d.refusal, "")
}

// Kept is a person who keeps role and groups for now, because a provider leaves out what the rules need.
type Kept struct {
	ID                         int64 // of the outside account
	Handle, Provider, Username string
	Role                       Role
	Until                      time.Time
	Why                        string // what the provider leaves out
	Then                       Role   // the role afterwards; empty if the rules give none
	Refused                    bool   // afterwards the person may not come in
}

// KeptUntold lists everybody who keeps role and groups for now.
func (s *Service) KeptUntold(ctx context.Context) ([]Kept, error) {
	return store.All(ctx, s.db, func(row store.Row) (k Kept, err error) {
		var until int64
		var then string
		var a afterwards
		err = row.Scan(&k.ID, &k.Handle, &k.Provider, &k.Username, &k.Role, &until, &then)
		if err == nil {
			err = json.Unmarshal([]byte(then), &a)
		}
		k.Until, k.Why, k.Then, k.Refused = time.UnixMilli(until).UTC(), a.Why, a.Role, a.Refused != ""
		return k, err
	}, `SELECT i.id, u.handle, i.provider, i.username, u.role, i.kept_until, i.kept_then
		FROM identities i JOIN users u ON u.id = i.user_id
		WHERE i.kept_then IS NOT NULL AND u.removed_at IS NULL ORDER BY i.kept_until, i.id`)
}

// Untold is a person who signed in, or tried to, and about whom a provider left out what the rules need.
type Untold struct {
	At                      time.Time
	Provider, Username, Why string
}

// UntoldIn reads an Untold from an entry of the audit log; ok is false if the entry is about something else.
func UntoldIn(e audit.Entry) (u Untold, ok bool) {
	if e.Action != "identity.untold" && e.Action != "sign-in.failed" {
		return Untold{}, false
	}
	who, why, ok := strings.Cut(e.Detail, untoldMark)
	if !ok {
		who, why, ok = strings.Cut(e.Detail, oldUntoldMark)
	}
	provider, rest, comma := strings.Cut(who, ", ")
	name, _, colon := strings.Cut(rest, ": ")
	return Untold{At: e.At, Provider: provider, Username: name, Why: why}, ok && comma && colon
}
