package users

import (
	"context"
	"database/sql"
	"strings"
	"time"
)

// untoldMark begins the part of an audit entry's detail that says what a provider left out.
const untoldMark = "what the rules look at was not told: "

// isUntold reports whether a provider left out what the rules need, so that they cannot decide. If it may have left
// that out because it is empty, it counts as empty once the provider has since sent it for somebody else.
func (s *Service) isUntold(ctx context.Context, tx *sql.Tx, id identityRow, o Outside) (bool, error) {
	if o.Untold == "" || !o.MayBeNone || id.untoldAt == 0 {
		return o.Untold != "", nil
	}
	var others bool
	err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM identities WHERE realm = ? AND id <> ? AND told_at > ?)", o.Realm, id.id, id.untoldAt).Scan(&others)
	return !others, err
}

// noteTold records that the rules let a person in, and when the provider sent what they need.
func (s *Service) noteTold(ctx context.Context, tx *sql.Tx, id identityRow, o Outside) error {
	if !o.Told {
		_, err := tx.ExecContext(ctx, "UPDATE identities SET refused_at = NULL WHERE id = ?", id.id)
		return err
	}
	_, err := tx.ExecContext(ctx, "UPDATE identities SET told_at = ?, untold_at = NULL, refused_at = NULL WHERE id = ?", s.now().UnixMilli(), id.id)
	return err
}

// keepUntold leaves a person what they have, and writes that to the audit log.
func (s *Service) keepUntold(ctx context.Context, tx *sql.Tx, id identityRow, u User, o Outside, remote string) (detail string, err error) {
	if id.untoldAt == 0 {
		if _, err := tx.ExecContext(ctx, "UPDATE identities SET untold_at = ? WHERE id = ?", s.now().UnixMilli(), id.id); err != nil {
			return "", err
		}
	}
	return ", role and groups stay as they were", s.audit(ctx, tx, Entry{Actor: "system", Action: "identity.untold", Target: u.Handle, Remote: remote,
		Detail: tidy(o.Provider+", "+tidy(o.Username, 100)+": "+untoldMark+o.Untold, 400)})
}

// Untold is a person who signed in, or tried to, and about whom a provider left out what the rules need.
type Untold struct {
	At                      time.Time
	Provider, Username, Why string
}

// UntoldIn reads an Untold from an entry of the audit log; ok is false if the entry is about something else.
func UntoldIn(e Entry) (u Untold, ok bool) {
	if e.Action != "identity.untold" && e.Action != "sign-in.failed" {
		return Untold{}, false
	}
	who, why, ok := strings.Cut(e.Detail, untoldMark)
	provider, rest, comma := strings.Cut(who, ", ")
	name, _, colon := strings.Cut(rest, ": ")
	return Untold{At: e.At, Provider: provider, Username: name, Why: why}, ok && comma && colon
}
