package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

// Template is a host, or several on one wire, whose state takes long to make. The first test that starts one makes it;
// the files are then kept in the user's cache, and every test starts copies.
type Template struct {
	Name string
	// Recipe is what Make does, as JSON. A changed recipe makes a new template, as
	// another gpulab, other images, another host script and another machine do.
	Recipe any
	// Beside are the hosts on the wire of the first one.
	Beside []Host
	// Shared is where all hosts have the same folder, as over a network; "" for none.
	Shared string
	// Make brings fresh hosts into the state. The first one is at Address.
	Make func(t testing.TB, hosts []*Lab)
}

// Start makes hosts that begin as those of the template were left: with their
// files, as after a reboot.
func (tpl Template) Start(t testing.TB) []*Lab {
	t.Helper()
	recipe, err := json.Marshal([]any{tpl.Recipe, tpl.Beside, tpl.Shared})
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
	return tpl.hosts(t, Kept(t, "labs-"+tpl.Name, from, func(folder string) { tpl.make(t, folder) }))
}

// hosts starts all hosts of the template, with the files of a folder that keep wrote, or as
// fresh ones where it is "".
func (tpl Template) hosts(t testing.TB, kept string) []*Lab {
	t.Helper()
	shared := ""
	if tpl.Shared != "" {
		shared = SharedFolder(t)
		if kept != "" {
			copyFolder(t, filepath.Join(kept, "shared"), shared)
		}
	}
	var hosts []*Lab
	for i := range 1 + len(tpl.Beside) {
		var env []string
		if kept != "" {
			env = append(env, "KEPT="+hostFolder(kept, i))
		}
		if i > 0 {
			env = append(env, hosts[0].beside(tpl.Beside[i-1])...)
		}
		l := newLab(t, env...)
		if l.shared = shared; shared != "" {
			l.MountShared(t.Context(), shared, tpl.Shared)
		}
		hosts = append(hosts, l)
	}
	return hosts
}

// hostFolder is where the files of a template's host lie in the folder that keeps them.
func hostFolder(kept string, i int) string { return filepath.Join(kept, "host"+strconv.Itoa(i)) }

// copyFolder copies what is in a folder into another one, with owners and times.
func copyFolder(t testing.TB, from, to string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		t.Fatalf("copy %s: %v\n%s", from, err, out)
	}
}

// make makes hosts, brings them into the state, shuts them down, and writes their files to the folder.
func (tpl Template) make(t testing.TB, folder string) {
	began := time.Now()
	hosts := tpl.hosts(t, "")
	tpl.Make(t, hosts)
	if t.Failed() {
		t.FailNow()
	}
	made := time.Since(began)
	// The first one last: the others belong to its lab, and are on its wire.
	for _, l := range slices.Backward(hosts) {
		l.shutDown(t)
	}
	for i, l := range slices.Backward(hosts) {
		l.keep(t, hostFolder(folder, i))
		l.endNow()
	}
	if tpl.Shared != "" {
		copyFolder(t, hosts[0].shared, filepath.Join(folder, "shared"))
	}
	t.Logf("template %s: made in %.1f s, kept after %.1f s", tpl.Name, made.Seconds(), time.Since(began).Seconds())
}

// keep writes the files of a host that was shut down to a new folder.
func (l *Lab) keep(t testing.TB, folder string) {
	t.Helper()
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	// Nothing writes while the disk is copied, and its journal is empty.
	cmd := exec.CommandContext(t.Context(), "nsenter", "--target", strconv.Itoa(l.visitor), "--mount", "--", "bash",
		"-euc", `
		tar -C "$0/scratch/upper" --xattrs --xattrs-include='*' --one-file-system -cpf "$1/upper.tar" .
		if [ -e "$0/disk.img" ]; then
			fsfreeze --freeze "$0/disk"
			trap 'fsfreeze --unfreeze "$0/disk"' EXIT
			cp --sparse=always "$0/disk.img" "$1/disk.img"
		else
			cp -a "$0/disk" "$1/disk"
		fi`, l.dir, folder)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("keep the files of a host: %v\n%s", err, out)
	}
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
