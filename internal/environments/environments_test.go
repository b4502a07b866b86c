package environments

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// pod stands for the one that builds: it fills the folders as the program does.
type pod struct {
	t       *testing.T
	fail    string
	reason  string
	block   chan struct{} // it goes on once this is closed
	hostile bool
	speaks  string // the language that it says the environment has
	jobs    []Job
	stopped int

	noPrograms bool
}

func (p *pod) run(ctx context.Context, job Job) error {
	p.jobs = append(p.jobs, job)
	job.Say("@ installing 2 packages")
	if p.block != nil {
		select {
		case <-p.block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	put := func(name, content string, mode fs.FileMode) {
		p.t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			p.t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), mode); err != nil {
			p.t.Fatal(err)
		}
	}
	put(filepath.Join(job.Environment, "lib/humanize.py"), "version = 1\n", 0o666)
	if p.noPrograms {
		put(filepath.Join(job.Environment, "bin"), "a file", 0o755)
		put(filepath.Join(job.Work, "lock.txt"), "", 0o644)
		put(filepath.Join(job.Work, "packages.json"), `{"language":"none"}`, 0o644)
		return nil
	}
	put(filepath.Join(job.Environment, "bin/humanize"), "#!/bin/sh\n", 0o4755)
	if err := os.Symlink("/usr/bin/python3", filepath.Join(job.Environment, "bin/python3")); err != nil {
		p.t.Fatal(err)
	}
	put(filepath.Join(job.Cache, "downloaded"), strings.Repeat("x", 1000), 0o600)
	if p.fail != "" {
		job.Say(p.reason)
		return errors.New(p.fail)
	}
	lock, secret := filepath.Join(job.Work, "lock.txt"), filepath.Join(p.t.TempDir(), "secret")
	put(secret, "secret", 0o600)
	if p.hostile {
		if err := errors.Join(os.Symlink(secret, lock), os.Symlink(secret, filepath.Join(job.Environment, "bin/own-kernel"))); err != nil {
			p.t.Fatal(err)
		}
	} else {
		put(lock, "humanize==4.9.0 --hash=sha256:ce\n", 0o644)
	}
	put(filepath.Join(job.Work, "packages.json"), `{"python":"3.11","language":"`+p.speaks+`","packages":[{"name":"humanize","version":"4.9.0"},{"name":"nvidia-cuda-runtime-cu12","version":"12.8.90"}]}`, 0o644)
	return nil
}

func start(t *testing.T, p *pod, change ...func(*Config)) *Service {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root gives files to others")
	}
	p.t = t
	return startIn(t, t.TempDir(), p, change...)
}

func startIn(t *testing.T, dir string, p *pod, change ...func(*Config)) *Service {
	t.Helper()
	cfg := Config{Dir: dir, Run: p.run, Stop: func(context.Context) error { p.stopped++; return nil }, Image: func() string { return "gpulab.local/notebook:1" }, CacheBytes: 10_000}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Run(t.Context()) }()
	return s
}

var humanize = Wanted{Name: "small", Version: "1", Title: "Small", Requirements: "humanize==4.9.0\n"}

func create(t *testing.T, s *Service, n Wanted) Environment {
	t.Helper()
	e, err := s.Create(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// folder lists the files below one, as "mode name".
func folder(t *testing.T, dir string) string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, name)
			list = append(list, info.Mode().String()+" "+rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(list, "\n")
}

// The kernel of an environment with R is R's, and no other language is believed.
func TestLanguage(t *testing.T) {
	p := &pod{speaks: "R"}
	s := start(t, p)
	if e := create(t, s, humanize); e.Language != "R" {
		t.Errorf("it is %+v", e)
	}
	data, err := os.ReadFile(filepath.Join(s.kernels(), "small.1", "kernel.json"))
	var kernel struct {
		Argv     []string
		Language string
	}
	if err := errors.Join(err, json.Unmarshal(data, &kernel)); err != nil {
		t.Fatal(err)
	}
	if kernel.Language != "R" || kernel.Argv[0] != MountPath+"/small/1/bin/R" || !strings.Contains(strings.Join(kernel.Argv, " "), "IRkernel::main() --args {connection_file}") {
		t.Errorf("%s", data)
	}
	p.speaks = "Klingon"
	other := humanize
	other.Name = "other"
	if _, err := s.Create(t.Context(), other); err == nil || !strings.Contains(err.Error(), "Klingon") {
		t.Errorf("another language: %v", err)
	}
}

// An environment without a kernel puts its programs on everybody's path: those of its newest version, until it is removed.
func TestProgramsForEverybody(t *testing.T) {
	p := &pod{speaks: "none"}
	s := start(t, p)
	links := func(want ...string) {
		t.Helper()
		var got []string
		entries, err := os.ReadDir(s.programs())
		for _, e := range entries {
			to, err := os.Readlink(filepath.Join(s.programs(), e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, e.Name()+" "+to)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("on the path are %q, want %q, %v", got, want, err)
		}
		kernels, err := os.ReadDir(s.kernels())
		if err != nil || len(kernels) > 0 {
			t.Errorf("kernels %v, %v", kernels, err)
		}
	}
	e := create(t, s, humanize)
	if e.HasKernel() {
		t.Errorf("%+v has a kernel", e)
	}
	links("humanize ../small/1/bin/humanize") // python3 is a link, which may lead anywhere
	if _, err := s.SetDefault(t.Context(), e.ID()); err == nil || !strings.Contains(err.Error(), "has no kernel") {
		t.Errorf("the default: %v", err)
	}
	for _, name := range []string{"bin/own-kernel", "lib/python/site-packages"} {
		if _, err := os.Stat(filepath.Join(s.folder(&e), name)); err == nil {
			t.Errorf("it has %s", name)
		}
	}
	newer := humanize
	newer.Version = "2"
	time.Sleep(time.Second) // the times of versions are in seconds
	create(t, s, newer)
	links("humanize ../small/2/bin/humanize")
	if _, err := s.Remove(t.Context(), "small/2", false); err != nil {
		t.Fatal(err)
	}
	links("humanize ../small/1/bin/humanize")
	// What a killed gpulab left is put right at the next start.
	if err := errors.Join(os.Remove(filepath.Join(s.programs(), "humanize")), os.Symlink("../gone/1/bin/x", filepath.Join(s.programs(), "x"))); err != nil {
		t.Fatal(err)
	}
	if err := s.clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	links("humanize ../small/1/bin/humanize")
	if _, err := s.Remove(t.Context(), "small/1", false); err != nil {
		t.Fatal(err)
	}
	links()
	// An environment without programs is refused. A damaged one does not keep the links from being updated.
	p.noPrograms = true
	if _, err := s.Create(t.Context(), humanize); err == nil || !strings.Contains(err.Error(), "it has no programs") {
		t.Errorf("without programs: %v", err)
	}
	p.noPrograms = false
	e = create(t, s, humanize)
	bin := filepath.Join(s.folder(&e), "bin")
	if err := errors.Join(os.RemoveAll(bin), os.Symlink("/usr/bin", bin)); err != nil {
		t.Fatal(err)
	}
	if err := s.clean(t.Context()); err != nil {
		t.Errorf("a damaged one: %v", err)
	}
	links()
}

// An environment that an earlier gpulab built gets this one's own-kernel. Links in it lead no write out of it.
func TestOwnFilesAreRenewed(t *testing.T) {
	s := start(t, &pod{})
	e := create(t, s, humanize)
	program, outside := filepath.Join(s.folder(&e), "bin/own-kernel"), t.TempDir()
	want, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := folder(t, s.folder(&e))
	for name, change := range map[string]func() error{
		"an earlier one": func() error { return os.WriteFile(program, []byte("earlier"), 0o755) },
		"another mode":   func() error { return os.Chmod(program, 0o644) },
		"none":           func() error { return os.Remove(program) },
		"a link":         func() error { return errors.Join(os.Remove(program), os.Symlink(secret, program)) },
		"a link inside":  func() error { return errors.Join(os.Remove(program), os.Symlink("../"+lockName, program)) },
		"a folder":       func() error { return errors.Join(os.Remove(program), os.MkdirAll(program+"/x", 0o755)) },
	} {
		if err := errors.Join(change(), s.clean(t.Context())); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(program)
		if err != nil || info.Mode() != 0o755 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
		if got, err := os.ReadFile(program); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: own-kernel is %q, %v", name, got, err)
		}
		lock, err := os.ReadFile(filepath.Join(s.folder(&e), lockName))
		if now := folder(t, s.folder(&e)); err != nil || strings.Contains(string(lock), "own-kernel") || now != before {
			t.Errorf("%s: the environment is now\n%s\n%v", name, now, err)
		}
	}
	bin := filepath.Dir(program)
	if err := errors.Join(os.RemoveAll(bin), os.Symlink(outside, bin), s.clean(t.Context())); err != nil {
		t.Errorf("bin is a link: %v", err)
	}
	if got, err := os.ReadFile(secret); err != nil || string(got) != "secret" || folder(t, outside) != "-rw------- secret" {
		t.Errorf("written outside of the environment: %s\n%s", folder(t, outside), got)
	}
}

// What the catalogue has of Debian is named as the program that builds wants it, each package once.
func TestDebianInTheCatalogue(t *testing.T) {
	form := regexp.MustCompile(`^# (deb|man): pool/(?:updates/)?main/[a-z0-9]+/[a-z0-9.+-]+/([a-z0-9.+-]+)_[A-Za-z0-9.+~:-]+_(?:amd64|all)\.deb [0-9a-f]{64}\n$`)
	for offered, want := range map[string]struct {
		packages    []string
		head, shown string
	}{
		"r":        {[]string{"r-base-core", "r-cran-irkernel", "r-cran-tidyverse"}, "", "# Packages of Debian: %d\n"},
		"programs": {[]string{"man-db", "graphviz", "ffmpeg", "pandoc"}, "# programs: everywhere\n", "# Packages of Debian: %d\n# Manual pages of further packages: %d\n"},
	} {
		offer, err := Offered(offered)
		if err != nil {
			t.Fatal(err)
		}
		list, found := strings.CutPrefix(offer.Requirements, want.head)
		if !found {
			t.Errorf("%s begins with %.40q", offered, offer.Requirements)
		}
		names := map[string]string{}
		counts := map[string]int{}
		for line := range strings.Lines(list) {
			found := form.FindStringSubmatch(line)
			if found == nil || names[found[2]] != "" {
				t.Errorf("%s: %q", offered, line)
				continue
			}
			names[found[2]] = found[1]
			counts[found[1]]++
		}
		for _, name := range want.packages {
			if names[name] != "deb" {
				t.Errorf("%s lacks %s", offered, name)
			}
		}
		if names["libc6"] == "deb" || names["python3"] == "deb" {
			t.Errorf("%s has what the notebooks' image has", offered)
		}
		shown := "numpy\n" + fmt.Sprintf(want.shown, counts["deb"])
		if strings.Count(want.shown, "%d") == 2 {
			shown = "numpy\n" + fmt.Sprintf(want.shown, counts["deb"], counts["man"])
		}
		for _, asked := range []string{"numpy\n" + list, list + "numpy"} {
			if got := Shown(asked); got != shown {
				t.Errorf("people read %q, want %q", got, shown)
			}
		}
	}
	if err := CheckMirror("https://me:secret@example.org/debian"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a mirror with a password: %v", err)
	}
}

func TestCreate(t *testing.T) {
	p := &pod{}
	s := start(t, p)
	e := create(t, s, humanize)
	if e.Python != "3.11" || e.CUDA != "12.0" || len(e.Packages) != 2 || e.Size == 0 || e.Image == "" || len(e.LockSHA256) != 64 {
		t.Errorf("it is %+v", e)
	}
	want := "-rwxr-xr-x bin/humanize\n-rwxr-xr-x bin/own-kernel\nLrwxrwxrwx bin/python3\n" +
		"-rw-r--r-- environment.json\n-rw-r--r-- lib/humanize.py\n" +
		"-rw-r--r-- lib/python3.11/site-packages/gpulab_pip.pth\n" +
		"-rw-r--r-- lib/python3.11/site-packages/gpulab_pip.py\n-rw-r--r-- requirements.lock"
	if got := folder(t, filepath.Join(s.ready(), "small/1")); got != want {
		t.Errorf("its folder holds\n%s\nwant\n%s", got, want)
	}
	data, err := os.ReadFile(filepath.Join(s.kernels(), "small.1", "kernel.json"))
	var kernel struct {
		Argv        []string
		DisplayName string `json:"display_name"`
		Env         map[string]string
	}
	if err := errors.Join(err, json.Unmarshal(data, &kernel)); err != nil {
		t.Fatal(err)
	}
	if kernel.Argv[0] != "/opt/gpulab/environments/small/1/bin/python3" || kernel.DisplayName != "Small (1)" || kernel.Env["GPULAB_ENVIRONMENT"] != "small/1" ||
		kernel.Env["PATH"] != "/opt/gpulab/environments/small/1/bin:${PATH}" {
		t.Errorf("its kernel is %s", data)
	}
	if lock, err := s.Lock(e); err != nil || !strings.HasPrefix(lock, "humanize==4.9.0 --hash=") {
		t.Errorf("its lock is %q, %v", lock, err)
	}
	if left, _ := os.ReadDir(s.building()); len(left) > 0 {
		t.Errorf("the build left %v", left)
	}
	if _, err := s.Create(t.Context(), humanize); !errors.Is(err, ErrExists) {
		t.Errorf("the same again: %v", err)
	}
	later := humanize
	later.Version = "2"
	create(t, s, later)
	if got, err := s.Get("small"); err != nil || got.Version != "2" && !got.Built.Equal(e.Built) {
		t.Errorf("the newest is %s, %v", got.ID(), err)
	}
	list, err := s.List()
	if err != nil || len(list) != 2 {
		t.Errorf("the list has %d, %v", len(list), err)
	}
}

func TestRefused(t *testing.T) {
	s := start(t, &pod{})
	for _, change := range []func(*Wanted){
		func(n *Wanted) { n.Name = "../up" }, func(n *Wanted) { n.Name = "kernels" }, func(n *Wanted) { n.Name = "" },
		func(n *Wanted) { n.Version = ".." }, func(n *Wanted) { n.Version = "a/b" }, func(n *Wanted) { n.Requirements = " \n" },
		func(n *Wanted) { n.CUDA = "new" }, func(n *Wanted) { n.Title = "two\nlines" }, func(n *Wanted) { n.Index = "ftp://x" },
		func(n *Wanted) { n.ExtraIndexes = []string{"https://me:secret@x/simple"} },
	} {
		n := humanize
		change(&n)
		if _, err := s.Create(t.Context(), n); !errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: %v", n, err)
		}
	}
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	p := &pod{fail: "exit code 1", reason: "! No matching distribution found for humanize==99"}
	s := start(t, p)
	_, err := s.Create(t.Context(), humanize)
	if err == nil || err.Error() != "small/1 was not built: No matching distribution found for humanize==99" {
		t.Errorf("it failed with %v", err)
	}
	if b := s.Building(); b.Running || b.Failed != err.Error() {
		t.Errorf("the build is %+v", b)
	}
	if left, _ := os.ReadDir(s.building()); len(left) > 0 {
		t.Errorf("the build left %v", left)
	}
	p.fail = ""
	create(t, s, humanize)
}

func TestCancel(t *testing.T) {
	p := &pod{block: make(chan struct{})}
	s := start(t, p)
	b, err := s.Start(t.Context(), humanize, func(Environment) {})
	if err != nil || !b.Running {
		t.Fatalf("it began as %+v, %v", b, err)
	}
	if _, err := s.Create(t.Context(), Wanted{Name: "other", Requirements: "x"}); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "small/1 is being built") {
		t.Errorf("another one meanwhile: %v", err)
	}
	if !s.Cancel() {
		t.Error("there was nothing to cancel")
	}
	var last Build
	if err := s.Watch(t.Context(), func(b Build) error { last = b; return nil }); err != nil || last.Running || !strings.Contains(last.Failed, "nothing of it is left") {
		t.Errorf("it ended as %+v, %v", last, err)
	}
	close(p.block)
	create(t, s, humanize)
	if s.Cancel() {
		t.Error("a build that has ended was cancelled")
	}
}

func TestKilledBuildIsCleaned(t *testing.T) {
	p := &pod{}
	s := start(t, p)
	e := create(t, s, humanize)
	dir := s.cfg.Dir
	// As a gpulab leaves it that was killed: half a build, a kernel of nothing, and a folder that has no kernel yet.
	half := filepath.Join(dir, "building", "big.1", "environment")
	for _, err := range []error{
		os.MkdirAll(half, 0o700), os.WriteFile(filepath.Join(half, "file"), nil, 0o600),
		os.MkdirAll(filepath.Join(dir, "ready/kernels/gone.1"), 0o755), os.RemoveAll(filepath.Join(dir, "ready/kernels", e.Kernel())),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	stopped := p.stopped
	again := startIn(t, dir, p)
	big := humanize
	big.Name = "big"
	create(t, again, big)
	if p.stopped != stopped+1 {
		t.Errorf("the pod of the killed one was stopped %d times", p.stopped-stopped)
	}
	kernels, err := os.ReadDir(again.kernels())
	if err != nil || len(kernels) != 2 || kernels[0].Name() != "big.1" || kernels[1].Name() != "small.1" {
		t.Errorf("the kernels are %v, %v", kernels, err)
	}
}

func TestHostilePod(t *testing.T) {
	s := start(t, &pod{hostile: true})
	if _, err := s.Create(t.Context(), humanize); err == nil || !strings.Contains(err.Error(), "escapes") {
		t.Errorf("a lock that is a link elsewhere: %v", err)
	}
}

func TestRemove(t *testing.T) {
	using := []Use{{Environment: "small/1", Handle: "lea", Notebook: "thesis"}}
	s := start(t, &pod{}, func(c *Config) { c.Users = func() ([]Use, error) { return using, nil } })
	e := create(t, s, humanize)
	if _, err := s.SetDefault(t.Context(), "small"); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(s.configFile()); err != nil || string(data) != `{"MultiKernelManager":{"default_kernel_name":"small.1"}}` {
		t.Errorf("Jupyter's default is %s, %v", data, err)
	}
	if got, err := s.Get("small"); err != nil || !got.Default {
		t.Errorf("the default: %+v, %v", got, err)
	}
	if _, err := s.Remove(t.Context(), "small", false); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "lea/thesis") {
		t.Errorf("one in use: %v", err)
	}
	if _, err := s.Remove(t.Context(), "small", true); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(e.ID()); !errors.Is(err, ErrNotFound) {
		t.Errorf("it is there after its removal: %v", err)
	}
	if got := folder(t, s.ready()); got != "" {
		t.Errorf("its removal left %s", got)
	}
	create(t, s, humanize)
}

func TestExportImport(t *testing.T) {
	s := start(t, &pod{})
	e := create(t, s, humanize)
	before := folder(t, s.ready())
	var file bytes.Buffer
	if err := s.Export(t.Context(), "small", &file); err != nil {
		t.Fatal(err)
	}
	whole := file.Bytes()
	if _, err := s.Import(t.Context(), bytes.NewReader(whole)); !errors.Is(err, ErrExists) {
		t.Errorf("one that is there: %v", err)
	}
	if _, err := s.Remove(t.Context(), "small/1", false); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{
		"cut": whole[:len(whole)/2], "without its last byte": whole[:len(whole)-1], "another": []byte("a letter"), "empty": nil,
		"damaged": append(append(bytes.Clone(whole[:len(whole)-40]), whole[len(whole)-40]^1), whole[len(whole)-39:]...),
	} {
		if e, err := s.Import(t.Context(), bytes.NewReader(bad)); !errors.Is(err, ErrInvalid) {
			t.Errorf("a file that is %s: %v, %v", name, e, err)
		}
	}
	if list, err := s.List(); err != nil || len(list) > 0 {
		t.Errorf("broken files left %v, %v", list, err)
	}
	got, err := s.Import(t.Context(), bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	if got.ID() != e.ID() || got.LockSHA256 != e.LockSHA256 || !got.Built.Equal(e.Built) {
		t.Errorf("it came back as %+v", got)
	}
	if after := folder(t, s.ready()); after != before {
		t.Errorf("it came back with\n%s\nwant\n%s", after, before)
	}
}

// TestImportHostile: nothing that a file says leads out of its folder.
func TestImportHostile(t *testing.T) {
	s := start(t, &pod{})
	bring := func(manifest string, entries ...tar.Header) error {
		var file bytes.Buffer
		z, err := zstd.NewWriter(&file)
		if err != nil {
			t.Fatal(err)
		}
		w := tar.NewWriter(z)
		if err := addFile(w, manifestName, []byte(manifest)); err != nil {
			t.Fatal(err)
		}
		for i := range entries {
			if err := w.WriteHeader(&entries[i]); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), z.Close()); err != nil {
			t.Fatal(err)
		}
		_, err = s.Import(t.Context(), &file)
		return err
	}
	const manifest = `{"name":"small","version":"1","title":"Small","python":"3.13"}`
	for name, entries := range map[string][]tar.Header{
		"up":             {{Name: "environment/../../up", Typeflag: tar.TypeReg}},
		"absolute":       {{Name: "/etc/up", Typeflag: tar.TypeReg}},
		"a device":       {{Name: "environment/null", Typeflag: tar.TypeChar}},
		"a hard link":    {{Name: "environment/passwd", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}},
		"the manifest":   {{Name: "environment/environment.json", Typeflag: tar.TypeReg}},
		"through a link": {{Name: "environment/tmp", Typeflag: tar.TypeSymlink, Linkname: s.cfg.Dir}, {Name: "environment/tmp/up", Typeflag: tar.TypeReg}},
		"own files":      {{Name: "environment/bin", Typeflag: tar.TypeSymlink, Linkname: s.cfg.Dir}},
	} {
		if err := bring(manifest, entries...); err == nil || strings.Contains(err.Error(), "Python") {
			t.Errorf("%s: %v", name, err)
		}
		for _, written := range []string{"up", "own-kernel"} {
			if _, err := os.Lstat(filepath.Join(s.cfg.Dir, written)); err == nil {
				t.Errorf("%s led out", name)
			}
		}
	}
	for _, python := range []string{"", "../../..", "3.13/x", `3.13\n`, "2.7", "3.131"} {
		if err := bring(strings.Replace(manifest, "3.13", python, 1)); err == nil || !strings.Contains(err.Error(), "is no version of Python") {
			t.Errorf("Python %q: %v", python, err)
		}
	}
	if err := bring(manifest); err != nil {
		t.Errorf("one that is not hostile: %v", err)
	}
}

func TestCacheIsBounded(t *testing.T) {
	s := start(t, &pod{}, func(c *Config) { c.CacheBytes = 2500 })
	for i, name := range []string{"old", "older", "new"} {
		file := filepath.Join(s.cache(), name)
		if err := os.WriteFile(file, make([]byte, 1000), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Duration(-10+[]int{1, 0, 2}[i]) * time.Hour)
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	create(t, s, humanize) // downloads another 1000 bytes
	var names []string
	entries, err := os.ReadDir(s.cache())
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got := strings.Join(names, " "); err != nil || got != "downloaded new" {
		t.Errorf("the cache keeps %s, %v", got, err)
	}
}

func TestLeastCUDA(t *testing.T) {
	for _, c := range []struct{ name, version, want string }{
		{"nvidia-cuda-runtime-cu12", "12.8.90", "12.0"}, {"nvidia-cuda-runtime", "13.0.48", "13.0"}, {"nvidia-cuda-runtime-cu10", "10.2.89", "10.2"}, {"numpy", "2.1", ""},
		{"nvidia-cuda-runtime-cu12", "odd", ""},
	} {
		if got := leastCUDA([]Package{{Name: "x", Version: "1"}, {Name: c.name, Version: c.version}}); got != c.want {
			t.Errorf("%s %s needs CUDA %q, want %q", c.name, c.version, got, c.want)
		}
	}
}

func TestCatalogue(t *testing.T) {
	list, err := Catalogue()
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	for _, o := range list {
		var w Wanted
		err := o.Take(&w)
		left := strings.NewReplacer(debLine, "", manLine, "", "# programs: everywhere", "").Replace(w.Requirements)
		if err != nil || checkName(w.Name) != nil || w.Title == "" || o.Note == "" || strings.TrimSpace(left) == "" || strings.Contains(left, "#") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := Offered("matlab"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "cuda, data-science, programs, pytorch, r") {
		t.Errorf("what is not offered: %v", err)
	}
}

func TestOtherVersionsStay(t *testing.T) {
	s := start(t, &pod{})
	create(t, s, humanize)
	second := humanize
	second.Version = "2"
	create(t, s, second)
	if _, err := s.Remove(t.Context(), "small/1", false); err != nil {
		t.Fatal(err)
	}
	if list, err := s.List(); err != nil || len(list) != 1 || list[0].ID() != "small/2" {
		t.Errorf("left are %v, %v", list, err)
	}
}
