package storage

import (
	"context"
	"sync"
	"time"
)

// How often what is looked after.
const (
	watchEvery = 2 * time.Second
	homesEvery = 10 * time.Second
	limitEvery = 30 * time.Second
	sweepEvery = 10 * time.Minute
)

// Run keeps open folders to those who may use them, homes within their limits, sizes up to date, and deletes
// what was deleted long enough ago, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	parts.Go(func() { s.every(ctx, watchEvery, "open folders are not looked after", s.watch) })
	parts.Go(func() { s.every(ctx, homesEvery, "homes are not held against their limits", s.keepHomes) })
	parts.Go(func() {
		s.every(ctx, limitEvery, "the file system's limits of homes are not up to date", s.keepProjects)
	})
	parts.Go(func() { s.every(ctx, sweepEvery, "deleted folders are not gone", s.sweep) })
	parts.Go(func() { s.keepMeasuring(ctx) })
	parts.Wait()
	return nil
}

func (s *Service) sweep(ctx context.Context) error {
	if err := s.purgeDue(ctx); err != nil {
		return err
	}
	return s.deletePurged(ctx)
}

// every does something now and again and again; one that failed is repeated by the next.
func (s *Service) every(ctx context.Context, pause time.Duration, trouble string, do func(context.Context) error) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn(trouble+"; trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
