// Package environments keeps the lab's environments: Python with PyTorch, say, that every notebook has as a kernel
// and nobody can change. An environment is a virtual environment made by the notebooks' own Python, from a lock, in
// a pod; it lies in a folder of its own, which all notebooks mount read-only, so it takes its room once.
//
// What is on disk is all there is: an environment is there when its folder and its kernel have their names, which
// they get at the very end. A build that was killed leaves nothing that anybody sees, and is cleaned away.
//
// Package ctl and cmd/gpulab may import it.
package environments

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpulab/gpulab/internal/atomicfile"
	"github.com/gpulab/gpulab/internal/beneath"
)

// MountPath is where notebooks see the environments. Virtual environments name it in their files: it can never
// change.
const MountPath = "/opt/gpulab/environments"

// BuildUID is the user of the pod that builds: nobody's, neither a person's nor a shared folder's group.
const BuildUID = 65000

// Errors that callers tell apart; those that are returned are sentences around them.
var (
	ErrNotFound = errors.New("no such environment")
	ErrExists   = errors.New("environment exists")
	ErrBusy     = errors.New("environments are being changed")
	ErrInUse    = errors.New("environment in use")
	ErrInvalid  = errors.New("cannot be an environment")
	// ErrUnusable is of what no GPU of the lab could be used with; whoever knows GPUs says so.
	ErrUnusable = errors.New("no GPU can be used with the environment")
	ErrFull     = errors.New("no room for environments")
)

// Error is a sentence for people around one of the errors above.
type Error struct {
	kind error
	text string
}

func (e *Error) Error() string { return e.text }

// Unwrap tells what kind of error it is.
func (e *Error) Unwrap() error { return e.kind }

func sentence(kind error, format string, args ...any) error {
	return &Error{kind, fmt.Sprintf(format, args...)}
}

// Package is one package of an environment.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Environment is one that is there, whole.
type Environment struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// Title is what people read, such as PyTorch.
	Title string `json:"title"`
	// Python is the version it is made for, as "3.11".
	Python string `json:"python"`
	// Language is what its kernel speaks where that is not Python: "R", or "none" for an environment without a kernel,
	// whose programs every notebook and job has on its path.
	Language string    `json:"language,omitempty"`
	Packages []Package `json:"packages"`
	// Asked is what somebody asked for; the lock is what came of it.
	Asked string `json:"asked"`
	// LockSHA256 is the SHA-256 of the lock, requirements.lock in the environment's folder.
	LockSHA256 string `json:"lockSHA256"`
	// CUDA is the lowest version that the driver has to offer, as "12.0"; empty where it needs none.
	CUDA string `json:"cuda,omitempty"`
	// Image is what it was built in.
	Image string    `json:"image"`
	Built time.Time `json:"built"`
	// Size is in bytes on disk.
	Size int64 `json:"size"`
	// Default says that new notebooks begin with it. It is not part of what is exported.
	Default bool `json:"default,omitempty"`
}

// ID is its name and version, as NAME/VERSION.
func (e *Environment) ID() string { return e.Name + "/" + e.Version }

// Mark tells it from another that was built under the same name and version.
func (e *Environment) Mark() string {
	sum := sha256.Sum256([]byte(e.ID() + " " + e.LockSHA256 + " " + e.Built.UTC().Format(time.RFC3339Nano)))
	return hex.EncodeToString(sum[:8])
}

// Words are what people know it by.
func (e *Environment) Words() string { return e.Title + " (" + e.Version + ")" }

// HasKernel reports whether notebooks show it as a kernel.
func (e *Environment) HasKernel() bool { return e.Language != languageNone }

// Kernel is the name of its kernel. It is unique, also among environments without one: names hold no dot.
func (e *Environment) Kernel() string { return e.Name + "." + e.Version }

// KernelWords says for people which kernel it has.
func (e *Environment) KernelWords() string {
	if !e.HasKernel() {
		return "none; its programs are on the path of every notebook and job"
	}
	return e.Words()
}

// Path is where it lies in notebooks.
func (e *Environment) Path() string { return path.Join(MountPath, e.Name, e.Version) }

var (
	nameForm    = regexp.MustCompile(`^[a-z]([a-z0-9]|-[a-z0-9]){0,29}$`)
	versionForm = regexp.MustCompile(`^[a-z0-9]([._-]?[a-z0-9]){0,29}$`)
	cudaForm    = regexp.MustCompile(`^[0-9]{1,3}(\.[0-9]{1,2})?$`)
)

// taken are folders beside those of the environments.
var taken = []string{"kernels", "config"}

func checkName(name string) error {
	if !nameForm.MatchString(name) || slices.Contains(taken, name) {
		return sentence(ErrInvalid, "%q cannot be an environment's name: that takes up to 30 of a-z, 0-9 and single "+
			"hyphens, with a letter first", name)
	}
	return nil
}

func checkVersion(version string) error {
	if !versionForm.MatchString(version) {
		return sentence(ErrInvalid, "%q cannot be an environment's version: that takes up to 30 of a-z and 0-9, with "+
			"single dots or hyphens between, such as 2.5.1", version)
	}
	return nil
}

// checkLanguage is nil for the languages of a kernel: "" for Python, "R", and "none" for no kernel.
func checkLanguage(language string) error {
	if language != "" && language != languageR && language != languageNone {
		return sentence(ErrInvalid, "its language is %q, which this gpulab does not know", language)
	}
	return nil
}

var pythonForm = regexp.MustCompile(`^3\.[0-9]{1,2}$`)

// checkPython is nil if an environment with a kernel names the Python that it has, such as 3.13.
func (e *Environment) checkPython() error {
	if (e.HasKernel() || e.Python != "") && !pythonForm.MatchString(e.Python) {
		return sentence(ErrInvalid, "%q is no version of Python such as 3.13", e.Python)
	}
	return nil
}

// Config says where environments lie and how they are built.
type Config struct {
	// Dir holds everything here.
	Dir string
	// Run builds in a pod of its own; Stop ends one that an earlier gpulab left behind, and returns once it is gone.
	Run  func(ctx context.Context, job Job) error
	Stop func(ctx context.Context) error
	// Image names what notebooks start from, in which environments are built.
	Image func() string
	// Refusal says why nothing may be written now, such as a full disk; "" where nothing is in the way.
	Refusal func() string
	// CacheBytes is how much of what was downloaded is kept.
	CacheBytes int64
	// Users are who uses an environment right now. Nil knows of nobody.
	Users func() ([]Use, error)
	Log   *slog.Logger
}

// Use is somebody's notebook in which programs of an environment run.
type Use struct {
	Environment string `json:"environment"` // its ID
	Handle      string `json:"handle"`
	Notebook    string `json:"notebook"`
}

// Service keeps environments.
type Service struct {
	cfg Config
	// changing has a token while nothing is changed: building, bringing in and removing come one after another.
	changing chan struct{}
	ctx      context.Context // for what goes on when who asked has gone

	mu     sync.Mutex
	build  *Build
	cancel context.CancelFunc // ends the build that is under way
	said   []string           // the last lines of its pod
	broken map[string]string  // why environments cannot be read, by NAME/VERSION, as last logged
	// waiters are told when the build changes.
	changed chan struct{}
	changes atomic.Uint64
}

// Changes counts what became of the list: another number means that List has something new.
func (s *Service) Changes() uint64 { return s.changes.Load() }

// New makes the folders; Run has to follow.
func New(ctx context.Context, cfg Config) (*Service, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{
		cfg: cfg, changing: make(chan struct{}, 1), ctx: ctx, changed: make(chan struct{}), broken: map[string]string{},
	}
	// Notebooks see what is ready; what is being built is nobody's business.
	for _, dir := range []struct {
		path string
		mode fs.FileMode
	}{{cfg.Dir, 0o755}, {s.ready(), 0o755}, {filepath.Join(s.ready(), "kernels"), 0o755},
		{filepath.Join(s.ready(), "config"), 0o755}, {s.programs(), 0o755}, {s.building(), 0o700}, {s.cache(), 0o700}} {
		if err := os.MkdirAll(dir.path, dir.mode); err != nil {
			return nil, fmt.Errorf("the folder for environments: %w", err)
		}
	}
	return s, nil
}

// Ready is the folder that notebooks mount at MountPath.
func Ready(dir string) string { return filepath.Join(dir, "ready") }

func (s *Service) ready() string    { return Ready(s.cfg.Dir) }
func (s *Service) building() string { return filepath.Join(s.cfg.Dir, "building") }
func (s *Service) cache() string    { return filepath.Join(s.cfg.Dir, "cache") }
func (s *Service) folder(e *Environment) string {
	return filepath.Join(s.ready(), e.Name, e.Version)
}

// Run cleans away what an earlier gpulab left half done; until then nothing is changed. It returns when ctx ends.
func (s *Service) Run(ctx context.Context) error {
	for {
		err := s.clean(ctx)
		if err == nil {
			break
		}
		if ctx.Err() == nil {
			s.cfg.Log.Warn("what an interrupted build of an environment left is still there; trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(10 * time.Second):
		}
	}
	s.changing <- struct{}{}
	<-ctx.Done()
	return nil
}

// clean removes what is half done, and kernels without their environment.
func (s *Service) clean(ctx context.Context) error {
	if s.cfg.Stop != nil {
		if err := s.cfg.Stop(ctx); err != nil {
			return err
		}
	}
	if err := s.empty(ctx); err != nil {
		return err
	}
	list, err := s.List()
	if err != nil {
		return err
	}
	kernels, err := os.ReadDir(s.kernels())
	if err != nil {
		return err
	}
	for _, k := range kernels {
		if !slices.ContainsFunc(list, func(e Environment) bool { return e.HasKernel() && e.Kernel() == k.Name() }) {
			if err := os.RemoveAll(filepath.Join(s.kernels(), k.Name())); err != nil {
				return err
			}
		}
	}
	for i := range list {
		e := &list[i]
		if !e.HasKernel() {
			continue
		}
		// One that was cut off between its folder and its kernel.
		if err := s.addKernel(e); err != nil {
			return err
		}
		if err := e.putOwnFiles(s.folder(e)); err != nil {
			s.cfg.Log.Warn("own-kernel of an environment stays that of an earlier gpulab", "environment", e.ID(), "err", err)
		}
	}
	return s.linkPrograms(nil)
}

// empty deletes what lies in the folder for what is being built.
func (s *Service) empty(ctx context.Context) error {
	entries, err := os.ReadDir(s.building())
	if err != nil {
		return err
	}
	for _, e := range entries {
		// Whoever built it decided what is in it.
		if err := beneath.Delete(ctx, s.building(), e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// take waits for its turn to change something; the function that it returns gives it back.
func (s *Service) take(ctx context.Context) (func(), error) {
	wait := time.Second
	s.mu.Lock()
	if b := s.build; b != nil && b.ending {
		wait = time.Minute // it cleans up
	}
	s.mu.Unlock()
	select {
	case <-s.changing:
		return func() { s.changing <- struct{}{} }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(wait):
	}
	if b := s.Building(); b != nil && b.Running {
		return nil, sentence(ErrBusy, "the environment %s is being built, and one is built at a time; wait for it, or end "+
			"it with `gpulab env cancel`", b.ID())
	}
	return nil, sentence(ErrBusy,
		"another environment is being brought in, taken out or cleaned away; try again in a minute")
}

// manifestName is the file that says what an environment is.
const manifestName = "environment.json"

// List lists every environment that can be read, by name, the newest version first.
func (s *Service) List() ([]Environment, error) {
	list, broken, err := s.list()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, err := range broken {
		if s.broken[id] != err.Error() { // this is asked again and again
			s.cfg.Log.Warn("an environment cannot be read", "environment", id, "err", err)
		}
	}
	clear(s.broken)
	for id, err := range broken {
		s.broken[id] = err.Error()
	}
	return list, err
}

// Whole is List where all can be read, and an error where one cannot.
func (s *Service) Whole() ([]Environment, error) {
	list, broken, err := s.list()
	for id, why := range broken {
		err = errors.Join(err, fmt.Errorf("the environment %s: %w", id, why))
	}
	return list, err
}

// list also says of which, by NAME/VERSION, there is a folder that cannot be read.
func (s *Service) list() (list []Environment, broken map[string]error, err error) {
	list, broken = []Environment{}, map[string]error{}
	chosen, err := s.chosen()
	if err != nil {
		return nil, nil, err
	}
	names, err := os.ReadDir(s.ready())
	if err != nil {
		return nil, nil, fmt.Errorf("the environments: %w", err)
	}
	for _, name := range names {
		if !name.IsDir() || checkName(name.Name()) != nil {
			continue
		}
		versions, err := os.ReadDir(filepath.Join(s.ready(), name.Name()))
		if err != nil {
			return nil, nil, fmt.Errorf("the environments: %w", err)
		}
		for _, version := range versions {
			if !version.IsDir() || checkVersion(version.Name()) != nil {
				continue
			}
			e, err := readManifest(filepath.Join(s.ready(), name.Name(), version.Name()))
			if err == nil && (e.Name != name.Name() || e.Version != version.Name()) {
				err = fmt.Errorf("it says that it is %s", e.ID())
			}
			if err != nil {
				broken[name.Name()+"/"+version.Name()] = err
				continue
			}
			e.Default = e.Kernel() == chosen
			list = append(list, e)
		}
	}
	slices.SortStableFunc(list, func(a, b Environment) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), b.Built.Compare(a.Built))
	})
	return list, broken, nil
}

// maxManifest bounds what is read of a manifest, in bytes; a thousand packages take 60 kB.
const maxManifest = 4 << 20

func readManifest(dir string) (e Environment, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return e, err
	}
	defer root.Close()
	data, err := readFile(root, manifestName, maxManifest)
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return e, fmt.Errorf("%s cannot be read: %w", manifestName, err)
	}
	return e, errors.Join(checkName(e.Name), checkVersion(e.Version))
}

// readFile reads a regular file that is not too large.
func readFile(root *os.Root, name string, most int64) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", name, most)
	}
	return data, err
}

// Get finds an environment by NAME/VERSION, or by its name alone, which means its newest version.
func (s *Service) Get(id string) (Environment, error) {
	list, err := s.List()
	if err != nil {
		return Environment{}, err
	}
	for i := range list {
		if list[i].ID() == id || list[i].Name == id {
			return list[i], nil
		}
	}
	return Environment{}, sentence(ErrNotFound, "there is no environment %s; `gpulab env list` shows those there are", id)
}

// Lock is what an environment was built from, as a requirements file with hashes.
func (s *Service) Lock(e Environment) (string, error) {
	root, err := os.OpenRoot(s.folder(&e))
	if err != nil {
		return "", err
	}
	defer root.Close()
	data, err := readFile(root, lockName, maxLock)
	return string(data), err
}

// Users are who uses an environment right now.
func (s *Service) Users(id string) ([]Use, error) {
	if s.cfg.Users == nil {
		return nil, nil
	}
	all, err := s.cfg.Users()
	if err != nil {
		return nil, fmt.Errorf("who uses environments: %w", err)
	}
	return slices.DeleteFunc(all, func(u Use) bool { return u.Environment != id }), nil
}

// Remove takes an environment away. One in which programs run stays unless force is set: they would fail at the next
// thing that they import.
func (s *Service) Remove(ctx context.Context, id string, force bool) (Environment, error) {
	e, err := s.Get(id)
	if errors.Is(err, ErrNotFound) && force {
		if broken, _ := s.Broken(); slices.Contains(broken, id) {
			e.Name, e.Version, _ = strings.Cut(id, "/")
			return e, s.Discard(ctx, id)
		}
	}
	if err != nil {
		return e, err
	}
	done, err := s.take(ctx)
	if err != nil {
		return e, err
	}
	defer done()
	defer s.changes.Add(1)
	if using, err := s.Users(e.ID()); err != nil && !force {
		return e, err
	} else if len(using) > 0 && !force {
		return e, sentence(ErrInUse, "%s is in use: %s. Their programs would break; ask them to change the kernel or stop "+
			"the notebook, or force it (`--force`)", e.ID(), inWords(using))
	}
	if e.Default {
		if err := s.choose(""); err != nil {
			return e, err
		}
	}
	return e, s.discard(ctx, &e)
}

// Broken are those of which there is a folder that cannot be read, by NAME/VERSION.
func (s *Service) Broken() ([]string, error) {
	_, broken, err := s.list()
	return slices.Sorted(maps.Keys(broken)), err
}

// Discard takes away whatever lies in the place of an environment, by NAME/VERSION,
// also what cannot be read.
func (s *Service) Discard(ctx context.Context, id string) error {
	name, version, _ := strings.Cut(id, "/")
	if err := errors.Join(checkName(name), checkVersion(version)); err != nil {
		return err
	}
	done, err := s.take(ctx)
	if err != nil {
		return err
	}
	defer done()
	defer s.changes.Add(1)
	return s.discard(ctx, &Environment{Name: name, Version: version})
}

// discard: nobody begins with it any more, then it goes at once for everybody, then its room is free.
func (s *Service) discard(ctx context.Context, e *Environment) error {
	if err := os.RemoveAll(filepath.Join(s.kernels(), e.Kernel())); err != nil {
		return err
	}
	if err := s.linkPrograms(e); err != nil {
		return err
	}
	going := filepath.Join(s.building(), "going-"+e.Kernel())
	if err := os.Rename(s.folder(e), going); err != nil {
		return err
	}
	if err := os.Remove(filepath.Dir(s.folder(e))); err != nil && !errors.Is(err, fs.ErrExist) { // others of the name stay
		return err
	}
	// It may be large; who gives up waiting has it removed all the same.
	return s.empty(context.WithoutCancel(ctx))
}

func inWords(using []Use) string {
	var words []string
	for i, u := range using {
		if i == 3 && len(using) > 4 {
			words = append(words, fmt.Sprintf("and %d more", len(using)-i))
			break
		}
		words = append(words, u.Handle+"/"+u.Notebook)
	}
	return strings.Join(words, ", ")
}

// configName is the file in which a notebook's server reads at its start which kernel is the default.
const configName = "jupyter_server_config.json"

type serverConfig struct {
	Kernels struct {
		Default string `json:"default_kernel_name"`
	} `json:"MultiKernelManager"`
}

func (s *Service) configFile() string { return filepath.Join(s.ready(), "config", configName) }

// chosen is the kernel that is the default, "" for the notebooks' own Python.
func (s *Service) chosen() (string, error) {
	data, err := os.ReadFile(s.configFile())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("the default environment: %w", err)
	}
	var c serverConfig
	if err := json.Unmarshal(data, &c); err != nil {
		return "", fmt.Errorf("the default environment: %w", err)
	}
	return c.Kernels.Default, nil
}

func (s *Service) choose(kernel string) error {
	if kernel == "" {
		if err := os.Remove(s.configFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	var c serverConfig
	c.Kernels.Default = kernel
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return atomicfile.Write(s.configFile(), data, 0o644)
}

// SetDefault makes an environment the one that new notebooks begin with; "" the notebooks' own Python. Servers that
// run keep what they had.
func (s *Service) SetDefault(ctx context.Context, id string) (Environment, error) {
	done, err := s.take(ctx)
	if err != nil {
		return Environment{}, err
	}
	defer done()
	defer s.changes.Add(1)
	if id == "" {
		return Environment{}, s.choose("")
	}
	e, err := s.Get(id)
	if err != nil {
		return e, err
	}
	if !e.HasKernel() {
		return e, sentence(ErrInvalid, "%s has no kernel, so notebooks cannot begin with it", e.ID())
	}
	e.Default = true
	return e, s.choose(e.Kernel())
}
