package main

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/upgrade"
	"github.com/gpulab/gpulab/internal/version"
)

// toldKey is the setting of which version, and since which rollback, the audit log has heard last.
const toldKey = "gpulab.told"

// noteVersion records in the audit log that another version serves the lab than before.
func (l *appliance) noteVersion(ctx context.Context) error {
	u, err := upgrade.Current(l.cfg.DataDir, version.Version)
	if err != nil {
		return err
	}
	since := ""
	if !u.Since.IsZero() && u.Version == version.Version {
		since = u.Since.Format(time.RFC3339Nano)
	}
	told, err := l.store.Setting(ctx, toldKey)
	if err != nil || told == version.Version+" "+since {
		return err
	}
	was, wasSince, _ := strings.Cut(told, " ")
	switch {
	case since != "" && since != wasSince:
		err = l.people.AuditLog().Record(ctx, audit.Entry{
			Actor: "root", Action: "gpulab.rollback", Target: version.Version, Detail: "from " + u.From,
		})
	case was != "" && was != version.Version:
		err = l.people.AuditLog().Record(ctx, audit.Entry{
			Actor: "system", Action: "gpulab.upgrade", Target: version.Version, Detail: "from " + was,
		})
	}
	if err != nil {
		return err
	}
	return l.store.SetSetting(ctx, toldKey, version.Version+" "+since)
}

// keepVersion keeps this version, which has become ready, for a rollback from the next one.
func (l *appliance) keepVersion(ctx context.Context) {
	own := thisVersion()
	u, err := upgrade.Current(l.cfg.DataDir, own.Version)
	if err != nil {
		slog.Warn("this version is not kept for a rollback", "err", err)
		return
	}
	if err := upgrade.Keep(l.cfg.DataDir, own, ownProgram(), l.images.Dir, l.cameFrom(ctx, u)); err != nil {
		slog.Warn("a rollback from the next version to this one will not be possible", "err", err)
	}
}

// findBefore finds out which version is kept for a rollback from this one.
func (l *appliance) findBefore(ctx context.Context) {
	u, err := upgrade.Current(l.cfg.DataDir, version.Version)
	if err != nil {
		return // keepVersion says it
	}
	if before, err := upgrade.Before(l.cfg.DataDir, version.Version, l.cameFrom(ctx, u)); err == nil {
		l.before.Store(&before.Version.Version)
	}
}

// cameFrom is the version that worked with this lab before, "" for none.
func (l *appliance) cameFrom(ctx context.Context, u upgrade.InUse) string {
	if u.From != "" {
		return u.From
	}
	before, err := l.store.Before(ctx)
	if err != nil {
		slog.Warn("the version before this one is not known", "err", err)
	}
	return before
}

// ownProgram is where this very program can be read, also when another one has its name on the disk by now.
func ownProgram() string {
	const running = "/proc/self/exe"
	exe, err := os.Executable()
	if err != nil {
		return running
	}
	named, err1 := os.Stat(exe)
	own, err2 := os.Stat(running)
	if err1 != nil || err2 != nil || !os.SameFile(named, own) {
		return running
	}
	return exe
}
