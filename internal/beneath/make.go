// Package beneath makes and deletes folders whose content, and that of the folders beside them, is whatever
// their users made of it: nothing is ever led out of them, not by links nor by a mount.
//
// Packages tenancy and storage import it; it imports none of gpulab's.
package beneath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Make makes a folder in parent that has its name only once complete, which gets it open, is done with it:
// such as after it has its owner. One that is there already is left as it is; anything else of that name is
// an error.
func Make(parent, name string, complete func(dir *os.File) error) error {
	root, err := os.OpenRoot(parent)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	info, err := root.Lstat(name)
	if err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a folder; move it away and try again", filepath.Join(parent, name))
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	tmp, err := os.MkdirTemp(parent, ".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp) }()
	dir, err := root.OpenFile(filepath.Base(tmp), os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := complete(dir); err != nil {
		return err
	}
	err = root.Rename(filepath.Base(tmp), name)
	if errors.Is(err, fs.ErrExist) {
		return nil // somebody else made it just now
	}
	return err
}

// Home makes the folder of a person with this user ID, unless it exists. If the owner lacks a right to it, perhaps
// after a mistaken chmod, or others have one, its mode is set back to 0700. The group's rights stay, since they are the
// mask of an access control list. File systems that do not store modes are no error.
func Home(parent, name string, uid int) error {
	if err := Make(parent, name, func(dir *os.File) error { return dir.Chown(uid, uid) }); err != nil {
		return err
	}
	root, err := os.OpenRoot(parent)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a folder; move it away and try again", filepath.Join(parent, name))
	}
	mode := info.Mode()
	if mode.Perm()&0o707 == 0o700 {
		return nil
	}
	err = root.Chmod(name, mode&(fs.ModeSetgid|fs.ModeSticky|0o070)|0o700)
	if mode.Perm()&0o700 == 0o700 {
		return nil
	}
	return err
}
