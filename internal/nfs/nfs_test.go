package nfs

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var folders = []Folder{{Path: "/var/lib/gpulab/homes", Root: true}, {Path: "/srv/our lab/folders"}}

func lines(list []byte) (out []string) {
	for line := range strings.Lines(string(list)) {
		if !strings.HasPrefix(line, "#") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

func TestExports(t *testing.T) {
	if Exports("id", folders, nil) != nil {
		t.Error("without machines something is exported")
	}
	two, ten := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.10")
	got := lines(Exports("id", folders, []netip.Addr{ten, two, ten}))
	if len(got) != 4 {
		t.Fatalf("%q", got)
	}
	for i, want := range []string{
		"/var/lib/gpulab/homes 10.0.0.2(rw,sync,sec=sys,no_root_squash,no_subtree_check,fsid=",
		`/srv/our\040lab/folders 10.0.0.2(rw,sync,sec=sys,root_squash,no_subtree_check,fsid=`,
		"/var/lib/gpulab/homes 10.0.0.10(",
		`/srv/our\040lab/folders 10.0.0.10(`,
	} {
		if !strings.HasPrefix(got[i], want) {
			t.Errorf("%s, want %s…", got[i], want)
		}
		if strings.Contains(got[i], "*") || strings.Count(got[i], "(") != 1 {
			t.Errorf("%s is for more than one machine", got[i])
		}
	}
	// Handles outlast a restart, and folders and labs are told apart.
	fsidOf := func(line string) string { _, id, _ := strings.Cut(line, "fsid="); return strings.TrimSuffix(id, ")") }
	if fsidOf(got[0]) != fsidOf(got[2]) || fsidOf(got[0]) == fsidOf(got[1]) || len(fsidOf(got[0])) != 36 {
		t.Errorf("%q", got)
	}
	if other := lines(Exports("other", folders, []netip.Addr{two})); fsidOf(other[0]) == fsidOf(got[0]) {
		t.Error("two labs have the same handles")
	}
}

func TestMountArguments(t *testing.T) {
	got := strings.Join(MountArguments(netip.MustParseAddr("10.0.0.1"), "/var/lib/gpulab/homes"), " ")
	if want := "-t nfs4 -o " + Options + " 10.0.0.1:/var/lib/gpulab/homes /var/lib/gpulab/homes"; got != want {
		t.Errorf("%s", got)
	}
	for _, option := range []string{"hard", "nfsvers=4.2", "nosuid", "nodev"} {
		if !strings.Contains(","+Options+",", ","+option+",") {
			t.Errorf("mounts are not %s", option)
		}
	}
	if got := MountArguments(netip.MustParseAddr("fd00::1"), "/h"); got[4] != "[fd00::1]:/h" {
		t.Errorf("%q", got)
	}
}

// program makes one that notes its arguments and ends with a code.
func program(t *testing.T, dir, name, script string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestExport: the list is written in one step, told to the kernel once, and
// taken away with the last machine.
func TestExport(t *testing.T) {
	m := Machine{Root: t.TempDir()}
	bin, calls := t.TempDir(), filepath.Join(t.TempDir(), "calls")
	program(t, bin, "exportfs", `echo "$@" >> `+calls)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	list := Exports("id", folders, []netip.Addr{netip.MustParseAddr("10.0.0.2")})
	file := filepath.Join(m.Root, ExportsFile)
	for i, step := range []struct {
		list    []byte
		changed bool
	}{{nil, false}, {list, true}, {list, false}, {nil, true}, {nil, false}} {
		changed, err := m.Export(t.Context(), step.list)
		if err != nil || changed != step.changed {
			t.Errorf("step %d: %v, %v", i, changed, err)
		}
		if got, _ := os.ReadFile(file); string(got) != string(step.list) {
			t.Errorf("step %d: the file says %q", i, got)
		}
	}
	if got, _ := os.ReadFile(calls); string(got) != "-ra\n-ra\n" {
		t.Errorf("exportfs was called with %q", got)
	}
	if left, _ := os.ReadDir(filepath.Dir(file)); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	// One that fails is tried again.
	program(t, bin, "exportfs", "echo no such thing >&2; exit 1")
	if _, err := m.Export(t.Context(), list); err == nil || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("%v", err)
	}
	program(t, bin, "exportfs", "exit 0")
	if changed, err := m.Export(t.Context(), list); err != nil || !changed {
		t.Errorf("after a failure: %v, %v", changed, err)
	}
	// The last machine goes, and the kernel does not hear of it: a later start tells it again.
	program(t, bin, "exportfs", "exit 1")
	if _, err := m.Export(t.Context(), nil); err == nil {
		t.Error("what the kernel did not take is taken for done")
	}
	if got, _ := os.ReadFile(file); strings.Contains(string(got), "10.0.0.2") {
		t.Errorf("a machine that has gone may mount: %s", got)
	}
	program(t, bin, "exportfs", `echo "$@" > `+calls)
	if changed, err := m.Export(t.Context(), nil); err != nil || !changed {
		t.Errorf("the next try: %v, %v", changed, err)
	}
	if got, _ := os.ReadFile(calls); string(got) != "-ra\n" {
		t.Errorf("exportfs was called with %q", got)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the list is there still: %v", err)
	}
}

func TestMissing(t *testing.T) {
	m := Machine{Root: t.TempDir()}
	missing := func(err error, says string) {
		t.Helper()
		if e := (*MissingError)(nil); !errors.As(err, &e) || !strings.Contains(e.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
	missing(m.CanServe(), "apt-get install nfs-kernel-server")
	missing(m.CanMount(), "apt-get install nfs-common")
	program(t, filepath.Join(m.Root, "usr/sbin"), "exportfs", "")
	program(t, filepath.Join(m.Root, "sbin"), "mount.nfs4", "")
	missing(m.CanServe(), "cannot serve NFS")
	missing(m.CanMount(), "cannot mount NFS")
	// A module that is not loaded yet is loaded when it is needed.
	for path, text := range map[string]string{
		"proc/sys/kernel/osrelease":     "6.1.0\n",
		"lib/modules/6.1.0/modules.dep": "kernel/fs/nfsd/nfsd.ko.xz: x\nkernel/fs/nfs/nfsv4.ko: y\n",
	} {
		if err := os.MkdirAll(filepath.Join(m.Root, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(m.Root, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(m.CanServe(), m.CanMount()); err != nil {
		t.Error(err)
	}
}
