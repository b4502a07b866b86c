package users

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/store"
)

// applyRules gives an account the role and the groups that the rules give its outside account now, and says whether
// its sessions ended and what the log should know besides. u gets the new role.
func (s *Service) applyRules(ctx context.Context, tx *sql.Tx, id identityRow, u *User,
	o Outside) (ended bool, detail string, err error) {
	if err := s.noteTold(ctx, tx, id, o); err != nil {
		return false, "", err
	}
	if o.Role != "" {
		if ended, detail, err = s.applyRole(ctx, tx, id, u, o); err != nil {
			return false, "", err
		}
	}
	return ended, detail, s.applyGroups(ctx, tx, id, *u, o)
}

// applyRole changes the role as long as nobody has given another one by hand: then it is not the one that the rules
// gave last.
func (s *Service) applyRole(ctx context.Context, tx *sql.Tx, id identityRow, u *User,
	o Outside) (ended bool, detail string, err error) {
	if id.role != u.Role {
		if u.Role != o.Role {
			detail = ", whose rules give the role " + string(o.Role) + "; the role " + string(u.Role) + " was given by hand"
		}
		return false, detail, nil
	}
	if u.Role == o.Role {
		return false, "", nil
	}
	switch err := setRole(ctx, tx, *u, o.Role); {
	case errors.Is(err, ErrLastAdmin):
		return false, ", whose rules give the role " + string(o.Role) + "; the lab's last admin stays admin", nil
	case err != nil:
		return false, "", err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE identities SET role = ? WHERE id = ?", o.Role, id.id); err != nil {
		return false, "", err
	}
	from := u.Role
	u.Role = o.Role
	return true, "", s.log.RecordIn(ctx, tx, audit.Entry{Actor: "system", Action: "user.role", Target: u.Handle,
		Detail: "from " + string(from) + " to " + string(o.Role) + ", by the rules of " + o.Provider})
}

// givenGroup is a group that the rules have put somebody into.
type givenGroup struct {
	id   int64
	name string
	lead bool
}

func givenGroups(ctx context.Context, tx *sql.Tx, identity int64) ([]givenGroup, error) {
	return store.All(ctx, tx, func(row store.Row) (g givenGroup, err error) {
		return g, row.Scan(&g.id, &g.name, &g.lead)
	}, "SELECT g.id, g.name, i.lead FROM identity_groups i JOIN groups g ON g.id = i.group_id WHERE i.identity_id = ?",
		identity)
}

// applyGroups puts somebody into the groups of the rules and takes them out of those that the rules gave before and
// give no more. What was done by hand stays.
func (s *Service) applyGroups(ctx context.Context, tx *sql.Tx, id identityRow, u User, o Outside) error {
	before, err := givenGroups(ctx, tx, id.id)
	if err != nil {
		return err
	}
	var now []givenGroup
	for _, g := range o.Groups {
		gid, err := groupID(ctx, tx, g.Name)
		if errors.Is(err, ErrGroupNotFound) {
			continue // `gpulab signin check` says so
		}
		if err != nil {
			return err
		}
		lead := g.Lead && (u.Role == RoleLead || u.Role == RoleAdmin)
		if i := slices.IndexFunc(now, func(other givenGroup) bool { return other.id == gid }); i >= 0 {
			now[i].lead = now[i].lead || lead
			continue
		}
		now = append(now, givenGroup{gid, fold(g.Name), lead})
	}
	for _, g := range before {
		if !slices.ContainsFunc(now, func(other givenGroup) bool { return other.id == g.id }) {
			if err := s.takeGroup(ctx, tx, id, u, g, "by the rules of "+o.Provider); err != nil {
				return err
			}
		}
	}
	for _, g := range now {
		i := slices.IndexFunc(before, func(other givenGroup) bool { return other.id == g.id })
		if i >= 0 && before[i].lead == g.lead {
			if err := s.keepGroup(ctx, tx, u, g); err != nil {
				return err
			}
			continue
		}
		if err := s.giveGroup(ctx, tx, id, u, g, i >= 0, o.Provider); err != nil {
			return err
		}
	}
	return nil
}

// keepGroup puts somebody back who was taken out by hand: whoever is to be out is taken out of the provider's group.
func (s *Service) keepGroup(ctx context.Context, tx *sql.Tx, u User, g givenGroup) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO group_members (group_id, user_id, lead, added_at) VALUES (?, ?, ?, ?) "+
		"ON CONFLICT DO NOTHING",
		g.id, u.ID, g.lead, s.now().UnixMilli())
	return err
}

func (s *Service) giveGroup(ctx context.Context, tx *sql.Tx, id identityRow, u User, g givenGroup, given bool,
	provider string) error {
	var member bool
	err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM group_members WHERE group_id = ? AND user_id = ?)", g.id,
		u.ID).Scan(&member)
	if err != nil {
		return err
	}
	if member && !given {
		return nil // by hand, so it stays by hand
	}
	if err := s.setMember(ctx, tx, g.id, u, g.lead); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO identity_groups (identity_id, group_id, lead) VALUES (?, ?, ?)
		ON CONFLICT (identity_id, group_id) DO UPDATE SET lead = excluded.lead`, id.id, g.id, g.lead)
	if err != nil {
		return err
	}
	detail := "in " + g.name
	if g.lead {
		detail = "leads " + g.name
	}
	return s.log.RecordIn(ctx, tx, audit.Entry{
		Actor: "system", Action: "group.member", Target: u.Handle, Detail: detail + ", by the rules of " + provider,
	})
}

func (s *Service) takeGroup(ctx context.Context, tx *sql.Tx, id identityRow, u User, g givenGroup, why string) error {
	if _, err := tx.ExecContext(ctx, "DELETE FROM identity_groups WHERE identity_id = ? AND group_id = ?", id.id,
		g.id); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM group_members WHERE group_id = ? AND user_id = ?", g.id,
		u.ID); err != nil {
		return err
	}
	return s.log.RecordIn(ctx, tx, audit.Entry{
		Actor: "system", Action: "group.member-remove", Target: u.Handle, Detail: "from " + g.name + ", " + why,
	})
}

// shutOut takes back what the rules gave somebody whom they refuse now. An account that has no password of the
// lab's own lives by the outside one alone, so its sessions, access tokens and SSH keys end.
func (s *Service) shutOut(ctx context.Context, tx *sql.Tx, id identityRow, u User, o Outside) error {
	if err := s.noteTold(ctx, tx, id, o); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE identities SET refused_at = ? WHERE id = ?", s.now().UnixMilli(),
		id.id); err != nil {
		return err
	}
	given, err := givenGroups(ctx, tx, id.id)
	if err != nil {
		return err
	}
	for _, g := range given {
		if err := s.takeGroup(ctx, tx, id, u, g, "the rules refuse the outside account"); err != nil {
			return err
		}
	}
	if u.HasPassword {
		return nil
	}
	return endAll(ctx, tx, u.ID)
}

// endAll ends what somebody is signed in with: sessions, access tokens and SSH keys.
func endAll(ctx context.Context, tx *sql.Tx, userID int64) error {
	if err := endPrograms(ctx, tx, userID); err != nil {
		return err
	}
	return endAccess(ctx, tx, userID)
}
