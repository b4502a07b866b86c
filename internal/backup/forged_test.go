package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// forger writes archives that are right but for one thing.
type forger struct {
	*archive
	out *bytes.Buffer
}

func newForger(t testing.TB, m Manifest) *forger {
	out := new(bytes.Buffer)
	a, err := newArchive(out, m)
	if err != nil {
		t.Fatal(err)
	}
	return &forger{a, out}
}

var honest = Manifest{Format: Format, Version: "1.2.3", Schema: 1, Lab: "Lab", Host: "head", Made: time.Unix(1e9, 0).UTC(), Homes: true}

// entry adds one with checksums that are right.
func (f *forger) entry(e Entry, content string) {
	e.Modified = honest.Made
	if e.Kind == File && e.Data == nil {
		e.Size = int64(len(content))
	}
	_, _ = f.add(&e, strings.NewReader(content))
}

func (f *forger) file(path, content string) {
	f.entry(Entry{Path: path, Kind: File, Mode: 0o600}, content)
}
func (f *forger) folder(path string) { f.entry(Entry{Path: path, Kind: Folder, Mode: 0o700}, "") }

// raw adds what no Entry can say.
func (f *forger) raw(h tar.Header, content string) {
	h.Size, h.Format = int64(len(content)), tar.FormatPAX
	if h.Mode == 0 {
		h.Mode = 0o600
	}
	_ = f.tar.WriteHeader(&h)
	_, _ = io.WriteString(f.tar, content)
	f.sums = append(f.sums, "")
}

// own begins with what every backup has.
func (f *forger) own() {
	f.file(configName, "lab: x")
	f.file(mainDB, "database")
}

// home goes on with a home.
func (f *forger) home() {
	f.own()
	f.folder("homes/1")
}

func (f *forger) done() []byte {
	_, _ = f.close(0)
	return f.out.Bytes()
}

// refused is an archive that must not be restored.
type refused struct {
	name string
	make func(f *forger) []byte
	says string
}

// whole wraps something that is done between a home's begin and the end of the archive.
func whole(do func(f *forger)) func(f *forger) []byte {
	return func(f *forger) []byte {
		f.home()
		do(f)
		return f.done()
	}
}

// bare is whole without a home.
func bare(do func(f *forger)) func(f *forger) []byte {
	return func(f *forger) []byte {
		f.own()
		do(f)
		return f.done()
	}
}

var forgeries = []refused{
	{"climbs out", whole(func(f *forger) { f.file("homes/1/../../x", "x") }), "no proper path"},
	{"climbs out at the end", whole(func(f *forger) { f.file("homes/1/..", "x") }), "no proper path"},
	{"a dot", whole(func(f *forger) { f.file("homes/1/./x", "x") }), "no proper path"},
	{"two slashes", whole(func(f *forger) { f.file("homes/1//x", "x") }), "no proper path"},
	{"absolute", whole(func(f *forger) { f.file("/etc/cron.d/x", "x") }), "absolute path"},
	{"outside of every part", bare(func(f *forger) { f.file("root/.ssh/authorized_keys", "x") }), "no backup has"},
	{"another file of the data folder", bare(func(f *forger) { f.file("data/hub-secrets.json", "x") }), "no backup has"},
	{"a link as the database", func(f *forger) []byte {
		f.file(configName, "")
		f.entry(Entry{Path: mainDB, Kind: Symlink, Mode: 0o777, Target: "/etc/shadow"}, "")
		return f.done()
	}, "no backup has"},
	{"a newline in a name of gpulab's own", bare(func(f *forger) { f.folder(tlsFolder); f.file("data/tls/ca.crt\nx", "x") }), "no backup has"},
	{"a hidden file beside the configuration", func(f *forger) []byte { f.file("etc/.profile", "x"); f.own(); return f.done() }, "no backup has"},
	{"folders in etc", func(f *forger) []byte { f.folder("etc/systemd"); f.own(); return f.done() }, "no backup has"},
	{"a home that is a link", bare(func(f *forger) { f.entry(Entry{Path: "homes/1", Kind: Symlink, Mode: 0o777, Target: "/"}, "") }), "where a folder should be"},
	{"a home of nobody", bare(func(f *forger) { f.folder("homes/ada") }), "belongs to nobody"},
	{"a home by another spelling", bare(func(f *forger) { f.folder("homes/01") }), "belongs to nobody"},
	{"through a link", whole(func(f *forger) {
		f.entry(Entry{Path: "homes/1/out", Kind: Symlink, Mode: 0o777, Target: "/tmp"}, "")
		f.file("homes/1/out/x", "x")
	}), "lies in no folder"},
	{"through a file", whole(func(f *forger) { f.file("homes/1/f", ""); f.file("homes/1/f/x", "x") }), "lies in no folder"},
	{"in no folder", bare(func(f *forger) { f.file("homes/1/x", "x") }), "lies in no folder"},
	{"in a folder that is over", whole(func(f *forger) { f.folder("homes/1/a"); f.folder("homes/2"); f.file("homes/1/a/x", "x") }), "out of order"},
	{"the same name twice", whole(func(f *forger) { f.file("homes/1/x", "1"); f.file("homes/1/x", "2") }), "twice"},
	{"a link over a folder", whole(func(f *forger) {
		f.folder("homes/1/x")
		f.entry(Entry{Path: "homes/1/x", Kind: Symlink, Mode: 0o777, Target: "/"}, "")
	}), "twice"},
	{"the database twice", bare(func(f *forger) { f.file(mainDB, "another") }), "twice"},
	{"out of order", whole(func(f *forger) { f.file("homes/1/b", ""); f.file("homes/1/a", "") }), "out of order"},
	{"a hard link to nothing", whole(func(f *forger) { f.entry(Entry{Path: "homes/1/l", Kind: Link, Target: "homes/1/a"}, "") }), "no file before it"},
	{"a hard link out", whole(func(f *forger) { f.entry(Entry{Path: "homes/1/l", Kind: Link, Target: "/etc/shadow"}, "") }), "no file before it"},
	{"a hard link to the database", whole(func(f *forger) { f.entry(Entry{Path: "homes/1/l", Kind: Link, Target: mainDB}, "") }), "no file before it"},
	{"a hard link into another home", whole(func(f *forger) {
		f.entry(Entry{Path: "homes/1/a", Kind: File, Mode: 0o600, Linked: true}, "x")
		f.folder("homes/2")
		f.entry(Entry{Path: "homes/2/l", Kind: Link, Target: "homes/1/a"}, "")
	}), "no file before it"},
	{"a hard link to a link", whole(func(f *forger) {
		f.entry(Entry{Path: "homes/1/a", Kind: Symlink, Mode: 0o777, Target: "/etc/shadow"}, "")
		f.entry(Entry{Path: "homes/1/l", Kind: Link, Target: "homes/1/a"}, "")
	}), "no file before it"},
	{"a device", whole(func(f *forger) {
		f.raw(tar.Header{Typeflag: tar.TypeBlock, Name: "homes/1/sda", Devmajor: 8}, "")
	}), "device or pipe"},
	{"a pipe", whole(func(f *forger) { f.raw(tar.Header{Typeflag: tar.TypeFifo, Name: "homes/1/p"}, "") }), "device or pipe"},
	{"runs as root", whole(func(f *forger) { f.entry(Entry{Path: "homes/1/sh", Kind: File, Mode: 0o4755}, "x") }), "mode 4755"},
	{"runs as its group", whole(func(f *forger) { f.entry(Entry{Path: "homes/1/sh", Kind: File, Mode: 0o2755}, "x") }), "mode 2755"},
	{"a folder with setuid", whole(func(f *forger) { f.entry(Entry{Path: "homes/1/d", Kind: Folder, Mode: 0o4755}, "") }), "mode 4755"},
	{"capabilities", whole(func(f *forger) {
		f.entry(Entry{Path: "homes/1/sh", Kind: File, Mode: 0o755, Xattrs: map[string]string{"security.capability": "x"}}, "x")
	}), "security.capability"},
	{"a property of another program", whole(func(f *forger) {
		f.raw(tar.Header{Typeflag: tar.TypeReg, Name: "homes/1/x", PAXRecords: map[string]string{"LIBARCHIVE.creationtime": "1"}}, "x")
	}), "LIBARCHIVE.creationtime"},
	{"a link without an aim", whole(func(f *forger) { f.entry(Entry{Path: "homes/1/l", Kind: Symlink, Mode: 0o777}, "") }), "leads to no path"},
	{"holes that overlap", whole(func(f *forger) {
		f.entry(Entry{Path: "homes/1/s", Kind: File, Mode: 0o600, Size: 100, Data: []Segment{{0, 10}, {5, 10}}}, strings.Repeat("x", 20))
	}), "has holes"},
	{"holes beyond the end", whole(func(f *forger) {
		f.entry(Entry{Path: "homes/1/s", Kind: File, Mode: 0o600, Size: 10, Data: []Segment{{5, 10}}}, strings.Repeat("x", 10))
	}), "has holes"},
	{"a size below nothing", whole(func(f *forger) {
		f.entry(Entry{Path: "homes/1/s", Kind: File, Mode: 0o600, Size: -5, Data: []Segment{}}, "")
	}), "has holes"},
	{"a name without an end", whole(func(f *forger) { f.file("homes/1/"+strings.Repeat("n", 256), "x") }), "no proper path"},
	{"a path without an end", whole(func(f *forger) { f.file("homes/1/"+strings.Repeat("n/", 3000)+"n", "x") }), "bytes, and begins with"},
	{"folders without an end", whole(func(f *forger) {
		path := "homes/1"
		for range 300 {
			path += "/d"
			f.folder(path)
		}
	}), "folders deep"},
	{"a large token", bare(func(f *forger) { f.file(tokenName, strings.Repeat("x", maxSmall+1)) }), "bytes"},
	{"homes that the manifest does not know", func(*forger) []byte {
		f := newForgerLike(func(m *Manifest) { m.Homes = false })
		f.home()
		return f.done()
	}, "but no homes"},
	{"no database", func(f *forger) []byte { f.file(configName, ""); return f.done() }, "lacks what every backup has"},
	{"no configuration", func(f *forger) []byte { f.file(mainDB, ""); return f.done() }, "lacks what every backup has"},
	{"another form", func(*forger) []byte {
		f := newForgerLike(func(m *Manifest) { m.Format = 2 })
		f.home()
		return f.done()
	}, `made by gpulab "1.2.3" in a form`},
	{"a manifest that says nothing", func(f *forger) []byte { return newForgerLike(func(m *Manifest) { *m = Manifest{} }).done() }, "manifest is none"},
	{"no manifest", func(f *forger) []byte {
		var out bytes.Buffer
		zip, _ := zstd.NewWriter(&out)
		archive := tar.NewWriter(zip)
		_ = archive.WriteHeader(&tar.Header{Name: "x", Typeflag: tar.TypeReg, Format: tar.FormatPAX})
		_ = errors.Join(archive.Close(), zip.Close())
		return out.Bytes()
	}, "no backup of gpulab"},
	{"no archive", func(f *forger) []byte { return []byte("just a text, but longer than a header of whatever it could be") }, "no backup of gpulab"},
	{"nothing", func(f *forger) []byte { return nil }, "no backup of gpulab"},
	{"compressed by something else", func(f *forger) []byte { return []byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03") }, "no backup of gpulab"},
	{"another file inside", func(f *forger) []byte {
		f.home()
		f.file("homes/1/x", "original")
		f.sums[len(f.sums)-1] = strings.Repeat("0", 64)
		return f.done()
	}, `"homes/1/x" is not what was saved`},
	{"checksums missing", func(f *forger) []byte {
		f.home()
		f.sums = f.sums[:1]
		return f.done()
	}, "checksums for"},
	{"another whole", func(f *forger) []byte { f.home(); f.whole.Write([]byte("x")); return f.done() }, "as a whole"},
	{"fewer than there were", func(f *forger) []byte { f.home(); f.totals.Entries++; return f.done() }, "as a whole"},
	{"something behind its end", func(f *forger) []byte {
		f.home()
		_, _ = f.close(0)
		more := newForgerLike(func(*Manifest) {})
		more.home()
		return append(f.out.Bytes(), more.done()...)
	}, "something follows its end"},
	{"garbage behind its end", func(f *forger) []byte {
		f.home()
		return append(f.done(), "garbage"...)
	}, "something follows its end"},
	{"an entry behind its end", func(f *forger) []byte {
		f.home()
		_ = f.writeSums()
		_ = f.addJSON(endName, end{f.totals, fmt.Sprintf("%x", f.whole.Sum(nil))})
		f.file("homes/1/x", "x")
		_ = errors.Join(f.tar.Close(), f.zip.Close())
		return f.out.Bytes()
	}, "something follows its end"},
	{"no end", func(f *forger) []byte {
		f.home()
		_ = errors.Join(f.tar.Close(), f.zip.Close())
		return f.out.Bytes()
	}, "it has no end"},
}

func newForgerLike(change func(*Manifest)) *forger {
	m := honest
	change(&m)
	out := new(bytes.Buffer)
	a, err := newArchive(out, m)
	if err != nil {
		panic(err)
	}
	return &forger{a, out}
}

// Forged and damaged archives are refused with a sentence, and nothing of them comes anywhere but into the room that
// is made for them, whose content is thrown away.
func TestForged(t *testing.T) {
	good := newForger(t, honest)
	good.home()
	if _, _, err := Verify(t.Context(), bytes.NewReader(good.done())); err != nil {
		t.Fatalf("an honest one: %v", err)
	}
	for _, tc := range forgeries {
		t.Run(tc.name, func(t *testing.T) {
			archive := tc.make(newForger(t, honest))
			checkRefused(t, archive, tc.says)
		})
	}
	t.Logf("%d forgeries", len(forgeries))
}

func checkRefused(t *testing.T, archive []byte, says string) {
	t.Helper()
	if _, _, err := Verify(t.Context(), bytes.NewReader(archive)); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("verify: %v; want %q", err, says)
	}
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	stage, err := NewStage(t.Context(), data)
	must(t, err)
	_, _, err = stage.Unpack(t.Context(), bytes.NewReader(archive), accept, func(string, int64) {})
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("unpack: %v; want %q", err, says)
	}
	must(t, stage.Discard(t.Context()))
	for _, folder := range []string{dir, data} {
		left, err := os.ReadDir(folder)
		must(t, err)
		if folder == dir && len(left) != 1 || folder == data && len(left) != 0 {
			t.Errorf("in %s is %v", folder, left)
		}
	}
}

// Wherever an archive breaks off, or one of its bytes changes, it is refused.
func TestDamaged(t *testing.T) {
	f := newForger(t, honest)
	f.home()
	for i := range 20 {
		f.file(fmt.Sprintf("homes/1/%02d", i), rand.Text()+rand.Text()+rand.Text())
	}
	archive := f.done()
	for length := 0; length < len(archive); length += 1 + len(archive)/150 {
		if _, _, err := Verify(t.Context(), bytes.NewReader(archive[:length])); err == nil {
			t.Errorf("cut after %d of %d bytes, it counts as whole", length, len(archive))
		} else if text := err.Error(); !strings.Contains(text, "damaged") && !strings.Contains(text, "no backup") {
			t.Errorf("cut after %d bytes: %v", length, err)
		}
	}
	wrong := 0
	for at := 0; at < len(archive); at += 1 + len(archive)/300 {
		changed := bytes.Clone(archive)
		changed[at] ^= 0x10
		if _, _, err := Verify(t.Context(), bytes.NewReader(changed)); err == nil {
			wrong++
		}
	}
	// The content is the same where a frame says that it needs a larger window, or takes a repetition from another
	// place that says the same.
	if wrong > 5 {
		t.Errorf("%d changes went unnoticed", wrong)
	}
}

// A bomb, a few kilobytes that unpack to more than a disk holds, ends before the disk is full, and with what it would
// have taken away again.
func TestBomb(t *testing.T) {
	f := newForger(t, honest)
	f.home()
	h := header(&Entry{Path: "homes/1/zeros", Kind: File, Mode: 0o600, Size: 1 << 50})
	must(t, f.tar.WriteHeader(h))
	_, err := io.CopyN(f.tar, zeros{}, 32<<20)
	must(t, err)
	must(t, f.zip.Close())
	stage, err := NewStage(t.Context(), t.TempDir())
	must(t, err)
	_, _, err = stage.Unpack(t.Context(), bytes.NewReader(f.out.Bytes()), accept, func(string, int64) {})
	if err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("%d bytes that unpack to a pebibyte: %v", f.out.Len(), err)
	}
	must(t, stage.Discard(t.Context()))
}

// FuzzRead: whatever is given to it, reading ends with a sentence, and leads nowhere.
func FuzzRead(f *testing.F) {
	plain := func(archive []byte) []byte {
		zip, err := zstd.NewReader(bytes.NewReader(archive))
		if err != nil {
			return archive
		}
		defer zip.Close()
		data, err := io.ReadAll(io.LimitReader(zip, 64<<10))
		if err != nil || len(data) == 0 {
			return archive
		}
		return data
	}
	for _, tc := range forgeries {
		f.Add(plain(tc.make(newForger(f, honest))))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		zip, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, archive := range [][]byte{data, zip.EncodeAll(data, nil)} {
			dir := t.TempDir()
			stage, err := NewStage(context.Background(), filepath.Join(dir, "data"))
			if err != nil {
				t.Fatal(err)
			}
			_, _, err = stage.Unpack(context.Background(), bytes.NewReader(archive), accept, func(path string, _ int64) {
				if strings.HasPrefix(path, "/") || strings.Contains("/"+path+"/", "/../") {
					t.Errorf("%q was unpacked", path)
				}
			})
			if err != nil && err.Error() == "" {
				t.Error("an error without words")
			}
			if left, _ := os.ReadDir(dir); len(left) != 1 {
				t.Errorf("%v is there", left)
			}
			if err := stage.Discard(context.Background()); err != nil {
				t.Errorf("it cannot be thrown away: %v", err)
			}
		}
	})
}
