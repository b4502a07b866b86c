package users

import (
	"net/mail"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// maxHandle keeps "user-<handle>" a valid Kubernetes name (63) and the handle a valid Linux user
// name (32), however many hyphens it has.
const maxHandle = 30

var handlePattern = regexp.MustCompile(`^[a-z]([a-z0-9]|-[a-z0-9]){1,29}$`)

// reserved names would be mistaken for a part of the system, on a page, in a path or in a pod.
var reserved = []string{
	"all", "anonymous", "anybody", "api", "bin", "cluster", "daemon", "default", "everybody", "gpulab",
	"home", "hub", "import", "jovyan", "jupyter", "jupyterhub", "k3s", "k8s", "kube", "kubernetes", "login", "logout",
	"me", "new", "nobody", "none", "node", "null", "oidc", "public", "root", "self", "server", "service",
	"settings", "shared", "static", "sudo", "sys", "system", "undefined", "user", "users", "www",
}

var reservedPrefixes = []string{"gpulab-", "kube-", "system-"}

// CheckHandle reports whether handle may be a new sign-in name, apart from being taken. The error is
// an ErrHandleInvalid that names a handle which would do.
func CheckHandle(handle string) error {
	lower := fold(handle)
	switch {
	case handle == "":
		return sentence(ErrHandleInvalid, "Choose a sign-in name, such as the part of your e-mail address before the @.")
	case isReserved(lower):
		return sentence(ErrHandleInvalid, "The name %s is reserved for the system. Choose another one, such as %s.",
			quote(handle), SuggestHandle(handle))
	case handle != lower && WellFormed(lower):
		return sentence(ErrHandleInvalid, "Sign-in names are written in lower case: choose %s.", lower)
	case !WellFormed(handle):
		return sentence(ErrHandleInvalid, "The name %s cannot be a sign-in name. It takes 2 to %d characters from a–z, "+
			"0–9 and single "+
			"hyphens, with a letter first and no hyphen last, such as %s.", quote(handle), maxHandle, SuggestHandle(handle))
	}
	return nil
}

// WellFormed reports whether a text has the form of a handle, which names of groups and folders have too.
func WellFormed(handle string) bool {
	return len(handle) <= maxHandle && handlePattern.MatchString(handle)
}

func isReserved(handle string) bool {
	return slices.Contains(reserved, handle) ||
		slices.ContainsFunc(reservedPrefixes, func(p string) bool { return strings.HasPrefix(handle, p) })
}

// fold is how a sign-in name is compared: without surrounding spaces and case.
func fold(handle string) string { return strings.ToLower(strings.TrimSpace(handle)) }

// latin spells letters that do not come apart into a base letter and a mark.
var latin = strings.NewReplacer("ß", "ss", "æ", "ae", "œ", "oe", "ø", "o", "ł", "l", "đ", "d", "ð", "d", "þ", "th", "ı",
	"i")

// SuggestHandle turns a shown name (or anything else) into a well-formed sign-in name: "Ä b" → "a-b".
// It may be taken.
func SuggestHandle(name string) string {
	var b strings.Builder
	for _, r := range norm.NFKD.String(latin.Replace(strings.ToLower(clip(name, 300)))) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			b.WriteRune(r)
		case unicode.Is(unicode.Mn, r), r == '\'', r == '’': // the dots of ä, the apostrophe of O'Neill
		default:
			b.WriteByte('-')
		}
	}
	words := strings.FieldsFunc(b.String(), func(r rune) bool { return r == '-' })
	handle := strings.Join(words, "-")
	if handle == "" {
		return "user-1"
	}
	if len(handle) < 2 || handle[0] >= '0' && handle[0] <= '9' {
		handle = "user-" + handle
	}
	if handle = cut(handle); isReserved(handle) {
		handle = cut("my-" + handle)
	}
	return handle
}

// cut shortens a handle to the length allowed, where no hyphen may come last.
func cut(handle string) string {
	return strings.TrimRight(handle[:min(len(handle), maxHandle)], "-")
}

// clip cuts a string to at most n characters.
func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n])
}

// checkName tidies a shown name: at most 80 characters, nothing invisible that could fake another one.
func checkName(name string) (string, error) {
	name = norm.NFC.String(strings.TrimSpace(name))
	switch {
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return "", sentence(ErrNameInvalid, "The shown name contains characters that cannot be shown. Type it again.")
	case utf8.RuneCountInString(name) > 80:
		return "", sentence(ErrNameInvalid, "The shown name is longer than 80 characters. Shorten it.")
	}
	return name, nil
}

func checkEmail(email string) (string, error) {
	email = strings.TrimSpace(email)
	if email == "" {
		return "", nil
	}
	if !PlainEmail(email) {
		return "", sentence(ErrEmailInvalid, "The e-mail address %s cannot be right. Write it like ada@example.org, or "+
			"leave it empty.", quote(email))
	}
	return email, nil
}

// PlainEmail reports whether a text is an e-mail address such as ada@example.org. Forms that are allowed and nobody
// has, with quotes, comments or spaces, are none: they are what smuggles further lines or addresses into a mail.
func PlainEmail(email string) bool {
	addr, err := mail.ParseAddress(email)
	odd := strings.ContainsFunc(email, func(r rune) bool {
		return !unicode.IsGraphic(r) || unicode.IsSpace(r) || strings.ContainsRune(`"<>()[]\,;:`, r)
	})
	return err == nil && !odd && addr.Address == email && len(email) <= 254
}
