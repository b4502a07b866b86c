package storage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// HomeState is how somebody's home is against its limit.
type HomeState struct {
	Size  *Size      `json:"size,omitempty"`  // nil while it is not known
	Limit *HomeLimit `json:"limit,omitempty"` // nil for none
	Files *FileLimit `json:"files,omitempty"` // nil for none
	// Kept says that the file system itself refuses more than the limits.
	// Otherwise it is only measured.
	Kept bool `json:"kept"`
	Over bool `json:"over"` // at one of the limits or beyond it
}

// Parts of a limit at which people are warned.
const (
	nearly = 0.95
	early  = 0.80
)

// HomeState looks at somebody's home.
func (s *Service) HomeState(ctx context.Context, u users.User) (HomeState, error) {
	var state HomeState
	var err error
	if state.Limit, err = s.cfg.HomeLimit(ctx, u); err != nil {
		return state, err
	}
	if state.Files, err = s.cfg.HomeFiles(ctx, u); err != nil {
		return state, err
	}
	if state.Size, state.Kept, err = s.HomeUse(ctx, u); err != nil {
		return state, err
	}
	state.Over = state.Size != nil &&
		(state.Limit != nil && state.Size.Bytes >= state.Limit.Bytes || state.Files != nil &&
			state.Size.Files >= state.Files.Files)
	return state, nil
}

// part is how much of a limit is used, of the one that is nearer; 0 where that is not known.
func (h HomeState) part() float64 { return max(h.sizePart(), h.filesPart()) }

func (h HomeState) sizePart() float64 {
	if h.Limit == nil || h.Size == nil {
		return 0
	}
	return float64(h.Size.Bytes) / float64(max(h.Limit.Bytes, 1))
}

func (h HomeState) filesPart() float64 {
	if h.Files == nil || h.Size == nil {
		return 0
	}
	return float64(h.Size.Files) / float64(max(h.Files.Files, 1))
}

// used says how much of the nearer limit is; one is known.
func (h HomeState) used() string {
	if h.filesPart() > h.sizePart() {
		return fmt.Sprintf("%d of %d files and folders (%s)", h.Size.Files, h.Files.Files, h.Files.Why)
	}
	return units.Bytes(uint64(h.Size.Bytes)) + " of " + units.Bytes(uint64(h.Limit.Bytes)) + " (" + h.Limit.Why + ")"
}

// HomeNotice is what somebody should know of the room in their home, which is in that state; "" for nothing.
func (s *Service) HomeNotice(ctx context.Context, userID int64, state HomeState) (string, error) {
	if state.part() < early {
		return "", nil
	}
	used := state.used()
	const room = " The page Folders shows what takes the room."
	switch {
	case state.Over && state.Kept:
		return "Your home is full: " + used + ". Nothing more can be saved in it until you delete something." + room, nil
	case state.Over:
		text := "Your home is full: " + used + ". Until there is room again, new notebooks can only read it."
		until, running, err := s.homeGrace(ctx, userID)
		if err == nil && running {
			text += " Notebooks that can still write in it are stopped at " + until.Local().Format("15:04 on Mon 2 Jan") +
				": save your work and delete something before."
		}
		return text + room, err
	case state.part() >= nearly:
		return "Your home is nearly full: " + used + "." + room, nil
	}
	return "Your home is getting full: " + used + "." + room, nil
}

// homeGrace is until when notebooks may write in a home that is full; false while none is warned.
func (s *Service) homeGrace(ctx context.Context, user int64) (time.Time, bool, error) {
	var since int64
	err := s.cfg.DB.QueryRowContext(ctx, "SELECT since FROM home_over WHERE user_id = ?", user).Scan(&since)
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, false, nil
	}
	if err != nil {
		return time.Time{}, false, fmt.Errorf("read the notice of a full home: %w", err)
	}
	return time.UnixMilli(since).Add(s.cfg.Grace), true, nil
}

// keepHomes gives notice to who writes in a home that is full, and ends their notebooks after the grace period.
// Where the file system keeps the limit itself there is nothing to do.
func (s *Service) keepHomes(ctx context.Context) error {
	ids, err := s.ids(ctx,
		"read who writes in homes", `SELECT DISTINCT l.user_id FROM launch_homes h JOIN launches l ON l.id = h.launch_id
		WHERE h.read_only = 0 AND l.state <> 'ended' UNION SELECT user_id FROM home_over`)
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		errs = append(errs, s.keepHome(ctx, id))
	}
	return errors.Join(errs...)
}

func (s *Service) keepHome(ctx context.Context, user int64) error {
	u, err := s.cfg.People.ByID(ctx, user)
	if errors.Is(err, users.ErrNotFound) {
		_, err = s.cfg.DB.ExecContext(ctx, "DELETE FROM home_over WHERE user_id = ?", user)
		return err
	}
	if err != nil {
		return err
	}
	state, err := s.HomeState(ctx, u)
	if err != nil {
		return err
	}
	writing, err := s.writing(ctx, user)
	if err != nil {
		return err
	}
	if !state.Over || state.Kept || len(writing) == 0 {
		_, err := s.cfg.DB.ExecContext(ctx, "DELETE FROM home_over WHERE user_id = ?", user)
		return err
	}
	if _, err := s.cfg.DB.ExecContext(ctx, "INSERT INTO home_over (user_id, since) VALUES (?, ?) ON CONFLICT DO NOTHING",
		user, s.now().UnixMilli()); err != nil {
		return fmt.Errorf("note that a home is full: %w", err)
	}
	until, warned, err := s.homeGrace(ctx, user)
	if err != nil || !warned || s.now().Before(until) {
		return err
	}
	var errs []error
	for _, launch := range writing {
		errs = append(errs, s.cfg.End(ctx, launch, FullHome,
			"It was stopped: your home is full, "+state.used()+". Delete something on the page Folders; until then new "+
				"notebooks can only read your home."))
	}
	return errors.Join(errs...)
}

// writing are somebody's launches that may write in the home.
func (s *Service) writing(ctx context.Context, user int64) ([]int64, error) {
	return s.ids(ctx,
		"read who writes in a home", `SELECT h.launch_id FROM launch_homes h JOIN launches l ON l.id = h.launch_id
		WHERE h.read_only = 0 AND l.user_id = ? AND l.state IN ('starting', 'running')`, user)
}
