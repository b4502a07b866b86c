package notebooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// Held tells whether the launch is a job that has no place in the line yet,
// because it waits for something else than its turn.
func (l Launch) Held() bool { return l.State == Waiting && l.Job != nil && l.Job.Held }

// Ahead counts who stands in the line before whoever would come now with a profile. Kinds of GPUs have lines of their
// own; who takes any is in all of them.
func Ahead(active []Launch, profiles []Profile, p Profile) (n int) {
	for i := range active {
		if !active[i].WaitsForGPU() {
			continue
		}
		model := ""
		if k := slices.IndexFunc(profiles, func(q Profile) bool { return q.Slug == active[i].Profile }); k >= 0 {
			model = profiles[k].GPUModel
		}
		if model == "" || p.GPUModel == "" || model == p.GPUModel {
			n++
		}
	}
	return n
}

// WaitsForGPU tells whether the launch stands in the line for GPUs.
func (l Launch) WaitsForGPU() bool {
	return l.State == Waiting && l.GPUs > 0 && !l.Never && !l.Held()
}

// letIn puts jobs in the line that wait for nothing else any more, ends those
// that cannot start any more, and says of the others what they wait for. It
// returns what stands in the line already, or is past it.
func (s *Service) letIn(ctx context.Context, list []Launch) []Launch {
	seen := &pass{refused: map[quotaAsk]string{}, jobs: make(map[int64]Launch, len(list))}
	for _, l := range list {
		seen.jobs[l.ID] = l
	}
	return slices.DeleteFunc(slices.Clone(list), func(l Launch) bool {
		if l.Held() {
			s.lookAtHeld(ctx, l, seen)
		}
		return l.Held()
	})
}

// pass is what one pass has learnt: what did not fit a quota fits no better after others
// were let in, and a job that many wait for is read once.
type pass struct {
	refused map[quotaAsk]string
	jobs    map[int64]Launch // all that are active, and ended ones that were asked for
}

type quotaAsk struct {
	user    int64
	profile string
	gpus    int
}

func (s *Service) lookAtHeld(ctx context.Context, l Launch, seen *pass) {
	words, never, err := s.heldBy(ctx, l, seen)
	if err == nil && never != "" {
		s.endWaiting(ctx, l, EndDependency, never)
		return
	}
	if err == nil && words == "" && !l.IsArray() {
		enter := func() error { return s.rows.enter(ctx, l.ID, s.now()) }
		if words, err = s.withinQuota(ctx, l, seen, enter); err == nil && words == "" {
			s.with(l.ID, func(t *track) { *t = track{busy: t.busy} }) // what it waited for is over
			s.kick()
			return
		}
	}
	if no := (*JobError)(nil); errors.As(err, &no) {
		s.endWaiting(ctx, l, EndFailed, no.Error())
		return
	}
	if err != nil {
		if ctx.Err() == nil {
			s.log.Error("what a job waits for cannot be told", "launch", l.ID, "error", err)
		}
		return
	}
	s.with(l.ID, func(t *track) {
		t.begin(StepQueue, l.Requested)
		t.reason = words
	})
}

// heldBy says what a held job waits for, or why it cannot start any more; both
// are "" when it may stand in line.
func (s *Service) heldBy(ctx context.Context, l Launch, seen *pass) (words, never string, err error) {
	words, never, err = s.waitsFor(ctx, l, seen)
	if err != nil || words != "" || never != "" {
		return words, never, err
	}
	if l.IsArray() {
		words, err = s.spread(ctx, l, seen)
		return words, "", err
	}
	if words = s.pauses(l); words == "" {
		words, err = s.standsAside(ctx, l)
	}
	return words, "", err
}

// withinQuota lets a job in if its owner's quota has room for it, and says else
// why it has to wait.
func (s *Service) withinQuota(ctx context.Context, l Launch, seen *pass, enter func() error) (words string, err error) {
	ask := quotaAsk{l.UserID, l.Profile, l.GPUs}
	if words = seen.refused[ask]; words != "" {
		return words, nil
	}
	// Until the row counts, nobody else may be told that there is room.
	s.launching.Lock()
	defer s.launching.Unlock()
	if words, err = s.beyondQuota(ctx, l, 0); err != nil {
		return "", err
	}
	if words != "" {
		words = "It waits for your quota. " + words
		seen.refused[ask] = words
		return words, nil
	}
	return "", enter()
}

// beyondQuota says why a launch does not fit its owner's quota, "" when it does; without
// is the launch itself if it counts already, else 0, and the caller holds launching.
func (s *Service) beyondQuota(ctx context.Context, l Launch, without int64) (string, error) {
	profile, known := s.profile(l.Profile)
	if s.cfg.Quota == nil || !known {
		return "", nil
	}
	u, err := s.cfg.People.ByID(ctx, l.UserID)
	if err != nil {
		return "", fmt.Errorf("find the owner: %w", err)
	}
	profile.GPUs = l.GPUs
	refusal := (*users.Error)(nil)
	if err := s.cfg.Quota(ctx, u, profile, without); errors.As(err, &refusal) {
		return refusal.Text, nil
	} else if err != nil {
		return "", err
	}
	return "", nil
}

// outgrown takes a launch whose turn has come out of the line if its owner's quota has no room
// for it any more, such as GPU hours that were used up meanwhile: a job waits for them, the
// rest is refused as it would be now.
func (s *Service) outgrown(ctx context.Context, l Launch) bool {
	words, err := s.beyondQuota(ctx, l, l.ID)
	if err == nil && words != "" && l.Job != nil && l.Service == nil {
		err = s.rows.hold(ctx, l.ID)
		s.with(l.ID, func(t *track) { *t = track{busy: t.busy} }) // it has no place any more
		s.kick()
	} else if err == nil && words != "" {
		s.endWaiting(ctx, l, EndQuota, words)
	}
	if err != nil {
		s.log.Error("whether a launch still fits its owner's quota cannot be told", "launch", l.ID, "error", err)
	}
	return words != ""
}

// endWaiting ends a launch that waits and cannot start any more.
func (s *Service) endWaiting(ctx context.Context, l Launch, code, reason string) {
	l.State, l.Ended, l.EndCode, l.Reason = Ended, s.now(), code, reason
	err := s.rows.move(ctx, Waiting, l)
	if err != nil && !errors.Is(err, errMoved) {
		s.log.Error("a launch that waits could not be ended", "launch", l.ID, "error", err)
		return
	}
	s.kick()
}

// enter gives a held job its place in the line, behind those that have one.
func (t rows) enter(ctx context.Context, id int64, now time.Time) error {
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(ctx, `UPDATE launches SET requested_at = ? WHERE id = ? AND state = 'waiting'`,
		now.UnixMilli(), id)
	if err == nil {
		_, err = tx.ExecContext(ctx, `UPDATE jobs SET held = 0 WHERE launch_id = ?`, id)
	}
	if err == nil {
		err = tx.Commit()
	}
	return err
}

// hold takes a job out of the line again.
func (t rows) hold(ctx context.Context, id int64) error {
	_, err := t.db.ExecContext(ctx,
		`UPDATE jobs SET held = 1 WHERE launch_id = (SELECT id FROM launches WHERE id = ? AND state = 'waiting')`, id)
	return err
}
