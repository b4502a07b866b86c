package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// Template is a host whose state takes long to make. The first test that starts
// one makes it; its files are then kept in the user's cache, and every test
// starts a copy.
type Template struct {
	Name string
	// Recipe is what Make does, as JSON. A changed recipe makes a new template, as
	// another gpulab, other images, another host script and another machine do.
	Recipe any
	// Make brings a fresh host into the state.
	Make func(t testing.TB, l *Lab)
}

// Start makes a host that begins as the template was left: with its files, as
// after a reboot.
func (tpl Template) Start(t testing.TB) *Lab {
	t.Helper()
	recipe, err := json.Marshal(tpl.Recipe)
	if err != nil {
		t.Fatal(err)
	}
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	bin := programs(t)
	from := fmt.Sprintf("%s\n%s\n%s\n%s\n%s", recipe, name, hostScript, bin,
		Contents(t, "/etc/machine-id", filepath.Join(bin, "images/images.json"), filepath.Join(bin, "gpulab")))
	folder := Kept(t, "labs-"+tpl.Name, from, func(folder string) { tpl.make(t, folder) })
	return newLab(t, "KEPT="+folder)
}

// make makes a host, brings it into the state, shuts it down, and writes its
// files to the folder.
func (tpl Template) make(t testing.TB, folder string) {
	began := time.Now()
	l := newLab(t)
	defer l.endNow()
	tpl.Make(t, l)
	if t.Failed() {
		t.FailNow()
	}
	made := time.Since(began)
	l.shutDown(t)
	// Nothing writes while the disk is copied, and its journal is empty.
	cmd := exec.CommandContext(t.Context(), "nsenter", "--target", strconv.Itoa(l.visitor), "--mount", "--", "bash", "-euc", `
		tar -C "$0/scratch/upper" --xattrs --xattrs-include='*' --one-file-system -cpf "$1/upper.tar" .
		if [ -e "$0/disk.img" ]; then
			fsfreeze --freeze "$0/disk"
			trap 'fsfreeze --unfreeze "$0/disk"' EXIT
			cp --sparse=always "$0/disk.img" "$1/disk.img"
		else
			cp -a "$0/disk" "$1/disk"
		fi`, l.dir, folder)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("template %s: keep the files: %v\n%s", tpl.Name, err, out)
	}
	t.Logf("template %s: made in %.1f s, kept after %.1f s", tpl.Name, made.Seconds(), time.Since(began).Seconds())
}

// shutDown ends everything on the host, as a machine does that is switched off.
func (l *Lab) shutDown(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, name := range []string{"gpulab", "k3s"} {
		for l.Kill(ctx, "TERM", name) > 0 {
			if ctx.Err() != nil {
				t.Fatalf("%s does not end", name)
			}
			time.Sleep(500 * time.Millisecond)
		}
	}
	l.MustGpulab(ctx, "end-pods")
	l.Run(ctx, "sh", "-c", "kill -KILL -1") // all but process 1 of the host, and this shell
}

// endNow ends the host before its test does.
func (l *Lab) endNow() {
	if !l.ended {
		l.ended = true
		l.end()
	}
}
