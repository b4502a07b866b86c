package diskspace

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// Part is something that takes room.
type Part struct {
	Name  string `json:"name"`
	Path  string `json:"path"`
	Bytes uint64 `json:"bytes"`
}

// Measured returns parts with what is found at their paths, which may have wildcards, added to their bytes; the largest
// comes first. Blocks on the disk count, a file with several names once, and nothing that is mounted from elsewhere.
// What cannot be looked at is left out and told by the error.
func Measured(ctx context.Context, parts []Part) ([]Part, error) {
	parts = slices.Clone(parts)
	m := measurer{ctx: ctx, seen: map[[2]uint64]bool{}}
	for i := range parts {
		paths, err := filepath.Glob(parts[i].Path)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			parts[i].Bytes += m.tree(path)
		}
	}
	slices.SortStableFunc(parts, func(a, b Part) int {
		switch {
		case a.Bytes > b.Bytes:
			return -1
		case a.Bytes < b.Bytes:
			return 1
		}
		return 0
	})
	return parts, errors.Join(m.failed, ctx.Err())
}

type measurer struct {
	ctx    context.Context
	seen   map[[2]uint64]bool // device and inode of what has several names
	failed error              // the first
}

func (m *measurer) tree(root string) (bytes uint64) {
	var device uint64
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if m.ctx.Err() != nil {
			return m.ctx.Err()
		}
		var info fs.FileInfo
		if err == nil {
			info, err = entry.Info()
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil // it has gone meanwhile
		}
		if err != nil {
			m.fail(err)
			return nil
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		if path == root {
			device = stat.Dev
		}
		if stat.Dev != device || entry.IsDir() && entry.Name() == "volume-subpaths" {
			// The kubelet shows parts of homes there once more.
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if id := [2]uint64{stat.Dev, stat.Ino}; stat.Nlink > 1 && !entry.IsDir() {
			if m.seen[id] {
				return nil
			}
			m.seen[id] = true
		}
		bytes += uint64(stat.Blocks) * 512
		return nil
	})
	if err != nil && m.ctx.Err() == nil {
		m.fail(err)
	}
	return bytes
}

func (m *measurer) fail(err error) {
	if m.failed == nil {
		m.failed = err
	}
}
