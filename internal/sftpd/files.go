package sftpd

import (
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"
)

// files answers SFTP's requests with what the process may see and do; it checks no paths and no rights. What it
// adds to the kernel's own rules: only plain files are opened, bits that lend rights are not set, and a full home
// is for reading and deleting.
type files struct {
	home string // where relative paths begin
	full bool   // the home is
}

func newFiles(spec Spec) *files {
	return &files{home: homeOf(spec.Handle), full: spec.Places[0].ReadOnly}
}

var (
	_ sftp.OpenFileWriter       = (*files)(nil)
	_ sftp.PosixRenameFileCmder = (*files)(nil)
	_ sftp.StatVFSFileCmder     = (*files)(nil)
	_ sftp.LstatFileLister      = (*files)(nil)
	_ sftp.RealPathFileLister   = (*files)(nil)
	_ sftp.ReadlinkFileLister   = (*files)(nil)
)

// The modes of what is new; in a folder in which a group writes the group has what the owner has.
const (
	modeFile   = 0o644
	modeFolder = 0o755
)

// Why something is refused, in words that SFTP programs show.
var (
	errNotPlain = errors.New("this is not a plain file, and only such are opened here")
	errFull     = errors.New("your home is full: files can be read and deleted, and nothing can be added until " +
		"there is room")
	errNoRoom = errors.New("there is no room: the disk is full, or all the space that you may use is used up")
)

// explain turns what programs would show as "Failure" into a reason.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EROFS):
		return fs.ErrPermission
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return errNoRoom
	}
	return err
}

// Fileread implements sftp.FileReader.
func (f *files) Fileread(r *sftp.Request) (io.ReaderAt, error) {
	return open(r.Filepath, unix.O_RDONLY)
}

// Filewrite implements sftp.FileWriter.
func (f *files) Filewrite(r *sftp.Request) (io.WriterAt, error) { return f.write(r, unix.O_WRONLY) }

// OpenFile implements sftp.OpenFileWriter.
func (f *files) OpenFile(r *sftp.Request) (sftp.WriterAtReaderAt, error) {
	return f.write(r, unix.O_RDWR)
}

func (f *files) write(r *sftp.Request, flags int) (*file, error) {
	if f.noRoomAt(r.Filepath) {
		return nil, errFull
	}
	how := r.Pflags()
	for _, flag := range []struct {
		set  bool
		flag int
	}{{how.Creat, unix.O_CREAT}, {how.Trunc, unix.O_TRUNC}, {how.Excl, unix.O_EXCL}} {
		if flag.set {
			flags |= flag.flag
		}
	}
	return open(r.Filepath, flags)
}

// file is a plain file that is open. What a program appends, such as reput of OpenSSH, it sends with the place where
// it belongs; several pieces are written at a time, so the end of the file is not that place.
type file struct{ *os.File }

// WriteAt implements io.WriterAt.
func (f *file) WriteAt(p []byte, offset int64) (int, error) {
	n, err := f.File.WriteAt(p, offset)
	return n, explain(err)
}

// open opens a plain file. It never waits for the other end of a pipe.
func open(path string, flags int) (*file, error) {
	fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, modeIn(path, modeFile))
	if err != nil {
		return nil, explain(&fs.PathError{Op: "open", Path: path, Err: err})
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errNotPlain
	}
	if err == nil {
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &file{File: os.NewFile(uintptr(fd), path)}, nil
}

// modeIn is the mode for something new at a path.
func modeIn(path string, mode uint32) uint32 {
	var st unix.Stat_t
	if err := unix.Stat(filepath.Dir(path), &st); err == nil && st.Mode&unix.S_ISGID != 0 && st.Mode&0o020 != 0 {
		mode |= mode & 0o700 >> 3
	}
	return mode
}

// noRoomAt reports whether a path is in a home that is full.
func (f *files) noRoomAt(path string) bool {
	if !f.full {
		return false
	}
	if folder, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(folder, filepath.Base(path))
	}
	rest, in := strings.CutPrefix(path, f.home)
	return in && (rest == "" || rest[0] == '/') && !strings.HasPrefix(rest, "/"+sharedDir+"/")
}

// Filecmd implements sftp.FileCmder.
func (f *files) Filecmd(r *sftp.Request) error { return explain(f.command(r)) }

func (f *files) command(r *sftp.Request) error {
	switch r.Method {
	case "Setstat":
		return f.setstat(r)
	case "Rename":
		return renameNew(r.Filepath, r.Target)
	case "Rmdir":
		return unix.Rmdir(r.Filepath)
	case "Remove":
		return unix.Unlink(r.Filepath)
	}
	if target := r.Target; r.Method == "Mkdir" && f.noRoomAt(r.Filepath) || target != "" && f.noRoomAt(target) {
		return errFull
	}
	switch r.Method {
	case "Mkdir":
		return unix.Mkdir(r.Filepath, modeIn(r.Filepath, modeFolder))
	case "Link":
		return os.Link(r.Filepath, r.Target)
	case "Symlink":
		return os.Symlink(r.Filepath, r.Target)
	}
	return sftp.ErrSSHFxOpUnsupported
}

// renameNew is what SFTP calls a rename: it replaces nothing.
func renameNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // such as on NFS
		if _, err := os.Lstat(to); err == nil {
			return unix.EEXIST
		}
		return os.Rename(from, to)
	}
	return err
}

// PosixRename implements sftp.PosixRenameFileCmder.
func (f *files) PosixRename(r *sftp.Request) error { return explain(os.Rename(r.Filepath, r.Target)) }

// setstat changes what the client names, in the order of OpenSSH's server.
func (f *files) setstat(r *sftp.Request) error {
	which, attributes := r.AttrFlags(), r.Attributes()
	if attributes == nil {
		return unix.EINVAL
	}
	if which.Size {
		switch {
		case attributes.Size > 0 && f.noRoomAt(r.Filepath):
			return errFull
		case attributes.Size > 1<<62:
			return unix.EFBIG
		}
		if err := os.Truncate(r.Filepath, int64(attributes.Size)); err != nil {
			return err
		}
	}
	if which.Permissions {
		if err := chmod(r.Filepath, attributes.Mode); err != nil {
			return err
		}
	}
	if which.Acmodtime {
		if err := os.Chtimes(r.Filepath, time.Unix(int64(attributes.Atime), 0),
			time.Unix(int64(attributes.Mtime), 0)); err != nil {
			return err
		}
	}
	if which.UidGid {
		return os.Chown(r.Filepath, int(attributes.UID), int(attributes.GID))
	}
	return nil
}

// chmod sets the nine bits of access. A folder that a group shares stays one; nothing becomes setuid.
func chmod(path string, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	mode &= 0o777
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		mode |= st.Mode & (unix.S_ISGID | unix.S_ISVTX)
	}
	return unix.Chmod(path, mode)
}

// StatVFS implements sftp.StatVFSFileCmder.
func (f *files) StatVFS(r *sftp.Request) (*sftp.StatVFS, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(r.Filepath, &st); err != nil {
		return nil, err
	}
	return &sftp.StatVFS{Bsize: uint64(st.Bsize), Frsize: uint64(st.Frsize), Blocks: st.Blocks, Bfree: st.Bfree,
		Bavail: st.Bavail,
		Files:  st.Files, Ffree: st.Ffree, Favail: st.Ffree, Flag: uint64(st.Flags), Namemax: uint64(st.Namelen)}, nil
}

// Filelist implements sftp.FileLister.
func (f *files) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	switch r.Method {
	case "List":
		return list(r.Filepath)
	case "Stat":
		info, err := os.Stat(r.Filepath)
		return entries{held{info}}, err
	}
	return nil, sftp.ErrSSHFxOpUnsupported
}

// Lstat implements sftp.LstatFileLister.
func (f *files) Lstat(r *sftp.Request) (sftp.ListerAt, error) {
	info, err := os.Lstat(r.Filepath)
	return entries{held{info}}, err
}

// held is a file as SFTP can describe it. SFTP's times are seconds from 1970 to 2106, and others would wrap around;
// held reports the nearest one.
type held struct{ os.FileInfo }

func (h held) ModTime() time.Time {
	return time.Unix(min(max(h.FileInfo.ModTime().Unix(), 0), math.MaxUint32), 0)
}

// Readlink implements sftp.ReadlinkFileLister.
func (f *files) Readlink(path string) (string, error) { return os.Readlink(f.absolute(path)) }

// RealPath implements sftp.RealPathFileLister.
func (f *files) RealPath(path string) (string, error) {
	path = f.absolute(path)
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real, nil
	}
	return path, nil // what is not there yet
}

func (f *files) absolute(path string) string {
	if !filepath.IsAbs(path) {
		path = filepath.Join(f.home, path)
	}
	return filepath.Clean(path)
}

// entries are what is known already.
type entries []os.FileInfo

// ListAt implements sftp.ListerAt.
func (e entries) ListAt(to []os.FileInfo, offset int64) (int, error) {
	if offset >= int64(len(e)) {
		return 0, io.EOF
	}
	return copy(to, e[offset:]), nil
}

// folder is one that is being listed. It holds names only, and looks at files as they are asked for.
type folder struct {
	path string

	mu    sync.Mutex
	names []string
}

func list(path string) (*folder, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	return &folder{path: path, names: names}, err
}

// ListAt implements sftp.ListerAt. It goes on from where it was, whatever the offset: files vanish meanwhile.
func (f *folder) ListAt(to []os.FileInfo, _ int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for n < len(to) && len(f.names) > 0 {
		if info, err := os.Lstat(filepath.Join(f.path, f.names[0])); err == nil {
			to[n] = held{info}
			n++
		}
		f.names = f.names[1:]
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}
