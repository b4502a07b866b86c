package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/atomicfile"
	"github.com/gpulab/gpulab/internal/version"
)

// Settings in which a gpulab.db says who uses it.
const (
	versionKey = "gpulab.version" // the version of gpulab that opened it last
	beforeKey  = "gpulab.before"  // the version before that one
	lastUIDKey = "last.uid"       // the highest number of a person that was ever given, where no row has it
	lastGIDKey = "last.gid"       // the same of a shared folder; each has the number after it too
)

const (
	copiesFolder = "copies"
	// keptCopies is how many copies stay: one of each version that wrote last.
	keptCopies = 3
	// workEnd is of a gpulab.db that is being brought to another schema.
	workEnd = ".new"
	// nextEnd is of a gpulab.db that a rollback puts back.
	nextEnd = ".next"
)

// Written says who wrote a gpulab.db.
type Written struct {
	Version string `json:"version"`          // of gpulab; "" if that version did not write it down yet
	Before  string `json:"before,omitempty"` // the version before it, "" for none
	Schema  int64  `json:"schema"`
}

// KeptCopy is a copy of gpulab.db that was kept before another version of gpulab used it.
type KeptCopy struct {
	Written
	Path string    `json:"path"`
	At   time.Time `json:"at"`
	Size int64     `json:"size"` // bytes
}

// Known returns the newest schemas of gpulab.db and of metrics.db that this gpulab knows.
func Known() (main, metrics int64) {
	return newestMigration(mainMigrations, "migrations"), newestMigration(metricsMigrations, "metrics")
}

func newestMigration(list fs.FS, folder string) (highest int64) {
	names, err := fs.Glob(list, folder+"/*.sql")
	if err != nil {
		panic(err) // a pattern that is wrong
	}
	for _, name := range names {
		number, _, _ := strings.Cut(filepath.Base(name), "_")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			panic(fmt.Sprintf("the migration %s has no number", name))
		}
		highest = max(highest, n)
	}
	return highest
}

// Inspect says who wrote a gpulab.db, or a copy of one, and changes nothing.
func Inspect(ctx context.Context, path string) (Written, error) {
	db, err := read(path)
	if err != nil {
		return Written{}, err
	}
	defer db.Close()
	w, err := written(ctx, db)
	if err != nil {
		return Written{}, explain(path, err)
	}
	return w, nil
}

// Before is the version of gpulab that used the database before this one, "" for none.
func (s *Store) Before(ctx context.Context) (string, error) { return s.Setting(ctx, beforeKey) }

// read opens a database that is there for reading. SQLite may write all the same: a change that a power cut has broken
// off must be taken back before anything can be read.
func read(path string) (*sql.DB, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	q := url.Values{"mode": {"rw"}, "_pragma": {fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds())}}
	return sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String())
}

// written reads who wrote a database; one without a schema was written by nobody.
func written(ctx context.Context, db *sql.DB) (w Written, err error) {
	var tables int
	err = db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN "+
		"('goose_db_version', 'settings')").Scan(&tables)
	if err != nil || tables < 2 {
		return w, err
	}
	if err := db.QueryRowContext(ctx, "SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(
		&w.Schema); err != nil {
		return w, err
	}
	for key, value := range map[string]*string{versionKey: &w.Version, beforeKey: &w.Before} {
		err := db.QueryRowContext(ctx, "SELECT value FROM settings WHERE key = ?", key).Scan(value)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return w, err
		}
	}
	return w, nil
}

// prepareMain keeps a copy of a gpulab.db that another version of gpulab has written, and brings it to this one's
// schema: beside it, under its name only when it is complete. So whatever ends this, gpulab.db is the old or the new
// one, whole. The caller holds the lock of the folder.
func prepareMain(ctx context.Context, dir string) error {
	path := filepath.Join(dir, MainFile)
	if err := removeDatabase(path + workEnd); err != nil {
		return err
	}
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		return nil //nolint:nilerr // a new one is made later, and what is wrong with the folder is said there
	}
	db, err := connect(path, "FULL")
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	was, err := written(ctx, db)
	if err != nil {
		return explain(path, err)
	}
	known, _ := Known()
	switch {
	case was.Schema > known:
		return &NewerError{Path: path, Have: was.Schema, Known: known}
	case was.Schema == 0, was.Schema == known && was.Version == version.Version:
		return nil
	}
	kept, err := keepCopy(ctx, db, dir, was)
	if was.Schema == known {
		if err != nil {
			// This version changes nothing that the one before could not read.
			slog.Warn("no copy of the database was kept before this version uses it", "err", err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("no copy of %s could be kept before gpulab %s changes it, so nothing was changed: %w", path,
			version.Version, err)
	}
	if err := migrateBeside(ctx, db, path); err != nil {
		return errors.Join(fmt.Errorf("gpulab %s could not bring %s from schema %d to %d; it is as it was, and a copy is "+
			"in %s: %w",
			version.Version, path, was.Schema, known, kept.Path, err), removeDatabase(path+workEnd))
	}
	return nil
}

// migrateBeside brings a copy of the database to this gpulab's schema and puts it in the database's place.
func migrateBeside(ctx context.Context, db *sql.DB, path string) error {
	work := path + workEnd
	// SQLite would make it with the umask's mode, and others may enter the folder.
	if err := ensurePrivate(work); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", work); err != nil {
		return err
	}
	changed, err := openOne(ctx, work, "FULL", mainMigrations, "migrations")
	if err != nil {
		return err
	}
	if err := errors.Join(record(ctx, changed), changed.Close()); err != nil {
		return err
	}
	if err := errors.Join(fold(ctx, db), db.Close()); err != nil {
		return err
	}
	return replace(work, path)
}

// record writes down that this version of gpulab uses the database now. The schema also goes to where a shell can
// read it without SQLite, for the package: bytes 60 to 63 of the file.
func record(ctx context.Context, db *sql.DB) error {
	was, err := written(ctx, db)
	if err != nil {
		return err
	}
	var says int64
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&says); err != nil || was.Version == version.Version &&
		says == was.Schema {
		return err
	}
	before := was.Version
	if before == version.Version {
		before = was.Before
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for key, value := range map[string]string{versionKey: version.Version, beforeKey: before} {
		if _, err := tx.ExecContext(ctx,
			`INSERT INTO settings (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2`, key,
			value); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", was.Schema)); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	return fold(ctx, db)
}

// fold brings the write-ahead log into the file.
func fold(ctx context.Context, db *sql.DB) error {
	var busy, log, moved int
	if err := db.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &log, &moved); err != nil {
		return err
	}
	if busy != 0 {
		return errors.New("another program uses the database")
	}
	return nil
}

// replace gives a complete database the name of another, which nobody has open, safe against a power cut. That one's
// write-ahead log, empty by now, must not meet the new file.
func replace(next, path string) error {
	if err := errors.Join(os.Chmod(next, 0o600), atomicfile.Sync(next)); err != nil {
		return err
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	return atomicfile.Sync(filepath.Dir(path))
}

// removeDatabase removes a database and what lies beside it, if there is one.
func removeDatabase(path string) error {
	var errs []error
	for _, suffix := range []string{"", "-journal", "-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// keepCopy writes a complete copy of the database into the folder of copies, in the place of an older one by the same
// version, and removes the oldest beyond keptCopies.
func keepCopy(ctx context.Context, db *sql.DB, dir string, was Written) (KeptCopy, error) {
	folder := filepath.Join(dir, copiesFolder)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return KeptCopy{}, err
	}
	// What a killed one has left: the caller holds the lock.
	stale, _ := filepath.Glob(filepath.Join(folder, ".part-*"))
	for _, path := range stale {
		_ = os.RemoveAll(path)
	}
	// SQLite creates the copy with the umask's mode, so it grows inside a folder nobody else can enter.
	tmp, err := os.MkdirTemp(folder, ".part-")
	if err != nil {
		return KeptCopy{}, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	part := filepath.Join(tmp, MainFile)
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", part); err != nil {
		return KeptCopy{}, err
	}
	path := copyPath(dir, was.Version)
	if err := replace(part, path); err != nil {
		return KeptCopy{}, err
	}
	all, err := Copies(ctx, dir)
	if err != nil {
		return KeptCopy{}, err
	}
	for _, old := range all[min(keptCopies, len(all)):] {
		if err := os.Remove(old.Path); err != nil {
			return KeptCopy{}, err
		}
	}
	return KeptCopy{Written: was, Path: path}, nil
}

// copyPath names the copy of what a version wrote; a version is the name of a file, whatever is in it.
func copyPath(dir, version string) string {
	return filepath.Join(dir, copiesFolder, "gpulab-"+url.PathEscape(cmp.Or(version, "unrecorded"))+".db")
}

// Copies lists the copies of gpulab.db in a data folder, the newest first.
func Copies(ctx context.Context, dir string) ([]KeptCopy, error) {
	paths, err := filepath.Glob(filepath.Join(dir, copiesFolder, "gpulab-*.db"))
	if err != nil {
		return nil, err
	}
	var list []KeptCopy
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		w, err := Inspect(ctx, path)
		if err != nil {
			return nil, err
		}
		list = append(list, KeptCopy{w, path, info.ModTime(), info.Size()})
	}
	slices.SortFunc(list, func(a, b KeptCopy) int { return b.At.Compare(a.At) })
	return list, nil
}

// Keep keeps a copy of the gpulab.db of a data folder as it is now, and folds both databases' write-ahead logs into
// their files. Nobody may have them open.
func Keep(ctx context.Context, dir string) (KeptCopy, error) {
	unlock, err := lock(dir)
	if err != nil {
		return KeptCopy{}, err
	}
	defer unlock()
	path := filepath.Join(dir, MainFile)
	db, err := connect(path, "FULL")
	if err != nil {
		return KeptCopy{}, err
	}
	defer func() { _ = db.Close() }()
	was, err := written(ctx, db)
	if err != nil {
		return KeptCopy{}, explain(path, err)
	}
	kept, err := keepCopy(ctx, db, dir, was)
	if err == nil {
		err = fold(ctx, db)
	}
	if err != nil {
		return KeptCopy{}, fmt.Errorf("keep a copy of %s: %w", path, err)
	}
	metrics := filepath.Join(dir, MetricsFile)
	if _, err := os.Stat(metrics); err != nil {
		return kept, nil //nolint:nilerr // no history yet
	}
	history, err := connect(metrics, "NORMAL")
	if err != nil {
		return KeptCopy{}, err
	}
	return kept, errors.Join(fold(ctx, history), history.Close())
}

// Stage makes ready that a copy takes gpulab.db's place (PutBack): beside it, with no number of a person, of a shared
// folder or of anything else that gpulab.db has given and that must not be given twice.
func Stage(ctx context.Context, dir string, from KeptCopy) error {
	path := filepath.Join(dir, MainFile)
	next := path + nextEnd
	if err := removeDatabase(next); err != nil {
		return err
	}
	source, err := read(from.Path)
	if err != nil {
		return err
	}
	err = ensurePrivate(next)
	if err == nil {
		_, err = source.ExecContext(ctx, "VACUUM INTO ?", next)
	}
	if err := errors.Join(err, source.Close()); err != nil {
		return fmt.Errorf("copy %s: %w", from.Path, err)
	}
	if err := carryNumbers(ctx, path, next); err != nil {
		return fmt.Errorf("carry over which numbers have been given: %w", err)
	}
	return errors.Join(atomicfile.Sync(next), atomicfile.Sync(dir))
}

// CarryNumbers notes in the database at path, which takes the place of the one in dir, what that one has given and must
// never be given again. Without a database in dir it does nothing.
func CarryNumbers(ctx context.Context, dir, path string) error {
	was := filepath.Join(dir, MainFile)
	if _, err := os.Stat(was); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := carryNumbers(ctx, was, path); err != nil {
		return fmt.Errorf("carry over which numbers have been given: %w", err)
	}
	return nil
}

// carryNumbers notes in next what path has given and must never be given again: homes and shared folders on the disk
// bear these numbers, and would be somebody else's.
func carryNumbers(ctx context.Context, path, next string) error {
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: next}).String())
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1) // what is attached is so on one connection
	if _, err := db.ExecContext(ctx, "ATTACH ? AS was", path); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for _, statement := range []string{
		`INSERT INTO sqlite_sequence (name, seq) SELECT name, 0 FROM was.sqlite_sequence
			WHERE name IN (SELECT name FROM sqlite_master) AND name NOT IN (SELECT name FROM sqlite_sequence)`,
		`UPDATE sqlite_sequence SET seq = max(seq, coalesce((SELECT w.seq FROM was.sqlite_sequence w
			WHERE w.name = sqlite_sequence.name), 0))`,
		carryHighest(lastUIDKey, "users", "uid"),
		carryHighest(lastGIDKey, "folders", "gid"),
	} {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// Given is what a lab has given at most, where its database cannot be asked.
type Given struct{ Users, UIDs, Folders, GIDs int64 }

// RaiseNumbers notes in the database at path that nothing of it may be given again.
func RaiseNumbers(ctx context.Context, path string, given Given) error {
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path, RawQuery: "_pragma=busy_timeout(5000)"}).String())
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for table, seq := range map[string]int64{"users": given.Users, "folders": given.Folders} {
		for _, statement := range []string{
			`INSERT INTO sqlite_sequence (name, seq) SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence
				WHERE name = ?1)`,
			`UPDATE sqlite_sequence SET seq = max(seq, ?2) WHERE name = ?1`,
		} {
			if _, err := tx.ExecContext(ctx, statement, table, seq); err != nil {
				return err
			}
		}
	}
	for key, last := range map[string]int64{lastUIDKey: given.UIDs, lastGIDKey: given.GIDs} {
		if _, err := tx.ExecContext(ctx, `INSERT INTO settings (key, value) SELECT ?1, ?2 WHERE ?2 > 0
			ON CONFLICT (key) DO UPDATE SET value = max(CAST(settings.value AS INTEGER),
			CAST(excluded.value AS INTEGER))`, key, last); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func carryHighest(key, table, column string) string {
	return fmt.Sprintf(`INSERT INTO settings (key, value)
		SELECT '%[1]s', max(n) FROM (
			SELECT max(%[3]s) AS n FROM was.%[2]s
			UNION ALL SELECT CAST(value AS INTEGER) FROM was.settings WHERE key = '%[1]s')
		HAVING max(n) IS NOT NULL
		ON CONFLICT (key) DO UPDATE SET value = max(CAST(settings.value AS INTEGER),
		CAST(excluded.value AS INTEGER))`, key, table, column)
}

// Unstage takes back what Stage has made ready.
func Unstage(dir string) error { return removeDatabase(filepath.Join(dir, MainFile+nextEnd)) }

// PutBack puts what Stage has made ready in gpulab.db's place, if it was not done before. Nobody may have it open.
func PutBack(dir string) error {
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	path := filepath.Join(dir, MainFile)
	if _, err := os.Stat(path + nextEnd); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return replace(path+nextEnd, path)
}

// Loss is what a gpulab.db holds that an older copy of it does not.
type Loss struct {
	Accounts int `json:"accounts"`
	Launches int `json:"launches"`
	Running  int `json:"running"` // of the launches: those whose notebooks would end
	Audit    int `json:"audit"`   // entries
}

// Lost counts what would be lost if the copy took the place of the gpulab.db of a data folder.
func Lost(ctx context.Context, dir string, from KeptCopy) (l Loss, err error) {
	old, err := read(from.Path)
	if err != nil {
		return l, err
	}
	defer old.Close()
	var users, launches, audit int64
	err = old.QueryRowContext(ctx, `SELECT (SELECT coalesce(max(id), 0) FROM users), (SELECT coalesce(max(id), 0)
		FROM launches),
		(SELECT coalesce(max(id), 0) FROM audit)`).Scan(&users, &launches, &audit)
	if err != nil {
		return l, explain(from.Path, err)
	}
	path := filepath.Join(dir, MainFile)
	now, err := read(path)
	if err != nil {
		return l, err
	}
	defer now.Close()
	err = now.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM users WHERE id > ?1), (SELECT count(*) FROM launches
		WHERE id > ?2),
		(SELECT count(*) FROM launches WHERE id > ?2 AND state IN ('starting', 'running', 'stopping')), (SELECT count(*)
		FROM audit WHERE id > ?3)`,
		users, launches, audit).Scan(&l.Accounts, &l.Launches, &l.Running, &l.Audit)
	if err != nil {
		return l, explain(path, err)
	}
	return l, nil
}

// Whole reads a whole database and says what is wrong with it.
func Whole(ctx context.Context, path string) error {
	db, err := read(path)
	if err != nil {
		return err
	}
	defer db.Close()
	var found string
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&found); err != nil {
		return explain(path, err)
	}
	if found != "ok" {
		return fmt.Errorf("%w: %s: %s", ErrDamaged, path, found)
	}
	return nil
}
