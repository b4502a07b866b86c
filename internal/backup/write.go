package backup

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Keys of what tar has no place for, as its standard gives every program a name space of its own.
const (
	paxSparse = "GPULAB.sparse" // "SIZE OFFSET+LENGTH …"
	paxLinked = "GPULAB.linked"
	paxXattr  = "SCHILY.xattr." // as star and GNU tar write them
)

// archive writes one.
type archive struct {
	zip    *zstd.Encoder
	tar    *tar.Writer
	totals Totals
	whole  hash.Hash
	sums   []string // since the last sums
	bytes  int64    // likewise
}

func newArchive(w io.Writer, m Manifest) (*archive, error) {
	zip, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(2), zstd.WithWindowSize(4<<20))
	if err != nil {
		return nil, err
	}
	a := &archive{zip: zip, tar: tar.NewWriter(zip), whole: sha256.New()}
	return a, a.addJSON(manifestName, m)
}

// add writes an entry, and its content as far as content goes: what is missing there becomes zeros. It returns how
// many bytes were missing.
func (a *archive) add(e *Entry, content io.Reader) (missing int64, err error) {
	if err := a.tar.WriteHeader(header(e)); err != nil {
		return 0, fmt.Errorf("write the backup: %w", err)
	}
	sum := sha256.New()
	sum.Write(e.head())
	if size := e.stored(); size > 0 {
		to := io.MultiWriter(a.tar, sum)
		n, err := io.Copy(to, io.LimitReader(content, size))
		if err != nil {
			return 0, err
		}
		if missing = size - n; missing > 0 {
			if _, err := io.CopyN(to, zeros{}, missing); err != nil {
				return 0, err
			}
		}
		a.bytes += size
		a.totals.Bytes += size
	}
	a.totals.Entries++
	digest := sum.Sum(nil)
	a.whole.Write(digest)
	a.sums = append(a.sums, hex.EncodeToString(digest))
	if len(a.sums) >= maxSums || a.bytes >= sumsAfter {
		return missing, a.writeSums()
	}
	return missing, nil
}

func (a *archive) writeSums() error {
	if len(a.sums) == 0 {
		return nil
	}
	err := a.addJSON(sumsName, a.sums)
	a.sums, a.bytes = nil, 0
	return err
}

// addJSON writes one of the entries that are about the archive.
func (a *archive) addJSON(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	err = a.tar.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(data)), Format: tar.FormatPAX,
	})
	if err == nil {
		_, err = a.tar.Write(data)
	}
	if err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	return nil
}

// close ends the archive; without it, it is one that breaks off.
func (a *archive) close(leftOut int64) (Totals, error) {
	a.totals.LeftOut = leftOut
	if err := a.writeSums(); err != nil {
		return a.totals, err
	}
	if err := a.addJSON(endName, end{a.totals, hex.EncodeToString(a.whole.Sum(nil))}); err != nil {
		return a.totals, err
	}
	if err := a.tar.Close(); err != nil {
		return a.totals, fmt.Errorf("write the backup: %w", err)
	}
	if err := a.zip.Close(); err != nil {
		return a.totals, fmt.Errorf("write the backup: %w", err)
	}
	return a.totals, nil
}

// abandon lets go of what the compression holds.
func (a *archive) abandon() { _ = a.zip.Close() }

var typeflags = map[Kind]byte{File: tar.TypeReg, Folder: tar.TypeDir, Symlink: tar.TypeSymlink, Link: tar.TypeLink}

// header writes an entry as tar has it.
func header(e *Entry) *tar.Header {
	h := &tar.Header{
		Typeflag: typeflags[e.Kind], Name: e.Path, Linkname: e.Target, Mode: int64(e.Mode), Uid: e.UID, Gid: e.GID,
		ModTime: e.Modified, Size: e.stored(), Format: tar.FormatPAX,
	}
	if e.Kind == Folder {
		h.Name += "/"
	}
	records := map[string]string{}
	if e.Linked {
		records[paxLinked] = "1"
	}
	if e.Data != nil {
		var b strings.Builder
		b.WriteString(strconv.FormatInt(e.Size, 10))
		for _, s := range e.Data {
			fmt.Fprintf(&b, " %d+%d", s.Offset, s.Length)
		}
		records[paxSparse] = b.String()
	}
	for name, value := range e.Xattrs {
		records[paxXattr+name] = value
	}
	if len(records) > 0 {
		h.PAXRecords = records
	}
	return h
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// zeros reads as zeros without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// stamp is a time as archives keep it.
func stamp(seconds, nanoseconds int64) time.Time { return time.Unix(seconds, nanoseconds).UTC() }
