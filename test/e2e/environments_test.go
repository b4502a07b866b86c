//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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
	"time"

	"github.com/gpulab/gpulab/internal/atomicfile"
	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/test/lab"
)

// TestEnvironments is a lab whose notebooks share environments: built from an index of packages, exported, removed,
// and brought back without one.
//
//test:about internal/environments packaging/images/packages assets/environments
func TestEnvironments(t *testing.T) {
	t.Parallel()
	var index packageIndex
	a := ready(t, environmentsConfig)
	index.open(t, a)
	a.WriteFile("/root/small.txt", "humanize==4.9.0\n")
	a.live(t, slices.Concat([]chapter{
		{"an environment", func(t *testing.T, a *appliance) { testEnvironment(t, a, &index) }, true},
		{"a cache of packages", func(t *testing.T, a *appliance) { testPackageCache(t, a, &index) }, false},
		{"a cache of models", func(t *testing.T, a *appliance) { testModelCache(t, a, &index) }, false},
		{"packages of Debian", func(t *testing.T, a *appliance) { testDebianPackages(t, a, &index) }, false},
		{"from the page", func(t *testing.T, a *appliance) { testEnvironmentPage(t, a, &index) }, false},
		{"a build that is cut off", func(t *testing.T, a *appliance) { testCutEnvironment(t, a, &index) }, false},
		{"from a file", func(t *testing.T, a *appliance) { testEnvironmentFile(t, a, &index) }, false},
	}, byHand(t, chapter{"TensorBoard and PyTorch", func(t *testing.T, a *appliance) { testCatalogue(t, a, &index) }, false},
		chapter{"R", func(t *testing.T, a *appliance) { testR(t, a, &index) }, false})))
}

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
	sum := sha256.Sum256([]byte(requirements))
	dir := filepath.Join(cache, "gpulab", "test-wheels-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	venv, part := t.TempDir(), dir+".part" // which has pip, where the system has none
	list := filepath.Join(venv, "requirements.txt")
	if err := os.WriteFile(list, []byte(requirements), 0o600); err != nil {
		t.Fatal(err)
	}
	args := slices.Concat([]string{venv + "/bin/python3", "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp",
		"--abi", "cp311", "--abi", "abi3", "--abi", "none", "--platform", "manylinux2014_x86_64", "--platform", "manylinux2010_x86_64", "--platform", "manylinux1_x86_64"}, options)
	for glibc := 5; glibc <= 36; glibc++ {
		args = append(args, "--platform", fmt.Sprintf("manylinux_2_%d_x86_64", glibc))
	}
	args = append(args, "--requirement", list, "--dest", part)
	for _, command := range [][]string{{"python3", "-m", "venv", venv}, args} {
		if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("the packages for this test come from PyPI, once: %v\n%s", err, out)
		}
	}
	if err := os.Rename(part, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// inEnvironment prints what a kernel runs on.
const inEnvironment = "import humanize, sys; print(humanize.__version__, sys.prefix)"

const smallPlace = "/opt/gpulab/environments/small/1"

// kernels are the kernels that the notebook in a browser offers, the default one first.
func kernels(b *lab.Browser) []string {
	return lab.Evaluate[[]string](b, `async () => {
		const token = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/)?.[1] ?? "";
		const r = await fetch(`+notebookBase+` + "api/kernelspecs", {headers: {"X-XSRFToken": token}});
		if (!r.ok) throw new Error("GET api/kernelspecs: " + r.status + " " + await r.text());
		const specs = await r.json();
		return [specs.default, ...Object.values(specs.kernelspecs).map(k => k.spec.display_name).sort()];
	}`)
}

// testEnvironment: an admin builds one while a notebook runs; its owner gets the kernel without a restart, uses it,
// cannot change it, and makes a kernel of their own on top of it.
func testEnvironment(t *testing.T, a *appliance, _ *packageIndex) {
	b := a.guest.For(t)
	launch(b, "cpu", "Ben's")
	waitJupyterLab(b, guestHandle)

	checkFailure(t, a.Gpulab(a.ctx, "env", "create", "small"), exitUsage, "say what is to be in it")
	checkFailure(t, a.Gpulab(a.ctx, "env", "create", "../small", "-r", "/root/small.txt"), exitFailure, "cannot be an environment's name")
	checkFailure(t, a.Gpulab(a.ctx, "env", "create", "small", "-r", "/root/small.txt", "--cuda", "99.0"), exitFailure, "small needs CUDA 99.0 or newer", "--anyway")
	a.WriteFile("/root/nothing.txt", "there-is-no-such-package==1.0\n")
	checkFailure(t, a.Gpulab(a.ctx, "env", "create", "nothing", "-r", "/root/nothing.txt"), exitFailure, "nothing/", "was not built: ", "there-is-no-such-package")
	if got := a.MustGpulab(a.ctx, "env", "list"); !strings.Contains(got, "No environments yet.") {
		t.Errorf("after builds that failed: %s", got)
	}

	began := time.Now()
	got := a.MustGpulab(a.ctx, "env", "create", "small", "--title", "Small", "--version", "1", "-r", "/root/small.txt")
	t.Logf("built in %s: %s", time.Since(began).Round(time.Second), got)
	if !strings.Contains(got, "small/1 is built:") || !strings.Contains(got, `"Small (1)"`) {
		t.Errorf("env create: %s", got)
	}
	if lock := a.MustGpulab(a.ctx, "env", "show", "--lock", "small"); !strings.Contains(lock, "humanize==4.9.0 --hash=sha256:ce284a76d5b1377fd8836733b983bfb0b76f1aa1c090de2566fcf008d7f6ab16\n") {
		t.Errorf("the lock:\n%s", lock)
	}
	checkFailure(t, a.Gpulab(a.ctx, "env", "create", "small", "--version", "1", "-r", "/root/small.txt"), exitFailure, "there is an environment small/1 already")

	a.eventually(t, "the kernel is there without a restart", func() bool { return strings.Contains(strings.Join(kernels(b), "\n"), "Small (1)") })
	b.Open(hub + "/user/" + guestHandle + "/ben-s/lab")
	b.WaitFor("its card", `document.querySelector('.jp-LauncherCard[data-category="Notebook"][title="Small (1)"]')`)
	b.Pictures("environment-launcher")
	if got := lab.TypeCellIn(b, "Small (1)", inEnvironment); got != "4.9.0 "+smallPlace {
		t.Errorf("the cell printed %q", got)
	}
	b.Pictures("environment-notebook")

	k := &kernel{lab.NewKernelOf(b, "small.1"), b}
	expect(t, "ben", k,
		"P('"+smallPlace+"/x').write_text('x')", "EROFS",
		"P('/opt/gpulab/environments/kernels/mine').mkdir()", "EROFS",
		"os.access('"+smallPlace+"/lib/python3.11/site-packages/humanize/__init__.py', os.W_OK)", "False",
		"P('"+smallPlace+"/bin/own-kernel').owner()", "root",
		"sorted(os.listdir('/opt/gpulab/environments'))", "['config', 'kernels', 'small']",
	)
	ownKernel(t, b, k)

	l := newLaptopFor(t, a, b.Tab(), guestHandle, "launch")
	l.gpulab(t, 9, []string{"run", "--env", "large", "--", "true"}, `This lab has no environment "large". It has small/1.`)
	l.gpulab(t, 0, []string{"run", "--env", "small", "--", "python", "-c", inEnvironment}, "4.9.0 "+smallPlace)

	var list []struct {
		Name, LockSHA256 string
		Packages         []struct{ Name string }
		Users            []string
		Size             int64
	}
	if err := json.Unmarshal([]byte(a.MustGpulab(a.ctx, "env", "list", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || len(list[0].Packages) < 20 || len(list[0].LockSHA256) != 64 || list[0].Size < 1<<20 || strings.Join(list[0].Users, " ") != "ben/ben-s" {
		t.Errorf("env list --json: %+v", list)
	}
	checkFailure(t, a.Gpulab(a.ctx, "env", "remove", "small/1"), exitFailure, "small/1 is in use: ben/ben-s")
	checkFailure(t, a.Gpulab(a.ctx, "env", "remove", "small"), exitUsage, "name the version too")
	if got := a.MustGpulab(a.ctx, "disk"); !strings.Contains(got, "/var/lib/gpulab/environments") {
		t.Errorf("gpulab disk does not tell of it:\n%s", got)
	}
	if log := a.MustGpulab(a.ctx, "audit", "export", "--json"); !strings.Contains(log, `"environment.create"`) {
		t.Error("the audit log does not tell of it")
	}
}

// testPackageCache: what pip has fetched for one is there for all, and while the index is away; nobody can put anything
// into the cache, nor reach anything by it but the index.
func testPackageCache(t *testing.T, a *appliance, index *packageIndex) {
	b := a.guest.For(t)
	l := newLaptopFor(t, a, b.Tab(), guestHandle, "launch")
	const install = `python -m venv /tmp/v && HOME=/tmp /tmp/v/bin/pip install --no-deps inflection && /tmp/v/bin/python -c 'import inflection; print(inflection.pluralize("house"))'`
	l.gpulab(t, 0, []string{"run", "--", "sh", "-c", install}, "houses")
	if n := index.asked(t, "inflection"); n != 1 {
		t.Errorf("for a kernel and a job the index was asked for a package %d times", n)
	}
	index.close()
	l.gpulab(t, 0, []string{"run", "--", "sh", "-c", install}, "houses")

	ask := func(want string, curl ...string) {
		t.Helper()
		l.gpulab(t, 0, append([]string{"run", "--", "curl", "-s", "--retry", "20", "--retry-delay", "1", "--retry-connrefused"}, curl...), want)
	}
	const cache = "http://packages.gpulab-system.svc"
	ask("The lab's cache does not get this from 203.0.113.7:8090", cache+"/simple/never-asked-for/")
	index.start(t, a)
	ask("The package cache takes nothing.", "-T", "/etc/hostname", cache+"/simple/inflection/")
	ask("The package cache knows no such machine.", "-k", cache+"/-/"+lab.Address+"/healthz")
	// Its folder is its own, and no home keeps a second copy.
	if got := strings.TrimSpace(a.MustRun(a.ctx, "stat", "-c", "%u %a", "/var/lib/gpulab/packages")); got != "65001 700" {
		t.Errorf("its folder is of %s", got)
	}
	l.gpulab(t, 0, []string{"run", "--", "sh", "-c", "grep -rl ^PK ~/.cache/pip | wc -l"}, "\n0\n")
	if got := a.MustGpulab(a.ctx, "disk"); !strings.Contains(got, "cache of packages") {
		t.Errorf("gpulab disk does not tell of it:\n%s", got)
	}
}

// testModelCache: a model that a job has got is there for a kernel, and a restricted one for who may have it alone.
func testModelCache(t *testing.T, a *appliance, index *packageIndex) {
	index.add(t, testWheels(t, "hub"))
	log := filepath.Join(t.TempDir(), "asked")
	hub := a.VisitorCommand(a.ctx, "python3", "testdata/hub.py", "203.0.113.7", "8091", log)
	if err := hub.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hub.Process.Kill(); _ = hub.Wait() })
	asked := func(what string) int {
		t.Helper()
		lines, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(lines), what)
	}
	b := a.guest.For(t)
	l := newLaptopFor(t, a, b.Tab(), guestHandle, "launch")
	l.gpulab(t, 0, []string{"run", "--", "sh", "-c", "python -m venv ~/hf && ~/hf/bin/pip install -q huggingface_hub"})

	// Each time into a folder of its own, as everybody's home is.
	get := func(name, token string) string {
		return `rm -rf /tmp/models; HF_HUB_CACHE=/tmp/models HF_TOKEN=` + token + ` ~/hf/bin/python -c 'import hashlib, huggingface_hub as h, pathlib as p
where = p.Path(h.snapshot_download("` + name + `"))
print(sorted(f.name for f in where.iterdir()), hashlib.sha256((where / "model.safetensors").read_bytes()).hexdigest())'`
	}
	whole := fmt.Sprintf("['config.json', 'model.safetensors'] %x", sha256.Sum256(bytes.Repeat(allBytes(), 16<<10)))
	l.gpulab(t, 0, []string{"run", "--", "sh", "-c", get("lab/tiny", "")}, whole)
	k := &kernel{lab.NewKernelOf(b, "small.1"), b}
	if got := k.run(t, fmt.Sprintf("import subprocess; print(subprocess.run(['sh', '-c', %q], capture_output=True, text=True).stdout)", get("lab/tiny", ""))); !strings.Contains(got, whole) {
		t.Errorf("a kernel got %s", got)
	}
	const large = "GET /blob?Signature=s3cret "
	if got := asked(large); got != 1 {
		t.Errorf("for a kernel and a job the hub was asked for a large file %d times", got)
	}
	l.gpulab(t, 1, []string{"run", "--", "sh", "-c", get("lab/gated", "hf_another")}, "Access to this model is restricted")
	l.gpulab(t, 0, []string{"run", "--", "sh", "-c", get("lab/gated", "hf_allowed")}, whole)
	if got := asked(large); got != 1 {
		t.Errorf("for a file that the cache has, the hub was asked %d times", got)
	}
	if asked(large+"Bearer") != 0 || asked("Bearer hf_another") == 0 {
		t.Error("the token goes to the hub, and nowhere else")
	}

	if got := strings.TrimSpace(a.MustRun(a.ctx, "stat", "-c", "%u %a", "/var/lib/gpulab/models")); got != "65001 700" {
		t.Errorf("its folder is of %s", got)
	}
	if got := a.MustGpulab(a.ctx, "disk"); !strings.Contains(got, "cache of models") {
		t.Errorf("gpulab disk does not tell of it:\n%s", got)
	}
	said := a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "logs", "deployment/packages")
	if !strings.Contains(said, "/blob") || strings.Contains(said, "hf_a") || strings.Contains(said, "s3cret") {
		t.Errorf("the log of the cache tells of no download, or a secret:\n%s", said)
	}
	l.gpulab(t, 0, []string{"run", "--", "rm", "-r", "hf"})
}

// allBytes are the 256 bytes.
func allBytes() (all []byte) {
	for i := range 256 {
		all = append(all, byte(i))
	}
	return all
}

// testEnvironmentPage: an admin builds one in the browser and sees how far it is; its kernel is there for others, a job
// is given it on the page, and it is removed where it was made.
func testEnvironmentPage(t *testing.T, a *appliance, index *packageIndex) {
	admin, ben := a.browser.For(t), a.guest.For(t).Tab()
	admin.Open(pages + "/environments")
	admin.WaitText("#environments", "small/1")
	index.signal(t, syscall.SIGSTOP) // the internet is slow
	admin.Fill("Name", "paged")
	admin.Fill("Title", "From the page")
	admin.Fill("Packages", "humanize==4.9.0\n")
	admin.Click("form:has(#requirements)", "Build")
	admin.WaitText("#environment-build", "Building paged/")
	admin.WaitText("#environment-build", "Finding out which packages that takes.")
	admin.Pictures("environments-building")
	index.signal(t, syscall.SIGCONT)
	admin.WaitText("#environment-build", "is built, in")
	admin.WaitText("#environments", "From the page")
	a.eventually(t, "its kernel is there", func() bool { return strings.Contains(strings.Join(kernels(a.guest.For(t)), "\n"), "From the page (") })

	ben.Open(pages + "/jobs")
	ben.Fill("Script", "#!/bin/bash\npython -c '"+inEnvironment+"'\n")
	ben.WaitFor("the environment is offered", `(() => {
		const choice = document.querySelector("#environment"), one = [...choice.options].find(o => o.value.startsWith("paged/"));
		choice.value = one?.value ?? "";
		return choice.value;
	})()`)
	ben.Click("form:has(#script)", "Submit")
	ben.WaitText("#job-log", "4.9.0 /opt/gpulab/environments/paged/")

	admin.Click("#environments", "From the page")
	admin.WaitText("main", "Remove this environment")
	admin.Pictures("environment")
	admin.Click("main", "Remove this environment")
	admin.Click("#confirm", "Remove")
	admin.WaitText("main", "The environment is removed.")
	if got := a.MustGpulab(a.ctx, "env", "list"); strings.Contains(got, "paged/") {
		t.Errorf("env list after it was removed on the page: %s", got)
	}
}

// ownKernel: what somebody adds is in their home, in a kernel of its own, and is there in the next one.
func ownKernel(t *testing.T, b *lab.Browser, k *kernel) {
	t.Helper()
	if got := k.run(t, "!own-kernel mine"); !strings.Contains(got, "The kernel mine is yours") {
		t.Errorf("own-kernel: %s", got)
	}
	mine := &kernel{lab.NewKernelOf(b, "mine"), b}
	got := mine.run(t, "%pip install inflection\nimport inflection, humanize\nprint(humanize.__version__, inflection.__file__)")
	if !strings.HasSuffix(got, "4.9.0 /home/ben/.local/share/gpulab/kernels/mine/lib/python3.11/site-packages/inflection.py") &&
		!strings.HasSuffix(got, "4.9.0 /home/ben/.local/share/gpulab/kernels/mine/lib/python3.11/site-packages/inflection/__init__.py") {
		t.Errorf("in a kernel of one's own: %s", got)
	}
	again := &kernel{lab.NewKernelOf(b, "mine"), b}
	if got := again.run(t, "import inflection; print(inflection.pluralize('kernel'))"); got != "kernels" {
		t.Errorf("in the next kernel: %s", got)
	}
	if a, err := k.try("import inflection"); err != nil || !strings.HasPrefix(a.Error, "ModuleNotFoundError") {
		t.Errorf("in the environment itself: %+v, %v", a, err)
	}
}

// testCatalogue: what the catalogue offers first is what its page says, with the real packages: TensorBoard shows what a
// job has written, and PyTorch computes.
func testCatalogue(t *testing.T, a *appliance, index *packageIndex) {
	cleo := a.guest.For(t).Tab()
	l := newLaptopFor(t, a, cleo, guestHandle, "launch")
	build := func(name string) {
		offer, err := environments.Offered(name)
		if err != nil {
			t.Fatal(err)
		}
		index.add(t, wheels(t, offer.Requirements+"ipykernel\npip\n"))
		began := time.Now()
		t.Log(a.MustGpulab(a.ctx, "env", "create", "--from", name))
		t.Logf("%s is built in %s", name, time.Since(began).Round(time.Second))
	}
	build("tensorboard")
	l.gpulab(t, 0, []string{"run", "--env", "tensorboard", "--", "python", "-c", `
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
w = EventFileWriter("runs/one")
for step in range(20):
    w.add_event(event_pb2.Event(step=step, summary=summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag="the loss", simple_value=1 / (step + 1))])))
w.close()`})
	l.gpulab(t, 0, []string{"service", "tensorboard", "runs", "--wait"}, "ready")
	cleo.Open(pages + "/services")
	cleo.WaitText("#services", "ready")
	cleo.Open(hub + lab.Evaluate[string](cleo, `() => new URL([...document.querySelectorAll("#services a")].find(a => a.href.includes("/service/")).href).pathname`))
	cleo.WaitFor("the curve that the job has written", `document.title === "TensorBoard" && document.body.innerText.includes("the loss")`)
	cleo.Pictures("tensorboard")

	build("pytorch")
	said := l.gpulab(t, 0, []string{"run", "--env", "pytorch", "--", "python", "-c", `
import torch, torchvision
x = torch.arange(6.0).reshape(2, 3)
print("torch", torch.__version__, "torchvision", torchvision.__version__, "CUDA", torch.version.cuda, "product", (x @ x.T).sum().item())`}, "product 83.0")
	t.Log(said)
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
		if len(words) != 4 || words[1] != "deb:" {
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

// jq is a program of Debian, and the libraries that it needs.
const jq = `# deb: pool/updates/main/j/jq/jq_1.6-2.1+deb12u3_amd64.deb c25f3fda201207ed98b1d63686f2d81b9dfeb99f1ab2d1d35fb3f7b6a1c107dc
# deb: pool/updates/main/j/jq/libjq1_1.6-2.1+deb12u3_amd64.deb 5e9a7081ba10ce826f6d3d103aa9b912170c5adc836e2561000733571995dd5b
# deb: pool/main/libo/libonig/libonig5_6.9.8-1_amd64.deb 59ecfce6d88c7c4b09496ce182b3b8303e8e8477664e009b16ae83a09cd12be7
`

// testDebianPackages: their programs are on the environment's path, and what is not the named file is not unpacked.
func testDebianPackages(t *testing.T, a *appliance, index *packageIndex) {
	index.addDebs(t, jq)
	const nothing = "0000000000000000000000000000000000000000000000000000000000000000"
	first, _, _ := strings.Cut(jq, "\n")
	for requirements, why := range map[string]string{
		first[:len(first)-len(nothing)] + nothing:               "is another file than the one that was asked for",
		"# deb: pool/main/../../jq_1_amd64.deb " + nothing:      "names no package of Debian",
		"# deb: pool/main/n/none/none_1_amd64.deb " + nothing:   "cannot be had from " + mirrorURL,
		"# deb: pool/main/n/none/none_1_2_amd64.deb " + nothing: "names no package of Debian",
	} {
		a.WriteFile("/root/debian.txt", requirements+"\n")
		checkFailure(t, a.Gpulab(a.ctx, "env", "create", "query", "-r", "/root/debian.txt"), exitFailure, "was not built", why)
	}
	a.WriteFile("/root/debian.txt", jq)
	a.MustGpulab(a.ctx, "env", "create", "query", "--version", "1", "-r", "/root/debian.txt")
	if lock := a.MustGpulab(a.ctx, "env", "show", "--lock", "query"); !strings.Contains(lock, jq) || !strings.Contains(lock, "ipykernel==") {
		t.Errorf("the lock:\n%s", lock)
	}
	l := newLaptopFor(t, a, a.guest.For(t).Tab(), guestHandle, "launch")
	l.gpulab(t, 0, []string{"run", "--env", "query", "--", "jq", "-n", "6 * 7"}, "42")
	// What was kept of a download is believed no more than the download was.
	a.MustRun(a.ctx, "sh", "-c", "for f in /var/lib/gpulab/environments/cache/debian/*.deb; do echo broken >$f; done")
	a.MustGpulab(a.ctx, "env", "create", "query", "--version", "2", "-r", "/root/debian.txt")
	for _, version := range []string{"1", "2"} {
		a.MustGpulab(a.ctx, "env", "remove", "query/"+version)
	}
}

// testR: the catalogue's R computes in a notebook and in a job, and what somebody installs is in their home.
func testR(t *testing.T, a *appliance, index *packageIndex) {
	offer, err := environments.Offered("r")
	if err != nil {
		t.Fatal(err)
	}
	index.addDebs(t, offer.Requirements)
	began := time.Now()
	t.Log(a.MustGpulab(a.ctx, "env", "create", "--from", "r", "--version", "1"))
	t.Logf("R is built in %s", time.Since(began).Round(time.Second))
	b := a.guest.For(t)
	k := &kernel{lab.NewKernelOf(b, "r.1"), b}
	if got := k.run(t, `suppressMessages(library(tidyverse)); cat(R.version$major, nrow(filter(mtcars, cyl == 4)), .libPaths()[1])`); got != "4 11 /home/ben/R/x86_64-pc-linux-gnu-library/4.2" {
		t.Errorf("the cell printed %q", got)
	}
	b.Open(hub + "/user/" + guestHandle + "/ben-s/lab?reset")
	b.WaitFor("its card", `document.querySelector('.jp-LauncherCard[data-category="Notebook"][title="R (1)"]')`)
	lab.TypeCellIn(b, "R (1)", `print(6 * 7); ggplot2::qplot(wt, mpg, data = mtcars, main = "Weight and use")`)
	b.WaitFor("the plot", `document.querySelector(".jp-OutputArea-output img")`)
	b.Pictures("environment-r")
	l := newLaptopFor(t, a, b.Tab(), guestHandle, "launch")
	l.gpulab(t, 0, []string{"run", "--env", "r", "--", "Rscript", "-e", `
library(data.table)
writeLines(c("# Sum", "", "It is ` + "`r data.table(x = 1:4)[, sum(x)]`" + `."), "sum.Rmd")
rmarkdown::render("sum.Rmd", quiet = TRUE)
cat(grep("It is", readLines("sum.html"), value = TRUE), length(system2("fc-list", stdout = TRUE)) > 0, Sys.timezone())`}, "<p>It is 10.</p> TRUE Etc/UTC")
}

// testCutEnvironment: a build whose command is killed ends; one whose gpulab is killed leaves nothing that anybody
// sees, and runs to its end the next time.
func testCutEnvironment(t *testing.T, a *appliance, index *packageIndex) {
	building := func() bool {
		return strings.Contains(a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "get", "pods", "-o", "name"), "pod/environment-build")
	}
	begin := func() context.CancelFunc {
		ctx, cancel := context.WithCancel(a.ctx)
		command := a.Command(ctx, a.Binary(), "env", "create", "other", "--version", "1", "-r", "/root/small.txt")
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { _ = command.Wait() }()
		a.eventually(t, "it builds", building)
		return cancel
	}
	empty := func() bool { return a.MustRun(a.ctx, "ls", "-A", "/var/lib/gpulab/environments/building") == "" }

	index.signal(t, syscall.SIGSTOP) // the internet is slow
	cancel := begin()
	checkFailure(t, a.Gpulab(a.ctx, "env", "create", "third", "-r", "/root/small.txt"), exitFailure, "other/1 is being built")
	cancel()
	a.eventually(t, "the build ends with its command", func() bool { return !building() && empty() })

	cancel = begin()
	defer cancel()
	if a.Kill(a.ctx, "KILL", "gpulab") == 0 {
		t.Fatal("gpulab does not run")
	}
	if result := a.Gpulab(a.ctx, initArgs...); result.Code != 0 {
		t.Fatalf("init after kill -9: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	a.eventually(t, "what was half done is cleaned away", func() bool { return !building() && empty() })
	if got := a.MustGpulab(a.ctx, "env", "list"); strings.Contains(got, "other") || !strings.Contains(got, "small/1") {
		t.Errorf("after gpulab was killed: %s", got)
	}
	index.signal(t, syscall.SIGCONT)
	a.MustGpulab(a.ctx, "env", "create", "other", "--version", "1", "-r", "/root/small.txt")
	if got := a.MustGpulab(a.ctx, "env", "remove", "other/1"); !strings.Contains(got, "other/1 is removed") {
		t.Errorf("env remove: %s", got)
	}
}

// testEnvironmentFile: out of the lab and in again, without any index; the default one is what a new notebook has.
func testEnvironmentFile(t *testing.T, a *appliance, index *packageIndex) {
	stopAll(t, a, guestHandle)
	a.eventually(t, "the notebook is stopped", func() bool {
		return !strings.Contains(a.MustGpulab(a.ctx, "kubectl", "-n", "user-"+guestHandle, "get", "pods", "-o", "name"), "pod/")
	})
	a.MustGpulab(a.ctx, "env", "export", "small/1", "/root/small.env")
	checkFailure(t, a.Gpulab(a.ctx, "env", "export", "small/1", "/root/small.env"), exitFailure, "--force")
	a.MustGpulab(a.ctx, "env", "remove", "small/1")
	index.close()
	a.MustRun(a.ctx, "sh", "-c", "head -c 100000 /root/small.env >/root/cut.env")
	checkFailure(t, a.Gpulab(a.ctx, "env", "import", "/root/cut.env"), exitFailure, "cut short or damaged")
	if got := a.MustGpulab(a.ctx, "env", "list"); strings.Contains(got, "small/1") {
		t.Errorf("after a broken import: %s", got)
	}
	began := time.Now()
	got := a.MustGpulab(a.ctx, "env", "import", "/root/small.env")
	t.Logf("brought in after %s: %s", time.Since(began).Round(100*time.Millisecond), got)
	a.MustGpulab(a.ctx, "env", "default", "small")

	b := a.guest.For(t)
	k := work(b, guestHandle, "Again")
	if got := kernels(b); got[0] != "small.1" {
		t.Errorf("the default kernel is %s of %v", got[0], got)
	}
	if got := k.run(t, inEnvironment); got != "4.9.0 "+smallPlace {
		t.Errorf("the default kernel runs on %q", got)
	}
	mine := &kernel{lab.NewKernelOf(b, "mine"), b}
	if got := mine.run(t, "import inflection; print(inflection.pluralize('home'))"); got != "homes" {
		t.Errorf("the kernel of one's own: %s", got)
	}
}
