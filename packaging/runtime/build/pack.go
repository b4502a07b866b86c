package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpulab/gpulab/packaging/runtime/manifest"
)

// archiveName is the archive's name in its entry of the cache.
const archiveName = "runtime.tar.zst"

// links are the further names of k3s, which is a different program under each.
var links = map[string]string{"containerd": "k3s", "ctr": "k3s", "kubectl": "k3s"}

// source is where a file of the bundle lies on this machine.
type source struct {
	manifest.File
	path string
}

// pack returns the entry that holds the archive of all parts. It depends on
// nothing but their content and how it is packed.
func (c *cache) pack(ctx context.Context, parts []entry, have versions, small bool) (entry, error) {
	compress := compressFast
	if small {
		compress = compressSmall
	}
	files := contents(parts)
	list := make([]manifest.File, len(files))
	for i, f := range files {
		list[i] = f.File
	}
	table, err := manifest.New(list).Encode()
	if err != nil {
		return entry{}, err
	}
	version, err := have.of(ctx, zstdTool)
	if err != nil {
		return entry{}, err
	}
	key := sha256.Sum256(fmt.Appendf(nil, "pack %d, %s, %q\n%s", recipe, version, compress, table))
	e, err := c.load(archivePart, hex.EncodeToString(key[:]))
	if err == nil {
		c.progress.Cached(archivePart)
		return e, nil
	}
	shown := c.progress.Begin(archivePart)
	e, err = c.store(archivePart, hex.EncodeToString(key[:]), func(dir string) (map[string]built, error) {
		return map[string]built{archiveName: {}}, writeArchive(ctx, filepath.Join(dir, archiveName), compress, table, files)
	})
	if err != nil {
		shown.Failed()
		return entry{}, err
	}
	shown.Done("%s", megabytes(e.size()))
	return e, nil
}

// contents lists what goes into the bundle: files by name, then links by name.
func contents(parts []entry) (files []source) {
	for _, e := range parts {
		for name, f := range e.Files {
			files = append(files, source{
				File: manifest.File{Name: path.Join(f.Folder, name), SHA256: f.SHA256, Size: f.Size, Mode: modeOf(name), Version: f.Version},
				path: filepath.Join(e.dir, name),
			})
		}
	}
	slices.SortFunc(files, func(a, b source) int { return strings.Compare(a.Name, b.Name) })
	for _, name := range slices.Sorted(maps.Keys(links)) {
		files = append(files, source{File: manifest.File{Name: name, Link: links[name]}})
	}
	return files
}

// modeOf makes everything executable but shared libraries, whatever the umask
// was when it was built.
func modeOf(name string) os.FileMode {
	if strings.Contains(name, ".so") {
		return 0o644
	}
	return 0o755
}

// A release's archive is as small as zstd makes it within a window of 64 MiB,
// which is what unpacking needs of memory. Similar programs lie apart by more
// than a common window: the long one takes a fifth off. The jobs are the same,
// and so the bytes, on however many processors. Every other archive is a quarter
// larger and packed in seconds instead of minutes.
var (
	compressSmall = []string{"zstd", "-19", "--long=26", "-T0", "--quiet", "--stdout"}
	compressFast  = []string{"zstd", "-6", "--long=26", "-T0", "--quiet", "--stdout"}
)

// writeArchive writes the manifest and the files. Equal content gives equal
// bytes: no times, owners or order of the build machine are in it.
func writeArchive(ctx context.Context, to string, compress []string, table []byte, files []source) error {
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	command := exec.CommandContext(ctx, compress[0], compress[1:]...)
	var said bytes.Buffer
	command.Stdout, command.Stderr = out, &said
	in, err := command.StdinPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	t := tar.NewWriter(in)
	err = addFile(t, manifest.File{Name: manifest.Name, Size: int64(len(table)), Mode: 0o644}, bytes.NewReader(table))
	for _, f := range files {
		if err == nil {
			err = addSource(ctx, t, f)
		}
	}
	err = errors.Join(err, t.Close(), in.Close())
	// Where zstd has failed, what it says is the reason why it takes no more.
	if failed := command.Wait(); failed != nil {
		return commandError(ctx, compress, said.String(), failed)
	}
	return errors.Join(err, out.Close())
}

func addSource(ctx context.Context, t *tar.Writer, f source) error {
	if ctx.Err() != nil {
		return errors.New("interrupted; what was built so far is kept")
	}
	if f.Link != "" {
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: f.Name, Linkname: f.Link, Mode: 0o777})
	}
	in, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer in.Close()
	return addFile(t, f.File, in)
}

func addFile(t *tar.Writer, f manifest.File, content io.Reader) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Size: f.Size, Mode: int64(f.Mode), ModTime: time.Unix(0, 0)}
	if err := t.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(t, content)
	return err
}

// install puts the archive where it is embedded from, if it is not there yet.
func (e entry) install(out string) error {
	if sum, _, err := sumFile(out); err == nil && sum == e.Files[archiveName].SHA256 {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return copyFile(filepath.Join(e.dir, archiveName), out)
}
