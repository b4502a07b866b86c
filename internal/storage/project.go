package storage

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/users"
)

// Project quotas: the file system counts the blocks of all files that carry a number, and refuses more than a
// limit. A home's number is its owner's UID. Constants and layouts are the kernel's (uapi/linux/quota.h,
// dqblk_xfs.h, fs.h).
const (
	projectQuota = 2 // PRJQUOTA

	quotaGet   = 0x800007   // Q_GETQUOTA
	quotaSet   = 0x800008   // Q_SETQUOTA
	quotaState = 'X'<<8 + 8 // Q_XGETQSTATV

	stateVersion  = 1
	projectsCount = 1 << 4 // FS_QUOTA_PDQ_ACCT
	projectsLimit = 1 << 5 // FS_QUOTA_PDQ_ENFD

	quotaBlock  = 1024 // bytes of the unit of limits
	limitsValid = 5    // QIF_LIMITS: those of blocks and of files

	getFileAttributes = 0x801c581f // FS_IOC_FSGETXATTR
	setFileAttributes = 0x401c5820 // FS_IOC_FSSETXATTR
	inherit           = 0x200      // FS_XFLAG_PROJINHERIT
)

// dqblk is struct if_dqblk.
type dqblk struct {
	hardBlocks, softBlocks, bytes, hardFiles, softFiles, files, blockTime, fileTime uint64
	valid, _                                                                        uint32
}

// fileAttributes is struct fsxattr.
type fileAttributes struct {
	flags, extent, extents, project, copyExtent uint32
	_                                           [8]byte
}

func quotactl(dir string, command uint32, id int, into unsafe.Pointer) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), uintptr(command)<<8|projectQuota, uintptr(id),
		uintptr(into), 0, 0)
	runtime.KeepAlive(into)
	if errno != 0 {
		return errno
	}
	return nil
}

// projectsOn reports whether the file system of a folder keeps limits of projects.
func projectsOn(dir string) bool {
	state := make([]byte, 256) // struct fs_quota_statv is 160 bytes
	state[0] = stateVersion
	if err := quotactl(dir, quotaState, 0, unsafe.Pointer(&state[0])); err != nil {
		return false
	}
	flags := binary.NativeEndian.Uint16(state[2:])
	return flags&projectsCount != 0 && flags&projectsLimit != 0
}

// readProject is what the file system knows of a project.
func readProject(dir string, project int) (q dqblk, err error) {
	err = quotactl(dir, quotaGet, project, unsafe.Pointer(&q))
	if errors.Is(err, unix.ENOENT) {
		return dqblk{}, nil // XFS knows only those with files
	}
	if err != nil {
		return dqblk{}, fmt.Errorf("read the quota of project %d: %w", project, err)
	}
	return q, nil
}

// projectUse is how much the files of a project take, and how many they are.
func projectUse(dir string, project int) (bytes, files int64, err error) {
	q, err := readProject(dir, project)
	return int64(q.bytes), int64(q.files), err
}

// projectBound bounds a project; 0 is no bound.
type projectBound struct {
	bytes int64 // whole blocks
	files int64
}

// boundOf is the bound of so many bytes, which are rounded up, and so many files.
func boundOf(bytes, files int64) projectBound {
	return projectBound{(bytes + quotaBlock - 1) / quotaBlock * quotaBlock, files}
}

// limitProject bounds a project.
func limitProject(dir string, project int, limit projectBound) error {
	q := dqblk{hardBlocks: uint64(limit.bytes / quotaBlock), hardFiles: uint64(limit.files), valid: limitsValid}
	if err := quotactl(dir, quotaSet, project, unsafe.Pointer(&q)); err != nil {
		return fmt.Errorf("limit project %d: %w", project, err)
	}
	return nil
}

// projectLimit reads the bound.
func projectLimit(dir string, project int) (projectBound, error) {
	q, err := readProject(dir, project)
	return projectBound{int64(q.hardBlocks) * quotaBlock, int64(q.hardFiles)}, err
}

// setProject gives an open file or folder its project; what is made in the folder gets it too.
func setProject(fd, project int, folder bool) error {
	var a fileAttributes
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), getFileAttributes,
		uintptr(unsafe.Pointer(&a))); errno != 0 {
		return errno
	}
	flags := a.flags
	if folder {
		flags |= inherit
	}
	if a.project == uint32(project) && a.flags == flags {
		return nil
	}
	a.project, a.flags = uint32(project), flags
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), setFileAttributes,
		uintptr(unsafe.Pointer(&a))); errno != 0 {
		return errno
	}
	return nil
}

// adopt gives everything in a home its owner's project, folders before what is in them: so nothing that is made
// meanwhile is missed.
func adopt(ctx context.Context, path string, project int) error {
	_, err := walk(ctx, path, rest,
		func(fd int) error { return setProject(fd, project, true) },
		func(dir int, name string) error {
			fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOATIME, 0)
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) {
				return nil
			}
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return setProject(fd, project, false)
		})
	return err
}

// How many bytes and files more than its limit a full home takes of gpulab's own.
const (
	roomForRoot  = 1 << 20
	filesForRoot = 1 << 10
)

// withRoom does something as root in a home that may be full. XFS, unlike ext4, refuses root then, too.
func (s *Service) withRoom(u users.User, do func() error) error {
	err := do()
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) || !s.Kept() {
		return err
	}
	limit, limitErr := projectLimit(s.cfg.HomesDir, u.UID)
	used, files, useErr := projectUse(s.cfg.HomesDir, u.UID)
	if limitErr != nil || useErr != nil || limit == (projectBound{}) {
		return err // the disk itself is full
	}
	more := limit
	if limit.bytes > 0 {
		more.bytes = boundOf(max(limit.bytes, used)+roomForRoot, 0).bytes
	}
	if limit.files > 0 {
		more.files = max(limit.files, files) + filesForRoot
	}
	if err := limitProject(s.cfg.HomesDir, u.UID, more); err != nil {
		return err
	}
	return errors.Join(do(), limitProject(s.cfg.HomesDir, u.UID, limit))
}

// Kept reports whether the file system itself keeps homes within their limits.
func (s *Service) Kept() bool { return projectsOn(s.cfg.HomesDir) }

// isProject reports whether everything in somebody's home counts for a limit that the file system keeps.
func (s *Service) isProject(ctx context.Context, user int64) (bool, error) {
	var n int
	if err := s.cfg.DB.QueryRowContext(ctx, "SELECT count(*) FROM home_projects WHERE user_id = ?",
		user).Scan(&n); err != nil {
		return false, fmt.Errorf("read which homes the file system counts: %w", err)
	}
	return n > 0 && s.Kept(), nil
}

// keepProjects brings the file system's limits to what they should be.
func (s *Service) keepProjects(ctx context.Context) error {
	if !s.Kept() {
		return nil
	}
	people, err := s.cfg.People.List(ctx)
	var errs []error
	for i := range people {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := s.keepProject(ctx, people[i]); err != nil {
			errs = append(errs, fmt.Errorf("the home of %s: %w", people[i].Handle, err))
		}
	}
	return errors.Join(append(errs, err)...)
}

func (s *Service) keepProject(ctx context.Context, u users.User) error {
	if _, err := os.Lstat(s.Home(u.ID)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	done, err := s.isProject(ctx, u.ID)
	if err != nil {
		return err
	}
	if !done {
		if err := adopt(ctx, s.Home(u.ID), u.UID); err != nil {
			return err
		}
		if _, err := s.cfg.DB.ExecContext(ctx, "INSERT INTO home_projects (user_id) VALUES (?) ON CONFLICT DO NOTHING",
			u.ID); err != nil {
			return err
		}
	}
	limit, err := s.cfg.HomeLimit(ctx, u)
	if err != nil {
		return err
	}
	files, err := s.cfg.HomeFiles(ctx, u)
	if err != nil {
		return err
	}
	var want projectBound // where 0 would be no limit at all
	if limit != nil {
		want.bytes = boundOf(max(limit.Bytes, 1), 0).bytes
	}
	if files != nil {
		want.files = max(files.Files, 1)
	}
	have, err := projectLimit(s.cfg.HomesDir, u.UID)
	if err != nil {
		return err
	}
	if want == have {
		return nil
	}
	return limitProject(s.cfg.HomesDir, u.UID, want)
}
