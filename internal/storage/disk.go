package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/gpulab/gpulab/internal/beneath"
	"github.com/gpulab/gpulab/internal/users"
)

// ensureHome makes the home if it does not exist, and gives its owner every right to it.
func (s *Service) ensureHome(u users.User) error {
	if !users.PersonalUID(u.UID) {
		return fmt.Errorf("UID %d is not a person's: those are %d–%d and %d–%d", u.UID, users.FirstKeptUID, users.LastKeptUID,
			users.FirstUID, users.LastUID)
	}
	if err := os.MkdirAll(s.cfg.HomesDir, 0o711); err != nil {
		return err
	}
	return beneath.Home(s.cfg.HomesDir, number(u.ID), u.UID)
}

// makeFolder makes a shared folder on disk. Everybody may pass through the folder of all of them, and through
// a hand-in to the part of their own; nobody sees what is beside it.
func (s *Service) makeFolder(id int64, kind Kind, gid int) error {
	if err := os.MkdirAll(s.cfg.FoldersDir, 0o711); err != nil {
		return err
	}
	return beneath.Make(s.cfg.FoldersDir, number(id), func(dir *os.File) error {
		if kind == HandIn {
			return errors.Join(dir.Chown(0, gid+1), dir.Chmod(0o751))
		}
		if err := dir.Chown(0, gid); err != nil {
			return err
		}
		if err := dir.Chmod(fs.ModeSetgid | 0o770); err != nil {
			return err
		}
		return setACL(dir, groupACL(gid+1))
	})
}

// makePart makes one person's part of a hand-in: theirs to write, and to read for who looks at the whole.
func (s *Service) makePart(id int64, handle string, uid, reader int) error {
	if !users.PersonalUID(uid) {
		return fmt.Errorf("UID %d is not a person's", uid)
	}
	if err := s.isFolder(id); err != nil {
		return err
	}
	return beneath.Make(s.folder(id), handle, func(dir *os.File) error {
		if err := dir.Chown(uid, reader); err != nil {
			return err
		}
		if err := dir.Chmod(fs.ModeSetgid | 0o750); err != nil {
			return err
		}
		return setACL(dir, partACL())
	})
}

func (s *Service) isFolder(id int64) error {
	info, err := os.Lstat(s.folder(id))
	if err == nil && !info.IsDir() {
		err = errors.New("it is not a folder")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.folder(id), err)
	}
	return nil
}

// mountPoints makes the folders in somebody's home on which shared ones appear. They belong to root: nothing
// gets lost in one while its folder is not there. What stands in the way is renamed, never deleted.
func (s *Service) mountPoints(u users.User, names []string) error {
	home, err := os.OpenRoot(s.Home(u.ID))
	if err != nil {
		return err
	}
	defer func() { _ = home.Close() }()
	if err := mountPoint(home, Shared, false); err != nil {
		return err
	}
	shared, err := home.OpenRoot(Shared)
	if err != nil {
		return err
	}
	defer func() { _ = shared.Close() }()
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
		if err := mountPoint(shared, name, true); err != nil {
			return err
		}
	}
	return dropMountPoints(shared, wanted)
}

// mountPoint makes one; a folder that is empty, or may hold something, is taken as it is.
func mountPoint(in *os.Root, name string, empty bool) error {
	info, err := in.Lstat(name)
	if err == nil && info.IsDir() {
		if !empty || owner(info) == 0 {
			return nil
		}
		if in.Remove(name) == nil { // an empty one of the person's own
			return makeMountPoint(in, name)
		}
	}
	if err == nil {
		if err := setAside(in, name); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return makeMountPoint(in, name)
}

func makeMountPoint(in *os.Root, name string) error {
	if err := in.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// setAside renames what is in the way of a mount point.
func setAside(in *os.Root, name string) error {
	for i := 1; i < 1000; i++ {
		aside := fmt.Sprintf("%s.yours-%d", name, i)
		if _, err := in.Lstat(aside); errors.Is(err, fs.ErrNotExist) {
			return in.Rename(name, aside)
		}
	}
	return fmt.Errorf("%s is in the way of shared folders; rename it", name)
}

// dropMountPoints removes the empty ones that root made for folders that are not shown any more.
func dropMountPoints(shared *os.Root, wanted map[string]bool) error {
	dir, err := shared.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(1000)
	if err != nil && len(names) == 0 {
		return nil // it is empty
	}
	for _, name := range names {
		if wanted[name] {
			continue
		}
		if info, err := shared.Lstat(name); err == nil && info.IsDir() && owner(info) == 0 {
			_ = shared.Remove(name) // which leaves one with something in it
		}
	}
	return nil
}

// owner is the user ID of a file's owner.
func owner(info fs.FileInfo) uint32 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Uid
	}
	return ^uint32(0)
}
