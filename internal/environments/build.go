package environments

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

// program builds; it runs in a pod.
//
//go:embed program/build.py
var program string

// ownKernel is what people make kernels of their own with; it is part of every environment.
//
//go:embed program/own-kernel
var ownKernel string

// pipSays is a Python module in every environment. If pip cannot change the environment, it prints what to do instead.
//
//go:embed program/gpulab_pip.py
var pipSays string

// Wanted is an environment that somebody wants.
type Wanted struct {
	Name string `json:"name"`
	// Version is empty for the date.
	Version string `json:"version,omitempty"`
	// Title is empty for the name.
	Title string `json:"title,omitempty"`
	// Requirements is what is to be in it, as a requirements file of pip.
	Requirements string `json:"requirements"`
	// CUDA is the lowest version that the driver has to offer; empty is found out from the packages.
	CUDA string `json:"cuda,omitempty"`
	// Index is where packages come from instead of PyPI, ExtraIndexes where else they may come from: addresses.
	Index        string   `json:"index,omitempty"`
	ExtraIndexes []string `json:"extraIndexes,omitempty"`
	// Debian is the mirror that Debian packages come from, an address.
	Debian string `json:"debian,omitempty"`
	// By is who wants it, for people.
	By string `json:"-"`
}

// Job is what has to be done in a pod.
type Job struct {
	// Environment, Work and Cache are folders of the head that BuildUID may write to, for Target, WorkPath and
	// CachePath in the pod.
	Environment, Work, Cache string
	Target                   string
	Image                    string
	// Command is what runs there.
	Command []string
	// Say is told each line of its output.
	Say func(line string)
}

// Where a pod that builds has its folders.
const (
	WorkPath  = "/work"
	CachePath = "/cache"
)

// Build is a build that is under way, or the last one.
type Build struct {
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Title   string    `json:"title"`
	Began   time.Time `json:"began"`
	Running bool      `json:"running"`
	// Step is what it does, Line the last of what pip said.
	Step string `json:"step,omitempty"`
	Line string `json:"line,omitempty"`
	// Failed says why there is no environment, in a sentence.
	Failed string `json:"failed,omitempty"`
	// By is who began it, "" for root, and Ended when it ended.
	By    string    `json:"by,omitempty"`
	Ended time.Time `json:"ended,omitzero"`

	ending bool // it cleans up
}

// ID is its name and version.
func (b *Build) ID() string { return b.Name + "/" + b.Version }

// Building is the build that is under way or was the last, nil where there was none.
func (s *Service) Building() *Build {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.build == nil {
		return nil
	}
	b := *s.build
	return &b
}

// Said are the last lines of what the build's pod has said, or those of the last build.
func (s *Service) Said() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.said)
}

// Of what a build says, so many lines are kept, of so many bytes each.
const (
	maxSaid     = 300
	maxSaidLine = 400
)

// hear keeps a line of what the build's pod says.
func (s *Service) hear(line string) {
	if len(line) > maxSaidLine {
		line = strings.ToValidUTF8(line[:maxSaidLine], "") + "…"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.said = append(s.said, line); len(s.said) > maxSaid {
		s.said = slices.Delete(s.said, 0, len(s.said)-maxSaid)
	}
}

// update changes what is told of the build.
func (s *Service) update(change func(b *Build)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s.build)
	close(s.changed)
	s.changed = make(chan struct{})
}

// Watch calls fn with the build's state whenever that changes, until the build has ended, ctx has, or fn fails.
func (s *Service) Watch(ctx context.Context, fn func(Build) error) error {
	for {
		s.mu.Lock()
		changed, b := s.changed, s.build
		if b == nil {
			s.mu.Unlock()
			return nil
		}
		now := *b
		s.mu.Unlock()
		if err := fn(now); err != nil || !now.Running {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Cancel ends the build that is under way, and tells whether there was one.
func (s *Service) Cancel() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.build == nil || !s.build.Running || s.cancel == nil {
		return false
	}
	s.cancel()
	return true
}

// debianMirror is where Debian packages come from where nobody says otherwise.
const debianMirror = "https://deb.debian.org/debian"

// An environment's language where its kernel is not Python's.
const (
	languageR = "R"
	// languageNone means no kernel. The environment's programs are on the path of every notebook and job.
	languageNone = "none"
)

// Limits of what somebody asks for, in bytes.
const (
	maxRequirements = 1 << 20
	maxLock         = 4 << 20
)

// complete checks what is wanted, and fills in what was left out.
func (s *Service) complete(n *Wanted) error {
	if err := checkName(n.Name); err != nil {
		return err
	}
	n.Title = strings.TrimSpace(n.Title)
	if n.Title == "" {
		n.Title = n.Name
	}
	if len(n.Title) > 60 || strings.ContainsFunc(n.Title, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return sentence(ErrInvalid, "a title takes up to 60 characters, on one line")
	}
	switch {
	case strings.TrimSpace(n.Requirements) == "":
		return sentence(ErrInvalid, "nothing is asked for: name at least one package, such as numpy")
	case len(n.Requirements) > maxRequirements:
		return sentence(ErrInvalid, "the requirements are larger than 1 MiB")
	case n.CUDA != "" && !cudaForm.MatchString(n.CUDA):
		return sentence(ErrInvalid, "%q is no version of CUDA; write it as 12.4", n.CUDA)
	}
	for _, index := range append([]string{n.Index}, n.ExtraIndexes...) {
		if err := CheckIndex(index); err != nil {
			return err
		}
	}
	if err := CheckMirror(n.Debian); err != nil {
		return err
	}
	if n.Version == "" {
		n.Version = s.freeVersion(n.Name, time.Now().Format("2006-01-02"))
	}
	if err := checkVersion(n.Version); err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(s.ready(), n.Name, n.Version)); err == nil {
		return sentence(ErrExists, "there is an environment %s/%s already; choose another version, or remove it first",
			n.Name, n.Version)
	}
	return nil
}

// freeVersion is a date, or one with a number after it.
func (s *Service) freeVersion(name, date string) string {
	for n, version := 2, date; ; n++ {
		if _, err := os.Lstat(filepath.Join(s.ready(), name, version)); err != nil {
			return version
		}
		version = date + "." + strconv.Itoa(n)
	}
}

// CheckIndex says what is wrong with an index's address; "" is PyPI's.
func CheckIndex(index string) error {
	return checkAddress(index, "an index", "https://pypi.org/simple")
}

// CheckMirror says what is wrong with the address of a mirror of Debian; "" is Debian's own.
func CheckMirror(mirror string) error {
	return checkAddress(mirror, "a mirror of Debian", debianMirror)
}

// CheckHub says what is wrong with the address of a hub of models; "" is Hugging Face's.
func CheckHub(hub string) error {
	return checkAddress(hub, "a hub of models", "https://huggingface.co")
}

func checkAddress(address, of, like string) error {
	if address == "" {
		return nil
	}
	// First of all: what follows shows the address.
	if strings.Contains(address, "@") {
		return sentence(ErrInvalid, "the address of %s may not hold a name or a password: it would be in logs", of)
	}
	if u, err := url.Parse(address); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return sentence(ErrInvalid, "%q is no address of %s; write it like %s", address, of, like)
	}
	return nil
}

// These begin a line of requirements: for a Debian package, and for the manual pages of one alone.
const (
	debLine = "# deb: "
	manLine = "# man: "
)

// Shown is what was asked for as people read it: Debian packages are counted.
func Shown(requirements string) string {
	var kept strings.Builder
	debs, manuals := 0, 0
	for line := range strings.Lines(requirements) {
		switch {
		case strings.HasPrefix(line, debLine):
			debs++
		case strings.HasPrefix(line, manLine):
			manuals++
		default:
			kept.WriteString(line)
		}
	}
	text := kept.String()
	if debs+manuals == 0 {
		return text
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	if debs > 0 {
		text += fmt.Sprintf("# Packages of Debian: %d\n", debs)
	}
	if manuals > 0 {
		text += fmt.Sprintf("# Manual pages of further packages: %d\n", manuals)
	}
	return text
}

// options are what pip is told of indexes.
func (n *Wanted) options() []string {
	var list []string
	trust := func(index string) {
		// Somebody wrote http on purpose. What was downloaded is held against the lock all the same.
		if u, err := url.Parse(index); err == nil && u.Scheme == "http" {
			list = append(list, "--trusted-host", u.Host)
		}
	}
	if n.Index != "" {
		list = append(list, "--index-url", n.Index)
		trust(n.Index)
	}
	for _, index := range n.ExtraIndexes {
		list = append(list, "--extra-index-url", index)
		trust(index)
	}
	return list
}

// Start begins a build that goes on when who asked has gone; Watch tells of it. built hears of the environment when it
// is there, before Watch does.
func (s *Service) Start(ctx context.Context, n Wanted, built func(Environment)) (Build, error) {
	begun := make(chan error, 1)
	go func() {
		_, err := s.create(s.ctx, ctx, n, begun, built)
		if err != nil {
			s.cfg.Log.Warn("an environment was not built", "environment", n.Name, "err", err)
		}
	}()
	if err := <-begun; err != nil {
		return Build{}, err
	}
	return *s.Building(), nil
}

// Create builds an environment, until ctx ends. Watch tells how far it is.
func (s *Service) Create(ctx context.Context, n Wanted) (Environment, error) {
	return s.create(ctx, ctx, n, make(chan error, 1), func(Environment) {})
}

// create builds while ctx lasts; asking is of who waits for its beginning.
func (s *Service) create(ctx, asking context.Context, n Wanted, begun chan<- error,
	built func(Environment)) (e Environment, err error) {
	done, err := s.begin(asking, &n)
	if err != nil {
		begun <- err
		return e, err
	}
	defer done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.build = &Build{
		Name: n.Name, Version: n.Version, Title: n.Title, Began: time.Now(), Running: true, Step: "starting a pod", By: n.By,
	}
	s.cancel, s.said = cancel, nil
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	begun <- nil
	context.AfterFunc(ctx, func() { s.update(func(b *Build) { b.ending = b.Running }) })
	e, err = s.make(ctx, n)
	if err != nil && ctx.Err() != nil {
		err = errors.New("it was ended before it was done; nothing of it is left")
	}
	// Whoever gave up must not keep what is half done.
	err = errors.Join(err, s.empty(context.WithoutCancel(ctx)), s.trimCache())
	if err == nil {
		built(e)
	}
	s.update(func(b *Build) {
		b.Running, b.ending, b.Step, b.Line, b.Ended = false, false, "", "", time.Now()
		if err != nil {
			b.Failed = err.Error()
		}
	})
	return e, err
}

func (s *Service) begin(ctx context.Context, n *Wanted) (func(), error) {
	if err := s.complete(n); err != nil {
		return nil, err
	}
	if s.cfg.Refusal != nil {
		if why := s.cfg.Refusal(); why != "" {
			return nil, sentence(ErrFull, "%s", why)
		}
	}
	done, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.complete(n); err != nil { // again: it may have come meanwhile
		done()
		return nil, err
	}
	return done, nil
}

// make does the work: a pod fills a folder, which then becomes the environment in one step.
func (s *Service) make(ctx context.Context, n Wanted) (e Environment, err error) {
	place := filepath.Join(s.building(), n.Name+"."+n.Version)
	env, work := filepath.Join(place, "environment"), filepath.Join(place, "work")
	for _, dir := range []string{place, env, work} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return e, err
		}
	}
	if err := os.WriteFile(filepath.Join(work, "requirements.txt"), []byte(n.Requirements), 0o644); err != nil {
		return e, err
	}
	for _, dir := range []string{env, work, s.cache()} {
		if err := os.Chown(dir, BuildUID, BuildUID); err != nil {
			return e, err
		}
	}
	e = Environment{
		Name: n.Name, Version: n.Version, Title: n.Title, Asked: n.Requirements, CUDA: n.CUDA, Image: s.cfg.Image(),
	}
	reason := ""
	job := Job{
		Environment: env, Work: work, Cache: s.cache(), Target: e.Path(), Image: e.Image,
		Command: append([]string{"/usr/bin/python3", "-I", "-c", program, e.Path(), WorkPath, CachePath,
			cmp.Or(strings.TrimSuffix(n.Debian, "/"), debianMirror)}, n.options()...),
		Say: func(line string) {
			step, isStep := strings.CutPrefix(line, "@ ")
			if why, failed := strings.CutPrefix(line, "! "); failed {
				reason = why
			}
			s.hear(strings.TrimPrefix(line, "@ "))
			s.update(func(b *Build) {
				if isStep {
					b.Step, b.Line = step, ""
				} else {
					b.Line = line
				}
			})
		},
	}
	if err := s.cfg.Run(ctx, job); err != nil {
		if reason != "" {
			return e, fmt.Errorf("%s was not built: %s", e.ID(), strings.TrimSuffix(reason, "."))
		}
		return e, fmt.Errorf("%s was not built: %w", e.ID(), err)
	}
	if err := ctx.Err(); err != nil {
		return e, err
	}
	s.update(func(b *Build) { b.Step, b.Line = "putting it in place", "" })
	if err := e.describe(work, env); err != nil {
		return e, err
	}
	return e, s.publish(&e, env)
}

// describe takes over what the pod says of what it has built, and completes the environment. Whatever it left is
// looked at as if it were an enemy's.
func (e *Environment) describe(work, env string) error {
	from, err := os.OpenRoot(work)
	if err != nil {
		return err
	}
	defer from.Close()
	lock, err := readFile(from, "lock.txt", maxLock)
	if err != nil {
		return fmt.Errorf("the lock: %w", err)
	}
	found, err := readFile(from, "packages.json", maxManifest)
	if err != nil {
		return fmt.Errorf("the list of packages: %w", err)
	}
	var list struct {
		Python, Language string
		Packages         []Package
	}
	if err := json.Unmarshal(found, &list); err != nil {
		return fmt.Errorf("the list of packages: %w", err)
	}
	sum := sha256.Sum256(lock)
	e.Language, e.Python = list.Language, list.Python
	if err := errors.Join(checkLanguage(e.Language), e.checkPython()); err != nil {
		return err
	}
	e.Packages, e.LockSHA256, e.Built = list.Packages, hex.EncodeToString(sum[:]), time.Now().UTC().Truncate(time.Second)
	if e.CUDA == "" {
		e.CUDA = leastCUDA(e.Packages)
	}
	to, err := os.OpenRoot(env)
	if err != nil {
		return err
	}
	defer to.Close()
	return putFile(to, ownFile{lockName, string(lock), 0o644})
}

// ownFile is a file that gpulab puts into an environment.
type ownFile struct {
	name, content string
	mode          fs.FileMode
}

// putOwnFiles puts gpulab's own programs into an environment's folder, or replaces those of an earlier gpulab.
func (e *Environment) putOwnFiles(dir string) error {
	if !e.HasKernel() {
		return nil
	}
	folder, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer folder.Close()
	packages := path.Join("lib", "python"+e.Python, "site-packages")
	for _, f := range []ownFile{
		{"bin/own-kernel", ownKernel, 0o755},
		{path.Join(packages, "gpulab_pip.py"), pipSays, 0o644},
		{path.Join(packages, "gpulab_pip.pth"), "import gpulab_pip\n", 0o644},
	} {
		if err := putFile(folder, f); err != nil {
			return err
		}
	}
	return nil
}

// putFile replaces a file in one step, unless it is there as it should be. It does not write through links: an
// environment's folder is untrusted input.
func putFile(folder *os.Root, f ownFile) error {
	info, err := folder.Lstat(f.name)
	if err == nil && info.Mode() == f.mode {
		if now, err := readFile(folder, f.name, maxManifest); err == nil && string(now) == f.content {
			return nil
		}
	}
	if err := folder.MkdirAll(path.Dir(f.name), 0o755); err != nil {
		return err
	}
	fresh := path.Join(path.Dir(f.name), ".gpulab-new")
	if err := folder.RemoveAll(fresh); err != nil {
		return err
	}
	if err := folder.WriteFile(fresh, []byte(f.content), f.mode); err != nil {
		return err
	}
	if err := folder.Chmod(fresh, f.mode); err != nil {
		return err
	}
	if info != nil && info.IsDir() {
		if err := folder.RemoveAll(f.name); err != nil {
			return err
		}
	}
	return folder.Rename(fresh, f.name)
}

// lockName is the file in an environment that says what it was built from.
const lockName = "requirements.lock"

// leastCUDA is what the driver has to offer for the CUDA libraries among the packages: from CUDA 11 on those of one
// major version work with all drivers for it, see "CUDA Compatibility", chapter "Minor Version Compatibility",
// https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
func leastCUDA(packages []Package) string {
	for _, p := range packages {
		if p.Name != "nvidia-cuda-runtime" && !strings.HasPrefix(p.Name, "nvidia-cuda-runtime-cu") {
			continue
		}
		major, rest, _ := strings.Cut(p.Version, ".")
		minor, _, _ := strings.Cut(rest, ".")
		if n, err := strconv.Atoi(major); err == nil && n >= 11 {
			return major + ".0"
		} else if err == nil && cudaForm.MatchString(major+"."+minor) {
			return major + "." + minor
		}
	}
	return ""
}

// publish gives a folder that is complete its place: first nobody may change it any more, then it has its name, then
// its kernel appears. Cut off in between, Run finishes it or takes it away.
func (s *Service) publish(e *Environment, dir string) error {
	if !e.HasKernel() {
		if _, err := programsIn(dir); err != nil {
			return err
		}
	}
	if err := e.putOwnFiles(dir); err != nil {
		return err
	}
	size, err := seal(dir)
	if err != nil {
		return err
	}
	e.Size, e.Default = size, false
	data, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(dir, manifestName), data, 0o644); err != nil {
		return err
	}
	// All that was written survives a power cut before it has its name.
	if err := s.sync(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.folder(e)), 0o755); err != nil {
		return err
	}
	if err := os.Rename(dir, s.folder(e)); err != nil {
		return err
	}
	defer s.changes.Add(1)
	if !e.HasKernel() {
		return s.linkPrograms(nil)
	}
	return s.addKernel(e)
}

// sync writes to the disk what is still in memory of the folder's file system, and of
// no other: one of the network may be away.
func (s *Service) sync() error {
	dir, err := os.Open(s.cfg.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Syncfs(int(dir.Fd()))
}

// seal makes everything in a folder root's, for all to read and none to write, and counts its bytes on disk.
func seal(dir string) (size int64, err error) {
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if err := os.Lchown(name, 0, 0); err != nil {
			return err
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			size += stat.Blocks * 512
		}
		switch mode := info.Mode(); {
		case mode&fs.ModeSymlink != 0:
			return nil
		case mode.IsDir():
			return os.Chmod(name, 0o755)
		case mode.IsRegular():
			return os.Chmod(name, 0o444|mode.Perm()&0o111|0o200)
		}
		return fmt.Errorf("%s is neither a file nor a folder", d.Name())
	})
	return size, err
}

func (s *Service) kernels() string { return filepath.Join(s.ready(), "kernels") }

// EnvironmentVariable tells of a process, by NAME/VERSION, of which environment it is.
const EnvironmentVariable = "GPULAB_ENVIRONMENT"

// programs is the folder of links that the image of notebooks has on its path. No environment can have its name.
func (s *Service) programs() string { return filepath.Join(s.ready(), ".bin") }

// maxProgramsOnPath is how many programs one environment may put on everybody's path.
const maxProgramsOnPath = 10_000

// programsIn lists the programs in the folder of an environment without a kernel. It does not trust the folder: whoever
// built the environment, or wrote the file that it was imported from, decided what is there.
func programsIn(dir string) ([]string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	info, err := root.Lstat("bin")
	if err == nil && !info.IsDir() {
		err = errors.New("bin is not a folder")
	}
	if err != nil {
		return nil, sentence(ErrInvalid, "it has no programs: %v", err)
	}
	bin, err := root.Open("bin")
	if err != nil {
		return nil, err
	}
	defer bin.Close()
	entries, err := bin.ReadDir(maxProgramsOnPath + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var programs []string
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			programs = append(programs, e.Name())
		}
	}
	if len(entries) > maxProgramsOnPath {
		return nil, sentence(ErrInvalid, "its folder bin has more than %d entries, the most that is allowed",
			maxProgramsOnPath)
	}
	if len(programs) == 0 {
		return nil, sentence(ErrInvalid, "it has no programs: no file in its folder bin can be executed")
	}
	return programs, nil
}

// linkPrograms puts the programs of environments without a kernel on everybody's path, from the newest version of each.
// It leaves out the environment without, which is about to be removed.
func (s *Service) linkPrograms(without *Environment) error {
	list, err := s.List()
	if err != nil {
		return err
	}
	want := map[string]string{} // where a link leads, by its name
	var last string
	for i := range list {
		e := &list[i]
		if e.HasKernel() || e.Name == last || without != nil && without.ID() == e.ID() {
			continue
		}
		last = e.Name // the newest version is the first
		programs, err := programsIn(s.folder(e))
		if err != nil {
			s.cfg.Log.Warn("the programs of an environment cannot be put on the path", "environment", e.ID(), "err", err)
		}
		for _, p := range programs {
			if _, taken := want[p]; !taken {
				want[p] = filepath.Join("..", e.Name, e.Version, "bin", p)
			}
		}
	}
	there, err := os.ReadDir(s.programs())
	if err != nil {
		return err
	}
	for _, link := range there {
		path := filepath.Join(s.programs(), link.Name())
		if to, err := os.Readlink(path); err == nil && to == want[link.Name()] {
			delete(want, link.Name())
		} else if _, wanted := want[link.Name()]; !wanted {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	for name, to := range want {
		// Replaced in one step: somebody may be calling it.
		fresh := filepath.Join(s.building(), "link")
		_ = os.Remove(fresh)
		if err := errors.Join(os.Symlink(to, fresh), os.Rename(fresh, filepath.Join(s.programs(), name))); err != nil {
			return err
		}
	}
	return nil
}

// addKernel makes Jupyter find the environment. What is there already is left.
func (s *Service) addKernel(e *Environment) error {
	argv, language := []string{path.Join(e.Path(), "bin/python3"), "-Xfrozen_modules=off", "-m", "ipykernel_launcher",
		"-f", "{connection_file}"}, "python"
	if e.Language == languageR {
		argv, language = []string{path.Join(e.Path(), "bin/R"), "--slave", "-e", "IRkernel::main()", "--args",
			"{connection_file}"}, "R"
	}
	spec, err := json.MarshalIndent(map[string]any{
		"argv":         argv,
		"display_name": e.Words(),
		"language":     language,
		// What cells call finds the environment's programs first.
		"env": map[string]string{
			"PATH": path.Join(e.Path(), "bin") + ":${PATH}", "VIRTUAL_ENV": e.Path(), EnvironmentVariable: e.ID(),
		},
		"metadata": map[string]any{"debugger": language == "python"},
	}, "", "  ")
	if err != nil {
		return err
	}
	_, err = atomicfile.Update(filepath.Join(s.kernels(), e.Kernel(), "kernel.json"), spec, 0o644, 0o755)
	return err
}

// trimCache deletes what was downloaded longest ago, until the rest is small enough.
func (s *Service) trimCache() error {
	root, err := os.OpenRoot(s.cache())
	if err != nil {
		return err
	}
	defer root.Close()
	type file struct {
		name string
		size int64
		at   time.Time
	}
	var files []file
	var sum int64
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		files, sum = append(files, file{name, info.Size(), info.ModTime()}), sum+info.Size()
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(files, func(a, b file) int { return a.at.Compare(b.at) })
	for _, f := range files {
		if sum <= s.cfg.CacheBytes {
			break
		}
		if err := root.Remove(f.name); err != nil {
			return err
		}
		sum -= f.size
	}
	return nil
}
