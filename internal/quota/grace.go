package quota

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// lookEvery is how often running work is held against its owner's hours and GPU memory.
const lookEvery = 10 * time.Second

// Running is the running work that Keep looks after.
type Running interface {
	// WithGPU is everybody with a notebook that holds a GPU.
	WithGPU(ctx context.Context) ([]users.User, error)
	// StopGPU stops somebody's notebooks with GPUs, for the reason given to them.
	StopGPU(ctx context.Context, u users.User, reason string) error
}

// Keep gives notice to people who hold GPUs while their GPU hours are used up or their programs have taken more GPU
// memory than they may, and stops these notebooks after the grace period, until ctx ends. Other limits stop nothing:
// they refuse what is new.
func (s *Service) Keep(ctx context.Context, running Running) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if err := s.look(ctx, running); err != nil && ctx.Err() == nil {
			slog.Warn("quotas of running notebooks are not looked after; trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (s *Service) look(ctx context.Context, running Running) error {
	if err := s.sleepOver(ctx); err != nil {
		return err
	}
	people, err := running.WithGPU(ctx)
	if err != nil {
		return err
	}
	over := map[int64]bool{}
	var errs []error
	for _, u := range people {
		used, err := s.goesBeyond(ctx, u)
		if err == nil && used != nil {
			over[u.ID] = true
			err = s.warnOrStop(ctx, running, u, *used)
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, s.forget(ctx, over))...)
}

// goesBeyond is the limit that u's running work goes beyond, nil if none.
func (s *Service) goesBeyond(ctx context.Context, u users.User) (*Limit, error) {
	limits, err := s.limits(ctx, u)
	if err != nil {
		return nil, err
	}
	for i := range limits {
		l := &limits[i]
		if l.Kind != GPUHoursWeek && l.Kind != GPUHoursTerm && l.Kind != GPUMemory {
			continue
		}
		if err := s.measure(ctx, u, l, nil); err != nil {
			return nil, err
		}
		// All of the memory may be in use; hours are gone when all of them are.
		if l.Used > l.Value || l.Kind != GPUMemory && l.Used == l.Value {
			return l, nil
		}
	}
	return nil, nil
}

func (s *Service) warnOrStop(ctx context.Context, running Running, u users.User, l Limit) error {
	now := s.now()
	if _, err := s.cfg.DB.ExecContext(ctx, "INSERT INTO quota_over (user_id, since, kind) VALUES (?, ?, ?) ON CONFLICT "+
		"DO UPDATE SET since = iif(kind = excluded.kind, since, excluded.since), kind = excluded.kind",
		u.ID, now.UnixMilli(), l.Kind); err != nil {
		return fmt.Errorf("note that a quota is used up: %w", err)
	}
	until, _, ok, err := s.grace(ctx, u.ID)
	if err != nil || !ok || now.Before(until) {
		return err
	}
	return running.StopGPU(ctx, u, l.usedUp())
}

// sleepOver makes the grace periods longer by what the machine has slept:
// nobody could save their work meanwhile.
func (s *Service) sleepOver(ctx context.Context) error {
	s.sleeping.Lock()
	defer s.sleeping.Unlock()
	asleep := s.cfg.Asleep()
	more := asleep - s.slept
	if more < time.Second {
		return nil
	}
	if _, err := s.cfg.DB.ExecContext(ctx, "UPDATE quota_over SET since = since + ?", more.Milliseconds()); err != nil {
		return fmt.Errorf("make grace periods longer by the machine's sleep: %w", err)
	}
	s.slept = asleep
	return nil
}

// forget ends the notices of all others.
func (s *Service) forget(ctx context.Context, over map[int64]bool) error {
	warned, err := store.All(ctx, s.cfg.DB, store.Value[int64], "SELECT user_id FROM quota_over")
	if err != nil {
		return fmt.Errorf("read notices of quotas: %w", err)
	}
	for _, id := range warned {
		if over[id] {
			continue
		}
		if _, err := s.cfg.DB.ExecContext(ctx, "DELETE FROM quota_over WHERE user_id = ?", id); err != nil {
			return fmt.Errorf("end the notice of a quota: %w", err)
		}
	}
	return nil
}

// grace is until when somebody's running work may go on, and beyond which kind of limit; false while they are over
// none.
func (s *Service) grace(ctx context.Context, userID int64) (until time.Time, kind Kind, over bool, err error) {
	if err := s.sleepOver(ctx); err != nil {
		return time.Time{}, "", false, err
	}
	var since int64
	err = s.cfg.DB.QueryRowContext(ctx, "SELECT since, kind FROM quota_over WHERE user_id = ?", userID).Scan(&since, &kind)
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, "", false, nil
	}
	if err != nil {
		return time.Time{}, "", false, fmt.Errorf("read the notice of a quota: %w", err)
	}
	return time.UnixMilli(since).Add(s.cfg.Grace), kind, true, nil
}

// Notice is what somebody is told whose running notebooks will be stopped for their quota, "" for nothing.
func (s *Service) Notice(ctx context.Context, userID int64) (string, error) {
	until, kind, ok, err := s.grace(ctx, userID)
	if err != nil || !ok {
		return "", err
	}
	if kind == GPUMemory {
		return "Your notebooks have taken more GPU memory than your quota allows. Free some: otherwise notebooks with a " +
			"GPU are stopped at " +
			until.Local().Format("15:04 on Mon 2 Jan") + ". Restarting a kernel frees what it has taken. Files in the home " +
			"folder stay.", nil
	}
	return "Your GPU hours are used up. Save your work: notebooks with a GPU are stopped at " +
		until.Local().Format("15:04 on Mon 2 Jan") + ". Files in the home folder stay. An admin can grant more hours.", nil
}
