package doctor

import "testing"

func TestResolver(t *testing.T) {
	for _, test := range []struct{ etc, resolved, state, says string }{
		{"nameserver 192.0.2.53\n", "absent", OK, "192.0.2.53"},
		{"# systemd-resolved\nnameserver 127.0.0.53\noptions edns0\n", "nameserver 192.0.2.54\n", OK, "192.0.2.54 (/run/systemd/resolve/resolv.conf)"},
		{"nameserver 127.0.0.53\n", "absent", Warn, "only name server is on this machine itself (127.0.0.53)"},
		{"nameserver ::1\n", "absent", Warn, "(::1)"},
		{"absent", "absent", Warn, "no name server"},
		{"search example.org\n", "", Warn, "no name server"},
		{"->/run/systemd/resolve/gone", "absent", Warn, "no name server"},
	} {
		h := machine(t, map[string]string{"/etc/resolv.conf": test.etc, "/run/systemd/resolve/resolv.conf": test.resolved})
		finds(t, h, "resolver", Options{}, test.state, test.says)
	}
}
