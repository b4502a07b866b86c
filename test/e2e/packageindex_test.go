//go:build e2e

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

// Where the internet of the test hosts has packages.
const (
	indexURL  = "http://203.0.113.7:8090/simple"
	mirrorURL = "http://203.0.113.7:8090/debian"
)

const environmentsConfig = `
lab: Environments lab
gpus: simulated
simulatedGPUs: 1
environments:
  index: ` + indexURL + `
  debian: ` + mirrorURL + `
packages:
  index: ` + indexURL + `
models:
  hub: http://203.0.113.7:8091
`

// readyIndex is a ready lab whose packages come from an index of its own.
func readyIndex(t *testing.T) *appliance {
	t.Helper()
	a := ready(t, environmentsConfig)
	a.index = new(packageIndex)
	a.index.open(t, a)
	return a
}

// packageIndex is a small PyPI: the real files, with their real hashes.
type packageIndex struct {
	root   string
	server *exec.Cmd
	log    string // file with what it was asked
}

// open starts it on the visitor's computer, which stands for the internet. It ends with the lab's life.
func (x *packageIndex) open(t *testing.T, a *appliance) {
	wheels := testWheels(t, "environment")
	x.root = a.lifeOf.TempDir()
	if n := x.add(t, wheels); n < 20 {
		t.Fatalf("the packages for the test: %d", n)
	}
	x.add(t, testWheels(t, olderPythonLock))
	x.log = filepath.Join(a.lifeOf.TempDir(), "asked")
	x.start(t, a)
	a.lifeOf.Cleanup(x.close)
}

func (x *packageIndex) start(t *testing.T, a *appliance) {
	t.Helper()
	x.server = a.VisitorCommand(a.ctx, "python3", "-m", "http.server", "--directory", x.root, "--bind", "203.0.113.7", "8090")
	log, err := os.OpenFile(x.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	x.server.Stderr = log
	if err := x.server.Start(); err != nil {
		t.Fatal(err)
	}
}

// asked is how often a file of a package was fetched.
func (x *packageIndex) asked(t *testing.T, project string) int {
	t.Helper()
	log, err := os.ReadFile(x.log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(log), `"GET /simple/`+project+"/"+project+"-")
}

// add offers the wheels of a folder, beside what is there already, and says how many they are.
func (x *packageIndex) add(t *testing.T, wheels string) int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(wheels, "*.whl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if err := x.addWheel(file); err != nil {
			t.Fatal(err)
		}
	}
	return len(files)
}

func (x *packageIndex) addWheel(file string) error {
	base := filepath.Base(file)
	project, _, _ := strings.Cut(base, "-")
	dir := filepath.Join(x.root, "simple", strings.ReplaceAll(strings.ToLower(project), "_", "-"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.Symlink(file, filepath.Join(dir, base)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	wheel, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = wheel.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, wheel); err != nil {
		return err
	}
	page, err := os.OpenFile(filepath.Join(dir, "index.html"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(page, "<a href=\"%s#sha256=%x\">%s</a>\n", html.EscapeString(base), sum.Sum(nil), html.EscapeString(base))
	return errors.Join(err, page.Close())
}

func (x *packageIndex) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := x.server.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func (x *packageIndex) close() {
	if x.server != nil && x.server.ProcessState == nil {
		_ = x.server.Process.Kill()
		_ = x.server.Wait()
	}
}

// olderPythonLock names a lock as gpulab wrote it when the notebooks' image had Python 3.11 alone.
const olderPythonLock = "environment-3.11"

// testWheels are the packages of a lock in testdata, from PyPI once and then from the user's cache.
func testWheels(t *testing.T, name string) string {
	t.Helper()
	lock, err := os.ReadFile(filepath.Join("testdata", name+".lock"))
	if err != nil {
		t.Fatal(err)
	}
	return wheels(t, string(lock), "--no-deps", "--require-hashes")
}

// wheels are packages from PyPI, fetched once and then from the user's cache.
func wheels(t *testing.T, requirements string, options ...string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	python := "3.11" // locks without a line that names it
	if _, line, found := strings.Cut(requirements, "# python: "); found || !strings.Contains(requirements, "--hash") {
		python = "3.13"
		if found {
			python, _, _ = strings.Cut(line, "\n")
		}
	}
	sum := sha256.Sum256([]byte(python + "\n" + requirements))
	dir := filepath.Join(cache, "gpulab", "test-wheels-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	venv := t.TempDir() // which has pip, where the system has none
	part, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".part-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(part)
	list := filepath.Join(venv, "requirements.txt")
	if err := os.WriteFile(list, []byte(requirements), 0o600); err != nil {
		t.Fatal(err)
	}
	args := slices.Concat([]string{venv + "/bin/python3", "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--python-version", python, "--implementation", "cp",
		"--abi", "cp" + strings.ReplaceAll(python, ".", ""), "--abi", "abi3", "--abi", "none", "--platform", "manylinux2014_x86_64", "--platform", "manylinux2010_x86_64", "--platform", "manylinux1_x86_64"}, options)
	for glibc := 5; glibc <= 41; glibc++ {
		args = append(args, "--platform", fmt.Sprintf("manylinux_2_%d_x86_64", glibc))
	}
	args = append(args, "--requirement", list, "--dest", part)
	for _, command := range [][]string{{"python3", "-m", "venv", venv}, args} {
		if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("the packages for this test come from PyPI, once: %v\n%s", err, out)
		}
	}
	if err := os.Rename(part, dir); err != nil {
		if _, there := os.Stat(dir); there != nil { // another test was faster
			t.Fatal(err)
		}
	}
	return dir
}

// addDebs offers the packages of Debian that requirements name: they come from Debian once, and then from the user's
// cache.
func (x *packageIndex) addDebs(t *testing.T, requirements string) {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(requirements) {
		words := strings.Fields(line)
		if len(words) != 4 || words[1] != "deb:" && words[1] != "man:" {
			continue
		}
		archive := "debian"
		if strings.HasPrefix(words[2], "pool/updates/") {
			archive = "debian-security"
		}
		kept, offered := filepath.Join(cache, "gpulab", "test-debs", words[3]+".deb"), filepath.Join(x.root, archive, words[2])
		if _, err := os.Stat(kept); err != nil {
			if err := download("https://deb.debian.org/"+archive+"/"+words[2], kept); err != nil {
				t.Fatalf("the packages for this test come from Debian, once: %v", err)
			}
		}
		err := os.MkdirAll(filepath.Dir(offered), 0o755)
		if err := errors.Join(err, os.Symlink(kept, offered)); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
	}
}

func download(address, to string) error {
	answer, err := http.Get(address)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", address, answer.Status)
	}
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(to, content, 0o644)
}
