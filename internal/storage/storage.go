// Package storage is where people's files lie: their homes with sizes and limits, and the folders they share.
//
// A shared folder lies below one folder of gpulab's own and is named by its number there; the name people
// see is never part of a path on the machine. Who may write in it belongs to one group of the machine, who may
// only read to another; both numbers are the folder's own. Whatever is done in homes and folders on the
// machine is done beneath them: no link and no other process leads it out.
//
// Only cmd/gpulab, test/bench/live and the packages api, ctl and webui import it.
package storage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// Place is a folder that somebody sees: their home, or a shared one.
type Place struct {
	// Name is the folder's in the tree of files, below Shared; "" is the home.
	Name string
	// Path is where it lies on this machine. It exists.
	Path string
	// ReadOnly places are only read, whatever the modes of files say.
	ReadOnly bool
	// GID is the group that a process needs beside the person's own to use the
	// place; 0 for none.
	GID int
}

// Shared is the folder in everybody's home below which shared folders appear.
const Shared = "shared"

// People is what storage needs to know of accounts; users.Service implements it.
type People interface {
	ByID(ctx context.Context, id int64) (users.User, error)
	List(ctx context.Context) ([]users.User, error)
	Memberships(ctx context.Context, userID int64) ([]users.Membership, error)
	Groups(ctx context.Context) ([]users.Group, error)
}

// HomeLimit is how large somebody's home may be.
type HomeLimit struct {
	Bytes int64
	Why   string // whom it is set for: "for the role member"
}

// FileLimit is how many files and folders may be in somebody's home.
type FileLimit struct {
	Files int64
	Why   string // as of a HomeLimit
}

// Config wires a Service. DB, People, HomesDir and FoldersDir are required.
type Config struct {
	DB     *sql.DB
	People People
	Audit  *audit.Log
	// HomesDir holds one folder per person, named by their ID.
	HomesDir string
	// FoldersDir holds one folder per shared folder, named by its ID.
	FoldersDir string
	// DataDir is gpulab's own folder, of which nothing is ever shown as a folder
	// of the machine.
	DataDir string
	// HomeLimit is how large somebody's home may be, nil for any size. Nil
	// limits nothing.
	HomeLimit func(ctx context.Context, u users.User) (*HomeLimit, error)
	// HomeFiles is how many files may be in it, in the same way.
	HomeFiles func(ctx context.Context, u users.User) (*FileLimit, error)
	// Active are the launches that have not ended, and whose they are. Nil for none.
	Active func(ctx context.Context) ([]Running, error)
	// End ends a launch, for the reason given to its owner.
	End func(ctx context.Context, launch int64, why Cause, reason string) error
	// MeasureEvery is how long a size counts as new while its folder is in use,
	// 0 = DefaultMeasureEvery.
	MeasureEvery time.Duration
	// Grace is how long notebooks go on with a home beyond its limit, where only
	// measuring keeps it; 0 = one hour.
	Grace time.Duration
	// Taken reports whether the machine uses a number as a UID or GID. Its owner would
	// own a folder's files. It has to answer within seconds. Nil: no number is used.
	Taken func(ctx context.Context, number int) bool
	Log   *slog.Logger
}

// DefaultMeasureEvery is how often what is in use is measured.
const DefaultMeasureEvery = 10 * time.Minute

// Running is one launch that has not ended.
type Running struct {
	Launch, UserID int64
	Waiting        bool // it has nothing open yet
}

// Cause is why a launch ends.
type Cause int

// The causes.
const (
	LostFolder Cause = iota // its owner may no longer use a folder that it has open
	FullHome                // the home was full for longer than the grace period
)

// Service answers every question about homes and shared folders. Its methods may be called from any goroutine.
type Service struct {
	cfg Config
	now func() time.Time

	mu   sync.Mutex      // guards the following
	used map[target]bool // in use since it was measured
	due  map[target]bool // to be measured at once
	ask  chan struct{}   // wakes the measurer

	low func(func()) // runs what may take its time; changed by Run alone
}

// New makes the service over an open gpulab.db.
func New(cfg Config) *Service {
	if cfg.MeasureEvery == 0 {
		cfg.MeasureEvery = DefaultMeasureEvery
	}
	if cfg.Grace == 0 {
		cfg.Grace = time.Hour
	}
	if cfg.HomeLimit == nil {
		cfg.HomeLimit = func(context.Context, users.User) (*HomeLimit, error) { return nil, nil }
	}
	if cfg.HomeFiles == nil {
		cfg.HomeFiles = func(context.Context, users.User) (*FileLimit, error) { return nil, nil }
	}
	if cfg.Active == nil {
		cfg.Active = func(context.Context) ([]Running, error) { return nil, nil }
	}
	if cfg.End == nil {
		cfg.End = func(context.Context, int64, Cause, string) error { return nil }
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{
		cfg: cfg, now: time.Now, used: map[target]bool{}, due: map[target]bool{}, ask: make(chan struct{}, 1),
		low: func(do func()) { do() },
	}
}

// Home is somebody's home folder on this machine, there or not.
func (s *Service) Home(userID int64) string { return filepath.Join(s.cfg.HomesDir, number(userID)) }

func (s *Service) folder(id int64) string { return filepath.Join(s.cfg.FoldersDir, number(id)) }

func number(id int64) string { return strconv.FormatInt(id, 10) }

// What an error is about. Test with errors.Is; the text of the *users.Error around it is for people.
var (
	ErrName     = errors.New("folder name not allowed")
	ErrTaken    = errors.New("folder name taken")
	ErrNotFound = errors.New("no such folder")
	ErrKind     = errors.New("no such kind of folder")
	ErrGroup    = errors.New("no group for a folder")
	ErrPath     = errors.New("folder of the machine refused")
	ErrState    = errors.New("folder not in a state for that")
	ErrFull     = errors.New("no number for a folder left")
	ErrSpace    = errors.New("nothing there to delete")
)

func refused(kind error, format string, args ...any) error {
	return &users.Error{Kind: kind, Text: fmt.Sprintf(format, args...)}
}

func clip(text string) string {
	const most = 40
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}

// ids lists the numbers that a question finds; doing is for the error.
func (s *Service) ids(ctx context.Context, doing, query string, args ...any) ([]int64, error) {
	list, err := store.All(ctx, s.cfg.DB, store.Value[int64], query, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return list, nil
}
