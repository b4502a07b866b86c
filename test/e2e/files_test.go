//go:build e2e

package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// copied is the part of `gpulab cp --json` that the tests read.
type copied struct {
	Copied, Unchanged, Bytes, Kept int64
	Failed, Skipped                []struct{ Path, Error string }
}

// laptop is a student's own computer that is signed in to the lab.
type laptop struct {
	a     *appliance
	dir   string // with what the student has there
	login string // the file of the sign-in
}

// newLaptop signs a computer in with a token for files, made on the account page.
func newLaptop(t *testing.T, a *appliance, b *lab.Browser, handle string) *laptop {
	t.Helper()
	return newLaptopFor(t, a, b, handle, "files")
}

// newLaptopFor is newLaptop with a token of another scope.
func newLaptopFor(t *testing.T, a *appliance, b *lab.Browser, handle, scope string) *laptop {
	t.Helper()
	return newLaptopAt(t, a, b, pages, handle, scope)
}

// newLaptopAt is newLaptopFor for one that knows the lab by another address.
func newLaptopAt(t *testing.T, a *appliance, b *lab.Browser, at, handle, scope string) *laptop {
	t.Helper()
	b.Open(at + "/account")
	b.WaitFor("the scope", `(() => { const s = document.querySelector("#token-scope"); if (!s) return false; s.value = "`+scope+`"; return true })()`)
	b.Fill("What it is for", "my laptop")
	b.Click("main", "Make the token")
	b.WaitFor("the token", `document.querySelector("#secret")?.value`)
	return signedIn(t, a, at, handle, scope, lab.Evaluate[string](b, `() => document.querySelector("#secret").value`))
}

// command is gpulab on that computer.
func (l *laptop) command(args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := l.a.VisitorCommand(l.a.ctx, l.a.Binary(), args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + l.dir, "GPULAB_LOGIN=" + l.login}
	cmd.Dir = l.dir
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	return cmd, &said
}

// cp copies to the end and returns what it came to.
func (l *laptop) cp(t *testing.T, args ...string) copied {
	t.Helper()
	cmd, said := l.command(append([]string{"cp", "--json"}, args...)...)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("gpulab cp %v: %v\n%s%s", args, err, said, &out)
	}
	var c copied
	if err := json.Unmarshal(out.Bytes(), &c); err != nil {
		t.Fatalf("gpulab cp --json: %v\n%s", err, &out)
	}
	return c
}

// homeOf is where somebody's home lies on the head.
func homeOf(t *testing.T, a *appliance, handle string) string {
	t.Helper()
	var person struct{ ID int64 }
	if err := json.Unmarshal([]byte(a.MustGpulab(a.ctx, "user", "show", handle, "--json")), &person); err != nil || person.ID == 0 {
		t.Fatalf("user show: %v", err)
	}
	return "/var/lib/gpulab/homes/" + strconv.FormatInt(person.ID, 10)
}

// testBringFilesIn: a student copies a folder into the lab, is interrupted, goes on where it stopped, and sees in a
// notebook what belongs to them; and back.
func testBringFilesIn(t *testing.T, a *appliance) {
	b := a.guest.For(t).Tab()
	b.Open(pages + "/account")
	b.WaitFor("the line to copy", `document.querySelector("#files-cp")?.value === "gpulab cp -r ./data lab:data"`)
	b.Pictures("account-files")
	var fingerprint string
	for _, c := range a.status(t).Components {
		if c.Name == "files" {
			_, fingerprint, _ = strings.Cut(c.Detail, "host key ")
		}
	}
	if !strings.HasPrefix(fingerprint, "SHA256:") || !strings.Contains(strings.ReplaceAll(b.Text("#files"), "\n", ""), fingerprint) {
		t.Errorf("the page does not show the host key that the status names: %q", fingerprint)
	}
	l := newLaptop(t, a, b, guestHandle)
	data := filepath.Join(l.dir, "data")
	big := make([]byte, 512<<20)
	_, _ = rand.NewChaCha8([32]byte{5}).Read(big)
	sum := fmt.Sprintf("%x", sha256.Sum256(big))
	for name, text := range map[string][]byte{"big.bin": big, "notes/ä b.txt": []byte("grüße"), "notes/empty": nil} {
		path := filepath.Join(data, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	home := homeOf(t, a, guestHandle)

	cmd, said := l.command("cp", "-r", "data", "lab:data")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	half := func() bool {
		list, _ := filepath.Glob(a.Path(home + "/data/big.bin.*.partial"))
		if len(list) == 0 {
			return false
		}
		info, err := os.Stat(list[0])
		return err == nil && info.Size() > int64(len(big)/4)
	}
	for !half() {
		select {
		case err := <-done:
			t.Fatalf("the copy ended before it was half there: %v\n%s", err, said)
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || !strings.Contains(said.String(), "goes on where it stopped") {
		t.Fatalf("interrupted: %v\n%s", err, said)
	}
	if _, err := os.Stat(a.Path(home + "/data/big.bin")); err == nil {
		t.Error("a file that is not complete has its name")
	}
	began := time.Now()
	c := l.cp(t, "-r", "--check", "data", "lab:data")
	if c.Kept < int64(len(big)/8) || len(c.Failed)+len(c.Skipped) != 0 || c.Copied == 0 {
		t.Errorf("going on: %+v", c)
	}
	t.Logf("going on: %d MiB of %d were there, the rest and the checksums took %s", c.Kept>>20, len(big)>>20, time.Since(began).Round(time.Millisecond))
	if c = l.cp(t, "-r", "data", "lab:data"); c.Unchanged != 3 || c.Bytes != 0 {
		t.Errorf("once more: %+v", c)
	}

	launch(b, "cpu", "Files")
	waitJupyterLab(b, guestHandle)
	k := newKernel(b)
	got := k.run(t, `import hashlib, os, pathlib
data = pathlib.Path.home() / "data"
print(sorted(str(p.relative_to(data)) for p in data.rglob("*") if p.is_file()))
print({p.stat().st_uid == os.getuid() for p in [data, *data.rglob("*")]})
print(hashlib.sha256((data / "big.bin").read_bytes()).hexdigest())
(data / "big.bin").unlink()
results = pathlib.Path.home() / "results"
results.mkdir()
(results / "loss.csv").write_text("0.5\n")`)
	for _, want := range []string{"['big.bin', 'notes/empty', 'notes/ä b.txt']", "{True}", sum} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not what the notebook sees:\n%s", want, got)
		}
	}
	l.cp(t, "-r", "lab:results", ".")
	if text, err := os.ReadFile(filepath.Join(l.dir, "results/loss.csv")); err != nil || string(text) != "0.5\n" {
		t.Errorf("what came back: %q, %v", text, err)
	}

	// Revoking the token takes the way, and nothing of it is left on the head.
	b.Open(pages + "/account")
	b.Click("main", "Revoke my laptop")
	b.Click("dialog[open]", "Revoke")
	b.WaitFor("the page without it", `!document.querySelector("dialog[open]") && !document.querySelector("main").innerText.includes("my laptop")`)
	cmd, said = l.command("cp", "-r", "data", "lab:data")
	if err := cmd.Run(); err == nil {
		t.Errorf("a revoked token still copies:\n%s", said)
	}
	a.eventually(t, "no session is left", func() bool { return a.Run(a.ctx, "pgrep", "-f", "sftp-session").Code == 1 })
}
