package discover

import (
	"net/netip"
	"testing"
)

// A name is one machine's: who comes later gets the next, until the first has gone.
func TestClaim(t *testing.T) {
	loopback := netip.MustParseAddr("127.0.0.1")
	first, err := Claim(t.Context(), "gl-test", []string{"lo"}, nil)
	if err != nil || first.Name != "gl-test.local" || first.Taken.IsValid() {
		t.Fatalf("%+v, %v", first, err)
	}
	defer first.Close()
	second, err := Claim(t.Context(), "gl-test", []string{"lo"}, nil)
	if err != nil || second.Name != "gl-test-2.local" || second.Taken != loopback {
		t.Fatalf("beside the first: %+v, %v", second, err)
	}
	second.Close()
	// Another program of this machine, such as Avahi, may answer for its name.
	same, err := Claim(t.Context(), "gl-test", []string{"lo"}, []netip.Addr{loopback})
	if err != nil || same.Name != "gl-test.local" {
		t.Fatalf("beside this machine's own: %+v, %v", same, err)
	}
	same.Close()
	first.Close()
	third, err := Claim(t.Context(), "gl-test", []string{"lo"}, nil)
	if err != nil || third.Name != "gl-test.local" {
		t.Fatalf("after the first has gone: %+v, %v", third, err)
	}
	third.Close()
	if _, err := Claim(t.Context(), "gl-test", []string{"none-such"}, nil); err == nil {
		t.Error("claimed on an interface that is not there")
	}
	if _, err := Claim(t.Context(), "gl-test", nil, nil); err == nil {
		t.Error("claimed on no interface")
	}
}
