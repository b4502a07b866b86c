package nvidiadriver

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// After a boot, a driver's device files are there before any container wants them.
func TestMakeDevices(t *testing.T) {
	const numbers = "Character devices:\n195 nvidia\n508 nvidia-uvm\n"
	const uvm, cards = "nvidia-modprobe -u -c=0", "nvidia-modprobe -c=0 -c=255"
	for what, c := range map[string]struct {
		driver, card bool
		before       map[string]uint64 // device files that are there
		params       string
		numbers      string
		fails        string // program that does not work
		ran          string
		made         []string
		wrong        string
	}{
		"no driver": {},
		"right": {driver: true, card: true, numbers: numbers,
			before: map[string]uint64{"nvidia0": unix.Mkdev(195, 0), "nvidiactl": unix.Mkdev(195, 255), "nvidia-uvm": unix.Mkdev(508, 0), "nvidia-uvm-tools": unix.Mkdev(508, 1)}},
		"CUDA's are missing": {driver: true, numbers: numbers, ran: uvm + ", modprobe nvidia-uvm", made: []string{"nvidia-uvm", "nvidia-uvm-tools"}},
		"without NVIDIA's own program": {driver: true, card: true, numbers: numbers, fails: "nvidia-modprobe",
			ran: cards + ", " + uvm + ", modprobe nvidia-uvm", made: []string{"nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}},
		"cards' files are somebody else's": {driver: true, card: true, params: "DeviceFileMode: 438\nModifyDeviceFiles: 0\n", numbers: numbers,
			before: map[string]uint64{"nvidia-uvm": unix.Mkdev(508, 0), "nvidia-uvm-tools": unix.Mkdev(508, 1)}},
		"of the driver before": {driver: true, numbers: numbers, ran: uvm + ", modprobe nvidia-uvm", made: []string{"nvidia-uvm", "nvidia-uvm-tools"},
			before: map[string]uint64{"nvidia-uvm": unix.Mkdev(507, 0), "nvidia-uvm-tools": unix.Mkdev(508, 1)}},
		"no such module":        {driver: true, fails: "modprobe", ran: uvm + ", modprobe nvidia-uvm", wrong: "not found"},
		"the kernel has it not": {driver: true, numbers: "195 nvidia\n", ran: uvm + ", modprobe nvidia-uvm", wrong: "no nvidia-uvm"},
	} {
		t.Run(what, func(t *testing.T) {
			root := t.TempDir()
			put := func(path, text string) {
				if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755), os.WriteFile(filepath.Join(root, path), []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			put("proc/devices", c.numbers)
			put("dev/null", "")
			if c.driver {
				put("proc/driver/nvidia/version", "")
			}
			put("proc/driver/nvidia/params", c.params)
			if c.card {
				put("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA RTX A4000\nDevice Minor: \t 0\nGPU Excluded:\t No\n")
			}
			for name, number := range c.before {
				if err := unix.Mknod(filepath.Join(root, "dev", name), unix.S_IFCHR|0o600, int(number)); err != nil {
					t.Fatal(err)
				}
			}
			var ran []string
			err := devices{root: root, run: func(name string, args ...string) error {
				ran = append(ran, strings.Join(append([]string{name}, args...), " "))
				if name == c.fails {
					return errors.New("not found")
				}
				return nil
			}}.make()
			if got := strings.Join(ran, ", "); got != c.ran || (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%q ran, and it came to %v", got, err)
			}
			numbers := map[string]uint64{"nvidia0": unix.Mkdev(195, 0), "nvidiactl": unix.Mkdev(195, 255), "nvidia-uvm": unix.Mkdev(508, 0), "nvidia-uvm-tools": unix.Mkdev(508, 1)}
			for _, name := range c.made {
				var file unix.Stat_t
				if err := unix.Stat(filepath.Join(root, "dev", name), &file); err != nil || file.Rdev != numbers[name] || c.before[name] != numbers[name] && file.Mode != unix.S_IFCHR|0o666 {
					t.Errorf("%s is %o %x, %v", name, file.Mode, file.Rdev, err)
				}
			}
		})
	}
	// What NVIDIA's own program makes is left as it is.
	root := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "proc/driver/nvidia"), 0o755), os.Mkdir(filepath.Join(root, "dev"), 0o755),
		os.WriteFile(filepath.Join(root, "proc/driver/nvidia/version"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	err := devices{root: root, run: func(name string, _ ...string) error {
		if name != "nvidia-modprobe" {
			t.Errorf("%s ran, too", name)
		}
		return errors.Join(os.WriteFile(filepath.Join(root, "proc/devices"), []byte("508 nvidia-uvm\n"), 0o600),
			unix.Mknod(filepath.Join(root, "dev/nvidia-uvm"), unix.S_IFCHR|0o600, int(unix.Mkdev(508, 0))),
			unix.Mknod(filepath.Join(root, "dev/nvidia-uvm-tools"), unix.S_IFCHR|0o600, int(unix.Mkdev(508, 1))))
	}}.make()
	if err != nil {
		t.Error(err)
	}
}
