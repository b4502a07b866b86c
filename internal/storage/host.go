package storage

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// closed are folders of the machine that are shown to nobody, nor anything in them, nor what they lie in.
var closed = []string{
	"/boot", "/dev", "/etc", "/proc", "/root", "/run", "/sys", "/tmp", "/var/lib/kubelet", "/var/lib/rancher", "/var/run",
	"/var/tmp",
}

// checkHost refuses folders of the machine that must not be shown, and returns where the others really lie. What
// a folder leads to may change later, so it is asked again before every use.
func (s *Service) checkHost(path string) (string, error) {
	if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
		return "", refused(ErrPath, "Write the whole path of the folder, such as /srv/data.")
	}
	at, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", refused(ErrPath, "There is no folder %s on this machine.", clip(path))
	}
	info, err := os.Lstat(at)
	if err != nil || !info.IsDir() {
		return "", refused(ErrPath, "%s is not a folder.", clip(path))
	}
	shut := append([]string{s.cfg.DataDir, s.cfg.HomesDir, s.cfg.FoldersDir}, closed...)
	for _, bad := range shut {
		if bad == "" {
			continue
		}
		if resolved, err := filepath.EvalSymlinks(bad); err == nil {
			bad = resolved
		}
		if within(at, bad) || within(bad, at) {
			return "", refused(ErrPath, "%s is not shown to anybody: it is, holds or lies in %s, which belongs to the "+
				"machine itself. Choose a folder with data only, such as /srv/data.", clip(at), bad)
		}
	}
	for dir := filepath.Dir(at); ; dir = filepath.Dir(dir) {
		info, err := os.Lstat(dir)
		if err != nil {
			return "", refused(ErrPath, "%s cannot be looked at.", clip(dir))
		}
		if owner(info) != 0 || info.Mode().Perm()&0o022 != 0 {
			return "", refused(ErrPath, "Others than root can change what %s leads to, because they may write in %s. Move "+
				"the folder, or show it in another place: mount --bind %s /srv/NAME.", clip(at), clip(dir), clip(at))
		}
		if dir == "/" {
			return at, nil
		}
	}
}

// within reports whether path is dir or lies in it.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// CanMapIDs reports whether the file system of a folder can be shown to a container that has user IDs of its
// own. NFS, for one, cannot.
func CanMapIDs(path string) bool {
	namespace, err := userNamespace()
	if err != nil {
		return false
	}
	defer func() { _ = namespace.Close() }()
	return canMapFolder(namespace, path)
}

// OwnUserIDs reports whether containers can have user IDs of their own on this machine, with what these folders
// hold. The kernel has to show a file system in memory with mapped ones, as everybody's /dev/shm is one: Linux
// 6.3 and later do. And it lets nobody mount a fresh /proc who would see more there than the machine does, where
// something covers files of it, as in some containers.
func OwnUserIDs(folders ...string) bool {
	namespace, err := userNamespace()
	if err != nil {
		return false
	}
	defer func() { _ = namespace.Close() }()
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil || procCovered(mounts) || !canMapMemory(namespace) {
		return false
	}
	return !slices.ContainsFunc(folders, func(path string) bool { return !canMapFolder(namespace, path) })
}

// mountedIn reports whether something is mounted in a folder, below it. Containers with user IDs of their own see
// it, but as nobody's: containerd maps only the mount that it makes of the folder itself.
func mountedIn(mounts []*mountinfo.Info, folder string) bool {
	return slices.ContainsFunc(mounts, func(m *mountinfo.Info) bool {
		return m.Mountpoint != folder && within(m.Mountpoint, folder)
	})
}

// takeOwnUserIDs reports whether a container with user IDs of its own can have all of these folders as they are now.
func takeOwnUserIDs(folders []string) (bool, error) {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return false, err
	}
	for _, folder := range folders {
		folder, err := filepath.EvalSymlinks(folder)
		if err != nil {
			return false, err
		}
		itself := slices.ContainsFunc(mounts, func(m *mountinfo.Info) bool { return m.Mountpoint == folder })
		if mountedIn(mounts, folder) || itself && !CanMapIDs(folder) {
			return false, nil
		}
	}
	return true, nil
}

func canMapFolder(namespace *os.File, path string) bool {
	tree, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	return err == nil && canMap(namespace, tree)
}

func canMapMemory(namespace *os.File) bool {
	system, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(system) }()
	if err := unix.FsconfigCreate(system); err != nil {
		return false
	}
	tree, err := unix.Fsmount(system, unix.FSMOUNT_CLOEXEC, 0)
	return err == nil && canMap(namespace, tree)
}

// procCovered tells whether something is mounted over a part of /proc that is not made for it.
func procCovered(mounts []*mountinfo.Info) bool {
	made := []string{"/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd", "/proc/xen"}
	return slices.ContainsFunc(mounts, func(m *mountinfo.Info) bool {
		return strings.HasPrefix(m.Mountpoint, "/proc/") && !slices.Contains(made, m.Mountpoint)
	})
}

// canMap tries it with a mount that nobody sees, and takes that away.
func canMap(namespace *os.File, tree int) bool {
	defer func() { _ = unix.Close(tree) }()
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(namespace.Fd())}
	return unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr) == nil
}

// userNamespace opens one as Kubernetes makes them for pods. The process that it is made with is held before
// its first instruction, and ended.
func userNamespace() (*os.File, error) {
	runtime.LockOSThread() // the thread that starts a traced process is its tracer
	defer runtime.UnlockOSThread()
	p, err := os.StartProcess("/proc/self/exe", []string{"user-namespace"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, Ptrace: true, Pdeathsig: syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1 << 20, Size: 1 << 16}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1 << 20, Size: 1 << 16}},
	}})
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = p.Kill()
		_, _ = p.Wait()
	}()
	return os.Open("/proc/" + number(int64(p.Pid)) + "/ns/user")
}
