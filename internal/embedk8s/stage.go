package embedk8s

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/gpulab/gpulab/internal/atomicfile"
	"github.com/gpulab/gpulab/packaging/runtime/manifest"
)

// Runtime is the runtime bundle as it lies unpacked on this machine: k3s, the
// container runtime, CNI plugins, the GPU helpers.
type Runtime struct {
	Dir  string // holds the files of exactly this version
	Hash string // of the bundle's content, and the name of Dir
}

// ErrNoBundle means that this binary was built without the runtime bundle.
var ErrNoBundle = errors.New("this gpulab was built without its runtime bundle (k3s and what it needs): " +
	"build one that has it with `go tool task build`, or install the gpulab package")

// errDamaged means that the bundle inside the binary is not what was built.
var errDamaged = errors.New("the runtime bundle in this gpulab binary is damaged: install gpulab again")

const (
	binFolder    = "bin"      // in the data folder, where versions lie side by side
	currentLink  = "current"  // in the bin folder, leads to the version in use
	partialEnd   = ".partial" // of a version that is being unpacked
	discardedEnd = ".old"     // of a version that is being removed
	maxWindow    = 64 << 20   // bytes of memory that unpacking needs; packaging/runtime/build packs within it
	spareSpace   = 64 << 20   // bytes left free on the disk beside what is unpacked
)

// Stage unpacks the bundle below dataDir and makes <dataDir>/bin/current lead
// to it. Where that version lies there already, it only looks at names, sizes
// and modes and mends what differs; changed tells whether anything was
// written. Versions that no process uses any more are removed.
//
// Interrupted at any point, killed too, it can be called again; several
// callers take turns. The progress function, which may be nil, is told the
// bytes unpacked so far and in all. Stage returns ErrNoBundle for an empty
// archive.
func Stage(ctx context.Context, archive []byte, dataDir string,
	progress func(done, total int64)) (rt Runtime, changed bool, err error) {
	s, err := newStager(ctx, archive, dataDir, progress)
	if err != nil {
		return Runtime{}, false, err
	}
	defer s.close()
	changed, err = s.converge(quickly)
	if err != nil {
		return Runtime{}, false, err
	}
	return s.runtime(), changed, nil
}

// Repair is Stage with every byte compared, for when Verify found damage.
func Repair(ctx context.Context, archive []byte, dataDir string, progress func(done, total int64)) (Runtime, error) {
	s, err := newStager(ctx, archive, dataDir, progress)
	if err != nil {
		return Runtime{}, err
	}
	defer s.close()
	if _, err := s.converge(thoroughly); err != nil {
		return Runtime{}, err
	}
	return s.runtime(), nil
}

// Current is the path under which the staged runtime is found whatever its
// version: for PATH, CNI and CDI, which outlive an upgrade.
func Current(dataDir string) string { return filepath.Join(dataDir, binFolder, currentLink) }

// Verify compares every byte of a staged runtime with what was built. The
// error names each file that differs.
func (rt Runtime) Verify(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(rt.Dir, manifest.Name))
	if err != nil {
		return fmt.Errorf("verify the runtime: %w", err)
	}
	if contentHash(text) != rt.Hash {
		return fmt.Errorf("verify the runtime: %s in %s was changed", manifest.Name, rt.Dir)
	}
	list, err := manifest.Decode(text)
	if err != nil {
		return fmt.Errorf("verify the runtime: %w", err)
	}
	var errs []error
	for _, f := range list.Files {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := thoroughly(rt.Dir, f); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// stager is one call of Stage, holding the lock of the bin folder.
type stager struct {
	ctx      context.Context // of the call; a stager does not outlive it
	archive  []byte
	bin      string
	hash     string
	table    []byte // the manifest as stored
	list     manifest.Manifest
	progress func(done, total int64)
	lock     *os.File
}

func newStager(ctx context.Context, archive []byte, dataDir string, progress func(done, total int64)) (*stager, error) {
	if len(archive) == 0 {
		return nil, ErrNoBundle
	}
	if progress == nil {
		progress = func(int64, int64) {}
	}
	s := &stager{ctx: ctx, archive: archive, progress: progress}
	if err := s.readManifest(); err != nil {
		return nil, err
	}
	var err error
	if s.bin, err = filepath.Abs(filepath.Join(dataDir, binFolder)); err != nil {
		return nil, fmt.Errorf("stage the runtime: %w", err)
	}
	if err := os.MkdirAll(s.bin, 0o755); err != nil {
		return nil, fmt.Errorf("stage the runtime: %w", err)
	}
	if err := s.takeLock(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *stager) close() { s.lock.Close() }

func (s *stager) runtime() Runtime { return Runtime{Dir: s.dir(), Hash: s.hash} }

func (s *stager) dir() string { return filepath.Join(s.bin, s.hash) }

// contentHash is the name of a version: it follows from what is unpacked, not
// from how it was compressed.
func contentHash(table []byte) string {
	sum := sha256.Sum256(table)
	return hex.EncodeToString(sum[:8])
}

// readManifest unpacks the first entry only, which takes milliseconds.
func (s *stager) readManifest() error {
	t, done, err := s.open()
	if err != nil {
		return err
	}
	defer done()
	header, err := t.Next()
	if err != nil || header.Name != manifest.Name || header.Size > manifest.MaxSize {
		return fmt.Errorf("%w (it does not begin with a manifest)", errDamaged)
	}
	if s.table, err = io.ReadAll(t); err != nil {
		return fmt.Errorf("%w (%w)", errDamaged, err)
	}
	if s.list, err = manifest.Decode(s.table); err != nil {
		return fmt.Errorf("%w (%w)", errDamaged, err)
	}
	s.hash = contentHash(s.table)
	return nil
}

func (s *stager) open() (t *tar.Reader, done func(), err error) {
	z, err := zstd.NewReader(bytes.NewReader(s.archive), zstd.WithDecoderLowmem(true), zstd.WithDecoderConcurrency(2),
		zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, nil, fmt.Errorf("%w (%w)", errDamaged, err)
	}
	return tar.NewReader(z), z.Close, nil
}

// takeLock waits until no other process stages below the same folder.
func (s *stager) takeLock() error {
	lock, err := os.OpenFile(filepath.Join(s.bin, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("stage the runtime: %w", err)
	}
	for {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			s.lock = lock
			return nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			lock.Close()
			return fmt.Errorf("stage the runtime: lock %s: %w", lock.Name(), err)
		}
		select {
		case <-s.ctx.Done():
			lock.Close()
			return fmt.Errorf("stage the runtime: another gpulab is staging in %s: %w", s.bin, s.ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// converge makes the version whole and current, whatever was there before.
func (s *stager) converge(check func(dir string, f manifest.File) error) (changed bool, err error) {
	bad, err := s.differing(check)
	if err != nil {
		return false, err
	}
	switch {
	case len(bad) == 0:
	case len(bad) == len(s.list.Files)+1:
		changed, err = true, s.unpackAll(bad)
	default:
		changed, err = true, s.mend(bad)
	}
	if err != nil {
		return false, s.explain(err)
	}
	switched, err := s.makeCurrent()
	if err != nil {
		return false, s.explain(err)
	}
	if err := s.prune(); err != nil {
		return false, fmt.Errorf("remove runtimes that are not used any more: %w", err)
	}
	return changed || switched, nil
}

// differing lists the files of this version that are not as they should be;
// all of them if it is not there.
func (s *stager) differing(check func(dir string, f manifest.File) error) (map[string]bool, error) {
	bad := map[string]bool{}
	for _, f := range append([]manifest.File{s.tableEntry()}, s.list.Files...) {
		if err := s.ctx.Err(); err != nil {
			return nil, err
		}
		if check(s.dir(), f) != nil {
			bad[f.Name] = true
		}
	}
	return bad, nil
}

// tableEntry describes the manifest, which cannot list itself.
func (s *stager) tableEntry() manifest.File {
	sum := sha256.Sum256(s.table)
	return manifest.File{Name: manifest.Name, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(s.table)), Mode: 0o644}
}

// quickly finds what an interruption or a clumsy hand does to a file.
func quickly(dir string, f manifest.File) error {
	path := filepath.Join(dir, f.Name)
	if f.Link != "" {
		if to, err := os.Readlink(path); err != nil || to != f.Link {
			return fmt.Errorf("%s is not a link to %s", path, f.Link)
		}
		return nil
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode() != f.Mode || info.Size() != f.Size {
		return fmt.Errorf("%s has mode %v and %d bytes, want %v and %d", path, info.Mode(), info.Size(), f.Mode, f.Size)
	}
	return nil
}

// thoroughly finds any difference.
func thoroughly(dir string, f manifest.File) error {
	if err := quickly(dir, f); err != nil || f.Link != "" {
		return err
	}
	in, err := os.Open(filepath.Join(dir, f.Name))
	if err != nil {
		return err
	}
	defer in.Close()
	h := sha256.New()
	if _, err := io.Copy(h, in); err != nil {
		return err
	}
	if sumOf(h) != f.SHA256 {
		return fmt.Errorf("%s has another content than was built", in.Name())
	}
	return nil
}

func sumOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// unpackAll unpacks into a folder that only gets its name when it is complete
// on the disk.
func (s *stager) unpackAll(wanted map[string]bool) error {
	partial := s.dir() + partialEnd
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	// A file or an empty folder may lie where the version belongs.
	if err := discard(s.dir()); err != nil {
		return err
	}
	if err := s.unpack(partial, wanted); err != nil {
		return err
	}
	if err := os.Rename(partial, s.dir()); err != nil {
		return err
	}
	return atomicfile.Sync(s.bin)
}

// mend replaces single files under programs that may be running: each by a
// rename, so that a running one keeps the file it has.
func (s *stager) mend(wanted map[string]bool) error {
	partial := s.dir() + partialEnd
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	if err := s.unpack(partial, wanted); err != nil {
		return err
	}
	for name := range wanted {
		place := filepath.Join(s.dir(), name)
		if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
			return err
		}
		if info, err := os.Lstat(place); err == nil && info.IsDir() {
			if err := os.RemoveAll(place); err != nil {
				return err
			}
		}
		if err := os.Rename(filepath.Join(partial, name), place); err != nil {
			return err
		}
		if err := atomicfile.Sync(filepath.Dir(place)); err != nil {
			return err
		}
	}
	return os.RemoveAll(partial)
}

// unpack writes the wanted files into a new folder and onto the disk.
func (s *stager) unpack(dir string, wanted map[string]bool) error {
	total := int64(0)
	for _, f := range s.list.Files {
		if wanted[f.Name] {
			total += f.Size
		}
	}
	if err := s.checkDisk(total); err != nil {
		return err
	}
	t, done, err := s.open()
	if err != nil {
		return err
	}
	defer done()
	u := &unpacker{stager: s, dir: dir, total: total}
	expected := append([]manifest.File{s.tableEntry()}, s.list.Files...)
	for _, f := range expected {
		header, err := t.Next()
		if err != nil || header.Name != f.Name || header.Linkname != f.Link {
			return fmt.Errorf("%w (it lacks %s: %w)", errDamaged, f.Name, err)
		}
		if !wanted[f.Name] {
			continue
		}
		if err := u.write(f, t); err != nil {
			return err
		}
	}
	if _, err := t.Next(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w (it goes on after its last file: %w)", errDamaged, err)
	}
	return u.syncFolders()
}

// unpacker writes files below one folder.
type unpacker struct {
	*stager
	dir         string
	done, total int64 // bytes
	folders     map[string]bool
}

// write puts one entry in place. What it is called and how large it is comes
// from the manifest, whose names were checked, never from the archive.
func (u *unpacker) write(f manifest.File, content io.Reader) error {
	path := filepath.Join(u.dir, f.Name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if u.folders == nil {
		u.folders = map[string]bool{u.dir: true}
	}
	u.folders[filepath.Dir(path)] = true
	if f.Link != "" {
		return os.Symlink(f.Link, path)
	}
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	h := sha256.New()
	size, err := io.Copy(io.MultiWriter(out, h, u), io.LimitReader(content, f.Size+1))
	switch {
	case u.ctx.Err() != nil:
		return u.ctx.Err()
	case isWriteError(err):
		return err
	case err != nil:
		return fmt.Errorf("%w (%s: %w)", errDamaged, f.Name, err)
	case size != f.Size || sumOf(h) != f.SHA256:
		return fmt.Errorf("%w (%s is not what the manifest says)", errDamaged, f.Name)
	}
	return errors.Join(out.Chmod(f.Mode), out.Sync(), out.Close())
}

// Write counts what was written and ends the copying when the call has ended.
func (u *unpacker) Write(p []byte) (int, error) {
	u.done += int64(len(p))
	u.progress(min(u.done, u.total), u.total)
	return len(p), u.ctx.Err()
}

// isWriteError tells the disk's errors from the archive's.
func isWriteError(err error) bool {
	_, ok := errors.AsType[*fs.PathError](err)
	return ok
}

func (u *unpacker) syncFolders() error {
	for folder := range maps.Keys(u.folders) {
		if err := atomicfile.Sync(folder); err != nil {
			return err
		}
	}
	return nil
}

// makeCurrent switches the link from one version to the other in one step, so
// there is no moment without programs.
func (s *stager) makeCurrent() (switched bool, err error) {
	link := filepath.Join(s.bin, currentLink)
	next := link + ".new" // a killed call may have left one
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if to, err := os.Readlink(link); err == nil && to == s.hash {
		return false, nil
	}
	if err := os.Symlink(s.hash, next); err != nil {
		return false, err
	}
	if err := os.Rename(next, link); err != nil {
		return false, err
	}
	return true, atomicfile.Sync(s.bin)
}

// checkDisk refuses to begin what cannot end well.
func (s *stager) checkDisk(need int64) error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(s.bin, &disk); err != nil {
		return fmt.Errorf("look at the disk under %s: %w", s.bin, err)
	}
	const noexec = 0x8 // ST_NOEXEC of statfs(2)
	if disk.Flags&noexec != 0 {
		return fmt.Errorf("no program may run from %s: its file system is mounted noexec; "+
			"mount it without that option, or choose another data folder", s.bin)
	}
	if free := int64(disk.Bavail) * disk.Bsize; free < need+spareSpace {
		return fmt.Errorf("%w: unpacking needs %s, %s are free", syscall.ENOSPC, inMiB(need+spareSpace), inMiB(free))
	}
	return nil
}

func inMiB(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

// explain turns what went wrong into a sentence with the next step.
func (s *stager) explain(err error) error {
	switch {
	case errors.Is(err, errDamaged), s.ctx.Err() != nil:
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("the disk that holds %s is full (%w): make %s free there and run this again",
			s.bin, err, inMiB(s.list.TotalSize()+spareSpace))
	default:
		return fmt.Errorf("unpack the runtime into %s: %w", s.dir(), err)
	}
}

// versionName matches the folders that prune may remove, finished or not.
var versionName = regexp.MustCompile(`^([0-9a-f]{16})(` + regexp.QuoteMeta(partialEnd) + `|` +
	regexp.QuoteMeta(discardedEnd) + `)?$`)

// prune removes other versions that no process needs. A containerd shim looks
// up runc on the PATH it was started with, at every exec and kill, for as long
// as its pod lives: an upgrade must not take it away.
func (s *stager) prune() error {
	entries, err := os.ReadDir(s.bin)
	if err != nil {
		return err
	}
	// Processes show the real path of what they run, and in their environment
	// whatever path they were given.
	real, err := filepath.EvalSymlinks(s.bin)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !versionName.MatchString(e.Name()) || e.Name() == s.hash {
			continue
		}
		used, err := inUse(filepath.Join(s.bin, e.Name()), filepath.Join(real, e.Name()))
		if err != nil {
			return err
		}
		if used {
			continue
		}
		if err := discard(filepath.Join(s.bin, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// discard removes a folder of the bin folder. A version first gets a name that
// nobody takes for one, so that an interruption leaves no half version behind.
func discard(dir string) error {
	if strings.HasSuffix(dir, partialEnd) || strings.HasSuffix(dir, discardedEnd) {
		return os.RemoveAll(dir)
	}
	doomed := dir + discardedEnd
	if err := os.RemoveAll(doomed); err != nil {
		return err
	}
	if err := os.Rename(dir, doomed); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return os.RemoveAll(doomed)
}

// inUse reports whether a process runs from a folder or has it in its
// environment, under any of the paths given.
func inUse(dirs ...string) (bool, error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(processes) == 0 {
		return true, err // without a /proc nobody can tell
	}
	for _, process := range processes {
		// What cannot be read is no process of ours: one that ended meanwhile,
		// a kernel thread, or one with more rights than we could have given it.
		exe, _ := os.Readlink(filepath.Join(process, "exe"))
		environ, _ := os.ReadFile(filepath.Join(process, "environ"))
		for _, dir := range dirs {
			if strings.HasPrefix(exe, dir+"/") || mentions(environ, dir) {
				return true, nil
			}
		}
	}
	return false, nil
}

// mentions finds a folder in an environment: as a whole, not as the beginning
// of another folder's name.
func mentions(environ []byte, dir string) bool {
	for rest := environ; ; {
		at := bytes.Index(rest, []byte(dir))
		if at < 0 {
			return false
		}
		rest = rest[at+len(dir):]
		if len(rest) == 0 || strings.IndexByte("/:\x00", rest[0]) >= 0 {
			return true
		}
	}
}
