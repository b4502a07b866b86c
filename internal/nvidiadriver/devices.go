package nvidiadriver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// loadPatience bounds each program that makes device files.
const loadPatience = 30 * time.Second

// MakeDevices makes the device files of the running driver, and loads the part of it
// that CUDA needs, as the first CUDA program of the machine itself would: one in a
// container cannot, and of device files containers are given those that are there.
// Without a driver, or where all are right, it does nothing. Source: "Device Node
// Verification" in NVIDIA's CUDA Installation Guide for Linux.
func MakeDevices(ctx context.Context) error {
	return devices{root: "/", run: func(name string, args ...string) error {
		ctx, cancel := context.WithTimeout(ctx, loadPatience)
		defer cancel()
		out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w %s", name, err, strings.TrimSpace(string(out)))
		}
		return nil
	}}.make()
}

// devices are a machine's.
type devices struct {
	root string
	run  func(name string, args ...string) error
}

func (d devices) make() error {
	if _, err := os.Lstat(filepath.Join(d.root, "proc/driver/nvidia/version")); err != nil {
		return nil
	}
	var errs []error
	// Where somebody makes the cards' files on their own, as in a container, they stay as they are.
	if params, _ := os.ReadFile(filepath.Join(d.root, "proc/driver/nvidia/params")); !strings.Contains(string(params),
		"ModifyDeviceFiles: 0") {
		cards, err := filepath.Glob(filepath.Join(d.root, "proc/driver/nvidia/gpus/*/information"))
		if err != nil {
			return err
		}
		for _, card := range cards {
			errs = append(errs, d.card(card))
		}
	}
	return errors.Join(append(errs, d.uvm())...)
}

// controlMinor is that of the device that all cards share.
const controlMinor = 255

// card makes the files of one card, by what the driver says of it.
func (d devices) card(information string) error {
	data, err := os.ReadFile(information)
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(data), "Device Minor:")
	line, _, _ := strings.Cut(rest, "\n")
	minor, err := strconv.ParseUint(strings.TrimSpace(line), 10, 8)
	if err != nil {
		return nil // a driver that does not tell
	}
	files := map[string]uint32{fmt.Sprintf("nvidia%d", minor): uint32(minor), "nvidiactl": controlMinor}
	return d.files(files, []string{"nvidia", "nvidia-frontend"}, func() error {
		return d.run("nvidia-modprobe", fmt.Sprintf("-c=%d", minor), fmt.Sprintf("-c=%d", controlMinor))
	}, nil)
}

func (d devices) uvm() error {
	return d.files(map[string]uint32{"nvidia-uvm": 0, "nvidia-uvm-tools": 1}, []string{"nvidia-uvm"},
		func() error {
			return d.run("nvidia-modprobe", "-u", "-c=0")
		}, func() error { return d.run("modprobe", "nvidia-uvm") })
}

// files makes device files, by their minor numbers, that belong to one of these drivers:
// NVIDIA's own way, which knows what the administrator set for them, or else by itself
// once the module is loaded.
func (d devices) files(minors map[string]uint32, drivers []string, ask, load func() error) error {
	right := func() bool {
		major, err := d.major(drivers)
		for name, minor := range minors {
			if err != nil || !isDevice(d.path(name), unix.Mkdev(major, minor)) {
				return false
			}
		}
		return true
	}
	if right() {
		return nil
	}
	if err := ask(); err == nil && right() {
		return nil
	}
	if load != nil {
		if err := load(); err != nil {
			return err
		}
	}
	major, err := d.major(drivers)
	if err != nil {
		return err
	}
	for name, minor := range minors {
		path, number := d.path(name), unix.Mkdev(major, minor)
		if isDevice(path, number) {
			continue
		}
		// One that a driver before has left is another device now.
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(number)); err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
		if err := os.Chmod(path, 0o666); err != nil { // whatever the umask
			return err
		}
	}
	return nil
}

func (d devices) path(name string) string { return filepath.Join(d.root, "dev", name) }

func isDevice(path string, number uint64) bool {
	var file unix.Stat_t
	return unix.Lstat(path, &file) == nil && file.Mode&unix.S_IFMT == unix.S_IFCHR && file.Rdev == number
}

// major is the number that the kernel has given to the first of these drivers that it has.
func (d devices) major(drivers []string) (uint32, error) {
	f, err := os.Open(filepath.Join(d.root, "proc/devices"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var major uint32
		var name string
		if n, _ := fmt.Sscanf(lines.Text(), "%d %s", &major, &name); n != 2 {
			continue
		}
		for _, driver := range drivers {
			if name == driver {
				return major, nil
			}
		}
	}
	return 0, fmt.Errorf("the kernel has no %s, though it was loaded", drivers[0])
}
