package users

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Entry is one line of the audit log: who did what to whom. The service itself records sign-ins, locked
// accounts and redeemed links, where nobody else can know who acted; every other change is recorded by
// the page or command that made it. Entries are never changed or deleted.
type Entry struct {
	At     time.Time `json:"at"`     // set when it is recorded
	Actor  string    `json:"actor"`  // a handle, "root" for the command line on the head, or "system"
	Action string    `json:"action"` // such as "user.remove"
	Target string    `json:"target,omitempty"`
	Detail string    `json:"detail,omitempty"`
	Remote string    `json:"remote,omitempty"`
}

// Audit records an entry.
func (s *Service) Audit(ctx context.Context, e Entry) error {
	return s.audit(ctx, s.db, e)
}

func (s *Service) audit(ctx context.Context, q querier, e Entry) error {
	_, err := q.ExecContext(ctx, "INSERT INTO audit (at, actor, action, target, detail, remote) VALUES (?, ?, ?, ?, ?, ?)",
		s.now().UnixMilli(), tidy(e.Actor, 64), tidy(e.Action, 64), tidy(e.Target, 128), tidy(e.Detail, 1000), tidy(e.Remote, 64))
	if err != nil {
		return fmt.Errorf("record in the audit log: %w", err)
	}
	return nil
}

// note records what must not keep anybody from signing in when the log cannot be written.
func (s *Service) note(ctx context.Context, e Entry) {
	_ = s.Audit(ctx, e)
}

// AuditLog returns the newest entries first, at most limit (100 if 0).
func (s *Service) AuditLog(ctx context.Context, limit int) ([]Entry, error) {
	if limit <= 0 {
		limit = 100
	}
	rows, err := s.db.QueryContext(ctx, "SELECT at, actor, action, target, detail, remote FROM audit ORDER BY id DESC LIMIT ?", limit)
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer func() { _ = rows.Close() }()
	var log []Entry
	for rows.Next() {
		var e Entry
		var at int64
		if err := rows.Scan(&at, &e.Actor, &e.Action, &e.Target, &e.Detail, &e.Remote); err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		e.At = time.UnixMilli(at).UTC()
		log = append(log, e)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	return log, nil
}

// tidy makes what comes from outside harmless in a log: short, and nothing that moves the cursor.
func tidy(s string, most int) string {
	return clip(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "")), most)
}
