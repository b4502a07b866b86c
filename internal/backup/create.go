package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/store"
)

// Source is the lab that is saved.
type Source struct {
	DataDir string
	Config  string // the path of the configuration
	// Beside are the names of files in the configuration's folder that it names.
	Beside []string
	// Manifest says what it is of; Create fills in the form, the schemas and what was asked for.
	Manifest Manifest
	// Homes and Folders are the numbers of the people and shared folders whose files are saved; nil saves none.
	Homes, Folders []int64
	History        bool
}

// Watch hears how it goes on; none of it may be nil.
type Watch struct {
	// Note hears what was not saved as it is there, and why; paths hold any bytes.
	Note func(path, why string)
	// Step hears after each entry where it is and how much content was saved, in bytes.
	Step func(path string, bytes int64)
}

// ErrBusy says that another backup of the same lab is being made.
var ErrBusy = errors.New("another backup of this lab is being made; wait for it")

// workFolder is where copies of databases are made: a folder of the data folder that is emptied before and after.
const workFolder = ".backup"

// Create saves a lab while it runs. What it wrote to is an archive only if it returns no error.
func Create(ctx context.Context, src Source, to io.Writer, w Watch) (Manifest, Totals, error) {
	work, done, err := workIn(src.DataDir)
	if err != nil {
		return Manifest{}, Totals{}, err
	}
	defer done()
	m := src.Manifest
	m.Format, m.Homes, m.History = Format, src.Homes != nil || src.Folders != nil, src.History
	if m.Schema, err = store.Copy(ctx, filepath.Join(src.DataDir, store.MainFile),
		filepath.Join(work, store.MainFile)); err != nil {
		return m, Totals{}, err
	}
	if src.History {
		if m.HistorySchema, err = store.Copy(ctx, filepath.Join(src.DataDir, store.MetricsFile),
			filepath.Join(work, store.MetricsFile)); err != nil {
			return m, Totals{}, err
		}
	}
	a, err := newArchive(to, m)
	if err != nil {
		return m, Totals{}, err
	}
	defer a.abandon()
	var leftOut int64
	s := &saver{ctx: ctx, to: a, step: func(path string) { w.Step(path, a.totals.Bytes) },
		note: func(path, why string) { leftOut++; w.Note(path, why) }}
	if err := s.everything(src, work); err != nil {
		return m, a.totals, err
	}
	totals, err := a.close(leftOut)
	return m, totals, err
}

// workIn makes the folder for copies, for one backup at a time.
func workIn(dataDir string) (work string, done func(), err error) {
	work = filepath.Join(dataDir, workFolder)
	if err := os.MkdirAll(work, 0o700); err != nil {
		return "", nil, err
	}
	dir, err := os.Open(work)
	if err != nil {
		return "", nil, err
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = dir.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrBusy
		}
		return "", nil, err
	}
	empty := func() error {
		entries, err := os.ReadDir(work)
		for _, e := range entries {
			err = errors.Join(err, os.RemoveAll(filepath.Join(work, e.Name())))
		}
		return err
	}
	if err := empty(); err != nil { // what one left that was killed
		_ = dir.Close()
		return "", nil, err
	}
	return work, func() {
		_ = empty()
		_ = os.Remove(work)
		_ = dir.Close()
	}, nil
}

// everything writes all entries in the order that readers want.
func (s *saver) everything(src Source, work string) error {
	for _, name := range slices.Compact(slices.Sorted(slices.Values(append([]string{filepath.Base(configName)},
		src.Beside...)))) {
		from := filepath.Join(filepath.Dir(src.Config), name)
		if "etc/"+name == configName {
			from = src.Config
		}
		if err := s.own(from, "etc/"+name, "etc/"+name == configName); err != nil {
			return err
		}
	}
	if err := s.own(filepath.Join(work, store.MainFile), mainDB, true); err != nil {
		return err
	}
	if err := s.own(filepath.Join(src.DataDir, filepath.Base(tokenName)), tokenName, false); err != nil {
		return err
	}
	if src.History {
		if err := s.own(filepath.Join(work, store.MetricsFile), metricsDB, true); err != nil {
			return err
		}
	}
	if err := s.tls(filepath.Join(src.DataDir, filepath.Base(tlsFolder))); err != nil {
		return err
	}
	for _, part := range []struct {
		name string
		ids  []int64
	}{{"homes", src.Homes}, {"folders", src.Folders}} {
		var names []string
		for _, id := range part.ids {
			names = append(names, strconv.FormatInt(id, 10))
		}
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			if err := s.tree(filepath.Join(src.DataDir, part.name), name, part.name+"/"+name); err != nil {
				return err
			}
		}
	}
	return nil
}

// own saves a file of gpulab's own.
func (s *saver) own(from, path string, needed bool) error {
	fd, err := unix.Open(from, openFlags, 0)
	if errors.Is(err, fs.ErrNotExist) && !needed {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: from, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.Join(fmt.Errorf("%s is no file", from), err)
	}
	e := entryOf(path, File, &st)
	e.Size, e.UID, e.GID = st.Size, 0, 0
	if path != mainDB && path != metricsDB && e.Size > maxSmall {
		return fmt.Errorf("%s has %d bytes, which it cannot have; it is not what it should be", from, e.Size)
	}
	r := &fileReader{ctx: s.ctx, fd: fd, data: []Segment{{0, e.Size}}}
	missing, err := s.to.add(e, r)
	if err == nil && missing > 0 {
		err = errors.Join(fmt.Errorf("%s could not be read to its end", from), r.failed)
	}
	s.step(path)
	return err
}

// tls saves the authorities and keys.
func (s *saver) tls(from string) error {
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(from, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: from, Err: err}
	}
	e := entryOf(tlsFolder, Folder, &st)
	e.UID, e.GID, e.Mode = 0, 0, e.Mode&0o777
	if _, err := s.to.add(e, nil); err != nil {
		return err
	}
	for _, entry := range entries { // in the order of their bytes
		switch {
		case entry.Type().IsRegular() && plainName(entry.Name()):
			if err := s.own(filepath.Join(from, entry.Name()), tlsFolder+"/"+entry.Name(), false); err != nil {
				return err
			}
		case entry.Name() == "nodes" && entry.IsDir(): // machines have to join a restored lab anew
		case entry.Name()[0] != '.': // a file that is being written
			s.note(filepath.Join(from, entry.Name()), "it is not gpulab's")
		}
	}
	return nil
}
