package users

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/unicode/norm"

	"github.com/gpulab/gpulab/internal/store"
)

// Person is an account with what a list or page of people shows beside it.
type Person struct {
	User
	Groups         []Membership `json:"groups"`
	Identities     []Identity   `json:"identities"`               // outside accounts that they sign in with
	SignedIn       *time.Time   `json:"signedIn,omitempty"`       // the last time; nil = never
	SuspendedSince *time.Time   `json:"suspendedSince,omitempty"` // nil = not suspended
	Removed        *time.Time   `json:"removed,omitempty"`        // nil = not removed
	Purge          *time.Time   `json:"purge,omitempty"`          // when a removed account is deleted for good
}

// State is how an account is; a Query may be narrowed to one.
type State string

// The states. The zero value finds every account that is not removed.
const (
	StateActive    State = "active"    // can sign in, or will with the link that was sent
	StateSuspended State = "suspended" // kept out
	StateInvited   State = "invited"   // has never chosen a password
	StateRemoved   State = "removed"   // can be brought back
)

// State is that of the account.
func (p *Person) State() State {
	switch {
	case p.Removed != nil:
		return StateRemoved
	case p.Suspended:
		return StateSuspended
	case !p.HasPassword && p.SignedIn == nil:
		return StateInvited
	}
	return StateActive
}

// Query says which people to find. Its zero value finds everybody who is not removed.
type Query struct {
	Text   string `json:"text,omitempty"` // every word in handle, name, e-mail address, or a group's name or title
	Role   Role   `json:"role,omitempty"`
	Group  string `json:"group,omitempty"` // a name; one that does not exist finds nobody
	State  State  `json:"state,omitempty"`
	Limit  int    `json:"limit,omitempty"` // 0 = all
	Offset int    `json:"offset,omitempty"`
}

// Found is one page of the people that a Query finds, by handle.
type Found struct {
	People []Person `json:"people"`
	Total  int      `json:"total"` // on all pages
}

// maxWords of a search are looked for; nobody types more to find a person.
const maxWords = 8

// Find searches people.
func (s *Service) Find(ctx context.Context, q Query) (Found, error) {
	where, args := q.conditions()
	found := Found{People: []Person{}}
	if err := s.db.QueryRowContext(ctx, "SELECT count(*) FROM users WHERE "+where,
		args...).Scan(&found.Total); err != nil {
		return found, fmt.Errorf("count people: %w", err)
	}
	limit := q.Limit
	if limit <= 0 {
		limit = -1 // SQLite's word for all
	}
	people, err := s.people(ctx, where+" ORDER BY handle LIMIT ? OFFSET ?", append(args, limit, max(q.Offset, 0))...)
	if err == nil {
		found.People = people
	}
	return found, err
}

// conditions are the WHERE clause of a query.
func (q Query) conditions() (where string, args []any) {
	list := []string{"removed_at IS NULL"}
	switch q.State {
	case StateActive:
		list = append(list, "suspended_at IS NULL")
	case StateSuspended:
		list = append(list, "suspended_at IS NOT NULL")
	case StateInvited:
		list = append(list, "suspended_at IS NULL AND password_hash = '' AND signed_in_at IS NULL")
	case StateRemoved:
		list = []string{"removed_at IS NOT NULL AND purged_at IS NULL"}
	}
	if q.Role != "" {
		list, args = append(list, "role = ?"), append(args, q.Role)
	}
	if q.Group != "" {
		list = append(list,
			"id IN (SELECT m.user_id FROM group_members m JOIN groups g ON g.id = m.group_id WHERE g.name = ?)")
		args = append(args, fold(q.Group))
	}
	words := strings.Fields(q.Text)
	for _, word := range words[:min(len(words), maxWords)] {
		// The name as typed too: accounts of an earlier gpulab have no plain letters in search.
		list = append(list, `(search LIKE ? ESCAPE '\' OR name LIKE ? ESCAPE '\' OR id IN (SELECT m.user_id
			FROM group_members m
			JOIN groups g ON g.id = m.group_id WHERE g.name LIKE ? ESCAPE '\' OR g.title LIKE ? ESCAPE '\'))`)
		args = append(args, contains(searchable(word)), contains(word), contains(searchable(word)), contains(word))
	}
	return strings.Join(list, " AND "), args
}

var likeEscapes = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

// contains is the pattern of what has text in it.
func contains(text string) string { return "%" + likeEscapes.Replace(clip(text, 100)) + "%" }

// searchable writes text in plain small letters, so that "muller" finds Müller and "strasse" Straße.
func searchable(texts ...string) string {
	plain := norm.NFKD.String(latin.Replace(strings.ToLower(strings.Join(texts, " "))))
	return strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Mn, r) {
			return -1
		}
		return r
	}, plain)
}

// Person finds an account by its handle, removed ones included; ErrNotFound, and ErrPurged for one that was
// deleted for good.
func (s *Service) Person(ctx context.Context, handle string) (Person, error) {
	found, err := s.people(ctx, "handle = ? AND purged_at IS NULL", fold(handle))
	if err != nil {
		return Person{}, err
	}
	if len(found) > 0 {
		return found[0], nil
	}
	var purged int64
	err = s.db.QueryRowContext(ctx, "SELECT purged_at FROM users WHERE handle = ?", fold(handle)).Scan(&purged)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Person{}, errNoUser()
	case err != nil:
		return Person{}, fmt.Errorf("look up a user: %w", err)
	}
	return Person{}, errPurged(fold(handle), purged)
}

// people reads accounts in whatever state, with their groups.
func (s *Service) people(ctx context.Context, where string, args ...any) ([]Person, error) {
	list, err := store.All(ctx,
		s.db,
		scanPerson, `SELECT id, handle, name, email, role, coalesce(kept_uid, uid), password_hash, created_at, suspended_at,
		removed_at, signed_in_at FROM users WHERE `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("find people: %w", err)
	}
	return list, s.addGroups(ctx, list)
}

func scanPerson(row store.Row) (Person, error) {
	p := Person{Groups: []Membership{}, Identities: []Identity{}}
	var created int64
	var hash string
	var suspended, removed, signedIn sql.NullInt64
	err := row.Scan(&p.ID, &p.Handle, &p.Name, &p.Email, &p.Role, &p.UID, &hash, &created, &suspended, &removed, &signedIn)
	p.Created, p.HasPassword = time.UnixMilli(created).UTC(), hash != ""
	p.Suspended, p.SuspendedSince = suspended.Valid, moment(suspended)
	p.SignedIn, p.Removed = moment(signedIn), moment(removed)
	if p.Removed != nil {
		purge := p.Removed.Add(RemovedKept)
		p.Purge = &purge
	}
	return p, err
}

func moment(ms sql.NullInt64) *time.Time {
	if !ms.Valid {
		return nil
	}
	t := time.UnixMilli(ms.Int64).UTC()
	return &t
}

// addGroups fills in who is in which group and signs in with what, in few questions however many people there are.
func (s *Service) addGroups(ctx context.Context, list []Person) error {
	const atOnce = 500 // parameters of one statement
	for some := range slices.Chunk(list, atOnce) {
		if err := s.addGroupsOf(ctx, some); err != nil {
			return fmt.Errorf("find people's groups: %w", err)
		}
	}
	return nil
}

func (s *Service) addGroupsOf(ctx context.Context, some []Person) error {
	at, ids := map[int64]*Person{}, make([]any, 0, len(some))
	for i := range some {
		at[some[i].ID] = &some[i]
		ids = append(ids, some[i].ID)
	}
	identities, err := identitiesByUser(ctx, s.db, ids...)
	if err != nil {
		return err
	}
	for id, list := range identities {
		at[id].Identities = list
	}
	groups, err := store.All(ctx, s.db, func(row store.Row) (m Membership, err error) {
		return m, row.Scan(&m.Group, &m.UserID, &m.Lead)
	}, `SELECT g.name, m.user_id, m.lead FROM group_members m JOIN groups g ON g.id = m.group_id
		WHERE m.user_id IN (?`+strings.Repeat(", ?", len(ids)-1)+`) ORDER BY g.name`, ids...)
	for _, m := range groups {
		p := at[m.UserID]
		m.Handle, m.Name, m.Role = p.Handle, p.Name, p.Role
		p.Groups = append(p.Groups, m)
	}
	return err
}
