package doctor

import "testing"

func TestRoom(t *testing.T) {
	with := func(more map[string]string) host {
		files := map[string]string{"/var/lib/gpulab/identity.json": "{}", "/proc/sys/kernel/pty/max": "99999\n"}
		for path, content := range more {
			files[path] = content
		}
		return machine(t, files)
	}
	finds(t, with(nil), "room", Options{}, OK, "room for all")
	finds(t, with(map[string]string{"/proc/sys/fs/inotify/max_user_instances": "128\n"}), "room", Options{}, Warn, "fs.inotify.max_user_instances=16128")
	finds(t, machine(t, map[string]string{"/proc/sys/kernel/pty/max": "4096\n"}), "room", Options{}, OK, "when it starts")
}
