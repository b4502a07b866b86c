package quota

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// week is how far back GPUHoursWeek looks.
const week = 7 * 24 * time.Hour

// maxGrant is how long a grant lasts at most: one that is forgotten is a limit that nobody knows of.
const maxGrant = 366 * 24 * time.Hour

// People is what quotas need to know of accounts; users.Service implements it.
type People interface {
	ByID(ctx context.Context, id int64) (users.User, error)
	ByHandle(ctx context.Context, handle string) (users.User, error)
	Memberships(ctx context.Context, userID int64) ([]users.Membership, error)
	Groups(ctx context.Context) ([]users.Group, error)
}

// HourUse is how much somebody held GPUs in one hour.
type HourUse struct {
	Hour time.Time     // its beginning
	Held time.Duration // of GPUs: two for a whole hour are two hours
}

// Config wires a Service. All but GPUMemory, GPUMemoryEnforced, HomeSize, HomeFiles, Term and Grace are required.
type Config struct {
	DB     *sql.DB
	People People
	// Held is what a person's notebooks take, waiting ones included, but for the
	// launch without, if that is not 0.
	Held func(ctx context.Context, userID, without int64) ([]Ask, error)
	// Hours is what a person held since then, oldest hour first.
	Hours func(ctx context.Context, handle string, from time.Time) ([]HourUse, error)
	// GPUMemory is how many bytes of GPUs' memory somebody's programs have taken.
	GPUMemory func(handle string) uint64
	// GPUMemoryEnforced says whether the driver refuses programs more than their owner's limit. Nil never does.
	GPUMemoryEnforced func() bool
	// HomeSize is how many bytes somebody's home takes, and when that was
	// measured; nil while it is not known. Nil knows of none.
	HomeSize func(ctx context.Context, u users.User) (bytes *int64, at time.Time, err error)
	// HomeFiles is the same for the number of files and folders in it.
	HomeFiles func(ctx context.Context, u users.User) (files *int64, at time.Time, err error)
	// Term is when the current term began; zero, or nil, for none: hours per term
	// are then not limited.
	Term func() time.Time
	// Grace is how long running work goes on after a notice, 0 = DefaultGrace.
	// Time in which the machine sleeps is not part of it.
	Grace time.Duration
	// Asleep is how long the machine has slept since it was booted; nil for one
	// that never does.
	Asleep func() time.Duration
}

// DefaultGrace is how long running work goes on beyond a quota.
const DefaultGrace = time.Hour

// Service answers every question about quotas. Its methods may be called from any goroutine.
type Service struct {
	cfg Config
	now func() time.Time

	sleeping sync.Mutex
	slept    time.Duration // how much of Asleep has been taken into account
}

// New makes the service over an open gpulab.db.
func New(cfg Config) *Service {
	if cfg.Grace == 0 {
		cfg.Grace = DefaultGrace
	}
	if cfg.Term == nil {
		cfg.Term = func() time.Time { return time.Time{} }
	}
	if cfg.Asleep == nil {
		cfg.Asleep = func() time.Duration { return 0 }
	}
	return &Service{cfg: cfg, now: time.Now, slept: cfg.Asleep()}
}

// subjectKey is a subject as the table has it.
type subjectKey struct {
	role        sql.NullString
	group, user sql.NullInt64
}

func (s *Service) key(ctx context.Context, subject Subject) (k subjectKey, err error) {
	switch {
	case subject.Role != "":
		k.role = sql.NullString{String: string(subject.Role), Valid: true}
	case subject.Group != "":
		groups, err := s.cfg.People.Groups(ctx)
		if err != nil {
			return k, err
		}
		i := slices.IndexFunc(groups, func(g users.Group) bool { return g.Name == strings.ToLower(subject.Group) })
		if i < 0 {
			return k, refused(ErrSubject, "There is no group %q. The list of groups shows which there are.", clip(subject.Group))
		}
		k.group = sql.NullInt64{Int64: groups[i].ID, Valid: true}
	case subject.User != "":
		u, err := s.cfg.People.ByHandle(ctx, subject.User)
		if err != nil {
			return k, err
		}
		k.user = sql.NullInt64{Int64: u.ID, Valid: true}
	}
	return k, nil
}

// Set makes, changes or (value nil) takes away a limit. Taking away one that is not there is no error.
func (s *Service) Set(ctx context.Context, subject Subject, kind Kind, model string, value *float64) error {
	if err := checkKind(kind, model); err != nil {
		return err
	}
	if value != nil && (*value < 0 || math.IsNaN(*value) || math.IsInf(*value, 0)) {
		return refused(ErrValue, "A quota is 0 or more.")
	}
	k, err := s.key(ctx, subject)
	if err != nil {
		return err
	}
	if value == nil {
		_, err = s.cfg.DB.ExecContext(ctx, "DELETE FROM quotas WHERE role IS ? AND group_id IS ? AND user_id IS ? AND "+
			"kind = ? AND model = ?",
			k.role, k.group, k.user, kind, Model(model))
	} else {
		_, err = s.cfg.DB.ExecContext(ctx, `INSERT INTO quotas (role, group_id, user_id, kind, model, value)
			VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (coalesce(role, ''), coalesce(group_id, 0), coalesce(user_id, 0), kind, model) DO UPDATE
			SET value = excluded.value`,
			k.role, k.group, k.user, kind, Model(model), *value)
	}
	if err != nil {
		return fmt.Errorf("set a quota: %w", err)
	}
	return nil
}

func checkKind(kind Kind, model string) error {
	_, _, err := ParseKind(KindName(kind, model))
	return err
}

// Rules lists every limit that is set: for everybody first, then by role, group and person.
func (s *Service) Rules(ctx context.Context) ([]Rule, error) {
	groups, err := s.cfg.People.Groups(ctx)
	if err != nil {
		return nil, err
	}
	names := map[int64]string{}
	for _, g := range groups {
		names[g.ID] = g.Name
	}
	return s.rules(ctx, names, "")
}

// rules reads limits; where may restrict them.
func (s *Service) rules(ctx context.Context, groups map[int64]string, where string, args ...any) ([]Rule, error) {
	type row struct {
		Rule
		of int64
	}
	list, err := store.All(ctx, s.cfg.DB, func(from store.Row) (r row, err error) {
		var k subjectKey
		err = from.Scan(&k.role, &k.group, &k.user, &r.Kind, &r.Model, &r.Value)
		r.Subject.Role, r.Subject.Group, r.of = users.Role(k.role.String), groups[k.group.Int64], k.user.Int64
		return r, err
	}, "SELECT role, group_id, user_id, kind, model, value FROM quotas "+where+
		" ORDER BY user_id IS NOT NULL, group_id IS NOT NULL, role IS NOT NULL, role, group_id, user_id, id", args...)
	if err != nil {
		return nil, fmt.Errorf("read quotas: %w", err)
	}
	kept := []Rule{}
	for _, r := range list {
		if r.of != 0 {
			u, err := s.cfg.People.ByID(ctx, r.of)
			if errors.Is(err, users.ErrNotFound) {
				continue // somebody who was removed
			}
			if err != nil {
				return nil, err
			}
			r.Subject.User = u.Handle
		}
		kept = append(kept, r.Rule)
	}
	return kept, nil
}

// Grant gives somebody more of a kind until ends.
func (s *Service) Grant(ctx context.Context, g Grant) (Grant, error) {
	if err := checkKind(g.Kind, g.Model); err != nil {
		return Grant{}, err
	}
	g.At, g.Model = s.now().UTC().Truncate(time.Millisecond), Model(g.Model)
	switch {
	case !(g.Extra > 0) || math.IsInf(g.Extra, 0):
		return Grant{}, refused(ErrValue, "A grant adds more than 0.")
	case !g.Ends.After(g.At):
		return Grant{}, refused(ErrGrant, "The grant would have ended already. Choose a later end.")
	case g.Ends.Sub(g.At) > maxGrant:
		return Grant{}, refused(ErrGrant, "A grant lasts a year at most. For longer than that, change the quota.")
	case len([]rune(g.Note)) > 200 || strings.ContainsFunc(g.Note, func(r rune) bool { return !unicode.IsPrint(r) }):
		return Grant{}, refused(ErrGrant, "The note is one line of at most 200 characters.")
	}
	u, err := s.cfg.People.ByHandle(ctx, g.User)
	if err != nil {
		return Grant{}, err
	}
	g.User, g.userID = u.Handle, u.ID
	res, err := s.cfg.DB.ExecContext(ctx, "INSERT INTO quota_grants (user_id, kind, model, extra, note, granted_by, "+
		"granted_at, ends_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
		u.ID, g.Kind, g.Model, g.Extra, g.Note, g.By, g.At.UnixMilli(), g.Ends.UnixMilli())
	if err == nil {
		g.ID, err = res.LastInsertId()
	}
	if err != nil {
		return Grant{}, fmt.Errorf("grant more of a quota: %w", err)
	}
	return g, nil
}

// EndGrant ends a grant now and returns it; ErrGrant when it is none, or over.
func (s *Service) EndGrant(ctx context.Context, id int64) (Grant, error) {
	now := s.now()
	list, err := s.grants(ctx, "id = ? AND ends_at > ?", id, now.UnixMilli())
	if err != nil {
		return Grant{}, err
	}
	if len(list) == 0 {
		return Grant{}, refused(ErrGrant, "There is no such grant, or it is over.")
	}
	if _, err := s.cfg.DB.ExecContext(ctx, "UPDATE quota_grants SET ends_at = ? WHERE id = ? AND ends_at > ?",
		now.UnixMilli(), id, now.UnixMilli()); err != nil {
		return Grant{}, fmt.Errorf("end a grant: %w", err)
	}
	return list[0], nil
}

// Grants lists the grants of everybody that have not ended, the next to end first.
func (s *Service) Grants(ctx context.Context) ([]Grant, error) {
	return s.grants(ctx, "ends_at > ?", s.now().UnixMilli())
}

func (s *Service) grants(ctx context.Context, where string, args ...any) ([]Grant, error) {
	list, err := store.All(ctx, s.cfg.DB, func(row store.Row) (g Grant, err error) {
		var at, ends int64
		err = row.Scan(&g.ID, &g.userID, &g.Kind, &g.Model, &g.Extra, &g.Note, &g.By, &at, &ends)
		g.At, g.Ends = time.UnixMilli(at).UTC(), time.UnixMilli(ends).UTC()
		return g, err
	}, "SELECT id, user_id, kind, model, extra, note, granted_by, granted_at, ends_at FROM quota_grants WHERE "+where+
		" ORDER BY ends_at, id", args...)
	if err != nil {
		return nil, fmt.Errorf("read grants: %w", err)
	}
	kept := list[:0]
	for _, g := range list {
		u, err := s.cfg.People.ByID(ctx, g.userID)
		if errors.Is(err, users.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		g.User = u.Handle
		kept = append(kept, g)
	}
	return kept, nil
}

// Limits is what holds for u, and how much of it is used.
func (s *Service) Limits(ctx context.Context, u users.User) ([]Limit, error) {
	return s.standing(ctx, u, 0)
}

func (s *Service) standing(ctx context.Context, u users.User, without int64) ([]Limit, error) {
	limits, err := s.limits(ctx, u)
	if err != nil || len(limits) == 0 {
		return limits, err
	}
	held, err := s.cfg.Held(ctx, u.ID, without)
	if err != nil {
		return nil, err
	}
	for i := range limits {
		if err := s.measure(ctx, u, &limits[i], held); err != nil {
			return nil, err
		}
	}
	return limits, nil
}

// Check refuses what would take u beyond a limit, with the reason. The launch without, if not 0, ends in exchange.
func (s *Service) Check(ctx context.Context, u users.User, ask Ask, without int64) error {
	limits, err := s.standing(ctx, u, without)
	if err != nil {
		return err
	}
	return Check(limits, ask)
}

func (s *Service) limits(ctx context.Context, u users.User) ([]Limit, error) {
	all, err := s.cfg.People.Groups(ctx)
	if err != nil {
		return nil, err
	}
	of, err := s.cfg.People.Memberships(ctx, u.ID)
	if err != nil {
		return nil, err
	}
	mine := map[int64]string{}
	where, args := "WHERE (role IS NULL OR role = ?) AND (user_id IS NULL OR user_id = ?) AND (group_id IS NULL",
		[]any{u.Role, u.ID}
	for _, g := range all {
		if slices.ContainsFunc(of, func(m users.Membership) bool { return m.Group == g.Name }) {
			mine[g.ID] = g.Name
			where, args = where+" OR group_id = ?", append(args, g.ID)
		}
	}
	rules, err := s.rules(ctx, mine, where+")", args...)
	if err != nil {
		return nil, err
	}
	grants, err := s.grants(ctx, "user_id = ? AND ends_at > ?", u.ID, s.now().UnixMilli())
	if err != nil {
		return nil, err
	}
	limits := strictest(rules, grants)
	if s.cfg.Term().IsZero() {
		limits = slices.DeleteFunc(limits, func(l Limit) bool { return l.Kind == GPUHoursTerm })
	}
	return limits, nil
}

// LimitOf is the limit that holds for u of a kind that has no models, nil for none. What is used of it is not looked
// up.
func (s *Service) LimitOf(ctx context.Context, u users.User, kind Kind) (*Limit, error) {
	limits, err := s.limits(ctx, u)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(limits, func(l Limit) bool { return l.Kind == kind })
	if i < 0 {
		return nil, nil
	}
	return &limits[i], nil
}

func (s *Service) measureHome(ctx context.Context, u users.User, l *Limit) error {
	l.Unknown = true
	look := s.cfg.HomeSize
	if l.Kind == HomeFiles {
		look = s.cfg.HomeFiles
	}
	if look == nil {
		return nil
	}
	used, at, err := look(ctx, u)
	if err != nil || used == nil {
		return err
	}
	l.Used, l.Unknown, l.Measured = float64(*used), false, at
	return nil
}

func (s *Service) measure(ctx context.Context, u users.User, l *Limit, held []Ask) error {
	var from time.Time
	switch l.Kind {
	case GPUHoursWeek:
		from = s.now().Add(-week)
	case GPUHoursTerm:
		from = s.cfg.Term()
	case HomeSize, HomeFiles:
		return s.measureHome(ctx, u, l)
	case GPUMemory:
		if s.cfg.GPUMemory != nil {
			l.Used = float64(s.cfg.GPUMemory(u.Handle))
		}
		l.Enforced = s.cfg.GPUMemoryEnforced != nil && s.cfg.GPUMemoryEnforced()
		return nil
	default:
		for _, h := range held {
			l.Used += h.of(l.Kind, l.Model)
		}
		return nil
	}
	hours, err := s.cfg.Hours(ctx, u.Handle, from)
	if err != nil {
		return err
	}
	for _, h := range hours {
		l.Used += h.Held.Hours()
	}
	if l.Kind == GPUHoursWeek && l.Used >= l.Value {
		// The ledger knows whole hours: one counts until all of it is older than a week.
		rest := l.Used
		for _, h := range hours {
			if rest -= h.Held.Hours(); h.Held > 0 && rest < l.Value {
				l.Frees = h.Hour.Add(time.Hour + week)
				break
			}
		}
	}
	return nil
}
