package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A saver writes trees of files whose owners may change them meanwhile, and may have made them to lead it astray. It
// goes down by names that are no links, never onto another file system, and opens nothing but files and folders.
type saver struct {
	ctx context.Context
	to  *archive
	// note hears what was not saved as it is there, and why.
	note func(path, why string)
	// step hears of everything that was saved.
	step func(path string)

	device uint64            // of the tree
	names  map[uint64]string // the first name of files with several, by inode
	held   int               // folders that are open

	list, value []byte // for extended attributes
}

// openFlags never follow a link, never wait for whoever is at the other end of a pipe, and leave no trace.
const openFlags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC | unix.O_NOATIME

// tree saves the folder name in parent, and what is in it, as path.
func (s *saver) tree(parent, name, path string) error {
	fd, err := unix.Open(filepath.Join(parent, name), openFlags|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		s.note(path, "it is no folder: "+err.Error())
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	s.device, s.names, s.held = st.Dev, map[uint64]string{}, 0
	return s.folder(fd, path)
}

// folder saves an open folder.
func (s *saver) folder(fd int, path string) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%q: %w", path, err)
	}
	e := entryOf(path, Folder, &st)
	e.Xattrs = s.xattrs(fd, path)
	if _, err := s.to.add(e, nil); err != nil {
		return err
	}
	s.step(path)
	names, err := namesIn(fd)
	if err != nil {
		s.note(path, "not all of it can be listed: "+err.Error())
	}
	s.held++
	defer func() { s.held-- }()
	for _, name := range names {
		if err := s.child(fd, name, path+"/"+name); err != nil {
			return err
		}
	}
	return nil
}

// namesIn lists an open folder in the order of bytes, as far as that goes.
func namesIn(fd int) (names []string, err error) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := unix.Getdents(fd, buffer)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil && !errors.Is(err, unix.ENOENT) { // the folder itself was deleted
			slices.Sort(names)
			return names, err
		}
		if n <= 0 {
			slices.Sort(names)
			return slices.Compact(names), nil
		}
		_, _, names = unix.ParseDirent(buffer[:n], -1, names)
	}
}

// child saves one thing in an open folder. Only what ends the whole backup is an error.
func (s *saver) child(dir int, name, path string) error {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		s.note(path, "it was deleted meanwhile")
		return nil
	case err != nil:
		s.note(path, err.Error())
		return nil
	case len(path) > maxPath:
		s.note(path, "its path is too long")
		return nil
	case st.Dev != s.device:
		s.note(path, "it lies on another file system")
		return nil
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if s.held >= maxDepth {
			s.note(path, fmt.Sprintf("it lies more than %d folders deep", maxDepth))
			return nil
		}
		return s.open(dir, name, path, unix.O_DIRECTORY, s.folder)
	case unix.S_IFREG:
		return s.open(dir, name, path, 0, s.file)
	case unix.S_IFLNK:
		return s.symlink(dir, name, path, &st)
	case unix.S_IFSOCK:
		s.note(path, "it is a socket")
	case unix.S_IFIFO:
		s.note(path, "it is a pipe")
	default:
		s.note(path, "it is a device")
	}
	return nil
}

// open opens what is in an open folder, and notes it where that cannot be.
func (s *saver) open(dir int, name, path string, flag int, then func(fd int, path string) error) error {
	fd, err := unix.Openat(dir, name, openFlags|flag, 0)
	if err != nil {
		s.note(path, "it cannot be opened: "+err.Error())
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Dev != s.device {
		s.note(path, "it became something else meanwhile")
		return nil //nolint:nilerr // it was noted
	}
	return then(fd, path)
}

func (s *saver) symlink(dir int, name, path string, st *unix.Stat_t) error {
	buffer := make([]byte, 4096)
	n, err := unix.Readlinkat(dir, name, buffer)
	if err != nil || n == 0 || n == len(buffer) {
		s.note(path, "it changed while it was read")
		return nil //nolint:nilerr // it was noted
	}
	e := entryOf(path, Symlink, st)
	e.Mode, e.Target = 0o777, string(buffer[:n])
	_, err = s.to.add(e, nil)
	s.step(path)
	return err
}

// file saves an open file, as long as it was when it was opened.
func (s *saver) file(fd int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		s.note(path, "it became something else meanwhile")
		return nil //nolint:nilerr // it was noted
	}
	e := entryOf(path, File, &st)
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		s.note(path, "saved, but not that it runs as its owner or group")
	}
	if st.Nlink > 1 {
		if first, ok := s.names[st.Ino]; ok {
			link := entryOf(path, Link, &st)
			link.Target, link.Size = first, 0
			_, err := s.to.add(link, nil)
			s.step(path)
			return err
		}
		if len(s.names) < maxLinked {
			s.names[st.Ino], e.Linked = path, true
		}
	}
	e.Xattrs = s.xattrs(fd, path)
	e.Size = st.Size
	var err error
	if e.Data, err = segments(s.ctx, fd, &st); err != nil {
		return err
	}
	from := &fileReader{ctx: s.ctx, fd: fd, data: slices.Clone(e.Data)}
	if from.data == nil {
		from.data = []Segment{{0, e.Size}}
	}
	missing, err := s.to.add(e, from)
	if err != nil {
		return err
	}
	s.step(path)
	var after unix.Stat_t
	switch err := unix.Fstat(fd, &after); {
	case from.failed != nil:
		s.note(path, fmt.Sprintf("saved, but %d bytes could not be read: %s", missing, from.failed))
	case err != nil || missing > 0 || after.Size != st.Size || after.Mtim != st.Mtim:
		s.note(path, "saved, but it changed while it was read")
	}
	return nil
}

// fileReader reads the parts of a file that are no holes, one after the other. What cannot be read ends it.
type fileReader struct {
	ctx    context.Context
	fd     int
	data   []Segment
	failed error
}

func (r *fileReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	for len(r.data) > 0 && r.data[0].Length == 0 {
		r.data = r.data[1:]
	}
	if len(r.data) == 0 || r.failed != nil {
		return 0, io.EOF
	}
	at := &r.data[0]
	n, err := unix.Pread(r.fd, p[:min(int64(len(p)), at.Length)], at.Offset)
	if errors.Is(err, unix.EINTR) {
		return 0, nil
	}
	if err != nil {
		r.failed = err
		return 0, io.EOF
	}
	if n == 0 { // it became shorter
		r.data = nil
		return 0, io.EOF
	}
	at.Offset, at.Length = at.Offset+int64(n), at.Length-int64(n)
	return n, nil
}

// segments finds the parts of a file that are no holes; nil is all of it. Holes are left where they are large; of a
// file with very many of them, only the largest.
func segments(ctx context.Context, fd int, st *unix.Stat_t) ([]Segment, error) {
	if st.Blocks*512 >= st.Size {
		return nil, nil
	}
	hole := int64(64 << 10)
	list := []Segment{}
	for at := int64(0); at < st.Size; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		from, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // nothing but a hole is left
		}
		if err != nil {
			return nil, nil //nolint:nilerr // a file system that knows no holes
		}
		to, err := unix.Seek(fd, from, unix.SEEK_HOLE)
		if err != nil || to <= from {
			return nil, nil //nolint:nilerr // likewise, or the file changed
		}
		from, to = min(from, st.Size), min(to, st.Size)
		if at = to; from == to {
			break
		}
		if last := len(list) - 1; last >= 0 && from-list[last].Offset-list[last].Length < hole {
			list[last].Length = to - list[last].Offset
			continue
		}
		if list = append(list, Segment{from, to - from}); len(list) > maxSegments {
			hole *= 2
			list = joined(list, hole)
		}
	}
	if len(list) == 1 && list[0] == (Segment{0, st.Size}) {
		return nil, nil
	}
	return list, nil
}

// joined is a list without the holes that are smaller than hole, and at most half of maxSegments long.
func joined(list []Segment, hole int64) []Segment {
	for {
		out := list[:1]
		for _, s := range list[1:] {
			if last := &out[len(out)-1]; s.Offset-last.Offset-last.Length < hole {
				last.Length = s.Offset + s.Length - last.Offset
			} else {
				out = append(out, s)
			}
		}
		if list = out; len(list) <= maxSegments/2 {
			return list
		}
		hole *= 2
	}
}

// entryOf is an entry with what every kind has.
func entryOf(path string, kind Kind, st *unix.Stat_t) *Entry {
	return &Entry{
		Path: path, Kind: kind, Mode: st.Mode & uint32(modeOf(kind)), UID: int(st.Uid), GID: int(st.Gid),
		Modified: stamp(st.Mtim.Unix()),
	}
}

// xattrs reads the extended attributes of something open that are saved.
func (s *saver) xattrs(fd int, path string) map[string]string {
	if s.list == nil {
		s.list, s.value = make([]byte, 64<<10), make([]byte, 64<<10)
	}
	n, err := unix.Flistxattr(fd, s.list)
	if err != nil || n == 0 {
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			s.note(path, "saved, but its attributes cannot be read: "+err.Error())
		}
		return nil
	}
	out, size := map[string]string{}, 0
	for name := range strings.SplitSeq(strings.TrimSuffix(string(s.list[:n]), "\x00"), "\x00") {
		if !savedXattr(name) {
			if strings.HasPrefix(name, "user.") {
				s.note(path, "saved, but not the attribute "+name)
			}
			continue
		}
		n, err := unix.Fgetxattr(fd, name, s.value)
		if err == nil {
			size += len(name) + n
		}
		if err != nil || size > maxXattrs {
			s.note(path, "saved, but not the attribute "+name)
			continue
		}
		out[name] = string(s.value[:n])
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
