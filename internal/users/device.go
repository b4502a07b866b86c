package users

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
)

// What goes wrong with a program that asks for a token.
var (
	ErrDeviceUnknown = errors.New("unknown device code")
	ErrDevicePending = errors.New("device code not confirmed yet")
	ErrDeviceDenied  = errors.New("device code denied")
)

const (
	// DeviceTTL is how long somebody has to confirm in the browser what a program asks for.
	DeviceTTL = 10 * time.Minute
	// DeviceInterval is how long a program waits between two questions.
	DeviceInterval = 2 * time.Second

	// maxDevices bounds what strangers can write into the database.
	maxDevices = 500
	// pollSlack forgives clocks and networks that are not even.
	pollSlack = 500 * time.Millisecond

	// userCodeLetters has no vowel, so that no word comes out, and nothing that looks like something else: the
	// alphabet that RFC 8628 proposes. Eight of them are 34 bits, of which each account may try few.
	userCodeLetters = "BCDFGHJKLMNPQRSTVWXZ"
	userCodeLength  = 8
)

// DeviceAsk is what a program asks for: a token of its own, which somebody confirms in the browser.
type DeviceAsk struct {
	Client string // as the program calls its machine; shown to the person as what it is, a claim
	Scope  TokenScope
	Days   int    // one of TokenLifetimes
	Remote string // from where it asks
}

// DeviceCode is the answer: the program keeps Code and shows UserCode.
type DeviceCode struct {
	Code, UserCode string
	Expires        time.Time
}

// DeviceRequest is what somebody sees before they confirm.
type DeviceRequest struct {
	UserCode string
	Client   string
	Remote   string
	Scope    TokenScope
	Days     int
	Asked    time.Time
	Expires  time.Time
}

// AskDevice notes that a program asks for a token. Nobody is signed in yet: ErrTokenInvalid for what cannot be had,
// *RateError for too many from one address, or from all.
func (s *Service) AskDevice(ctx context.Context, ask DeviceAsk) (DeviceCode, error) {
	wanted, err := NewToken{Name: ask.Client, Scope: ask.Scope,
		Days: ask.Days}.checked("The program has to say in at most %d characters on which machine it runs.")
	if err != nil {
		return DeviceCode{}, err
	}
	now := s.now()
	if err := s.limits.devices.try(remoteKey(ask.Remote), now); err != nil {
		return DeviceCode{}, err
	}
	code, hash := newToken()
	made := DeviceCode{Code: code, UserCode: newUserCode(), Expires: time.UnixMilli(now.Add(DeviceTTL).UnixMilli()).UTC()}
	err = s.inTx(ctx, "ask for a token", func(tx *sql.Tx) error {
		var waiting int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM device_codes WHERE expires_at > ?",
			now.UnixMilli()).Scan(&waiting); err != nil {
			return err
		}
		if waiting >= maxDevices {
			return errTooManyDevices
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO device_codes (code_hash, user_code, client, remote, scope, days,
			created_at, expires_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
			hash[:], made.UserCode, wanted.Name, audit.Tidy(ask.Remote, 64), wanted.Scope, wanted.Days, now.UnixMilli(),
			made.Expires.UnixMilli())
		return err
	})
	if errors.Is(err, errTooManyDevices) {
		return DeviceCode{}, &RateError{RetryAfter: time.Minute, why: "So many programs ask to sign in at the moment that " +
			"no more are taken."}
	}
	return made, err
}

var errTooManyDevices = errors.New("too many programs ask for a token")

// DeviceRequest is what a program asks for under the code that somebody typed or followed a link with: ErrDeviceUnknown
// for none that waits, *RateError after many wrong ones.
func (s *Service) DeviceRequest(ctx context.Context, by User, userCode string) (DeviceRequest, error) {
	now := s.now()
	if err := s.limits.userCodes.try(by.Handle, now); err != nil {
		return DeviceRequest{}, err
	}
	request, err := s.waitingDevice(ctx, s.db, userCode, now)
	if !errors.Is(err, ErrDeviceUnknown) {
		s.limits.userCodes.giveBack(by.Handle)
	}
	return request, err
}

func (s *Service) waitingDevice(ctx context.Context, q querier, userCode string, now time.Time) (DeviceRequest, error) {
	var d DeviceRequest
	var asked, expires int64
	err := q.QueryRowContext(ctx, `SELECT user_code, client, remote, scope, days, created_at, expires_at FROM device_codes
		WHERE user_code = ? AND expires_at > ? AND user_id IS NULL AND denied = 0`, plainUserCode(userCode), now.UnixMilli()).
		Scan(&d.UserCode, &d.Client, &d.Remote, &d.Scope, &d.Days, &asked, &expires)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return DeviceRequest{}, sentence(ErrDeviceUnknown, "No program waits with this code: it was mistyped, used, or is "+
			"older than %d minutes. Run “gpulab login” once more for a new one.", int(DeviceTTL.Minutes()))
	case err != nil:
		return DeviceRequest{}, fmt.Errorf("look up a device code: %w", err)
	}
	d.Asked, d.Expires = time.UnixMilli(asked).UTC(), time.UnixMilli(expires).UTC()
	return d, nil
}

// DecideDevice confirms in by's name what a program asks for, or denies it. remote is where by's browser is. A code is
// decided about once: ErrDeviceUnknown afterwards.
func (s *Service) DecideDevice(ctx context.Context, by User, userCode string, allow bool,
	remote string) (DeviceRequest, error) {
	d, err := s.DeviceRequest(ctx, by, userCode)
	if err != nil {
		return d, err
	}
	err = s.inTx(ctx, "decide about a device code", func(tx *sql.Tx) error {
		d, err = s.waitingDevice(ctx, tx, userCode, s.now())
		if err != nil {
			return err
		}
		asks := fmt.Sprintf("%s from %s, scope %s, %d days", quote(d.Client), d.Remote, d.Scope, d.Days)
		if !allow {
			if _, err := tx.ExecContext(ctx, "UPDATE device_codes SET denied = 1 WHERE user_code = ?", d.UserCode); err != nil {
				return err
			}
			return s.log.RecordIn(ctx, tx, audit.Entry{
				Actor: by.Handle, Action: "device.deny", Target: by.Handle, Detail: asks, Remote: remote,
			})
		}
		if _, err := tx.ExecContext(ctx, "UPDATE device_codes SET user_id = ? WHERE user_code = ?", by.ID,
			d.UserCode); err != nil {
			return err
		}
		return s.log.RecordIn(ctx, tx, audit.Entry{
			Actor: by.Handle, Action: "device.confirm", Target: by.Handle, Detail: asks, Remote: remote,
		})
	})
	return d, err
}

// DeviceToken hands the token out to the program that asked for it, once: ErrDevicePending while nobody has decided,
// ErrDeviceDenied, ErrDeviceUnknown for a code that is wrong, used or too old, *RateError for one who asks too often,
// and the errors of CreateToken.
func (s *Service) DeviceToken(ctx context.Context, code, remote string) (secret string, t Token, u User, err error) {
	_, hash, ok := parseToken(code)
	if !ok {
		return "", Token{}, User{}, errDeviceUnknown()
	}
	now := s.now()
	var from string
	var verdict error // on a program that gets no token, once what was learned about it is written down
	err = s.inTx(ctx, "hand a token out", func(tx *sql.Tx) error {
		var d deviceRow
		err := tx.QueryRowContext(ctx, "SELECT id, client, remote, scope, days, expires_at, polled_at, user_id, denied "+
			"FROM device_codes WHERE code_hash = ?", hash[:]).
			Scan(&d.id, &d.client, &d.remote, &d.scope, &d.days, &d.expires, &d.polled, &d.user, &d.denied)
		switch {
		case errors.Is(err, sql.ErrNoRows) || err == nil && now.UnixMilli() >= d.expires:
			return errDeviceUnknown()
		case err != nil:
			return err
		}
		from = d.remote
		switch {
		case d.denied:
			verdict = sentence(ErrDeviceDenied, "It was denied in the browser. If that was a mistake, run “gpulab login” "+
				"once more.")
			_, err = tx.ExecContext(ctx, "DELETE FROM device_codes WHERE id = ?", d.id)
		case d.user.Valid:
			secret, t, u, err = s.redeemDevice(ctx, tx, d, remote, now)
		case d.polled.Valid && now.Sub(time.UnixMilli(d.polled.Int64)) < DeviceInterval-pollSlack:
			verdict = &RateError{RetryAfter: DeviceInterval, why: "This program asks too often."}
		default:
			verdict = sentence(ErrDevicePending, "Nobody has confirmed it in the browser yet.")
			_, err = tx.ExecContext(ctx, "UPDATE device_codes SET polled_at = ? WHERE id = ?", now.UnixMilli(), d.id)
		}
		return err
	})
	if err == nil {
		err = verdict
	}
	if err != nil {
		return "", Token{}, User{}, err
	}
	s.limits.devices.giveBack(remoteKey(from)) // a class signs in from one address
	return secret, t, u, nil
}

type deviceRow struct {
	id             int64
	client, remote string
	scope          TokenScope
	days           int
	expires        int64
	polled, user   sql.NullInt64
	denied         bool
}

func errDeviceUnknown() error {
	return sentence(ErrDeviceUnknown, "This sign-in is over: it was used, or nobody confirmed it in time. Run “gpulab "+
		"login” once more.")
}

// redeemDevice makes the token that somebody has confirmed, and uses the code up.
func (s *Service) redeemDevice(ctx context.Context, tx *sql.Tx, d deviceRow, remote string,
	now time.Time) (string, Token, User, error) {
	secret, t, u, err := s.insertToken(ctx, tx, d.user.Int64, NewToken{Name: d.client, Scope: d.scope, Days: d.days}, now)
	if err != nil {
		return "", Token{}, User{}, err
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM device_codes WHERE id = ?", d.id); err != nil {
		return "", Token{}, User{}, err
	}
	return secret, t, u, s.log.RecordIn(ctx, tx,
		audit.Entry{Actor: u.Handle, Action: "token.create", Target: u.Handle, Remote: remote,
			Detail: fmt.Sprintf("token %d for %s, scope %s, until %s", t.ID, quote(d.client), t.Scope,
				t.Expires.Format(time.DateOnly))})
}

func (s *Service) sweepDevices(ctx context.Context) error {
	if _, err := s.db.ExecContext(ctx, "DELETE FROM device_codes WHERE expires_at < ?", s.now().UnixMilli()); err != nil {
		return fmt.Errorf("forget old device codes: %w", err)
	}
	return nil
}

// newUserCode is letters in two groups, which people compare and type.
func newUserCode() string {
	letters := make([]byte, 0, userCodeLength+1)
	for piece := make([]byte, 1); len(letters) < userCodeLength+1; {
		if len(letters) == userCodeLength/2 {
			letters = append(letters, '-')
		}
		_, _ = rand.Read(piece) // never fails
		// Only as many values as fill the alphabet evenly.
		if b := int(piece[0]); b < 256/len(userCodeLetters)*len(userCodeLetters) {
			letters = append(letters, userCodeLetters[b%len(userCodeLetters)])
		}
	}
	return string(letters)
}

// plainUserCode takes a code as people type it: small letters, without the hyphen, or with blanks.
func plainUserCode(text string) string {
	letters := strings.Map(func(r rune) rune {
		if strings.ContainsRune(userCodeLetters, r) {
			return r
		}
		return -1
	}, strings.ToUpper(clip(text, 40)))
	if len(letters) != userCodeLength {
		return ""
	}
	return letters[:userCodeLength/2] + "-" + letters[userCodeLength/2:]
}
