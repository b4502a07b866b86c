package webui

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// duration writes how long something took or lasts: "8 s", "3 min 20 s",
// "2 h 5 min", "4 d 2 h". Two units at most, never a clock.
func duration(d time.Duration) string {
	d = max(d, 0)
	seconds := int(d / time.Second)
	switch {
	case seconds < 60:
		return strconv.Itoa(seconds) + " s"
	case seconds < 3600:
		return pair(seconds/60, "min", seconds%60, "s")
	case seconds < 86400:
		return pair(seconds/3600, "h", seconds%3600/60, "min")
	default:
		return pair(seconds/86400, "d", seconds%86400/3600, "h")
	}
}

// lasting is duration in the steps a list needs: whole minutes once there are
// any, so that rows do not change every second.
func lasting(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return "a few seconds"
	case d < time.Minute:
		return strconv.Itoa(int(d/(10*time.Second))*10) + " s"
	case d < time.Hour:
		return strconv.Itoa(int(d/time.Minute)) + " min"
	}
	return duration(d)
}

// seconds is a whole number of them for a header, never too few.
func seconds(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }

func pair(a int, aUnit string, b int, bUnit string) string {
	if b == 0 {
		return fmt.Sprintf("%d %s", a, aUnit)
	}
	return fmt.Sprintf("%d %s %d %s", a, aUnit, b, bUnit)
}

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
