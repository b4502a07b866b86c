package sftpd

import (
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// stage is where the new root is put together: a folder that every machine has, and which is covered then.
const stage = "/proc"

// sharedDir is where shared folders are, in the root and, as in JupyterLab, in the home.
const sharedDir = "shared"

// enter leaves nothing of the machine but the person's places:
//
//	/home/HANDLE         the home
//	/shared/NAME         each shared folder; also below /home/HANDLE/shared
func enter(spec Spec) error {
	// Best effort: a session that takes too much memory goes first.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("500"), 0o644)
	// Nothing of what follows reaches the machine.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts of its own: %w", err)
	}
	trees := make([]int, len(spec.Places))
	for i, p := range spec.Places {
		tree, err := openTree(p, i == 0)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Path, err)
		}
		trees[i] = tree
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("gpulab", stage, "tmpfs", flags, "mode=0755,size=1m"); err != nil {
		return fmt.Errorf("a root of its own: %w", err)
	}
	home := path.Join(stage, homeOf(spec.Handle))
	for i, p := range spec.Places {
		target := home
		if i > 0 {
			if !properName(p.Name) {
				return fmt.Errorf("a shared folder cannot be named %q", p.Name)
			}
			target = path.Join(stage, sharedDir, p.Name)
		}
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := unix.MoveMount(trees[i], "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount %s: %w", p.Path, err)
		}
		_ = unix.Close(trees[i])
	}
	if len(spec.Places) > 1 {
		showShared(spec, home)
	}
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, stage, 0, &readOnly); err != nil {
		return fmt.Errorf("the root: %w", err)
	}
	return pivot()
}

// homeOf is where somebody's home is for their programs.
func homeOf(handle string) string { return "/home/" + handle }

// properName refuses what is not the name of one folder.
func properName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// openTree opens a place so that it can be mounted elsewhere, with what is mounted in it.
func openTree(p Place, home bool) (int, error) {
	// What the path leads to is a folder itself; whoever could put a link there would choose what is mounted.
	dir, err := unix.Open(p.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(dir) }()
	tree, err := unix.OpenTree(dir, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if err != nil {
		return -1, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC}
	if p.ReadOnly && !home { // a full home can be emptied
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		_ = unix.Close(tree)
		return -1, err
	}
	return tree, nil
}

// showShared shows the shared folders in the home, too, unless the person has put something else there.
func showShared(spec Spec, home string) {
	target := path.Join(home, sharedDir)
	asPerson(spec.UID, func() { _ = unix.Mkdir(target, 0o755) })
	at, err := unix.Open(target, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(at) }()
	tree, err := unix.OpenTree(unix.AT_FDCWD, path.Join(stage, sharedDir),
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(tree) }()
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY} // the list of folders, not the folders in it
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &readOnly); err != nil {
		return
	}
	_ = unix.MoveMount(tree, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// asPerson does f on files with the person's rights: what it makes is theirs, and counts for them.
func asPerson(uid int, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Setfsgid(uid)
	_ = unix.Setfsuid(uid)
	defer func() {
		_ = unix.Setfsuid(0)
		_ = unix.Setfsgid(0)
	}()
	if now, err := unix.SetfsuidRetUid(-1); err != nil || now != uid {
		return
	}
	f()
}

// pivot makes the stage the root and takes the machine's away.
func pivot() error {
	if err := unix.Chdir(stage); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the machine's files: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	if _, err := os.Stat("/proc/self"); err == nil {
		return errors.New("the machine's files are there still")
	}
	return nil
}
