package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// sink takes what is read. Nothing that it got is to be used before read has returned without an error.
type sink interface {
	// begin hears of the manifest before anything else.
	begin(Manifest) error
	// put takes an entry; content holds its stored bytes.
	put(e *Entry, content io.Reader) error
	// leave hears that all that is in the last folder put, or left to, has come.
	leave() error
}

// reader reads one archive.
type reader struct {
	tar   *tar.Reader
	sink  sink
	whole hash.Hash
	sums  []string // not seen in the archive yet
	names []string // of the entries they are of

	totals   Totals
	manifest Manifest

	config, main, history bool // have come

	stack  []string              // paths of the folders that are open
	last   string                // the path of the entry before
	linked map[[16]byte]struct{} // digests of what Links may lead to, in the place of the entry before
}

// Read reads an archive to its end, lets sink have what is in it, and says what it was. An error means that nothing of
// it may be used.
func read(ctx context.Context, from io.Reader, to sink) (Manifest, Totals, error) {
	zip, err := zstd.NewReader(withContext{ctx, from}, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxWindow(8<<20),
		zstd.WithDecoderMaxMemory(64<<20), zstd.WithDecoderLowmem(true))
	if err != nil {
		return Manifest{}, Totals{}, err
	}
	defer zip.Close()
	r := &reader{tar: tar.NewReader(zip), sink: to, whole: sha256.New(), linked: map[[16]byte]struct{}{}}
	err = r.run()
	if err == nil {
		err = atEnd(zip)
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return r.manifest, r.totals, r.explain(err)
}

// explain says what an error of the libraries means here.
func (r *reader) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, zstd.ErrMagicMismatch), errors.Is(err, tar.ErrHeader):
		if r.manifest.Format == 0 {
			return ErrNotOurs
		}
		return damaged("behind %.100q something else begins", r.last)
	case errors.Is(err, io.ErrUnexpectedEOF):
		if r.manifest.Format == 0 {
			return ErrNotOurs
		}
		return damaged("it breaks off behind %.100q", r.last)
	case errors.Is(err, zstd.ErrCRCMismatch), errors.Is(err, zstd.ErrReservedBlockType),
		errors.Is(err, zstd.ErrCompressedSizeTooBig),
		errors.Is(err, zstd.ErrBlockTooSmall), errors.Is(err, zstd.ErrUnexpectedBlockSize),
		errors.Is(err, zstd.ErrWindowSizeExceeded),
		errors.Is(err, zstd.ErrWindowSizeTooSmall), errors.Is(err, zstd.ErrDecoderSizeExceeded),
		errors.Is(err, zstd.ErrUnknownDictionary),
		errors.Is(err, zstd.ErrFrameSizeExceeded), errors.Is(err, zstd.ErrFrameSizeMismatch),
		errors.Is(err, tar.ErrFieldTooLong):
		return damaged("%s", strings.TrimSuffix(err.Error(), "."))
	}
	return err
}

// atEnd makes sure that nothing follows the archive.
func atEnd(zip io.Reader) error {
	switch n, err := io.ReadFull(zip, make([]byte, 1)); {
	case n > 0:
		return damaged("something follows its end")
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return damaged("something follows its end (%s)", err)
	}
	return nil
}

func (r *reader) run() error {
	if err := r.readManifest(); err != nil {
		return err
	}
	for {
		h, err := r.tar.Next()
		if errors.Is(err, io.EOF) {
			return damaged("it has no end: it breaks off behind %.100q", r.last)
		}
		if err != nil {
			return err
		}
		switch h.Name {
		case sumsName:
			err = r.readSums(h)
		case endName:
			return r.readEnd(h)
		default:
			err = r.entry(h)
		}
		if err != nil {
			return err
		}
	}
}

func (r *reader) readManifest() error {
	h, err := r.tar.Next()
	if errors.Is(err, io.EOF) || err == nil && h.Name != manifestName {
		return ErrNotOurs
	}
	if err != nil {
		return err
	}
	var m Manifest
	if err := r.readJSON(h, &m, maxSmall); err != nil {
		return err
	}
	if m.Format < 1 || m.Version == "" || len(m.Version) > 100 || len(m.Lab) > 1000 || len(m.Host) > 1000 ||
		m.Schema < 1 || m.Made.IsZero() {
		return damaged("its manifest is none")
	}
	r.manifest, r.last = m, manifestName
	if m.Format > Format {
		return fmt.Errorf("the backup was made by gpulab %q in a form that this one does not know; install that version, "+
			"then restore", m.Version)
	}
	return r.sink.begin(m)
}

// readJSON reads an entry that is about the archive.
func (r *reader) readJSON(h *tar.Header, v any, limit int64) error {
	if h.Typeflag != tar.TypeReg || h.Size > limit || len(h.PAXRecords) > 0 {
		return damaged("%s is not what it should be", h.Name)
	}
	data, err := io.ReadAll(r.tar)
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if h.Name == manifestName {
		dec = json.NewDecoder(bytes.NewReader(data)) // a later form may say more
	}
	if err := dec.Decode(v); err != nil {
		return damaged("%s cannot be read (%s)", h.Name, err)
	}
	if dec.More() {
		return damaged("%s holds more than it should", h.Name)
	}
	return nil
}

func (r *reader) readSums(h *tar.Header) error {
	var sums []string
	if err := r.readJSON(h, &sums, maxSmall); err != nil {
		return err
	}
	if len(sums) != len(r.sums) {
		return damaged("it holds %d checksums for %d entries", len(sums), len(r.sums))
	}
	for i := range sums {
		if sums[i] != r.sums[i] {
			return damaged("%.200q is not what was saved: its checksum differs", r.names[i])
		}
	}
	r.sums, r.names = r.sums[:0], r.names[:0]
	return nil
}

func (r *reader) readEnd(h *tar.Header) error {
	var e end
	if err := r.readJSON(h, &e, maxSmall); err != nil {
		return err
	}
	if len(r.sums) > 0 {
		return damaged("the checksums of %d entries are missing", len(r.sums))
	}
	if !r.config || !r.main || r.history != r.manifest.History {
		return damaged("it lacks what every backup has: the configuration, the database or the history")
	}
	if sum := hex.EncodeToString(r.whole.Sum(nil)); e.Sum != sum || e.Entries != r.totals.Entries ||
		e.Bytes != r.totals.Bytes {
		return damaged("as a whole it is not what was saved: %d of %d entries, or another checksum", r.totals.Entries,
			e.Entries)
	}
	r.totals = e.Totals
	for len(r.stack) > 0 {
		if err := r.pop(); err != nil {
			return err
		}
	}
	if _, err := r.tar.Next(); !errors.Is(err, io.EOF) {
		return damaged("something follows its end")
	}
	return nil
}

// entry reads one thing that was saved.
func (r *reader) entry(h *tar.Header) error {
	e, err := fromHeader(h)
	if err != nil {
		return err
	}
	if err := r.check(e); err != nil {
		return err
	}
	if err := r.descend(e); err != nil {
		return err
	}
	sum := sha256.New()
	sum.Write(e.head())
	content := &counted{r: io.TeeReader(r.tar, sum)}
	if err := r.sink.put(e, content); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, content); err != nil { // what the sink did not want
		return err
	}
	if content.n != e.stored() {
		return damaged("%.200q is shorter than it should be", e.Path)
	}
	own := sum.Sum(nil)
	r.whole.Write(own)
	if len(r.sums) >= maxSums {
		return damaged("it lacks checksums")
	}
	r.sums, r.names = append(r.sums, hex.EncodeToString(own)), append(r.names, e.Path)
	r.totals.Entries++
	r.totals.Bytes += content.n
	r.last = e.Path
	return nil
}

// check refuses what Create does not write.
func (r *reader) check(e *Entry) error {
	if err := checkPath(e.Path); err != nil {
		return err
	}
	if err := e.allowed(); err != nil {
		return err
	}
	at := place(e.Path)
	if at == "" && e.Size > maxSmall && e.Path != mainDB && e.Path != metricsDB {
		return damaged("%s has %d bytes", e.Path, e.Size)
	}
	if at != place(r.last) {
		clear(r.linked)
	}
	switch e.Kind {
	case Link:
		if _, ok := r.linked[digest(e.Target)]; !ok {
			return damaged("%.200q is a link to %.200q, which is no file before it in %s", e.Path, e.Target, at)
		}
	case Symlink:
		if e.Target == "" || len(e.Target) >= 4096 || strings.ContainsRune(e.Target, 0) {
			return damaged("the symbolic link %.200q leads to no path", e.Path)
		}
	}
	if at != "" && !r.manifest.Homes {
		return damaged("it holds %s, but no homes", at)
	}
	r.config = r.config || e.Path == configName
	r.main = r.main || e.Path == mainDB
	r.history = r.history || e.Path == metricsDB
	if e.Linked {
		if len(r.linked) >= maxLinked {
			return damaged("%s has more files with several names than any backup", at)
		}
		r.linked[digest(e.Path)] = struct{}{}
	}
	return nil
}

// digest stands for a path with less memory.
func digest(path string) [16]byte {
	sum := sha256.Sum256([]byte(path))
	return [16]byte(sum[:16])
}

// order of the parts of an archive.
var order = map[string]int{"etc": 0, "data": 1, "homes": 2, "folders": 3}

// descend goes from the entry before to the folder that this one is in, which has to be one of those that are open:
// so a name never comes twice, and nothing lies behind a link.
func (r *reader) descend(e *Entry) error {
	if r.last != manifestName && !before(r.last, e.Path) {
		return damaged("%.200q comes behind %.200q: twice, or out of order", e.Path, r.last)
	}
	for len(r.stack) > 0 && !strings.HasPrefix(e.Path, r.stack[len(r.stack)-1]+"/") {
		if err := r.pop(); err != nil {
			return err
		}
	}
	parent := ""
	if i := strings.LastIndexByte(e.Path, '/'); i >= 0 {
		parent = e.Path[:i]
	}
	switch parent {
	case "etc", "data", "homes", "folders":
		if len(r.stack) > 0 {
			return damaged("%.200q lies in no folder", e.Path)
		}
	default:
		if len(r.stack) == 0 || r.stack[len(r.stack)-1] != parent {
			return damaged("%.200q lies in no folder that came before it", e.Path)
		}
	}
	if e.Kind == Folder {
		r.stack = append(r.stack, e.Path)
	}
	return nil
}

func (r *reader) pop() error {
	r.stack = r.stack[:len(r.stack)-1]
	return r.sink.leave()
}

// before tells whether a path comes before another in an archive: part by part, in the order of their bytes.
func before(a, b string) bool {
	firstA, restA, _ := strings.Cut(a, "/")
	firstB, restB, _ := strings.Cut(b, "/")
	if order[firstA] != order[firstB] {
		return order[firstA] < order[firstB]
	}
	for restA != "" && restB != "" {
		var partA, partB string
		partA, restA, _ = strings.Cut(restA, "/")
		partB, restB, _ = strings.Cut(restB, "/")
		if partA != partB {
			return partA < partB
		}
	}
	return restA == "" && restB != ""
}

// fromHeader reads an entry as tar has it, and refuses what Create does not write.
func fromHeader(h *tar.Header) (*Entry, error) {
	e := &Entry{
		Path: h.Name, Mode: uint32(h.Mode), UID: h.Uid, GID: h.Gid, Modified: h.ModTime.UTC(), Target: h.Linkname,
		Size: h.Size,
	}
	switch h.Typeflag {
	case tar.TypeReg:
		e.Kind = File
	case tar.TypeDir:
		e.Kind = Folder
		path, ok := strings.CutSuffix(e.Path, "/")
		if !ok {
			return nil, damaged("the folder %.200q is not written as one", e.Path)
		}
		e.Path = path
	case tar.TypeSymlink:
		e.Kind = Symlink
	case tar.TypeLink:
		e.Kind = Link
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return nil, damaged("%.200q is a device or pipe", e.Path)
	default:
		return nil, damaged("%.200q is of a kind that no backup has (%q)", e.Path, h.Typeflag)
	}
	if may := modeOf(e.Kind); h.Mode&^may != 0 {
		return nil, damaged("%.200q has the mode %o, which no backup has", e.Path, h.Mode)
	}
	if e.Kind != File && h.Size != 0 || h.Size < 0 || e.Kind != Symlink && e.Kind != Link && h.Linkname != "" {
		return nil, damaged("%.200q is a %s with what only others have", e.Path, e.Kind)
	}
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) >= math.MaxUint32 || int64(h.Gid) >= math.MaxUint32 {
		return nil, damaged("%.200q belongs to nobody there can be", e.Path)
	}
	return e, e.records(h.PAXRecords)
}

// modeOf are the bits that a kind may have. A file that runs as its owner is never written, and never made.
func modeOf(k Kind) int64 {
	if k == Folder {
		return 0o3777
	}
	return 0o777
}

// records reads what tar has no place for.
func (e *Entry) records(records map[string]string) error {
	size := 0
	for key, value := range records {
		switch name, xattr := strings.CutPrefix(key, paxXattr); {
		case key == "path", key == "linkpath", key == "size", key == "uid", key == "gid", key == "mtime":
			// tar's own, read by then
		case key == paxLinked && e.Kind == File:
			e.Linked = true
		case key == paxSparse && e.Kind == File:
			if err := e.sparse(value); err != nil {
				return err
			}
		case xattr && (e.Kind == File || e.Kind == Folder) && savedXattr(name):
			if size += len(name) + len(value); size > maxXattrs {
				return damaged("%.200q has too many attributes", e.Path)
			}
			if e.Xattrs == nil {
				e.Xattrs = map[string]string{}
			}
			e.Xattrs[name] = value
		default:
			return damaged("%.200q has the property %.60q, which no backup has", e.Path, key)
		}
	}
	return nil
}

// sparse reads which parts of a file are no holes.
func (e *Entry) sparse(text string) error {
	wrong := damaged("it is not clear where %.200q has holes", e.Path)
	words := strings.Split(text, " ")
	if len(words) > maxSegments+1 {
		return wrong
	}
	size, err := strconv.ParseInt(words[0], 10, 64)
	if err != nil || size < 0 {
		return wrong
	}
	stored, at := e.Size, int64(0)
	e.Data = []Segment{}
	for _, word := range words[1:] {
		from, length, _ := strings.Cut(word, "+")
		offset, err1 := strconv.ParseInt(from, 10, 64)
		n, err2 := strconv.ParseInt(length, 10, 64)
		if err1 != nil || err2 != nil || offset < at || n <= 0 || n > size-offset {
			return wrong
		}
		e.Data = append(e.Data, Segment{offset, n})
		at = offset + n
	}
	e.Size = size
	if e.stored() != stored {
		return wrong
	}
	return nil
}

// savedXattr tells the extended attributes that are kept. Capabilities and the like are none of a home's.
func savedXattr(name string) bool {
	return name == aclAccess || name == aclDefault ||
		strings.HasPrefix(name, "user.") && len(name) <= maxName && !strings.ContainsAny(name, "=\x00\n")
}

// The extended attributes of POSIX access control lists.
const (
	aclAccess  = "system.posix_acl_access"
	aclDefault = "system.posix_acl_default"
)

// counted counts what is read.
type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// withContext ends reading with its context.
type withContext struct {
	ctx context.Context
	r   io.Reader
}

func (w withContext) Read(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.r.Read(p)
}

// nothing is the sink of who only wants to know whether an archive is whole.
type nothing struct{}

func (nothing) begin(Manifest) error        { return nil }
func (nothing) put(*Entry, io.Reader) error { return nil }
func (nothing) leave() error                { return nil }

// Verify reads an archive to its end and says what is in it.
func Verify(ctx context.Context, from io.Reader) (Manifest, Totals, error) {
	return read(ctx, from, nothing{})
}
