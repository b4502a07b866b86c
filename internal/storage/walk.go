package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Entry is something large in a home or folder.
type Entry struct {
	Path   []byte `json:"path"` // within; any bytes but 0
	Bytes  int64  `json:"bytes"`
	Folder bool   `json:"folder,omitempty"`
}

// found is what a walk came to.
type found struct {
	bytes, files int64
	largest      []Entry
}

// Bounds of a walk.
const (
	keptEntries  = 25      // the largest files, and as many folders
	entryDepth   = 4       // how deep the folders are that are listed
	maxEntryPath = 1000    // bytes of a path that is listed
	maxPending   = 2 << 20 // names of folders that wait to be looked at
	walkBurst    = 20 * time.Millisecond
)

// errMoving says that what is measured was moved about meanwhile.
var errMoving = errors.New("folders in it were moved while they were read")

// A level is a folder on the way down to the one that is being read.
type level struct {
	name     string
	dev, ino uint64
	below    []string // folders in it that are still to be read
	bytes    int64
}

// A walker adds up a tree of files. It goes down by names that are no links, up by "..", of which it checks
// that it is where it came from, and never onto another file system: so it holds one folder open, however
// deep the tree, and is led nowhere else.
type walker struct {
	ctx      context.Context
	at       int // the open folder
	levels   []level
	pending  int
	linked   map[uint64]struct{} // files with several names that are counted already
	found    found
	dirs     []Entry
	began    time.Time
	pause    func(time.Duration) // lets others have the disk
	onFolder func(fd int) error  // is called with each folder, nil for nobody
	onFile   func(dir int, name string) error
}

// walk adds up the folder name in parent. Sizes are of blocks, files with several names count once.
func walk(ctx context.Context, path string, pause func(time.Duration), onFolder func(fd int) error,
	onFile func(dir int, name string) error) (found, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOATIME, 0)
	if err != nil {
		return found{}, fmt.Errorf("open %s: %w", path, err)
	}
	w := walker{
		ctx: ctx, at: fd, linked: map[uint64]struct{}{}, began: time.Now(), pause: pause, onFolder: onFolder, onFile: onFile,
	}
	defer func() { _ = unix.Close(w.at) }()
	if err := w.run(); err != nil {
		return found{}, fmt.Errorf("measure %s: %w", path, err)
	}
	w.found.largest = append(w.found.largest, w.dirs...)
	slices.SortStableFunc(w.found.largest, func(a, b Entry) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return w.found, nil
}

func (w *walker) run() error {
	if err := w.enter(""); err != nil {
		return err
	}
	for {
		top := &w.levels[len(w.levels)-1]
		if n := len(top.below); n > 0 {
			name := top.below[n-1]
			top.below = top.below[:n-1]
			w.pending--
			if err := w.down(name); err != nil {
				return err
			}
			continue
		}
		if len(w.levels) == 1 {
			w.found.bytes = top.bytes
			return nil
		}
		if err := w.up(); err != nil {
			return err
		}
	}
}

// down goes into a folder of the open one. One that is gone, or is none any more, counts nothing.
func (w *walker) down(name string) error {
	fd, err := unix.Openat(w.at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOATIME, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil
	case err != nil:
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return err
	}
	if st.Dev != w.levels[0].dev { // something is mounted there
		return unix.Close(fd)
	}
	if err := unix.Close(w.at); err != nil {
		_ = unix.Close(fd)
		return err
	}
	w.at = fd
	return w.enter(name)
}

// enter reads the open folder.
func (w *walker) enter(name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(w.at, &st); err != nil {
		return err
	}
	w.levels = append(w.levels, level{name: name, dev: st.Dev, ino: st.Ino, bytes: st.Blocks * 512})
	if w.onFolder != nil {
		if err := w.onFolder(w.at); err != nil {
			return err
		}
	}
	buffer := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(w.at, buffer)
		if errors.Is(err, unix.ENOENT) || n == 0 && err == nil {
			return nil
		}
		if err != nil {
			return err
		}
		_, _, names := unix.ParseDirent(buffer[:n], -1, nil)
		for _, name := range names {
			if err := w.count(name); err != nil {
				return err
			}
		}
		if err := w.rest(); err != nil {
			return err
		}
	}
}

// count adds one thing in the open folder.
func (w *walker) count(name string) error {
	var st unix.Stat_t
	err := unix.Fstatat(w.at, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	top := &w.levels[len(w.levels)-1]
	w.found.files++
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if w.pending++; w.pending > maxPending {
			return errors.New("it holds more folders than are counted")
		}
		top.below = append(top.below, name)
		return nil
	}
	if st.Nlink > 1 {
		if _, counted := w.linked[st.Ino]; counted {
			return nil
		}
		w.linked[st.Ino] = struct{}{}
	}
	top.bytes += st.Blocks * 512
	w.found.largest = w.note(w.found.largest, name, st.Blocks*512, false)
	if w.onFile != nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
		return w.onFile(w.at, name)
	}
	return nil
}

// up goes back to where the open folder was found.
func (w *walker) up() error {
	done := w.levels[len(w.levels)-1]
	w.levels = w.levels[:len(w.levels)-1]
	parent := &w.levels[len(w.levels)-1]
	parent.bytes += done.bytes
	if len(w.levels) <= entryDepth {
		w.dirs = w.note(w.dirs, done.name, done.bytes, true)
	}
	fd, err := unix.Openat(w.at, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOATIME, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Dev != parent.dev || st.Ino != parent.ino {
		_ = unix.Close(fd)
		return errors.Join(errMoving, err)
	}
	if err := unix.Close(w.at); err != nil {
		_ = unix.Close(fd)
		return err
	}
	w.at = fd
	return w.rest()
}

// note keeps the largest of a kind.
func (w *walker) note(list []Entry, name string, bytes int64, folder bool) []Entry {
	if bytes == 0 || len(list) == keptEntries && bytes <= list[len(list)-1].Bytes {
		return list
	}
	var path strings.Builder
	for _, l := range w.levels[1:] {
		path.WriteString(l.name + "/")
		if path.Len() > maxEntryPath {
			return list
		}
	}
	path.WriteString(name)
	if path.Len() > maxEntryPath {
		return list
	}
	at, _ := slices.BinarySearchFunc(list, bytes, func(e Entry, b int64) int { return cmp.Compare(b, e.Bytes) })
	list = slices.Insert(list, at, Entry{Path: []byte(path.String()), Bytes: bytes, Folder: folder})
	return list[:min(len(list), keptEntries)]
}

// rest pauses as long as it has worked, every now and then: at most half of the disk's time is the walk's.
func (w *walker) rest() error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if worked := time.Since(w.began); worked > walkBurst {
		w.pause(worked)
		w.began = time.Now()
	}
	return nil
}
