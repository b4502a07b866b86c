//go:build bundle

package assets

import (
	_ "embed"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// It is read straight from the executable's pages: the kernel brings in what
// staging reads.
//
//go:embed bundle/runtime.tar.zst
var bundle []byte

// Bundle returns the runtime bundle, a tar archive compressed with zstd that
// packaging/runtime/build made, and whether this binary holds one. The caller
// must not change it.
func Bundle() (archive []byte, ok bool) { return bundle, true }

// ReleaseBundle lets go of the memory that reading the bundle has taken. It may
// be read again, which takes its pages from the executable anew.
func ReleaseBundle() {
	page := uintptr(os.Getpagesize())
	begin := uintptr(unsafe.Pointer(unsafe.SliceData(bundle)))
	first := (page - begin%page) % page // whole pages only: others live on the edges
	if size := uintptr(len(bundle)); size > first+page {
		// Nobody writes to them, so there is nothing to lose; where the kernel
		// refuses, they stay.
		_ = unix.Madvise(bundle[first:first+(size-first)/page*page], unix.MADV_DONTNEED)
	}
}
