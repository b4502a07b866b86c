package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"
)

// store keeps objects in a folder, each in one file, and no more bytes of them
// than it may: what was asked for least lately goes first.
type store struct {
	dir  string
	most int64 // bytes

	mu      sync.Mutex
	entries map[string]*entry // by the name of the file
	total   int64             // bytes of the entries, and of what is being written
	coming  int64             // bytes of what is being written
}

type entry struct {
	bytes int64
	used  time.Time
}

// meta is what is known of an object, in the first block of its file.
type meta struct {
	Key     string    `json:"key"`
	Type    string    `json:"type,omitempty"`
	ETag    string    `json:"etag,omitempty"`
	Fetched time.Time `json:"fetched"`
	// Fresh is for how long nobody need ask again; zero for what never changes.
	Fresh time.Duration `json:"fresh,omitempty"`
}

// Sizes, in bytes, and how many objects there are at most: their list lies in memory.
const (
	block       = 4096 // the first block of a file, and what an object takes at least
	mostObjects = 100_000
)

// openStore opens a folder, and clears away what an earlier process left unfinished.
func openStore(dir string, most int64) (*store, error) {
	s := &store{dir: dir, most: most, entries: map[string]*entry{}}
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || !ours.MatchString(e.Name()) {
			continue
		}
		if filepath.Ext(e.Name()) == partial {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return nil, err
			}
			continue
		}
		s.entries[e.Name()] = &entry{info.Size(), info.ModTime()}
		s.total += info.Size()
	}
	s.remove(s.shrink(0, 0))
	return s, nil
}

// ours are the names of files that the store makes.
var ours = regexp.MustCompile(`^([0-9a-f]{64}|[0-9]+\.partial)$`)

// partial ends the names of files that are being written.
const partial = ".partial"

func nameOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// object is one that is kept, open for reading.
type object struct {
	meta
	file *os.File
	size int64 // bytes of the content
}

func (o *object) Close() { _ = o.file.Close() }

// content is the object's bytes from their beginning.
func (o *object) content() io.ReadSeeker { return io.NewSectionReader(o.file, block, o.size) }

// open opens what is kept under a key, nil where that is nothing. A file that is
// damaged counts as none, and goes.
func (s *store) open(key string) *object {
	name := nameOf(key)
	path := filepath.Join(s.dir, name)
	file, err := os.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			s.forget(name)
		}
		return nil
	}
	o := &object{file: file}
	info, err := file.Stat()
	if err == nil {
		o.size = info.Size() - block
		err = readMeta(file, &o.meta)
	}
	if err != nil || o.size < 0 || o.Key != key {
		o.Close()
		_ = os.Remove(path)
		s.forget(name)
		return nil
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // for the next start
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[name]; e != nil {
		e.used = now
	}
	return o
}

func readMeta(file io.ReaderAt, m *meta) error {
	head := make([]byte, block)
	if _, err := file.ReadAt(head, 0); err != nil {
		return err
	}
	return json.Unmarshal(bytes.TrimRight(head, "\n"), m)
}

// forget drops an object whose file is gone.
func (s *store) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := os.Lstat(filepath.Join(s.dir, name)); err == nil {
		return // it is there again
	}
	if e := s.entries[name]; e != nil {
		s.total -= e.bytes
		delete(s.entries, name)
	}
}

var errNoRoom = errors.New("there is no room for it in the cache")

// room takes room for an object, and frees what that needs. There is none for what
// would, with all that is being written, take half of the cache, nor for what the
// disk, being nearly full, has no room for when everything older is gone.
func (s *store) room(bytes int64) error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(s.dir, &disk); err != nil {
		return err
	}
	free := int64(disk.Bavail) * disk.Bsize
	floor := min(int64(disk.Blocks)*disk.Bsize/20, 100<<30) // as with notebooks, which do not start then
	s.mu.Lock()
	short := floor - (free - s.coming - bytes)
	if s.coming+bytes > s.most/2 || short > s.total-s.coming {
		s.mu.Unlock()
		return errNoRoom
	}
	gone := s.shrink(bytes, short)
	s.total += bytes
	s.coming += bytes
	s.mu.Unlock()
	s.remove(gone)
	return nil
}

func (s *store) remove(names []string) {
	for _, name := range names {
		_ = os.Remove(filepath.Join(s.dir, name))
	}
}

// shrink drops objects until there is room for one more of some bytes, and then
// some, so as not to sort them all for each, and until short bytes of the disk are
// free again. Its caller holds the lock, and removes their files without it.
func (s *store) shrink(bytes, short int64) (gone []string) {
	if s.total+bytes <= s.most && len(s.entries) < mostObjects && short <= 0 {
		return nil
	}
	names := make([]string, 0, len(s.entries))
	for name := range s.entries {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(s.entries[a].used.Compare(s.entries[b].used), cmp.Compare(a, b))
	})
	for _, name := range names {
		if s.total+bytes <= s.most*9/10 && len(s.entries) < mostObjects*9/10 && short <= 0 {
			break
		}
		s.total -= s.entries[name].bytes
		short -= s.entries[name].bytes
		delete(s.entries, name)
		gone = append(gone, name)
	}
	return gone
}

// writing is an object that is being written.
type writing struct {
	store *store
	file  *os.File
	name  string
	took  int64 // bytes of room
	wrote int64 // bytes of content
}

// create begins an object of so many bytes.
func (s *store) create(m meta, size int64) (*writing, error) {
	took := size + block
	if err := s.room(took); err != nil {
		return nil, err
	}
	w := &writing{store: s, name: nameOf(m.Key), took: took}
	var head bytes.Buffer
	encoder := json.NewEncoder(&head)
	encoder.SetEscapeHTML(false) // an address grows by it
	err := encoder.Encode(m)
	if err == nil && head.Len() > block {
		err = fmt.Errorf("what is known of it takes %d bytes", head.Len())
	}
	if err == nil {
		w.file, err = os.CreateTemp(s.dir, "*"+partial)
	}
	if err == nil {
		if _, err = w.file.Write(append(head.Bytes(), bytes.Repeat([]byte("\n"), block-head.Len())...)); err != nil {
			_ = w.file.Close()
		}
	}
	if err != nil {
		w.discard()
		return nil, err
	}
	return w, nil
}

func (w *writing) Write(p []byte) (int, error) {
	if w.wrote+int64(len(p)) > w.took-block {
		return 0, errors.New("more came than was announced")
	}
	n, err := w.file.Write(p)
	w.wrote += int64(n)
	return n, err
}

// discard gives back the room of what did not come whole. The file stays open for
// whoever reads it.
func (w *writing) discard() {
	if w.file != nil {
		_ = os.Remove(w.file.Name())
	}
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	w.store.total -= w.took
	w.store.coming -= w.took
}

// keep puts the object in its place, in one step that outlasts a power cut.
func (w *writing) keep() error {
	if w.wrote != w.took-block {
		w.discard()
		return fmt.Errorf("%d of %d bytes came", w.wrote, w.took-block)
	}
	if err := w.file.Sync(); err != nil {
		w.discard()
		return err
	}
	w.store.mu.Lock()
	if err := os.Rename(w.file.Name(), filepath.Join(w.store.dir, w.name)); err != nil {
		w.store.mu.Unlock()
		w.discard()
		return err
	}
	defer w.store.mu.Unlock()
	w.store.coming -= w.took
	if before := w.store.entries[w.name]; before != nil {
		w.store.total -= before.bytes
	}
	w.store.entries[w.name] = &entry{w.took, time.Now()}
	return nil
}
