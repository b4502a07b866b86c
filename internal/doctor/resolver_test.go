package doctor

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// answerFunc says what a name server answers for a name, without its last dot: a code
// and an address, where it has one. With ok false it says nothing.
type answerFunc func(name string) (code dnsmessage.RCode, address string, ok bool)

// answerWell is a name server that knows what is outside, and nothing in search domains.
func answerWell(name string) (dnsmessage.RCode, string, bool) {
	if slices.Contains([]string{usualOutside, "index.example.org"}, name) {
		return dnsmessage.RCodeSuccess, "203.0.113.7", true
	}
	return dnsmessage.RCodeNameError, "", true
}

// nameServer listens on this machine until the test ends, and returns where.
func nameServer(t *testing.T, answer answerFunc) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buffer[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			code, address, ok := answer(strings.TrimSuffix(q.Name.String(), "."))
			if !ok {
				continue
			}
			m.Response, m.RCode = true, code
			if address != "" {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
					Body:   &dnsmessage.AResource{A: netip.MustParseAddr(address).As4()},
				}}
			}
			// Somebody else's answer, which does not count.
			stray := m
			stray.ID++
			for _, message := range []dnsmessage.Message{stray, m} {
				if data, err := message.Pack(); err == nil {
					_, _ = conn.WriteTo(data, from)
				}
			}
		}
	}()
	return conn.LocalAddr().String()
}

// dialer leads whoever speaks with a name server to this one.
func dialer(server string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if network == "udp" && strings.HasSuffix(address, ":53") {
			address = server
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
}

func TestResolver(t *testing.T) {
	for _, test := range []struct{ etc, resolved, state, says string }{
		{"nameserver 192.0.2.53\n", "absent", OK, "192.0.2.53 (/etc/resolv.conf). Notebooks get 203.0.113.7 for pypi.org."},
		{"search a.example b.example.\nnameserver 192.0.2.53\n", "absent", OK, "in a.example, b.example only after the name as it is written"},
		{"# systemd-resolved\nnameserver 127.0.0.53\noptions edns0\n", "nameserver 192.0.2.54\n", OK, "192.0.2.54 (/run/systemd/resolve/resolv.conf)"},
		{"nameserver 127.0.0.53\n", "absent", Warn, "only name server is on this machine itself (127.0.0.53)"},
		{"nameserver ::1\n", "absent", Warn, "(::1)"},
		{"nameserver 2001:db8::53\n", "absent", Warn, "IPv6 (2001:db8::53)"},
		{"nameserver 192.0.2.53\nnameserver 2001:db8::53\n", "absent", OK, "192.0.2.53 (/etc/resolv.conf)"},
		{"absent", "absent", Warn, "no name server"},
		{"search example.org\n", "", Warn, "no name server"},
		{"->/run/systemd/resolve/gone", "absent", Warn, "no name server"},
	} {
		h := machine(t, map[string]string{"/etc/resolv.conf": test.etc, "/run/systemd/resolve/resolv.conf": test.resolved})
		finds(t, h, "resolver", Options{}, test.state, test.says)
	}
}

// Names of notebooks have to lead where the lab's own name does.
func TestResolverAsksForNotebooks(t *testing.T) {
	lab := Options{Wildcards: []string{"lab.example.org"}}
	for name, c := range map[string]struct {
		own, label string // addresses, "" for none
		state      string
		says       []string
	}{
		"as it should be":           {"198.51.100.7", "198.51.100.7", OK, nil},
		"no record":                 {"198.51.100.7", "", Warn, []string{"knows no address of n1.lab.example.org", "Add a record *.lab.example.org with the address 198.51.100.7"}},
		"another machine":           {"198.51.100.7", "198.51.100.8", Warn, []string{"sends n1.lab.example.org to 198.51.100.8, and lab.example.org to 198.51.100.7"}},
		"a name known by no server": {"", "", OK, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := machine(t, map[string]string{"/etc/resolv.conf": "nameserver 192.0.2.53\n"})
			h.dial = dialer(nameServer(t, func(name string) (dnsmessage.RCode, string, bool) {
				address := map[string]string{"lab.example.org": c.own, "n1.lab.example.org": c.label}[name]
				if address == "" {
					return answerWell(name)
				}
				return dnsmessage.RCodeSuccess, address, true
			}))
			var warned []string
			for _, f := range look(t, h, "resolver", lab) {
				if f.State == Warn {
					warned = append(warned, f.Seen+" "+f.Mend)
				}
			}
			if (c.state == Warn) != (len(warned) == 1) {
				t.Fatalf("found %v", warned)
			}
			for _, text := range c.says {
				if !strings.Contains(warned[0], text) {
					t.Errorf("%q does not say %q", warned[0], text)
				}
			}
		})
	}
}

// What a real server answers, and what pods would get of it.
func TestResolverAsks(t *testing.T) {
	const one, six = "search uni.example\nnameserver 192.0.2.53\n", "search a b c d e uni.example\nnameserver 192.0.2.53\n"
	within := func(name string) bool { return strings.HasSuffix(name, ".uni.example") }
	silent := func(string) (dnsmessage.RCode, string, bool) { return 0, "", false }
	wildcard := func(name string) (dnsmessage.RCode, string, bool) {
		if within(name) {
			return dnsmessage.RCodeSuccess, "192.0.2.80", true
		}
		return answerWell(name)
	}
	for name, c := range map[string]struct {
		conf   string
		answer answerFunc
		opts   Options
		says   []string
	}{
		"silent": {one, silent, Options{}, []string{"192.0.2.53 does not answer.", "find no names outside the lab"}},
		"of the pool": {one, silent, Options{Joined: &Joined{NameServer: netip.MustParseAddr("10.43.0.10")}},
			[]string{"10.43.0.10 does not answer.", "Look at the head"}},
		"wildcard":         {one, wildcard, Options{}, []string{"uni.example has an address for pypi.org.uni.example (192.0.2.80)", "get 203.0.113.7 for pypi.org"}},
		"the sixth domain": {six, wildcard, Options{}, []string{"uni.example has an address"}},
		"wildcard alone": {one, func(name string) (dnsmessage.RCode, string, bool) {
			if within(name) {
				return wildcard(name)
			}
			return dnsmessage.RCodeNameError, "", true
		}, Options{Proxies: []string{"http://proxy:3128"}}, []string{"leads to 192.0.2.80. pypi.org is such a name here."}},
		"domain fails": {one, func(name string) (dnsmessage.RCode, string, bool) {
			if within(name) {
				return dnsmessage.RCodeServerFailure, "", true
			}
			return answerWell(name)
		}, Options{}, []string{"192.0.2.53 fails (SERVFAIL) when it is asked for a name in the search domain uni.example"}},
		"refused": {one, func(string) (dnsmessage.RCode, string, bool) { return dnsmessage.RCodeRefused, "", true }, Options{},
			[]string{"fails to look up pypi.org (REFUSED)"}},
		"closed network": {one, func(string) (dnsmessage.RCode, string, bool) { return dnsmessage.RCodeNameError, "", true },
			Options{Outside: "elsewhere.example.org"}, []string{"192.0.2.53 knows no elsewhere.example.org.", "closed network"}},
		"slow": {one, func(name string) (dnsmessage.RCode, string, bool) {
			time.Sleep(slowName + 100*time.Millisecond)
			return answerWell(name)
		}, Options{}, []string{"192.0.2.53 took 1.", "waits that long"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := machine(t, map[string]string{"/etc/resolv.conf": c.conf})
			h.dial = dialer(nameServer(t, c.answer))
			if name == "silent" || name == "of the pool" {
				h.dial = dialer("127.0.0.1:9") // nobody is there, which is known at once
			}
			finds(t, h, "resolver", c.opts, Warn, c.says...)
		})
	}
	t.Run("one of two", func(t *testing.T) {
		h := machine(t, map[string]string{"/etc/resolv.conf": "nameserver 192.0.2.53\nnameserver 192.0.2.54\n"})
		good := dialer(nameServer(t, answerWell))
		h.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if address == "192.0.2.53:53" {
				return dialer("127.0.0.1:9")(ctx, network, address)
			}
			return good(ctx, network, address)
		}
		finds(t, h, "resolver", Options{}, Warn, "192.0.2.53 does not answer.", "ask the other name servers too")
	})
	t.Run("the lab's own index, at the pool's own server", func(t *testing.T) {
		h := machine(t, map[string]string{"/etc/resolv.conf": "search uni.example\n"})
		opts := Options{Outside: "index.example.org", Joined: &Joined{NameServer: netip.MustParseAddr("10.43.0.10")}}
		finds(t, h, "resolver", opts, OK, "10.43.0.10 (the pool's own). Notebooks get 203.0.113.7 for index.example.org.")
	})
}
