package webui

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// seconds is a whole number of them for a header, never too few.
func seconds(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }

// whole writes a number rounded to an integer.
func whole(value float64) string { return strconv.Itoa(int(math.Round(value))) }

// count writes "1 GPU", "2 GPUs", "no GPU".
func count(n int, one, many string) string {
	switch n {
	case 0:
		return "no " + one
	case 1:
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// quantity writes a Kubernetes memory quantity for people: "4Gi" → "4 GiB".
func quantity(text string) string {
	digits := strings.TrimRight(text, "KMGTPEikm")
	unit := text[len(digits):]
	if digits == "" || unit == "" {
		return text
	}
	return digits + " " + unit + "B"
}

// elementID makes an identifier safe as an element's ID and in a CSS selector.
func elementID(prefix, name string) string {
	return prefix + "-" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '_'
	}, name)
}

// orDash shows a dash for what is not known.
func orDash(text string) string {
	if text == "" {
		return "–"
	}
	return text
}

// sentence makes an error's text a sentence: a capital, and a full stop.
func sentence(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return ""
	}
	first, width := utf8.DecodeRuneInString(text)
	text = string(unicode.ToUpper(first)) + text[width:]
	if strings.HasSuffix(text, ".") || strings.HasSuffix(text, "!") || strings.HasSuffix(text, "?") {
		return text
	}
	return text + "."
}

func orElse(text, fallback string) string {
	if text == "" {
		return fallback
	}
	return text
}

// joined is what is not empty, with commas between.
func joined(texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(t string) bool { return t == "" }), ", ")
}

// article is a noun with the article before it.
func article(noun string) string {
	if strings.ContainsAny(noun[:min(1, len(noun))], "aeiou") {
		return "an " + noun
	}
	return "a " + noun
}
