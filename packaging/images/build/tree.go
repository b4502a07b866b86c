package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
)

// This file turns folders into layers and layers into folders. Equal folders
// give equal bytes: entries are sorted, owners are numbers, every time is epoch,
// extended attributes and setuid bits are left out.

// epoch is the time of every file in every image. Archives that cannot say
// anything before 1980 (zip, thus wheels) can still be made from such files.
var epoch = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// whiteout marks, in a layer, a name that the layers below have and it has not.
const whiteout = ".wh."

// entry is one file of a tree.
type entry struct {
	header tar.Header // Name without a leading slash, Linkname as in a tar
	source string     // file to read the content from; "" where there is none
	sum    string     // everything that makes two entries the same, but the time
}

// tree is the content of a root, by name.
type tree map[string]entry

// dropped are the paths that belong to the making of a root and not to it:
// caches, logs, and what the building machine lent to it.
var dropped = []string{
	"dev/*", "proc/*", "sys/*", "run/*", "tmp/*", "var/tmp/*",
	"etc/resolv.conf", "etc/hostname", "etc/hosts", "etc/mtab", "etc/.pwd.lock", "etc/*-",
	"etc/apt/*", "etc/dpkg/dpkg.cfg.d/99mmdebstrap",
	"root/.cache", "var/cache/*", "var/log/*", "var/lib/apt/*", "var/lib/dpkg/*-old", "var/lib/dpkg/lock*",
	"var/lib/dpkg/triggers/Lock",
}

// isDropped reports whether a name, or a folder above it, is not part of a layer.
func isDropped(name string) bool {
	for ; name != "." && name != ""; name = path.Dir(name) {
		for _, pattern := range dropped {
			if ok, _ := path.Match(pattern, name); ok {
				return true
			}
		}
	}
	return false
}

// readTree lists the folder root as a layer would hold it.
func readTree(root string) (tree, error) {
	t := tree{}
	inodes := map[uint64]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil || rel == "." {
			return err
		}
		if isDropped(rel) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		e, err := readEntry(p, rel, inodes)
		if err != nil {
			return err
		}
		if e.header.Name != "" {
			t[rel] = e
		}
		return nil
	})
	return t, err
}

// readEntry describes one file. Sockets, pipes and devices come back empty:
// an image has none. WalkDir goes in order of names, so the first of several
// hard links is the same one every time.
func readEntry(file, name string, inodes map[uint64]string) (entry, error) {
	info, err := os.Lstat(file)
	if err != nil {
		return entry{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return entry{}, fmt.Errorf("%s: no owner known on this system", file)
	}
	h := tar.Header{Name: name, Uid: int(stat.Uid), Gid: int(stat.Gid), ModTime: epoch, Format: tar.FormatPAX}
	// A setuid program in an image serves nobody: pods run without new privileges.
	h.Mode = int64(info.Mode().Perm())
	if info.IsDir() && info.Mode()&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	e := entry{header: h}
	content := ""
	switch {
	case info.IsDir():
		e.header.Typeflag = tar.TypeDir
	case info.Mode()&fs.ModeSymlink != 0:
		e.header.Typeflag, e.header.Mode = tar.TypeSymlink, 0o777
		if e.header.Linkname, err = os.Readlink(file); err != nil {
			return entry{}, err
		}
	case info.Mode().IsRegular():
		if content, err = fileSum(file); err != nil {
			return entry{}, err
		}
		e.header.Typeflag, e.header.Size, e.source = tar.TypeReg, info.Size(), file
		if first, seen := inodes[stat.Ino]; seen && stat.Nlink > 1 {
			e.header.Typeflag, e.header.Size, e.header.Linkname, e.source = tar.TypeLink, 0, first, ""
		} else {
			inodes[stat.Ino] = name
		}
	default:
		return entry{}, nil
	}
	e.sum = entrySum(e.header, content)
	return e, nil
}

// entrySum is equal for two entries that unpack to the same. A hard link counts
// as the file it leads to, so that moving the "first" name changes nothing else.
func entrySum(h tar.Header, content string) string {
	kind, link := h.Typeflag, h.Linkname
	if kind == tar.TypeLink {
		kind, link = tar.TypeReg, ""
	}
	return fmt.Sprintf("%c %o %d:%d %q %s", kind, h.Mode, h.Uid, h.Gid, link, content)
}

func fileSum(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// diff returns what must be put on top of lower to get t: new and changed
// entries, the folders they lie in, and whiteouts for what is gone.
func (t tree) diff(lower tree) tree {
	out := tree{}
	for name, e := range t {
		if was, ok := lower[name]; ok && was.sum == e.sum {
			continue
		}
		out[name] = e
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if parent, ok := t[dir]; ok {
				out[dir] = parent
			}
		}
	}
	// A hard link may lead to a file of a layer below; a layer must be whole in
	// itself, so the file comes along.
	for _, e := range out {
		if e.header.Typeflag == tar.TypeLink {
			out[e.header.Linkname] = t[e.header.Linkname]
		}
	}
	for name := range lower {
		if _, ok := t[name]; ok {
			continue
		}
		dir := path.Dir(name)
		if parent, ok := t[dir]; dir != "." && (!ok || parent.header.Typeflag != tar.TypeDir) {
			continue // the folder itself is gone, or hidden by a file
		}
		mark := path.Join(dir, whiteout+path.Base(name))
		out[mark] = entry{header: tar.Header{Name: mark, Typeflag: tar.TypeReg, Mode: 0o644, ModTime: epoch, Format: tar.FormatPAX}}
		for ; dir != "."; dir = path.Dir(dir) {
			out[dir] = t[dir]
		}
	}
	return out
}

// names returns the entries in the order of a layer: folders before what is in
// them, the target of a hard link before the link.
func (t tree) names() []string {
	names := make([]string, 0, len(t))
	for name := range t {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(sortKey(a), sortKey(b)) })
	return names
}

// sortKey orders names the way WalkDir visits them: what is in a folder comes
// right after it, before a sibling such as "folder-two".
func sortKey(name string) string { return strings.ReplaceAll(name, "/", "\x00") }

// layer is a compressed tar with what an image says about it.
type layer struct {
	Digest  string   `json:"digest"`          // sha256 of the blob, in hex
	DiffID  string   `json:"diffID"`          // sha256 of the tar, in hex
	Size    int64    `json:"size"`            // bytes of the blob
	Tar     int64    `json:"tar"`             // bytes of the tar
	Drift   []string `json:"drift,omitempty"` // packages at other versions than locked
	Created string   `json:"createdBy"`       // the part it is, for an image's history
	path    string
}

// compress is how a layer is packed. The layer of the tools, 362 MB, takes 43 s and 99 MB at level 12, 45 s and 84 MB
// with a window of 128 MiB (the most that zstd unpacks without being asked to), and 410 s and 69 MB at level 19 with that.
// One thread: the output must not depend on the number of cores.
var compress = []string{"zstd", "-12", "--long=27", "--single-thread", "--quiet", "--stdout"}

// writeLayer packs t into file as a zstd-compressed tar.
func writeLayer(ctx context.Context, t tree, file string) (layer, error) {
	f, err := os.Create(file)
	if err != nil {
		return layer{}, err
	}
	defer f.Close()
	blob, plain := newCounter(), newCounter()
	command := exec.CommandContext(ctx, compress[0], compress[1:]...)
	var said bytes.Buffer
	command.Stdout, command.Stderr = io.MultiWriter(f, blob), &said
	in, err := command.StdinPipe()
	if err != nil {
		return layer{}, err
	}
	if err := command.Start(); err != nil {
		return layer{}, err
	}
	buffered := bufio.NewWriterSize(io.MultiWriter(in, plain), 1<<20)
	err = t.writeTar(buffered)
	err = errors.Join(err, buffered.Flush(), in.Close())
	// Where zstd has failed, what it says is the reason why it takes no more.
	if failed := command.Wait(); failed != nil {
		return layer{}, fmt.Errorf("%s: %w: %s", compress[0], failed, bytes.TrimSpace(said.Bytes()))
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return layer{}, err
	}
	return layer{Digest: blob.hex(), DiffID: plain.hex(), Size: blob.n, Tar: plain.n, path: file}, nil
}

func (t tree) writeTar(w io.Writer) error {
	tw := tar.NewWriter(w)
	for _, name := range t.names() {
		e := t[name]
		h := e.header
		if h.Typeflag == tar.TypeDir {
			h.Name += "/"
		}
		if err := tw.WriteHeader(&h); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if e.source == "" {
			continue
		}
		if err := copyFrom(tw, e.source); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return tw.Close()
}

func copyFrom(w io.Writer, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// counter hashes and counts what is written to it.
type counter struct {
	h hash.Hash
	n int64
}

func newCounter() *counter { return &counter{h: sha256.New()} }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return c.h.Write(p)
}

func (c *counter) hex() string { return hex.EncodeToString(c.h.Sum(nil)) }

// eachEntry calls f for every entry of a compressed layer.
func eachEntry(blob string, f func(*tar.Header, io.Reader) error) error {
	file, err := os.Open(blob)
	if err != nil {
		return err
	}
	defer file.Close()
	z, err := zstd.NewReader(file)
	if err != nil {
		return err
	}
	defer z.Close()
	r := tar.NewReader(z)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		h.Name = strings.TrimSuffix(h.Name, "/")
		if err := f(h, r); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

// overlay adds a layer to t as a container runtime would see it.
func (t tree) overlay(blob string) error {
	sums := map[string]string{}
	return eachEntry(blob, func(h *tar.Header, r io.Reader) error {
		dir, base := path.Split(h.Name)
		if hidden, ok := strings.CutPrefix(base, whiteout); ok {
			t.remove(dir + hidden)
			return nil
		}
		content := ""
		switch h.Typeflag {
		case tar.TypeReg:
			s := sha256.New()
			if _, err := io.Copy(s, r); err != nil {
				return err
			}
			content = hex.EncodeToString(s.Sum(nil))
			sums[h.Name] = content
		case tar.TypeLink:
			content = sums[h.Linkname]
			sums[h.Name] = content
		}
		if h.Typeflag != tar.TypeDir {
			t.remove(h.Name)
		}
		t[h.Name] = entry{header: *h, sum: entrySum(*h, content)}
		return nil
	})
}

// remove takes a name and everything below it out of t.
func (t tree) remove(name string) {
	if e, ok := t[name]; ok && e.header.Typeflag == tar.TypeDir {
		for other := range t {
			if strings.HasPrefix(other, name+"/") {
				delete(t, other)
			}
		}
	}
	delete(t, name)
}

// unpack writes a layer into the folder root, on top of what is there.
func unpack(blob, root string) error {
	r, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer r.Close()
	return eachEntry(blob, func(h *tar.Header, content io.Reader) error {
		dir, base := path.Split(h.Name)
		if hidden, ok := strings.CutPrefix(base, whiteout); ok {
			return r.RemoveAll(dir + hidden)
		}
		return unpackEntry(r, h, content)
	})
}

func unpackEntry(r *os.Root, h *tar.Header, content io.Reader) error {
	info, err := r.Lstat(h.Name)
	if err == nil && (h.Typeflag != tar.TypeDir || !info.IsDir()) {
		if err := r.RemoveAll(h.Name); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := r.MkdirAll(h.Name, 0o755); err != nil {
			return err
		}
	case tar.TypeSymlink:
		if err := r.Symlink(h.Linkname, h.Name); err != nil {
			return err
		}
		return r.Lchown(h.Name, h.Uid, h.Gid)
	case tar.TypeLink:
		return r.Link(h.Linkname, h.Name)
	case tar.TypeReg:
		f, err := r.OpenFile(h.Name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		if _, err := io.Copy(f, content); err != nil {
			f.Close()
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	default:
		return fmt.Errorf("a layer of ours has no entry of type %q", h.Typeflag)
	}
	if err := r.Chown(h.Name, h.Uid, h.Gid); err != nil {
		return err
	}
	if err := r.Chmod(h.Name, fs.FileMode(h.Mode).Perm()|sticky(h.Mode)); err != nil {
		return err
	}
	return r.Chtimes(h.Name, h.ModTime, h.ModTime)
}

func sticky(mode int64) fs.FileMode {
	if mode&0o1000 != 0 {
		return fs.ModeSticky
	}
	return 0
}
