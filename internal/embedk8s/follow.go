package embedk8s

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// PodFiles is where Kubernetes keeps the temporary files of pods: a notebook's /scratch and
// /tmp.
const PodFiles = kubeletDir + "/pods"

// follower is a folder outside the data folder that grows with people's work. If the data
// folder is on another disk, the folder part of it is mounted at dir.
type follower struct {
	dir, part string
	mode      fs.FileMode // the one that Kubernetes gives it
	// below must be on the system's disk, and on a shared mount. A disk that is mounted there
	// is somebody's decision. On a mount that is not shared, the kubelet's own would hide ours.
	below string
}

var followers = []follower{
	{PodLogs, "k3s/pod-logs", 0o755, ""},
	{PodFiles, "k3s/pods", 0o750, kubeletDir},
}

// FollowData puts what pods write and print onto the disk of the data folder, before k3s
// starts. It moves files that are there already, such as those of an earlier version that
// ran here after a restart of the machine. While pods use these files, they stay where they
// are: the first start at which no pod runs moves them. See [Strays].
func (c *Cluster) FollowData() error {
	var errs []error
	dataDir := resolved(c.cfg.DataDir)
	idle := func() bool {
		return len(podProcesses(CgroupRoot(c.cfg.KubeletArgs))) == 0 && !anyProcess(func(p proc) bool {
			name := filepath.Base(p.exe)
			return strings.HasPrefix(p.exe, filepath.Join(dataDir, "bin")+"/") &&
				(name == "k3s" || strings.HasPrefix(name, "containerd-shim"))
		})
	}
	for _, f := range followers {
		errs = append(errs, ground{"/"}.follow(f, dataDir, idle))
	}
	return errors.Join(errs...)
}

// errInUse says that files cannot be moved yet.
var errInUse = errors.New("pods use files there; they are moved when the machine starts next")

// follow mounts the part of the data folder. idle reports whether no pod runs.
func (m ground) follow(f follower, dataDir string, idle func() bool) error {
	dir, from := m.at(f, dataDir)
	if err := os.MkdirAll(dir, f.mode); err != nil {
		return err
	}
	if err := takeUp(f, dataDir); err != nil {
		return err
	}
	if sameFile(dir, from) {
		return nil
	}
	// A reset by an earlier version leaves the mount of a folder that it has deleted, in which
	// no file can be made. Another data folder may have been used until now, too.
	for {
		mount, err := lastMount(dir)
		if err != nil {
			return err
		}
		if mount == nil || !f.made(mount) {
			break
		}
		if !deleted(mount) && (!idle() || inside(dir)) {
			return fmt.Errorf("%s shows another folder: %w", dir, errInUse)
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	wanted, err := m.follows(f, dataDir)
	if err != nil || !wanted {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		foreign, err := m.foreign(f, dataDir)
		if err != nil {
			return err
		}
		if foreign {
			return fmt.Errorf("%s has files from before gpulab, which it does not move", dir)
		}
		if !idle() || inside(dir) {
			return fmt.Errorf("%s is not on the disk of %s: %w", dir, dataDir, errInUse)
		}
		if err := moveIn(f, dir, dataDir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(from, f.mode); err != nil {
		return err
	}
	if err := unix.Mount(from, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("show %s at %s: %w", from, dir, err)
	}
	// Give it a propagation group of its own, so that what Kubernetes mounts for pods does not
	// also appear in the data folder.
	for _, how := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", dir, "", how, ""); err != nil {
			return errors.Join(fmt.Errorf("keep mounts at %s to themselves: %w", dir, err), unix.Unmount(dir, unix.MNT_DETACH))
		}
	}
	return nil
}

// at returns the folder that Kubernetes uses, and the part of the data folder.
func (m ground) at(f follower, dataDir string) (dir, from string) {
	return filepath.Join(m.root, f.dir), filepath.Join(dataDir, f.part)
}

// follows reports whether the part of the data folder belongs at dir: they are on two disks,
// and nobody has mounted another disk there.
func (m ground) follows(f follower, dataDir string) (bool, error) {
	dir, _ := m.at(f, dataDir)
	var here, there unix.Stat_t
	if err := errors.Join(unix.Stat(dir, &here), unix.Stat(dataDir, &there)); err != nil {
		return false, fmt.Errorf("compare the disks of %s and %s: %w", dir, dataDir, err)
	}
	if here.Dev == there.Dev {
		return false, nil
	}
	mounts, err := mountinfo.GetMounts(nil)
	return err == nil && mayFollow(mounts, dir, filepath.Join(m.root, f.below), f.below != ""), err
}

// foreign reports whether something may be left at dir that was there before this lab's k3s.
func (m ground) foreign(f follower, dataDir string) (bool, error) {
	kept, err := before(dataDir)
	return slices.ContainsFunc(kept, func(path string) bool {
		_, err := os.Lstat(filepath.Join(m.root, path))
		// Of the kubelet's folder, only the first level was recorded.
		return err == nil && (strings.HasPrefix(path, f.dir+"/") || path == f.dir && f.below != "")
	}), err
}

// made reports whether a mount is one of FollowData, of whichever data folder.
func (f follower) made(mount *mountinfo.Info) bool {
	return strings.HasSuffix(strings.TrimSuffix(mount.Root, gone), "/"+f.part)
}

// gone is what the kernel appends to the name of a mounted folder that was deleted.
const gone = "//deleted"

func deleted(mount *mountinfo.Info) bool { return strings.HasSuffix(mount.Root, gone) }

// lastMount returns the uppermost mount at a folder, nil for none.
func lastMount(dir string) (*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir))
	if err != nil || len(mounts) == 0 {
		return nil, err
	}
	return mounts[len(mounts)-1], nil
}

// inside reports whether something is mounted in a folder, as for a pod.
func inside(dir string) bool {
	mounts, err := mountsBelow(dir)
	return err != nil || len(mounts) > 0
}

func sameFile(a, b string) bool {
	one, err1 := os.Stat(a)
	two, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(one, two)
}

// moveIn moves the files in dir to the part of the data folder, in steps that may be
// interrupted at any time: a whole copy gets another name, dir is emptied, and the copy is
// merged into the part.
func moveIn(f follower, dir, dataDir string) error {
	var size int64
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	}); err != nil {
		return err
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(dataDir, &disk); err != nil {
		return err
	}
	if free := int64(disk.Bavail) * disk.Bsize; size > free/2 {
		return fmt.Errorf("the files in %s, %d MiB, are more than half of what is free for %s; "+
			"make room there and start the machine again", dir, size>>20, dataDir)
	}
	copying, copied := filepath.Join(dataDir, f.part+".moving"), filepath.Join(dataDir, f.part+".moved")
	if err := errors.Join(os.RemoveAll(copying), os.MkdirAll(filepath.Dir(copying), 0o755)); err != nil {
		return err
	}
	cp := exec.Command("cp", "--archive", "--one-file-system", "--no-target-directory", dir, copying)
	if out, err := cp.CombinedOutput(); err != nil {
		err = fmt.Errorf("copy %s to %s: %w: %s", dir, copying, err, bytes.TrimSpace(out))
		return errors.Join(err, os.RemoveAll(copying))
	}
	unix.Sync() // or a power cut would find neither
	if err := os.Rename(copying, copied); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return errors.Join(err, takeUp(f, dataDir))
}

// takeUp merges what was copied into the part of the data folder. Of two files with one name
// the copy keeps it, since it is the newer one, and the other gets a number as in GNU cp.
func takeUp(f follower, dataDir string) error {
	copied := filepath.Join(dataDir, f.part+".moved")
	if _, err := os.Lstat(copied); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return merge(copied, filepath.Join(dataDir, f.part))
}

func merge(from, to string) error {
	one, err := os.Lstat(from)
	if err != nil {
		return err
	}
	two, err := os.Lstat(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return os.Rename(from, to)
	case err != nil:
		return err
	case !one.IsDir() && alike(from, one, to, two):
		return os.Rename(from, to) // copied before an interruption, and once more after it
	case !one.IsDir() || !two.IsDir():
		aside, err := free(to)
		if err == nil {
			err = os.Rename(to, aside)
		}
		if err != nil {
			return err
		}
		return os.Rename(from, to)
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := merge(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return os.Remove(from)
}

// alike reports whether two regular files have the same time and content.
func alike(a string, one fs.FileInfo, b string, two fs.FileInfo) bool {
	if !one.Mode().IsRegular() || !two.Mode().IsRegular() || one.Size() != two.Size() ||
		!one.ModTime().Equal(two.ModTime()) {
		return false
	}
	return exec.Command("cmp", "--silent", a, b).Run() == nil
}

// free returns a name beside path that nothing has.
func free(path string) (string, error) {
	for n := 1; ; n++ {
		aside := fmt.Sprintf("%s.~%d~", path, n)
		if _, err := os.Lstat(aside); errors.Is(err, fs.ErrNotExist) {
			return aside, nil
		} else if err != nil {
			return "", err
		}
	}
}

// A Stray is a folder of pods whose files are not where they belong.
type Stray struct {
	Dir, Part string // what Kubernetes uses, and the part of the data folder
	Here      bool   // files are in Dir
	Kept      bool   // others are in Part, where nothing shows them
	Lost      bool   // Dir shows a folder that was deleted or that is another data folder's
	Foreign   bool   // some in Dir may be older than this lab, so they are not moved
}

// Strays lists the folders that FollowData could not put onto the disk of the data folder,
// or that an earlier version has used without it.
func Strays(dataDir string) ([]Stray, error) {
	dataDir = resolved(dataDir)
	here := ground{"/"}
	if _, err := os.Stat(dataDir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	// Where another Kubernetes is, others say so.
	if made, err := here.made(dataDir); err != nil || !made {
		return nil, nil //nolint:nilerr // see above
	}
	return here.strays(dataDir)
}

func (m ground) strays(dataDir string) (list []Stray, err error) {
	for _, f := range followers {
		dir, from := m.at(f, dataDir)
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) || sameFile(dir, from) {
			continue
		}
		mount, err := lastMount(dir)
		if err != nil {
			return nil, err
		}
		s := Stray{Dir: dir, Part: from, Lost: mount != nil && f.made(mount)}
		wanted, err := m.follows(f, dataDir)
		if err != nil {
			return nil, err
		}
		here, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // as in a folder that was deleted
			return nil, err
		}
		kept, err := os.ReadDir(from)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		s.Here, s.Kept = wanted && len(here) > 0, len(kept) > 0
		if s.Here {
			if s.Foreign, err = m.foreign(f, dataDir); err != nil {
				return nil, err
			}
		}
		if s.Here || s.Kept || s.Lost {
			list = append(list, s)
		}
	}
	return list, nil
}

// mayFollow reports whether nothing is mounted at dir. If shared is set, nothing may be
// mounted at below either, and below must be on a shared mount.
func mayFollow(mounts []*mountinfo.Info, dir, below string, shared bool) bool {
	var holds *mountinfo.Info // the mount that below is on
	for _, mount := range mounts {
		if mount.Mountpoint == dir || shared && mount.Mountpoint == below {
			return false
		}
		inside := mount.Mountpoint == "/" || strings.HasPrefix(below, mount.Mountpoint+"/")
		if inside && (holds == nil || len(mount.Mountpoint) >= len(holds.Mountpoint)) {
			holds = mount
		}
	}
	return !shared || holds != nil && strings.Contains(holds.Optional, "shared:")
}

// unfollow undoes the mounts of FollowData, and removes what pods have left in the data folder.
func (m ground) unfollow(dataDir string) error {
	var errs []error
	for _, f := range followers {
		dir, from := m.at(f, dataDir)
		if err := f.unmount(dir); err != nil {
			errs = append(errs, err)
			continue // or what it shows would be removed there
		}
		errs = append(errs, removeContents(from), os.RemoveAll(from+".moving"), os.RemoveAll(from+".moved"))
	}
	return errors.Join(errs...)
}

// unmount undoes every mount of FollowData at a folder.
func (f follower) unmount(dir string) error {
	for {
		mount, err := lastMount(dir)
		if err != nil || mount == nil || !f.made(mount) {
			return err
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
}
