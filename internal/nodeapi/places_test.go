package nodeapi

import (
	"net/http"
	"net/netip"
	"slices"
	"testing"
)

func TestPlacesAfter(t *testing.T) {
	at := func(texts ...string) (out []netip.AddrPort) {
		for _, text := range texts {
			out = append(out, netip.MustParseAddrPort(text+":8444"))
		}
		return out
	}
	before := Places{at("10.0.0.1", "10.0.0.2"), []string{"old"}, "https://old"}
	got := Places{at("10.0.0.9", "10.0.0.2"), []string{"lab"}, ""}.After(before)
	if !slices.Equal(got.Addresses, at("10.0.0.9", "10.0.0.2", "10.0.0.1")) || !slices.Equal(got.Names, []string{"lab"}) || got.URL != "https://old" {
		t.Errorf("%+v", got)
	}
	if again := (Places{at("10.0.0.9", "10.0.0.2"), []string{"lab"}, ""}).After(got); !again.Equal(got) {
		t.Errorf("said twice: %+v", again)
	}
	for i := range 30 {
		got = Places{Addresses: at(netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}).String())}.After(got)
	}
	if len(got.Addresses) != mostPlaces || got.Addresses[0] != at("10.0.1.29")[0] || !slices.Equal(got.Names, []string{"lab"}) {
		t.Errorf("%+v", got)
	}
}

// A head that has moved is found by an address that the machine was told of, and
// otherwise by its name; whoever else is there is not believed.
func TestHeadMoves(t *testing.T) {
	l := newLab(t)
	other := newLab(t) // another lab, where the head was
	c, _ := l.join(t, "b")
	if _, err := c.Token(t.Context()); err != nil || c.Head() != l.door {
		t.Fatalf("%v at %s", err, c.Head())
	}
	closed := netip.MustParseAddrPort("127.0.0.1:1")
	fresh := func(p Places) *Client {
		config := c.http.Transport.(*http.Transport).TLSClientConfig.Clone()
		return newClient(p, config)
	}
	if _, err := fresh(Places{Addresses: []netip.AddrPort{closed, l.door}}).Token(t.Context()); err != nil {
		t.Errorf("by the second address: %v", err)
	}
	moved := fresh(Places{Addresses: []netip.AddrPort{closed}})
	if _, err := moved.Token(t.Context()); err == nil {
		t.Error("a head that is nowhere answers")
	}
	moved.Know(Places{Addresses: []netip.AddrPort{closed, l.door}})
	if _, err := moved.Token(t.Context()); err != nil || moved.Head() != l.door {
		t.Errorf("after it was told of: %v at %s", err, moved.Head())
	}
	if _, err := fresh(Places{Addresses: []netip.AddrPort{other.door}}).Token(t.Context()); err == nil {
		t.Error("another lab is believed")
	}
	if own, err := Toward(l.door); err != nil || own.String() != "127.0.0.1" {
		t.Errorf("toward itself: %s, %v", own, err)
	}
}
