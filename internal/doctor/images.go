package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// probeImages looks whether every part of the container images is there and as
// long as it should be: a copy that was interrupted, a package half unpacked.
func probeImages(h host, opts Options) []Finding {
	again := "Run `apt-get install --reinstall gpulab-images`, or build them again with `go tool task images`."
	if opts.ImagesDir == "" {
		if opts.ImagesError == nil {
			return []Finding{{Probe: "images", State: OK,
				Seen: "No container images are stored here; the head hands them over."}}
		}
		if errors.Is(opts.ImagesError, fs.ErrPermission) {
			return []Finding{{Probe: "images", State: Unseen, Seen: "Only root can look for the container images."}}
		}
		return []Finding{{
			Probe: "images", State: Fail,
			Seen:  "The container images are not on this machine.",
			Means: "Notebooks and the lab's own parts start from them. (" + opts.ImagesError.Error() + ")",
			Mend:  "Run `apt-get install gpulab-images`, or build them with `go tool task images`.",
		}}
	}
	var list struct {
		Images []struct{ Name, Digest string }
	}
	if err := json.Unmarshal([]byte(h.read(filepath.Join(opts.ImagesDir, "images.json"))), &list); err != nil ||
		len(list.Images) == 0 {
		return []Finding{{
			Probe: "images", State: Fail,
			Seen: fmt.Sprintf("The list of container images, %s, cannot be read.",
				filepath.Join(opts.ImagesDir, "images.json")),
			Means: "Notebooks and the lab's own parts start from these images.",
			Mend:  again,
		}}
	}
	var incomplete []string
	for _, image := range list.Images {
		if !h.imageComplete(opts.ImagesDir, image.Digest) {
			incomplete = append(incomplete, image.Name)
		}
	}
	if len(incomplete) > 0 {
		return []Finding{{
			Probe: "images", State: Fail,
			Seen: fmt.Sprintf("Parts of these container images are missing or cut short in %s: %s.", opts.ImagesDir,
				strings.Join(incomplete, ", ")),
			Means: "What starts from them does not start.",
			Mend:  again,
		}}
	}
	return []Finding{{Probe: "images", State: OK,
		Seen: fmt.Sprintf("All %d container images are complete.", len(list.Images))}}
}

// imageComplete follows an image's manifest in an OCI layout to its parts, and
// compares their sizes.
func (h host) imageComplete(layout, digest string) bool {
	var manifest struct {
		Config blob
		Layers []blob
	}
	if json.Unmarshal([]byte(h.read(blob{Digest: digest}.path(layout))), &manifest) != nil ||
		manifest.Config.Digest == "" {
		return false
	}
	for _, b := range append(manifest.Layers, manifest.Config) {
		if info, err := os.Stat(h.path(b.path(layout))); err != nil || info.Size() != b.Size {
			return false
		}
	}
	return true
}

// blob is a part of an image.
type blob struct {
	Digest string
	Size   int64
}

func (b blob) path(layout string) string {
	return filepath.Join(layout, "blobs/sha256", filepath.Base(strings.TrimPrefix(b.Digest, "sha256:")))
}
