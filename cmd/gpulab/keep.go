package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpulab/gpulab/internal/charts"
)

// Times of keeping the cluster as this version wants it.
const (
	mendEvery  = 10 * time.Minute // without any sign that something changed
	mendSettle = time.Second      // after a change: one rarely comes alone
	mendPause  = 10 * time.Second // between two looks, whatever happens
	mendRetry  = 30 * time.Second // after one that failed
)

// keep mends, as long as ctx lasts, what somebody changes in the cluster after
// the start has made it right.
func (l *appliance) keep(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := l.charts().Watch(ctx, l.mendSoon); err != nil && ctx.Err() == nil {
			slog.Error("changes in the cluster are mended late, because they cannot be watched", "err", err)
		}
		return nil
	})
	g.Go(func() error { return l.keepMending(ctx) })
	return g.Wait()
}

// mendSoon asks for a look at the cluster.
func (l *appliance) mendSoon() {
	select {
	case l.mend <- struct{}{}:
	default:
	}
}

func (l *appliance) keepMending(ctx context.Context) error {
	next := mendEvery
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(next):
		case <-l.mend:
			if !sleep(ctx, mendSettle) {
				return nil
			}
		}
		next = mendEvery
		if err := l.mendCluster(ctx); err != nil && ctx.Err() == nil {
			slog.Warn("the cluster is not as it should be; trying again", "err", err)
			next = mendRetry
		}
		if !sleep(ctx, mendPause) {
			return nil
		}
	}
}

// mendCluster mends the objects, then the releases. A release may wait for long, also
// for one of the objects: those are mended as well while releases are.
func (l *appliance) mendCluster(ctx context.Context) error {
	if err := l.mendObjects(ctx); err != nil {
		return err
	}
	releases, err := l.releases()
	if err != nil {
		return err
	}
	applied := make(chan error, 1)
	go func() {
		applied <- l.charts().Apply(ctx, releases, func(e charts.Event) {
			if e.Phase.Done() && e.Phase != charts.Unchanged {
				slog.Info("chart", "release", e.Release, "now", e.Phase, "because", e.Detail)
			}
		})
	}()
	changes, again := l.mend, false
	var pause <-chan time.Time
	for {
		select {
		case err := <-applied:
			if again {
				l.mendSoon() // the releases have not been looked at since
			}
			return err
		case <-changes:
			again = true
			if sleep(ctx, mendSettle) {
				if err := l.mendObjects(ctx); err != nil && ctx.Err() == nil {
					slog.Warn("objects of the cluster are not as they should be; trying again", "err", err)
					l.mendSoon()
				}
			}
			changes, pause = nil, time.After(mendPause)
		case <-pause:
			changes, pause = l.mend, nil
		}
	}
}

// mendObjects does it for what belongs to no chart: what depends on this
// machine, and what keeps users apart.
func (l *appliance) mendObjects(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return errors.Join(l.prepareCluster(ctx, l.client.Load()), l.attached.Load().tenancy.Refresh(ctx))
}

// sleep waits, and reports whether ctx still lasts.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
