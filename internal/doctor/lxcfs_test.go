package doctor

import (
	"errors"
	"testing"

	"github.com/gpulab/gpulab/internal/lxcfs"
)

func TestLXCFS(t *testing.T) {
	h := machine(t, nil)
	h.lookPath = func(string) (string, error) { return "", errors.New("not found") }
	finds(t, h, "lxcfs", Options{DataDir: "/var/lib/gpulab"}, Warn, "not installed", "apt-get install lxcfs")
	h.lookPath = func(name string) (string, error) { return "/usr/bin/" + name, nil }
	finds(t, h, "lxcfs", Options{DataDir: "/var/lib/gpulab"}, OK, "their own memory")
	write(t, h.path("/var/lib/gpulab/log/lxcfs.log"), "fuse: device not found\n")
	finds(t, h, "lxcfs", Options{DataDir: "/var/lib/gpulab"}, Warn, "not running", "/var/lib/gpulab/log/lxcfs.log")
	write(t, h.path("/proc/self/mountinfo"), "90 27 0:53 / "+lxcfs.Dir+" rw,nosuid,nodev,relatime shared:40 - fuse.lxcfs lxcfs rw\n")
	finds(t, h, "lxcfs", Options{DataDir: "/var/lib/gpulab"}, OK, "their own memory")
}
