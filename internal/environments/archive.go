package environments

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// A file that holds an environment is a tar archive, packed with zstd: the manifest first, then the folder. zstd
// keeps a checksum, so one that is damaged or cut short is noticed at its end.
const (
	// maxEntries and maxUnpacked bound what a file may hold: PyTorch with CUDA has 30,000 files in 8 GB.
	maxEntries  = 2_000_000
	maxUnpacked = 200 << 30
)

// Export writes an environment as one file, for labs that are not on the internet.
func (s *Service) Export(ctx context.Context, id string, w io.Writer) error {
	return s.export(ctx, id, w, zstd.WithEncoderLevel(zstd.SpeedDefault))
}

// HandOver writes the same for another machine of the lab: larger, and with less of
// this one's processors.
func (s *Service) HandOver(ctx context.Context, id string, w io.Writer) error {
	return s.export(ctx, id, w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
}

func (s *Service) export(ctx context.Context, id string, w io.Writer, how ...zstd.EOption) error {
	e, err := s.Get(id)
	if err != nil {
		return err
	}
	z, err := zstd.NewWriter(w, how...)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	if err := s.pack(ctx, &e, t); err != nil {
		// Not closed in order, so that what was written cannot be taken for the whole;
		// but after this nothing is written any more.
		z.Reset(io.Discard)
		return fmt.Errorf("%s was not written: %w", e.ID(), err)
	}
	return errors.Join(t.Close(), z.Close())
}

func addFile(t *tar.Writer, name string, data []byte) error {
	if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)),
		Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err := t.Write(data)
	return err
}

// pack writes the manifest and the folder.
func (s *Service) pack(ctx context.Context, e *Environment, t *tar.Writer) error {
	out := *e
	out.Default = false
	manifest, err := json.MarshalIndent(&out, "", "  ")
	if err != nil {
		return err
	}
	if err := addFile(t, manifestName, manifest); err != nil {
		return err
	}
	root, err := os.OpenRoot(s.folder(e))
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." || name == manifestName {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		h := &tar.Header{Name: "environment/" + name, Mode: int64(info.Mode().Perm()), Format: tar.FormatPAX}
		switch mode := info.Mode(); {
		case mode.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		case mode&fs.ModeSymlink != 0:
			h.Typeflag = tar.TypeSymlink
			if h.Linkname, err = root.Readlink(name); err != nil {
				return err
			}
		case mode.IsRegular():
			h.Size = info.Size()
		default:
			return fmt.Errorf("%s is neither a file nor a folder", name)
		}
		if err := t.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(t, f)
		return err
	})
}

// Import brings in an environment from a file that Export wrote. It needs no network. What is broken or only half
// read leaves nothing behind.
func (s *Service) Import(ctx context.Context, r io.Reader) (e Environment, err error) {
	if s.cfg.Refusal != nil {
		if why := s.cfg.Refusal(); why != "" {
			return e, sentence(ErrFull, "%s", why)
		}
	}
	done, err := s.take(ctx)
	if err != nil {
		return e, err
	}
	defer done()
	dir := filepath.Join(s.building(), "incoming")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return e, err
	}
	if e, err = s.unpack(ctx, r, dir); err == nil {
		if err = s.publish(&e, dir); err == nil {
			return e, nil
		}
	}
	if ctx.Err() != nil {
		err = errors.New("it was ended before it was done; nothing of it is left")
	}
	return e, errors.Join(err, s.empty(context.WithoutCancel(ctx)))
}

var errCut = sentence(ErrInvalid, "this file is cut short or damaged; copy it once more, or export it again")

// unpack reads the whole of a file into a folder.
func (s *Service) unpack(ctx context.Context, r io.Reader, dir string) (e Environment, err error) {
	buffered := bufio.NewReaderSize(r, 1<<20)
	if magic, err := buffered.Peek(4); err != nil || string(magic) != "\x28\xb5\x2f\xfd" {
		return e, sentence(ErrInvalid, "this file holds no environment; `gpulab env export` writes those that do")
	}
	z, err := zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(64<<20))
	if err != nil {
		return e, err
	}
	defer z.Close()
	t := tar.NewReader(z)
	if e, err = readFirst(t); err != nil {
		return e, err
	}
	if _, err := os.Lstat(s.folder(&e)); err == nil {
		return e, sentence(ErrExists, "there is an environment %s already; remove it first", e.ID())
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return e, err
	}
	defer root.Close()
	var unpacked int64
	for n := 0; ; n++ {
		h, err := t.Next()
		switch {
		case ctx.Err() != nil:
			return e, ctx.Err()
		case errors.Is(err, io.EOF):
			// The checksum lies beyond what the archive needs.
			if _, err := io.Copy(io.Discard, z); err != nil {
				return e, errCut
			}
			return e, nil
		case err != nil:
			return e, errCut
		case n >= maxEntries || unpacked+h.Size > maxUnpacked || h.Size < 0:
			return e, sentence(ErrInvalid, "this file holds more than an environment may")
		}
		unpacked += h.Size
		if err := unpackOne(root, h, t); err != nil {
			return e, err
		}
	}
}

func readFirst(t *tar.Reader) (e Environment, err error) {
	h, err := t.Next()
	if err != nil {
		return e, errCut
	}
	if h.Name != manifestName || h.Size > maxManifest {
		return e, sentence(ErrInvalid, "this file holds no environment; `gpulab env export` writes those that do")
	}
	data, err := io.ReadAll(t)
	if err != nil {
		return e, errCut
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return e, sentence(ErrInvalid, "this file does not say which environment it holds: %v", err)
	}
	e.Default = false
	return e, errors.Join(checkName(e.Name), checkVersion(e.Version), checkLanguage(e.Language), e.checkPython())
}

// unpackOne writes one entry. Root keeps it in the folder whatever its name, or a link on the way, says.
func unpackOne(root *os.Root, h *tar.Header, r io.Reader) error {
	name, ok := strings.CutPrefix(h.Name, "environment/")
	name = strings.TrimSuffix(name, "/")
	if !ok || !fs.ValidPath(name) || name == "." || name == manifestName {
		return sentence(ErrInvalid, "this file holds %q, which belongs to no environment", h.Name)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.Mkdir(name, 0o755)
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeReg:
	default:
		return sentence(ErrInvalid, "this file holds %q, which is neither a file nor a folder", h.Name)
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644|fs.FileMode(h.Mode)&0o111)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r); err != nil {
		if full := (*fs.PathError)(nil); !errors.As(err, &full) {
			err = errCut // of the file that is read
		}
		return errors.Join(err, f.Close())
	}
	return f.Close()
}
