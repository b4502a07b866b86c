package notebooks

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// maxNameLength is the longest server name, so that handle and name together
// stay below the 63 characters of a pod's name.
const maxNameLength = 30

// ErrNameInvalid says what a server name looks like.
var ErrNameInvalid = errors.New("a notebook's short name has 1 to 30 of a-z, 0-9 and single hyphens and starts with " +
	"a letter")

// CheckName reports whether s can name a server in an address and a pod.
func CheckName(s string) error {
	if !validName(s) {
		return fmt.Errorf("%q cannot be used: %w", s, ErrNameInvalid)
	}
	return nil
}

func validName(s string) bool {
	if len(s) == 0 || len(s) > maxNameLength || s[0] < 'a' || s[0] > 'z' || s[len(s)-1] == '-' {
		return false
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case c == '-' && s[i-1] != '-':
		default:
			return false
		}
	}
	return true
}

// plainLetters replaces letters that Unicode does not decompose.
var plainLetters = strings.NewReplacer("ß", "ss", "æ", "ae", "œ", "oe", "ø", "o", "đ", "d", "ð", "d", "þ", "th", "ł",
	"l", "ı", "i")

// slug turns a title into a server name, or "" when nothing in it can be used. Letters lose their accents.
func slug(title string) string {
	var b strings.Builder
	for _, r := range norm.NFKD.String(plainLetters.Replace(strings.ToLower(title))) {
		switch {
		case unicode.Is(unicode.Mn, r):
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9' && b.Len() > 0:
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
		if b.Len() == maxNameLength {
			break
		}
	}
	return strings.Trim(b.String(), "-")
}

// freeName is stem, or stem-2, stem-3, …: the first that is not taken. The same
// title therefore leads to the same address again once the earlier notebook
// has ended.
func freeName(stem string, taken func(string) bool) string {
	if !taken(stem) {
		return stem
	}
	for n := 2; ; n++ {
		suffix := fmt.Sprintf("-%d", n)
		cut := stem
		if len(cut)+len(suffix) > maxNameLength {
			cut = strings.TrimRight(cut[:maxNameLength-len(suffix)], "-")
		}
		if name := cut + suffix; !taken(name) {
			return name
		}
	}
}
