package version

import "testing"

func TestWorks(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"0.4.2", "0.4.2", true},
		{"0.4.2", "0.4.9-rc1", true},
		{"0.4.2", "0.5.0", true},
		{"0.4.2", "0.3.0~git1", true},
		{"0.4.2", "0.6.0", false},
		{"0.9.0", "0.10.0", true},
		{"0.9.0", "1.0.0", false},
		{"1.9.0", "0.9.0", false},
		{"mine", "mine", true},
		{"mine", "0.4.2", false},
		{"", "0.4.2", false},
		{"0.4", "0.4.2", false},
		{"0.-4.2", "0.4.2", false},
	} {
		if Works(c.a, c.b) != c.want || Works(c.b, c.a) != c.want {
			t.Errorf("%q and %q work together: %v, want %v", c.a, c.b, !c.want, c.want)
		}
	}
}
