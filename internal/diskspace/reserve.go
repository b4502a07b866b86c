package diskspace

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// reserveFile holds back room beside the databases. It may be deleted at any time.
const reserveFile = "reserve"

const (
	maxReserve = 256 << 20 // bytes
	// reserveSteps is in how many parts it is given away: whoever fills the disk takes what is given away too, and
	// mostly ends for want of more.
	reserveSteps = 4
)

// reserveFor is how much is held back on a file system of that size, in bytes.
func reserveFor(total uint64) uint64 { return min(total/100, maxReserve) &^ 4095 }

// lowRoom is how little must be free for room to be given away, roomAgain how much must be free for it to be held back
// again. Every reading is a moment old, so it is not nothing.
func lowRoom(reserve uint64) uint64   { return reserve / 16 }
func roomAgain(reserve uint64) uint64 { return 2 * reserve }

// reserve is a file whose blocks nobody else can take.
type reserve struct{ path string }

func (r *reserve) size() (uint64, error) {
	var stat unix.Stat_t
	err := unix.Lstat(r.path, &stat)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, &fs.PathError{Op: "look at", Path: r.path, Err: err}
	case stat.Mode&unix.S_IFMT != unix.S_IFREG:
		return 0, fmt.Errorf("%s is no file; move it away", r.path)
	}
	// A file that was copied may have holes, which hold nothing back.
	return min(uint64(stat.Size), uint64(stat.Blocks)*512), nil
}

// shrink gives room back.
func (r *reserve) shrink(size uint64) error {
	f, err := os.OpenFile(r.path, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	// Only what is synced is free for certain.
	return errors.Join(f.Truncate(int64(size)), f.Sync(), f.Close())
}

// fill holds room back. What cannot be held back is given back whole.
func (r *reserve) fill(size uint64) error {
	f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, int64(size))
	if errors.Is(err, unix.EOPNOTSUPP) {
		// ZFS for one. It would store zeros as nothing.
		_, err = io.CopyN(f, rand.Reader, int64(size))
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("hold %d bytes back in %s: %w", size, r.path, err), f.Truncate(0))
	}
	return errors.Join(err, f.Sync(), f.Close())
}
