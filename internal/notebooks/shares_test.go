package notebooks

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// Who goes first for their group.
func TestGoFirst(t *testing.T) {
	vision := share{"vision", 2, map[int64]bool{1: true, 2: true}}
	robots := share{"robots", 1, map[int64]bool{2: true, 3: true}}
	has := func(launch, user int64, gpus int) sharer {
		return sharer{launch: launch, user: user, gpus: gpus, held: true}
	}
	waits := func(launch, user int64, gpus int, priority int32) sharer {
		return sharer{launch: launch, user: user, gpus: gpus, priority: priority}
	}
	for name, c := range map[string]struct {
		shares   []share
		launches []sharer
		want     string // LAUNCH:GROUP
	}{
		"no shares":                     {nil, []sharer{waits(11, 1, 1, 0)}, ""},
		"of no group":                   {[]share{vision}, []sharer{waits(11, 9, 1, 0)}, ""},
		"nothing is held":               {[]share{vision}, []sharer{waits(11, 1, 1, 0)}, "11:vision"},
		"no more than the share":        {[]share{vision}, []sharer{waits(11, 1, 1, -3), waits(12, 1, 1, -2), waits(13, 2, 1, -1)}, "12:vision 13:vision"},
		"whoever came first of equals":  {[]share{{"vision", 1, vision.members}}, []sharer{waits(11, 1, 1, 0), waits(12, 1, 1, 0)}, "11:vision"},
		"what is held counts":           {[]share{vision}, []sharer{has(1, 2, 1), waits(11, 1, 1, 0), waits(12, 1, 1, -1)}, "11:vision"},
		"the share is used up":          {[]share{vision}, []sharer{has(1, 2, 2), waits(11, 1, 1, 0)}, ""},
		"more is used":                  {[]share{vision}, []sharer{has(1, 2, 4), waits(11, 1, 1, 0)}, ""},
		"others' do not count":          {[]share{vision}, []sharer{has(1, 9, 2), waits(11, 1, 2, 0)}, "11:vision"},
		"more than is left":             {[]share{vision}, []sharer{has(1, 2, 1), waits(11, 1, 2, 5), waits(12, 1, 1, 0)}, "12:vision"},
		"in two groups":                 {[]share{robots, vision}, []sharer{waits(11, 2, 1, 2), waits(12, 2, 1, 1), waits(13, 3, 1, 0)}, "11:robots 12:vision"},
		"what is held counts for one":   {[]share{robots, vision}, []sharer{has(1, 2, 1), waits(11, 1, 2, 0), waits(12, 3, 1, 0)}, "11:vision"},
		"a large one does not fit both": {[]share{robots, vision}, []sharer{waits(11, 2, 2, 0), waits(12, 3, 1, 0)}, "11:vision 12:robots"},
	} {
		var got []string
		first := goFirst(c.shares, c.launches)
		for _, launch := range slices.Sorted(maps.Keys(first)) {
			got = append(got, fmt.Sprintf("%d:%s", launch, first[launch]))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %q", name, got, c.want)
		}
	}
}

// A group's share in the line: whoever is in it goes first, and reads why, for as
// long as they are in it.
func TestShares(t *testing.T) {
	h := newHouse(t, 1)
	h.shares = map[string]int{"vision": 1, "nobodys": 3}
	h.reopen(nil)
	if _, err := h.people.CreateGroup(t.Context(), "vision", ""); err != nil {
		t.Fatal(err)
	}
	if err := h.people.SetMember(t.Context(), "vision", h.bob.ID, false); err != nil {
		t.Fatal(err)
	}
	h.running(h.alice, "gpu", "First")
	hers := h.until(h.launch(h.alice, "gpu", "Hers").ID, "next", func(l Launch) bool { return l.Position == 1 })
	his := h.launch(h.bob, "gpu", "His")
	const why = "It goes before others: group vision has a share of one GPU, and holds none."
	h.until(his.ID, "first", func(l Launch) bool { return l.Position == 1 && strings.HasSuffix(l.Reason, why) })
	if l := h.until(hers.ID, "behind", func(l Launch) bool { return l.Position == 2 }); strings.Contains(l.Reason, "group") {
		t.Errorf("of alice's launch it is said %q", l.Reason)
	}
	// Alice has used more, so bob is still the next; but not for his group.
	if err := h.people.RemoveMember(t.Context(), "vision", h.bob.ID); err != nil {
		t.Fatal(err)
	}
	h.until(his.ID, "no share", func(l Launch) bool { return !strings.Contains(l.Reason, why) })
}
