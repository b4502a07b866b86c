//go:build !bundle

package assets

// Bundle reports that this binary was built without the tag "bundle" and holds
// no runtime bundle.
func Bundle() (archive []byte, ok bool) { return nil, false }

// ReleaseBundle has nothing to release.
func ReleaseBundle() {}
