package diskspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// reserveFolder holds files back beside the databases, as reserveFile holds bytes back. It may be deleted at any time.
const reserveFolder = "reserve-files"

// maxReserveFiles is how many files are held back at most.
const maxReserveFiles = 512

// reserveFilesFor is how many files are held back on a file system that has room for so many.
func reserveFilesFor(total uint64) uint64 { return min(total/100, maxReserveFiles) }

// reserveFiles are empty files, named by numbers from 0.
type reserveFiles struct{ path string }

func (r *reserveFiles) count() (uint64, error) {
	entries, err := os.ReadDir(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return uint64(len(entries)), err
}

// resize makes or deletes files until there are so many.
func (r *reserveFiles) resize(have, want uint64) error {
	if have < want {
		if err := os.Mkdir(r.path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	folder, err := os.OpenRoot(r.path)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	for i := have; i < want; i++ {
		f, err := folder.OpenFile(strconv.FormatUint(i, 10), os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return fmt.Errorf("hold a file back in %s: %w", r.path, err)
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	for i := want; i < have; i++ {
		if err := folder.Remove(strconv.FormatUint(i, 10)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// keepReserveFiles does for the number of files what keepReserve does for bytes: it gives some to the databases where
// there are none, and holds them back again where there are.
func (w *Watch) keepReserveFiles(s space) space {
	want := reserveFilesFor(s.files)
	if want == 0 {
		return s
	}
	if _, err := os.Stat(filepath.Dir(w.files.path)); err != nil {
		return s // the data folder is not there yet
	}
	have, err := w.files.count()
	left := have
	switch {
	case err != nil:
	case s.filesFree < max(want/8, 1) && have > 0:
		left = have - min(have, (want+reserveSteps-1)/reserveSteps)
		w.cfg.Log.Warn("there is no room for more files: the databases get some that were held back for them",
			"given", have-left, "left", left)
		err = w.files.resize(have, left)
	case have < want && s.filesFree > 4*want:
		left = want
		err = w.files.resize(have, left)
	}
	if err != nil {
		w.cfg.Log.Warn("files for the databases cannot be held back", "err", err)
		return s
	}
	s.filesFree += have
	s.filesFree -= min(s.filesFree, max(left, want)) // what was given away is for the databases alone
	return s
}
