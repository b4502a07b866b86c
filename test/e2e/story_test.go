//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// testAdminLink: the link of init makes the first account, once.
func testAdminLink(t *testing.T, a *appliance) {
	testHostileSetup(t, a)
	a.browser = a.Browser(a.ca)
	b := a.browser.For(t)
	b.Open(a.link)
	b.Pictures("setup")
	createAccount(b, "Ada Lovelace", adminHandle, adminPassword)

	// The link is used up, for whoever finds it in a history or a chat.
	stranger := b.Private()
	stranger.Open(a.link)
	stranger.WaitText("main", "used")
	if fields := lab.Evaluate[int](stranger, `async () => document.querySelectorAll("input[type=password]").length`); fields != 0 {
		t.Error("a used link still asks for a password")
	}
	if result := a.Gpulab(a.ctx, "admin-link"); result.Code == 0 {
		t.Errorf("there is an administrator, and admin-link still makes links for strangers:\n%s", result.Stdout)
	}
}

// testHostileSetup: what is refused leaves the link as it was.
func testHostileSetup(t *testing.T, a *appliance) {
	address, err := url.Parse(a.link)
	if err != nil {
		t.Fatal(err)
	}
	client := a.HTTPClient(a.ca)
	for _, handle := range hostileHandles {
		status, body := sendForm(t, client, address.RequestURI(), "/setup", url.Values{"token": {address.Query().Get("token")},
			"name": {"Eve"}, "handle": {handle}, "password": {adminPassword}, "again": {adminPassword}})
		checkRefusedForm(t, handle, status, body)
	}
	if status, body := sendForm(t, client, "/login", "/setup", url.Values{"token": {"guessed"},
		"name": {"Eve"}, "handle": {"eve"}, "password": {adminPassword}, "again": {adminPassword}}); status != http.StatusNotFound {
		t.Errorf("a guessed link: status %d\n%.500s", status, body)
	}
	if people := a.MustGpulab(a.ctx, "user", "list"); !strings.Contains(people, "Nobody yet") {
		t.Errorf("there are people:\n%s", people)
	}
}

// testHome: the machine and its GPUs live, launch cards, what runs.
func testHome(t *testing.T, a *appliance) {
	b := a.browser.For(t)
	b.Open(pages + "/")
	b.WaitFor("two GPUs", `document.querySelectorAll("#machines article.gpu").length === 2`)
	b.WaitText("#machines", "simulated")
	for _, profile := range []string{"CPU notebook", "GPU notebook"} {
		b.WaitText(".launches", profile)
	}
	b.WaitText("#everyone", "Nobody else")
	b.Pictures("home-empty")
}

// launch starts a notebook from the home page.
func launch(b *lab.Browser, profile, title string) { b.Launch(pages, profile, title) }

// waitJupyterLab waits until the progress page has led on to JupyterLab.
func waitJupyterLab(b *lab.Browser, handle string) { b.WaitJupyterLab(hub, handle) }

// gpuCell prints how many GPUs a notebook sees, and which.
const gpuCell = `import pynvml
pynvml.nvmlInit()
first = pynvml.nvmlDeviceGetHandleByIndex(0)
print(pynvml.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetName(first), pynvml.nvmlDeviceGetUUID(first))`

// testFirstNotebook: from Launch to a cell that sees exactly one GPU.
func testFirstNotebook(t *testing.T, a *appliance) {
	b := a.browser.For(t)
	began := time.Now()
	launch(b, "gpu", "First")
	b.Pictures("launch")
	waitJupyterLab(b, adminHandle)
	t.Logf("from the click to JupyterLab: %s", time.Since(began).Round(100*time.Millisecond))

	printed := typeCell(b, gpuCell)
	b.Pictures("jupyterlab")
	uuid := holderOf(t, a, adminHandle)
	if !strings.HasPrefix(printed, "1 ") || !strings.HasSuffix(printed, uuid) {
		t.Errorf("the cell printed %q, want one GPU, %s", printed, uuid)
	}
	a.first = newKernel(b)
	if got := a.first.run(t, "!nvidia-smi"); !strings.Contains(strings.ToLower(got), "simulated") {
		t.Errorf("nvidia-smi does not say that the GPU is simulated:\n%s", got)
	}
	if got := a.first.run(t, "!nvidia-smi -L"); strings.Count(got, "GPU-") != 1 || !strings.Contains(got, uuid) {
		t.Errorf("nvidia-smi -L printed\n%s", got)
	}
	who := strings.Fields(a.first.run(t, `import os; print(os.getuid(), os.getgid(), os.path.expanduser("~"), os.stat("/home/`+adminHandle+`").st_uid)`))
	if len(who) != 4 || who[0] != who[1] || who[0] != who[3] || len(who[0]) != 5 || who[2] != "/home/"+adminHandle {
		t.Errorf("the notebook runs as %v, want one number from 20000 on and a home of its own", who)
	}
	a.first.run(t, "precious = 6 * 7")
	open(t, a, "home", b.Tab(), pages+"/", "#mine", "First")
}

// open shows a page in another tab and takes its pictures.
func open(t *testing.T, _ *appliance, picture string, b *lab.Browser, url, selector, text string) {
	t.Helper()
	b.Open(url)
	b.WaitText(selector, text)
	b.Pictures(picture)
}

// holderOf returns the GPU that the person holds.
func holderOf(t *testing.T, a *appliance, handle string) string {
	t.Helper()
	var uuid string
	a.eventually(t, handle+" holds a GPU", func() bool {
		for _, gpu := range a.gpus(t) {
			for _, holder := range gpu.Holders {
				if holder.User == handle {
					uuid = gpu.UUID
					return true
				}
			}
		}
		return false
	})
	return uuid
}

// testUserPackages: a person installs packages without any right but their own.
func testUserPackages(t *testing.T, a *appliance) {
	servePackageIndex(t, a)
	k := a.first.in(t)
	k.run(t, "%pip install --quiet --index-url "+demoIndex+" --trusted-host "+lab.InternetAddress+" "+demoPackage)
	checkPackage(t, k)
	if got, err := k.try("open('/usr/gl-test', 'w')"); err != nil || got.Error == "" {
		t.Error("a notebook may write into its environment")
	}
	k.run(t, "open('kept.txt', 'w').write('still here')")
}

func checkPackage(t *testing.T, k *kernel) {
	t.Helper()
	if got := k.run(t, "import gl_demo; print(gl_demo.answer())"); got != "42" {
		t.Errorf("the installed module says %q", got)
	}
	if got := k.run(t, "!gl-demo"); !strings.Contains(got, "demo says 42") {
		t.Errorf("the installed command says %q", got)
	}
}

// testSecondPerson: somebody else gets the other GPU, and no further.
func testSecondPerson(t *testing.T, a *appliance) {
	for _, handle := range hostileHandles {
		if strings.Contains(handle, "\x00") {
			continue // no command line holds one
		}
		if result := a.Gpulab(a.ctx, "user", "add", "--", handle); result.Code == 0 || strings.Count(result.Stderr, "\n") != 1 {
			t.Errorf("gpulab user add %.20q: exit code %d, want a refusal of one line: %s", handle, result.Code, result.Stderr)
		}
	}
	invitation := a.MustGpulab(a.ctx, "user", "add", guestHandle, "--name", "Ben")
	if result := a.Gpulab(a.ctx, "user", "add", guestHandle); result.Code == 0 || !strings.Contains(result.Stderr, "taken") {
		t.Errorf("the same name twice: exit code %d: %s", result.Code, result.Stderr)
	}
	link := invitation[strings.Index(invitation, "https://"):]

	a.guest = a.browser.Private()
	b := a.guest.For(t)
	b.Open(strings.TrimSpace(link))
	b.Fill("Password", guestPassword)
	b.Fill("Password once more", guestPassword)
	b.Click("form", "Set the password")
	waitHome(b)
	b.WaitText("#everyone", adminHandle)
	if strings.Contains(b.Text("#everyone"), "First") {
		t.Error("the title that a person gave a notebook is shown to others")
	}
	launch(b, "gpu", "Second")
	waitJupyterLab(b, guestHandle)

	a.second = newKernel(b)
	printed := a.second.run(t, gpuCell)
	uuid, other := holderOf(t, a, guestHandle), holderOf(t, a, adminHandle)
	if uuid == other || !strings.HasPrefix(printed, "1 ") || !strings.HasSuffix(printed, uuid) {
		t.Errorf("the second notebook sees %q; %s holds %s", printed, adminHandle, other)
	}
	// Neither through the proxy nor from pod to pod does anybody reach the
	// notebook of somebody else.
	status := lab.Evaluate[int](b, `async path => (await fetch(path)).status`, notebookPath(a.browser)+"api")
	if status != http.StatusForbidden && status != http.StatusNotFound {
		t.Errorf("%s gets status %d from the notebook of %s", guestHandle, status, adminHandle)
	}
	address := a.first.in(t).run(t, `import socket; print(socket.gethostbyname(socket.gethostname()))`)
	reach := `import socket
s = socket.socket(); s.settimeout(3)
print(s.connect_ex(("%s", %d)))`
	for target, port := range map[string]int{address: 8888, lab.Address: 6443} {
		if got := a.second.run(t, fmt.Sprintf(reach, target, port)); got == "0" {
			t.Errorf("a notebook reaches %s:%d", target, port)
		}
	}
}

// notebookPath is the path of the notebook that the browser shows.
func notebookPath(b *lab.Browser) string {
	return lab.Evaluate[string](b, `async () => `+notebookBase)
}

// testAllTaken: a third GPU notebook waits, says why, and keeps waiting.
func testAllTaken(t *testing.T, a *appliance) {
	b := a.browser.For(t).Tab()
	launch(b, "gpu", "Third")
	b.WaitText("#launch-state", "Waiting for 1 GPU")
	for _, holder := range []string{"You", guestHandle} {
		b.WaitText("#launch-detail", holder)
	}
	b.WaitText("#launch-actions", "Cancel")
	b.WaitText("#launch-actions", "Start a CPU notebook instead")
	b.Pictures("waiting")
	a.waiting = b.Location()
	open(t, a, "home-busy", b, pages+"/", "#everyone", guestHandle)
}

// testReadings: the GPU page changes every second and names the holders.
func testReadings(t *testing.T, a *appliance) {
	k := a.first.in(t)
	k.run(t, `import subprocess, sys
work = subprocess.Popen([sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)\nwhile True: pass"])`)
	defer k.run(t, "work.kill()")
	b := a.browser.For(t).Tab()
	b.Open(pages + "/gpus")
	for _, text := range []string{"simulated", "you", guestHandle, "python3"} {
		b.WaitText("#machines", text)
	}
	seen := map[string]bool{}
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		seen[lab.Evaluate[string](b, `async () => [...document.querySelectorAll("#machines .gpu")]
			.find(card => card.querySelector(".card-head").innerText.includes("you")).querySelector(".readings").innerText`)] = true
	}
	if len(seen) < 4 {
		t.Errorf("in 6 seconds the readings changed %d times", len(seen)-1)
	}
	b.Pictures("gpus")
}

// waitGone waits until the home page lists the person's notebook no more.
func waitGone(b *lab.Browser, title string) {
	b.WaitFor(title+" is gone", fmt.Sprintf(`document.querySelector("#machines") && !document.querySelector("#mine")?.innerText.includes(%q)`, title))
}

// testNextInQueue: a stop frees the GPU within seconds, and who waits gets it.
func testNextInQueue(t *testing.T, a *appliance) {
	uuid := holderOf(t, a, guestHandle)
	b := a.guest.For(t)
	b.Open(pages + "/")
	b.Click("#mine", "Stop Second")
	b.Click("dialog[open]", "Stop")
	waitGone(b, "Second")
	began := time.Now()
	owner := a.browser.For(t).Tab()
	owner.Open(a.waiting)
	waitJupyterLab(owner, adminHandle)
	t.Logf("from the stop to the next one's JupyterLab: %s", time.Since(began).Round(100*time.Millisecond))
	if got := newKernel(owner).run(t, gpuCell); !strings.HasSuffix(got, uuid) {
		t.Errorf("the next in the queue sees %q, want the freed GPU %s", got, uuid)
	}
}

// testStopAndRelaunch: what a person installed and saved is there next time.
func testStopAndRelaunch(t *testing.T, a *appliance) {
	b := a.browser.For(t)
	for _, title := range []string{"First", "Third"} {
		b.Open(pages + "/")
		b.Click("#mine", "Stop "+title)
		b.Click("dialog[open]", "Stop")
		waitGone(b, title)
	}
	a.eventually(t, "both GPUs are free", func() bool {
		for _, gpu := range a.gpus(t) {
			if len(gpu.Holders) > 0 {
				return false
			}
		}
		return true
	})
	launch(b, "cpu", "Once more")
	waitJupyterLab(b, adminHandle)
	k := newKernel(b)
	checkPackage(t, k)
	if got := k.run(t, "print(open('kept.txt').read())"); got != "still here" {
		t.Errorf("the file in the home says %q", got)
	}
	if got := k.run(t, "!nvidia-smi -L 2>&1 || true"); strings.Contains(got, "GPU-") {
		t.Errorf("a CPU notebook sees a GPU:\n%s", got)
	}
}
