package discover

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/mdns"
)

// A head is found over real multicast, and not after it has stopped.
func TestFind(t *testing.T) {
	where := []Place{{"lo", netip.MustParseAddr("127.0.0.1")}}
	stop, err := Announce(Announcement{Lab: "Vision lab", Head: "gpu-1", Version: "1.2", ID: "0a1b2c", Port: 8444}, where)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	got, err := Find(t.Context(), []string{"lo"}, 2*time.Second)
	if err != nil || len(got) != 1 || got[0] != (Found{"Vision lab", "gpu-1", "1.2", netip.MustParseAddrPort("127.0.0.1:8444")}) {
		t.Fatalf("%+v, %v", got, err)
	}
	stop()
	if got, err := Find(t.Context(), []string{"lo"}, time.Second); err != nil || len(got) != 0 {
		t.Errorf("after it has stopped: %+v, %v", got, err)
	}
	if _, err := Announce(Announcement{Lab: "x", ID: "x", Port: 1}, []Place{{"none-such", netip.MustParseAddr("127.0.0.1")}}); err == nil {
		t.Error("announced on an interface that is not there")
	}
}

func TestParse(t *testing.T) {
	good := mdns.ServiceEntry{Name: "gpulab-1._gpulab._tcp.local.", AddrV4: net.IPv4(10, 0, 0, 1), Port: 8444, InfoFields: []string{"lab=A=B", "head=gpu", "x"}}
	if f, ok := parse(&good); !ok || f.Lab != "A=B" || f.Head != "gpu" || f.Door.String() != "10.0.0.1:8444" {
		t.Errorf("%+v", f)
	}
	for name, change := range map[string]func(*mdns.ServiceEntry){
		"no address":      func(e *mdns.ServiceEntry) { e.AddrV4 = nil },
		"no port":         func(e *mdns.ServiceEntry) { e.Port = 0 },
		"too high a port": func(e *mdns.ServiceEntry) { e.Port = 70000 },
		"another service": func(e *mdns.ServiceEntry) { e.Name = "printer._ipp._tcp.local." },
		"no names":        func(e *mdns.ServiceEntry) { e.InfoFields = nil },
	} {
		e := good
		change(&e)
		if f, ok := parse(&e); ok {
			t.Errorf("%s: %+v", name, f)
		}
	}
	long := good
	long.InfoFields = []string{"lab=" + strings.Repeat("ü", 1000)}
	if f, _ := parse(&long); len(f.Lab) > mostText || !strings.HasPrefix(f.Lab, "ü") {
		t.Errorf("%q", f.Lab)
	}
}
