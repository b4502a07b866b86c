package nvidiadriver

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// After a boot, CUDA's device files are there before any container wants them.
func TestLoadUVM(t *testing.T) {
	const devices = "Character devices:\n195 nvidia-frontend\n508 nvidia-uvm\n"
	number := unix.Mkdev(508, 0)
	for what, c := range map[string]struct {
		driver  bool
		before  map[string]uint64 // device files that are there
		devices string
		fails   string // program that does not work
		makes   bool   // NVIDIA's own program makes the file
		ran     string
		wrong   string
	}{
		"no driver":             {},
		"right":                 {driver: true, before: map[string]uint64{"nvidia-uvm": number}, devices: devices},
		"by NVIDIA's":           {driver: true, devices: devices, makes: true, ran: "nvidia-modprobe"},
		"without it":            {driver: true, devices: devices, fails: "nvidia-modprobe", ran: "nvidia-modprobe modprobe"},
		"it did nothing":        {driver: true, before: map[string]uint64{"nvidia-uvm-tools": number + 1}, devices: devices, ran: "nvidia-modprobe modprobe"},
		"of the driver before":  {driver: true, before: map[string]uint64{"nvidia-uvm": unix.Mkdev(507, 0), "nvidia-uvm-tools": unix.Mkdev(507, 1)}, devices: devices, ran: "nvidia-modprobe modprobe"},
		"no such module":        {driver: true, fails: "modprobe", ran: "nvidia-modprobe modprobe", wrong: "not found"},
		"the kernel has it not": {driver: true, devices: "195 nvidia\n", ran: "nvidia-modprobe modprobe", wrong: "no nvidia-uvm"},
	} {
		t.Run(what, func(t *testing.T) {
			root := t.TempDir()
			node := func(name string, number uint64) {
				if err := unix.Mknod(filepath.Join(root, "dev", name), unix.S_IFCHR|0o600, int(number)); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(os.MkdirAll(filepath.Join(root, "dev"), 0o755), os.MkdirAll(filepath.Join(root, "proc/driver/nvidia"), 0o755),
				os.WriteFile(filepath.Join(root, "proc/devices"), []byte(c.devices), 0o600)); err != nil {
				t.Fatal(err)
			}
			if c.driver {
				if err := os.WriteFile(filepath.Join(root, "proc/driver/nvidia/version"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for name, number := range c.before {
				node(name, number)
			}
			var ran []string
			err := loadUVM(root, func(name string, _ ...string) error {
				ran = append(ran, name)
				if name == c.fails {
					return errors.New("not found")
				}
				if c.makes {
					node("nvidia-uvm", number)
				}
				return nil
			})
			if got := strings.Join(ran, " "); got != c.ran || (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%q ran, and it came to %v", got, err)
			}
			if !c.driver || c.wrong != "" {
				return
			}
			if !isDevice(filepath.Join(root, "dev/nvidia-uvm"), number) {
				t.Error("it is not there, or another device")
			}
			if !strings.Contains(c.ran, " modprobe") {
				return
			}
			var file unix.Stat_t
			if err := unix.Stat(filepath.Join(root, "dev/nvidia-uvm-tools"), &file); err != nil || file.Rdev != unix.Mkdev(508, 1) {
				t.Errorf("the tools' file is %x, %v", file.Rdev, err)
			}
			if err := unix.Stat(filepath.Join(root, "dev/nvidia-uvm"), &file); err != nil || file.Mode&0o777 != 0o666 {
				t.Errorf("the file is %o, %v", file.Mode, err)
			}
		})
	}
}
