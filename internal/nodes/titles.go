package nodes

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// LongestTitle is how many characters the title of a machine may have.
const LongestTitle = 40

// Why a machine does not get a title.
var (
	ErrTitle = fmt.Errorf("a machine is shown under one line of at most %d characters, all of them visible",
		LongestTitle)
	ErrTitleTaken = errors.New("another machine is called that")
)

// Titles are what machines are shown as, by name; those that are shown under
// their name are missing.
func (r *Registry) Titles(ctx context.Context) (map[string]string, error) {
	return titles(ctx, r.db)
}

// queryer is a database or a transaction.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func titles(ctx context.Context, db queryer) (map[string]string, error) {
	rows, err := db.QueryContext(ctx, `SELECT machine, title FROM machine_titles`)
	if err != nil {
		return nil, fmt.Errorf("what machines are shown as: %w", err)
	}
	defer rows.Close()
	list := map[string]string{}
	for rows.Next() {
		var machine, title string
		if err := rows.Scan(&machine, &title); err != nil {
			return nil, fmt.Errorf("what machines are shown as: %w", err)
		}
		list[machine] = title
	}
	return list, rows.Err()
}

// Rename shows a machine under a title, and returns what it was shown as before.
// Its own name, or nothing, takes the title back. No two machines can be taken
// for one another: a title differs by more than upper case from all others, and
// from names, which are those of all machines.
func (r *Registry) Rename(ctx context.Context, machine, title string, names []string) (before string, err error) {
	title = strings.Join(strings.Fields(title), " ")
	if utf8.RuneCountInString(title) > LongestTitle || strings.ContainsFunc(title, func(r rune) bool {
		return !unicode.IsPrint(r)
	}) {
		return "", ErrTitle
	}
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback() }()
	list, err := titles(ctx, tx)
	if err != nil {
		return "", err
	}
	before = list[machine]
	if before == "" {
		before = machine
	}
	if title == "" || title == machine {
		_, err = tx.ExecContext(ctx, `DELETE FROM machine_titles WHERE machine = ?`, machine)
	} else {
		if taken(machine, title, list, names) {
			return "", ErrTitleTaken
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO machine_titles (machine, title) VALUES (?, ?)
			ON CONFLICT (machine) DO UPDATE SET title = excluded.title`, machine, title)
	}
	if err != nil {
		return "", fmt.Errorf("rename %s: %w", machine, err)
	}
	return before, tx.Commit()
}

// taken tells whether another machine than this one has a title or name like it.
func taken(machine, title string, titles map[string]string, names []string) bool {
	for other, has := range titles {
		if other != machine && strings.EqualFold(has, title) {
			return true
		}
	}
	for _, other := range names {
		if other != machine && strings.EqualFold(other, title) {
			return true
		}
	}
	return false
}
