package doctor

import (
	"maps"
	"testing"
)

func TestNamespaces(t *testing.T) {
	whole := map[string]string{"/proc/self/status": "CapEff:\t000001ffffffffff\nSeccomp:\t0\n"}
	for _, kind := range []string{"ipc", "mnt", "net", "pid", "user", "uts"} {
		whole["/proc/self/ns/"+kind] = "x"
	}
	finds(t, machine(t, whole), "namespaces", Options{}, OK)

	with := func(path, content string) host {
		files := maps.Clone(whole)
		files[path] = content
		return machine(t, files)
	}
	finds(t, with("/proc/self/ns/user", "absent"), "namespaces", Options{}, Fail, "kind user")
	finds(t, with("/proc/sys/user/max_user_namespaces", "0\n"), "namespaces", Options{}, Warn, "sysctl --system")
	for release, state := range map[string]string{"6.1.0-25-amd64": Warn, "5.15.0-91-generic": Warn, "6.2.16": Warn, "6.3.0": OK, "6.12.48+deb13-amd64": OK, "7.0.1": OK, "odd": OK} {
		says := ""
		if state == Warn {
			says = "The kernel " + release + " is older than 6.3"
		}
		finds(t, with("/proc/sys/kernel/osrelease", release+"\n"), "namespaces", Options{}, state, says)
	}
	finds(t, with("/proc/self/status", "CapEff:\t000001ffffffffff\n"), "namespaces", Options{}, Fail, "seccomp")
	finds(t, thisHost(), "namespaces", Options{}, OK)
}
