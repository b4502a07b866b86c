package transfer

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/pkg/sftp"
)

// entry is what is known of a file or folder.
type entry struct {
	name  string
	size  int64
	mtime time.Time // as SFTP can hold it
	exact int64     // the same as exactly as it is known, in unix nanoseconds
	mode  fs.FileMode
}

func entryOf(info fs.FileInfo) entry {
	return entry{
		name: info.Name(), size: info.Size(), mode: info.Mode(),
		mtime: held(info.ModTime()), exact: info.ModTime().UnixNano(),
	}
}

// held is the nearest time that SFTP can hold: its times are whole seconds from 1970 to 2106. Anything else would come
// back as another time, and the file would be copied again at each run.
func held(t time.Time) time.Time { return time.Unix(min(max(t.Unix(), 0), math.MaxUint32), 0) }

func (e entry) isFolder() bool { return e.mode.IsDir() }
func (e entry) isFile() bool   { return e.mode.IsRegular() }
func (e entry) isLink() bool   { return e.mode&fs.ModeSymlink != 0 }

// same reports whether another file seems to be a copy of e.
func (e entry) same(other entry) bool {
	return other.isFile() && e.size == other.size && e.mtime.Equal(other.mtime)
}

// untouched reports whether a source is what it was.
func (e entry) untouched(now entry) bool {
	return now.isFile() && e.size == now.size && e.exact == now.exact
}

// source is where files come from.
type source interface {
	lstat(ctx context.Context, path string) (entry, error)
	stat(ctx context.Context, path string) (entry, error)
	list(ctx context.Context, path string) ([]entry, error)
	readlink(ctx context.Context, path string) (string, error)
	join(folder, name string) string
}

// target is where they go to.
type target interface {
	source
	mkdir(ctx context.Context, path string) error // nil where it is a folder already
	symlink(ctx context.Context, text, path string) error
	remove(ctx context.Context, path string) error
	// finish gives a complete file its time, its right to be run, and its name.
	finish(ctx context.Context, part, path string, of entry) error
}

// disk is this computer's files, to read.
type disk struct{}

func (disk) lstat(_ context.Context, path string) (entry, error) { return infoEntry(os.Lstat(path)) }
func (disk) stat(_ context.Context, path string) (entry, error)  { return infoEntry(os.Stat(path)) }
func (disk) readlink(_ context.Context, path string) (string, error) {
	text, err := os.Readlink(path)
	return filepath.ToSlash(text), err
}
func (disk) join(folder, name string) string { return filepath.Join(folder, name) }

func (disk) list(_ context.Context, path string) ([]entry, error) {
	found, err := os.ReadDir(path)
	return dirEntries(found, err)
}

func infoEntry(info fs.FileInfo, err error) (entry, error) {
	if err != nil {
		return entry{}, err
	}
	return entryOf(info), nil
}

func dirEntries(found []fs.DirEntry, err error) ([]entry, error) {
	list := make([]entry, 0, len(found))
	for _, d := range found {
		info, infoErr := d.Info()
		if errors.Is(infoErr, fs.ErrNotExist) {
			continue // gone meanwhile
		}
		if infoErr != nil {
			return list, infoErr
		}
		list = append(list, entryOf(info))
	}
	return list, err
}

// rooted is a folder of this computer to write into. No link in it, old or new, leads a write out of it.
type rooted struct{ root *os.Root }

func (d rooted) lstat(_ context.Context, path string) (entry, error) {
	return infoEntry(d.root.Lstat(local(path)))
}

func (d rooted) stat(_ context.Context, path string) (entry, error) {
	return infoEntry(d.root.Stat(local(path)))
}

func (d rooted) readlink(_ context.Context, path string) (string, error) {
	text, err := d.root.Readlink(local(path))
	return filepath.ToSlash(text), err
}
func (rooted) join(folder, name string) string { return path.Join(folder, name) }

func (d rooted) list(_ context.Context, path string) ([]entry, error) {
	folder, err := d.root.Open(local(path))
	if err != nil {
		return nil, err
	}
	defer func() { _ = folder.Close() }()
	return dirEntries(folder.ReadDir(-1))
}

func (d rooted) mkdir(_ context.Context, path string) error {
	err := d.root.Mkdir(local(path), 0o777)
	if errors.Is(err, fs.ErrExist) {
		info, statErr := d.root.Stat(local(path))
		if statErr == nil && info.IsDir() {
			return nil
		}
		return errInTheWay
	}
	return err
}

func (d rooted) symlink(_ context.Context, text, path string) error {
	return d.root.Symlink(local(text), local(path))
}
func (d rooted) remove(_ context.Context, path string) error { return d.root.Remove(local(path)) }

func (d rooted) finish(_ context.Context, part, path string, of entry) error {
	part, path = local(part), local(path)
	if of.mode.Perm()&0o100 != 0 {
		info, err := d.root.Stat(part)
		if err != nil {
			return err
		}
		if err := d.root.Chmod(part, runnable(info.Mode())); err != nil {
			return err
		}
	}
	if err := d.root.Chtimes(part, of.mtime, of.mtime); err != nil {
		return err
	}
	return d.root.Rename(part, path)
}

// runnable lets whoever may read a file run it.
func runnable(mode fs.FileMode) fs.FileMode { return mode.Perm() | mode.Perm()&0o444>>2 }

func local(path string) string { return filepath.FromSlash(path) }

// errInTheWay is of what stands where a folder or file belongs.
var errInTheWay = errors.New("something else of that name is in the way")

// lab is the lab's files.
type lab struct{ link *link }

func (l lab) entry(ctx context.Context, look func(c *sftp.Client) (fs.FileInfo, error)) (e entry, err error) {
	err = l.link.do(ctx, func(c *sftp.Client) error {
		e, err = infoEntry(look(c))
		return err
	})
	return e, err
}

func (l lab) lstat(ctx context.Context, path string) (entry, error) {
	return l.entry(ctx, func(c *sftp.Client) (fs.FileInfo, error) { return c.Lstat(path) })
}

func (l lab) stat(ctx context.Context, path string) (entry, error) {
	return l.entry(ctx, func(c *sftp.Client) (fs.FileInfo, error) { return c.Stat(path) })
}

func (l lab) readlink(ctx context.Context, path string) (text string, err error) {
	err = l.link.do(ctx, func(c *sftp.Client) error {
		text, err = c.ReadLink(path)
		return err
	})
	return text, err
}
func (lab) join(folder, name string) string { return path.Join(folder, name) }

func (l lab) list(ctx context.Context, path string) (list []entry, err error) {
	err = l.link.do(ctx, func(c *sftp.Client) error {
		found, err := c.ReadDirContext(ctx, path)
		list = list[:0]
		for _, info := range found {
			list = append(list, entryOf(info))
		}
		return err
	})
	return list, err
}

// mkdir may have worked before the connection was lost.
func (l lab) mkdir(ctx context.Context, path string) error {
	return l.link.do(ctx, func(c *sftp.Client) error {
		err := c.Mkdir(path)
		if err == nil {
			return nil
		}
		if info, statErr := c.Stat(path); statErr == nil {
			if info.IsDir() {
				return nil
			}
			return errInTheWay
		}
		return err
	})
}

func (l lab) symlink(ctx context.Context, text, path string) error {
	return l.link.do(ctx, func(c *sftp.Client) error {
		err := c.Symlink(text, path)
		if err == nil {
			return nil
		}
		if there, readErr := c.ReadLink(path); readErr == nil && there == text {
			return nil
		}
		return err
	})
}

func (l lab) remove(ctx context.Context, path string) error {
	return l.link.do(ctx, func(c *sftp.Client) error {
		if err := c.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

func (l lab) finish(ctx context.Context, part, path string, of entry) error {
	return l.link.do(ctx, func(c *sftp.Client) error {
		info, err := c.Lstat(part)
		if errors.Is(err, fs.ErrNotExist) {
			// It got its name before the connection was lost.
			if there, thereErr := c.Lstat(path); thereErr == nil && of.same(entryOf(there)) {
				return nil
			}
			return err
		}
		if err != nil {
			return err
		}
		if of.mode.Perm()&0o100 != 0 {
			if err := c.Chmod(part, runnable(info.Mode())); err != nil {
				return err
			}
		}
		if err := c.Chtimes(part, of.mtime, of.mtime); err != nil {
			return err
		}
		return c.PosixRename(part, path)
	})
}
