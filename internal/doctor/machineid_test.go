package doctor

import "testing"

func TestMachineID(t *testing.T) {
	const one, two = "5e0b6b1a3c8d4f7e9a2b1c0d9e8f7a6b", "0f9c1d2e3b4a5968778695a4b3c2d1e0"
	for _, test := range []struct{ id, bus, state, says string }{
		{one, "absent", OK, ""},
		{one, one, OK, ""},
		{one, two, Warn, "two machine-ids"},
		{"", "absent", Warn, "systemd-machine-id-setup"},
		{"uninitialized", "absent", Warn, "never started"},
		{"00000000000000000000000000000000", "absent", Warn, "not one that a machine chose"},
		{"gpu1", "absent", Warn, "not one that a machine chose"},
	} {
		h := machine(t, map[string]string{"/etc/machine-id": test.id + "\n", "/var/lib/dbus/machine-id": test.bus})
		finds(t, h, "machineid", Options{}, test.state, test.says)
	}
}
