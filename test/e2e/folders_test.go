//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/test/lab"
)

// TestFolders is a lab whose people share folders.
//
//test:about internal/storage
func TestFolders(t *testing.T) {
	t.Parallel()
	ready(t, foldersConfig).live(t, []chapter{
		{"shared folders", testSharedFolders, true},
		{"a member who leaves", testFolderLost, false},
	})
}

// foldersConfig measures often, and gives who fills a home little time.
const foldersConfig = `
lab: Folders lab
gpus: simulated
simulatedGPUs: 1
quotas:
  grace: 20s
storage:
  measureEvery: 2s
`

// work starts a notebook without a GPU, and a kernel in it.
func work(b *lab.Browser, handle, title string) *kernel {
	launch(b, "cpu", title)
	waitJupyterLab(b, handle)
	return newKernel(b)
}

// tryPython runs a cell that tells how each of some expressions ends.
func tryPython(t *testing.T, k *kernel, expressions ...string) map[string]string {
	t.Helper()
	code := "import os, pathlib, errno\nos.umask(0o077)\nP = pathlib.Path\nhome = P('/home') / os.environ['JUPYTERHUB_USER']\nshared = home / 'shared'\n" +
		"def tell(name, do):\n    try:\n        print(name + '\\t' + str(do()))\n    except OSError as e:\n        print(name + '\\t' + errno.errorcode[e.errno])\n"
	for _, e := range expressions {
		code += fmt.Sprintf("tell(%q, lambda: %s)\n", e, e)
	}
	ended := map[string]string{}
	for _, line := range strings.Split(k.run(t, code), "\n") {
		name, end, _ := strings.Cut(line, "\t")
		ended[name] = end
	}
	return ended
}

// expect checks how expressions end in somebody's notebook.
func expect(t *testing.T, who string, k *kernel, pairs ...string) {
	t.Helper()
	var expressions []string
	for i := 0; i < len(pairs); i += 2 {
		expressions = append(expressions, pairs[i])
	}
	ended := tryPython(t, k, expressions...)
	for i := 0; i < len(pairs); i += 2 {
		if got := ended[pairs[i]]; got != pairs[i+1] {
			t.Errorf("%s: %s is %q, want %q", who, pairs[i], got, pairs[i+1])
		}
	}
}

// takeNumbers adds accounts and groups to the machine with the UIDs and GIDs that the lab
// would give out next, and checks that the lab avoids them. The function that it returns
// checks that the doctor names an account that was added later, and removes them all.
func (a *appliance) takeNumbers(t *testing.T) func() {
	t.Helper()
	a.MustRun(a.ctx, "sh", "-ec", "useradd -u 20002 -M prof; groupadd -g 20003 lasers; groupadd -g 60001 beams")
	return func() {
		uid := func(handle string) (of int) {
			var person struct{ UID int }
			if err := json.Unmarshal([]byte(a.MustGpulab(a.ctx, "user", "show", handle, "--json")), &person); err != nil {
				t.Error(err)
			}
			return person.UID
		}
		if lea, cleo := uid("lea"), uid("cleo"); lea != 20004 || cleo != 20005 {
			t.Errorf("beside numbers of the machine, accounts have %d and %d", lea, cleo)
		}
		if gid := strings.TrimSpace(a.MustRun(a.ctx, "sh", "-c", "stat -c %g /var/lib/gpulab/folders/* | sort -n | head -1")); gid != "60003" {
			t.Errorf("who reads the first folder, a hand-in, is in the group %s", gid)
		}
		if state, seen, _ := a.doctor(t, "numbers").of(t, "numbers"); state != "ok" {
			t.Errorf("%s: %s", state, seen)
		}
		a.MustRun(a.ctx, "sh", "-ec", "userdel prof; groupdel lasers; groupdel beams; useradd -u 20004 -M late")
		if state, seen, _ := a.doctor(t, "numbers").of(t, "numbers"); state != "fail" || !strings.Contains(seen, "20004, of lea, is late's") {
			t.Errorf("an account that came later: %s: %s", state, seen)
		}
		a.MustRun(a.ctx, "userdel", "-f", "late") // somebody with this UID runs programs
	}
}

// testSharedFolders: a student writes in a group folder, another one reads and appends, a third person does not see
// it; a hand-in is its student's and the lead's; a dataset and a folder of the machine are only read.
func testSharedFolders(t *testing.T, a *appliance) {
	taken := a.takeNumbers(t)
	defer taken()
	for _, args := range [][]string{
		{"group", "add", "seminar"}, {"user", "add", "lea"}, {"user", "add", "cleo"}, {"user", "add", "dan"},
		{"group", "member", "add", "seminar", guestHandle, "cleo"}, {"group", "member", "add", "seminar", "lea", "--lead"},
	} {
		a.MustGpulab(a.ctx, args...)
	}
	a.MustRun(a.ctx, "sh", "-ec", "mkdir -p /srv/archive /srv/plain && mount -t tmpfs tmpfs /srv/archive && mkdir /srv/archive/inner && mount -t tmpfs -o mode=777 tmpfs /srv/archive/inner && "+
		"echo measured >/srv/archive/file && chmod 777 /srv/archive && chmod 666 /srv/archive/file")
	checkFailure(t, a.Gpulab(a.ctx, "folder", "create", "bad", "--kind", "host", "--path", "/var/lib/gpulab"), 1, "not shown to anybody")
	checkFailure(t, a.Gpulab(a.ctx, "folder", "create", "../bad", "--kind", "dataset"), 1, "cannot be a folder")
	for _, args := range [][]string{
		{"folder", "create", "exercises", "--kind", "hand-in", "--group", "seminar"}, {"folder", "create", "imagenet", "--kind", "dataset"},
		{"folder", "create", "archive", "--kind", "host", "--path", "/srv/archive"}, {"folder", "create", "plain", "--kind", "host", "--path", "/srv/plain"},
	} {
		a.MustGpulab(a.ctx, args...)
	}
	// The overlay that a test host runs on takes no mapped user IDs, as NFS would not; and nor does a mount in a folder.
	for _, name := range []string{"plain", "archive"} {
		if got := a.MustGpulab(a.ctx, "folder", "show", name); !strings.Contains(got, "share the machine's user IDs") {
			t.Errorf("folder show: %s", got)
		}
	}
	checkFailure(t, a.Gpulab(a.ctx, "folder", "delete", "plain"), 2, "--yes")
	a.MustGpulab(a.ctx, "folder", "delete", "--yes", "plain")

	admin := a.browser.For(t)
	admin.Open(pages + "/folders")
	admin.Fill("Name", "seminar-data")
	admin.WaitFor("the group", `(() => { document.querySelector("#group").value = "seminar"; return true })()`)
	admin.Click("main", "Make")
	admin.WaitText("main", "Delete this folder")
	admin.Open(pages + "/folders")
	admin.WaitText("table", "seminar-data")
	admin.Pictures("folders")

	ben := work(a.guest.For(t), guestHandle, "Ben's")
	expect(t, "ben", ben,
		"sorted(p.name for p in shared.iterdir())", "['archive', 'exercises', 'imagenet', 'seminar-data']",
		"(shared / 'seminar-data/notes').write_text('one\\n')", "4",
		"(shared / 'seminar-data/deep').mkdir()", "None",
		"(shared / 'exercises/solution').write_text('mine')", "4",
		"(shared / 'imagenet/x').write_text('x')", "EROFS",
		"(shared / 'archive/file').read_text()", "measured",
		"(shared / 'archive/file').write_text('x')", "EROFS",
		"(shared / 'archive/inner/x').write_text('x')", "EROFS",
		"os.link(home / 'shared/seminar-data/notes', home / 'stolen')", "EXDEV",
		"os.link(shared / 'exercises/solution', shared / 'seminar-data/solution')", "EXDEV",
		"(shared / 'x').write_text('x')", "EACCES",
		"os.symlink('/home/cleo', shared / 'seminar-data/cleos')", "None",
		"os.listdir(shared / 'seminar-data/cleos')", "ENOENT",
	)
	b := a.guest.For(t)
	b.Open(strings.TrimSuffix(b.Location(), "/") + "/tree/shared")
	b.WaitText(".jp-DirListing-content", "seminar-data")
	b.WaitText(".jp-DirListing-content", "exercises")
	b.Pictures("folders-jupyterlab")

	cleo := a.folderPerson(t, "cleo")
	expect(t, "cleo", cleo,
		"(shared / 'seminar-data/notes').read_text()", "one",
		"(shared / 'seminar-data/notes').open('a').write('two')", "3",
		"(shared / 'seminar-data/deep/hers').write_text('x')", "1",
		"os.listdir(shared / 'exercises')", "[]",
		"(shared / 'exercises/solution').write_text('hers')", "4",
		"os.listdir(shared / 'exercises/..' / 'ben')", "ENOENT",
	)
	lea := a.folderPerson(t, "lea")
	expect(t, "lea", lea,
		"sorted(os.listdir(shared / 'exercises'))", "['ben', 'cleo']",
		"(shared / 'exercises/ben/solution').read_text()", "mine",
		"(shared / 'exercises/ben/solution').write_text('x')", "EROFS",
		"(shared / 'seminar-data/notes').read_text()[-3:]", "two",
	)
	dan := a.folderPerson(t, "dan")
	expect(t, "dan", dan,
		"sorted(p.name for p in shared.iterdir())", "['archive', 'imagenet']",
		"os.listdir('/var/lib/gpulab/folders')", "ENOENT",
	)
	a.eventually(t, "the folder is measured", func() bool {
		return strings.Contains(a.MustGpulab(a.ctx, "folder", "show", "seminar-data"), "ago")
	})
	a.foldersOf = map[string]*kernel{"ben": ben, "cleo": cleo, "lea": lea}
	stopAll(t, a, "lea", "dan")
}

// folderPerson signs somebody in and starts a notebook of theirs.
func (a *appliance) folderPerson(t *testing.T, handle string) *kernel {
	t.Helper()
	b := a.browser.Private().For(t)
	invitation := a.MustGpulab(a.ctx, "user", "passwd", handle)
	choosePassword(b, invitation, studentPassword(handle))
	return work(b, handle, "Work")
}

// stopAll ends the notebooks of some.
func stopAll(t *testing.T, a *appliance, handles ...string) {
	t.Helper()
	for _, handle := range handles {
		if stop := stopOf(t, a.admin(t), handle); stop != "" {
			sendForm(t, a.admin(t), "/", stop, map[string][]string{})
		}
	}
}

// testFolderLost: who is taken out of a group loses what its folders were open in, at once, and is told.
func testFolderLost(t *testing.T, a *appliance) {
	a.MustGpulab(a.ctx, "group", "member", "remove", "seminar", "cleo")
	b := a.foldersOf["cleo"].browser.For(t)
	a.eventually(t, "the notebook is ended", func() bool {
		return !strings.Contains(a.MustGpulab(a.ctx, "kubectl", "-n", "user-cleo", "get", "pods", "-o", "name"), "pod/")
	})
	b.Open(pages + "/")
	b.WaitText("#mine", "you may no longer use the shared folder")
	b.Pictures("folder-lost")
	k := work(b, "cleo", "Afterwards")
	expect(t, "cleo", k, "sorted(p.name for p in shared.iterdir())", "['archive', 'imagenet']")
	a.eventually(t, "the claims of the folders are gone", func() bool {
		left := a.MustGpulab(a.ctx, "kubectl", "-n", "user-cleo", "get", "pvc", "-o", "name")
		return !strings.Contains(left, "part-") && strings.Count(left, "folder-") == 2
	})
	if log := a.MustGpulab(a.ctx, "audit", "export", "--json"); !strings.Contains(log, `"folder.stop"`) || !strings.Contains(log, `"folder.add"`) {
		t.Error("the audit log does not tell of it")
	}
	stopAll(t, a, "cleo")
}

// TestFullHome: a home beyond its limit is told of in JupyterLab, its notebook is stopped after the grace period, and a
// new one only reads it, until its owner has deleted something on the page.
//
//test:about internal/storage internal/diskspace internal/quota
func TestFullHome(t *testing.T) {
	t.Parallel()
	a := ready(t, foldersConfig)
	for _, args := range [][]string{
		{"group", "add", "seminar"}, {"group", "member", "add", "seminar", guestHandle},
		{"folder", "create", "seminar-data", "--group", "seminar"},
		{"quota", "set", "user:" + guestHandle, "home-size", "100Mi"},
	} {
		a.MustGpulab(a.ctx, args...)
	}
	b := a.guest
	k := work(b, guestHandle, "Ben's")
	k.run(t, "open('/home/"+guestHandle+"/ballast', 'wb').write(b'x' * (150 << 20))")
	b.WaitFor("JupyterLab to tell it", `[...document.querySelectorAll(".Toastify__toast")].some(t => t.innerText.includes("Your home is full"))`)
	a.eventually(t, "the notebook is stopped", func() bool {
		return !strings.Contains(a.MustGpulab(a.ctx, "kubectl", "-n", "user-"+guestHandle, "get", "pods", "-o", "name"), "pod/")
	})
	b.Open(pages + "/")
	b.WaitText("#mine", "your home is full")
	k = work(b, guestHandle, "Reading")
	expect(t, "ben", k,
		"(home / 'new').write_text('x')", "EROFS",
		"(home / 'ballast').stat().st_size >> 20", "150",
		"(shared / 'seminar-data/more').write_text('x')", "1",
	)
	b.Open(strings.TrimSuffix(b.Location(), "/"))
	b.WaitText(".jp-DirListing-content", "ballast")
	b.Open(pages + "/folders")
	b.WaitText("main", "Your home is full")
	b.Pictures("home-full")
	b.Click("main", "Delete ballast")
	b.Click("dialog[open]", "Delete")
	b.WaitText("main", "It is deleted.")
	a.eventually(t, "there is room again", func() bool {
		var limits []struct {
			Kind        string
			Used, Value float64
		}
		if err := json.Unmarshal([]byte(a.MustGpulab(a.ctx, "quota", "show", guestHandle, "--json")), &limits); err != nil {
			t.Fatal(err)
		}
		for _, l := range limits {
			if l.Kind == "home-size" {
				return l.Used < l.Value
			}
		}
		return false
	})
	stopAll(t, a, guestHandle)
	a.eventually(t, "the notebook is stopped", func() bool {
		return !strings.Contains(a.MustGpulab(a.ctx, "kubectl", "-n", "user-"+guestHandle, "get", "pods", "-o", "name"), "pod/")
	})
	k = work(b, guestHandle, "Writing")
	expect(t, "ben", k, "(home / 'new').write_text('x')", "1")
	for _, c := range a.status(t).Components {
		if c.Name == "home sizes" && !strings.Contains(c.Detail, "measured every 2s") {
			t.Errorf("status: %+v", c)
		}
	}
}
