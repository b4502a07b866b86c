package users

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/store"
)

// TokenScope is what a token lets a program do in its owner's name, never more than the owner may.
type TokenScope string

// The scopes.
const (
	ScopeFiles  TokenScope = "files"  // bring the owner's files in and out, and nothing else
	ScopeRead   TokenScope = "read"   // see what the owner sees
	ScopeLaunch TokenScope = "launch" // and launch and stop the owner's own notebooks, and bring files in and out
	ScopeFull   TokenScope = "full"   // everything the owner's role may do
)

// TokenScopes lists every scope, from least to most.
func TokenScopes() []TokenScope { return []TokenScope{ScopeFiles, ScopeRead, ScopeLaunch, ScopeFull} }

// TokenLifetimes are how many days a new token may last; TokenLifetime is the usual choice. None lasts for ever.
var TokenLifetimes = []int{7, 30, 90, 365}

// TokenLifetime is how many days a token lasts unless its owner chooses otherwise.
const TokenLifetime = 90

// TokensPerUser is how many valid tokens somebody can have.
const TokensPerUser = 20

const (
	maxTokenName = 60 // characters
	// tokensKept is how long an expired token stays in its owner's list, to explain why a program fails.
	tokensKept = 30 * 24 * time.Hour
	// tokenUsedStep keeps reading from becoming writing.
	tokenUsedStep = time.Minute
)

// Token is a personal access token for the API; the secret itself is known to its owner alone.
type Token struct {
	ID       int64      `json:"id"`
	UserID   int64      `json:"-"`
	Name     string     `json:"name"`
	Scope    TokenScope `json:"scope"`
	Created  time.Time  `json:"created"`
	Expires  time.Time  `json:"expires"`
	LastUsed *time.Time `json:"lastUsed"` // to the minute; nil for never
	Remote   string     `json:"remote,omitempty"`
}

// Detail is what the audit log tells of a token that was made.
func (t *Token) Detail() string {
	return fmt.Sprintf("token %d, scope %s, until %s", t.ID, t.Scope, t.Expires.Format(time.DateOnly))
}

// NewToken is what it takes to make a token: Days is one of TokenLifetimes.
type NewToken struct {
	Name  string
	Scope TokenScope
	Days  int
}

// CreateToken makes a token for somebody's programs and returns the secret, which cannot be had again:
// ErrTokenInvalid for a name, scope or lifetime that cannot be, ErrTokenLimit for one too many.
func (s *Service) CreateToken(ctx context.Context, userID int64, n NewToken) (secret string, t Token, err error) {
	if n, err = n.checked("A token needs a name of at most %d characters that says what it is for, such as the program " +
		"that uses it."); err != nil {
		return "", Token{}, err
	}
	err = s.inTx(ctx, "make a token", func(tx *sql.Tx) error {
		secret, t, _, err = s.insertToken(ctx, tx, userID, n, s.now())
		return err
	})
	if err != nil {
		return "", Token{}, err
	}
	return secret, t, nil
}

// checked reports with ErrTokenInvalid what cannot be; nameless is the sentence about the name.
func (n NewToken) checked(nameless string) (NewToken, error) {
	name, err := checkName(n.Name)
	switch {
	case err != nil || name == "" || len([]rune(name)) > maxTokenName:
		return n, sentence(ErrTokenInvalid, nameless, maxTokenName)
	case !slices.Contains(TokenScopes(), n.Scope):
		return n, sentence(ErrTokenInvalid, "There is no scope %s. Choose files, read, launch or full.",
			quote(string(n.Scope)))
	case !slices.Contains(TokenLifetimes, n.Days):
		return n, sentence(ErrTokenInvalid, "A token lasts 7, 30, 90 or 365 days. Choose one of them.")
	}
	n.Name = name
	return n, nil
}

// insertToken makes a token that was checked, for an account that may have one.
func (s *Service) insertToken(ctx context.Context, tx *sql.Tx, userID int64, n NewToken,
	now time.Time) (string, Token, User, error) {
	now = time.UnixMilli(now.UnixMilli()).UTC()
	t := Token{UserID: userID, Name: n.Name, Scope: n.Scope, Created: now, Expires: now.AddDate(0, 0, n.Days)}
	u, err := s.oneRow(ctx, tx, "id = ?", userID)
	if err != nil {
		return "", Token{}, User{}, err
	}
	if u.Suspended {
		return "", Token{}, User{}, errSuspended()
	}
	var have int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM api_tokens WHERE user_id = ? AND expires_at > ?", userID,
		now.UnixMilli()).Scan(&have); err != nil {
		return "", Token{}, User{}, err
	}
	if have >= TokensPerUser {
		return "", Token{}, User{}, sentence(ErrTokenLimit, "You have %d tokens, and that is the most. Revoke one that no "+
			"program needs any more.", have)
	}
	secret := newTokenSecret()
	hash := sha256.Sum256([]byte(secret))
	res, err := tx.ExecContext(ctx, "INSERT INTO api_tokens (token_hash, user_id, name, scope, created_at, expires_at) "+
		"VALUES (?, ?, ?, ?, ?, ?)",
		hash[:], userID, t.Name, t.Scope, t.Created.UnixMilli(), t.Expires.UnixMilli())
	if err != nil {
		return "", Token{}, User{}, err
	}
	t.ID, err = res.LastInsertId()
	return secret, t, u.User, err
}

// Tokens lists somebody's tokens, the newest first; one that expired is still there for 30 days.
func (s *Service) Tokens(ctx context.Context, userID int64) ([]Token, error) {
	list, err := store.All(ctx, s.db, scanToken,
		"SELECT "+tokenColumns+" FROM api_tokens WHERE user_id = ? ORDER BY id DESC", userID)
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	return list, nil
}

const tokenColumns = "id, user_id, name, scope, created_at, expires_at, last_used_at, last_remote"

func scanToken(row store.Row) (Token, error) {
	var t Token
	var created, expires int64
	var used sql.NullInt64
	if err := row.Scan(&t.ID, &t.UserID, &t.Name, &t.Scope, &created, &expires, &used, &t.Remote); err != nil {
		return Token{}, err
	}
	t.Created, t.Expires, t.LastUsed = time.UnixMilli(created).UTC(), time.UnixMilli(expires).UTC(), moment(used)
	return t, nil
}

// RevokeToken ends one token of a person and returns it; ErrTokenNotFound where they have none such.
func (s *Service) RevokeToken(ctx context.Context, userID, tokenID int64) (Token, error) {
	t, err := scanToken(s.db.QueryRowContext(ctx,
		"DELETE FROM api_tokens WHERE id = ? AND user_id = ? RETURNING "+tokenColumns, tokenID, userID))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Token{}, sentence(ErrTokenNotFound, "There is no such token any more. The list shows those that there are.")
	case err != nil:
		return Token{}, fmt.Errorf("revoke a token: %w", err)
	}
	return t, nil
}

// RevokeTokens ends all tokens of a person, and what they confirmed and no program has fetched yet. It says how many
// tokens there were.
func (s *Service) RevokeTokens(ctx context.Context, userID int64) (int, error) {
	var n int64
	err := s.inTx(ctx, "revoke tokens", func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "DELETE FROM device_codes WHERE user_id = ?", userID); err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx, "DELETE FROM api_tokens WHERE user_id = ?", userID)
		if err != nil {
			return err
		}
		n, err = res.RowsAffected()
		return err
	})
	return int(n), err
}

// TokenUser finds whose token a program shows, and notes from where. The user may do what token and role
// both allow: with change false, look; with change true, also change what the scope lets it change. Both are
// told by the method of the request. A token that is unknown, mistyped, expired or of a suspended account is
// ErrTokenRefused; after many such from one address a *RateError.
func (s *Service) TokenUser(ctx context.Context, secret, remote string, change bool) (User, Token, error) {
	now := s.now()
	u, t, err := s.tokenUser(ctx, secret, now)
	if errors.Is(err, ErrTokenRefused) {
		// Only those that are refused count and wait: somebody's broken program must not lock out all who
		// share its address, and 214 bits are not to be guessed.
		if refused := s.limits.tokens.try(remoteKey(remote), now); refused != nil {
			err = refused
		}
	}
	if err != nil {
		return User{}, Token{}, err
	}
	if t.LastUsed == nil || now.Sub(*t.LastUsed) >= tokenUsedStep {
		if _, err := s.db.ExecContext(ctx, "UPDATE api_tokens SET last_used_at = ?, last_remote = ? WHERE id = ?",
			now.UnixMilli(), audit.Tidy(remote, 64), t.ID); err != nil {
			return User{}, Token{}, fmt.Errorf("note that a token is in use: %w", err)
		}
	}
	u.limit = t.Scope.limit(change)
	return u, t, nil
}

func (s *Service) tokenUser(ctx context.Context, secret string, now time.Time) (User, Token, error) {
	if !wellFormedToken(secret) {
		return User{}, Token{}, sentence(ErrTokenRefused, "This is no access token of gpulab, or not all of it: it begins "+
			"with gpulab_ and has %d characters. Copy it once more, or make a new one on the page of your account.", tokenLength)
	}
	hash := sha256.Sum256([]byte(secret))
	t, err := scanToken(s.db.QueryRowContext(ctx, "SELECT "+tokenColumns+" FROM api_tokens WHERE token_hash = ?", hash[:]))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return User{}, Token{}, sentence(ErrTokenRefused, "This access token is not valid: it was revoked, or is of "+
			"another lab. Make a new one on the page of your account.")
	case err != nil:
		return User{}, Token{}, fmt.Errorf("look up a token: %w", err)
	case !now.Before(t.Expires):
		return User{}, Token{}, sentence(ErrTokenRefused, "This access token has expired. Make a new one on the page of "+
			"your account.")
	}
	u, err := s.ByID(ctx, t.UserID)
	if errors.Is(err, ErrNotFound) || err == nil && u.Suspended {
		return User{}, Token{}, sentence(ErrTokenRefused, "The account of this access token is suspended or gone. Ask an "+
			"admin of the lab.")
	}
	if err != nil {
		return User{}, Token{}, err
	}
	u.led, err = s.ledBy(ctx, u)
	return u, t, err
}

func (s *Service) sweepTokens(ctx context.Context) error {
	if _, err := s.db.ExecContext(ctx, "DELETE FROM api_tokens WHERE expires_at < ?",
		s.now().Add(-tokensKept).UnixMilli()); err != nil {
		return fmt.Errorf("forget old tokens: %w", err)
	}
	return nil
}

// limit is what a token takes from its owner's rights.
type limit string

const (
	limitOwnWork  limit = "own work" // nothing but launching, and acting on one's own notebooks and files
	limitOwnFiles limit = "own files"
	limitNothing  limit = "nothing"
)

// limit is that of one request.
func (t TokenScope) limit(change bool) limit {
	switch {
	case t == ScopeFiles:
		return limitOwnFiles
	case t == ScopeFull, !change && slices.Contains(TokenScopes(), t):
		return ""
	case t == ScopeLaunch:
		return limitOwnWork
	}
	return limitNothing
}

// Allows reports whether a token of this scope may do the action to somebody at all, where its owner may; change says
// that something is changed by it.
func (t TokenScope) Allows(a Action, change bool) bool { return t.limit(change).scope(a) != Nobody }

// scope is on whom an action may be at most.
func (l limit) scope(a Action) Scope {
	switch {
	case l == "":
		return Everybody
	case l == limitOwnWork && (a == ActionLaunch || a == ActionManageNotebooks || a == ActionFiles), l == limitOwnFiles &&
		a == ActionFiles:
		return Own
	}
	return Nobody
}

// A token is its prefix, by which secret scanners know it, random characters and a checksum of these, by
// which a mistyped or shortened one is told without a look at the database.
const (
	tokenPrefix   = "gpulab_"
	tokenRandom   = 36 // characters: 214 bits
	tokenChecksum = 6  // characters: all of a CRC-32
	tokenLength   = len(tokenPrefix) + tokenRandom + tokenChecksum

	base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

func newTokenSecret() string {
	random := make([]byte, 0, tokenRandom)
	for piece := make([]byte, tokenRandom); len(random) < tokenRandom; {
		_, _ = rand.Read(piece) // never fails
		for _, b := range piece {
			// Only as many values as fill the alphabet evenly.
			if int(b) < 256/len(base62)*len(base62) && len(random) < tokenRandom {
				random = append(random, base62[int(b)%len(base62)])
			}
		}
	}
	return tokenPrefix + string(random) + tokenSum(string(random))
}

func tokenSum(random string) string {
	sum := crc32.ChecksumIEEE([]byte(random))
	var digits [tokenChecksum]byte
	for i := range digits {
		digits[len(digits)-1-i] = base62[sum%uint32(len(base62))]
		sum /= uint32(len(base62))
	}
	return string(digits[:])
}

// wellFormedToken refuses everything that newTokenSecret cannot have made. The checksum is no secret.
func wellFormedToken(secret string) bool {
	body, ok := strings.CutPrefix(secret, tokenPrefix)
	if !ok || len(secret) != tokenLength || strings.Trim(body, base62) != "" {
		return false
	}
	return tokenSum(body[:tokenRandom]) == body[tokenRandom:]
}

// HoldsToken reports whether an access token is somewhere in a text. The checksum keeps other texts out.
func HoldsToken(text string) bool {
	for {
		i := strings.Index(text, tokenPrefix)
		if i < 0 || len(text)-i < tokenLength {
			return false
		}
		if wellFormedToken(text[i : i+tokenLength]) {
			return true
		}
		text = text[i+len(tokenPrefix):]
	}
}
