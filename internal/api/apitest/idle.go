package apitest

import (
	"context"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/idle"
)

// Idle knows of one notebook at most that nobody uses.
type Idle struct {
	mu      sync.Mutex
	holding idle.Holding
}

// Set says what is known.
func (i *Idle) Set(h idle.Holding) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.holding = h
}

// Of implements api.Idle.
func (i *Idle) Of(launch int64) (idle.Holding, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.holding, i.holding.Launch == launch
}

// Extend implements api.Idle.
func (i *Idle) Extend(_ context.Context, launch int64) (idle.Holding, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch h := &i.holding; {
	case h.Launch != launch || h.State != idle.Warned:
		return *h, idle.ErrNotWarned
	case !h.MayExtend():
		return *h, idle.ErrNoMore
	default:
		h.State, h.Cause, h.Extensions, h.Until = idle.Free, "", h.Extensions+1, time.Now().Add(h.Policy.Extend)
		return *h, nil
	}
}

// Free implements api.Idle.
func (i *Idle) Free(context.Context, int64, string) (idle.Holding, error) {
	return idle.Holding{}, idle.ErrNotIdle
}

// Reclaims implements api.Idle.
func (i *Idle) Reclaims(context.Context, int64, time.Time, int) ([]idle.Reclaim, error) {
	return nil, nil
}
