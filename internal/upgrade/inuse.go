package upgrade

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gpulab/gpulab/internal/atomicfile"
	"github.com/gpulab/gpulab/internal/store"
)

const inUseName = "in-use.json"

// InUse says which version a machine uses since the last rollback, or since it went forth again. It counts as long
// as the program on the disk, Front, is the one that was there then: another one is an upgrade.
//
// Writing it is the moment in which a rollback happens. Before, everything is as it was; after, Pending says that
// databases have to be put in their places (Finish) before any version may start.
type InUse struct {
	Version string    `json:"version"`
	From    string    `json:"from"`    // the version that was in use before
	Front   string    `json:"front"`   // the version of the program that people and systemd start
	Program string    `json:"program"` // its path
	Since   time.Time `json:"since"`
	History bool      `json:"history"` // each of both versions has a metrics.db of its own
	Pending bool      `json:"pending"`
}

func inUsePath(dataDir string) string { return filepath.Join(dataDir, folder, inUseName) }

// Current reads which version is in use, as the program of a version sees it. Where nothing was rolled back, or
// another program was installed since, that is the program's own.
func Current(dataDir, own string) (InUse, error) {
	var u InUse
	err := readJSON(inUsePath(dataDir), &u)
	if errors.Is(err, fs.ErrNotExist) || err == nil && own != u.Front && own != u.Version {
		return InUse{Version: own, Front: own}, nil
	}
	return u, err
}

// RolledBack tells whether another version than the program on the disk is in use.
func (u InUse) RolledBack() bool { return u.Version != u.Front }

// Tidy takes away what a rollback has left that did not happen, or that another program on the disk has ended;
// gpulab.db is whole in both cases. The caller is the only one who uses the databases.
func Tidy(dataDir, own string) error {
	var u InUse
	err := readJSON(inUsePath(dataDir), &u)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !u.Pending && (own == u.Front || own == u.Version):
		return store.Unstage(dataDir)
	case err == nil && u.Pending && (own == u.Front || own == u.Version):
		return u.Finish(dataDir)
	}
	// One that cannot be read is no better than none.
	if err := os.Remove(inUsePath(dataDir)); err != nil {
		return err
	}
	return store.Unstage(dataDir)
}

// Finish does what a rollback has left to do after the moment in which it happened. Nobody may have the databases
// open. It may be interrupted and run again.
func (u InUse) Finish(dataDir string) error {
	if !u.Pending {
		return nil
	}
	if err := store.PutBack(dataDir); err != nil {
		return fmt.Errorf("put the database of gpulab %s back: %w", u.Version, err)
	}
	if u.History {
		if err := exchangeHistory(dataDir, u); err != nil {
			return fmt.Errorf("put the history of gpulab %s back: %w", u.Version, err)
		}
	}
	u.Pending = false
	return writeJSON(inUsePath(dataDir), u)
}

// exchangeHistory puts metrics.db to the version that was in use, and takes that of the one that is in use now, if it
// has left one; else it begins anew.
func exchangeHistory(dataDir string, u InUse) error {
	now := filepath.Join(dataDir, store.MetricsFile)
	aside := filepath.Join(versionDir(dataDir, u.From), store.MetricsFile)
	if _, err := os.Lstat(aside); errors.Is(err, fs.ErrNotExist) {
		if err := rename(now, aside); err != nil {
			return err
		}
	}
	return rename(filepath.Join(versionDir(dataDir, u.Version), store.MetricsFile), now)
}

// rename renames what is there.
func rename(from, to string) error {
	if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return errors.Join(atomicfile.Sync(filepath.Dir(to)), atomicfile.Sync(filepath.Dir(from)))
}
