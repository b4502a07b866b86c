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
	finds(t, with("/proc/self/status", "CapEff:\t000001ffffffffff\n"), "namespaces", Options{}, Fail, "seccomp")
	finds(t, thisHost(), "namespaces", Options{}, OK)
}
