package mail

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
)

type asker interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// How many mails somebody can make the lab write to addresses of their choice, and how many come to one address. They
// are counted in the outbox, so a restart forgives nothing.
const (
	askedPerHour = 60  // by one person
	askedPerDay  = 300 // by one person
	toOnePerHour = 4   // that people asked for, to one address
	noticesADay  = 60  // to one address
)

// MaxInvited is to how many addresses one invitation is sent.
const MaxInvited = 50

// mayAsk refuses what somebody asks for beyond the limits; more is how many mails it would be.
func (s *Service) mayAsk(ctx context.Context, db asker, by string, addresses []string) error {
	for _, l := range []struct {
		within time.Duration
		most   int
		words  string
	}{{time.Hour, askedPerHour, "an hour"}, {24 * time.Hour, askedPerDay, "a day"}} {
		n, err := s.count(ctx, db, "asked_by = ? AND created_at > ?", by, s.now().Add(-l.within).UnixMilli())
		if err != nil {
			return err
		}
		if n+len(addresses) > l.most {
			return refuse(ErrLimit, "The lab writes to at most %d addresses %s for one person, and has written to %d for "+
				"you. Try again later, or send the link yourself.", l.most, l.words, n)
		}
	}
	for _, address := range addresses {
		// A mailbox is the same in capital letters.
		n, err := s.count(ctx, db, "lower(address) = lower(?) AND asked_by <> '' AND created_at > ?", address,
			s.now().Add(-time.Hour).UnixMilli())
		if err != nil {
			return err
		}
		now := 0
		for _, other := range addresses {
			if strings.EqualFold(address, other) {
				now++
			}
		}
		if n+now > toOnePerHour {
			return refuse(ErrLimit, "%s has got %d mails of the lab within the hour. Try again later.", address, n)
		}
	}
	return nil
}

// mayNotify tells whether one more notice of a kind may go to somebody now.
func (s *Service) mayNotify(ctx context.Context, db asker, user int64, address string, r Rule) (bool, error) {
	n, err := s.count(ctx, db, "user_id = ? AND kind = ? AND created_at > ?", user, r.Kind,
		s.now().Add(-time.Hour).UnixMilli())
	if err != nil || n >= r.hourly {
		return false, err
	}
	n, err = s.count(ctx, db, "lower(address) = lower(?) AND asked_by = '' AND created_at > ?", address,
		s.now().Add(-24*time.Hour).UnixMilli())
	return n < noticesADay, err
}

func (s *Service) count(ctx context.Context, db asker, where string, args ...any) (n int, err error) {
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM mails WHERE "+where, args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("count mails: %w", err)
	}
	return n, nil
}
