package units

import (
	"strings"
	"testing"
)

func TestList(t *testing.T) {
	for _, want := range []string{"", "a", "a and b", "a, b and c", "a, b, c and d"} {
		words := strings.FieldsFunc(strings.ReplaceAll(want, " and ", ","), func(c rune) bool { return c == ',' || c == ' ' })
		if got := List(words); got != want {
			t.Errorf("%q is written %q, want %q", words, got, want)
		}
	}
}
