package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpulab/gpulab/packaging/gobuild"
)

// keepUnused is how long a layer that nothing asked for stays in the cache.
const keepUnused = 30 * 24 * time.Hour

// cache keeps finished layers outside the checkout: <dir>/layers/<key>/ holds
// blob (the compressed tar) and layer.json. An entry appears whole or not at all.
type cache struct{ dir string }

// openCache uses gpulab/images below the user's cache folder.
func openCache() (*cache, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("no cache folder: %w; set HOME or XDG_CACHE_HOME", err)
	}
	c := &cache{dir: filepath.Join(base, "gpulab", "images")}
	for _, sub := range []string{"layers", "tmp", "logs", "pip"} {
		if err := os.MkdirAll(filepath.Join(c.dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// lock waits until no other build uses the cache, then clears what a killed one
// left half-done. The returned function gives the lock back.
func (c *cache) lock(ctx context.Context, notice io.Writer) (func(), error) {
	f, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for told := false; ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
		}
		if !told {
			fmt.Fprintln(notice, "images: another build is running; waiting for it")
			told = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	tmp := filepath.Join(c.dir, "tmp")
	if err := os.RemoveAll(tmp); err != nil {
		f.Close()
		return nil, err
	}
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// temp makes a working folder on the cache's own disk.
func (c *cache) temp(name string) (string, error) {
	return os.MkdirTemp(filepath.Join(c.dir, "tmp"), name+"-")
}

// get returns the layer stored under key and marks it as used.
func (c *cache) get(key string) (layer, bool) {
	dir := filepath.Join(c.dir, "layers", key)
	data, err := os.ReadFile(filepath.Join(dir, "layer.json"))
	if err != nil {
		return layer{}, false
	}
	var l layer
	if err := json.Unmarshal(data, &l); err != nil {
		return layer{}, false
	}
	l.path = filepath.Join(dir, "blob")
	if info, err := os.Stat(l.path); err != nil || info.Size() != l.Size {
		return layer{}, false
	}
	now := time.Now()
	// Only pruning reads the time; a cache that cannot be marked still serves.
	_ = os.Chtimes(dir, now, now)
	return l, true
}

// put moves the finished blob of l into the cache.
func (c *cache) put(key string, l layer) (layer, error) {
	stage, err := c.temp("put")
	if err != nil {
		return l, err
	}
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return l, err
	}
	if err := os.WriteFile(filepath.Join(stage, "layer.json"), data, 0o644); err != nil {
		return l, err
	}
	if err := os.Rename(l.path, filepath.Join(stage, "blob")); err != nil {
		return l, err
	}
	if err := os.Chmod(stage, 0o755); err != nil {
		return l, err
	}
	final := filepath.Join(c.dir, "layers", key)
	if err := os.RemoveAll(final); err != nil {
		return l, err
	}
	if err := os.Rename(stage, final); err != nil {
		return l, err
	}
	l.path = filepath.Join(final, "blob")
	return l, nil
}

// prune removes layers that no build has used for keepUnused.
func (c *cache) prune() error {
	root := filepath.Join(c.dir, "layers")
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < keepUnused {
			continue
		}
		if err := os.RemoveAll(filepath.Join(root, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// keyer collects everything that shapes a layer. Every entry is framed by its
// length, so that two different lists never give the same key.
type keyer struct{ parts []string }

func (k *keyer) add(values ...string) { k.parts = append(k.parts, values...) }

// addTree adds the names, modes and contents of a file or of all files below a folder.
func (k *keyer) addTree(path string) error {
	return filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == gobuild.PatchedFolder {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(path, p)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		// Git keeps of a mode only whether its owner may execute the file.
		k.add(rel, fmt.Sprint(info.Mode()&0o100 != 0), string(content))
		return nil
	})
}

func (k *keyer) sum() string {
	h := sha256.New()
	for _, p := range k.parts {
		fmt.Fprintf(h, "%d:", len(p))
		io.WriteString(h, p)
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}
