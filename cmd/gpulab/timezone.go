package main

import (
	"context"
	"log/slog"
)

// imageEnv returns the environment that an image sets; nil if it is unknown.
func (l *appliance) imageEnv(ctx context.Context, image string) []string {
	parts := l.attached.Load()
	if parts == nil {
		return nil
	}
	env, err := parts.images.Environment(ctx, image)
	if err != nil {
		slog.Debug("what an image has in its environment is not known", "image", image, "err", err)
	}
	return env
}
