package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/atomicfile"
	"github.com/gpulab/gpulab/internal/beneath"
)

// Placing is how an unpacked archive takes the place of what is there.
type Placing struct {
	// Journal is a file that is there while things are moved; Finish goes on from it.
	Journal string
	// Config is the path of the configuration; what is in the archive's etc comes into its folder.
	Config string
	// Homes and Folders are the numbers that the restored lab knows. No other is put in place.
	Homes, Folders map[int64]bool
	// Keep tells which homes and shared folders that are there and not in the archive stay; nil keeps none. All others
	// are set aside.
	Keep func(part string, id int64, info fs.FileInfo) bool
	// Now names the folder for what is set aside.
	Now time.Time
}

// Placed says what became of what was there.
type Placed struct {
	// Aside are the folders that hold what was there before; none where there was nothing.
	Aside []string `json:"aside,omitempty"`
	// Kept is how many homes and shared folders stayed as they were.
	Kept int `json:"kept"`
}

// journal is the list of what is to be moved. Once it is on the disk, the restored lab is the one that counts: whoever
// finds it moves the rest.
type journal struct {
	Moves  []move   `json:"moves"`
	Delete []string `json:"delete"` // folders that are deleted at the end: what was unpacked and not used, the old cluster
	Placed Placed   `json:"placed"`
}

// move is a file or folder that gets another name in the same file system. It has been done once To is there and,
// unless To was there before, From is gone.
type move struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Aside moves what was there away from a name that gets something new.
	Aside bool `json:"aside,omitempty"`
}

// asideFolder begins the names of folders with what was there before a restore.
const asideFolder = "before-restore-"

// SetAside tells whether a folder of the data directory has that name.
func SetAside(name string) bool { return strings.HasPrefix(name, asideFolder) }

// stays are the things in a data folder that are the machine's and not the lab's, and stay.
var stays = []string{
	"bin", "homes", "folders", "identity.json", "machine.json", "log", "simdriver", "versions", "packages", "models",
	"lost+found", stageFolder, workFolder,
}

// derived are those that gpulab makes anew from the rest: the old cluster goes, so that a new one is made.
var derived = []string{"k3s", "hub", "hub-routes.json", "features", "kubeconfig", "kubectl-cache", "k3s.yaml",
	"k3s.pid", "probe.pid",
	"resolv.conf", "containerd.toml", "volume-plugins", "gpu-check"}

// Place puts an unpacked archive in place. No gpulab may run. An error before the journal is written leaves everything
// as it was; one after it is mended by Finish.
func (s *Stage) Place(ctx context.Context, p Placing) (Placed, error) {
	if err := s.decide(ctx, p); err != nil {
		return Placed{}, err
	}
	placed, _, err := Finish(context.WithoutCancel(ctx), p.Journal)
	return placed, err
}

// decide writes the journal: from then on the restored lab is the one that counts.
func (s *Stage) decide(ctx context.Context, p Placing) error {
	j, err := s.plan(p)
	if err != nil {
		return err
	}
	// With what was unpacked, the folders that things are moved into.
	if err := s.Sync(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	data, err := json.Marshal(j)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(p.Journal, data, 0o600); err != nil {
		return fmt.Errorf("the journal of the restore: %w", err)
	}
	return s.lock.Close()
}

// plan finds out what is to be moved, makes the folders for it, and copies what comes from another file system.
func (s *Stage) plan(p Placing) (journal, error) {
	var j journal
	aside := filepath.Join(s.dataDir, asideFolder+p.Now.UTC().Format("20060102-150405"))
	drop := filepath.Join(s.dataDir, stageFolder, "drop")
	if err := os.MkdirAll(drop, 0o700); err != nil {
		return j, err
	}
	entries, err := os.ReadDir(s.dataDir)
	if err != nil {
		return j, err
	}
	// The cluster goes last of what was there: without it, the lab of before could still begin.
	for _, e := range entries {
		name := e.Name()
		switch {
		case slices.Contains(stays, name), SetAside(name):
		case slices.Contains(derived, name):
			j.Moves = append(j.Moves, move{From: filepath.Join(s.dataDir, name), To: filepath.Join(drop, name), Aside: true})
		default:
			j.Moves = append(j.Moves, move{From: filepath.Join(s.dataDir, name), To: filepath.Join(aside, name), Aside: true})
		}
	}
	if err := s.planTrees(p, &j); err != nil {
		return j, err
	}
	if err := s.planConfig(p, aside, &j); err != nil {
		return j, err
	}
	fresh, err := os.ReadDir(s.at["data"])
	if err != nil {
		return j, err
	}
	for _, e := range fresh {
		j.Moves = append(j.Moves, move{From: filepath.Join(s.at["data"], e.Name()), To: filepath.Join(s.dataDir, e.Name())})
	}
	for _, part := range parts {
		if at := filepath.Dir(s.at[part]); !slices.Contains(j.Delete, at) {
			j.Delete = append(j.Delete, at)
		}
	}
	return j, s.checkMoves(&j)
}

// planTrees decides about homes and shared folders.
func (s *Stage) planTrees(p Placing, j *journal) error {
	for part, known := range map[string]map[int64]bool{"homes": p.Homes, "folders": p.Folders} {
		own := filepath.Join(s.dataDir, part)
		if err := os.MkdirAll(own, 0o711); err != nil {
			return err
		}
		base, err := s.base(part)
		if err != nil {
			return err
		}
		aside := filepath.Join(base, asideFolder+p.Now.UTC().Format("20060102-150405"), part)
		if base == own {
			aside = filepath.Dir(aside)
		}
		there, err := os.ReadDir(own)
		if err != nil {
			return err
		}
		for _, e := range there {
			id, ok := number(e.Name())
			if !ok {
				continue
			}
			from := filepath.Join(own, e.Name())
			_, err := os.Lstat(filepath.Join(s.at[part], e.Name()))
			info, statErr := e.Info()
			if statErr != nil {
				return statErr
			}
			if err != nil && known[id] && p.Keep != nil && p.Keep(part, id, info) {
				j.Placed.Kept++
				continue
			}
			j.Moves = append(j.Moves, move{From: from, To: filepath.Join(aside, e.Name()), Aside: true})
		}
		fresh, err := os.ReadDir(s.at[part])
		if err != nil {
			return err
		}
		for _, e := range fresh {
			if id, ok := number(e.Name()); ok && known[id] {
				// A new one of the same name in the place of one that is kept would be lost.
				to := filepath.Join(own, e.Name())
				j.Moves = append(j.Moves, move{From: filepath.Join(s.at[part], e.Name()), To: to})
			}
		}
	}
	return nil
}

// planConfig puts the files of etc beside their places, which are on another file system than the data folder. What
// they replace is copied, for it has to be there until the restored lab counts.
func (s *Stage) planConfig(p Placing, aside string, j *journal) error {
	entries, err := os.ReadDir(s.at["etc"])
	if err != nil {
		return err
	}
	dir := filepath.Dir(p.Config)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("the configuration's folder: %w", err)
	}
	for _, e := range entries {
		to := filepath.Join(dir, e.Name())
		if "etc/"+e.Name() == configName {
			to = p.Config
		}
		if _, err := os.Lstat(to); err == nil {
			if err := os.MkdirAll(filepath.Join(aside, "etc"), 0o700); err != nil {
				return err
			}
			if err := copyFile(to, filepath.Join(aside, "etc", e.Name())); err != nil {
				return err
			}
			if !slices.Contains(j.Placed.Aside, aside) {
				j.Placed.Aside = append(j.Placed.Aside, aside)
			}
		}
		if err := copyFile(filepath.Join(s.at["etc"], e.Name()), to+".restored"); err != nil {
			return err
		}
		j.Moves = append(j.Moves, move{From: to + ".restored", To: to})
	}
	return atomicfile.Sync(dir)
}

// checkMoves makes sure, before anything is moved, that all of it can be, and makes the folders for it.
func (s *Stage) checkMoves(j *journal) error {
	for _, m := range j.Moves {
		dir := filepath.Dir(m.To)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		// On an overlay, files and folders have numbers of different devices.
		var from unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, m.From, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, &from); err != nil {
			return &fs.PathError{Op: "stat", Path: m.From, Err: err}
		}
		if from.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
			return fmt.Errorf("%s is a file system of its own, so it cannot be moved aside; unmount it, then restore again",
				m.From)
		}
		top := dir
		for strings.HasPrefix(filepath.Dir(top)+"/", s.dataDir+"/") && !strings.HasPrefix(filepath.Base(top), asideFolder) &&
			top != s.dataDir {
			top = filepath.Dir(top)
		}
		if m.Aside && strings.HasPrefix(filepath.Base(top), asideFolder) && !slices.Contains(j.Placed.Aside, top) {
			j.Placed.Aside = append(j.Placed.Aside, top)
		}
	}
	return nil
}

// Finish does what is left of the restore whose journal is there, and says whether there was one. It may be called at
// any time while no gpulab runs, and again after whatever ended it.
func Finish(ctx context.Context, path string) (Placed, bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Placed{}, false, nil
	}
	if err != nil {
		return Placed{}, false, err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return Placed{}, false, err
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return Placed{}, false, nil // somebody else has finished it meanwhile
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return Placed{}, true, err
	}
	var j journal
	if err := json.Unmarshal(data, &j); err != nil {
		return Placed{}, true, fmt.Errorf("%s is damaged (%w); delete it, then run `gpulab restore` again", path, err)
	}
	folders := map[string]bool{}
	for _, m := range j.Moves {
		err := m.do()
		if errors.Is(err, errNeither) && slices.Contains(j.Delete, filepath.Dir(filepath.Dir(m.To))) {
			err = nil // it was done, and deleted
		}
		if err != nil {
			return j.Placed, true, fmt.Errorf("%w; mend that, then run `gpulab restore` again, which goes on", err)
		}
		folders[filepath.Dir(m.From)], folders[filepath.Dir(m.To)] = true, true
	}
	for dir := range folders {
		if err := atomicfile.Sync(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return j.Placed, true, err
		}
	}
	for _, dir := range j.Delete {
		if err := beneath.Delete(ctx, filepath.Dir(dir), filepath.Base(dir)); err != nil {
			return j.Placed, true, fmt.Errorf("delete what the restore leaves: %w", err)
		}
	}
	if err := os.Remove(path); err != nil {
		return j.Placed, true, err
	}
	return j.Placed, true, atomicfile.Sync(filepath.Dir(path))
}

// errNeither says that something is at neither of its places.
var errNeither = errors.New("is a disk not mounted?")

func (m move) do() error {
	_, there := os.Lstat(m.To)
	if m.Aside && there == nil {
		return nil
	}
	if _, err := os.Lstat(m.From); !errors.Is(err, fs.ErrNotExist) {
		return os.Rename(m.From, m.To)
	}
	if there == nil {
		return nil // done before
	}
	return fmt.Errorf("neither %s nor %s is there: %w", m.From, m.To, errNeither)
}

// copyFile copies a small file with its mode, safe against a power cut.
func copyFile(from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSmall+1))
	if err == nil && len(data) > maxSmall {
		err = fmt.Errorf("%s is larger than %d bytes", from, maxSmall)
	}
	if err != nil {
		return err
	}
	return atomicfile.Write(to, data, info.Mode().Perm())
}

// number reads the name of a home or shared folder.
func number(name string) (int64, bool) {
	if !isID(name) {
		return 0, false
	}
	var id int64
	for _, c := range []byte(name) {
		id = id*10 + int64(c-'0')
	}
	return id, true
}
