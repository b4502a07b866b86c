// Package atomicfile writes a file in one step: a reader, a crash or a power cut
// meets the old content or the new one, whole.
package atomicfile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// Write gives the file at path this content and mode. Its folder must be there.
// While it is written it has another name, which begins with a dot, and is for
// its owner alone. A link at path is replaced, not followed.
func Write(path string, data []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already where all went well
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return Sync(dir)
}

// Update is [Write] for a file that may have this content already, and is then
// left as it is. It makes the file's folder, with mode folder, where it is missing.
func Update(path string, data []byte, mode, folder fs.FileMode) (changed bool, err error) {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), folder); err != nil {
		return false, err
	}
	return true, Write(path, data, mode)
}

// Sync makes a file's content, or the names in a folder, survive a power cut.
// Windows has no such thing for a folder.
func Sync(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
