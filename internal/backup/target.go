package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

// Target is a file that gets its name only once it is complete. Until then, on most file systems, it has none: whatever
// ends the program takes it along.
type Target struct {
	*os.File
	path  string
	named string // the name meanwhile, where it needs one
}

// NewTarget begins a file with mode 0600 that will be at path. One that is there already is an error, or with replace
// is kept until the new one is complete.
func NewTarget(path string, replace bool) (*Target, error) {
	if err := checkTarget(path, replace); err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return &Target{File: os.NewFile(uintptr(fd), path), path: path}, nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EINVAL) {
		return nil, &fs.PathError{Op: "write into", Path: dir, Err: err}
	}
	f, err := os.CreateTemp(dir, ".gpulab-backup-*") // mode 0600
	if err != nil {
		return nil, err
	}
	return &Target{File: f, path: path, named: f.Name()}, nil
}

func checkTarget(path string, replace bool) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is no file; name a file for the backup, or - for standard output", path)
	case !replace:
		return existsAlready(path)
	}
	return nil
}

func existsAlready(path string) error {
	return fmt.Errorf("%s exists already; name another file, or say --force to replace it", path)
}

// Commit gives the file its name, safe against a power cut.
func (t *Target) Commit(replace bool) error {
	if err := t.Sync(); err != nil {
		return err
	}
	dir := filepath.Dir(t.path)
	if !replace {
		err := t.link(t.path)
		if t.named != "" && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS)) {
			err = t.rename() // FAT and others have no second names
		}
		if err != nil {
			if errors.Is(err, fs.ErrExist) {
				return existsAlready(t.path)
			}
			return err
		}
		return atomicfile.Sync(dir)
	}
	if t.named == "" {
		named := filepath.Join(dir, ".gpulab-backup-"+strconv.Itoa(os.Getpid()))
		if err := t.link(named); err != nil {
			return err
		}
		t.named = named
	}
	if err := os.Rename(t.named, t.path); err != nil {
		return err
	}
	t.named = ""
	return atomicfile.Sync(dir)
}

// link gives the open file a name that nothing has yet.
func (t *Target) link(path string) error {
	from, flags := "/proc/self/fd/"+strconv.Itoa(int(t.Fd())), unix.AT_SYMLINK_FOLLOW
	if t.named != "" {
		from, flags = t.named, 0
	}
	if err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, path, flags); err != nil {
		return &fs.PathError{Op: "name", Path: path, Err: err}
	}
	return nil
}

// rename gives the file a name that nothing has yet, in the place of the one that it has meanwhile.
func (t *Target) rename() error {
	err := unix.Renameat2(unix.AT_FDCWD, t.named, unix.AT_FDCWD, t.path, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // what serves the file system cannot tell
		if err := checkTarget(t.path, false); err != nil {
			return err
		}
		err = os.Rename(t.named, t.path)
	}
	if err != nil {
		return &fs.PathError{Op: "name", Path: t.path, Err: err}
	}
	t.named = ""
	return nil
}

// Close lets go of the file; without Commit before it, nothing of it is left.
func (t *Target) Close() error {
	if t.named != "" {
		_ = os.Remove(t.named)
	}
	return t.File.Close()
}
