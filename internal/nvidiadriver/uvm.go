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

	"golang.org/x/sys/unix"
)

// LoadUVM loads the part of the running driver that CUDA needs and makes its device
// files, as the first CUDA program of the machine itself would: one in a container
// cannot, and of device files containers are given those that are there. Without a
// driver, or where they are there, it does nothing. Source: "Device Node Verification"
// in NVIDIA's CUDA Installation Guide for Linux.
func LoadUVM(ctx context.Context) error {
	return loadUVM("/", func(name string, args ...string) error {
		out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w %s", name, err, strings.TrimSpace(string(out)))
		}
		return nil
	})
}

func loadUVM(root string, run func(name string, args ...string) error) error {
	device := filepath.Join(root, "dev/nvidia-uvm")
	there := func(path string) bool {
		_, err := os.Lstat(path)
		return err == nil
	}
	if there(device) || !there(filepath.Join(root, "proc/driver/nvidia/version")) {
		return nil
	}
	// NVIDIA's own way, which knows what the administrator set for device files.
	if err := run("nvidia-modprobe", "-u", "-c=0"); err == nil && there(device) {
		return nil
	}
	if err := run("modprobe", "nvidia-uvm"); err != nil {
		return err
	}
	major, err := uvmMajor(filepath.Join(root, "proc/devices"))
	if err != nil {
		return err
	}
	for minor, path := range []string{device, device + "-tools"} {
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(major, uint32(minor)))); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make %s: %w", path, err)
		}
		if err := os.Chmod(path, 0o666); err != nil { // whatever the umask
			return err
		}
	}
	return nil
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
