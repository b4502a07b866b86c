package users

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"fmt"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/alexedwards/argon2id"
	"golang.org/x/crypto/argon2"
	"golang.org/x/text/unicode/norm"
)

// passwordParams: 19 MiB, 2 passes, 1 lane, one of OWASP's recommended settings (Password Storage Cheat Sheet, 2025).
// It takes about 40 ms on one core: two cores look at 20 passwords in a second, as many as a class sends that begins
// together, and still serve pages.
var passwordParams = argon2id.Params{Memory: 19 << 10, Iterations: 2, Parallelism: 1, SaltLength: 16, KeyLength: 32}

const (
	// hashesAtOnce bounds what sign-ins can take from the machine: 2 cores and 38 MiB.
	hashesAtOnce = 2
	// hashesWaiting is how many more may queue; the others are asked to come back.
	hashesWaiting = 256
	// busyWait is when they should.
	busyWait = 10 * time.Second

	minPassword = 10  // characters
	maxPassword = 256 // characters
)

//go:embed common.txt
var commonList string

// commonPasswords holds well-known passwords and words, lower case, one a line.
var commonPasswords = func() map[string]bool {
	m := map[string]bool{}
	for _, word := range strings.Fields(commonList) {
		m[word] = true
	}
	return m
}()

// CheckPassword reports whether password may be a new password of the person with that handle. The
// error is an ErrPasswordWeak with the rule that it breaks.
func CheckPassword(password, handle string) error {
	plain := strings.ToLower(normalPassword(password))
	length := utf8.RuneCountInString(plain)
	switch {
	case !utf8.ValidString(password):
		return sentence(ErrPasswordWeak, "The password contains broken characters. Type it again.")
	case length < minPassword:
		return sentence(ErrPasswordWeak, "The password has %s; it needs at least %d. Three or four words that nobody else "+
			"puts together work well.",
			plural(length, "character"), minPassword)
	case length > maxPassword:
		return sentence(ErrPasswordWeak, "The password is longer than %d characters. Shorten it.", maxPassword)
	case handle != "" && (plain == fold(handle) || stem(plain) == fold(handle)):
		return sentence(ErrPasswordWeak, "The password is the sign-in name. Choose one that others cannot guess.")
	case distinct(plain) < 5:
		return sentence(ErrPasswordWeak, "The password repeats a few characters. Use more different ones.")
	case commonPasswords[plain] || commonPasswords[stem(plain)]:
		return sentence(ErrPasswordWeak, "This password is one of the first that attackers try. Choose one of your own.")
	}
	return nil
}

// stem drops the figures and signs that people put around a word when they are asked to.
func stem(s string) string {
	t := strings.TrimFunc(s, func(r rune) bool { return !unicode.IsLetter(r) })
	if t == "" {
		return s
	}
	return t
}

func distinct(s string) int {
	seen := map[rune]bool{}
	for _, r := range s {
		seen[r] = true
	}
	return len(seen)
}

// normalPassword makes the same password typed on different keyboards the same bytes.
func normalPassword(password string) string { return norm.NFC.String(password) }

// hasher makes and checks argon2id hashes, a few at a time.
type hasher struct {
	params  argon2id.Params
	slots   chan struct{}
	waiting atomic.Int32
	// tidy returns the memory of hashing to the system a moment after the last one: in a quiet lab the
	// garbage collector's own turn is minutes away.
	tidy *time.Timer
	// nobody is a well-formed hash that no password matches: checking it takes as long as a real one.
	nobody string
}

func newHasher(params argon2id.Params) *hasher {
	random := make([]byte, params.SaltLength+params.KeyLength)
	_, _ = rand.Read(random) // never fails
	b64 := base64.RawStdEncoding.EncodeToString
	tidy := time.AfterFunc(time.Hour, debug.FreeOSMemory)
	tidy.Stop()
	return &hasher{
		params: params,
		tidy:   tidy,
		slots:  make(chan struct{}, hashesAtOnce),
		nobody: fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, params.Memory, params.Iterations,
			params.Parallelism, b64(random[:params.SaltLength]), b64(random[params.SaltLength:])),
	}
}

func (h *hasher) hash(ctx context.Context, password string) (string, error) {
	release, err := h.acquire(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	encoded, err := argon2id.CreateHash(normalPassword(password), &h.params)
	if err != nil {
		return "", fmt.Errorf("hash a password: %w", err)
	}
	return encoded, nil
}

// verify compares in constant time; outdated says that the hash was made with other parameters.
func (h *hasher) verify(ctx context.Context, password, encoded string) (match, outdated bool, err error) {
	release, err := h.acquire(ctx)
	if err != nil {
		return false, false, err
	}
	defer release()
	match, params, err := argon2id.CheckHash(normalPassword(password), encoded)
	if err != nil {
		return false, false, fmt.Errorf("check a password: %w", err)
	}
	return match, *params != h.params, nil
}

// acquire waits for a slot; with too many waiting already it returns a RateError at once.
func (h *hasher) acquire(ctx context.Context) (release func(), err error) {
	if h.waiting.Add(1) > hashesAtOnce+hashesWaiting {
		h.waiting.Add(-1)
		return nil, &RateError{RetryAfter: busyWait, busy: true}
	}
	select {
	case h.slots <- struct{}{}:
		return func() {
			<-h.slots
			if h.waiting.Add(-1) == 0 {
				h.tidy.Reset(time.Second)
			}
		}, nil
	case <-ctx.Done():
		h.waiting.Add(-1)
		return nil, ctx.Err()
	}
}
