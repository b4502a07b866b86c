package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/tenancy"
	"github.com/gpulab/gpulab/internal/users"
)

// people are the accounts as command line and pages see them: suspending or
// removing one takes its notebooks along, removing also its place in the
// cluster, and deleting one for good its home.
type people struct {
	*users.Service
	notebooks interface {
		Active(ctx context.Context) ([]notebooks.Launch, error)
		StopUser(ctx context.Context, userID int64, reason string) error
	}
	places interface {
		Remove(ctx context.Context, u users.User) error
		Sweep(ctx context.Context, gone func(ctx context.Context, handle string) (bool, error)) error
		DeleteHome(ctx context.Context, u users.User) error
	}
	now func() time.Time
}

const (
	// sweepEvery is how often what accounts left is looked for: something that
	// the cluster could not follow at once, or whose time is over.
	sweepEvery = 5 * time.Minute
	// followFor is how long the cluster has to follow what was done to an
	// account before that is left to the sweep.
	followFor = 30 * time.Second
)

// Why notebooks of an account were stopped.
const (
	becauseSuspended = "The account was suspended."
	becauseRemoved   = "The account was removed."
)

// Suspend ends sessions and live connections first, so that nothing new begins
// under the account, then the notebooks.
func (p *people) Suspend(ctx context.Context, id int64) error {
	if err := p.Service.Suspend(ctx, id); err != nil {
		return err
	}
	ctx, cancel := follow(ctx)
	defer cancel()
	if err := p.notebooks.StopUser(ctx, id, becauseSuspended); err != nil {
		slog.Warn("notebooks of a suspended account still run; trying again", "id", id, "err", err)
	}
	return nil
}

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
	ctx, cancel := follow(ctx)
	defer cancel()
	if err := errors.Join(p.notebooks.StopUser(ctx, id, becauseRemoved), p.places.Remove(ctx, u)); err != nil {
		slog.Warn("not all of a removed account is gone yet; trying again", "handle", u.Handle, "err", err)
	}
	return nil
}

// follow is a context in which the cluster can follow: a browser that goes away
// must not leave the rest undone.
func follow(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), followFor)
}

// Purge deletes a removed account for good, due or not, and its home as far as
// that is possible within followFor; homeGone is false where Run has to go on.
func (p *people) Purge(ctx context.Context, id int64) (homeGone bool, err error) {
	if err := p.Service.Purge(ctx, id); err != nil {
		return false, err
	}
	ctx, cancel := follow(ctx)
	defer cancel()
	for {
		homes, err := p.HomesToDelete(ctx)
		for _, u := range homes {
			if u.ID == id {
				err = p.deleteHome(ctx, u)
			}
		}
		if !errors.Is(err, tenancy.ErrPlaceInUse) {
			if err != nil {
				slog.Warn("the home of a deleted account is not gone yet; trying again", "id", id, "err", err)
			}
			return err == nil, nil
		}
		select {
		case <-ctx.Done():
			return false, nil
		case <-time.After(time.Second):
		}
	}
}

func (p *people) deleteHome(ctx context.Context, u users.User) error {
	if err := p.places.DeleteHome(ctx, u); err != nil {
		return err
	}
	return p.HomeDeleted(ctx, u.ID)
}

// Run takes away what suspended and removed accounts left, now and from time to
// time.
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
	return errors.Join(p.sweepNotebooks(ctx), p.places.Sweep(ctx, p.gone), p.purgeDue(ctx), p.sweepHomes(ctx))
}

// sweepNotebooks stops what still runs under accounts that may run nothing.
func (p *people) sweepNotebooks(ctx context.Context) error {
	active, err := p.notebooks.Active(ctx)
	for i := range active {
		u, lookErr := p.ByID(ctx, active[i].UserID)
		switch {
		case errors.Is(lookErr, users.ErrNotFound):
			lookErr = p.notebooks.StopUser(ctx, active[i].UserID, becauseRemoved)
		case lookErr == nil && u.Suspended:
			lookErr = p.notebooks.StopUser(ctx, active[i].UserID, becauseSuspended)
		}
		err = errors.Join(err, lookErr)
	}
	return err
}

// purgeDue deletes for good whoever was removed long enough ago.
func (p *people) purgeDue(ctx context.Context) error {
	removed, err := p.Removed(ctx)
	for i := range removed {
		if who := &removed[i]; !who.Purge.After(p.now()) {
			purgeErr := p.Service.Purge(ctx, who.ID)
			if purgeErr == nil {
				purgeErr = p.AuditLog().Record(ctx, audit.Entry{Actor: "system", Action: "user.purge", Target: who.Handle})
			}
			err = errors.Join(err, purgeErr)
		}
	}
	return err
}

// sweepHomes deletes the homes of accounts that are gone for good. One that
// cannot be deleted keeps no other from it.
func (p *people) sweepHomes(ctx context.Context) error {
	homes, err := p.HomesToDelete(ctx)
	for _, u := range homes {
		if homeErr := p.deleteHome(ctx, u); homeErr != nil && !errors.Is(homeErr, tenancy.ErrPlaceInUse) {
			err = errors.Join(err, fmt.Errorf("account %s: %w", u.Handle, homeErr))
		}
	}
	return err
}

func (p *people) gone(ctx context.Context, handle string) (bool, error) {
	_, err := p.ByHandle(ctx, handle)
	if errors.Is(err, users.ErrNotFound) {
		return true, nil
	}
	return false, err
}
