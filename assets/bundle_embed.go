//go:build bundle

package assets

import _ "embed"

// It is read straight from the executable's pages, so the kernel brings in
// what staging reads and may drop it again.
//
//go:embed bundle/runtime.tar.zst
var bundle []byte

// Bundle returns the runtime bundle, a tar archive compressed with zstd that
// packaging/runtime/build made, and whether this binary holds one. The caller
// must not change it.
func Bundle() (archive []byte, ok bool) { return bundle, true }
