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
	"slices"
	"strconv"
	"strings"
)

// Strangers who guess make browsers wait that nobody has signed in with before. A browser that somebody has signed in
// with keeps a value that proves it. The value gives the browser a counter of its own and no other right.
//
// The value has an entry for each account: its ID, a random name of the browser, and a MAC over both, the sign-in name
// and the round of the account. A new password or a suspension begins a new round, so the entries before it are void.
const (
	// knownMost bounds the accounts of one browser; the one signed in with longest ago makes room.
	knownMost   = 8
	knownRandom = 12 // bytes
	knownMAC    = 16 // bytes
	// knownLength bounds what is looked at.
	knownLength = 1024

	knownKeySetting   = "known.key"
	knownRoundSetting = "known.round." // with the account's ID
)

// KnownBrowser is the value that a browser keeps after a sign-in with that name. before is the value it had.
func (s *Service) KnownBrowser(ctx context.Context, userID int64, name, before string) (string, error) {
	name = signInName(name)
	var first string
	entries := knownEntries(before)
	for _, e := range entries {
		if u, _, err := s.knownEntry(ctx, name, e); err != nil {
			return "", err
		} else if u == userID {
			first = e // it keeps its counter
			break
		}
	}
	if first == "" {
		key, err := s.knownKey(ctx, true)
		if err != nil {
			return "", err
		}
		round, err := s.knownRound(ctx, userID)
		if err != nil {
			return "", err
		}
		random := make([]byte, knownRandom)
		_, _ = rand.Read(random) // never fails
		id := strconv.FormatInt(userID, 10) + "." + base64.RawURLEncoding.EncodeToString(random)
		first = id + "." + base64.RawURLEncoding.EncodeToString(knownSum(key, id, name, round))
	}
	entries = slices.DeleteFunc(entries, func(e string) bool { return e == first })
	entries = append([]string{first}, entries...)
	return strings.Join(entries[:min(len(entries), knownMost)], "~"), nil
}

// knownAs is the name of a browser's counter for a sign-in name; empty where nobody has signed in there with it.
// Somebody of a directory who signs in with a name that is another's handle here has none: it would count tries at that
// account.
func (s *Service) knownAs(ctx context.Context, name, value string) (string, error) {
	for _, e := range knownEntries(value) {
		user, counter, err := s.knownEntry(ctx, name, e)
		if err != nil {
			return "", err
		}
		if counter == "" {
			continue
		}
		row, err := s.oneRow(ctx, s.db, "handle = ?", name)
		switch {
		case errors.Is(err, ErrNotFound), err == nil && row.ID == user:
			return counter, nil
		case err != nil:
			return "", err
		}
	}
	return "", nil
}

func knownEntries(value string) []string {
	if value == "" || len(value) > knownLength {
		return nil
	}
	entries := strings.Split(value, "~")
	return entries[:min(len(entries), knownMost)]
}

// knownEntry checks an entry for a name. Without a match, user and counter are empty.
func (s *Service) knownEntry(ctx context.Context, name, entry string) (user int64, counter string, err error) {
	at := strings.LastIndexByte(entry, '.')
	if at < 0 {
		return 0, "", nil
	}
	id := entry[:at]
	number, random, _ := strings.Cut(id, ".")
	user, err = strconv.ParseInt(number, 10, 64)
	if err != nil || strconv.FormatInt(user, 10) != number ||
		len(random) != base64.RawURLEncoding.EncodedLen(knownRandom) {
		return 0, "", nil //nolint:nilerr // it is not ours
	}
	sum, err := base64.RawURLEncoding.DecodeString(entry[at+1:])
	if err != nil {
		return 0, "", nil //nolint:nilerr // it is not ours
	}
	key, err := s.knownKey(ctx, false)
	if err != nil || key == nil {
		return 0, "", err
	}
	round, err := s.knownRound(ctx, user)
	if err != nil {
		return 0, "", err
	}
	if subtle.ConstantTimeCompare(sum, knownSum(key, id, name, round)) != 1 {
		return 0, "", nil
	}
	return user, id, nil
}

func knownSum(key []byte, id, name string, round int64) []byte {
	mac := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(mac, "gpulab known browser 1\x00%s\x00%d\x00%s", id, round, name)
	return mac.Sum(nil)[:knownMAC]
}

// knownKey is the lab's key for the values; nil where there is none yet and none is to be made.
func (s *Service) knownKey(ctx context.Context, create bool) ([]byte, error) {
	if create {
		key := make([]byte, sha256.Size)
		_, _ = rand.Read(key) // never fails
		_, err := s.db.ExecContext(ctx, "INSERT INTO settings (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING",
			knownKeySetting, base64.RawURLEncoding.EncodeToString(key))
		if err != nil {
			return nil, fmt.Errorf("make the key for known browsers: %w", err)
		}
	}
	var text string
	err := s.db.QueryRowContext(ctx, "SELECT value FROM settings WHERE key = ?", knownKeySetting).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	var key []byte
	if err == nil {
		key, err = base64.RawURLEncoding.DecodeString(text)
	}
	if err != nil {
		return nil, fmt.Errorf("read the key for known browsers: %w", err)
	}
	return key, nil
}

func (s *Service) knownRound(ctx context.Context, userID int64) (round int64, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT coalesce((SELECT CAST(value AS INTEGER) FROM settings WHERE key = ?), 0)",
		knownRoundSetting+strconv.FormatInt(userID, 10)).Scan(&round)
	if err != nil {
		return 0, fmt.Errorf("read which browsers are known: %w", err)
	}
	return round, nil
}

// forgetBrowsers makes every browser unknown to an account.
func forgetBrowsers(ctx context.Context, tx *sql.Tx, userID int64) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO settings (key, value) VALUES (?, '1')
		ON CONFLICT (key) DO UPDATE SET value = CAST(value AS INTEGER) + 1`, knownRoundSetting+strconv.FormatInt(userID, 10))
	if err != nil {
		return fmt.Errorf("forget known browsers: %w", err)
	}
	return nil
}
