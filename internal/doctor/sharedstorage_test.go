package doctor

import (
	"os"
	"testing"
)

func TestSharedStorage(t *testing.T) {
	h, opts := member(t)
	finds(t, h, "sharedstorage", opts, OK, "is at /srv/lab")
	opts.Joined.Mark = "other"
	finds(t, h, "sharedstorage", opts, Fail, "is another lab's storage", "/etc/fstab")
	if err := os.Remove(h.path("/srv/lab/.gpulab-lab")); err != nil {
		t.Fatal(err)
	}
	finds(t, h, "sharedstorage", opts, Fail, "has no file .gpulab-lab", "`findmnt /srv/lab`")
	opts.Joined.Shared = "/srv/none"
	finds(t, h, "sharedstorage", opts, Fail, "is not at /srv/none")
	opts.Joined.Shared = ""
	finds(t, h, "sharedstorage", opts, OK, "own disk of gpu-one")
}
