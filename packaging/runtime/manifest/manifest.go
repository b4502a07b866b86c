// Package manifest is the table of contents of the runtime bundle:
// packaging/runtime/build writes it, internal/embedk8s holds every staged file
// against it. It imports nothing but the standard library.
package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// Name is the manifest's own name, the first entry of the archive.
const Name = "manifest.json"

// MaxSize is the largest manifest that is read, in bytes: what an archive says
// about itself is not believed without bounds.
const MaxSize = 1 << 20

// maxFile bounds one file, in bytes, so that sizes can be added up.
const maxFile = 16 << 30

// format is raised when an older gpulab could no longer stage what is written.
const format = 1

// Manifest lists what a bundle holds, in the order of the archive.
type Manifest struct {
	Format int    `json:"format"`
	Files  []File `json:"files"`
}

// File is one file of the bundle, or a link to one.
type File struct {
	Name    string      `json:"name"` // slash-separated, relative to the bundle
	SHA256  string      `json:"sha256,omitempty"`
	Size    int64       `json:"size,omitempty"` // bytes
	Mode    fs.FileMode `json:"mode,omitempty"` // permissions only
	Version string      `json:"version,omitempty"`
	Link    string      `json:"link,omitempty"` // names a file in the same folder; then only Name is set besides
}

// New makes a manifest of files.
func New(files []File) Manifest { return Manifest{Format: format, Files: files} }

// Encode writes the manifest as it is stored. Equal manifests give equal bytes.
func (m Manifest) Encode() ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the manifest: %w", err)
	}
	return append(text, '\n'), nil
}

// Decode reads a manifest and refuses one that could write outside its folder.
func Decode(text []byte) (Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return Manifest{}, fmt.Errorf("read the manifest: %w", err)
	}
	if m.Format != format {
		return Manifest{}, fmt.Errorf("the manifest has format %d, this version of gpulab reads %d", m.Format, format)
	}
	return m, m.check()
}

// TotalSize is the size of all files unpacked, in bytes.
func (m Manifest) TotalSize() (size int64) {
	for _, f := range m.Files {
		size += f.Size
	}
	return size
}

// check holds every rule that staging relies on.
func (m Manifest) check() error {
	if len(m.Files) == 0 {
		return errors.New("the manifest names no files")
	}
	seen := map[string]bool{Name: true}
	for _, f := range m.Files {
		if err := f.check(); err != nil {
			return fmt.Errorf("the manifest names a bad file %q: %w", f.Name, err)
		}
		if seen[f.Name] {
			return fmt.Errorf("the manifest names %q twice", f.Name)
		}
		seen[f.Name] = true
		if f.Link != "" && !seen[path.Join(path.Dir(f.Name), f.Link)] {
			return fmt.Errorf("the manifest's link %q leads to %q, which no entry before it names", f.Name, f.Link)
		}
	}
	for _, f := range m.Files {
		for dir := path.Dir(f.Name); dir != "."; dir = path.Dir(dir) {
			if seen[dir] {
				return fmt.Errorf("the manifest names %q both as a file and as a folder", dir)
			}
		}
	}
	return nil
}

var (
	validName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*$`)
	validSum  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

func (f File) check() error {
	switch {
	case !validName.MatchString(f.Name) || len(f.Name) > 200:
		return errors.New("names are relative, of letters, digits and _.+-, and no part begins with a dot")
	case f.Link != "":
		if !validName.MatchString(f.Link) || strings.Contains(f.Link, "/") {
			return fmt.Errorf("its link %q leaves the folder", f.Link)
		}
		if f.SHA256 != "" || f.Size != 0 || f.Mode != 0 {
			return errors.New("a link has no content")
		}
	case !validSum.MatchString(f.SHA256):
		return errors.New("its sha256 is not 64 hexadecimal digits")
	case f.Size < 0 || f.Size > maxFile:
		return errors.New("its size is negative or beyond all measure")
	case f.Mode != 0o755 && f.Mode != 0o644:
		return fmt.Errorf("its mode is %#o, want 0755 or 0644", f.Mode)
	}
	return nil
}
