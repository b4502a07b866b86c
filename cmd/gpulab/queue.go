package main

import (
	"errors"
	"log/slog"
	"time"

	"github.com/gpulab/gpulab/internal/queue"
	"k8s.io/client-go/rest"
)

// QueueConfig says how past use counts in the line for GPUs.
type QueueConfig struct {
	// HalfLife is the time after which past use of GPUs counts half, as "168h".
	HalfLife string `json:"halfLife,omitempty"`
	// Sampling is how often use is counted anew, as "1m".
	Sampling string `json:"sampling,omitempty"`
}

func (q QueueConfig) halfLife() (time.Duration, error) {
	if q.HalfLife == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(q.HalfLife)
	if err != nil || d < time.Second || d > 365*24*time.Hour {
		return 0, errors.New("queue.halfLife is no time between 1s and 8760h; write seven days as 168h")
	}
	return d, nil
}

func (q QueueConfig) sampling() (time.Duration, error) {
	if q.Sampling == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(q.Sampling)
	if err != nil || d < time.Second || d > time.Hour {
		return 0, errors.New("queue.sampling is no time between 1s and 1h; write it as 1m")
	}
	return d, nil
}

func newLine(config *rest.Config) (*queue.Line, error) {
	return queue.New(queue.Config{REST: config, Namespace: systemNamespace, Log: slog.Default()})
}
