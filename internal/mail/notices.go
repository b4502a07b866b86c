package mail

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// Notice is a condition that holds, and whom it concerns.
type Notice struct {
	Kind Kind
	// Key tells it from all others of its source; the same condition has the same key as long as it lasts.
	Key string
	// To are the IDs of those whom it concerns; kinds for administrators go to all of them.
	To []int64
	// Asked says that they asked for exactly this mail: they get it even if they want no mail of its kind.
	Asked bool
	// Subject is a line, Text a sentence or more, Path the page where people can do something about it.
	Subject, Text, Path string
}

// Source says which conditions hold now. Events are conditions too, until they are as old as Window.
type Source struct {
	Name    string
	Kinds   []Kind // of its notices
	Notices func(ctx context.Context, since time.Time) ([]Notice, error)
}

const (
	// Window is how long something that happened is told of afterwards, such as what happened while gpulab was not
	// running.
	Window = 6 * time.Hour
	// sinceSetting is since when the lab has a mail server: what happened before, nobody is told of.
	sinceSetting = "mail.since"
	// mostListed is how many of many are written out.
	mostListed = 10
)

// ErrNotKnown is what a source says that cannot know yet: nothing new is told, and
// what was told is not taken for over.
var ErrNotKnown = errors.New("not known yet")

// told is something that somebody was told of.
type told struct {
	user int64
	key  string
}

// Watch looks at sources every so often until ctx ends.
func (s *Service) Watch(ctx context.Context, every time.Duration, sources ...Source) error {
	if !s.On() {
		return store.SetSetting(ctx, s.cfg.DB, sinceSetting, "")
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	failing := ""
	for {
		switch err := s.Look(ctx, sources...); {
		case err == nil, ctx.Err() != nil:
			failing = ""
		case err.Error() != failing:
			failing = err.Error()
			s.cfg.Log.Warn("not all of what people are told by mail is looked after; trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Look asks each source once, and writes to whoever wants to know and was not told. A source that fails leaves the
// others.
func (s *Service) Look(ctx context.Context, sources ...Source) error {
	s.looking.Lock()
	defer s.looking.Unlock()
	since, err := s.watchedSince(ctx)
	if err != nil {
		return err
	}
	everybody, err := s.cfg.People.List(ctx)
	if err != nil {
		return err
	}
	known, err := s.known(ctx)
	if err != nil {
		return err
	}
	declined, err := s.declined(ctx, "1")
	if err != nil {
		return err
	}
	var errs []error
	for _, source := range sources {
		list, err := source.Notices(ctx, since)
		if errors.Is(err, ErrNotKnown) {
			continue
		}
		if err == nil {
			err = s.tell(ctx, source, list, everybody, known, declined)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", source.Name, err))
		}
	}
	return errors.Join(errs...)
}

// watchedSince is from when on people are told of what happened.
func (s *Service) watchedSince(ctx context.Context) (time.Time, error) {
	text, err := store.Setting(ctx, s.cfg.DB, sinceSetting)
	if err != nil {
		return time.Time{}, err
	}
	first, err := time.Parse(time.RFC3339, text)
	if err != nil {
		first = s.now().UTC().Truncate(time.Second)
		if err := store.SetSetting(ctx, s.cfg.DB, sinceSetting, first.Format(time.RFC3339)); err != nil {
			return first, err
		}
	}
	if window := s.now().Add(-Window); window.After(first) {
		return window, nil
	}
	return first, nil
}

// known is what people were told of, with its kind.
func (s *Service) known(ctx context.Context) (map[told]Kind, error) {
	type row struct {
		told
		kind Kind
	}
	list, err := store.All(ctx, s.cfg.DB, func(r store.Row) (one row, err error) {
		return one, r.Scan(&one.user, &one.key, &one.kind)
	}, "SELECT user_id, key, kind FROM mail_told")
	if err != nil {
		return nil, fmt.Errorf("read what people were told: %w", err)
	}
	out := map[told]Kind{}
	for _, one := range list {
		out[one.told] = one.kind
	}
	return out, nil
}

// tell writes to everybody whom a source has something new for, one mail each and kind, and forgets what is over.
func (s *Service) tell(ctx context.Context, source Source, list []Notice, everybody []users.User, known map[told]Kind,
	declined map[choice]bool) error {
	holds := map[told]bool{}
	var errs []error
	for i := range everybody {
		u := &everybody[i]
		for _, kind := range source.Kinds {
			rule, ok := ruleOf(kind)
			if !ok {
				return fmt.Errorf("there are no mails of the kind %s", kind)
			}
			var news []Notice
			for _, n := range list {
				if n.Kind != kind || rule.Admins && u.Role != users.RoleAdmin || !rule.Admins && !slices.Contains(n.To, u.ID) {
					continue
				}
				n.Key = source.Name + " " + n.Key
				t := told{u.ID, n.Key}
				if _, was := known[t]; !was && !holds[t] {
					news = append(news, n)
				}
				holds[t] = true
			}
			var unwanted []Notice
			if declined[choice{u.ID, kind}] {
				unwanted = slices.DeleteFunc(slices.Clone(news), func(n Notice) bool { return n.Asked })
				news = slices.DeleteFunc(news, func(n Notice) bool { return !n.Asked })
			}
			if len(unwanted) > 0 {
				errs = append(errs, s.write(ctx, *u, rule, unwanted, false))
			}
			if len(news) > 0 {
				errs = append(errs, s.write(ctx, *u, rule, news, true))
			}
		}
	}
	return errors.Join(append(errs, s.forget(ctx, source, known, holds))...)
}

// write notes that somebody was told, and puts the mail into the outbox where they want it and can get it. While they
// have got many of the kind, it does neither: what is new comes together once there may be another one.
func (s *Service) write(ctx context.Context, u users.User, rule Rule, news []Notice, wanted bool) error {
	return s.inTx(ctx, "write to somebody", func(tx *sql.Tx) error {
		if wanted && !u.Suspended && CheckAddress(u.Email) == nil {
			may, err := s.mayNotify(ctx, tx, u.ID, u.Email, rule)
			if err != nil || !may {
				return err
			}
			if err := s.put(ctx, tx, s.notice(u, rule, news)); err != nil {
				return err
			}
		}
		for _, n := range news {
			if _, err := tx.ExecContext(ctx, "INSERT INTO mail_told (user_id, key, kind, at) VALUES (?, ?, ?, ?) ON CONFLICT "+
				"DO NOTHING",
				u.ID, n.Key, rule.Kind, s.now().UnixMilli()); err != nil {
				return err
			}
		}
		return nil
	})
}

// notice is the mail about one thing or several.
func (s *Service) notice(u users.User, rule Rule, news []Notice) letter {
	l := letter{kind: rule.Kind, userID: u.ID, name: u.Name, address: u.Email}
	foot := "-- \nYou choose which mails you get from " + s.lab() + ":\n" + s.choicesURL()
	if len(news) == 1 {
		l.subject = "[" + s.lab() + "] " + news[0].Subject
		l.body = text(news[0].Text, s.cfg.URL()+news[0].Path, foot)
		return l
	}
	l.subject = "[" + s.lab() + "] " + rule.subject(len(news))
	var lines []string
	for _, n := range news[:min(len(news), mostListed)] {
		lines = append(lines, "* "+oneLine(n.Text, 500))
	}
	if more := len(news) - mostListed; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	l.body = text(strings.Join(lines, "\n\n"), s.cfg.URL()+rule.page, foot)
	return l
}

// forget lets people be told again of what has been over for long enough.
func (s *Service) forget(ctx context.Context, source Source, known map[told]Kind, holds map[told]bool) error {
	now := s.now()
	for t, kind := range known {
		if !strings.HasPrefix(t.key, source.Name+" ") {
			continue
		}
		if holds[t] {
			delete(s.over, t)
			continue
		}
		began, was := s.over[t]
		if !was {
			s.over[t], began = now, now
		}
		rule, _ := ruleOf(kind)
		if now.Sub(began) < rule.quiet {
			continue
		}
		if _, err := s.cfg.DB.ExecContext(ctx, "DELETE FROM mail_told WHERE user_id = ? AND key = ?", t.user,
			t.key); err != nil {
			return fmt.Errorf("forget what somebody was told: %w", err)
		}
		delete(s.over, t)
	}
	return nil
}
