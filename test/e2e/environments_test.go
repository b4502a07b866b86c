//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/test/lab"
)

// TestEnvironments is a lab whose notebooks share environments: built from an index of packages, exported, removed,
// and brought back without one.
//
//test:about internal/environments assets/environments
func TestEnvironments(t *testing.T) {
	t.Parallel()
	a := readyIndex(t)
	a.WriteFile("/root/small.txt", "humanize==4.9.0\n")
	a.live(t, []chapter{
		{"an environment", testEnvironment, true},
		{"an older Python", testOlderPython, false},
		{"from the page", testEnvironmentPage, false},
		{"a build that is cut off", testCutEnvironment, false},
		{"from a file", testEnvironmentFile, false},
	})
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
func testEnvironment(t *testing.T, a *appliance) {
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
		"os.access('"+smallPlace+"/lib/python3.13/site-packages/humanize/__init__.py', os.W_OK)", "False",
		"P('"+smallPlace+"/bin/own-kernel').owner()", "root",
		"sorted(os.listdir('/opt/gpulab/environments'))", "['.bin', 'config', 'kernels', 'small']",
	)
	ownKernel(t, a, b, k)

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

// ownKernel: what somebody adds is in their home, in a kernel of its own, and is there in the next one.
func ownKernel(t *testing.T, a *appliance, b *lab.Browser, k *kernel) {
	t.Helper()
	for _, install := range []string{"%pip install inflection", "!pip install inflection"} {
		if got := k.run(t, install); !strings.Contains(got, "run `!own-kernel NAME` in a cell") {
			t.Errorf("%s in the environment itself: %s", install, got)
		}
	}
	if got := k.run(t, "!own-kernel mine"); !strings.Contains(got, "The kernel mine is yours") {
		t.Errorf("own-kernel: %s", got)
	}
	mine := &kernel{lab.NewKernelOf(b, "mine"), b}
	got := mine.run(t, "%pip install inflection\nimport inflection, humanize\nprint(humanize.__version__, inflection.__file__)")
	if !strings.HasSuffix(got, "4.9.0 /home/ben/.local/share/gpulab/kernels/mine/lib/python3.13/site-packages/inflection.py") &&
		!strings.HasSuffix(got, "4.9.0 /home/ben/.local/share/gpulab/kernels/mine/lib/python3.13/site-packages/inflection/__init__.py") {
		t.Errorf("in a kernel of one's own: %s", got)
	}
	if a.Run(a.ctx, "grep", "-rqF", "/inflection-", "/var/lib/gpulab/packages").Code != 0 {
		t.Error("a kernel of one's own gets packages past the lab's cache")
	}
	again := &kernel{lab.NewKernelOf(b, "mine"), b}
	if got := again.run(t, "import inflection; print(inflection.pluralize('kernel'))"); got != "kernels" {
		t.Errorf("in the next kernel: %s", got)
	}
	if got, err := k.try("import inflection"); err != nil || !strings.HasPrefix(got.Error, "ModuleNotFoundError") {
		t.Errorf("in the environment itself: %+v, %v", got, err)
	}
}

// testOlderPython: requirements name their Python, and a lock from the time of one Python is built with that again.
// Kernels on top of the environment have its Python, whatever the home's is.
func testOlderPython(t *testing.T, a *appliance) {
	a.WriteFile("/root/ancient.txt", "# python: 3.9\nhumanize==4.9.0\n")
	checkFailure(t, a.Gpulab(a.ctx, "env", "create", "ancient", "-r", "/root/ancient.txt"), exitFailure,
		`the image of notebooks has no Python "3.9"; name one that it has: 3.13 or 3.11`)
	a.WriteFile("/root/both.txt", "# python: 3.13\n# python: 3.11\nhumanize==4.9.0\n")
	checkFailure(t, a.Gpulab(a.ctx, "env", "create", "both", "-r", "/root/both.txt"), exitFailure, "name one Python")

	lock, err := os.ReadFile("testdata/" + olderPythonLock + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	a.WriteFile("/root/older.txt", string(lock))
	a.WriteFile("/root/named.txt", "# python: 3.11\nhumanize==4.9.0\n")
	b := a.guest.For(t)
	b.Open(hub + "/user/" + guestHandle + "/ben-s/lab")
	waitJupyterLab(b, guestHandle)
	k := newKernel(b)
	for _, name := range []string{"older", "named"} {
		a.MustGpulab(a.ctx, "env", "create", name, "--version", "1", "-r", "/root/"+name+".txt")
		if got := a.MustGpulab(a.ctx, "env", "show", name); !strings.Contains(got, "3.11") {
			t.Errorf("%s: env show does not say which Python it has:\n%s", name, got)
		}
		built := a.MustGpulab(a.ctx, "env", "show", "--lock", name)
		if name == "older" && built != "# python: 3.11\n"+string(lock) {
			t.Errorf("a lock was built as another one:\n%s", built)
		}
		place := environments.MountPath + "/" + name + "/1"
		check := "import subprocess, sys\nprint(subprocess.run([sys.argv[1], '-c', 'import humanize, sys; print(*sys.version_info[:2], sys.prefix)'], capture_output=True, text=True).stdout)"
		if got := k.run(t, strings.ReplaceAll(check, "sys.argv[1]", "'"+place+"/bin/python3'")); strings.TrimSpace(got) != "3 11 "+place {
			t.Errorf("the Python of %s says %q", name, got)
		}
		mine := "on-" + name
		if got := k.run(t, "!"+place+"/bin/own-kernel "+mine); !strings.Contains(got, "is yours") {
			t.Errorf("own-kernel of %s: %s", name, got)
		}
		own := "/home/" + guestHandle + "/.local/share/gpulab/kernels/" + mine
		if got := k.run(t, strings.ReplaceAll(check, "sys.argv[1]", "'"+own+"/bin/python3'")); strings.TrimSpace(got) != "3 11 "+own {
			t.Errorf("a kernel on top of %s: %q", name, got)
		}
		k.run(t, "!"+place+"/bin/own-kernel --remove "+mine)
		a.MustGpulab(a.ctx, "env", "remove", name+"/1")
	}
	if got := a.MustGpulab(a.ctx, "env", "show", "--lock", "small"); !strings.HasPrefix(got, "# python: 3.13\n") {
		t.Errorf("the lock does not name its Python:\n%s", got)
	}
}

// testEnvironmentPage: an admin builds one in the browser and sees how far it is; its kernel is there for others, a job
// is given it on the page, and it is removed where it was made.
func testEnvironmentPage(t *testing.T, a *appliance) {
	admin, ben := a.browser.For(t), a.guest.For(t).Tab()
	admin.Open(pages + "/environments")
	admin.WaitText("#environments", "small/1")
	a.index.signal(t, syscall.SIGSTOP) // the internet is slow
	admin.Fill("Name", "paged")
	admin.Fill("Title", "From the page")
	admin.Fill("Packages", "humanize==4.9.0\n")
	admin.Click("form:has(#requirements)", "Build")
	admin.WaitText("#environment-build", "Building paged/")
	admin.WaitText("#environment-build", "Finding out which packages that takes.")
	admin.Pictures("environments-building")
	a.index.signal(t, syscall.SIGCONT)
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

// testCutEnvironment: a build whose command is killed ends; one whose gpulab is killed leaves nothing that anybody
// sees, and runs to its end the next time.
func testCutEnvironment(t *testing.T, a *appliance) {
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

	a.index.signal(t, syscall.SIGSTOP) // the internet is slow
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
	a.index.signal(t, syscall.SIGCONT)
	a.MustGpulab(a.ctx, "env", "create", "other", "--version", "1", "-r", "/root/small.txt")
	if got := a.MustGpulab(a.ctx, "env", "remove", "other/1"); !strings.Contains(got, "other/1 is removed") {
		t.Errorf("env remove: %s", got)
	}
}

// testEnvironmentFile: out of the lab and in again, without any index; the default one is what a new notebook has.
func testEnvironmentFile(t *testing.T, a *appliance) {
	stopAll(t, a, guestHandle)
	a.eventually(t, "the notebook is stopped", func() bool {
		return !strings.Contains(a.MustGpulab(a.ctx, "kubectl", "-n", "user-"+guestHandle, "get", "pods", "-o", "name"), "pod/")
	})
	a.MustGpulab(a.ctx, "env", "export", "small/1", "/root/small.env")
	checkFailure(t, a.Gpulab(a.ctx, "env", "export", "small/1", "/root/small.env"), exitFailure, "--force")
	a.MustGpulab(a.ctx, "env", "remove", "small/1")
	a.index.close()
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
