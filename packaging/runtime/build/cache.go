package main

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpulab/gpulab/packaging/gobuild"
	"github.com/gpulab/gpulab/packaging/progress"
)

const (
	unusedAfter  = 30 * 24 * time.Hour // how long a built part is kept for nobody
	keptArchives = 4
	archivePart  = "archive"   // the archive's name among the parts
	sumsName     = "sums.json" // in an entry, beside what it lists
	tempPrefix   = "unfinished-"
)

// cache keeps what was built, one folder for each part and hash. A run holds
// it alone: two builds of the same part at once would only take twice as long.
type cache struct {
	dir      string
	lock     *os.File
	progress *progress.Reporter
}

// entry is a folder of the cache with files that were found whole.
type entry struct {
	part  string
	dir   string
	Files map[string]built `json:"files"`
}

// built is what is known of a file since it was made.
type built struct {
	SHA256  string `json:"sha256"`
	Size    int64  `json:"size"` // bytes
	Version string `json:"version,omitempty"`
	Folder  string `json:"folder,omitempty"` // in the bundle
}

func defaultCache() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache folder: %w; set HOME, or name a folder with -cache", err)
	}
	return filepath.Join(dir, "gpulab", "parts"), nil
}

// openCache waits until no other build uses the cache.
func openCache(ctx context.Context, dir string) (*cache, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the cache: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the cache: %w", err)
	}
	said := false
	for {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			c := &cache{dir: dir, lock: lock}
			return c, c.removeUnfinished()
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			lock.Close()
			return nil, fmt.Errorf("lock the cache: %w", err)
		}
		if !said {
			fmt.Fprintln(os.Stderr, "Another build is at work; waiting for what it makes.")
			said = true
		}
		select {
		case <-ctx.Done():
			lock.Close()
			return nil, errors.New("interrupted while another build was at work")
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// close lets the next build in.
func (c *cache) close() { c.lock.Close() }

// removeUnfinished clears what a killed build left. No other can be at work.
func (c *cache) removeUnfinished() error {
	left, err := filepath.Glob(filepath.Join(c.dir, tempPrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range left {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("clear the cache: %w", err)
		}
	}
	return nil
}

// obtain returns the entry of a part, building it if the cache has none that
// is whole.
func (c *cache) obtain(ctx context.Context, root string, p part, have versions) (entry, error) {
	key, err := p.key(ctx, root, have)
	if err != nil {
		return entry{}, err
	}
	e, err := c.load(p.name, key)
	if err == nil {
		c.progress.Cached(p.name)
		return e, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		c.progress.Line("%s is built again: %v", p.name, err)
	}
	shown := c.progress.Begin(p.name)
	e, err = c.store(p.name, key, func(dir string) (map[string]built, error) {
		return p.build(ctx, root, dir, shown)
	})
	if err != nil {
		shown.Failed()
		return entry{}, err
	}
	shown.Done("%s", megabytes(e.size()))
	return e, nil
}

// build runs the part's steps and describes what they made.
func (p part) build(ctx context.Context, root, out string, shown progress.Part) (map[string]built, error) {
	modfile, remove, err := gobuild.ApplyPatches(ctx, filepath.Join(root, p.dir), p.patches)
	if err != nil {
		return nil, err
	}
	defer remove()
	for _, s := range p.steps {
		if modfile != "" {
			s.Env = append(slices.Clone(s.Env), "GOFLAGS="+goFlags+" -modfile="+modfile)
		}
		if err := s.run(ctx, filepath.Join(root, p.dir), out, shown); err != nil {
			return nil, err
		}
	}
	made, err := os.ReadDir(out)
	if err != nil {
		return nil, err
	}
	files := map[string]built{}
	for _, f := range made {
		if !f.Type().IsRegular() {
			return nil, fmt.Errorf("it made %s, which is no plain file", f.Name())
		}
		if err := p.linked.check(filepath.Join(out, f.Name())); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		files[f.Name()] = built{Version: p.versionOf(filepath.Join(out, f.Name())), Folder: p.folder}
	}
	if len(files) == 0 {
		return nil, errors.New("its build made no files")
	}
	return files, nil
}

// versionOf is the version of the module that holds the program, or the
// part's. Programs of this repository have none of their own.
func (p part) versionOf(file string) string {
	if p.version != "" {
		return p.version
	}
	info, err := buildinfo.ReadFile(file)
	if err != nil || strings.HasPrefix(info.Main.Version, "(") {
		return ""
	}
	return info.Main.Version
}

// load returns the entry if every file is as it was when it was built, and
// marks it as used. The error wraps os.ErrNotExist if there is none.
func (c *cache) load(name, key string) (entry, error) {
	e := entry{part: name, dir: c.place(name, key)}
	text, err := os.ReadFile(filepath.Join(e.dir, sumsName))
	if err != nil {
		return entry{}, err
	}
	if err := json.Unmarshal(text, &e); err != nil || len(e.Files) == 0 {
		return entry{}, errors.New("the cache's list of files is damaged")
	}
	for file, want := range e.Files {
		sum, size, err := sumFile(filepath.Join(e.dir, file))
		if err != nil || sum != want.SHA256 || size != want.Size {
			return entry{}, fmt.Errorf("%s in the cache is damaged", file)
		}
	}
	now := time.Now()
	return e, os.Chtimes(e.dir, now, now)
}

// store fills a new entry by fill and puts it in place whole.
func (c *cache) store(name, key string, fill func(dir string) (map[string]built, error)) (entry, error) {
	temp, err := os.MkdirTemp(c.dir, tempPrefix+name+"-")
	if err != nil {
		return entry{}, fmt.Errorf("make room in the cache: %w", err)
	}
	defer os.RemoveAll(temp)
	e := entry{part: name, dir: c.place(name, key)}
	if e.Files, err = fill(temp); err != nil {
		return entry{}, err
	}
	for file, about := range e.Files {
		if about.SHA256, about.Size, err = sumFile(filepath.Join(temp, file)); err != nil {
			return entry{}, err
		}
		e.Files[file] = about
	}
	text, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return entry{}, err
	}
	if err := os.WriteFile(filepath.Join(temp, sumsName), text, 0o644); err != nil {
		return entry{}, err
	}
	if err := errors.Join(os.Chmod(temp, 0o755), os.RemoveAll(e.dir), os.Rename(temp, e.dir)); err != nil {
		return entry{}, fmt.Errorf("keep what was built: %w", err)
	}
	return e, nil
}

func (c *cache) place(name, key string) string { return filepath.Join(c.dir, name+"-"+key) }

// prune removes entries that no build has used since the given time, and all
// but a few archives: each change to a part makes another large one.
func (c *cache) prune(since time.Time) error {
	list, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	var archives []fs.FileInfo
	for _, one := range list {
		info, err := one.Info()
		switch {
		case err != nil || !one.IsDir():
		case info.ModTime().Before(since):
			err = c.remove(info)
		case strings.HasPrefix(info.Name(), archivePart+"-"):
			archives = append(archives, info)
		}
		if err != nil {
			return err
		}
	}
	slices.SortFunc(archives, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for _, old := range archives[min(len(archives), keptArchives):] {
		if err := c.remove(old); err != nil {
			return err
		}
	}
	return nil
}

func (c *cache) remove(e fs.FileInfo) error {
	if err := os.RemoveAll(filepath.Join(c.dir, e.Name())); err != nil {
		return fmt.Errorf("clear the cache: %w", err)
	}
	return nil
}

func (e entry) size() (size int64) {
	for _, f := range e.Files {
		size += f.Size
	}
	return size
}

// copyFile writes a copy whole or not at all.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.CreateTemp(filepath.Dir(to), tempPrefix)
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(0o644), out.Close(), os.Rename(out.Name(), to))
}
