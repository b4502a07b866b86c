package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/beneath"
	"github.com/gpulab/gpulab/internal/units"
)

// stageFolder is where an archive is unpacked: in the data folder, for only from there it can be put in place by names
// alone, and also in the folders of homes and shared folders where those are other file systems.
const stageFolder = ".restore"

// parts are the folders of an archive.
var parts = []string{"etc", "data", "homes", "folders"}

// Stage is an unpacked archive that is not in place yet.
type Stage struct {
	dataDir string
	at      map[string]string // the folder that each part is unpacked into
	lock    *os.File
}

// NewStage makes room for an archive below a data folder, which it makes where there is none. What an earlier try left
// goes.
func NewStage(ctx context.Context, dataDir string) (*Stage, error) {
	if err := os.MkdirAll(dataDir, 0o711); err != nil {
		return nil, fmt.Errorf("the data folder: %w", err)
	}
	lock, err := os.Open(dataDir)
	if err != nil {
		return nil, err
	}
	s := &Stage{dataDir: dataDir, at: map[string]string{}, lock: lock}
	for _, part := range parts {
		base, err := s.base(part)
		if err == nil {
			err = beneath.Delete(ctx, base, stageFolder)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("make room for the backup: %w", err), lock.Close())
		}
	}
	for _, part := range parts {
		base, err := s.base(part)
		if err == nil {
			s.at[part] = filepath.Join(base, stageFolder, part)
			err = os.MkdirAll(s.at[part], 0o700)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("make room for the backup: %w", err), lock.Close())
		}
	}
	return s, nil
}

// base is the folder in whose mount a part will be, since nothing can be moved from one mount to another: the data
// folder, or that of the part.
func (s *Stage) base(part string) (string, error) {
	if part != "homes" && part != "folders" {
		return s.dataDir, nil
	}
	own := filepath.Join(s.dataDir, part)
	var here, there unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, own, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE|unix.STATX_MNT_ID,
		&there)
	if errors.Is(err, fs.ErrNotExist) {
		return s.dataDir, nil
	}
	if err == nil {
		err = unix.Statx(unix.AT_FDCWD, s.dataDir, 0, unix.STATX_MNT_ID, &here)
	}
	if err != nil {
		return "", &fs.PathError{Op: "stat", Path: own, Err: err}
	}
	if there.Mode&unix.S_IFMT != unix.S_IFDIR {
		return "", fmt.Errorf("%s is not a folder; move it away and try again", own)
	}
	// Linux tells mounts apart since 5.8. A bind mount of the same file system is one, too.
	if here.Mnt_id != there.Mnt_id || here.Dev_major != there.Dev_major || here.Dev_minor != there.Dev_minor {
		return own, nil
	}
	return s.dataDir, nil
}

// Path is where an entry is unpacked, such as "etc/config.yaml" or "data".
func (s *Stage) Path(entry string) string {
	part, rest, _ := strings.Cut(entry, "/")
	return filepath.Join(s.at[part], rest)
}

// Discard deletes what is unpacked.
func (s *Stage) Discard(ctx context.Context) error {
	var errs []error
	for _, part := range parts {
		errs = append(errs, beneath.Delete(ctx, filepath.Dir(filepath.Dir(s.at[part])), stageFolder))
	}
	return errors.Join(append(errs, s.lock.Close())...)
}

// Unpack reads an archive to its end and unpacks it. check hears of the manifest before anything is written; step
// after each entry, of how much has been. An error means that nothing of it may be used.
func (s *Stage) Unpack(ctx context.Context, from io.Reader, check func(Manifest) error,
	step func(path string, bytes int64)) (Manifest, Totals, error) {
	u := &unpacker{ctx: ctx, check: check, step: step, open: map[string]int{}, root: os.Geteuid() == 0}
	defer u.close()
	for _, part := range parts {
		fd, err := unix.Open(s.at[part], unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return Manifest{}, Totals{}, &fs.PathError{Op: "open", Path: s.at[part], Err: err}
		}
		u.open[part] = fd
	}
	return read(ctx, from, u)
}

// Sync makes what is unpacked safe against a power cut.
func (s *Stage) Sync() error {
	synced := map[uint64]bool{} // file systems
	for _, part := range parts {
		dir, err := os.Open(s.at[part])
		if err != nil {
			return err
		}
		var st unix.Stat_t
		err = unix.Fstat(int(dir.Fd()), &st)
		if err == nil && !synced[st.Dev] {
			synced[st.Dev] = true
			err = unix.Syncfs(int(dir.Fd()))
		}
		if err = errors.Join(err, dir.Close()); err != nil {
			return fmt.Errorf("write the backup to the disk: %w", err)
		}
	}
	return nil
}

// unpacker makes files of entries. Every folder on the way to where one is made was made by it and is held open, so
// nothing in the archive leads it elsewhere.
type unpacker struct {
	ctx   context.Context
	check func(Manifest) error
	step  func(path string, bytes int64)
	root  bool           // files get their owners
	open  map[string]int // the folder of each part
	down  []openFolder   // on the way to the last entry
	bytes int64
	asked int64 // bytes when the room was looked at last
}

type openFolder struct {
	fd    int
	entry *Entry
}

func (u *unpacker) begin(m Manifest) error { return u.check(m) }

func (u *unpacker) close() {
	for _, f := range u.down {
		_ = unix.Close(f.fd)
	}
	for _, fd := range u.open {
		_ = unix.Close(fd)
	}
}

// put makes what an entry is.
func (u *unpacker) put(e *Entry, content io.Reader) error {
	if err := u.ctx.Err(); err != nil {
		return err
	}
	part, _, _ := strings.Cut(e.Path, "/")
	dir := u.open[part]
	if n := len(u.down); n > 0 {
		dir = u.down[n-1].fd
	}
	if err := u.room(dir, e.stored()); err != nil {
		return err
	}
	var err error
	name := filepath.Base(e.Path)
	switch e.Kind {
	case Folder:
		err = u.folder(dir, name, e)
	case File:
		err = u.file(dir, name, e, content)
	case Symlink:
		err = u.symlink(dir, name, e)
	case Link:
		_, target, _ := strings.Cut(e.Target, "/")
		err = unix.Linkat(u.open[part], target, dir, name, 0)
	}
	if err != nil {
		return fmt.Errorf("unpack %.200q: %w", e.Path, err)
	}
	u.step(e.Path, u.bytes)
	return nil
}

func (u *unpacker) folder(dir int, name string, e *Entry) error {
	if err := unix.Mkdirat(dir, name, 0o700); err != nil {
		return err
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	u.down = append(u.down, openFolder{fd, e})
	return nil
}

// leave gives a folder what would have kept others from being made in it, or been changed by that.
func (u *unpacker) leave() error {
	last := u.down[len(u.down)-1]
	u.down = u.down[:len(u.down)-1]
	err := errors.Join(u.dress(last.fd, last.entry), unix.Close(last.fd))
	if err != nil {
		return fmt.Errorf("unpack %.200q: %w", last.entry.Path, err)
	}
	return nil
}

func (u *unpacker) file(dir int, name string, e *Entry, content io.Reader) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), e.Path)
	defer f.Close()
	data := e.Data
	if data == nil {
		data = []Segment{{0, e.Size}}
	}
	if e.Data != nil {
		if err := f.Truncate(e.Size); err != nil {
			return err
		}
	}
	for _, s := range data {
		for done := int64(0); done < s.Length; {
			n, err := io.CopyN(io.NewOffsetWriter(f, s.Offset+done), content, min(s.Length-done, roomEvery))
			u.bytes += n
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return err
			}
			if done += n; done < s.Length {
				if err := u.room(fd, s.Length-done); err != nil {
					return err
				}
			}
		}
	}
	if err := u.dress(fd, e); err != nil {
		return err
	}
	return f.Close()
}

func (u *unpacker) symlink(dir int, name string, e *Entry) error {
	if err := unix.Symlinkat(e.Target, dir, name); err != nil {
		return err
	}
	if u.root {
		if err := unix.Fchownat(dir, name, e.UID, e.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(dir, name, times(e), unix.AT_SYMLINK_NOFOLLOW)
}

// dress gives something open its owner, rights, attributes and time.
func (u *unpacker) dress(fd int, e *Entry) error {
	uid, gid := e.UID, e.GID
	if place(e.Path) == "" {
		uid, gid = 0, 0
	}
	if u.root {
		if err := unix.Fchown(fd, uid, gid); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(fd, e.Mode); err != nil {
		return err
	}
	for _, name := range sortedKeys(e.Xattrs) {
		if err := unix.Fsetxattr(fd, name, []byte(e.Xattrs[name]), 0); err != nil {
			return fmt.Errorf("its attribute %s: %w", name, err)
		}
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), times(e), 0)
}

// times leaves the time of the last reading as it is.
func times(e *Entry) []unix.Timespec {
	return []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: e.Modified.Unix(), Nsec: int64(e.Modified.Nanosecond())}}
}

// roomEvery is how much is written between two looks at the room that is left, in bytes.
const roomEvery = 64 << 20

// room makes sure that the disk has place for more bytes and some to spare: an archive that unpacks to more than there
// is ends here, and not with a full disk.
func (u *unpacker) room(fd int, more int64) error {
	if more < roomEvery && u.bytes < u.asked+roomEvery && u.asked > 0 {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	u.asked = max(u.bytes, 1)
	free := int64(min(st.Bavail, 1<<40)) * st.Bsize
	spare := min(1<<30, int64(min(st.Blocks, 1<<40))*st.Bsize/20)
	if more > free-spare || st.Files > 0 && st.Ffree < 100 {
		return fmt.Errorf("the disk of the data folder has no room for the backup: %s are free, of which %s stay so, and "+
			"at least %s more are to come; make room, or restore where there is more",
			units.Bytes(uint64(free)), units.Bytes(uint64(spare)), units.Bytes(uint64(more)))
	}
	return nil
}
