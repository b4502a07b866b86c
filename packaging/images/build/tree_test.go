package main

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// write makes files below dir: "name" → content, "name/" → folder,
// "name@" → symbolic link to the content.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		file := filepath.Join(dir, strings.TrimRight(name, "/@"))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch {
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(file, 0o755)
		case strings.HasSuffix(name, "@"):
			err = os.Symlink(content, file)
		default:
			err = os.WriteFile(file, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func mustTree(t *testing.T, dir string) tree {
	t.Helper()
	got, err := readTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func mustLayer(t *testing.T, from tree) layer {
	t.Helper()
	l, err := writeLayer(t.Context(), from, filepath.Join(t.TempDir(), "blob"))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestEqualFoldersGiveEqualLayers(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	write(t, one, map[string]string{"etc/a": "1", "etc/b": "2", "bin/": "", "lib@": "usr/lib"})
	write(t, two, map[string]string{"lib@": "usr/lib", "bin/": "", "etc/b": "2", "etc/a": "1"})
	// What differs between two builds and must not reach the layer: times, logs, setuid.
	if err := os.Chtimes(filepath.Join(two, "etc/a"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	write(t, two, map[string]string{"var/log/apt/history.log": "noise", "root/.cache/pip/x": "noise", "run/lock/y": "noise"})
	write(t, one, map[string]string{"var/log/": "", "root/": "", "run/": ""})
	if err := os.Chmod(filepath.Join(two, "etc/b"), 0o644|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	a, b := mustLayer(t, mustTree(t, one)), mustLayer(t, mustTree(t, two))
	if a.DiffID != b.DiffID || a.Digest != b.Digest {
		t.Errorf("layers differ: %+v, %+v", a, b)
	}
	write(t, two, map[string]string{"etc/a": "changed"})
	if c := mustLayer(t, mustTree(t, two)); c.DiffID == a.DiffID {
		t.Error("a changed file did not change the layer")
	}
}

func TestDiffAndUnpackGiveTheSecondTree(t *testing.T) {
	lowerDir, upperDir := t.TempDir(), t.TempDir()
	write(t, lowerDir, map[string]string{
		"same": "1", "changed": "1", "gone": "1", "goneDir/a": "1", "goneDir/b/c": "1",
		"fileToDir": "1", "dirToFile/x": "1", "link@": "same", "deep/in/here": "1",
	})
	write(t, upperDir, map[string]string{
		"same": "1", "changed": "2", "fileToDir/x": "1", "dirToFile": "1", "link@": "changed",
		"deep/in/here": "1", "deep/in/there": "2", "a-b": "1", "a/x": "1",
	})
	// Hard links: their first name is the file, in whatever order they were made.
	if err := os.Link(filepath.Join(upperDir, "a/x"), filepath.Join(upperDir, "a-b-link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(upperDir, "same"), filepath.Join(upperDir, "zz-same")); err != nil {
		t.Fatal(err)
	}
	lower, upper := mustTree(t, lowerDir), mustTree(t, upperDir)
	delta := upper.diff(lower)

	for _, name := range []string{"changed", ".wh.gone", ".wh.goneDir", "dirToFile", "fileToDir/x", "deep", "deep/in", "deep/in/there", "same"} {
		if _, ok := delta[name]; !ok {
			t.Errorf("the difference lacks %s", name)
		}
	}
	for _, name := range []string{"deep/in/here", "goneDir/.wh.a", "dirToFile/.wh.x"} {
		if _, ok := delta[name]; ok {
			t.Errorf("the difference has %s", name)
		}
	}

	blobs := []layer{mustLayer(t, lower), mustLayer(t, delta)}
	dir := t.TempDir()
	for _, l := range blobs {
		if err := unpack(l.path, dir); err != nil {
			t.Fatal(err)
		}
	}
	compare(t, "unpacked", mustTree(t, dir), upper)
	seen, err := stacked(blobs)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "overlaid", seen, upper)
}

func compare(t *testing.T, what string, got, want tree) {
	t.Helper()
	for _, name := range want.names() {
		if got[name].sum != want[name].sum {
			t.Errorf("%s: %s is %q, want %q", what, name, got[name].sum, want[name].sum)
		}
	}
	for _, name := range got.names() {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: %s should not be there", what, name)
		}
	}
}

func TestLinksFollowTheirTargets(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"lib/x": "1"})
	for _, link := range []string{"lib-two", "aaa", "zzz"} {
		if err := os.Link(filepath.Join(dir, "lib/x"), filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	err := eachEntry(mustLayer(t, mustTree(t, dir)).path, func(h *tar.Header, _ io.Reader) error {
		if h.Typeflag == tar.TypeLink && !seen[h.Linkname] {
			t.Errorf("%s links to %s, which comes later", h.Name, h.Linkname)
		}
		seen[h.Name] = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) != 5 {
		t.Errorf("entries: %v", seen)
	}
}

func TestUnpackStaysInside(t *testing.T) {
	outside := t.TempDir()
	evil := tree{}
	for _, h := range []tar.Header{
		{Name: "way", Typeflag: tar.TypeSymlink, Linkname: outside, Mode: 0o777},
		{Name: "way/file", Typeflag: tar.TypeReg, Mode: 0o644},
	} {
		evil[h.Name] = entry{header: h}
	}
	if err := unpack(mustLayer(t, evil).path, t.TempDir()); err == nil {
		t.Error("a layer wrote through a link that leads out of the root")
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside: %v, %v", left, err)
	}
}

func TestDropped(t *testing.T) {
	for name, want := range map[string]bool{
		"etc/resolv.conf": true, "etc/passwd-": true, "etc/passwd": false, "tmp": false, "tmp/x": true,
		"var/cache/apt/archives/x.deb": true, "var/lib/dpkg/status": false, "var/lib/dpkg/status-old": true,
		"etc/ssl/certs/ca-certificates.crt": false, "usr/tmp/x": false,
	} {
		if got := isDropped(name); got != want {
			t.Errorf("isDropped(%q) = %v", name, got)
		}
	}
}

func TestComplaints(t *testing.T) {
	bad := tree{}
	for _, h := range []tar.Header{
		{Name: "suid", Typeflag: tar.TypeReg, Mode: 0o4755, ModTime: epoch},
		{Name: "open", Typeflag: tar.TypeReg, Mode: 0o666, ModTime: epoch},
		{Name: "tmp", Typeflag: tar.TypeDir, Mode: 0o1777, ModTime: epoch},
		{Name: "link", Typeflag: tar.TypeSymlink, Mode: 0o777, ModTime: epoch},
		{Name: "late", Typeflag: tar.TypeReg, Mode: 0o644, ModTime: time.Now()},
		{Name: "root/.cache/pip", Typeflag: tar.TypeDir, Mode: 0o755, ModTime: epoch},
	} {
		bad[h.Name] = entry{header: h}
	}
	var about []string
	for _, c := range bad.complaints() {
		name, _, _ := strings.Cut(c, " ")
		about = append(about, name)
	}
	if want := []string{"late", "open", "root/.cache/pip", "suid"}; !slices.Equal(about, want) {
		t.Errorf("complaints about %v, want %v", about, want)
	}
}

func TestExecutableFollowsLinks(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"usr/bin/python3.11": "x", "usr/bin/python3@": "python3.11", "bin@": "usr/bin",
		"opt/lab/bin/python@": "/usr/bin/python3", "loop@": "loop", "usr/bin/data": "x"})
	if err := os.Chmod(filepath.Join(dir, "usr/bin/python3.11"), 0o755); err != nil {
		t.Fatal(err)
	}
	got := mustTree(t, dir)
	for name, want := range map[string]bool{"/opt/lab/bin/python": true, "/bin/python3": true, "/loop": false,
		"/usr/bin/data": false, "/usr/bin": false, "/missing": false} {
		if got.executable(name) != want {
			t.Errorf("executable(%q) = %v", name, !want)
		}
	}
}
