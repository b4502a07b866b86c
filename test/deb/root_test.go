//go:build deb

package deb

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// inRoot are Debian's packages of the root beside the essential ones: what gpulab
// depends on, so that installing it needs nothing from Debian.
var inRoot = []string{"ca-certificates", "debconf", "ipset", "iproute2", "iptables", "kmod", "mount", "nftables"}

// root is a small Debian in a folder.
type root struct {
	t   *testing.T
	dir string
}

// newRoot unpacks a fresh Debian 12, with further packages on demand.
func newRoot(t *testing.T, further ...string) root {
	t.Helper()
	return newRootOf(t, "bookworm", further...)
}

// newRootOf unpacks a fresh Debian of a release. It is made once and kept in the
// user's cache folder, under a name of what it is made from.
func newRootOf(t *testing.T, release string, further ...string) root {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("root is needed to unpack a Debian and install packages in it; run `sudo go tool task labs`")
	}
	args := []string{"--variant=apt", "--mode=root", "--aptopt=Acquire::Retries 3", "--include=" + strings.Join(slices.Concat(inRoot, further), ","), release}
	archive := kept(t, "root", strings.Join(args, "\n"), ".tar", func(fresh string) {
		must(t, exec.Command("mmdebstrap", append(args, fresh)...))
	})
	r := root{t, t.TempDir()}
	must(t, exec.Command("tar", "-C", r.dir, "--numeric-owner", "-xf", archive))
	r.write("/etc/apt/sources.list", "")
	return r
}

// kept is a file of the user's cache folder, under a name of what it is made from,
// and with an ending. It is made when it is not there yet.
func kept(t *testing.T, what, from, ending string, write func(fresh string)) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	key := sha256.Sum256([]byte(from))
	file := filepath.Join(cache, "gpulab", "test-deb-"+what+"-"+hex.EncodeToString(key[:6])+ending)
	if _, err := os.Stat(file); err == nil {
		return file
	}
	t.Logf("making %s", file)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	fresh := file + ".new" + ending // programs go by the ending
	write(fresh)
	if err := os.Rename(fresh, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// run runs a shell script in the root, on this machine's network.
func (r root) run(script string) string {
	r.t.Helper()
	out, err := r.try(script)
	if err != nil {
		r.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

func (r root) try(script string) (string, error) {
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc="+r.dir+"/proc",
		"chroot", r.dir, "/bin/sh", "-ec", script)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (r root) write(path, text string) {
	r.t.Helper()
	full := filepath.Join(r.dir, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// files lists every file of the root with what it is, but what package managers
// keep about themselves.
func (r root) files() map[string]string {
	r.t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(r.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, r.dir)
		for _, own := range []string{"/proc", "/var/lib/dpkg", "/var/lib/apt", "/var/cache/apt", "/var/cache/debconf", "/var/cache/ldconfig", "/var/log"} {
			if strings.HasPrefix(name, own+"/") {
				if d.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		found[name] = info.Mode().String()
		if d.Type().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(data)
			found[name] += " " + hex.EncodeToString(sum[:4])
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return found
}

// changes lists what differs between two lists of files.
func changes(before, after map[string]string) []string {
	var out []string
	for name, was := range before {
		if now, there := after[name]; !there {
			out = append(out, "gone: "+name)
		} else if now != was {
			out = append(out, "changed: "+name+" "+was+" → "+now)
		}
	}
	for name := range after {
		if _, there := before[name]; !there {
			out = append(out, "new: "+name)
		}
	}
	slices.Sort(out)
	return out
}

func must(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out.String())
	}
	return out.String()
}
