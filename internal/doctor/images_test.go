package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
)

func TestImages(t *testing.T) {
	layout := func() map[string]string {
		return map[string]string{
			"/img/images.json":      `{"images": [{"name": "hub", "digest": "sha256:aa"}, {"name": "notebook", "digest": "sha256:bb"}]}`,
			"/img/blobs/sha256/aa":  `{"config": {"digest": "sha256:c1", "size": 3}, "layers": [{"digest": "sha256:d1", "size": 5}]}`,
			"/img/blobs/sha256/bb":  `{"config": {"digest": "sha256:c1", "size": 3}, "layers": [{"digest": "sha256:d1", "size": 5}, {"digest": "sha256:d2", "size": 4}]}`,
			"/img/blobs/sha256/c1":  "abc",
			"/img/blobs/sha256/d1":  "abcde",
			"/img/blobs/sha256/d2":  "abcd",
			"/img/blobs/sha256/xxx": "of no image",
		}
	}
	opts := Options{ImagesDir: "/img"}
	finds(t, machine(t, layout()), "images", opts, OK, "2 container images")
	for _, path := range []string{"/img/blobs/sha256/d2", "/img/blobs/sha256/bb"} {
		files := layout()
		files[path] = "a" // cut short
		finds(t, machine(t, files), "images", opts, Fail, ": notebook.", "`apt-get install --reinstall gpulab-images`")
		files[path] = "absent"
		finds(t, machine(t, files), "images", opts, Fail, ": notebook.")
	}
	for _, list := range []string{"absent", "{", "{}"} {
		files := layout()
		files["/img/images.json"] = list
		finds(t, machine(t, files), "images", opts, Fail, "cannot be read")
	}
	finds(t, machine(t, nil), "images", Options{}, OK, "the head hands them over")
	finds(t, machine(t, nil), "images", Options{ImagesError: fmt.Errorf("there: %w", fs.ErrPermission)}, Unseen)
	finds(t, machine(t, nil), "images", Options{ImagesError: errors.New("they are in none of /a, /b")}, Fail, "none of /a, /b", "`apt-get install gpulab-images`")
}

// TestImagesBuilt looks at the images of this repository, where they are built.
func TestImagesBuilt(t *testing.T) {
	const built = "../../bin/images"
	if _, err := os.Stat(built + "/images.json"); err != nil {
		t.Skip("the images are not built")
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	finds(t, thisHost(), "images", Options{ImagesDir: dir + "/" + built}, OK)
}
