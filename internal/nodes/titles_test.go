package nodes

import (
	"errors"
	"strings"
	"testing"
)

func TestRename(t *testing.T) {
	r, authority := newRegistry(t)
	ctx := t.Context()
	names := []string{"head", "gpu-two", "gpu-three"}
	rename := func(machine, title, before string, want error) {
		t.Helper()
		if got, err := r.Rename(ctx, machine, title, names); !errors.Is(err, want) || want == nil && got != before {
			t.Errorf("%s as %q: was %q, %v", machine, title, got, err)
		}
	}
	rename("gpu-two", "  Under the   window ", "gpu-two", nil)
	rename("gpu-two", "Am Fenster", "Under the window", nil)
	rename("head", "am fenster", "", ErrTitleTaken)
	rename("head", "GPU-three", "", ErrTitleTaken)
	rename("head", "HEAD", "head", nil) // its own
	rename("gpu-three", strings.Repeat("ä", LongestTitle), "gpu-three", nil)
	for _, bad := range []string{strings.Repeat("ä", LongestTitle+1), "a\x00b", "a\u202eb", "\x1b[31mred"} {
		rename("gpu-three", bad, "", ErrTitle)
	}
	got, err := r.Titles(ctx)
	if err != nil || got["gpu-two"] != "Am Fenster" || got["head"] != "HEAD" || len(got) != 3 {
		t.Errorf("%v, %v", got, err)
	}
	rename("gpu-two", "gpu-two", "Am Fenster", nil)
	rename("gpu-three", "", strings.Repeat("ä", LongestTitle), nil)
	rename("head", "Am Fenster", "HEAD", nil)
	if got, err := r.Titles(ctx); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}

	// A machine that joins does not take a title as its name, and one that is
	// removed leaves none behind.
	rename("head", "gpu-four", "Am Fenster", nil)
	code, _, err := r.Invite(ctx, authority.Fingerprint(), door)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := application(t, code, "gpu-four")
	if _, _, err := r.Join(ctx, a); err == nil || !strings.Contains(err.Error(), "head is shown as gpu-four") {
		t.Errorf("a name that is a title: %v", err)
	}
	a, _ = application(t, code, "gpu-five")
	if _, _, err := r.Join(ctx, a); err != nil {
		t.Fatal(err)
	}
	rename("gpu-five", "By the door", "gpu-five", nil)
	if _, err := r.Remove(ctx, "gpu-five"); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Titles(ctx); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}
