package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

// people are the accounts as command line and pages see them: removing one
// takes its notebooks and its place in the cluster along.
type people struct {
	*users.Service
	notebooks interface {
		Active(ctx context.Context) ([]notebooks.Launch, error)
		StopUser(ctx context.Context, userID int64, reason string) error
	}
	places interface {
		Remove(ctx context.Context, u users.User) error
		Sweep(ctx context.Context, gone func(ctx context.Context, handle string) (bool, error)) error
	}
}

// sweepEvery is how often what removed accounts left is looked for. There is
// some only after a removal that the cluster could not follow.
const sweepEvery = 5 * time.Minute

// Remove ends the account first, so that nothing new begins under it. What the
// cluster cannot do now does not bring the account back: Run tries again.
func (p *people) Remove(ctx context.Context, id int64) error {
	u, err := p.ByID(ctx, id)
	if err != nil {
		return err
	}
	if err := p.Service.Remove(ctx, id); err != nil {
		return err
	}
	// A browser that goes away now must not leave the rest undone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := errors.Join(p.notebooks.StopUser(ctx, id, "The account was removed."), p.places.Remove(ctx, u)); err != nil {
		slog.Warn("not all of a removed account is gone yet; trying again", "handle", u.Handle, "err", err)
	}
	return nil
}

// Run takes away what removed accounts left, now and from time to time.
func (p *people) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if err := p.sweep(ctx); err != nil && ctx.Err() == nil {
			slog.Warn("what removed accounts left is not gone yet; trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (p *people) sweep(ctx context.Context) error {
	active, err := p.notebooks.Active(ctx)
	for i := range active {
		gone, lookErr := p.gone(ctx, active[i].Handle)
		if gone {
			lookErr = p.notebooks.StopUser(ctx, active[i].UserID, "The account was removed.")
		}
		err = errors.Join(err, lookErr)
	}
	return errors.Join(err, p.places.Sweep(ctx, p.gone))
}

func (p *people) gone(ctx context.Context, handle string) (bool, error) {
	_, err := p.ByHandle(ctx, handle)
	if errors.Is(err, users.ErrNotFound) {
		return true, nil
	}
	return false, err
}
