package storage

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// remove deletes name, a path in an open folder, with all that is in it, whatever its owner does to it meanwhile. It
// follows no link, enters nothing that is mounted, and goes up only to where it came from. However deep the tree is, it
// holds two folders open: os.Root.RemoveAll holds one for each level, and a home can be deeper than gpulab may open
// files.
func remove(ctx context.Context, in *os.Root, name string) error {
	err := in.Remove(name) // a file, a link, an empty folder
	if err == nil || !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	dir, err := in.OpenFile(name, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NOATIME, 0)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	at, err := unix.FcntlInt(dir.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	e := emptier{at: at}
	defer func() { _ = unix.Close(e.at) }()
	if err := e.run(ctx); err != nil {
		return fmt.Errorf("empty %q: %w", name, err)
	}
	return in.Remove(name)
}

// emptier deletes what is in a folder.
type emptier struct {
	at  int    // the open folder
	way []step // from the first folder to the open one

	last  string // the folder that was entered last
	depth int    // how deep it lies
	again int    // how often in a row
}

// mostAgain is how often a folder is emptied in which somebody makes files faster than they are deleted.
const mostAgain = 100

// step is a folder on the way down.
type step struct {
	name     string
	dev, ino uint64 // of the folder above
}

func (e *emptier) run(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		below, err := e.unlinkAll()
		if err != nil {
			return err
		}
		switch {
		case below != "":
			if e.again++; below != e.last || e.depth != len(e.way) {
				e.last, e.depth, e.again = below, len(e.way), 0
			}
			if e.again > mostAgain {
				return errMoving
			}
			err = e.down(below)
		case len(e.way) == 0:
			return nil
		default:
			err = e.up()
		}
		if err != nil {
			return err
		}
	}
}

// unlinkAll deletes all in the open folder but folders with something in them, of which it returns one; "" for none.
func (e *emptier) unlinkAll() (below string, err error) {
	if _, err := unix.Seek(e.at, 0, unix.SEEK_SET); err != nil {
		return "", err
	}
	buffer := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(e.at, buffer)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.ENOENT) || n == 0 && err == nil {
			return below, nil
		}
		if err != nil {
			return "", err
		}
		_, _, names := unix.ParseDirent(buffer[:n], -1, nil)
		for _, name := range names {
			err := unix.Unlinkat(e.at, name, 0)
			if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
				err = unix.Unlinkat(e.at, name, unix.AT_REMOVEDIR)
			}
			switch {
			case err == nil, errors.Is(err, unix.ENOENT):
			case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
				below = name
			default:
				return "", fmt.Errorf("%q: %w", name, err)
			}
		}
	}
}

func (e *emptier) down(name string) error {
	var above unix.Stat_t
	if err := unix.Fstat(e.at, &above); err != nil {
		return err
	}
	fd, err := unix.Openat2(e.at, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NOATIME,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil // it was moved or became something else: the folder is looked at again
	case err != nil:
		return fmt.Errorf("%q: %w", name, err)
	}
	_ = unix.Close(e.at)
	e.at, e.way = fd, append(e.way, step{name, above.Dev, above.Ino})
	return nil
}

func (e *emptier) up() error {
	last := e.way[len(e.way)-1]
	fd, err := unix.Openat(e.at, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOATIME, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Dev != last.dev || st.Ino != last.ino {
		_ = unix.Close(fd)
		return errors.Join(errMoving, err)
	}
	_ = unix.Close(e.at)
	e.at, e.way = fd, e.way[:len(e.way)-1]
	return nil // the folder that is empty now is deleted with what else is there
}
