package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/storage"
	"github.com/gpulab/gpulab/internal/version"
)

// storageMarkSetting holds what is written into shared storage, by which every
// machine knows that what is mounted there is this lab's.
const storageMarkSetting = "storage.mark"

// markFile is where it stands.
const markFile = ".gpulab-lab"

// workParts are the folders of the data folder in which people's work is. Those of
// shared storage are mounted in their place, so that paths are the same with and without.
var workParts = []string{"homes", "folders"}

// storageMark is this lab's, "" where nothing is shared.
func (l *appliance) storageMark(ctx context.Context) (string, error) {
	if !l.cfg.Storage.Everywhere() {
		return "", nil
	}
	mark, err := l.store.Setting(ctx, storageMarkSetting)
	if err != nil || mark != "" {
		return mark, err
	}
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	mark = hex.EncodeToString(random[:])
	return mark, l.store.SetSetting(ctx, storageMarkSetting, mark)
}

// openShared puts shared storage in the place of homes and folders, and marks
// it the first time.
func (l *appliance) openShared(ctx context.Context) error {
	path := l.cfg.Storage.Shared
	if path == "" {
		return nil
	}
	mark, err := l.storageMark(ctx)
	if err != nil {
		return err
	}
	err = lookAtShared(path, mark)
	written, serr := l.store.Setting(ctx, storageMarkSetting+".written")
	switch {
	case serr != nil:
		return serr
	case errors.Is(err, errUnmarked) && written == path:
		return missingStorage(path)
	case errors.Is(err, errUnmarked):
		err = nodes.WriteSecret(filepath.Join(path, markFile), []byte(mark+"\n"))
		if err == nil {
			err = l.store.SetSetting(ctx, storageMarkSetting+".written", path)
		}
	}
	if err != nil {
		return err
	}
	for _, part := range workParts {
		if err := os.MkdirAll(filepath.Join(path, part), 0o711); err != nil {
			return fmt.Errorf("storage.shared: %w", err)
		}
	}
	return mountShared(path, l.cfg.DataDir)
}

func missingStorage(path string) error {
	return fmt.Errorf("the lab's storage is not at %s on this machine: mount there what the lab's other machines have "+
		"there, and try again", path)
}

var errUnmarked = errors.New("it has no mark")

// lookAtShared finds out whether the lab's storage is there: a mount that is
// missing must not be taken for a lab without homes.
func lookAtShared(path, mark string) error {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return missingStorage(path)
	}
	have, err := os.ReadFile(filepath.Join(path, markFile))
	if errors.Is(err, fs.ErrNotExist) {
		return errUnmarked
	}
	if err != nil {
		return fmt.Errorf("storage.shared: %w", err)
	}
	if strings.TrimSpace(string(have)) != mark {
		return fmt.Errorf("what is mounted at %s belongs to another lab (%s says so); mount this lab's storage there, or "+
			"choose another path, or delete that file to give it to this lab", path, filepath.Join(path, markFile))
	}
	return nil
}

// mountShared binds the parts of shared storage into the data folder. Files
// that are on the machine's own disk there would be hidden, so they must be
// moved first.
func mountShared(path, dataDir string) error {
	for _, part := range workParts {
		from, to := filepath.Join(path, part), filepath.Join(dataDir, part)
		if err := os.MkdirAll(to, 0o711); err != nil {
			return err
		}
		same, err := sameFolder(from, to)
		if err != nil {
			return fmt.Errorf("storage.shared: %w", err)
		}
		if same {
			continue
		}
		entries, err := os.ReadDir(to)
		if err != nil {
			return err
		}
		if len(entries) > 0 {
			return fmt.Errorf("storage.shared is %s, but %s has files already: while gpulab is stopped, copy them (`cp -a "+
				"%[2]s/. %[3]s/`), move them away (`mv %[2]s %[2]s.before`), and run `gpulab init` again", path, to, from)
		}
		if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("show %s at %s: %w", from, to, err)
		}
	}
	return nil
}

// unmountShared takes the parts of shared storage out of the data folder.
func unmountShared(path, dataDir string) error {
	if path == "" {
		return nil
	}
	var errs []error
	for _, part := range workParts {
		to := filepath.Join(dataDir, part)
		if same, err := sameFolder(filepath.Join(path, part), to); err != nil || !same {
			continue // it is not there
		}
		if err := unix.Unmount(to, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", to, err))
		}
	}
	return errors.Join(errs...)
}

func sameFolder(a, b string) (bool, error) {
	one, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other), err
}

// sharedUsers says whether notebooks that start on a machine, "" for any, have to do without user IDs of
// their own: because the kernel or a file system cannot show them what they need with mapped ones. The
// runtime would refuse to start them.
func (l *appliance) sharedUsers(on string) bool {
	if !canMapIDs(l.cfg.DataDir, l.homesDir()) {
		return true
	}
	if on != "" {
		return false
	}
	machines := l.pool.list()
	if len(machines) > 0 && l.cfg.Storage.Export != "" {
		return true // it may be one that mounts the homes over NFS
	}
	now := time.Now()
	machines = slices.DeleteFunc(machines, func(n nodes.Node) bool { // nothing starts where nobody answers
		_, silent := l.pool.silent(n, now)
		return silent
	})
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	return slices.ContainsFunc(machines, func(n nodes.Node) bool {
		m := l.pool.heard[n.Name]
		if m == nil || m.mapsIDs == nil {
			return n.Version == version.Version // an earlier one does not tell, and could
		}
		return !*m.mapsIDs
	})
}

// canMapIDs says whether pods can have user IDs of their own on this machine, with what it keeps and homes in
// these folders.
func canMapIDs(data, homes string) bool {
	pods := embedk8s.PodFiles
	for range 2 {
		if _, err := os.Stat(pods); err != nil {
			pods = filepath.Dir(pods) // where it will be
		}
	}
	return storage.OwnUserIDs(data, homes, pods)
}
