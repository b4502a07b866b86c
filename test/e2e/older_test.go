//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// olderProgram is the path of an earlier gpulab, in one folder with images. test/run sets GPULAB_OLDER. To run the
// test without test/run:
//
//	GPULAB_OLDER=/path/to/bin/gpulab go test -tags e2e -run TestOlderLab ./test/e2e
var olderProgram = os.Getenv("GPULAB_OLDER")

// olderLab is a lab that an earlier gpulab made, with a second machine.
type olderLab struct {
	rolledLab
	pool
	a         *appliance
	bookmarks map[string]string // of the notebooks, by title, as the earlier gpulab showed them
	token     string
	quotas    string // the output of `gpulab quota list` before the upgrade
	made      string // what usesMade printed before the upgrade
}

// TestOlderLab upgrades a lab of an earlier gpulab, rolls it back and upgrades it again. People, passwords, tokens,
// homes, running kernels, bookmarks and the second machine survive each step.
//
//test:older
//test:about internal/store
func TestOlderLab(t *testing.T) {
	if olderProgram == "" {
		t.Fatal("GPULAB_OLDER is not set; test/run sets it if the repository has an earlier commit")
	}
	t.Parallel()
	o := &olderLab{bookmarks: map[string]string{}}
	fresh(t).live(t, []chapter{
		{"the lab as it was", o.setUp, true},
		{"a machine as it was", o.join, true},
		{"work as it was", o.work, true},
		{"before the upgrade", o.checkOld, true},
		{"the head is upgraded", func(t *testing.T, a *appliance) { o.change(t, a, a.Binary(), "init", "--yes") }, true},
		{"with the machine as it was", o.checkNew, true},
		{"the machine is upgraded", o.upgradeMachine, true},
		{"rolled back", func(t *testing.T, a *appliance) { o.change(t, a, "", "rollback", "--yes") }, true},
		{"as it was again", o.checkOld, true},
		{"upgraded again", func(t *testing.T, a *appliance) { o.change(t, a, "", "rollback", "--yes") }, true},
		{"nothing is lost", o.checkNew, true},
	})
}

// put installs a program on a machine, with its images.
func (o *olderLab) put(t *testing.T, on *lab.Lab, program string) {
	t.Helper()
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	on.MustRun(o.a.ctx, "mkdir", "-p", filepath.Dir(frontProgram))
	if err := os.WriteFile(on.Path(frontProgram)+".new", data, 0o755); err != nil {
		t.Fatal(err)
	}
	on.MustRun(o.a.ctx, "mv", frontProgram+".new", frontProgram)
	on.MustRun(o.a.ctx, "ln", "-sfn", filepath.Join(filepath.Dir(program), "images"), filepath.Join(filepath.Dir(frontProgram), "images"))
}

func (o *olderLab) setUp(t *testing.T, a *appliance) {
	o.a, o.rolledLab = a, rolledLab{Lab: a.Lab, ctx: a.ctx}
	var err error
	if o.shared, err = os.MkdirTemp(filepath.Dir(a.Binary()), "shared-"); err != nil {
		t.Fatal(err)
	}
	a.lifeOf.Cleanup(func() { _ = os.RemoveAll(o.shared) })
	if err := os.Chmod(o.shared, 0o755); err != nil {
		t.Fatal(err)
	}
	a.WriteFile("/etc/gpulab/config.yaml", poolConfig)
	o.mountShared(a, a.Lab)
	o.put(t, a.Lab, olderProgram)
	end := lab.Begin(t)
	printed := o.must(t, initArgs...)
	end()
	a.link, a.ca = findLink(t, printed), []byte(o.must(t, "ca"))
	o.older = o.version(t)
	a.browser = a.Browser(a.ca)
	b := a.browser.For(t)
	b.Open(a.link)
	createAccount(b, "Ada Lovelace", adminHandle, adminPassword)
	a.guest = a.browser.Private().For(t)
	choosePassword(a.guest, o.must(t, "user", "add", guestHandle, "--name", "Ben"), guestPassword)
	o.token, o.quotas = tokenOf(t, a, adminHandle, adminPassword, "full"), o.must(t, "quota", "list")
}

func (o *olderLab) join(t *testing.T, a *appliance) {
	var list poolNodes
	if err := json.Unmarshal([]byte(o.must(t, "nodes", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	o.head = list.Nodes[0].Name
	o.node = a.beside(a.lifeOf, nodeName, nodeAddress)
	o.mountShared(a, o.node)
	o.put(t, o.node, olderProgram)
	var invited invitation
	if err := json.Unmarshal([]byte(o.must(t, "invite-node", "--json")), &invited); err != nil {
		t.Fatal(err)
	}
	o.node.MustRun(a.ctx, frontProgram, "join", invited.Code)
	a.eventually(t, "the second machine is ready", func() bool { return o.machine(t).State == "ready" })
}

func (o *olderLab) machine(t *testing.T) (found struct {
	Name, State, Version string
}) {
	t.Helper()
	var list struct {
		Nodes []struct{ Name, State, Version string }
	}
	if err := json.Unmarshal([]byte(o.must(t, "nodes", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	for _, n := range list.Nodes {
		if n.Name == nodeName {
			return n
		}
	}
	t.Fatalf("%s is not in the pool: %+v", nodeName, list)
	return found
}

// work starts a notebook on each machine, and remembers where it was.
func (o *olderLab) work(t *testing.T, a *appliance) {
	a.eventually(t, "the second machine has a GPU", func() bool {
		return o.must(t, "kubectl", "get", "node", nodeName, "-o", `jsonpath={.status.allocatable.nvidia\.com/gpu}`) == "1"
	})
	o.kernels = map[string]*kernel{}
	for _, title := range []string{"One", "Two"} {
		b := a.browser.For(a.lifeOf).Tab().For(t)
		launch(b, "gpu", title)
		b.WaitFor("JupyterLab", `location.pathname.startsWith("/user/`+adminHandle+`/") && document.querySelector(".jp-Launcher, .jp-NotebookPanel")`)
		k := newKernel(b)
		k.run(t, fmt.Sprintf(`precious = %q; open("of-%[1]s.txt", "w").write("precious")`, title))
		o.kernels[title], o.bookmarks[title] = k, lab.Evaluate[string](b, `async () => location.href`)
	}
	on := strings.Fields(o.must(t, "kubectl", "get", "pods", "-n", "user-"+adminHandle, "-o", `jsonpath={range .items[*]}{.spec.nodeName} {end}`))
	if slices.Sort(on); !slices.Contains(on, o.head) || !slices.Contains(on, nodeName) {
		t.Fatalf("the notebooks are on %v", on)
	}
	t.Logf("bookmarks: %v", o.bookmarks)
	o.guests(t, a, "Before", func(k *kernel) {
		k.run(t, makes)
		o.made = k.run(t, usesMade)
	})
	if strings.Count(o.made, "proven") != 4 {
		t.Fatalf("what a package of a home prints: %q", o.made)
	}
}

// makes installs a package with a program in the home, and the package in a virtual environment, as pip does.
const makes = `import pathlib, site, subprocess, sys
subprocess.run([sys.executable, "-m", "venv", pathlib.Path.home() / "venv"], check=True)
for folder in [site.getusersitepackages(), *(pathlib.Path.home() / "venv/lib").glob("*/site-packages")]:
    info = pathlib.Path(folder, "precious-1.0.dist-info")
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: precious\nVersion: 1.0\n")
    pathlib.Path(folder, "precious.py").write_text("import sys; print('proven', *sys.version_info[:2], sys.prefix)")
program = pathlib.Path.home() / ".local/bin/precious"
program.parent.mkdir(parents=True, exist_ok=True)
program.write_text(f"#!{sys.executable}\nimport precious\n")
program.chmod(0o755)
`

// usesMade imports that package in a kernel, in a terminal's Python and in the virtual environment, and runs its program.
const usesMade = `import precious
!python3 -c 'import precious'
!~/venv/bin/python -c 'import precious'
!precious
`

// guests runs something in a new notebook of the guest, which is stopped then.
func (o *olderLab) guests(t *testing.T, a *appliance, title string, do func(k *kernel)) {
	t.Helper()
	b := a.guest.Private().For(t)
	signInBrowser(b, pages, guestHandle, guestPassword)
	launch(b, "cpu", title)
	b.WaitFor("JupyterLab", `location.pathname.startsWith("/user/`+guestHandle+`/") && document.querySelector(".jp-Launcher, .jp-NotebookPanel")`)
	do(newKernel(b))
	b.Open(pages + "/")
	client := signIn(t, a, guestHandle, guestPassword)
	if action := stopOf(t, client, guestHandle); action != "" {
		sendForm(t, client, "/", action, nil)
	}
}

// change puts a program on the head, where one is named, and runs a command of it.
func (o *olderLab) change(t *testing.T, a *appliance, program string, command ...string) {
	if program != "" {
		o.put(t, a.Lab, program)
	}
	began := time.Now()
	t.Log(o.must(t, command...))
	t.Logf("%v took %s", command, time.Since(began).Round(time.Second))
	a.eventually(t, "the second machine is ready", func() bool { return o.machine(t).State == "ready" })
}

func (o *olderLab) checkNew(t *testing.T, a *appliance) {
	if now := o.version(t); now == o.older {
		t.Fatalf("gpulab %s serves the lab still", now)
	}
	o.check(t, a, true)
	if out := o.must(t, "quota", "list"); out != o.quotas {
		t.Errorf("the quotas are now:\n%s\nthey were:\n%s", out, o.quotas)
	}
}

func (o *olderLab) checkOld(t *testing.T, a *appliance) {
	if now := o.version(t); now != o.older {
		t.Fatalf("gpulab %s serves the lab, want %s", now, o.older)
	}
	o.check(t, a, false)
}

// check looks at all that a lab's people rely on, with this gpulab or the earlier one.
func (o *olderLab) check(t *testing.T, a *appliance, now bool) {
	t.Helper()
	r, err := http.NewRequestWithContext(a.ctx, http.MethodGet, pages+"/api/v1/me", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+o.token)
	response, err := a.HTTPClient(a.ca).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("the token of before: %s", response.Status)
	}
	signIn(t, a, guestHandle, guestPassword)
	for title, address := range o.bookmarks {
		b := a.browser.Private().For(t)
		if now {
			b.Open(address)
			b.WaitFor("the sign-in page", `location.pathname === "/login" && document.querySelector("input[type=password]")`)
			b.Fill("Sign-in name", adminHandle)
			b.Fill("Password", adminPassword)
			b.Click("form", "Sign in")
		} else {
			signInBrowser(b, pages, adminHandle, adminPassword) // an earlier sign-in page may forget the bookmark
			b.Open(address)
		}
		if now {
			b.WaitJupyterLab(pages, adminHandle)
		} else { // its notebooks may be at another origin
			b.WaitFor("JupyterLab", `location.pathname.startsWith("/user/`+adminHandle+`/") &&
				document.querySelector(".jp-Launcher, .jp-NotebookPanel")`)
		}
		k := &kernel{o.kernels[title].Through(b), b}
		if got := k.run(t, `print(precious, open("of-One.txt").read(), open("of-Two.txt").read())`); got != title+" precious precious" {
			t.Errorf("the kernel of %s: %q", title, got)
		}
	}
	o.guests(t, a, "Afterwards", func(k *kernel) {
		if got := k.run(t, usesMade); got != o.made {
			t.Errorf("what is installed in a home prints %q; it printed %q", got, o.made)
		}
	})
	t.Log(o.must(t, "nodes"))
}

func (o *olderLab) upgradeMachine(t *testing.T, a *appliance) {
	o.put(t, o.node, a.Binary())
	t.Log(o.node.MustRun(a.ctx, frontProgram, "join"))
	version := o.version(t)
	a.eventually(t, "the machine has the head's version", func() bool {
		n := o.machine(t)
		return n.State == "ready" && n.Version == version
	})
}
