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
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// loadPatience bounds each program that loads it.
const loadPatience = 30 * time.Second

// LoadUVM loads the part of the running driver that CUDA needs and makes its device
// files, as the first CUDA program of the machine itself would: one in a container
// cannot, and of device files containers are given those that are there. Without a
// driver, or where they are right, it does nothing. Source: "Device Node Verification"
// in NVIDIA's CUDA Installation Guide for Linux.
func LoadUVM(ctx context.Context) error {
	return loadUVM("/", func(name string, args ...string) error {
		ctx, cancel := context.WithTimeout(ctx, loadPatience)
		defer cancel()
		out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w %s", name, err, strings.TrimSpace(string(out)))
		}
		return nil
	})
}

func loadUVM(root string, run func(name string, args ...string) error) error {
	if _, err := os.Lstat(filepath.Join(root, "proc/driver/nvidia/version")); err != nil {
		return nil
	}
	device, devices := filepath.Join(root, "dev/nvidia-uvm"), filepath.Join(root, "proc/devices")
	right := func() bool {
		major, err := uvmMajor(devices)
		return err == nil && isDevice(device, unix.Mkdev(major, 0))
	}
	if right() {
		return nil
	}
	// NVIDIA's own way, which knows what the administrator set for device files.
	if err := run("nvidia-modprobe", "-u", "-c=0"); err == nil && right() {
		return nil
	}
	if err := run("modprobe", "nvidia-uvm"); err != nil {
		return err
	}
	major, err := uvmMajor(devices)
	if err != nil {
		return err
	}
	for minor, path := range []string{device, device + "-tools"} {
		number := unix.Mkdev(major, uint32(minor))
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

func isDevice(path string, number uint64) bool {
	var file unix.Stat_t
	return unix.Lstat(path, &file) == nil && file.Mode&unix.S_IFMT == unix.S_IFCHR && file.Rdev == number
}

func uvmMajor(devices string) (uint32, error) {
	f, err := os.Open(devices)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var major uint32
		var name string
		if n, _ := fmt.Sscanf(lines.Text(), "%d %s", &major, &name); n == 2 && name == "nvidia-uvm" {
			return major, nil
		}
	}
	return 0, errors.New("the kernel has no nvidia-uvm, though it was loaded")
}
