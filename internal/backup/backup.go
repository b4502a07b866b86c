// Package backup saves a lab into one file and brings it back.
//
// The file is a tar archive compressed by zstd. It begins with manifest.json, which says what it is of, and ends with
// end.json, which says how much it holds and what all of it sums up to. Between them lie
//
//	etc/NAME             the configuration and the files beside it that it names
//	data/…               databases, authorities and tokens of the data folder
//	homes/ID/…           people's homes, where they were asked for
//	folders/ID/…         shared folders, with the homes
//	sums                 every now and then: the SHA-256 sums of what came since the last one, metadata included
//
// in this order, folders before what is in them and names in the order of their bytes. Thereby a reader knows with
// little memory that no name comes twice and that nothing leads through a link. What is in an archive is trusted with
// nothing: it may have been forged, and what is in homes was made by strangers anyway.
//
// Only cmd/gpulab imports it.
package backup

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Format is the version of the archives that this package writes and reads.
const Format = 1

// Manifest says what an archive is of.
type Manifest struct {
	Format  int    `json:"format"`
	Version string `json:"version"` // of the gpulab that made it
	// Schema and HistorySchema are those of gpulab.db and metrics.db.
	Schema        int64     `json:"schema"`
	HistorySchema int64     `json:"historySchema,omitempty"`
	Lab           string    `json:"lab"`
	Host          string    `json:"host"` // the name of the machine
	Made          time.Time `json:"made"`
	// CA is the SHA-256 fingerprint of the authority that browsers trust; "" where the lab had none yet.
	CA      string `json:"ca,omitempty"`
	People  int    `json:"people"`
	Homes   bool   `json:"homes"`   // homes and shared folders are in it
	History bool   `json:"history"` // metrics.db is in it
}

// Totals is how much an archive holds.
type Totals struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"` // of content, holes not counted
	// LeftOut is how much was not saved although it was asked for: sockets, what vanished meanwhile, …
	LeftOut int64 `json:"leftOut"`
}

// end is the last entry.
type end struct {
	Totals
	Sum string `json:"sha256"` // over the sums of all entries
}

// Kind is what an entry is.
type Kind string

// The kinds of entries.
const (
	File    Kind = "file"
	Folder  Kind = "folder"
	Symlink Kind = "symlink"
	Link    Kind = "link" // another name of a file that came before in the same home or shared folder
)

// Entry is one thing in an archive.
type Entry struct {
	Path     string // with slashes; any bytes but 0 in homes and folders
	Kind     Kind
	Mode     uint32 // permissions, sticky, and setgid of folders: 0o3777
	UID, GID int
	Modified time.Time
	Target   string // of a Symlink, whatever it says; of a Link, a Path before
	// Size is that of the file; Data are its parts that are no holes, nil for all of it.
	Size int64
	Data []Segment
	// Linked says that Links to it may follow.
	Linked bool
	Xattrs map[string]string // user.* and POSIX access control lists
}

// Segment is a part of a file that is no hole.
type Segment struct{ Offset, Length int64 }

// stored is how many bytes of content follow the entry.
func (e *Entry) stored() int64 {
	if e.Kind != File {
		return 0
	}
	if e.Data == nil {
		return e.Size
	}
	var n int64
	for _, s := range e.Data {
		n += s.Length
	}
	return n
}

// head returns what is hashed of an entry besides its content: every field, none of which can pass for another.
func (e *Entry) head() []byte {
	var b []byte
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	number := func(n int64) { b = binary.AppendVarint(b, n) }
	text(e.Path)
	text(string(e.Kind))
	text(e.Target)
	number(int64(e.Mode))
	number(int64(e.UID))
	number(int64(e.GID))
	number(e.Modified.Unix())
	number(int64(e.Modified.Nanosecond()))
	number(e.Size)
	if e.Linked {
		number(1)
	}
	number(int64(len(e.Data)))
	for _, s := range e.Data {
		number(s.Offset)
		number(s.Length)
	}
	for _, name := range sortedKeys(e.Xattrs) {
		text(name)
		text(e.Xattrs[name])
	}
	sum := sha256.Sum256(b)
	return sum[:]
}

// Bounds of what an archive may hold; what Create writes is within them.
const (
	maxPath     = 4000 // bytes of a path
	maxName     = 255  // bytes of a name in it
	maxDepth    = 256  // folders in one another
	maxSegments = 4096 // parts of a file that are no holes
	maxXattrs   = 256 << 10
	maxSmall    = 1 << 20 // bytes of files that are read whole
	maxSums     = 4096    // entries between sums
	sumsAfter   = 64 << 20
	maxLinked   = 1 << 20 // files with several names in one home or shared folder
)

// Names of entries with a meaning.
const (
	manifestName = "manifest.json"
	sumsName     = "sums"
	endName      = "end.json"

	configName = "etc/config.yaml"
	mainDB     = "data/gpulab.db"
	metricsDB  = "data/metrics.db"
	tokenName  = "data/metrics-token"
	tlsFolder  = "data/tls"
)

// ErrNotOurs says that something is no archive of a lab.
var ErrNotOurs = errors.New("this is no backup of gpulab")

// damaged says that an archive is not what Create has written.
func damaged(format string, args ...any) error {
	return &DamagedError{Why: fmt.Sprintf(format, args...)}
}

// DamagedError says why an archive is not whole, or not one that gpulab has written.
type DamagedError struct{ Why string }

func (e *DamagedError) Error() string {
	return "the backup is damaged or forged: " + e.Why + "; nothing of it was used"
}

// checkPath accepts what Create writes: relative, without empty, "." or ".." parts.
func checkPath(path string) error {
	switch {
	case path == "":
		return damaged("an entry has no name")
	case len(path) > maxPath:
		return damaged("a name has %d bytes, and begins with %.60q", len(path), path)
	case strings.HasPrefix(path, "/"):
		return damaged("%.200q is an absolute path", path)
	case strings.ContainsRune(path, 0):
		return damaged("%.200q holds a zero byte", path)
	}
	depth := 0
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." || len(part) > maxName {
			return damaged("%.200q is no proper path", path)
		}
		depth++
	}
	if depth > maxDepth+2 {
		return damaged("%.60q… lies %d folders deep", path, depth)
	}
	return nil
}

// within returns the part of an archive that a path is in, "homes/3" or "data", and whether it may hold such an
// entry at all.
func (e *Entry) allowed() error {
	first, rest, _ := strings.Cut(e.Path, "/")
	switch first {
	case "homes", "folders":
		id, _, below := strings.Cut(rest, "/")
		if !isID(id) {
			return damaged("%.200q belongs to nobody", e.Path)
		}
		if !below && e.Kind != Folder {
			return damaged("%q is a %s where a folder should be", e.Path, e.Kind)
		}
		return nil
	case "etc":
		if e.Kind == File && plainName(rest) {
			return nil
		}
	case "data":
		switch e.Path {
		case mainDB, metricsDB, tokenName:
			if e.Kind == File {
				return nil
			}
		case tlsFolder:
			if e.Kind == Folder {
				return nil
			}
		default:
			if name, ok := strings.CutPrefix(e.Path, tlsFolder+"/"); ok && e.Kind == File && plainName(name) {
				return nil
			}
		}
	}
	return damaged("it holds a %s %.200q, which no backup has", e.Kind, e.Path)
}

// place returns "homes/3" of a path in a home, "folders/3" of one in a shared folder, "" of any other.
func place(path string) string {
	first, rest, _ := strings.Cut(path, "/")
	if first != "homes" && first != "folders" {
		return ""
	}
	id, _, _ := strings.Cut(rest, "/")
	return first + "/" + id
}

// isID tells the number of a person or shared folder.
func isID(s string) bool {
	if s == "" || len(s) > 18 || s[0] == '0' {
		return false
	}
	return strings.Trim(s, "0123456789") == ""
}

// plainName tells a file name without surprises.
func plainName(s string) bool {
	if s == "" || len(s) > 100 || s[0] == '.' || s[0] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
		if !ok {
			return false
		}
	}
	return true
}
