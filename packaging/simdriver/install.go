package simdriver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Install makes root a driver root with the given number of simulated GPUs,
// from the files the Makefile left in fromDir. It converges: what is right
// already is not touched, so running pods keep their driver, and an
// interrupted Install is finished by the next. Every file appears whole, the
// control device last, so that a half-made root looks like a driver that is
// not loaded. It needs root's rights, and must not run while Run does.
func Install(ctx context.Context, fromDir, root string, gpus int) error {
	if err := install(ctx, fromDir, root, gpus); err != nil {
		return fmt.Errorf("installing the simulated driver in %s: %w", root, err)
	}
	return nil
}

func install(ctx context.Context, fromDir, root string, gpus int) error {
	if gpus < 1 || gpus > MaxGPUs {
		return fmt.Errorf("%d GPUs asked for, but it can simulate 1 to %d", gpus, MaxGPUs)
	}
	version, err := builtVersion(fromDir)
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return makeDirs(root, version) },
		func() error { return installLibraries(fromDir, root, version) },
		func() error { return installState(root, version, gpus) },
		func() error { return pruneVersions(root, version) },
		func() error { return installNodes(root, gpus) },
		func() error { return checkNode(filepath.Join(root, "dev", controlNode.name)) },
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func makeDirs(root, version string) error {
	for _, dir := range []string{
		libraryDir(root), filepath.Join(root, "usr/bin"), filepath.Join(root, "dev"), keptDir(root), limitsDir(root),
		filepath.Join(firmwareDir(root), version),
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func installLibraries(fromDir, root, version string) error {
	libs := libraryDir(root)
	for _, name := range []string{nvmlName, cudaName} {
		file := name + "." + version
		if err := installFile(filepath.Join(fromDir, file), filepath.Join(libs, file)); err != nil {
			return err
		}
		if err := installLink(file, filepath.Join(libs, name+".1")); err != nil {
			return err
		}
		if err := installLink(name+".1", filepath.Join(libs, name)); err != nil {
			return err
		}
	}
	if err := keepCUDA(root, filepath.Join(libs, cudaName+"."+version)); err != nil {
		return err
	}
	return installFile(filepath.Join(fromDir, smiName), filepath.Join(root, "usr/bin", smiName))
}

// keepCUDA links the installed libcuda into keptDir, named by its content.
func keepCUDA(root, library string) error {
	content, err := os.ReadFile(library)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	kept := filepath.Join(keptDir(root), hex.EncodeToString(sum[:8]))
	if sameFile(library, kept) {
		return nil
	}
	return replace(kept, func(tmp string) error { return os.Link(library, tmp) })
}

// installState makes the state file, or fits the one that is there to the
// version and the number of GPUs, keeping its inode: pods have it mounted.
func installState(root, version string, gpus int) error {
	path := StateFile(root)
	s, err := readState(path)
	if err != nil {
		s = state{}
	}
	s.driver = version
	s.fit(gpus)
	if err := writeState(path, s); err != nil {
		return err
	}
	firmware := filepath.Join(firmwareDir(root), version, "gsp_simgpu.bin")
	if sameFile(path, firmware) {
		return nil
	}
	return replace(firmware, func(tmp string) error { return os.Link(path, tmp) })
}

// pruneVersions removes what an earlier version of the driver left.
func pruneVersions(root, version string) error {
	var stale []string
	for _, name := range []string{nvmlName, cudaName} {
		files, _ := filepath.Glob(filepath.Join(libraryDir(root), name+".*.*")) // the links have one dot less
		for _, f := range files {
			if filepath.Base(f) != name+"."+version {
				stale = append(stale, f)
			}
		}
	}
	dirs, _ := filepath.Glob(filepath.Join(firmwareDir(root), "*"))
	for _, d := range dirs {
		if filepath.Base(d) != version {
			stale = append(stale, d)
		}
	}
	for _, path := range stale {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

func installNodes(root string, gpus int) error {
	dev := filepath.Join(root, "dev")
	for i := gpus; i < MaxGPUs; i++ {
		if err := os.Remove(filepath.Join(dev, gpuNode(i).name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	nodes := append([]node(nil), sharedNodes...)
	for i := range gpus {
		nodes = append(nodes, gpuNode(i))
	}
	for _, n := range append(nodes, controlNode) {
		if err := installNode(filepath.Join(dev, n.name), n); err != nil {
			return err
		}
	}
	return nil
}

func installNode(path string, n node) error {
	number := unix.Mkdev(n.major, n.minor)
	var st unix.Stat_t
	if unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == number && st.Mode&0o777 == 0o666 {
		return nil
	}
	return replace(path, func(tmp string) error {
		if err := unix.Mknod(tmp, unix.S_IFCHR|0o666, int(number)); err != nil {
			return fmt.Errorf("making the device node %s: %w (it needs root's rights, and CAP_MKNOD in a container)", path, err)
		}
		return os.Chmod(tmp, 0o666)
	})
}

// checkNode opens a node as the library will: no driver stands behind it, so
// the answer of an allowed open is ENXIO.
func checkNode(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENXIO):
		return nil
	case err == nil:
		_ = unix.Close(fd)
		return fmt.Errorf("a driver answers behind %s, which should be free for local use", path)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%s cannot be opened: its file system is mounted with the option nodev", path)
	default:
		return fmt.Errorf("%s cannot be opened: %w (is the use of devices restricted here?)", path, err)
	}
}

// installFile copies a file unless the same content is there.
func installFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(to); err == nil && bytes.Equal(old, content) {
		return nil
	}
	return replace(to, func(tmp string) error {
		return os.WriteFile(tmp, content, 0o755)
	})
}

func installLink(target, path string) error {
	if old, err := os.Readlink(path); err == nil && old == target {
		return nil
	}
	return replace(path, func(tmp string) error { return os.Symlink(target, tmp) })
}

// replace makes a file with make under another name and moves it to path.
func replace(path string, make func(tmp string) error) error {
	tmp := path + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := make(tmp); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// Remove deletes the driver root. It refuses a folder that Install has not
// made; a folder that is not there is fine.
func Remove(_ context.Context, root string) error {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(stateDir(root)); err != nil {
		return fmt.Errorf("%s is not a simulated driver's folder, so it is left alone", root)
	}
	return os.RemoveAll(root)
}
