package mail

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/units"
)

// State is where a mail stands.
type State string

// The states.
const (
	Waiting State = "waiting"
	Sent    State = "sent"
	Failed  State = "failed"
)

// States lists them.
func States() []State { return []State{Waiting, Sent, Failed} }

const (
	batch    = 20 // mails over one connection
	keepSent = 30 * 24 * time.Hour
	keepFail = 90 * 24 * time.Hour
	// mostAway is how often a server that takes nothing is tried at least.
	mostAway = 5 * time.Minute
	// mostKept bounds the table.
	mostKept = 20_000
)

// letter is a mail that is to be sent.
type letter struct {
	id            int64
	messageID     string
	kind          Kind
	userID        int64  // 0 for an address without an account
	askedBy       string // "" for the lab itself
	name, address string
	subject, body string
	created       time.Time
	tries         int
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// put adds a letter to the outbox.
func (s *Service) put(ctx context.Context, db execer, l letter) error {
	if err := CheckAddress(l.address); err != nil {
		return err
	}
	now := s.now().UnixMilli()
	_, err := db.ExecContext(ctx, `INSERT INTO mails (message_id, kind, user_id, asked_by, name, address, subject, body,
		state, created_at, next_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		s.newMessageID(), l.kind, sql.NullInt64{Int64: l.userID, Valid: l.userID != 0}, l.askedBy,
		oneLine(l.name, 80), l.address, oneLine(l.subject, 200), l.body, Waiting, now, now)
	if err != nil {
		return fmt.Errorf("put a mail into the outbox: %w", err)
	}
	return nil
}

func (s *Service) newMessageID() string {
	_, domain, _ := strings.Cut(s.cfg.Mail.from().Address, "@")
	return strings.ToLower(rand.Text()) + "@" + domain
}

// due are the next letters to send, the oldest first.
func (s *Service) due(ctx context.Context, now time.Time) ([]letter, error) {
	list, err := store.All(ctx, s.cfg.DB, func(row store.Row) (l letter, err error) {
		var created int64
		err = row.Scan(&l.id, &l.messageID, &l.kind, &l.name, &l.address, &l.subject, &l.body, &created, &l.tries)
		l.created = time.UnixMilli(created)
		return l, err
	}, `SELECT id, message_id, kind, name, address, subject, body, created_at, tries FROM mails
		WHERE state = 'waiting' AND next_at <= ? ORDER BY next_at, id LIMIT ?`, now.UnixMilli(), batch)
	if err != nil {
		return nil, fmt.Errorf("read the outbox: %w", err)
	}
	return list, nil
}

// end marks a letter as sent, or as given up for a reason. Its text goes: it may hold a link that is a secret.
func (s *Service) end(ctx context.Context, id int64, state State, problem string) error {
	_, err := s.cfg.DB.ExecContext(ctx,
		`UPDATE mails SET state = ?, problem = ?, body = '', tries = tries + 1, ended_at = ? WHERE id = ?
			AND state = 'waiting'`,
		state, problem, s.now().UnixMilli(), id)
	if err != nil {
		return fmt.Errorf("mark a mail as %s: %w", state, err)
	}
	return nil
}

// later has a letter wait for its next try.
func (s *Service) later(ctx context.Context, l letter, problem string) error {
	_, err := s.cfg.DB.ExecContext(ctx,
		`UPDATE mails SET tries = tries + 1, problem = ?, next_at = ? WHERE id = ? AND state = 'waiting'`,
		problem, s.now().Add(s.cfg.Pauses.after(l.tries+1)).UnixMilli(), l.id)
	if err != nil {
		return fmt.Errorf("have a mail wait: %w", err)
	}
	return nil
}

// giveUp ends what has waited for too long, and forgets what is old.
func (s *Service) giveUp(ctx context.Context) error {
	now := s.now()
	why, _ := s.Trouble()
	words := "It was given up after " + units.Lasting(s.cfg.Pauses.GiveUp) + ". "
	_, err := s.cfg.DB.ExecContext(ctx, `UPDATE mails
		SET state = 'failed', body = '', ended_at = ?, problem = ? || iif(? <> '', ?, problem)
		WHERE state = 'waiting' AND created_at <= ?`,
		now.UnixMilli(), words, why, why, now.Add(-s.cfg.Pauses.GiveUp).UnixMilli())
	if err == nil {
		_, err = s.cfg.DB.ExecContext(ctx, `DELETE FROM mails WHERE state = 'sent' AND ended_at < ? OR state = 'failed'
			AND ended_at < ?
			OR state <> 'waiting' AND id <= (SELECT id FROM mails ORDER BY id DESC LIMIT 1 OFFSET ?)`,
			now.Add(-keepSent).UnixMilli(), now.Add(-keepFail).UnixMilli(), mostKept)
	}
	if err != nil {
		return fmt.Errorf("give up old mails: %w", err)
	}
	return nil
}

// Run sends what is in the outbox until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	if !s.On() {
		return nil
	}
	failures := 0 // of the server, one after another
	var tidied time.Time
	for {
		wait := s.cfg.Pauses.Poll
		err := s.deliver(ctx)
		var away *serverError
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			failures = 0
		case errors.As(err, &away):
			failures++
			s.setTrouble(away.words)
			wait = min(s.cfg.Pauses.after(failures), mostAway)
		default:
			s.cfg.Log.Warn("mails are not looked after; trying again", "err", err)
			wait = s.cfg.Pauses.First
		}
		if s.now().Sub(tidied) > s.cfg.Pauses.GiveUp/1000 {
			tidied = s.now()
			if err := s.giveUp(ctx); err != nil && ctx.Err() == nil {
				s.cfg.Log.Warn("old mails stay in the outbox; trying again", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// deliver sends what is due. A *serverError says that the server takes nothing.
func (s *Service) deliver(ctx context.Context) error {
	for ctx.Err() == nil {
		list, err := s.due(ctx, s.now())
		if err != nil || len(list) == 0 {
			return err
		}
		if err := s.sendAll(ctx, list); err != nil {
			return err
		}
		s.setTrouble("")
	}
	return nil
}

// sendAll sends letters over one connection and marks each as soon as the server has taken it. A *serverError says that
// the others have to wait.
func (s *Service) sendAll(ctx context.Context, list []letter) error {
	line, err := s.cfg.Mail.dial(ctx, s.cfg.Pauses.Connect, s.cfg.Pauses.Send)
	if err != nil {
		return err
	}
	defer line.close()
	for _, l := range list {
		m, err := s.compose(l)
		err = line.send(ctx, m, err)
		var refused *refusal
		var away *serverError
		switch {
		case err == nil:
			if err := s.end(context.WithoutCancel(ctx), l.id, Sent, ""); err != nil {
				return err
			}
			s.cfg.Log.Info("mail sent", "mail", l.id, "kind", l.kind)
		case errors.As(err, &refused) && refused.forGood:
			if err := s.end(ctx, l.id, Failed, refused.words); err != nil {
				return err
			}
			s.cfg.Log.Warn("mail refused", "mail", l.id, "kind", l.kind, "why", refused.words)
		case errors.As(err, &refused):
			if err := s.later(ctx, l, refused.words); err != nil {
				return err
			}
		case errors.As(err, &away):
			// Were it the first again, it could keep all others back.
			if away.within {
				err = errors.Join(s.later(ctx, l, away.words), err)
			}
			return err
		default:
			return err
		}
	}
	return nil
}
