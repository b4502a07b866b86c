package store

import "testing"

func TestSettings(t *testing.T) {
	s, err := Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for _, want := range []string{"", "[1]", "two\nlines 'quoted'", ""} {
		if err := s.SetSetting(t.Context(), "a.b", want); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Setting(t.Context(), "a.b"); err != nil || got != want {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
	if got, err := s.Setting(t.Context(), "never.set"); err != nil || got != "" {
		t.Errorf("got %q, %v", got, err)
	}
}
