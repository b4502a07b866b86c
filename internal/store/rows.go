package store

import (
	"context"
	"database/sql"
)

// Row is one row of an answer.
type Row interface{ Scan(dest ...any) error }

// Asker is a database or a transaction.
type Asker interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// All reads every row of the answer to a question with read; no row is an empty list. Errors are the database's and
// read's own.
func All[T any](ctx context.Context, db Asker, read func(Row) (T, error), query string, args ...any) ([]T, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	list := []T{}
	for rows.Next() {
		one, err := read(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, rows.Err()
}

// Value reads a row of one column.
func Value[T any](row Row) (v T, err error) {
	return v, row.Scan(&v)
}

// InTx runs f in a transaction, which holds the write lock from its begin, and commits it if f returns no error. Errors
// are the database's and f's own.
func InTx(ctx context.Context, db *sql.DB, f func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}
