package main

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lockFile takes the lock that a file stands for, and returns taken if another
// process has it. The kernel drops it with its holder, however that ends, or
// when the file is closed. The file keeps what is in it.
func lockFile(path string, taken error) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = taken
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
