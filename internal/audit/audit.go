// Package audit is the log of who did what to whom. Its entries are chained by hashes, so that a change to an old entry
// is found, and it is read as a list, as CSV and as JSON.
package audit

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/gpulab/gpulab/internal/store"
)

// Entry is one line of the audit log: who did what to whom. The service itself records sign-ins, failed
// ones too, locked accounts, and what people do with passwords, sessions and tokens of their own; every
// other change is recorded by the page or command that made it. Entries are never changed, and deleted
// only when they are older than Kept.
type Entry struct {
	ID     int64     `json:"id"`     // 1 for the lab's first; without gaps
	At     time.Time `json:"at"`     // set when it is recorded; to the millisecond, UTC
	Actor  string    `json:"actor"`  // a handle, "root" for the command line on the head, or "system"
	Action string    `json:"action"` // one of Actions
	Target string    `json:"target,omitempty"`
	Detail string    `json:"detail,omitempty"`
	Remote string    `json:"remote,omitempty"`
	// Prev and Hash chain the log: see the comment of ChainHash.
	Prev Hash `json:"prev"`
	Hash Hash `json:"hash"`
}

// Kept is how long the log keeps an entry. The database refuses to forget earlier (migration 0007).
const Kept = 400 * 24 * time.Hour

// Log is the audit log. Its methods may be called from any goroutine.
type Log struct {
	db  *sql.DB
	now func() time.Time

	chained    atomic.Bool  // no entry is without a hash
	forgetting sync.RWMutex // held for writing while the oldest entries go, for reading while all are read
}

// New returns the log in an open gpulab.db.
func New(db *sql.DB, now func() time.Time) *Log { return &Log{db: db, now: now} }

// Record records an entry. It sets ID, At, Prev and Hash.
func (l *Log) Record(ctx context.Context, e Entry) error {
	return l.inTx(ctx, "record in the audit log", func(tx *sql.Tx) error { return l.RecordIn(ctx, tx, e) })
}

// RecordIn records an entry in the transaction of the change that it is about: neither happens without the other. A
// transaction holds the write lock from its begin, so that of many at once each builds on the one before it.
func (l *Log) RecordIn(ctx context.Context, tx *sql.Tx, e Entry) error {
	if err := chainOld(ctx, tx); err != nil {
		return err
	}
	last, err := chainHead(ctx, tx)
	if err != nil {
		return err
	}
	e = Entry{
		ID: last.ID + 1, At: time.UnixMilli(l.now().UnixMilli()).UTC(), Prev: last.Hash,
		Actor: Tidy(e.Actor, 64), Action: Tidy(e.Action, 64), Target: Tidy(e.Target, 128),
		Detail: Tidy(e.Detail, 1000), Remote: Tidy(e.Remote, 64),
	}
	e.Hash = ChainHash(e)
	_, err = tx.ExecContext(ctx,
		"INSERT INTO audit (id, at, actor, action, target, detail, remote, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
		e.ID, e.At.UnixMilli(), e.Actor, e.Action, e.Target, e.Detail, e.Remote, e.Hash[:])
	if err != nil {
		return fmt.Errorf("record in the audit log: %w", err)
	}
	return nil
}

// inTx runs f in a transaction. doing begins the errors.
func (l *Log) inTx(ctx context.Context, doing string, f func(tx *sql.Tx) error) error {
	if err := store.InTx(ctx, l.db, f); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// Filter says which entries are asked for; every zero value asks for all.
type Filter struct {
	Person string `json:"person,omitempty"` // a handle, "root" or "system": who did it, or to whom
	Action string `json:"action,omitempty"`
	Remote string `json:"remote,omitempty"` // an address, or its beginning with a "." or ":" at the end
	// Since and Until bound the time: Since is in it, Until is not.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Before is the ID below which entries are listed, to go on where a list ended; Limit how many at
	// most, 100 if 0. Exports know neither.
	Before int64 `json:"before,omitempty"`
	Limit  int   `json:"limit,omitempty"`
}

// all reports whether every entry is asked for.
func (f Filter) all() bool {
	return f.Person == "" && f.Action == "" && f.Remote == "" && f.Since.IsZero() && f.Until.IsZero()
}

// Words are the filter for the log itself: empty, or ", of …".
func (f Filter) Words() string {
	var parts []string
	for _, p := range [][2]string{
		{"person ", f.Person}, {"action ", f.Action}, {"address ", f.Remote}, {"since ", day(f.Since)},
		{"until ", day(f.Until)},
	} {
		if p[1] != "" {
			parts = append(parts, p[0]+p[1])
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return ", of " + strings.Join(parts, ", ")
}

func day(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// where is the filter as SQL conditions.
func (f Filter) where() (string, []any) {
	conditions, args := []string{"1 = 1"}, []any{}
	add := func(condition string, values ...any) {
		conditions, args = append(conditions, condition), append(args, values...)
	}
	if f.Person != "" {
		handle := strings.ToLower(strings.TrimSpace(f.Person))
		add("(actor = ? OR target = ?)", handle, handle)
	}
	if f.Action != "" {
		add("action = ?", f.Action)
	}
	if strings.HasSuffix(f.Remote, ".") || strings.HasSuffix(f.Remote, ":") {
		add("substr(remote, 1, length(?)) = ?", f.Remote, f.Remote)
	} else if f.Remote != "" {
		add("remote = ?", f.Remote)
	}
	if !f.Since.IsZero() {
		add("at >= ?", f.Since.UnixMilli())
	}
	if !f.Until.IsZero() {
		add("at < ?", f.Until.UnixMilli())
	}
	return strings.Join(conditions, " AND "), args
}

// List lists entries, the newest first.
func (l *Log) List(ctx context.Context, f Filter) ([]Entry, error) {
	where, args := f.where()
	if f.Before > 0 {
		where, args = where+" AND id < ?", append(args, f.Before)
	}
	if f.Limit <= 0 {
		f.Limit = 100
	}
	return readEntries(ctx, l.db, where+" ORDER BY id DESC LIMIT ?", append(args, f.Limit)...)
}

// readEntries reads entries with the hash each builds on: that of the entry before it, or the anchor's.
func readEntries(ctx context.Context, q store.Asker, where string, args ...any) ([]Entry, error) {
	log, err := store.All(ctx, q, scanEntry, `SELECT id, at, actor, action, target, detail, remote, hash,
		coalesce((SELECT hash FROM audit b WHERE b.id < a.id ORDER BY b.id DESC LIMIT 1), (SELECT hash FROM audit_anchor))
		FROM audit a WHERE `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	return log, nil
}

func scanEntry(row store.Row) (e Entry, err error) {
	var at int64
	var hash, prev []byte
	err = row.Scan(&e.ID, &at, &e.Actor, &e.Action, &e.Target, &e.Detail, &e.Remote, &hash, &prev)
	e.At = time.UnixMilli(at).UTC()
	copy(e.Hash[:], hash)
	copy(e.Prev[:], prev)
	return e, err
}

// Tidy makes a text from outside harmless in a log: at most so many characters, and none that moves the cursor.
func Tidy(s string, most int) string {
	printable := []rune(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "")))
	return string(printable[:min(len(printable), most)])
}

// LendAction is the log's word for how a GPU is lent from now on: whoever uses
// it, or only while nobody outside gpulab does.
func LendAction(anyway bool) string {
	if anyway {
		return "gpu.lend-anyway"
	}
	return "gpu.lend-when-free"
}

// FailedSignIns says how often somebody failed to sign in as that person since a time, as far as the log
// tells one by one, and what the last was; nil for never.
func (l *Log) FailedSignIns(ctx context.Context, handle string, since time.Time) (n int, last *Entry, err error) {
	where := "target = ? AND at >= ? AND action IN ('sign-in.failed', 'sign-in.failed-often', 'sign-in.locked')"
	args := []any{handle, since.UnixMilli()}
	if err := l.db.QueryRowContext(ctx, "SELECT count(*) FROM audit WHERE "+where, args...).Scan(&n); err != nil {
		return 0, nil, fmt.Errorf("read the audit log: %w", err)
	}
	list, err := readEntries(ctx, l.db, where+" ORDER BY id DESC LIMIT 1", args...)
	if err != nil || len(list) == 0 {
		return 0, nil, err
	}
	return n, &list[0], nil
}
