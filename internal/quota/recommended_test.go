package quota

import (
	"slices"
	"testing"
)

func TestRecommended(t *testing.T) {
	const gib = 1 << 30
	usual := []Ask{{CPUs: 2, Memory: 4 * gib}, {GPUs: 1, CPUs: 4, Memory: 8 * gib}}
	for _, c := range []struct {
		name   string
		cores  int
		memory int64
		cards  []Ask
		want   []Rule
	}{
		{"a workstation", 64, 256*gib - 1, usual, []Rule{{Kind: Notebooks, Value: 10}, {Kind: CPUs, Value: 64}, {Kind: Memory, Value: 127 * gib}}},
		{"a small machine", 4, 4 * gib, usual, []Rule{{Kind: Notebooks, Value: 4}, {Kind: CPUs, Value: 8}, {Kind: Memory, Value: 16 * gib}}},
		{"a tiny one", 1, 1 * gib, usual, []Rule{{Kind: Notebooks, Value: 3}, {Kind: CPUs, Value: 8}, {Kind: Memory, Value: 16 * gib}}},
		{"a card without bounds", 64, 256 * gib, append(slices.Clone(usual), Ask{CPUs: 8}), []Rule{{Kind: Notebooks, Value: 10}, {Kind: CPUs, Value: 64}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Recommended(c.cores, c.memory, c.cards)
			if !slices.Equal(got, c.want) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			var limits []Limit
			for _, r := range got {
				limits = append(limits, Limit{Kind: r.Kind, Value: r.Value})
			}
			for _, card := range c.cards {
				if err := Check(limits, card); err != nil {
					t.Errorf("it refuses a card: %v", err)
				}
			}
		})
	}
}
