package mail

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// ErrKind says that there is no such kind to choose.
var ErrKind = errors.New("unknown kind of mail")

// Choice is a kind of mail, and whether somebody wants it.
type Choice struct {
	Kind   Kind   `json:"kind"`
	What   string `json:"what"`
	Wanted bool   `json:"wanted"`
}

// Choices are what somebody can get, in the order of the page.
func (s *Service) Choices(ctx context.Context, u users.User) ([]Choice, error) {
	declined, err := s.declined(ctx, "user_id = ?", u.ID)
	if err != nil {
		return nil, err
	}
	list := []Choice{}
	for _, r := range Kinds(u.Role) {
		list = append(list, Choice{Kind: r.Kind, What: r.What, Wanted: !declined[choice{u.ID, r.Kind}]})
	}
	return list, nil
}

type choice struct {
	user int64
	kind Kind
}

// declined are the mails that people do not want; all others they get.
func (s *Service) declined(ctx context.Context, where string, args ...any) (map[choice]bool, error) {
	list, err := store.All(ctx, s.cfg.DB, func(row store.Row) (c choice, err error) {
		return c, row.Scan(&c.user, &c.kind)
	}, "SELECT user_id, kind FROM mail_choices WHERE wanted = 0 AND "+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read which mails people want: %w", err)
	}
	out := map[choice]bool{}
	for _, c := range list {
		out[c] = true
	}
	return out, nil
}

// Choose sets which kinds u gets; those that wanted does not name stay. ErrKind for one that u cannot get.
func (s *Service) Choose(ctx context.Context, u users.User, wanted map[Kind]bool) error {
	may := map[Kind]bool{}
	for _, r := range Kinds(u.Role) {
		may[r.Kind] = true
	}
	for k := range wanted {
		if !may[k] {
			return refuse(ErrKind, "There is no kind of mail called %s for you to choose.", shown(string(k)))
		}
	}
	return s.inTx(ctx, "choose mails", func(tx *sql.Tx) error {
		for k, want := range wanted {
			if _, err := tx.ExecContext(ctx, `INSERT INTO mail_choices (user_id, kind, wanted) VALUES (?, ?, ?)
				ON CONFLICT DO UPDATE SET wanted = excluded.wanted`, u.ID, k, want); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *Service) inTx(ctx context.Context, what string, do func(tx *sql.Tx) error) error {
	err := store.InTx(ctx, s.cfg.DB, do)
	if _, told := users.Message(err); err == nil || told {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}
