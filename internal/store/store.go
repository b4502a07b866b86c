// Package store opens gpulab's two SQLite databases and brings them to the schema this binary knows:
//
//   - gpulab.db: people, sessions, launches, the audit log, the ledger of use. Small, precious, synced at every commit.
//   - metrics.db: history of readings. Large and replaceable, synced at checkpoints only. One that is found damaged is
//     set aside as metrics.db.damaged and begun anew; gpulab.db never is.
//
// It is the only home of the SQLite driver and holds every migration, one ordered list per database.
// Packages that own tables (users, notebooks, …) get a *sql.DB and keep their queries to themselves.
package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/gpulab/gpulab/internal/atomicfile"
	"github.com/gpulab/gpulab/internal/diskspace"
)

// Names of the databases inside the data directory.
const (
	MainFile    = "gpulab.db"
	MetricsFile = "metrics.db"
	// DamagedMetricsFile is where a metrics.db that could not be read was set aside.
	DamagedMetricsFile = "metrics.db.damaged"
)

// busyTimeout is how long a statement waits for another writer before it fails.
const busyTimeout = 10 * time.Second

var (
	// ErrNewerDatabase says that the file was written by a newer gpulab than this one.
	ErrNewerDatabase = errors.New("database is newer than this gpulab")
	// ErrDamaged says that the file is not a database, or SQLite found it damaged.
	ErrDamaged = errors.New("database is damaged")
)

//go:embed migrations/*.sql
var mainMigrations embed.FS

//go:embed metrics/*.sql
var metricsMigrations embed.FS

// Store holds both databases open. Its methods may be called from any goroutine.
//
// Transactions begin "immediate": they take the write lock at once, so a transaction that reads
// before it writes cannot fail half-way because somebody else wrote in between. Single queries
// outside a transaction read without any lock.
type Store struct {
	dir     string
	main    *sql.DB
	metrics atomic.Pointer[sql.DB]

	mu       sync.Mutex // held while metrics.db is replaced
	setAside atomic.Bool
}

// Open opens, or creates with mode 0600, both databases in dir and applies outstanding migrations.
// A database newer than this binary is left untouched and reported as ErrNewerDatabase. Of one that another version
// of gpulab has written, a copy is kept first (Copies). A folder in which databases cannot be is reported as
// *diskspace.UnfitError.
func Open(ctx context.Context, dir string) (*Store, error) {
	if err := diskspace.Suits(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("create the data directory: %w", err)
	}
	// Two that open a new database at once would both create its tables.
	unlock, err := lock(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := prepareMain(ctx, dir); err != nil {
		return nil, err
	}
	mainDB, err := openOne(ctx, filepath.Join(dir, MainFile), "FULL", mainMigrations, "migrations")
	if err != nil {
		return nil, err
	}
	if err := record(ctx, mainDB); err != nil {
		return nil, errors.Join(explain(filepath.Join(dir, MainFile), err), mainDB.Close())
	}
	s := &Store{dir: dir, main: mainDB}
	err = s.openMetrics(ctx)
	if errors.Is(err, ErrDamaged) {
		if err = s.moveMetricsAside(); err == nil {
			err = s.openMetrics(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, mainDB.Close())
	}
	return s, nil
}

func (s *Store) openMetrics(ctx context.Context) error {
	db, err := openOne(ctx, filepath.Join(s.dir, MetricsFile), "NORMAL", metricsMigrations, "metrics")
	if err == nil {
		s.metrics.Store(db)
	}
	return err
}

// ReplaceMetrics sets metrics.db aside and begins it anew, for one that turned out to be damaged while it was in
// use (Damaged says so of an error). Whoever still uses the old handle gets errors; Metrics returns the new one.
func (s *Store) ReplaceMetrics(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	unlock, err := lock(s.dir)
	if err != nil {
		return err
	}
	defer unlock()
	_ = s.Metrics().Close() // what it could not write is lost with the file
	if err := s.moveMetricsAside(); err != nil {
		return err
	}
	return s.openMetrics(ctx)
}

// moveMetricsAside renames metrics.db; one that was set aside before goes, so that they do not pile up. Without its
// write-ahead log a file cannot be examined, and the log must not meet the new file.
func (s *Store) moveMetricsAside() error {
	if _, err := os.Lstat(filepath.Join(s.dir, MetricsFile)); errors.Is(err, fs.ErrNotExist) {
		return nil // it was before, and could not be begun anew
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		from, to := filepath.Join(s.dir, MetricsFile+suffix), filepath.Join(s.dir, DamagedMetricsFile+suffix)
		if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set the damaged history aside: %w", err)
		}
		if err := os.Rename(from, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set the damaged history aside: %w", err)
		}
	}
	s.setAside.Store(true)
	return nil
}

// MetricsSetAside is the path of the damaged metrics.db that was set aside since Open, "" if none was.
func (s *Store) MetricsSetAside() string {
	if !s.setAside.Load() {
		return ""
	}
	return filepath.Join(s.dir, DamagedMetricsFile)
}

// lock makes openers of databases in dir follow one another. It is on the
// folder: closing any handle of a database's file would drop SQLite's locks.
func lock(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the data directory: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// DB is gpulab.db.
func (s *Store) DB() *sql.DB { return s.main }

// Metrics is metrics.db. Ask for it anew for each piece of work: it may be replaced.
func (s *Store) Metrics() *sql.DB { return s.metrics.Load() }

// Close closes both databases; the last connection folds the write-ahead log into the file.
func (s *Store) Close() error {
	return errors.Join(s.main.Close(), s.Metrics().Close())
}

// Backup writes a compact, consistent copy of gpulab.db to path (mode 0600) while gpulab runs.
// The copy appears under its name only when it is complete; an existing file is not overwritten.
func (s *Store) Backup(ctx context.Context, path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("back up to %s: the file exists already; name another one or delete it first", path)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("back up to %s: %w", path, err)
	}
	// SQLite creates the copy with the umask's mode, so it grows inside a folder nobody else can enter.
	tmp, err := os.MkdirTemp(filepath.Dir(path), ".gpulab-backup-")
	if err != nil {
		return fmt.Errorf("back up to %s: %w", path, err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	part := filepath.Join(tmp, MainFile)
	if _, err := s.main.ExecContext(ctx, "VACUUM INTO ?", part); err != nil {
		return fmt.Errorf("back up to %s: %w", path, err)
	}
	if err := publish(part, path); err != nil {
		return fmt.Errorf("back up to %s: %w", path, err)
	}
	return nil
}

// publish gives a finished file its final name, safe against a power cut, never over an existing one.
func publish(part, path string) error {
	if err := os.Chmod(part, 0o600); err != nil {
		return err
	}
	if err := atomicfile.Sync(part); err != nil {
		return err
	}
	if err := os.Link(part, path); err != nil {
		return err
	}
	return atomicfile.Sync(filepath.Dir(path))
}

func openOne(ctx context.Context, path, synchronous string, migrations fs.FS, folder string) (*sql.DB, error) {
	db, err := connect(path, synchronous)
	if err != nil {
		return nil, err
	}
	sub, err := fs.Sub(migrations, folder)
	if err == nil {
		err = migrate(ctx, db, path, sub)
	}
	if err != nil {
		return nil, errors.Join(explain(path, err), db.Close())
	}
	return db, nil
}

// connect opens a database as it is; one that is missing is made, empty.
func connect(path, synchronous string) (*sql.DB, error) {
	if err := ensurePrivate(path); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	db, err := sql.Open("sqlite", dsn(path, synchronous))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	// Writers queue anyway; a few connections let pages read while one of them writes.
	db.SetMaxOpenConns(6)
	db.SetMaxIdleConns(3)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return db, nil
}

// ensurePrivate creates the file with mode 0600 before SQLite would with the umask's; SQLite gives
// the write-ahead log and its index the mode of the database.
func ensurePrivate(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return os.Chmod(path, 0o600)
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o600), f.Close())
}

func dsn(path, synchronous string) string {
	q := url.Values{"_txlock": {"immediate"}, "_pragma": {
		// First, so that the pragmas after it wait for a writer too.
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()),
		"journal_mode(WAL)",
		"synchronous(" + synchronous + ")",
		"foreign_keys(1)",
		"trusted_schema(0)",
	}}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

func migrate(ctx context.Context, db *sql.DB, path string, list fs.FS) error {
	p, err := goose.NewProvider(goose.DialectSQLite3, db, list, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	have, known, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read the schema version: %w", err)
	}
	if have > known {
		return &NewerError{Path: path, Have: have, Known: known}
	}
	if have == known {
		return nil
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("bring the schema from version %d to %d: %w", have, known, err)
	}
	return nil
}

// NewerError says which schema versions do not fit. It is an ErrNewerDatabase.
type NewerError struct {
	Path        string
	Have, Known int64 // schema versions: in the file, and the newest this binary can handle
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("%s was written by a newer gpulab (schema %d, this one knows schema %d): "+
		"install that version again, or put back a backup made by this one", e.Path, e.Have, e.Known)
}

// Is makes errors.Is(err, ErrNewerDatabase) true.
func (e *NewerError) Is(target error) bool { return target == ErrNewerDatabase }

// explain turns SQLite's "not a database" and "malformed" into a sentence with a next step.
func explain(path string, err error) error {
	var newer *NewerError
	if errors.As(err, &newer) {
		return newer
	}
	if Damaged(err) {
		return fmt.Errorf("%w: %s cannot be read (%s); stop gpulab, move the file away and put back a backup",
			ErrDamaged, path, strings.TrimSpace(err.Error()))
	}
	return fmt.Errorf("open %s: %w", path, err)
}

// Damaged says whether an error of a query means that the database's file is damaged, or is no database.
func Damaged(err error) bool {
	code, ok := primaryCode(err)
	return ok && (code == sqlite3.SQLITE_NOTADB || code == sqlite3.SQLITE_CORRUPT)
}

// Full says whether an error of a query, or of writing a file, means that the disk is full.
func Full(err error) bool {
	code, ok := primaryCode(err)
	return ok && code == sqlite3.SQLITE_FULL || errors.Is(err, syscall.ENOSPC)
}

// primaryCode is SQLite's result code without its details.
func primaryCode(err error) (int, bool) {
	var se *sqlite.Error
	if !errors.As(err, &se) {
		return 0, false
	}
	return se.Code() & 0xff, true
}
