// Package storage is where people's files lie: their homes with sizes and limits, and the folders they share.
//
// A shared folder lies below one folder of gpulab's own and is named by its number there; the name people
// see is never part of a path on the machine.
package storage

import (
	"context"
	"database/sql"
	"path/filepath"
	"strconv"

	"github.com/gpulab/gpulab/internal/users"
)

// Place is a folder that somebody sees: their home, or a shared one.
type Place struct {
	// Name is the folder's in the tree of files, below "shared"; "" is the home.
	Name string
	// Path is where it lies on this machine.
	Path string
	// ReadOnly places are only read, whatever the modes of files say.
	ReadOnly bool
	// GID is the group that a process needs beside the person's own to use the
	// place; 0 for none.
	GID int
}

// People is what storage needs to know of accounts; users.Service implements it.
type People interface {
	ByID(ctx context.Context, id int64) (users.User, error)
}

// Config wires a Service.
type Config struct {
	DB     *sql.DB
	People People
	// HomesDir holds one folder per person, named by their ID.
	HomesDir string
	// FoldersDir holds one folder per shared folder, named by its ID.
	FoldersDir string
}

// Service answers every question about homes and shared folders. Its methods may be called from any goroutine.
type Service struct{ cfg Config }

// New makes the service over an open gpulab.db.
func New(cfg Config) *Service { return &Service{cfg: cfg} }

// Home is somebody's home folder on this machine, there or not.
func (s *Service) Home(userID int64) string {
	return filepath.Join(s.cfg.HomesDir, strconv.FormatInt(userID, 10))
}

// PlacesOf lists what somebody may see now, the home first; users.ErrNotFound for nobody.
func (s *Service) PlacesOf(ctx context.Context, userID int64) ([]Place, error) {
	u, err := s.cfg.People.ByID(ctx, userID)
	if err != nil {
		return nil, err
	}
	return []Place{{Path: s.Home(u.ID)}}, nil
}
