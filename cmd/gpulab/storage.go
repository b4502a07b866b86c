package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/storage"
	"github.com/gpulab/gpulab/internal/tenancy"
	"github.com/gpulab/gpulab/internal/users"
)

func (l *appliance) foldersDir() string { return filepath.Join(l.cfg.DataDir, "folders") }

func (l *appliance) newStorage() *storage.Service {
	return storage.New(storage.Config{
		DB: l.store.DB(), People: l.people, Audit: l.people.AuditLog(), HomesDir: l.homesDir(), FoldersDir: l.foldersDir(),
		DataDir:   l.cfg.DataDir,
		HomeLimit: l.homeLimit, HomeFiles: l.homeFileLimit, Active: l.launchesWithFolders, End: l.endForStorage,
		MeasureEvery: l.cfg.Storage.MeasureEvery.Value, Grace: l.grace(), Taken: l.numbers.taken, Log: slog.Default(),
	})
}

// homeLimit is how large somebody's home may be.
func (l *appliance) homeLimit(ctx context.Context, u users.User) (*storage.HomeLimit, error) {
	limit, err := l.quotas.LimitOf(ctx, u, quota.HomeSize)
	if err != nil || limit == nil {
		return nil, err
	}
	return &storage.HomeLimit{Bytes: int64(limit.Value), Why: limit.From.Words()}, nil
}

// homeFileLimit is how many files may be in somebody's home.
func (l *appliance) homeFileLimit(ctx context.Context, u users.User) (*storage.FileLimit, error) {
	limit, err := l.quotas.LimitOf(ctx, u, quota.HomeFiles)
	if err != nil || limit == nil {
		return nil, err
	}
	return &storage.FileLimit{Files: int64(limit.Value), Why: limit.From.Words()}, nil
}

// homeFiles is how many there are, for quotas.
func (l *appliance) homeFiles(ctx context.Context, u users.User) (*int64, time.Time, error) {
	size, _, err := l.storage.HomeUse(ctx, u)
	if err != nil || size == nil {
		return nil, time.Time{}, err
	}
	return &size.Files, size.At, nil
}

// homeSize is how much of it is used, for quotas.
func (l *appliance) homeSize(ctx context.Context, u users.User) (*int64, time.Time, error) {
	size, _, err := l.storage.HomeUse(ctx, u)
	if err != nil || size == nil {
		return nil, time.Time{}, err
	}
	return &size.Bytes, size.At, nil
}

func (l *appliance) launchesWithFolders(ctx context.Context) ([]storage.Running, error) {
	parts := l.attached.Load()
	if parts == nil {
		return nil, errStarting
	}
	active, err := parts.notebooks.Active(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]storage.Running, len(active))
	for i := range active {
		list[i] = storage.Running{
			Launch: active[i].ID, UserID: active[i].UserID, Waiting: active[i].State == notebooks.Waiting,
		}
	}
	return list, nil
}

// endForStorage ends a launch because of a folder that it has open.
func (l *appliance) endForStorage(ctx context.Context, id int64, why storage.Cause, reason string) error {
	parts := l.attached.Load()
	launch, err := parts.notebooks.Get(ctx, id)
	if err != nil {
		return err
	}
	if launch.State == notebooks.Stopping || launch.State == notebooks.Ended {
		return nil // asked before
	}
	stop, action := parts.notebooks.StopForFolder, "folder.stop"
	if why == storage.FullHome {
		stop, action = parts.notebooks.StopOverQuota, "quota.stop"
	}
	return errors.Join(stop(ctx, id, reason),
		l.people.AuditLog().Record(ctx, audit.Entry{
			Actor: "system", Action: action, Target: launch.Handle, Detail: launch.Name,
		}))
}

// launchOptions makes a launch's folders ready and says what the hub has to
// know of them.
func (l *appliance) launchOptions(places *tenancy.Tenancy) func(context.Context, users.User, int64) (map[string]any,
	error) {
	return func(ctx context.Context, u users.User, launch int64) (map[string]any, error) {
		opened, err := l.storage.Open(ctx, launch, u)
		if err != nil {
			return nil, err
		}
		var shared []tenancy.SharedFolder
		for _, m := range opened.Mounts {
			shared = append(shared, tenancy.SharedFolder{Claim: m.Claim, Path: m.Path})
		}
		shared = append(shared, tenancy.SharedFolder{
			Claim: environmentsClaim, Path: environments.Ready(l.environmentsDir()), Make: true,
		})
		if err := places.EnsureFolders(ctx, u, shared); err != nil {
			return nil, err
		}
		options := map[string]any{"folders": opened.Mounts, "environments": true}
		if opened.HomeReadOnly {
			options["homeReadOnly"] = true
		}
		node := l.stayHome()
		if node != "" {
			options["node"] = node
		}
		if models := l.modelCache(node); models != "" {
			options["models"] = models
		}
		if opened.HostUsers || l.sharedUsers(node) {
			options["hostUsers"] = true
		}
		return options, nil
	}
}

// claimsEvery is how often claims are taken away that nobody may use any more.
const claimsEvery = 20 * time.Second

// keepClaims does so until ctx ends.
func (l *appliance) keepClaims(ctx context.Context, places *tenancy.Tenancy) error {
	for sleep(ctx, claimsEvery) {
		err := places.SweepFolders(ctx, func(ctx context.Context, handle string) ([]string, error) {
			u, err := l.people.ByHandle(ctx, handle)
			if errors.Is(err, users.ErrNotFound) {
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
			mounts, err := l.storage.Claims(ctx, u)
			claims := []string{environmentsClaim}
			for _, m := range mounts {
				claims = append(claims, m.Claim)
			}
			return claims, err
		})
		if err != nil && ctx.Err() == nil {
			slog.Warn("claims of shared folders are not up to date; trying again", "err", err)
		}
	}
	return nil
}

// homesComponent says who keeps homes within their limits.
func (l *appliance) homesComponent(ctx context.Context) ctl.Component {
	c := ctl.Component{Name: "home sizes", State: ctl.OK, Detail: fmt.Sprintf("measured every %s; a quota for them is "+
		"kept by warnings, not by the file system. "+
		"With project quotas it would be: see docs/folders.md", l.cfg.Storage.MeasureEvery)}
	if l.storage.Kept() {
		c.Detail = "kept by the file system's project quotas"
	}
	rules, err := l.quotas.Rules(ctx)
	if err != nil {
		return c
	}
	for _, r := range rules {
		if r.Kind == quota.HomeSize || r.Kind == quota.HomeFiles {
			return c
		}
	}
	c.Detail += "; no quota for them is set"
	return c
}

// Folders implements ctl.Daemon.
func (l *appliance) Folders(ctx context.Context) ([]storage.Folder, error) {
	return l.storage.Folders(ctx)
}

// Folder implements ctl.Daemon.
func (l *appliance) Folder(ctx context.Context, name string) (storage.Folder, error) {
	return l.storage.Folder(ctx, name)
}

// AddFolder implements ctl.Daemon.
func (l *appliance) AddFolder(ctx context.Context, n storage.NewFolder) (storage.Folder, error) {
	n.By = "root"
	f, err := l.storage.Create(ctx, n)
	if err == nil {
		l.recordRoot(ctx, "folder.add", f.Name, f.Detail())
	}
	return f, err
}

// ChangeFolder implements ctl.Daemon.
func (l *appliance) ChangeFolder(ctx context.Context, name string, c storage.Change) (storage.Folder, error) {
	f, err := l.storage.SetAccess(ctx, name, c)
	if err == nil {
		l.recordRoot(ctx, "folder.change", f.Name, f.Detail())
	}
	return f, err
}

// DeleteFolder implements ctl.Daemon.
func (l *appliance) DeleteFolder(ctx context.Context, name string) (storage.Folder, error) {
	f, err := l.storage.Delete(ctx, name)
	if err == nil {
		l.recordRoot(ctx, "folder.delete", f.Name, "")
	}
	return f, err
}

// UndeleteFolder implements ctl.Daemon.
func (l *appliance) UndeleteFolder(ctx context.Context, name string) (storage.Folder, error) {
	f, err := l.storage.Undelete(ctx, name)
	if err == nil {
		l.recordRoot(ctx, "folder.undelete", f.Name, "")
	}
	return f, err
}
