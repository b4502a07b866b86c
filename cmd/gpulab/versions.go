package main

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/upgrade"
	"github.com/gpulab/gpulab/internal/users"
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
		err = l.people.Audit(ctx, users.Entry{Actor: "root", Action: "gpulab.rollback", Target: version.Version, Detail: "from " + u.From})
	case was != "" && was != version.Version:
		err = l.people.Audit(ctx, users.Entry{Actor: "system", Action: "gpulab.upgrade", Target: version.Version, Detail: "from " + was})
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
	recorded := u.From
	if recorded == "" {
		if recorded, err = l.store.Before(ctx); err != nil {
			slog.Warn("the version before this one is not known", "err", err)
		}
	}
	if err := upgrade.Keep(l.cfg.DataDir, own, ownProgram(), l.images.Dir, recorded); err != nil {
		slog.Warn("a rollback from the next version to this one will not be possible", "err", err)
	}
	if before, err := upgrade.Before(l.cfg.DataDir, own.Version, recorded); err == nil {
		l.before.Store(&before.Version.Version)
	}
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
