package mail

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/gpulab/gpulab/internal/store"
)

// Status is how mail is, for administrators.
type Status struct {
	// On is false where no mail server is configured; then Server and From are empty.
	On     bool   `json:"on"`
	Server string `json:"server,omitempty"`
	From   string `json:"from,omitempty"`
	// Problem says why the server takes no mails, and Since from when on it has not.
	Problem string     `json:"problem,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
	Waiting int        `json:"waiting"`
	Oldest  *time.Time `json:"oldest,omitempty"` // of those that wait
	// Sent and Failed count the last seven days.
	Sent     int        `json:"sent"`
	Failed   int        `json:"failed"`
	LastSent *time.Time `json:"lastSent,omitempty"`
}

// Entry is a mail of the outbox. Its text is for whom it was written.
type Entry struct {
	ID      int64      `json:"id"`
	Kind    Kind       `json:"kind"`
	To      string     `json:"to"`
	AskedBy string     `json:"askedBy,omitempty"` // a handle, or root; empty for the lab itself
	Subject string     `json:"subject"`
	State   State      `json:"state"`
	Created time.Time  `json:"created"`
	Tries   int        `json:"tries"` // that a mail server has answered
	Next    *time.Time `json:"next,omitempty"`
	Ended   *time.Time `json:"ended,omitempty"` // when it was sent or given up
	Problem string     `json:"problem,omitempty"`
}

// MostListed is how many Entries returns at most.
const MostListed = 1000

// Example are lines of the configuration.
const Example = `mail:
  server: smtp.example.org
  security: starttls
  from: Vision lab <gpulab@example.org>
  user: gpulab@example.org
  passwordFile: /etc/gpulab/mail.secret
`

// counted is how far back Status counts.
const counted = 7 * 24 * time.Hour

// Status tells how mail is.
func (s *Service) Status(ctx context.Context) (Status, error) {
	st := Status{On: s.On()}
	if st.On {
		st.Server, st.From = s.cfg.Mail.Where(), s.cfg.Mail.From
		if why, since := s.Trouble(); why != "" {
			st.Problem, st.Since = why, &since
		}
	}
	var oldest, last sql.NullInt64
	err := s.cfg.DB.QueryRowContext(ctx, `SELECT count(*) FILTER (WHERE state = 'waiting'),
		min(created_at) FILTER (WHERE state = 'waiting'),
		count(*) FILTER (WHERE state = 'sent' AND ended_at > ?1), count(*) FILTER (WHERE state = 'failed' AND ended_at > ?1),
		max(ended_at) FILTER (WHERE state = 'sent')
		FROM mails`, s.now().Add(-counted).UnixMilli()).Scan(&st.Waiting, &oldest, &st.Sent, &st.Failed, &last)
	if err != nil {
		return st, fmt.Errorf("count mails: %w", err)
	}
	st.Oldest, st.LastSent = given(oldest.Int64), given(last.Int64)
	return st, nil
}

// given is a time of the database, nil for none.
func given(milli int64) *time.Time {
	if milli == 0 {
		return nil
	}
	t := time.UnixMilli(milli).UTC()
	return &t
}

// Entries lists mails, the newest first; state may be empty for all.
func (s *Service) Entries(ctx context.Context, state State, limit int) ([]Entry, error) {
	list, err := store.All(ctx, s.cfg.DB, func(row store.Row) (e Entry, err error) {
		var created, next, ended int64
		err = row.Scan(&e.ID, &e.Kind, &e.To, &e.AskedBy, &e.Subject, &e.State, &created, &next, &e.Tries, &e.Problem, &ended)
		e.Created, e.Ended = time.UnixMilli(created).UTC(), given(ended)
		if e.State == Waiting {
			e.Next = given(next)
		}
		return e, err
	}, `SELECT id, kind, address, asked_by, subject, state, created_at, next_at, tries, problem, ended_at FROM mails
		WHERE ?1 = '' OR state = ?1 ORDER BY id DESC LIMIT ?2`, state, min(max(limit, 0), MostListed))
	if err != nil {
		return nil, fmt.Errorf("list mails: %w", err)
	}
	return list, nil
}

// Restored gives up what waits in a lab that comes back from a backup: it may have been sent since, and links in it do
// not work any more.
func Restored(ctx context.Context, db *sql.DB, now time.Time) error {
	_, err := db.ExecContext(ctx, `UPDATE mails
		SET state = 'failed', body = '', ended_at = ?,
		problem = 'The lab was restored from a backup, in which it waited; it may have been sent before.'
		WHERE state = 'waiting'`, now.UnixMilli())
	if err != nil {
		return fmt.Errorf("give up the mails of the backup: %w", err)
	}
	return nil
}
