package nodeapi

import (
	"context"

	"github.com/gpulab/gpulab/internal/gpu"
)

// Newest makes reports of snapshots for Stream. While none is taken, newer ones
// take the place of those that wait, with the events of those. features is
// asked for each snapshot. The channel is closed when ctx or snapshots end.
func Newest(ctx context.Context, snapshots <-chan gpu.Snapshot, features func() map[string]string) <-chan Report {
	out := make(chan Report)
	go func() {
		defer close(out)
		var pending Report
		var to chan<- Report // nil while nothing is pending
		for {
			select {
			case <-ctx.Done():
				return
			case s, open := <-snapshots:
				if !open {
					return
				}
				if to != nil {
					s = s.After(pending.Snapshot, mostEvents)
				}
				pending, to = Report{Snapshot: s, Features: features()}, out
			case to <- pending:
				pending, to = Report{}, nil
			}
		}
	}()
	return out
}
