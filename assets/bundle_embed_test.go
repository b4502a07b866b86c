//go:build bundle

package assets

import (
	"crypto/sha256"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// TestReleaseBundle: released, the bundle takes no memory, and it is what it was
// when it is read again.
func TestReleaseBundle(t *testing.T) {
	archive, _ := Bundle()
	before, held := sha256.Sum256(archive), resident(t)
	ReleaseBundle()
	if freed := held - resident(t); freed < len(archive)*9/10 {
		t.Errorf("%d of %d bytes were released", freed, len(archive))
	}
	if sha256.Sum256(archive) != before {
		t.Error("the bundle has changed")
	}
}

var fileBacked = regexp.MustCompile(`RssFile:\s+(\d+) kB`)

// resident is how many bytes of files this process has in memory.
func resident(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	kib, err := strconv.Atoi(string(fileBacked.FindSubmatch(status)[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kib * 1024
}
