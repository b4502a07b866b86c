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
	// Each in its own time: a release may wait for long, also for one of the objects.
	g.Go(func() error { return keepMending(ctx, "the objects of the cluster are", l.mend[0], l.mendObjects) })
	g.Go(func() error { return keepMending(ctx, "the charts are", l.mend[1], l.mendReleases) })
	return g.Wait()
}

// mendSoon asks for a look at the cluster.
func (l *appliance) mendSoon() {
	for _, asked := range l.mend {
		select {
		case asked <- struct{}{}:
		default:
		}
	}
}

// keepMending mends a part of the cluster from time to time, and soon after it is asked.
func keepMending(ctx context.Context, what string, asked <-chan struct{}, mend func(context.Context) error) error {
	next := mendEvery
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(next):
		case <-asked:
			if !sleep(ctx, mendSettle) {
				return nil
			}
		}
		next = mendEvery
		if err := mend(ctx); err != nil && ctx.Err() == nil {
			slog.Warn(what+" not as they should be; trying again", "err", err)
			next = mendRetry
		}
		if !sleep(ctx, mendPause) {
			return nil
		}
	}
}

// mendReleases applies the charts that are not as they were applied.
func (l *appliance) mendReleases(ctx context.Context) error {
	releases, err := l.releases()
	if err != nil {
		return err
	}
	return l.charts().Apply(ctx, releases, func(e charts.Event) {
		if e.Phase.Done() && e.Phase != charts.Unchanged {
			slog.Info("chart", "release", e.Release, "now", e.Phase, "because", e.Detail)
		}
	})
}

// mendObjects mends what belongs to no chart: what depends on this machine, and
// what keeps users apart.
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
