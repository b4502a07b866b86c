package users

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
	"unicode/utf8"
)

// What an error is about. Test with errors.Is; show people the text of the *Error around it.
var (
	ErrHandleInvalid  = errors.New("sign-in name not allowed")
	ErrHandleTaken    = errors.New("sign-in name taken")
	ErrNameInvalid    = errors.New("shown name not allowed")
	ErrEmailInvalid   = errors.New("e-mail address not allowed")
	ErrRoleInvalid    = errors.New("unknown role")
	ErrPasswordWeak   = errors.New("password too weak")
	ErrBadCredentials = errors.New("wrong name or password")
	ErrTooManyTries   = errors.New("too many tries")
	ErrSuspended      = errors.New("account suspended")
	ErrNotFound       = errors.New("no such user")
	ErrSignedOut      = errors.New("signed out")
	ErrNotRemoved     = errors.New("account not removed")
	ErrPurged         = errors.New("account deleted for good")
	ErrLastAdmin      = errors.New("last admin")
	ErrAdminExists    = errors.New("an admin exists already")
	ErrLinkUnknown    = errors.New("unknown link")
	ErrLinkUsed       = errors.New("link used already")
	ErrLinkExpired    = errors.New("link expired")
	ErrUIDsExhausted  = errors.New("no UID left")
	ErrTokenInvalid   = errors.New("token not allowed")
	ErrTokenLimit     = errors.New("too many tokens")
	ErrTokenNotFound  = errors.New("no such token")
	ErrTokenRefused   = errors.New("token refused")
	ErrSSHKeyInvalid  = errors.New("SSH key not allowed")
	ErrSSHKeyTaken    = errors.New("SSH key there already")
	ErrSSHKeyLimit    = errors.New("too many SSH keys")
	ErrSSHKeyNotFound = errors.New("no such SSH key")
	ErrGroupInvalid   = errors.New("group name not allowed")
	ErrGroupTaken     = errors.New("group name taken")
	ErrGroupNotFound  = errors.New("no such group")
)

// Error is one or two sentences for a person: what is wrong and the next step. It wraps the sentinel
// that says what it is about.
type Error struct {
	Kind error
	Text string
}

func (e *Error) Error() string { return e.Text }
func (e *Error) Unwrap() error { return e.Kind }

func sentence(kind error, format string, args ...any) error {
	return &Error{Kind: kind, Text: fmt.Sprintf(format, args...)}
}

// Message returns the sentence for people inside err; ok is false for errors that are ours.
func Message(err error) (text string, ok bool) {
	var e *Error
	if errors.As(err, &e) {
		return e.Text, true
	}
	var r *RateError
	if errors.As(err, &r) {
		return r.Error(), true
	}
	var refused *Refusal
	if errors.As(err, &refused) {
		return refused.Text, true
	}
	return "", false
}

// RateError refuses a sign-in, right password or not, until RetryAfter has passed. It is an
// ErrTooManyTries.
type RateError struct {
	RetryAfter time.Duration
	busy       bool   // too many sign-ins at once, nobody's fault
	known      bool   // in a known browser
	why        string // the sentence, where it is not about passwords
}

func (e *RateError) Error() string {
	if e.busy {
		return "Too many people are signing in at this moment. Try again in " + inWords(e.RetryAfter) + "."
	}
	if e.why != "" {
		return e.why + " Try again in " + inWords(e.RetryAfter) + "."
	}
	if e.known {
		return "Too many wrong passwords. Try again in " + inWords(e.RetryAfter) +
			", or ask an admin of the lab for a new password link."
	}
	return "Too many wrong passwords were tried with this name or from your network. Try again in " +
		inWords(e.RetryAfter) +
		". A browser that you signed in with before does not have to wait. If you cannot wait, ask an admin of the " +
		"lab for a " +
		"one-time link; who has root on the machine makes one with `gpulab user passwd NAME`."
}

// Is makes errors.Is(err, ErrTooManyTries) true.
func (e *RateError) Is(target error) bool { return target == ErrTooManyTries }

// inWords rounds up, so that nobody comes back too early.
func inWords(d time.Duration) string {
	if d <= 90*time.Second {
		return plural(int(math.Ceil(d.Seconds())), "second")
	}
	return plural(int(math.Ceil(d.Minutes())), "minute")
}

func plural(n int, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return strconv.Itoa(n) + " " + unit + "s"
}

// quote shows what somebody typed inside a sentence: escaped, and short however long it was.
func quote(s string) string {
	const most = 40
	if utf8.RuneCountInString(s) > most {
		s = string([]rune(s)[:most]) + "…"
	}
	return strconv.Quote(s)
}
