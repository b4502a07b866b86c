package notebooks

import (
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "gpu": true, "gpu-2": true, "a1-b2-c3": true, strings.Repeat("a", 30): true,
		"": false, "1a": false, "-a": false, "a-": false, "a--b": false, "A": false, "ä": false, "a b": false,
		"a/b": false, "..": false, "a.b": false, strings.Repeat("a", 31): false, "a\n": false, "a%2f": false,
	} {
		if got := CheckName(name) == nil; got != want {
			t.Errorf("%q: got %v, want %v", name, got, want)
		}
	}
}

func TestSlug(t *testing.T) {
	for title, want := range map[string]string{
		"Deep Learning 101":             "deep-learning-101",
		"  --  My  __ Notebook!! ":      "my-notebook",
		"2nd try":                       "nd-try",
		"Übung äöü":                     "ubung-aou",
		"U\u0308bung":                   "ubung",
		"Straße Łódź":                   "strasse-lodz",
		"Übung-訓練-🚀":                    "ubung",
		"日本語":                           "",
		"":                              "",
		"../../etc/passwd":              "etc-passwd",
		strings.Repeat("ab", 40):        strings.Repeat("ab", 15),
		strings.Repeat("a", 29) + " bc": strings.Repeat("a", 29),
	} {
		got := slug(title)
		if got != want || got != "" && !validName(got) {
			t.Errorf("%q: got %q, want %q", title, got, want)
		}
	}
}

func TestFreeName(t *testing.T) {
	taken := map[string]bool{"gpu": true, "gpu-2": true, strings.Repeat("a", 30): true, strings.Repeat("b", 27) + "-cc": true}
	for stem, want := range map[string]string{
		"cpu":                           "cpu",
		"gpu":                           "gpu-3",
		strings.Repeat("a", 30):         strings.Repeat("a", 28) + "-2",
		strings.Repeat("b", 27) + "-cc": strings.Repeat("b", 27) + "-2",
	} {
		got := freeName(stem, func(s string) bool { return taken[s] })
		if got != want || !validName(got) {
			t.Errorf("%q: got %q, want %q", stem, got, want)
		}
	}
}
