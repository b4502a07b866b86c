package config

import (
	"errors"
	"time"

	"github.com/gpulab/gpulab/internal/quota"
)

// Quotas says what quotas count from and how long they wait.
type Quotas struct {
	// TermBegins is the first day of the current term, as 2026-10-12; "" for none.
	TermBegins string `json:"termBegins,omitempty"`
	// Grace is how long notebooks with a GPU go on after their owner's hours are
	// used up, as "1h".
	Grace string `json:"grace,omitempty"`
}

func (q Quotas) Term() (time.Time, error) {
	if q.TermBegins == "" {
		return time.Time{}, nil
	}
	day, err := time.ParseInLocation(time.DateOnly, q.TermBegins, time.Local)
	if err != nil {
		return time.Time{}, errors.New("quotas.termBegins is no day; write it as 2026-10-12")
	}
	return day, nil
}

func (q Quotas) GraceTime() (time.Duration, error) {
	if q.Grace == "" {
		return quota.DefaultGrace, nil
	}
	d, err := time.ParseDuration(q.Grace)
	if err != nil || d < 0 || d > 7*24*time.Hour {
		return 0, errors.New("quotas.grace is no time between 0s and 168h; write it as 1h or 30m")
	}
	return max(d, time.Nanosecond), nil // 0 would be the default
}
