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
	for what, c := range map[string]struct {
		before  []string // files that are there
		devices string
		fails   string // program that does not work
		makes   bool   // NVIDIA's own program makes the file
		ran     string
		made    bool
		wrong   string
	}{
		"no driver":         {},
		"there":             {before: []string{"proc/driver/nvidia/version", "dev/nvidia-uvm"}, devices: devices},
		"by NVIDIA's":       {before: []string{"proc/driver/nvidia/version"}, makes: true, ran: "nvidia-modprobe"},
		"without it":        {before: []string{"proc/driver/nvidia/version"}, devices: devices, fails: "nvidia-modprobe", ran: "nvidia-modprobe modprobe", made: true},
		"it did nothing":    {before: []string{"proc/driver/nvidia/version", "dev/nvidia-uvm-tools"}, devices: devices, ran: "nvidia-modprobe modprobe", made: true},
		"no such module":    {before: []string{"proc/driver/nvidia/version"}, fails: "modprobe", ran: "nvidia-modprobe modprobe", wrong: "not found"},
		"no device for all": {before: []string{"proc/driver/nvidia/version"}, devices: "195 nvidia\n", ran: "nvidia-modprobe modprobe", wrong: "no nvidia-uvm"},
	} {
		t.Run(what, func(t *testing.T) {
			root := t.TempDir()
			put := func(path, text string) {
				if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755), os.WriteFile(filepath.Join(root, path), []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Mkdir(filepath.Join(root, "dev"), 0o755); err != nil {
				t.Fatal(err)
			}
			for _, path := range c.before {
				put(path, "")
			}
			put("proc/devices", c.devices)
			var ran []string
			err := loadUVM(root, func(name string, _ ...string) error {
				ran = append(ran, name)
				if name == c.fails {
					return errors.New("not found")
				}
				if c.makes {
					put("dev/nvidia-uvm", "")
				}
				return nil
			})
			if got := strings.Join(ran, " "); got != c.ran || (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%q ran, and it came to %v", got, err)
			}
			if !c.made {
				return
			}
			var file unix.Stat_t
			if err := unix.Stat(filepath.Join(root, "dev/nvidia-uvm"), &file); err != nil || file.Mode != unix.S_IFCHR|0o666 || file.Rdev != unix.Mkdev(508, 0) {
				t.Errorf("the file is %o %x, %v", file.Mode, file.Rdev, err)
			}
			if err := unix.Stat(filepath.Join(root, "dev/nvidia-uvm-tools"), &file); err != nil || file.Mode&0o777 != 0o666 {
				t.Errorf("the tools' file is %o, %v", file.Mode, err)
			}
		})
	}
}
