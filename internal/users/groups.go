package users

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpulab/gpulab/internal/store"
)

// Group is people who work together, such as a class or a project. Its name follows the rules of handles.
type Group struct {
	ID      int64     `json:"id"`
	Name    string    `json:"name"`
	Title   string    `json:"title"`
	Created time.Time `json:"created"`
	Members int       `json:"members"`
	Leads   []string  `json:"leads"` // handles
}

// Membership is one person's place in a group.
type Membership struct {
	Group  string `json:"group"`
	UserID int64  `json:"-"`
	Handle string `json:"handle"`
	Name   string `json:"name"`
	Role   Role   `json:"role"`
	Lead   bool   `json:"lead"` // may act on the others of the group as Policy says
}

const maxGroupTitle = 80 // characters

// CreateGroup makes an empty group: ErrGroupInvalid, ErrGroupTaken. An empty title becomes the name.
func (s *Service) CreateGroup(ctx context.Context, name, title string) (Group, error) {
	if err := CheckGroup(name); err != nil {
		return Group{}, err
	}
	title, err := checkName(title)
	if err != nil || utf8.RuneCountInString(title) > maxGroupTitle {
		return Group{}, sentence(ErrGroupInvalid, "The title of a group is at most %d characters of ordinary text.",
			maxGroupTitle)
	}
	if title == "" {
		title = name
	}
	var g Group
	err = s.inTx(ctx, "create a group", func(tx *sql.Tx) error {
		if _, err := groupID(ctx, tx, name); !errors.Is(err, ErrGroupNotFound) {
			if err == nil {
				err = sentence(ErrGroupTaken, "There is a group %s already. Choose another name.", name)
			}
			return err
		}
		res, err := tx.ExecContext(ctx, "INSERT INTO groups (name, title, created_at) VALUES (?, ?, ?)", name, title,
			s.now().UnixMilli())
		if err != nil {
			return err
		}
		id, err := res.LastInsertId()
		g = Group{ID: id, Name: name, Title: title, Created: s.now().UTC(), Leads: []string{}}
		return err
	})
	return g, err
}

// CheckGroup reports whether name may be a group's, apart from being taken: ErrGroupInvalid.
func CheckGroup(name string) error {
	if !WellFormed(name) || isReserved(name) {
		return sentence(ErrGroupInvalid, "The name %s cannot be a group's. It takes 2 to %d characters from a–z, 0–9 and "+
			"single hyphens, with a letter first, such as %s.",
			quote(name), maxHandle, SuggestHandle(name))
	}
	return nil
}

// Groups lists all groups by name.
func (s *Service) Groups(ctx context.Context) ([]Group, error) {
	list, err := store.All(ctx, s.db, scanGroup, `SELECT g.id, g.name, g.title, g.created_at, count(u.id),
			coalesce(group_concat(CASE WHEN m.lead = 1 THEN u.handle END, ' '), '')
		FROM groups g LEFT JOIN group_members m ON m.group_id = g.id LEFT JOIN users u ON u.id = m.user_id
		AND u.removed_at IS NULL
		GROUP BY g.id ORDER BY g.name`)
	if err != nil {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	return list, nil
}

func scanGroup(row store.Row) (g Group, err error) {
	var created int64
	var leads string
	err = row.Scan(&g.ID, &g.Name, &g.Title, &created, &g.Members, &leads)
	g.Created, g.Leads = time.UnixMilli(created).UTC(), strings.Fields(leads)
	return g, err
}

// Group finds one group by its name; ErrGroupNotFound.
func (s *Service) Group(ctx context.Context, name string) (Group, error) {
	list, err := s.Groups(ctx)
	if err != nil {
		return Group{}, err
	}
	if i := slices.IndexFunc(list, func(g Group) bool { return g.Name == fold(name) }); i >= 0 {
		return list[i], nil
	}
	return Group{}, errNoGroup(name)
}

func errNoGroup(name string) error {
	return sentence(ErrGroupNotFound, "There is no group %s. The list of groups shows which there are.", quote(name))
}

// Members lists the members of a group, leads first; ErrGroupNotFound.
func (s *Service) Members(ctx context.Context, group string) ([]Membership, error) {
	id, err := groupID(ctx, s.db, group)
	if err != nil {
		return nil, err
	}
	return s.memberships(ctx, "m.group_id = ? ORDER BY m.lead DESC, u.handle", id)
}

// Memberships lists the groups of one person by name.
func (s *Service) Memberships(ctx context.Context, userID int64) ([]Membership, error) {
	return s.memberships(ctx, "m.user_id = ? ORDER BY g.name", userID)
}

func (s *Service) memberships(ctx context.Context, where string, arg any) ([]Membership, error) {
	list, err := store.All(ctx, s.db, func(row store.Row) (m Membership, err error) {
		return m, row.Scan(&m.Group, &m.UserID, &m.Handle, &m.Name, &m.Role, &m.Lead)
	}, `SELECT g.name, u.id, u.handle, u.name, u.role, m.lead FROM group_members m
		JOIN groups g ON g.id = m.group_id JOIN users u ON u.id = m.user_id WHERE u.removed_at IS NULL AND `+where, arg)
	if err != nil {
		return nil, fmt.Errorf("list members: %w", err)
	}
	return list, nil
}

// SetMember adds somebody to a group, or changes whether they lead it. To lead takes the role: a member who
// becomes a lead gets it; a guest cannot, ErrRoleInvalid.
func (s *Service) SetMember(ctx context.Context, group string, userID int64, lead bool) error {
	return s.change(ctx, userID, "change a group", func(tx *sql.Tx, u User) (bool, error) {
		id, err := groupID(ctx, tx, group)
		if err != nil {
			return false, err
		}
		return false, s.setMember(ctx, tx, id, u, lead)
	})
}

func (s *Service) setMember(ctx context.Context, tx *sql.Tx, group int64, u User, lead bool) error {
	if lead && u.Role == RoleGuest {
		return sentence(ErrRoleInvalid, "The account %s is a guest, and guests lead no group. Give it the role member first.",
			u.Handle)
	}
	if lead && u.Role == RoleMember {
		if _, err := tx.ExecContext(ctx, "UPDATE users SET role = ? WHERE id = ?", RoleLead, u.ID); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO group_members (group_id, user_id, lead, added_at) VALUES (?, ?, ?, ?)
		ON CONFLICT (group_id, user_id) DO UPDATE SET lead = excluded.lead`, group, u.ID, lead, s.now().UnixMilli())
	return err
}

// RemoveMember takes somebody out of a group; not being in it is no error.
func (s *Service) RemoveMember(ctx context.Context, group string, userID int64) error {
	return s.change(ctx, userID, "change a group", func(tx *sql.Tx, _ User) (bool, error) {
		id, err := groupID(ctx, tx, group)
		if err != nil {
			return false, err
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM group_members WHERE group_id = ? AND user_id = ?", id, userID)
		return false, err
	})
}

// RemoveGroup ends a group and its invitations; its members stay in the lab.
func (s *Service) RemoveGroup(ctx context.Context, name string) error {
	err := s.inTx(ctx, "remove a group", func(tx *sql.Tx) error {
		id, err := groupID(ctx, tx, name)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM groups WHERE id = ?", id)
		return err
	})
	s.cache.drop()
	return err
}

func groupID(ctx context.Context, q querier, name string) (int64, error) {
	var id int64
	err := q.QueryRowContext(ctx, "SELECT id FROM groups WHERE name = ?", fold(name)).Scan(&id)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, errNoGroup(name)
	case err != nil:
		return 0, fmt.Errorf("look up a group: %w", err)
	}
	return id, nil
}

// ledBy is whom somebody leads, nil for nobody.
func (s *Service) ledBy(ctx context.Context, u User) (*circle, error) {
	if u.Role.Scope(ActionManageNotebooks) != OwnGroups {
		return nil, nil
	}
	list, err := store.All(ctx, s.db, func(row store.Row) (of User, err error) {
		return of, row.Scan(&of.ID, &of.Handle)
	}, `SELECT DISTINCT u.id, u.handle FROM group_members mine
		JOIN group_members m ON m.group_id = mine.group_id JOIN users u ON u.id = m.user_id
		WHERE mine.user_id = ? AND mine.lead = 1 AND u.removed_at IS NULL`, u.ID)
	if err != nil {
		return nil, fmt.Errorf("look up whom %s leads: %w", u.Handle, err)
	}
	led := &circle{ids: map[int64]bool{}, handles: map[string]bool{}}
	for i := range list {
		led.ids[list[i].ID], led.handles[list[i].Handle] = true, true
	}
	return led, nil
}
