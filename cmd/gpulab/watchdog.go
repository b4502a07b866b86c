package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/gpulab/gpulab/internal/ctl"
)

// notify tells systemd about a change of state (sd_notify(3)); without systemd
// it does nothing.
func notify(state string) {
	if _, err := sd.SdNotify(false, state); err != nil {
		slog.Warn("systemd could not be told", "state", state, "err", err)
	}
}

// watchdog tells systemd that gpulab works, as often as the unit asks for it. A
// gpulab that hangs says nothing, and is ended and started again; notebooks go
// on meanwhile.
func (l *appliance) watchdog(ctx context.Context) error {
	limit, err := sd.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("systemd's watchdog: %w", err)
	}
	if limit > 0 {
		sayAlive(ctx, limit, l.works, func() { notify(sd.SdNotifyWatchdog) })
	}
	return nil
}

// sayAlive calls say whenever works found nothing wrong, several times within
// limit, until ctx ends.
func sayAlive(ctx context.Context, limit time.Duration, works func(context.Context) error, say func()) {
	for every := limit / 4; ; {
		trial, cancel := context.WithTimeout(ctx, every)
		err := works(trial)
		cancel()
		switch {
		case err == nil:
			say()
		case ctx.Err() == nil:
			slog.Error("gpulab does not work; systemd starts it again if this lasts", "limit", limit, "err", err)
		}
		if !sleep(ctx, every) {
			return
		}
	}
}

// works asks gpulab what its users would: the control socket answers, and so
// does the database. Kubernetes is not asked: starting gpulab again mends that
// no better than gpulab itself.
func (l *appliance) works(ctx context.Context) error {
	err := l.app.client().WatchBoot(ctx, func(ctl.Boot) error { return errEnough })
	if !errors.Is(err, errEnough) {
		return fmt.Errorf("the control socket: %w", err)
	}
	var one int
	if err := l.store.DB().QueryRowContext(ctx, "SELECT 1").Scan(&one); err != nil {
		return fmt.Errorf("the database: %w", err)
	}
	return nil
}
