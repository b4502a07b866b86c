package nodeapi

import (
	"context"

	"github.com/gpulab/gpulab/internal/gpu"
)

// Newest makes reports of snapshots for Stream. While none is taken, newer ones
// take the place of those that wait, with the events of those. report says what
// else is told with each. The channel is closed when ctx or snapshots end.
func Newest(ctx context.Context, snapshots <-chan gpu.Snapshot, report func(gpu.Snapshot) Report) <-chan Report {
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
				pending, to = report(s), out
			case to <- pending:
				pending, to = Report{}, nil
			}
		}
	}()
	return out
}
