package peers

import "testing"

func TestNeighbourhood(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.7": "192.0.2.7/32", "192.0.2.7:4711": "192.0.2.7/32", "::ffff:192.0.2.7": "192.0.2.7/32", "[::ffff:192.0.2.7]:80": "192.0.2.7/32",
		"2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64", "[2001:db8:1:2::1]:443": "2001:db8:1:2::/64", "fe80::1%eth0": "fe80::/64",
	} {
		if got, ok := Neighbourhood(text); !ok || got.String() != want {
			t.Errorf("Neighbourhood(%q) = %s, %t; want %s", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "somewhere", "192.0.2", "@"} {
		if got, ok := Neighbourhood(text); ok {
			t.Errorf("Neighbourhood(%q) = %s", text, got)
		}
	}
}

func TestGate(t *testing.T) {
	g := NewGate(3, 2)
	var leave []func()
	for _, from := range []string{"192.0.2.1:1", "192.0.2.1:2", "192.0.2.2:1"} {
		out, ok := g.Enter(from)
		if !ok {
			t.Fatalf("%s does not come in", from)
		}
		leave = append(leave, out)
	}
	if _, ok := g.Enter("192.0.2.3:1"); ok {
		t.Error("one more than there is room for in all")
	}
	leave[2]()
	leave[2]() // counts once
	if _, ok := g.Enter("192.0.2.1:3"); ok {
		t.Error("one more than there is room for from one address")
	}
	leave[0]()
	leave[1]()
	if g.total != 0 || len(g.from) != 0 {
		t.Errorf("%d inside, of %v", g.total, g.from)
	}
}
