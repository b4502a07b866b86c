// Package nfs has the head's homes on the other machines of its pool, over
// NFSv4.2: what the head lets whom have, by Debian's nfs-kernel-server, and how a
// machine mounts it. Who may read what is decided by user IDs, which are the
// same on every machine because gpulab gives them.
//
// cmd/gpulab imports it; it imports no other package of gpulab.
package nfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

// Port is where an NFS server listens, TCP.
const Port = 2049

// ExportsFile is gpulab's own among the lists of what is exported.
const ExportsFile = "/etc/exports.d/gpulab.exports"

// Folder is one that the head exports.
type Folder struct {
	Path string // absolute, the same on every machine
	// Root lets the root of the machines be root in it.
	Root bool
}

// Exports renders the list in the form of exports(5): one line for each machine
// and folder. id is the lab's, by which a folder keeps its handles whatever disk
// it is on. Without machines there is no list.
func Exports(id string, folders []Folder, machines []netip.Addr) []byte {
	if len(machines) == 0 {
		return nil
	}
	var b bytes.Buffer
	b.WriteString(`# Written by gpulab: homes and shared folders, for the machines of its pool alone.
# It is written anew when a machine comes, moves or goes; changes here are lost.
# no_root_squash stands where a machine's root has to work: before a notebook
# starts, its runtime makes the places of shared folders in the home.
`)
	machines = slices.Clone(machines)
	slices.SortFunc(machines, netip.Addr.Compare)
	for _, m := range slices.Compact(machines) {
		for _, f := range folders {
			squash := "root_squash"
			if f.Root {
				squash = "no_root_squash"
			}
			fmt.Fprintf(&b, "%s %s(rw,sync,sec=sys,%s,no_subtree_check,fsid=%s)\n", quoted(f.Path), m, squash, fsid(id, f.Path))
		}
	}
	return b.Bytes()
}

// quoted writes a path as exports(5) takes it, which knows octal escapes.
func quoted(path string) string {
	var b strings.Builder
	for _, c := range []byte(path) {
		if c <= ' ' || c == '"' || c == '\\' || c == '#' || c > '~' {
			fmt.Fprintf(&b, `\%03o`, c)
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

// fsid is a UUID: without one a file system that has none itself, such as ZFS,
// cannot be exported, and one that is mounted from another disk looks new.
func fsid(id, path string) string {
	s := sha256.Sum256([]byte("gpulab export\x00" + id + "\x00" + path))
	return fmt.Sprintf("%x-%x-%x-%x-%x", s[:4], s[4:6], s[6:8], s[8:10], s[10:16])
}

// Options are those of a machine's mounts. A mount is hard: a program waits
// while the head is away, and loses nothing. What is in homes is no device and
// gives nobody other rights.
const Options = "rw,hard,nfsvers=4.2,proto=tcp,sec=sys,timeo=600,retrans=2,nosuid,nodev,noatime"

// MountArguments are those of mount(8) for one folder of the head's.
func MountArguments(head netip.Addr, path string) []string {
	host := head.String()
	if head.Is6() {
		host = "[" + host + "]"
	}
	return []string{"-t", "nfs4", "-o", Options, host + ":" + path, path}
}

// Machine is where programs and the kernel are looked at, "/" but in tests.
type Machine struct{ Root string }

// MissingError says what a machine lacks, and what brings it.
type MissingError struct{ Seen, Mend string }

func (e *MissingError) Error() string { return e.Seen + ": " + e.Mend }

// CanServe tells whether this machine can export folders; the error is a
// MissingError.
func (m Machine) CanServe() error {
	if !m.has("exportfs") {
		return &MissingError{"this machine has no NFS server", "run `apt-get install nfs-kernel-server`"}
	}
	return m.kernel("nfsd", "serve")
}

// CanMount tells whether this machine can mount what a head exports; the error
// is a MissingError.
func (m Machine) CanMount() error {
	if !m.has("mount.nfs4") {
		return &MissingError{"this machine cannot mount NFS", "run `apt-get install nfs-common`"}
	}
	return m.kernel("nfs4", "mount")
}

func (m Machine) has(program string) bool {
	for _, dir := range []string{"usr/sbin", "sbin", "usr/bin", "usr/local/sbin"} {
		if info, err := os.Stat(filepath.Join(m.Root, dir, program)); err == nil && info.Mode()&0o111 != 0 {
			return true
		}
	}
	return false
}

// kernel tells whether the kernel knows a file system, or has a module for it.
func (m Machine) kernel(name, does string) error {
	read := func(path string) string {
		data, _ := os.ReadFile(filepath.Join(m.Root, path))
		return string(data)
	}
	for line := range strings.Lines(read("proc/filesystems")) {
		if f := strings.Fields(line); len(f) > 0 && f[len(f)-1] == name {
			return nil
		}
	}
	module := map[string]string{"nfsd": "/nfsd.ko", "nfs4": "/nfsv4.ko"}[name]
	release := strings.TrimSpace(read("proc/sys/kernel/osrelease"))
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		if strings.Contains(read(filepath.Join("lib/modules", release, list)), module) {
			return nil
		}
	}
	return &MissingError{
		fmt.Sprintf("the kernel of this machine (%s) cannot %s NFS", release, does),
		"run Debian's own kernel, `apt-get install linux-image-amd64` and reboot, or a virtual machine in place of a " +
			"container",
	}
}

// patience is how long exportfs and mount may take.
const patience = 20 * time.Second

// Export makes the kernel export what a list says, and nothing else of gpulab's.
// An empty list takes the file away. It says whether something changed; what went
// wrong is tried again by the next call, of a later start too.
func (m Machine) Export(ctx context.Context, list []byte) (changed bool, err error) {
	path := filepath.Join(m.Root, ExportsFile)
	old, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && len(list) == 0:
		return false, nil
	case err == nil && len(list) > 0 && bytes.Equal(old, list):
		return false, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	// The file says so itself until the kernel knows it: were that lost, by a fault or
	// a kill in between, whoever is no longer in the list could go on mounting.
	if _, err := atomicfile.Update(path, append([]byte(unread), list...), 0o644, 0o755); err != nil {
		return false, fmt.Errorf("what is exported over NFS: %w", err)
	}
	// Without the program there is no server: whoever took it away has ended the exports with it.
	if err := m.run(ctx, "exportfs", "-ra"); err != nil && (len(list) > 0 || !errors.Is(err, exec.ErrNotFound)) {
		return true, err
	}
	if len(list) == 0 {
		err = os.Remove(path)
	} else {
		_, err = atomicfile.Update(path, list, 0o644, 0o755)
	}
	if err != nil {
		return true, fmt.Errorf("what is exported over NFS: %w", err)
	}
	return true, nil
}

// unread stands in the list before exportfs has read it.
const unread = "# exportfs has not read this yet\n"

// Mount has a folder of the head's at the same path here. Nothing may be mounted
// there yet.
func (m Machine) Mount(ctx context.Context, head netip.Addr, path string) error {
	return m.run(ctx, "mount", MountArguments(head, path)...)
}

func (m Machine) run(ctx context.Context, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		said := strings.Join(strings.Fields(string(out)), " ")
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, said)
	}
	return nil
}
