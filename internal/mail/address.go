package mail

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/gpulab/gpulab/internal/users"
)

// What goes wrong on behalf of whoever asks for a mail.
var (
	ErrOff     = errors.New("no mail server")
	ErrAddress = errors.New("address not possible")
	ErrLimit   = errors.New("too many mails")
)

func refuse(kind error, format string, args ...any) error {
	return &users.Error{Kind: kind, Text: fmt.Sprintf(format, args...)}
}

// CheckAddress refuses what is no plain address such as ada@example.org.
func CheckAddress(address string) error {
	if !users.PlainEmail(address) {
		return refuse(ErrAddress, "%s is no e-mail address. Write it like ada@example.org.", shown(address))
	}
	return nil
}

// shown writes something that somebody typed into a sentence.
func shown(text string) string {
	const most = 60
	if r := []rune(text); len(r) > most {
		text = string(r[:most]) + "…"
	}
	return fmt.Sprintf("%q", text)
}

// oneLine takes everything out of a text that could end a header or fake another text.
func oneLine(text string, most int) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == unicode.ReplacementChar
	}), " ")
	if r := []rune(text); len(r) > most {
		text = string(r[:most-1]) + "…"
	}
	return text
}
