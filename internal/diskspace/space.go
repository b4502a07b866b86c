package diskspace

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// space is what a file system says of itself.
type space struct {
	device uint64
	// free is for everybody; what is kept for root is neither free nor used. In bytes.
	free, used       uint64
	files, filesFree uint64
	readOnly         bool
}

// lookAt asks the file system that a folder is on, or would be on.
func lookAt(path string) (space, error) {
	stat, device, err := statfs(path)
	if err != nil {
		return space{}, err
	}
	block := uint64(stat.Bsize)
	return space{
		device: device, free: stat.Bavail * block, used: (stat.Blocks - stat.Bfree) * block,
		files: stat.Files, filesFree: stat.Ffree, readOnly: stat.Flags&unix.ST_RDONLY != 0,
	}, nil
}

// statfs asks the file system of the nearest folder on the way up that exists.
func statfs(path string) (stat unix.Statfs_t, device uint64, err error) {
	for path = filepath.Clean(path); ; path = filepath.Dir(path) {
		err = unix.Statfs(path, &stat)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || path == "/" {
			break
		}
	}
	if err != nil {
		return stat, 0, &fs.PathError{Op: "look at the file system of", Path: path, Err: err}
	}
	var info unix.Stat_t
	if err := unix.Stat(path, &info); err == nil {
		device = info.Dev
	}
	return stat, device, nil
}
