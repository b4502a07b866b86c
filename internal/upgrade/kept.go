// Package upgrade goes from one version of gpulab to another and back. A version in use keeps its program, and the
// container images that it starts, in the data folder (Keep): so the one before is still there after an upgrade,
// whoever has replaced the program on the disk. MakePlan and Apply go back to it, and forth again.
package upgrade

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/atomicfile"
	"github.com/gpulab/gpulab/internal/store"
)

// Names in the data folder.
const (
	folder      = "versions"
	programName = "gpulab"
	imagesName  = "images"
	aboutName   = "version.json"
	partialEnd  = ".partial"
)

// Version is a version of gpulab: what it can work with.
type Version struct {
	Version       string `json:"version"`
	Schema        int64  `json:"schema"`        // the newest of gpulab.db that it knows
	MetricsSchema int64  `json:"metricsSchema"` // the newest of metrics.db
	Kubernetes    string `json:"kubernetes"`    // such as 1.35
}

// Kept is a version whose program is kept.
type Kept struct {
	Version
	SHA256 string    `json:"sha256"` // of the program
	Size   int64     `json:"size"`   // of the program, bytes
	Since  time.Time `json:"since"`  // when it was kept

	dir string
}

// Program is the path of the kept program.
func (k Kept) Program() string { return filepath.Join(k.dir, programName) }

// Check compares every byte of the program with what was kept.
func (k Kept) Check() error {
	sum, size, err := sumOf(k.Program())
	if err != nil {
		return fmt.Errorf("the kept program of gpulab %s: %w", k.Version.Version, err)
	}
	if sum != k.SHA256 || size != k.Size {
		return fmt.Errorf("the kept program of gpulab %s, %s, is not what was kept", k.Version.Version, k.Program())
	}
	return nil
}

// versionDir is the folder of a version; its name is one of a file, whatever is in it.
func versionDir(dataDir, version string) string {
	return filepath.Join(dataDir, folder, url.PathEscape(version))
}

// Find returns a kept version, fs.ErrNotExist if it is not kept.
func Find(dataDir, version string) (Kept, error) {
	k := Kept{dir: versionDir(dataDir, version)}
	if err := readJSON(filepath.Join(k.dir, aboutName), &k); err != nil {
		return k, err
	}
	if info, err := os.Stat(k.Program()); err != nil {
		return k, err
	} else if info.Size() != k.Size {
		return k, fmt.Errorf("the kept program of gpulab %s, %s, has %d bytes and had %d", version, k.Program(), info.Size(),
			k.Size)
	}
	return k, nil
}

// Before returns the kept version that a rollback from own leads to: the recorded one or, where that did not live long
// enough to be kept, the one that was kept last. It returns fs.ErrNotExist if there is none.
func Before(dataDir, own, recorded string) (Kept, error) {
	if recorded != "" && recorded != own {
		if k, err := Find(dataDir, recorded); !errors.Is(err, fs.ErrNotExist) {
			return k, err
		}
	}
	abouts, err := filepath.Glob(filepath.Join(dataDir, folder, "*", aboutName))
	if err != nil {
		return Kept{}, err
	}
	var last Kept
	for _, about := range abouts {
		name, err := url.PathUnescape(filepath.Base(filepath.Dir(about)))
		if err != nil || name == own {
			continue
		}
		if k, err := Find(dataDir, name); err == nil && k.Since.After(last.Since) {
			last = k
		}
	}
	if last.dir == "" {
		return last, fs.ErrNotExist
	}
	return last, nil
}

// Keep keeps the program of a version and its folder of images, and removes kept ones other than it and the one
// before it, recorded. It may be interrupted and run again. Where the file system can, nothing is copied: the files
// get a second name.
func Keep(dataDir string, v Version, program, images, recorded string) error {
	if err := keep(dataDir, v, program, images); err != nil {
		return fmt.Errorf("keep gpulab %s for a rollback: %w", v.Version, err)
	}
	stay := []string{url.PathEscape(v.Version)}
	if before, err := Before(dataDir, v.Version, recorded); err == nil {
		stay = append(stay, filepath.Base(before.dir))
	}
	entries, err := os.ReadDir(filepath.Join(dataDir, folder))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && !slices.Contains(stay, e.Name()) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dataDir, folder, e.Name())))
		}
	}
	return err
}

func keep(dataDir string, v Version, program, images string) error {
	dir := versionDir(dataDir, v.Version)
	now, err := os.Stat(program)
	if err != nil {
		return err
	}
	if had, err := Find(dataDir, v.Version); err == nil {
		if there, err := os.Stat(had.Program()); err == nil && os.SameFile(now, there) {
			return nil // it runs from there, or has two names already
		}
		if sum, _, err := sumOf(program); err == nil && sum == had.SHA256 {
			return nil
		}
	}
	partial := dir + partialEnd
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(partial, imagesName), 0o700); err != nil {
		return err
	}
	if err := double(program, filepath.Join(partial, programName)); err != nil {
		return err
	}
	if err := keepImages(images, filepath.Join(partial, imagesName)); err != nil {
		return err
	}
	k := Kept{Version: v, Since: time.Now().UTC().Truncate(time.Second)}
	if k.SHA256, k.Size, err = sumOf(filepath.Join(partial, programName)); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(partial, aboutName), k); err != nil {
		return err
	}
	// What a rollback has put aside there is a later one's to take back.
	if err := rename(filepath.Join(dir, store.MetricsFile), filepath.Join(partial, store.MetricsFile)); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Rename(partial, dir); err != nil {
		return err
	}
	return atomicfile.Sync(filepath.Dir(dir))
}

// keepImages keeps a folder of images. Its lists are copied, since a build writes them anew; a blob never changes, and
// gets a second name. On another file system blobs are not copied: containerd has them, and they are large.
func keepImages(from, to string) error {
	for _, list := range []string{"images.json", "index.json", "oci-layout"} {
		err := copyFile(filepath.Join(from, list), filepath.Join(to, list))
		if err != nil && (list == "images.json" || !errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	blobs := filepath.Join(from, "blobs")
	kept := filepath.Join(to, "blobs")
	err := filepath.WalkDir(blobs, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := kept + strings.TrimPrefix(path, blobs)
		if d.IsDir() {
			return os.Mkdir(target, 0o700)
		}
		return os.Link(path, target)
	})
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.RemoveAll(kept); err != nil {
		return err
	}
	return os.Symlink(blobs, kept)
}

// Borrowed are the images of kept versions, by reference, whose content is not kept with them: containerd has it, and
// whoever removes it there makes the way back impossible.
func Borrowed(dataDir string) (refs []string, err error) {
	links, err := filepath.Glob(filepath.Join(dataDir, folder, "*", imagesName, "blobs"))
	if err != nil {
		return nil, err
	}
	for _, link := range links {
		if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
			continue
		}
		var list struct {
			Images []struct {
				Ref string `json:"ref"`
			} `json:"images"`
		}
		if err := readJSON(filepath.Join(filepath.Dir(link), "images.json"), &list); err != nil {
			return nil, err
		}
		for _, image := range list.Images {
			refs = append(refs, image.Ref)
		}
	}
	return refs, nil
}

// double gives a file a second name, or copies it where that cannot be.
func double(from, to string) error {
	if err := os.Link(from, to); err == nil {
		return nil
	}
	return copyFile(from, to)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

func sumOf(path string) (sum string, size int64, err error) {
	in, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer in.Close()
	h := sha256.New()
	size, err = io.Copy(h, in)
	return hex.EncodeToString(h.Sum(nil)), size, err
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// writeJSON writes a file in one step, safe against a power cut.
func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(data, '\n'), 0o600)
}
