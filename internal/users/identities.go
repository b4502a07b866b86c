package users

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/store"
)

// Identity is an account at an outside provider that somebody signs in with.
type Identity struct {
	ID       int64      `json:"id"`
	Provider string     `json:"provider"` // its name in the configuration when it was last used
	Username string     `json:"username"` // what they are called there
	Linked   time.Time  `json:"linked"`
	Used     *time.Time `json:"used,omitempty"` // the last sign-in with it; nil = never
	// Role is what the provider's rules gave last; empty = nothing yet. The account's role is by hand where it is
	// another one.
	Role Role `json:"role,omitempty"`
	// UntoldSince is since when the provider leaves out groups that the rules need; nil = it does not. KeptUntil is until
	// when the person keeps role and groups nevertheless; nil = nothing is left out, or the rules decided without it.
	UntoldSince *time.Time `json:"untoldSince,omitempty"`
	KeptUntil   *time.Time `json:"keptUntil,omitempty"`
}

// RoleByHand tells whether somebody with outside accounts has another role than their rules gave last, or these gave
// none yet.
func (p *Person) RoleByHand() bool {
	return len(p.Identities) > 0 && !slices.ContainsFunc(p.Identities, func(id Identity) bool { return id.Role == p.Role })
}

// identityRow is what decides a sign-in.
type identityRow struct {
	id, userID int64
	role       Role // what the rules gave last; empty = nothing yet
	username   string
	untoldAt   int64  // since when the provider leaves out what the rules need, UTC unix milliseconds; 0 = it does not
	keptUntil  int64  // until when they keep role and groups nevertheless, UTC unix milliseconds; 0 = not known yet
	keptThen   string // what they get afterwards, as JSON; empty = nothing, or they have it already
	refused    bool   // by the rules, the last time that they could decide
}

const identityColumns = `id, user_id, coalesce(role, ''), username, coalesce(untold_at, 0), coalesce(kept_until, 0),
	coalesce(kept_then, ''), refused_at IS NOT NULL`

func scanIdentity(row store.Row, more ...any) (r identityRow, err error) {
	err = row.Scan(append([]any{&r.id, &r.userID, &r.role, &r.username, &r.untoldAt, &r.keptUntil, &r.keptThen,
		&r.refused}, more...)...)
	return r, err
}

// findIdentity looks an outside account up; sql.ErrNoRows where it is new.
func findIdentity(ctx context.Context, q querier, o Outside) (identityRow, error) {
	for _, subject := range append([]string{o.Subject}, o.Also...) {
		row, err := scanIdentity(q.QueryRowContext(ctx,
			"SELECT "+identityColumns+" FROM identities WHERE subject = ? AND realm = ?", subject, o.Realm))
		if !errors.Is(err, sql.ErrNoRows) {
			return row, err
		}
	}
	return identityRow{}, sql.ErrNoRows
}

// unusedRealm ends the realm of an outside account whose place another one with the same subject has taken.
const unusedRealm = " (unused)"

// NormalizeRealms rewrites realms as normal does. Call it before the first sign-in: earlier versions kept the spaces of
// the configuration in realms of directories. If somebody has an account by each of two spellings, the one that was
// used last is found from now on.
func (s *Service) NormalizeRealms(ctx context.Context, normal func(realm string) string) error {
	return s.inTx(ctx, "normalize the realms of outside accounts", func(tx *sql.Tx) error {
		type row struct {
			id    int64
			realm string
		}
		list, err := store.All(ctx, tx, func(r store.Row) (one row, err error) { return one, r.Scan(&one.id, &one.realm) },
			"SELECT id, realm FROM identities ORDER BY used_at DESC")
		if err != nil {
			return err
		}
		for _, one := range list {
			realm := normal(one.realm)
			if realm == one.realm || strings.HasSuffix(one.realm, unusedRealm) {
				continue
			}
			// An account that was used less recently makes room.
			_, err := tx.ExecContext(ctx, `UPDATE OR IGNORE identities SET realm = realm || ?3 WHERE realm = ?1 AND id <> ?2
				AND subject = (SELECT subject FROM identities WHERE id = ?2)
				AND coalesce(used_at, 0) < (SELECT coalesce(used_at, 0) FROM identities WHERE id = ?2)`, realm, one.id, unusedRealm)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "UPDATE OR IGNORE identities SET realm = ? WHERE id = ?", realm,
				one.id); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *Service) addIdentity(ctx context.Context, tx *sql.Tx, userID int64, o Outside) (identityRow, error) {
	res, err := tx.ExecContext(ctx, "INSERT INTO identities (user_id, provider, realm, subject, username, linked_at) "+
		"VALUES (?, ?, ?, ?, ?, ?)",
		userID, o.Provider, o.Realm, o.Subject, audit.Tidy(o.Username, 100), s.now().UnixMilli())
	if err != nil {
		return identityRow{}, err
	}
	id, err := res.LastInsertId()
	return identityRow{id: id, userID: userID}, err
}

// LinkOutside lets somebody sign in with an outside account from now on. The caller has made sure that it is they who
// ask. Their role stays as it is; the rules apply from the next sign-in with it. Errors are ErrNotAdmitted,
// ErrIdentityTaken and ErrIdentityExists.
func (s *Service) LinkOutside(ctx context.Context, userID int64, o Outside) error {
	return s.inTx(ctx, "link an outside account", func(tx *sql.Tx) error {
		if _, err := s.oneRow(ctx, tx, "id = ?", userID); err != nil {
			return err
		}
		return s.linkOutside(ctx, tx, userID, o)
	})
}

func (s *Service) linkOutside(ctx context.Context, tx *sql.Tx, userID int64, o Outside) error {
	switch {
	case o.Realm == "" || o.Subject == "":
		return fmt.Errorf("link with %s: nobody is named", o.Provider)
	case o.Machine:
		return &Refusal{Text: "Whoever sits at " + o.Username + " would sign in to the account. It can be linked with a " +
			"person’s login only."}
	case o.Refused != "" && !o.ByHand:
		return &Refusal{Text: o.Refused}
	}
	switch id, err := findIdentity(ctx, tx, o); {
	case err == nil && id.userID == userID:
		return sentence(ErrIdentityExists, "Your account at %s is linked already.", o.Title)
	case err == nil:
		var removed bool
		if err := tx.QueryRowContext(ctx, "SELECT removed_at IS NOT NULL FROM users WHERE id = ?",
			id.userID).Scan(&removed); err != nil {
			return err
		}
		if removed {
			return sentence(ErrIdentityTaken, "This account at %s belongs to an account of this lab that was removed. An "+
				"admin of the lab can bring that one back, or delete it for good and invite you again.", o.Title)
		}
		return sentence(ErrIdentityTaken, "This account at %s belongs to another account of this lab. Sign in with it to "+
			"see which; an admin of the lab can take it off that one.", o.Title)
	case !errors.Is(err, sql.ErrNoRows):
		return err
	}
	var other bool
	err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM identities WHERE user_id = ? AND realm = ?)", userID,
		o.Realm).Scan(&other)
	if err != nil {
		return err
	}
	if other {
		return sentence(ErrIdentityExists, "Another account at %s is linked. Unlink that one first.", o.Title)
	}
	_, err = s.addIdentity(ctx, tx, userID, o)
	return err
}

// LinkedByHand tells whether somebody has linked an outside account to one of the lab's, and nobody has left its role
// to the rules since.
func (s *Service) LinkedByHand(ctx context.Context, o Outside) (bool, error) {
	id, err := findIdentity(ctx, s.db, o)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil && id.role == "", err
}

// Unlink ends that somebody can sign in with an outside account, and takes back the groups that its rules gave. Unless
// forced, it is not done to an account that nobody could sign in with then: ErrLastWayIn. ErrIdentityNotFound.
func (s *Service) Unlink(ctx context.Context, userID, identityID int64, force bool) (Identity, error) {
	var gone Identity
	err := s.change(ctx, userID, "unlink an outside account", func(tx *sql.Tx, u User) (bool, error) {
		list, err := identitiesOf(ctx, tx, userID)
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(list, func(id Identity) bool { return id.ID == identityID })
		if i < 0 {
			return false, sentence(ErrIdentityNotFound, "This account is not linked any more.")
		}
		if len(list) == 1 && !u.HasPassword && !force {
			return false, sentence(ErrLastWayIn, "It is the only way to sign in to this account. Ask an admin of the lab for "+
				"a password link first.")
		}
		gone = list[i]
		given, err := givenGroups(ctx, tx, identityID)
		if err != nil {
			return false, err
		}
		for _, g := range given {
			if err := s.takeGroup(ctx, tx, identityRow{id: identityID}, u, g, "the outside account was unlinked"); err != nil {
				return false, err
			}
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM identities WHERE id = ?", identityID); err != nil || len(list) > 1 ||
			u.HasPassword {
			return false, err
		}
		return true, endAll(ctx, tx, userID) // it has no way in any more
	})
	return gone, err
}

// RoleByRules lets the rules of the outside accounts decide somebody's role again, from their next sign-in on.
func (s *Service) RoleByRules(ctx context.Context, userID int64) error {
	return s.change(ctx, userID, "leave a role to the rules", func(tx *sql.Tx, u User) (bool, error) {
		_, err := tx.ExecContext(ctx, "UPDATE identities SET role = ? WHERE user_id = ?", u.Role, userID)
		return false, err
	})
}

// Identities lists the outside accounts of one person.
func (s *Service) Identities(ctx context.Context, userID int64) ([]Identity, error) {
	list, err := identitiesOf(ctx, s.db, userID)
	if err != nil {
		return nil, fmt.Errorf("list outside accounts: %w", err)
	}
	return list, nil
}

func identitiesOf(ctx context.Context, q store.Asker, userID int64) ([]Identity, error) {
	byUser, err := identitiesByUser(ctx, q, userID)
	return append([]Identity{}, byUser[userID]...), err
}

func identitiesByUser(ctx context.Context, q store.Asker, userIDs ...any) (map[int64][]Identity, error) {
	type owned struct {
		Identity
		owner int64
	}
	list, err := store.All(ctx, q, func(row store.Row) (id owned, err error) {
		var linked int64
		var used, untold, kept sql.NullInt64
		err = row.Scan(&id.owner, &id.ID, &id.Provider, &id.Username, &id.Role, &linked, &used, &untold, &kept)
		id.Linked, id.Used, id.UntoldSince, id.KeptUntil = time.UnixMilli(linked).UTC(), moment(used), moment(untold),
			moment(kept)
		return id, err
	}, `SELECT user_id, id, provider, username, coalesce(role, ''), linked_at, used_at, untold_at,
			CASE WHEN kept_then IS NOT NULL THEN kept_until END FROM identities
		WHERE user_id IN (?`+strings.Repeat(", ?", len(userIDs)-1)+`) ORDER BY provider, id`, userIDs...)
	byUser := map[int64][]Identity{}
	for _, id := range list {
		byUser[id.owner] = append(byUser[id.owner], id.Identity)
	}
	return byUser, err
}
