package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/users"
)

// newMemoryLimiter makes what has the driver keep people within their quota of
// GPU memory.
func (l *appliance) newMemoryLimiter(rt embedk8s.Runtime) *gpu.MemoryLimiter {
	return gpu.NewMemoryLimiter(gpu.MemoryLimiterConfig{
		ProbePath: filepath.Join(rt.Dir, "gpulab-probe"), Library: l.nvml(), Limit: l.gpuMemoryLimit,
	})
}

// gpuMemoryLimit is somebody's quota of GPU memory in bytes, nil for none.
func (l *appliance) gpuMemoryLimit(ctx context.Context, handle string) (*uint64, error) {
	u, err := l.people.ByHandle(ctx, handle)
	if errors.Is(err, users.ErrNotFound) {
		return nil, nil // their notebooks are being ended
	}
	if err != nil {
		return nil, err
	}
	limit, err := l.quotas.LimitOf(ctx, u, quota.GPUMemory)
	if err != nil || limit == nil {
		return nil, err
	}
	most := uint64(limit.Value)
	return &most, nil
}

// gpuMemoryEnforced says whether the driver keeps everybody within their quota: on
// the head, whose GPUs have to be the pool's only ones.
func (l *appliance) gpuMemoryEnforced() bool {
	parts := l.attached.Load()
	if parts == nil {
		return false
	}
	s, ok := parts.monitor.Latest()
	for _, other := range l.fleet.Snapshots() {
		if ok && other.Node != s.Node && len(other.GPUs) > 0 {
			return false
		}
	}
	return ok && parts.memory.Enforced(s)
}
