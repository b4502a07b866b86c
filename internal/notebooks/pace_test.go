package notebooks

import (
	"testing"
	"time"
)

// TestStartsAtOnce: a class that starts together starts a few at a time, and one
// whose start takes long holds back nobody.
func TestStartsAtOnce(t *testing.T) {
	now := time.Now()
	s := &Service{now: func() time.Time { return now }}
	got := s.starting([]Launch{
		{State: Starting, Started: now.Add(-time.Second)},
		{State: Starting, Started: now.Add(-startTime)}, // waits for an image
		{State: Waiting}, {State: Running, Started: now}, {State: Stopping, Started: now},
	})
	if got != 1 {
		t.Errorf("%d launches are starting, want 1", got)
	}
}
