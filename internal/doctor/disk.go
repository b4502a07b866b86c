package doctor

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/units"
)

const minDisk = 10 * gib // images unpacked, and room for the first homes

// probeDisk looks at the file system the data folder is on, or will be on.
func probeDisk(h host, opts Options) []Finding {
	folder := h.existingParent(opts.DataDir)
	free, err := h.freeBytes(h.path(folder))
	if err != nil {
		return []Finding{{
			Probe: "disk", State: Fail,
			Seen:  fmt.Sprintf("The free space of %s cannot be read: %v.", folder, err),
			Means: "Images and homes are kept there.",
			Mend:  "Name another folder as dataDir in the configuration.",
		}}
	}
	// A lab that runs already holds what the space is asked for.
	if free < minDisk && !h.exists(filepath.Join(opts.DataDir, "bin/current")) {
		return []Finding{{
			Probe: "disk", State: Fail,
			Seen:  fmt.Sprintf("Only %s are free for %s.", units.Bytes(free), opts.DataDir),
			Means: fmt.Sprintf("Container images and homes need %s to begin with.", units.Bytes(minDisk)),
			Mend:  "Free some space, or name a folder on another disk as dataDir in the configuration.",
		}}
	}
	return []Finding{{Probe: "disk", State: OK, Seen: fmt.Sprintf("%s are free for %s.", units.Bytes(free), opts.DataDir)}}
}

// existingParent returns the nearest folder on the way up that exists.
func (h host) existingParent(path string) string {
	for path != "/" && path != "." && path != "" && !h.exists(path) {
		path = filepath.Dir(path)
	}
	return path
}

func freeBytes(path string) (uint64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return 0, err
	}
	return stat.Bavail * uint64(stat.Bsize), nil
}
