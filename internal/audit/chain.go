package audit

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/gpulab/gpulab/internal/store"
)

// Hash is a SHA-256; as text it is 64 hexadecimal digits.
type Hash [sha256.Size]byte

// String is the hash in hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText implements encoding.TextMarshaler.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *Hash) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(h)) {
		return fmt.Errorf("a hash is %d hexadecimal digits", hex.EncodedLen(len(h)))
	}
	if _, err := hex.Decode(h[:], text); err != nil {
		return fmt.Errorf("a hash is %d hexadecimal digits: %w", hex.EncodedLen(len(h)), err)
	}
	return nil
}

// chainLabel begins what is hashed, so that the hash can be mistaken for no other.
const chainLabel = "gpulab audit 1\n"

// ChainHash is the hash that an entry must have. It is SHA-256 over, one after the other,
//
//   - the 15 bytes of "gpulab audit 1" and a line feed,
//   - prev: the 32 bytes of the hash of the entry before it, 32 zero bytes for the lab's first entry,
//   - id: 8 bytes, most significant first,
//   - at: milliseconds since 1970-01-01 UTC, 8 bytes, most significant first,
//   - actor, action, target, detail and remote, in this order, each as its length in bytes (4 bytes, most
//     significant first) and its UTF-8 bytes. What is missing in the export is empty.
//
// The JSON export holds all of it, with prev and hash in hexadecimal and at as RFC 3339.
func ChainHash(e Entry) Hash {
	text := make([]byte, 0, 512)
	text = append(text, chainLabel...)
	text = append(text, e.Prev[:]...)
	text = binary.BigEndian.AppendUint64(text, uint64(e.ID))
	text = binary.BigEndian.AppendUint64(text, uint64(e.At.UnixMilli()))
	for _, field := range []string{e.Actor, e.Action, e.Target, e.Detail, e.Remote} {
		text = binary.BigEndian.AppendUint32(text, uint32(len(field)))
		text = append(text, field...)
	}
	return sha256.Sum256(text)
}

// BrokenError names the first entry of a log that does not fit.
type BrokenError struct {
	Entry Entry
	Why   string // a sentence
}

func (e *BrokenError) Error() string {
	return fmt.Sprintf("The audit log is broken at entry %d (%s, %s by %s): %s",
		e.Entry.ID, e.Entry.At.Format(time.RFC3339), e.Entry.Action, e.Entry.Actor, e.Why)
}

// ChainCheck checks a log entry by entry, the oldest first. Its zero value begins a check.
type ChainCheck struct {
	Entries int       `json:"entries"`
	From    time.Time `json:"from,omitzero"` // of the first entry
	To      time.Time `json:"to,omitzero"`   // of the last
	Head    Hash      `json:"head"`          // of the last; where there is none, what the next builds on
	// how often entries between two were left out, which only a part of a log may
	Gaps     int  `json:"gaps"`
	Expected bool `json:"expected"` // Expect was met

	// Expect, if not nil, is a hash that was kept elsewhere and must still be in the log.
	Expect *Hash `json:"-"`
	// Part says that entries may be left out.
	Part bool `json:"part"`

	last int64
}

// Begin sets what the first entry builds on: the anchor of a log whose oldest entries are gone.
func (c *ChainCheck) Begin(id int64, hash Hash) {
	c.last, c.Head = id, hash
	c.Expected = c.Expect != nil && id > 0 && *c.Expect == hash
}

// Add checks the next entry; a *BrokenError says that it does not fit.
func (c *ChainCheck) Add(e Entry) error {
	switch follows := e.ID == c.last+1; {
	case e.ID <= c.last:
		return &BrokenError{e, "It does not come after the one before it."}
	case ChainHash(e) != e.Hash:
		return &BrokenError{e, "What it says does not fit its hash: it was changed."}
	case follows && e.Prev != c.Head && (c.Entries > 0 || !c.Part):
		return &BrokenError{e, "It does not build on the entry before it: that one was changed, or entries between them " +
			"were replaced."}
	case !follows && !c.Part:
		return &BrokenError{e, "Entries before it are missing."}
	case !follows && c.Entries > 0:
		c.Gaps++
	}
	if c.Entries == 0 {
		c.From = e.At
	}
	c.Entries++
	c.To, c.Head, c.last = e.At, e.Hash, e.ID
	c.Expected = c.Expected || c.Expect != nil && *c.Expect == e.Hash
	return nil
}

// Verify checks the whole log: a *BrokenError names the first entry that does not fit. expect, if not
// nil, is looked for in it. That the newest entries are gone can be found only so: what is left of a log
// whose end was cut off fits.
func (l *Log) Verify(ctx context.Context, expect *Hash) (ChainCheck, error) {
	if err := l.chainOld(ctx); err != nil {
		return ChainCheck{}, err
	}
	l.forgetting.RLock()
	defer l.forgetting.RUnlock()
	check := ChainCheck{Expect: expect}
	anchor, err := l.anchor(ctx)
	if err != nil {
		return check, err
	}
	check.Begin(anchor.ID, anchor.Hash)
	return check, l.eachEntry(ctx, Filter{}, func(e Entry) error { return check.Add(e) })
}

// Head is the log's last entry so far: its ID and its hash. Without entries it is what the first will
// build on.
func (l *Log) Head(ctx context.Context) (Entry, error) {
	if err := l.chainOld(ctx); err != nil {
		return Entry{}, err
	}
	return chainHead(ctx, l.db)
}

// chainHead is what the next entry builds on.
func chainHead(ctx context.Context, q querier) (Entry, error) {
	e, err := scanLink(q.QueryRowContext(ctx, "SELECT id, at, hash FROM audit ORDER BY id DESC LIMIT 1"))
	if errors.Is(err, sql.ErrNoRows) {
		e, err = scanLink(q.QueryRowContext(ctx, "SELECT id, at, hash FROM audit_anchor"))
	}
	if err != nil {
		return e, fmt.Errorf("read the end of the audit log: %w", err)
	}
	return e, nil
}

// anchor is the last entry that was forgotten: ID 0 and a hash of zeros for none.
func (l *Log) anchor(ctx context.Context) (Entry, error) {
	e, err := scanLink(l.db.QueryRowContext(ctx, "SELECT id, at, hash FROM audit_anchor"))
	if err != nil {
		return e, fmt.Errorf("read the beginning of the audit log: %w", err)
	}
	return e, nil
}

// scanLink reads of an entry what the next builds on.
func scanLink(row store.Row) (Entry, error) {
	var e Entry
	var at int64
	var hash []byte
	if err := row.Scan(&e.ID, &at, &hash); err != nil {
		return e, err
	}
	e.At = time.UnixMilli(at).UTC()
	copy(e.Hash[:], hash)
	return e, nil
}

// eachBatch is how many entries are in memory at once.
const eachBatch = 500

// eachEntry calls fn with every entry that was there when it began and fits f, the oldest first. It holds
// the database only while it reads a batch: fn may be as slow as a browser that downloads. The caller
// holds forgetting.
func (l *Log) eachEntry(ctx context.Context, f Filter, fn func(Entry) error) error {
	head, err := chainHead(ctx, l.db)
	if err != nil {
		return err
	}
	where, args := f.where()
	for last := int64(0); ; {
		batch, err := readEntries(ctx, l.db, where+" AND id > ? AND id <= ? ORDER BY id LIMIT ?",
			append(args[:len(args):len(args)], last, head.ID, eachBatch)...)
		if err != nil {
			return err
		}
		for _, e := range batch {
			if err := fn(e); err != nil {
				return err
			}
			last = e.ID
		}
		if len(batch) < eachBatch {
			return nil
		}
	}
}

// chainOld brings entries from before there was a chain into it, once.
func (l *Log) chainOld(ctx context.Context) error {
	if l.chained.Load() {
		return nil
	}
	err := l.inTx(ctx, "chain the audit log", func(tx *sql.Tx) error { return chainOld(ctx, tx) })
	if err == nil {
		l.chained.Store(true)
	}
	return err
}

// chainOld chains the entries without a hash. They are the oldest: no other is taken from then on.
func chainOld(ctx context.Context, tx *sql.Tx) error {
	var set *sql.Stmt
	for {
		batch, err := readEntries(ctx, tx, "hash IS NULL ORDER BY id LIMIT ?", eachBatch)
		if err != nil || len(batch) == 0 {
			return err
		}
		if set == nil {
			if set, err = tx.PrepareContext(ctx, "UPDATE audit SET hash = ? WHERE id = ?"); err != nil {
				return fmt.Errorf("chain the audit log: %w", err)
			}
			defer func() { _ = set.Close() }()
		}
		prev := batch[0].Prev
		for _, e := range batch {
			e.Prev = prev
			prev = ChainHash(e)
			if _, err := set.ExecContext(ctx, prev[:], e.ID); err != nil {
				return fmt.Errorf("chain the audit log: %w", err)
			}
		}
	}
}

// Sweep forgets what is older than Kept and remembers the hash that the rest builds on.
func (l *Log) Sweep(ctx context.Context) error {
	if err := l.chainOld(ctx); err != nil {
		return err
	}
	cutoff := l.now().Add(-Kept).UnixMilli()
	var old bool // so that nearly every round only reads
	err := l.db.QueryRowContext(ctx, "SELECT coalesce((SELECT at < ? FROM audit ORDER BY id LIMIT 1), 0)",
		cutoff).Scan(&old)
	if err != nil {
		return fmt.Errorf("look for old entries of the audit log: %w", err)
	}
	if !old || !l.forgetting.TryLock() {
		return nil
	}
	defer l.forgetting.Unlock()
	return l.inTx(ctx, "forget old entries of the audit log", func(tx *sql.Tx) error {
		// All that come before the first one that is kept: the clock may once have been wrong.
		_, err := tx.ExecContext(ctx, `UPDATE audit_anchor SET (id, at, hash) = (SELECT id, at, hash FROM audit
			WHERE id < coalesce((SELECT min(id) FROM audit WHERE at >= ?), 9223372036854775807)
			ORDER BY id DESC LIMIT 1)`, cutoff)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM audit WHERE id <= (SELECT id FROM audit_anchor)")
		return err
	})
}

// querier is a database or a transaction.
type querier interface {
	store.Asker
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}
