package users

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/store"
)

const (
	// SessionIdle ends a session that nobody used for this long.
	SessionIdle = 7 * 24 * time.Hour
	// SessionMax ends every session.
	SessionMax = 30 * 24 * time.Hour

	// clockSlack is how far the clock may be set back before sessions end: one that was begun while it stood in the
	// future would last for as long again.
	clockSlack = 24 * time.Hour

	// sessionsPerUser bounds the table; the oldest makes room.
	sessionsPerUser = 50
	// lastSeenStep keeps reading pages from becoming writing rows.
	lastSeenStep = time.Minute
	// tokenBytes of randomness in the tokens of sessions and links.
	tokenBytes = 32
)

// Session is one browser that is signed in.
type Session struct {
	ID       string // names the session; not the secret token
	User     User
	CSRF     string // goes into every form; derived from the token, which the server does not keep
	Created  time.Time
	Expires  time.Time // whatever happens, not later than this
	LastSeen time.Time // to the minute
}

// ValidCSRF compares a form's token with the session's in constant time.
func (s Session) ValidCSRF(token string) bool {
	return s.CSRF != "" && subtle.ConstantTimeCompare([]byte(s.CSRF), []byte(token)) == 1
}

// SessionMeta says from where somebody signed in, for them to recognise it.
type SessionMeta struct{ Remote, UserAgent string }

// OnSessionsEnded registers a function that hears of every session that ends, whether by sign-out,
// expiry, suspension or a change of password or role, after it cannot be used any more. An empty session
// ID means all sessions of the user. It is called from the goroutine that caused the end and must return
// soon.
func (s *Service) OnSessionsEnded(f func(userID int64, sessionID string)) {
	s.hookMu.Lock()
	defer s.hookMu.Unlock()
	s.hooks = append(s.hooks, f)
}

// sessionsEnded makes an end felt: here, then by everybody who listens.
func (s *Service) sessionsEnded(userID int64, sessionID string) {
	s.cache.drop()
	s.hookMu.RLock()
	hooks := s.hooks
	s.hookMu.RUnlock()
	for _, f := range hooks {
		f(userID, sessionID)
	}
}

// StartSession signs somebody in and returns the token for the cookie. Only its SHA-256 is stored.
// Every sign-in gets a new token: one that was planted before it is worth nothing.
func (s *Service) StartSession(ctx context.Context, userID int64, meta SessionMeta) (token string, err error) {
	token, hash := newToken()
	now := s.now()
	var pushedOut []string
	err = s.inTx(ctx, "start a session", func(tx *sql.Tx) error {
		u, err := s.oneRow(ctx, tx, "id = ?", userID)
		if err != nil {
			return err
		}
		if u.Suspended {
			return errSuspended()
		}
		pushedOut, err = deleteSessions(ctx, tx, `id IN (SELECT id FROM sessions WHERE user_id = ?
			ORDER BY last_seen_at DESC, created_at DESC LIMIT -1 OFFSET ?)`, userID, sessionsPerUser-1)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO sessions
			(id, token_hash, user_id, created_at, last_seen_at, expires_at, remote, user_agent) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
			rand.Text(), hash[:], userID, now.UnixMilli(), now.UnixMilli(), now.Add(SessionMax).UnixMilli(),
			audit.Tidy(meta.Remote, 64), audit.Tidy(meta.UserAgent, 300))
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE users SET signed_in_at = ? WHERE id = ?", now.UnixMilli(), userID)
		return err
	})
	if err != nil {
		return "", err
	}
	for _, id := range pushedOut {
		s.sessionsEnded(userID, id)
	}
	return token, nil
}

// SessionUser finds the session of a token and notes that it is in use; ErrSignedOut when there is none,
// or its time is over. It is cheap enough for every request: answers are kept for a few seconds, but
// never beyond the end of a session or a change of its user.
func (s *Service) SessionUser(ctx context.Context, token string) (Session, error) {
	raw, hash, ok := parseToken(token)
	if !ok {
		return Session{}, errSignedOut()
	}
	found, err := s.session(ctx, hash, "token_hash = ?", hash[:])
	if err != nil {
		return Session{}, err
	}
	found.CSRF = csrfToken(raw)
	return found, nil
}

// SessionByID finds a session by its ID, which is no secret: the caller has a proof of its own. It is as good as
// SessionUser otherwise, but its forms have no token.
func (s *Service) SessionByID(ctx context.Context, id string) (Session, error) {
	return s.session(ctx, sha256.Sum256([]byte("session ID "+id)), "id = ?", id)
}

// session finds a session by a condition, which the cache knows by key.
func (s *Service) session(ctx context.Context, key [sha256.Size]byte, where string, arg any) (Session, error) {
	now := s.now()
	found, round, ok := s.cache.get(key, now)
	if !ok {
		var err error
		if found, err = s.loadSession(ctx, where, arg, now); err != nil {
			return Session{}, err
		}
		s.cache.put(key, found, round, now)
	}
	if now.Sub(found.LastSeen) >= SessionIdle || !now.Before(found.Expires) || found.Created.Sub(now) > clockSlack {
		return Session{}, errSignedOut()
	}
	return found, nil
}

func errSignedOut() error {
	return sentence(ErrSignedOut, "You are signed out. Sign in again.")
}

func (s *Service) loadSession(ctx context.Context, where string, arg any, now time.Time) (Session, error) {
	var found Session
	var userID, created, seen, expires int64
	err := s.db.QueryRowContext(ctx, "SELECT id, user_id, created_at, last_seen_at, expires_at FROM sessions WHERE "+where,
		arg).
		Scan(&found.ID, &userID, &created, &seen, &expires)
	if errors.Is(err, sql.ErrNoRows) {
		return Session{}, errSignedOut()
	}
	if err != nil {
		return Session{}, fmt.Errorf("look up a session: %w", err)
	}
	if found.User, err = s.ByID(ctx, userID); err != nil || found.User.Suspended {
		if err == nil || errors.Is(err, ErrNotFound) {
			err = errSignedOut()
		}
		return Session{}, err
	}
	if found.User.led, err = s.ledBy(ctx, found.User); err != nil {
		return Session{}, err
	}
	found.Created, found.LastSeen, found.Expires = time.UnixMilli(created).UTC(), time.UnixMilli(seen).UTC(),
		time.UnixMilli(expires).UTC()
	if idle := now.Sub(found.LastSeen); idle >= lastSeenStep && idle < SessionIdle && now.Before(found.Expires) {
		if _, err := s.db.ExecContext(ctx, "UPDATE sessions SET last_seen_at = ? WHERE id = ?", now.UnixMilli(),
			found.ID); err != nil {
			return Session{}, fmt.Errorf("note that a session is in use: %w", err)
		}
		found.LastSeen = now.UTC()
	}
	return found, nil
}

// EndSession signs one browser out. An unknown token is no error: it is signed out.
func (s *Service) EndSession(ctx context.Context, token string) error {
	_, hash, ok := parseToken(token)
	if !ok {
		return nil
	}
	var id string
	var userID int64
	err := s.db.QueryRowContext(ctx, "DELETE FROM sessions WHERE token_hash = ? RETURNING id, user_id", hash[:]).Scan(&id,
		&userID)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end a session: %w", err)
	}
	s.sessionsEnded(userID, id)
	return nil
}

// EndSessions signs a person out everywhere.
func (s *Service) EndSessions(ctx context.Context, userID int64) error {
	if _, err := s.db.ExecContext(ctx, "DELETE FROM sessions WHERE user_id = ?", userID); err != nil {
		return fmt.Errorf("end the sessions of a user: %w", err)
	}
	s.sessionsEnded(userID, "")
	return nil
}

func (s *Service) sweepSessions(ctx context.Context) error {
	now := s.now()
	type ended struct {
		id   string
		user int64
	}
	list, err := store.All(ctx, s.db, func(row store.Row) (e ended, err error) {
		return e, row.Scan(&e.id, &e.user)
	}, "DELETE FROM sessions WHERE expires_at <= ? OR last_seen_at <= ? RETURNING id, user_id", now.UnixMilli(),
		now.Add(-SessionIdle).UnixMilli())
	if err != nil {
		return fmt.Errorf("end expired sessions: %w", err)
	}
	for _, e := range list {
		s.sessionsEnded(e.user, e.id)
	}
	return nil
}

func deleteSessions(ctx context.Context, tx *sql.Tx, where string, args ...any) ([]string, error) {
	return store.All(ctx, tx, store.Value[string], "DELETE FROM sessions WHERE "+where+" RETURNING id", args...)
}

func newToken() (token string, hash [sha256.Size]byte) {
	raw := make([]byte, tokenBytes)
	_, _ = rand.Read(raw) // never fails
	return base64.RawURLEncoding.EncodeToString(raw), sha256.Sum256(raw)
}

// parseToken refuses everything that newToken cannot have made, before any work is done for it.
func parseToken(token string) (raw []byte, hash [sha256.Size]byte, ok bool) {
	if len(token) != base64.RawURLEncoding.EncodedLen(tokenBytes) {
		return nil, hash, false
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil {
		return nil, hash, false
	}
	return raw, sha256.Sum256(raw), true
}

func csrfToken(raw []byte) string {
	mac := hmac.New(sha256.New, raw)
	mac.Write([]byte("gpulab form token"))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// sessionCache answers the many requests of one page from memory. Everything is dropped whenever a
// session or user changes, which is rare; an entry read before such a change and put after it is refused.
type sessionCache struct {
	mu      sync.Mutex
	round   uint64
	entries map[[sha256.Size]byte]cachedSession
}

type cachedSession struct {
	session Session
	until   time.Time
}

const (
	cacheFor = 5 * time.Second
	cacheMax = 4096
)

func newSessionCache() *sessionCache {
	return &sessionCache{entries: map[[sha256.Size]byte]cachedSession{}}
}

func (c *sessionCache) get(hash [sha256.Size]byte, now time.Time) (Session, uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[hash]
	return e.session, c.round, ok && now.Before(e.until)
}

func (c *sessionCache) put(hash [sha256.Size]byte, session Session, round uint64, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if round != c.round {
		return
	}
	if len(c.entries) >= cacheMax {
		clear(c.entries)
	}
	c.entries[hash] = cachedSession{session: session, until: now.Add(cacheFor)}
}

func (c *sessionCache) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.round++
	clear(c.entries)
}
