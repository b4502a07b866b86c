package doctor

import "testing"

func TestModules(t *testing.T) {
	h := machine(t, nil)
	finds(t, h, "modules", Options{}, OK)

	upgraded := map[string]string{
		"/proc/sys/kernel/osrelease":             "6.12.43-amd64\n",
		"/lib/modules/6.12.48-amd64/modules.dep": "x",
		"/proc/filesystems":                      "\text4\n",
	}
	finds(t, machine(t, upgraded), "modules", Options{}, Warn, "6.12.43-amd64 runs", "6.12.48-amd64", "`reboot`")

	// A kernel of a cloud, with everything built in and no modules at all.
	finds(t, machine(t, map[string]string{"/lib/modules/6.12.48-amd64/modules.dep": "absent"}), "modules", Options{}, OK)
}
