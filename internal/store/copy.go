package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
)

// OpenExisting opens a database as it is, beside a gpulab that may run with it: it makes and migrates none. It
// returns the schema version that the file has, and fs.ErrNotExist where there is no file.
func OpenExisting(ctx context.Context, path string) (*sql.DB, int64, error) {
	if _, err := os.Lstat(path); err != nil {
		return nil, 0, err
	}
	q := url.Values{"mode": {"rw"}, "_txlock": {"immediate"}, "_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()), "foreign_keys(1)", "trusted_schema(0)",
	}}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String())
	if err != nil {
		return nil, 0, fmt.Errorf("open %s: %w", path, err)
	}
	var schema sql.NullInt64
	if err := db.QueryRowContext(ctx, "SELECT max(version_id) FROM goose_db_version WHERE is_applied").Scan(
		&schema); err != nil {
		return nil, 0, errors.Join(explain(path, err), db.Close())
	}
	return db, schema.Int64, nil
}

// Copy writes a compact, consistent copy of a database to a file that does not exist yet, in a folder that is closed
// to others, while gpulab may run with it. It returns the copy's schema version.
func Copy(ctx context.Context, from, to string) (int64, error) {
	db, schema, err := OpenExisting(ctx, from)
	if err != nil {
		return 0, err
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", to); err != nil {
		return 0, fmt.Errorf("copy %s: %w", from, err)
	}
	if err := os.Chmod(to, 0o600); err != nil {
		return 0, err
	}
	return schema, Check(ctx, to)
}

// Check looks through a whole database that nobody uses; ErrDamaged says that something is wrong in it.
func Check(ctx context.Context, path string) error {
	db, _, err := OpenExisting(ctx, path)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	found, err := All(ctx, db, Value[string], "PRAGMA quick_check(3)")
	if err != nil {
		return explain(path, err)
	}
	if len(found) != 1 || found[0] != "ok" {
		return fmt.Errorf("%w: %s: %s", ErrDamaged, path, strings.Join(found, "; "))
	}
	return nil
}
