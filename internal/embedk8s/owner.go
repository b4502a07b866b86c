package embedk8s

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

// Kubernetes uses the same folders, interfaces and firewall rules on every machine, whoever runs it. So each data
// folder records that its k3s was started here, and the kubelet's folder records which data folder that was. Reset
// removes only what the two records agree on. Neither record is in /run, which a reboot empties.
const (
	hereFile  = "machine.json"                // in the data folder
	ownerFile = "var/lib/kubelet/gpulab.json" // below the machine's root
)

// owner is the content of both records.
type owner struct {
	// ID names the data folder, also after somebody has moved it.
	ID      string `json:"id"`
	DataDir string `json:"dataDir"`
	// Here says that this k3s was started on this machine and has not been taken off it since.
	Here bool `json:"here"`
	// Before are the paths that were there before this k3s was first started. They are not ours to remove.
	Before []string `json:"before,omitempty"`
	// Node says that the node's password is this k3s's, although it was taken off: it goes on later as the same node.
	Node bool `json:"node,omitempty"`
}

// Claim records that the k3s of this data folder is about to be started on this machine. It refuses a machine that has
// the Kubernetes of another data folder.
func (c *Cluster) Claim() error { return ground{"/"}.claim(resolved(c.cfg.DataDir)) }

// Made tells whether the k3s of this data folder has been started on this machine, and not been taken off it since. The
// error says whose Kubernetes is here when it is another data folder's.
func Made(dataDir string) (bool, error) { return ground{"/"}.made(resolved(dataDir)) }

// Other names the data folder of another lab whose Kubernetes is on this machine, "" for none.
func Other(dataDir string) string { return ground{"/"}.other(resolved(dataDir)) }

// ground is where the folders are that every Kubernetes uses.
type ground struct {
	root string // "/", but in tests
}

// shared are the folders outside the data folder in which k3s makes things. The paths in them that match are k3s's.
var shared = []struct {
	dir  string
	made []string
}{
	{"/run/k3s", []string{"*"}},
	{"/run/flannel", []string{"*"}},
	// Podman, for example, has networks of its own here.
	{"/var/lib/cni/networks", []string{"cbr0"}},
	{"/var/lib/cni/results", []string{"cbr0-*", "cni-loopback-*"}},
	{"/var/lib/cni/flannel", []string{"*"}},
	{"/var/lib/cni", nil},
	{"/etc/rancher", []string{"k3s", nodeFolder}},
	{"/var/log/pods", []string{"*"}},
	{"/var/log/containers", []string{"*"}},
	{"/var/lib/kubelet", []string{"*"}},
}

// nodeFolder holds the password under which the node is known to its cluster.
const nodeFolder = "node"

// content lists what is in the folder that a Kubernetes makes.
func (m ground) content(dir string, patterns []string) (paths []string) {
	for _, p := range patterns {
		found, _ := filepath.Glob(filepath.Join(m.root, dir, p))
		paths = append(paths, found...)
	}
	return paths
}

func (m ground) claim(dataDir string) error {
	own, err := readOwner(filepath.Join(dataDir, hereFile))
	if err != nil {
		return err
	}
	if other := m.other(dataDir); other != "" {
		return elsewhere(other)
	}
	made, err := m.made(dataDir)
	if err != nil {
		return err
	}
	if own == nil {
		own = &owner{ID: rand.Text()}
	}
	if !made {
		own.Before = m.present(dataDir, own.Node)
	}
	own.DataDir, own.Here, own.Node = dataDir, true, false
	// In this order: were the second one missing, the first one would do.
	for _, path := range []string{filepath.Join(dataDir, hereFile), filepath.Join(m.root, ownerFile)} {
		if err := own.write(path); err != nil {
			return err
		}
	}
	return nil
}

// present lists what is in the shared folders now, before the k3s of this data folder is started. ownNode says that the
// node's password is this lab's.
func (m ground) present(dataDir string, ownNode bool) (paths []string) {
	for _, s := range shared {
		if strings.HasPrefix(s.dir, "/run/") {
			continue // gone with the next boot
		}
		if _, err := os.Lstat(filepath.Join(m.root, s.dir)); err == nil {
			paths = append(paths, s.dir)
		}
		for _, path := range m.content(s.dir, s.made) {
			paths = append(paths, filepath.Join("/", m.inside(path)))
		}
	}
	// A cluster that goes on here left its node's password, see Reset.
	if _, err := os.Lstat(filepath.Join(dataDir, "k3s")); err == nil || ownNode {
		node := filepath.Join("/etc/rancher", nodeFolder)
		paths = slices.DeleteFunc(paths, func(p string) bool { return p == node || p == filepath.Dir(node) })
	}
	return paths
}

// inside is a path as the machine itself has it.
func (m ground) inside(path string) string {
	rel, err := filepath.Rel(m.root, path)
	if err != nil {
		return path
	}
	return rel
}

func (m ground) made(dataDir string) (bool, error) {
	own, err := readOwner(filepath.Join(dataDir, hereFile))
	if err != nil {
		return false, err
	}
	there, err := readOwner(filepath.Join(m.root, ownerFile))
	if err != nil {
		return false, err
	}
	// gpulab before these records left no other sign of a k3s that ran than its state and a staged runtime, of which a
	// reset takes at least the runtime.
	_, staged := os.Lstat(Current(dataDir))
	_, state := os.Lstat(filepath.Join(dataDir, "k3s"))
	switch {
	case there != nil && own != nil && there.ID == own.ID:
	case own != nil && own.Here && staged == nil:
	case own == nil && state == nil && staged == nil:
	default:
		return false, nil
	}
	if other := m.other(dataDir); other != "" {
		return false, elsewhere(other)
	}
	return true, nil
}

// other names the data folder in the machine's record, if that is another one than dataDir and still there.
func (m ground) other(dataDir string) string {
	there, err := readOwner(filepath.Join(m.root, ownerFile))
	if err != nil || there == nil {
		return ""
	}
	// A lab whose data somebody has deleted or moved keeps nobody from this machine. A copy of the data has the same ID.
	theirs, err := readOwner(filepath.Join(there.DataDir, hereFile))
	if err != nil || theirs == nil || theirs.ID != there.ID {
		return ""
	}
	one, err1 := os.Stat(there.DataDir)
	two, err2 := os.Stat(dataDir)
	if err1 == nil && err2 == nil && os.SameFile(one, two) {
		return ""
	}
	return there.DataDir
}

// elsewhere says whose Kubernetes the machine has.
func elsewhere(other string) error {
	return fmt.Errorf("the Kubernetes on this machine belongs to the lab in %s, and a machine has room for one; "+
		"nothing was changed. "+
		"Take that lab off first, with `gpulab reset` and its --config, or delete the other data folder by hand", other)
}

// released records that nothing of k3s is left on the machine, with keepNode but the node's password.
func (m ground) released(dataDir string, keepNode bool) error {
	own, err := readOwner(filepath.Join(dataDir, hereFile))
	if err != nil {
		return err
	}
	path := filepath.Join(m.root, ownerFile)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if own == nil || !slices.Contains(own.Before, kubeletDir) {
		_ = os.Remove(filepath.Dir(path)) // where nothing else is in it, and it is no mount point
	}
	if own == nil {
		if _, err := os.Lstat(dataDir); err != nil {
			return nil //nolint:nilerr // the data folder is gone
		}
		own = &owner{ID: rand.Text()}
	}
	own.DataDir, own.Here, own.Node = dataDir, false, keepNode &&
		!slices.Contains(own.Before, filepath.Join("/etc/rancher", nodeFolder))
	own.Before = nil
	return own.write(filepath.Join(dataDir, hereFile))
}

// removeShared removes what k3s has made in the shared folders, and those of them that are empty then. With keepNode
// the password of the node stays. The machine's record stays too: it goes last, see released.
func (m ground) removeShared(before []string, keepNode bool) (err error) {
	for _, s := range shared {
		for _, path := range m.content(s.dir, s.made) {
			inside := filepath.Join("/", m.inside(path))
			switch {
			case slices.Contains(before, inside), inside == "/"+ownerFile:
			case keepNode && inside == filepath.Join("/etc/rancher", nodeFolder):
			default:
				err = errors.Join(err, removeContents(path))
			}
		}
		if !slices.Contains(before, s.dir) {
			_ = os.Remove(filepath.Join(m.root, s.dir)) // where nobody else keeps something in it
		}
	}
	return err
}

// before lists what was in the shared folders before the k3s of this data folder was first started.
func before(dataDir string) ([]string, error) {
	own, err := readOwner(filepath.Join(dataDir, hereFile))
	if err != nil || own == nil {
		return nil, err
	}
	return own.Before, nil
}

func readOwner(path string) (*owner, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var o owner
	if err := json.Unmarshal(data, &o); err != nil || o.ID == "" {
		return nil, fmt.Errorf("%s, which says whose Kubernetes this machine has, is damaged; delete it if no other lab "+
			"has its data here", path)
	}
	return &o, nil
}

func (o *owner) write(path string) error {
	data, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err
	}
	_, err = atomicfile.Update(path, append(data, '\n'), 0o600, 0o750)
	return err
}
