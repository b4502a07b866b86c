package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Storage says how homes and shared folders are looked after.
type Storage struct {
	// MeasureEvery is how long the size of what is in use counts as new, as "10m".
	MeasureEvery string `json:"measureEvery,omitempty"`
	// Shared is a folder that every machine of the pool mounts at the same path;
	// homes and shared folders lie in it. Empty: they are on the head's own disk.
	Shared string `json:"shared,omitempty"`
	// Export is nfs where the head's own disk has the homes, and the machines of
	// the pool mount them from there. Empty: nobody does.
	Export string `json:"export,omitempty"`
	// Scratch is what a notebook or job may write beside its home, as "20Gi": in
	// /scratch and /tmp, on the disk of its machine.
	Scratch string `json:"scratch,omitempty"`
}

// The least that notebooks need beside the home, and what is no mistake still.
const leastScratch, mostScratch = int64(1) << 30, int64(100) << 40

// scratch is Scratch, which was checked.
func (s Storage) ScratchQuantity() resource.Quantity {
	q, err := resource.ParseQuantity(s.Scratch)
	if err != nil {
		return resource.MustParse(defaultScratch)
	}
	return q
}

func (s Storage) ScratchBytes() int64 {
	q := s.ScratchQuantity()
	return q.Value()
}

func (s Storage) checkScratch() error {
	if q, err := resource.ParseQuantity(s.Scratch); err != nil || q.Value() < leastScratch || q.Value() > mostScratch {
		return fmt.Errorf("storage.scratch is %q; it may be 1Gi to 100Ti, such as %s", s.Scratch, defaultScratch)
	}
	return nil
}

const defaultScratch = "20Gi"

func (s Storage) MeasureInterval() (time.Duration, error) {
	d, err := time.ParseDuration(s.MeasureEvery)
	if err != nil || d < time.Second || d > 24*time.Hour {
		return 0, errors.New("storage.measureEvery is no time between 1s and 24h; write it as 10m")
	}
	return d, nil
}

// ExportNFS is the value of storage.export: the head's homes are on every
// machine, over NFS.
const ExportNFS = "nfs"

// everywhere tells whether every machine of the pool has everybody's homes.
func (s Storage) Everywhere() bool { return s.Shared != "" || s.Export != "" }

func (s Storage) checkExport() error {
	switch {
	case s.Export != "" && s.Export != ExportNFS:
		return fmt.Errorf("storage.export is %q; it may be nfs, or left out", s.Export)
	case s.Export != "" && s.Shared != "":
		return errors.New("storage.export and storage.shared are both given: homes lie on the head and go from there to the other machines (export), or on storage that all mount (shared)")
	}
	return nil
}

func checkShared(path, dataDir string) error {
	if path == "" {
		return nil
	}
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
		return fmt.Errorf("storage.shared is %q, but must be the full path of a folder that every machine mounts, such as /srv/lab", path)
	}
	if path == dataDir || strings.HasPrefix(path, dataDir+"/") || strings.HasPrefix(dataDir, path+"/") {
		return fmt.Errorf("storage.shared is %s, which lies in or around dataDir, %s; mount the storage elsewhere", path, dataDir)
	}
	return nil
}
