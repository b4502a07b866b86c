package embedk8s

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/gpulab/gpulab/packaging/runtime/manifest"
)

// bundle is a made-up runtime bundle: name → content, or "-> name" for a link.
type bundle map[string]string

var someBundle = bundle{
	"k3s":                  strings.Repeat("kubernetes", 100_000),
	"runc":                 "container",
	"simdriver/libcuda.so": "no program",
	"kubectl":              "-> k3s",
}

// manifest lists files by name, then links.
func (b bundle) manifest() manifest.Manifest {
	var files, links []manifest.File
	for _, name := range slices.Sorted(maps.Keys(b)) {
		if to, isLink := strings.CutPrefix(b[name], "-> "); isLink {
			links = append(links, manifest.File{Name: name, Link: to})
			continue
		}
		sum := sha256.Sum256([]byte(b[name]))
		mode := fs.FileMode(0o755)
		if strings.Contains(name, ".so") {
			mode = 0o644
		}
		files = append(files, manifest.File{Name: name, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(b[name])), Mode: mode})
	}
	return manifest.New(append(files, links...))
}

// archive packs the bundle under a manifest, its own unless another is given.
func (b bundle) archive(t *testing.T, table ...string) []byte {
	t.Helper()
	m := b.manifest()
	text, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if len(table) > 0 {
		text = []byte(table[0])
	}
	headers := []*tar.Header{{Name: manifest.Name, Size: int64(len(text)), Mode: 0o644}}
	contents := [][]byte{text}
	for _, f := range m.Files {
		if f.Link != "" {
			headers = append(headers, &tar.Header{Typeflag: tar.TypeSymlink, Name: f.Name, Linkname: f.Link})
			contents = append(contents, nil)
			continue
		}
		headers = append(headers, &tar.Header{Name: f.Name, Size: f.Size, Mode: int64(f.Mode)})
		contents = append(contents, []byte(b[f.Name]))
	}
	return pack(t, headers, contents)
}

func pack(t *testing.T, headers []*tar.Header, contents [][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for i, header := range headers {
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(contents[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// mustStage stages and holds everything against the bundle.
func (b bundle) mustStage(t *testing.T, dataDir string) (rt Runtime, changed bool) {
	t.Helper()
	rt, changed, err := Stage(t.Context(), b.archive(t), dataDir, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.checkStaged(t, rt, dataDir)
	return rt, changed
}

func (b bundle) checkStaged(t *testing.T, rt Runtime, dataDir string) {
	t.Helper()
	if err := rt.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	for name, want := range b {
		if to, isLink := strings.CutPrefix(want, "-> "); isLink {
			want = b[to]
		}
		got, err := os.ReadFile(filepath.Join(Current(dataDir), name))
		if err != nil || string(got) != want {
			t.Errorf("%s holds %.40q (%v), want %.40q", name, got, err, want)
		}
	}
	list, err := filepath.Glob(filepath.Join(dataDir, "bin", "[^.]*.*"))
	if err != nil || len(list) > 0 {
		t.Errorf("staging left %v (%v)", list, err)
	}
}

func TestStageUnpacksOnce(t *testing.T) {
	dataDir := t.TempDir()
	var done, total int64
	rt, changed, err := Stage(t.Context(), someBundle.archive(t), dataDir, func(d, all int64) {
		if d < done {
			t.Errorf("progress went back from %d to %d", done, d)
		}
		done, total = d, all
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := someBundle.manifest().TotalSize(); !changed || done != want || total != want {
		t.Errorf("changed %v, progress %d of %d; want true and %d", changed, done, total, want)
	}
	someBundle.checkStaged(t, rt, dataDir)
	for name, want := range map[string]fs.FileMode{"k3s": 0o755, "simdriver/libcuda.so": 0o644} {
		if info, err := os.Lstat(filepath.Join(rt.Dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s has mode %v (%v), want %v", name, info.Mode(), err, want)
		}
	}

	again, changed := someBundle.mustStage(t, dataDir)
	if changed || again != rt {
		t.Errorf("staging the same again: changed %v, %+v; want false, %+v", changed, again, rt)
	}
}

func TestStageMends(t *testing.T) {
	tests := []struct {
		name   string
		damage func(dir string) error
	}{
		{"a file removed", func(dir string) error { return os.Remove(dir + "/runc") }},
		{"a file cut short", func(dir string) error { return os.Truncate(dir+"/k3s", 10) }},
		{"a mode changed", func(dir string) error { return os.Chmod(dir+"/runc", 0o700) }},
		{"a link led elsewhere", func(dir string) error {
			return errors.Join(os.Remove(dir+"/kubectl"), os.Symlink("/bin/sh", dir+"/kubectl"))
		}},
		{"a folder in a file's place", func(dir string) error {
			return errors.Join(os.Remove(dir+"/runc"), os.MkdirAll(dir+"/runc/x", 0o755))
		}},
		{"a folder removed", func(dir string) error { return os.RemoveAll(dir + "/simdriver") }},
		{"the manifest removed", func(dir string) error { return os.Remove(dir + "/" + manifest.Name) }},
		{"everything removed but the folder", func(dir string) error {
			return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755))
		}},
		{"the version removed", os.RemoveAll},
		{"a file in the version's place", func(dir string) error {
			return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600))
		}},
		{"the link to it removed", func(dir string) error { return os.Remove(filepath.Dir(dir) + "/current") }},
		{"the link to it half switched", func(dir string) error {
			current := filepath.Dir(dir) + "/current"
			return errors.Join(os.Remove(current), os.Symlink("gone", current), os.Symlink("gone", current+".new"))
		}},
		{"an earlier unpacking cut off", func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".partial"), os.Truncate(dir+".partial/k3s", 10))
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dataDir := t.TempDir()
			rt, _ := someBundle.mustStage(t, dataDir)
			if err := test.damage(rt.Dir); err != nil {
				t.Fatal(err)
			}
			if _, changed := someBundle.mustStage(t, dataDir); !changed {
				t.Error("staging over it reports no change")
			}
		})
	}
}

// A switch to another version that was cut off leaves nothing either when the
// version before it is staged again.
func TestStageAfterHalfASwitch(t *testing.T) {
	dataDir := t.TempDir()
	rt, _ := someBundle.mustStage(t, dataDir)
	if err := os.Symlink("another", filepath.Dir(rt.Dir)+"/current.new"); err != nil {
		t.Fatal(err)
	}
	someBundle.mustStage(t, dataDir)
}

func TestRepairFindsWhatStageDoesNotLookFor(t *testing.T) {
	dataDir := t.TempDir()
	rt, _ := someBundle.mustStage(t, dataDir)
	altered := strings.ToUpper(someBundle["runc"])
	if err := os.WriteFile(rt.Dir+"/runc", []byte(altered), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := rt.Verify(t.Context()); err == nil || !strings.Contains(err.Error(), "runc") {
		t.Errorf("Verify says %v, want the altered runc", err)
	}
	if _, err := Repair(t.Context(), someBundle.archive(t), dataDir, nil); err != nil {
		t.Fatal(err)
	}
	someBundle.checkStaged(t, rt, dataDir)

	if err := os.WriteFile(rt.Dir+"/"+manifest.Name, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := rt.Verify(t.Context()); err == nil {
		t.Error("Verify believes a manifest that was changed")
	}
}

// A program that runs while its file is replaced keeps the one it has.
func TestMendLeavesOpenFilesAlone(t *testing.T) {
	dataDir := t.TempDir()
	rt, _ := someBundle.mustStage(t, dataDir)
	held, err := os.Open(rt.Dir + "/k3s")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	before, _ := held.Stat()
	if err := os.Chmod(rt.Dir+"/k3s", 0o700); err != nil {
		t.Fatal(err)
	}
	someBundle.mustStage(t, dataDir)
	after, err := os.Stat(rt.Dir + "/k3s")
	if err != nil || os.SameFile(before, after) {
		t.Errorf("k3s was rewritten in place (%v)", err)
	}
}

func TestStageRefuses(t *testing.T) {
	good := someBundle.archive(t)
	sum := strings.Repeat("0", 64)
	outside := []*tar.Header{{Name: manifest.Name, Mode: 0o644}, {Name: "../../escaped", Size: 1, Mode: 0o755}}
	listed := someBundle.manifest()
	listed.Files[0].Name = "../../escaped"
	hostile := fmt.Sprintf(`{"format":1,"files":[{"name":"../../escaped","sha256":%q,"size":1,"mode":493}]}`, sum)
	honest, err := someBundle.manifest().Encode()
	if err != nil {
		t.Fatal(err)
	}
	outside[0].Size = int64(len(honest))
	longer := maps.Clone(someBundle)
	longer["runc"] += "!"
	renamed := maps.Clone(someBundle)
	delete(renamed, "runc")
	renamed["sunc"] = someBundle["runc"]
	more := maps.Clone(someBundle)
	more["zz"] = "-> k3s"
	linked := maps.Clone(someBundle)
	linked["kubectl"] = "-> runc"

	tests := []struct {
		name    string
		archive []byte
	}{
		{"no archive at all", []byte("#!/bin/sh")},
		{"cut off", good[:len(good)/2]},
		{"cut off within the manifest", good[:40]},
		{"no manifest", pack(t, []*tar.Header{{Name: "k3s", Mode: 0o755}}, [][]byte{nil})},
		{"a manifest that leads outside", someBundle.archive(t, hostile)},
		{"an entry that leads outside", pack(t, outside, [][]byte{honest, []byte("x")})},
		{"another content", longer.archive(t, string(honest))},
		{"another name", renamed.archive(t, string(honest))},
		{"another link", linked.archive(t, string(honest))},
		{"an entry too many", more.archive(t, string(honest))},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			dataDir := filepath.Join(root, "a", "b")
			_, _, err := Stage(t.Context(), test.archive, dataDir, nil)
			if !errors.Is(err, errDamaged) {
				t.Errorf("error %v, want %v", err, errDamaged)
			}
			if _, err := os.Lstat(filepath.Join(root, "a", "escaped")); err == nil {
				t.Error("it wrote outside its folder")
			}
			if _, err := os.Lstat(Current(dataDir)); err == nil {
				t.Error("it made something current")
			}
			someBundle.mustStage(t, dataDir)
		})
	}

	// A single bit turned over in what is compressed.
	for at := len(good) / 4; at < len(good); at += len(good) / 4 {
		turned := bytes.Clone(good)
		turned[at] ^= 1
		if _, _, err := Stage(t.Context(), turned, t.TempDir(), nil); !errors.Is(err, errDamaged) {
			t.Errorf("with byte %d altered: %v, want %v", at, err, errDamaged)
		}
	}
}

// TestStageTakesBoundedMemory: an archive may say how much of it must be held at
// once to unpack it, but not anything.
func TestStageTakesBoundedMemory(t *testing.T) {
	z, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	plain, err := z.DecodeAll(someBundle.archive(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	for window, want := range map[int]error{maxWindow: nil, 2 * maxWindow: errDamaged} {
		var packed bytes.Buffer
		w, err := zstd.NewWriter(&packed, zstd.WithWindowSize(window))
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Write(plain)
		// Flushed before the end is known, it names the window and not its own size.
		if err := errors.Join(err, w.Flush(), w.Close()); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Stage(t.Context(), packed.Bytes(), t.TempDir(), nil); !errors.Is(err, want) {
			t.Errorf("with a window of %d bytes: %v, want %v", window, err, want)
		}
	}
}

func TestStageWithoutBundle(t *testing.T) {
	_, _, err := Stage(t.Context(), nil, t.TempDir(), nil)
	if !errors.Is(err, ErrNoBundle) || !strings.Contains(err.Error(), "go tool task build") {
		t.Errorf("error %v, want ErrNoBundle with the way to get one", err)
	}
}

func TestStageInterrupted(t *testing.T) {
	dataDir := t.TempDir()
	archive := someBundle.archive(t)
	for _, share := range []float64{0, 0.3, 0.9} {
		ctx, cancel := context.WithCancel(t.Context())
		_, _, err := Stage(ctx, archive, dataDir, func(done, total int64) {
			if float64(done) >= share*float64(total) {
				cancel()
			}
		})
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("interrupted at %v: %v, want it canceled", share, err)
		}
		if _, err := os.Lstat(Current(dataDir)); err == nil {
			t.Fatalf("interrupted at %v, it made something current", share)
		}
	}
	if _, changed := someBundle.mustStage(t, dataDir); !changed {
		t.Error("staging after interruptions reports no change")
	}
}

// Killed at whatever moment, staging leaves either nothing current or a whole
// version, and the next call ends what was begun.
func TestStageKilled(t *testing.T) {
	const dirVariable, archiveVariable = "GPULAB_TEST_STAGE_INTO", "GPULAB_TEST_ARCHIVE"
	if dataDir := os.Getenv(dirVariable); dataDir != "" { // the process to be killed
		archive, err := os.ReadFile(os.Getenv(archiveVariable))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := Stage(t.Context(), archive, dataDir, nil); err != nil {
			t.Fatal(err)
		}
		return
	}

	noise := make([]byte, 16<<20)
	if _, err := rand.NewChaCha8([32]byte{}).Read(noise); err != nil {
		t.Fatal(err)
	}
	versions := []bundle{
		{"k3s": string(noise), "runc": "first", "kubectl": "-> k3s"},
		{"k3s": string(noise[1:]), "runc": "second", "kubectl": "-> k3s"},
	}
	dir, dataDir := t.TempDir(), t.TempDir()
	files := make([]string, len(versions))
	for i, version := range versions {
		files[i] = filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(files[i], version.archive(t), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The pauses sweep over a whole run, its start and its end included.
	for round, pause := 0, time.Duration(0); pause < 200*time.Millisecond; round, pause = round+1, pause+9*time.Millisecond {
		stage := exec.Command(os.Args[0], "-test.run=^TestStageKilled$")
		stage.Env = append(os.Environ(), dirVariable+"="+dataDir, archiveVariable+"="+files[round%2])
		if err := stage.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pause)
		end(stage)
		hash, err := os.Readlink(Current(dataDir))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := (Runtime{Dir: filepath.Join(dataDir, "bin", hash), Hash: hash}).Verify(t.Context()); err != nil {
			t.Errorf("killed after %v: %v", pause, err)
		}
	}
	for _, version := range versions {
		version.mustStage(t, dataDir)
	}
}

func TestStageConcurrently(t *testing.T) {
	dataDir := t.TempDir()
	archive := someBundle.archive(t)
	var wait sync.WaitGroup
	var mutex sync.Mutex
	unpacked := 0
	for range 8 {
		wait.Go(func() {
			_, changed, err := Stage(t.Context(), archive, dataDir, nil)
			mutex.Lock()
			defer mutex.Unlock()
			if err != nil {
				t.Error(err)
			}
			if changed {
				unpacked++
			}
		})
	}
	wait.Wait()
	if unpacked != 1 {
		t.Errorf("%d of 8 callers unpacked, want 1", unpacked)
	}
	someBundle.mustStage(t, dataDir)
}

func TestStageSaysWhenTheDiskIsFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root: run this test with sudo")
	}
	dataDir := t.TempDir()
	mount := exec.Command("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", dataDir)
	if out, err := mount.CombinedOutput(); err != nil {
		t.Fatalf("mount a small file system: %v\n%s", err, out)
	}
	defer func() {
		if out, err := exec.Command("umount", dataDir).CombinedOutput(); err != nil {
			t.Errorf("unmount it: %v\n%s", err, out)
		}
	}()
	_, _, err := Stage(t.Context(), someBundle.archive(t), dataDir, nil)
	if err == nil || !strings.Contains(err.Error(), "make 64 MiB free") || !strings.Contains(err.Error(), dataDir) {
		t.Errorf("error %v, want how much to make free and where", err)
	}

	if out, err := exec.Command("mount", "-o", "remount,noexec,size=200m", dataDir).CombinedOutput(); err != nil {
		t.Fatalf("remount: %v\n%s", err, out)
	}
	if _, _, err := Stage(t.Context(), someBundle.archive(t), dataDir, nil); err == nil || !strings.Contains(err.Error(), "noexec") {
		t.Errorf("error %v, want one about noexec", err)
	}
}

func TestStagePrunes(t *testing.T) {
	dataDir := t.TempDir()
	old, _ := bundle{"sleeper": "first"}.mustStage(t, dataDir)
	second, changed := bundle{"sleeper": "second"}.mustStage(t, dataDir)
	if !changed || second.Hash == old.Hash {
		t.Errorf("another bundle: changed %v, hash %s after %s", changed, second.Hash, old.Hash)
	}
	if _, err := os.Lstat(old.Dir); err == nil {
		t.Error("a version that nobody uses was kept")
	}
	foreign := filepath.Join(dataDir, "bin", "notes")
	if err := os.Mkdir(foreign, 0o755); err != nil {
		t.Fatal(err)
	}

	// One process runs from a version, another only has it on its PATH.
	sleep, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	start := func(process *exec.Cmd) *exec.Cmd {
		t.Helper()
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { end(process) })
		return process
	}
	running, _ := bundle{"sleeper": string(sleep)}.mustStage(t, dataDir)
	runs := start(exec.Command(running.Dir+"/sleeper", "60"))
	onPath, _ := bundle{"sleeper": "on PATH"}.mustStage(t, dataDir)
	names := exec.Command("/bin/sleep", "60")
	names.Env = []string{"PATH=/bin:" + onPath.Dir + ":/usr/bin"}
	start(names)
	last, _ := bundle{"sleeper": "last"}.mustStage(t, dataDir)
	for _, dir := range []string{running.Dir, onPath.Dir, last.Dir, foreign} {
		if _, err := os.Lstat(dir); err != nil {
			t.Errorf("%s is gone, but in use: %v", dir, err)
		}
	}
	end(runs)
	end(names)
	bundle{"sleeper": "last"}.mustStage(t, dataDir)
	for _, dir := range []string{running.Dir, onPath.Dir} {
		if _, err := os.Lstat(dir); err == nil {
			t.Errorf("%s was kept when its last process had ended", dir)
		}
	}
}

// end kills a process and waits for it. Both fail only for one that has ended.
func end(process *exec.Cmd) {
	_ = process.Process.Kill()
	_ = process.Wait()
}

func TestMentions(t *testing.T) {
	tests := []struct {
		environ string
		want    bool
	}{
		{"", false},
		{"PATH=/bin:/d/bin/0123", true},
		{"PATH=/d/bin/0123:/bin\x00", true},
		{"A=/d/bin/0123/runc\x00B=1", true},
		{"A=/d/bin/01234\x00", false},
		{"A=/d/bin/0123.old\x00B=/d/bin/0123\x00", true},
		{"A=/d/bin/012", false},
	}
	for _, test := range tests {
		if got := mentions([]byte(test.environ), "/d/bin/0123"); got != test.want {
			t.Errorf("mentions(%q) = %v, want %v", test.environ, got, test.want)
		}
	}
}
