package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gpulab/gpulab/internal/store"
)

// Plan is the way from the version in use to another one.
type Plan struct {
	From    string          `json:"from"`
	To      string          `json:"to"`
	Forth   bool            `json:"forth"`              // to the program on the disk again, after a rollback
	Copy    *store.KeptCopy `json:"database,omitempty"` // takes gpulab.db's place; nil leaves it where it is
	Lost    store.Loss      `json:"lost"`
	History bool            `json:"historyApart"`  // curves and events of one version are not seen in the other
	Minor   bool            `json:"endsNotebooks"` // another Kubernetes, which begins with an empty cluster

	// Program is what runs then: a kept one, or the one on the disk.
	Program string `json:"program"`
	kept    *Kept
}

// Options say how to go.
type Options struct {
	DataDir      string
	Own          Version // of the program that asks, which is the one on the disk
	Program      string  // its path
	KeepDatabase bool    // going forth, bring today's database along instead of the one that was left
}

var (
	// ErrNothingBefore says that no version before is known or kept.
	ErrNothingBefore = errors.New("there is no version to go back to")
	// ErrNoCopy says that the version's database was not kept.
	ErrNoCopy = errors.New("no database to go back to")
)

// MakePlan finds the way to the version before, or forth again after a rollback, and changes nothing.
func MakePlan(ctx context.Context, o Options) (Plan, error) {
	now, err := Current(o.DataDir, o.Own.Version)
	if err != nil {
		return Plan{}, err
	}
	was, err := store.Inspect(ctx, filepath.Join(o.DataDir, store.MainFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Plan{}, fmt.Errorf("%w: this machine has no lab yet", ErrNothingBefore)
	}
	if err != nil {
		return Plan{}, err
	}
	p := Plan{From: now.Version, Forth: now.RolledBack() && now.Front == o.Own.Version}
	from, to := o.Own, o.Own
	if p.Forth {
		p.Program = o.Program
		kept, err := Find(o.DataDir, now.Version)
		if err != nil {
			return Plan{}, fmt.Errorf("gpulab %s, which is in use: %w", now.Version, err)
		}
		from = kept.Version
	} else {
		kept, err := findBefore(o.DataDir, now, was)
		if err != nil {
			return Plan{}, err
		}
		p.kept, p.Program, to = &kept, kept.Program(), kept.Version
	}
	p.To = to.Version
	p.Minor = from.Kubernetes != to.Kubernetes
	p.History = from.MetricsSchema != to.MetricsSchema
	if was.Schema == to.Schema || p.Forth && o.KeepDatabase {
		return p, nil
	}
	p.Copy, err = p.findCopy(ctx, o.DataDir, to)
	if err != nil {
		return Plan{}, err
	}
	p.Lost, err = store.Lost(ctx, o.DataDir, *p.Copy)
	return p, err
}

// findBefore finds the version to which a rollback goes.
func findBefore(dataDir string, now InUse, was store.Written) (Kept, error) {
	before := was.Before
	switch {
	case was.Version != now.Version:
		before = was.Version // this one has not opened the database yet
	case now.From != "":
		before = now.From // it went there and came back
	}
	kept, err := Before(dataDir, now.Version, before)
	if errors.Is(err, fs.ErrNotExist) {
		if before == "" {
			return Kept{}, fmt.Errorf("%w: gpulab %s is the first one on this machine", ErrNothingBefore, now.Version)
		}
		return Kept{}, fmt.Errorf("%w: gpulab %s was before, but its program is not kept", ErrNothingBefore, before)
	}
	return kept, err
}

// findCopy finds the database that a version has left.
func (p Plan) findCopy(ctx context.Context, dataDir string, to Version) (*store.KeptCopy, error) {
	copies, err := store.Copies(ctx, dataDir)
	if err != nil {
		return nil, err
	}
	for _, c := range copies {
		if c.Written.Version == to.Version && c.Schema <= to.Schema {
			return &c, nil
		}
	}
	return nil, fmt.Errorf("%w: gpulab %s cannot read what gpulab %s has written, and no copy from before is left",
		ErrNoCopy, to.Version, p.From)
}

// Check reads all that is to be put back.
func (p Plan) Check(ctx context.Context) error {
	if p.kept != nil {
		if err := p.kept.Check(); err != nil {
			return err
		}
	}
	if p.Copy != nil {
		return store.Whole(ctx, p.Copy.Path)
	}
	return nil
}

// Apply goes the way. Nobody may have the databases open. Killed at any moment it leaves the version before or, once
// InUse was written, the other one; Finish has then to be called before that one starts.
func (p Plan) Apply(ctx context.Context, o Options) error {
	if err := os.MkdirAll(filepath.Join(o.DataDir, folder), 0o700); err != nil {
		return err
	}
	if err := store.Unstage(o.DataDir); err != nil {
		return err
	}
	// Before today's is kept, since the oldest copy goes then, which may be this one.
	if p.Copy != nil {
		if err := store.Stage(ctx, o.DataDir, *p.Copy); err != nil {
			return err
		}
	}
	if _, err := store.Keep(ctx, o.DataDir); err != nil {
		return errors.Join(err, store.Unstage(o.DataDir))
	}
	u := InUse{
		Version: p.To, From: p.From, Front: o.Own.Version, Program: o.Program,
		Since: time.Now().UTC(), History: p.History, Pending: true,
	}
	if p.History {
		// One of an earlier time would be taken for what was put aside now.
		if err := os.Remove(filepath.Join(versionDir(o.DataDir, p.From), store.MetricsFile)); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := writeJSON(inUsePath(o.DataDir), u); err != nil {
		return err
	}
	return u.Finish(o.DataDir)
}
