package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Debian 12: jupyterhub and everything else is locked against its Python 3.11.
const (
	suite         = "bookworm"
	debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// sources are where packages come from; Debian keeps only the newest version of
// a package in each.
var sources = []string{
	"deb [signed-by=" + debianKeyring + "] http://deb.debian.org/debian bookworm main",
	"deb [signed-by=" + debianKeyring + "] http://deb.debian.org/debian bookworm-updates main",
	"deb [signed-by=" + debianKeyring + "] http://deb.debian.org/debian-security bookworm-security main",
}

// leftOut are files of packages that nobody reads in a container. Licences stay.
// The static Python library is only for embedding Python into other programs,
// and lto-dump only for people who write compilers.
var leftOut = []string{
	"path-exclude=/usr/share/man/*",
	"path-exclude=/usr/share/info/*",
	"path-exclude=/usr/share/doc/*",
	"path-include=/usr/share/doc/*/copyright",
	"path-exclude=/usr/share/locale/*",
	"path-exclude=/usr/share/bug/*",
	"path-exclude=/usr/share/lintian/*",
	"path-exclude=/usr/lib/python3.11/config-3.11-x86_64-linux-gnu/*.a",
	"path-exclude=/usr/lib/x86_64-linux-gnu/libpython3.11*.a",
	"path-exclude=/usr/bin/*lto-dump*",
}

// aptLock is what was installed when a lock was written: package → version.
type aptLock map[string]string

// readAptLock reads "package version" lines; # starts a comment. A file that is
// not there is an empty lock.
func readAptLock(file string) (aptLock, error) {
	f, err := os.Open(file)
	if os.IsNotExist(err) {
		return aptLock{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lock, err := parseAptLock(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return lock, nil
}

func parseAptLock(r io.Reader) (aptLock, error) {
	lock := aptLock{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(text)
		switch {
		case len(fields) == 0:
			continue
		case len(fields) != 2:
			return nil, fmt.Errorf("line %d: want a package and its version, got %q", n, text)
		case lock[fields[0]] != "":
			return nil, fmt.Errorf("line %d: %s is locked twice", n, fields[0])
		}
		lock[fields[0]] = fields[1]
	}
	return lock, lines.Err()
}

// format is the lock as a file, dated.
func (l aptLock) format(folder string, day time.Time) string {
	var s strings.Builder
	fmt.Fprintf(&s, "# Debian packages of the layer %q as served by %s on %s.\n", folder, suite, day.Format(time.DateOnly))
	s.WriteString("# Written by the builder with -refresh.\n")
	for _, name := range l.names() {
		fmt.Fprintf(&s, "%s %s\n", name, l[name])
	}
	return s.String()
}

func (l aptLock) names() []string {
	names := make([]string, 0, len(l))
	for name := range l {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// preferences tell apt to take exactly the locked versions where Debian still
// serves them, even below a newer one; elsewhere apt takes the newest.
func (l aptLock) preferences() string {
	var s strings.Builder
	for _, name := range l.names() {
		fmt.Fprintf(&s, "Package: %s\nPin: version %s\nPin-Priority: 1001\n\n", name, l[name])
	}
	return s.String()
}

// drift says, one sentence each, where installed differs from the lock.
func (l aptLock) drift(installed aptLock) []string {
	var out []string
	for _, name := range installed.names() {
		switch locked, ok := l[name]; {
		case !ok:
			out = append(out, fmt.Sprintf("%s %s is not in the lock", name, installed[name]))
		case locked != installed[name]:
			out = append(out, fmt.Sprintf("%s is %s, locked %s, which Debian no longer serves", name, installed[name], locked))
		}
	}
	for _, name := range l.names() {
		if _, ok := installed[name]; !ok {
			out = append(out, fmt.Sprintf("%s %s is locked, but nothing needs it", name, l[name]))
		}
	}
	return out
}

// without returns l less the packages of lower.
func (l aptLock) without(lower aptLock) aptLock {
	out := aptLock{}
	for name, version := range l {
		if _, ok := lower[name]; !ok {
			out[name] = version
		}
	}
	return out
}

// readList reads names, one a line; # starts a comment.
func readList(file string) ([]string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(data)) {
		text, _, _ := strings.Cut(line, "#")
		if text = strings.TrimSpace(text); text != "" {
			names = append(names, text)
		}
	}
	return names, nil
}

// debootstrap makes a Debian root in dir with the packages and locks of the
// folders, and returns what it installed. Locks are not used when fresh.
func (b *builder) debootstrap(ctx context.Context, dir string, folders []string, fresh bool, log io.Writer) (aptLock, error) {
	var packages []string
	locks := aptLock{}
	for _, folder := range folders {
		list, err := readList(filepath.Join(b.source, folder, "packages.txt"))
		if err != nil {
			return nil, err
		}
		packages = append(packages, list...)
		absent, err := standIns(ctx, filepath.Join(b.source, folder, "absent.txt"), dir+".absent")
		if err != nil {
			return nil, err
		}
		packages = append(packages, absent...)
		lock, err := readAptLock(filepath.Join(b.source, folder, "packages.lock"))
		if err != nil {
			return nil, err
		}
		for name, version := range lock {
			locks[name] = version
		}
	}
	defer os.RemoveAll(dir + ".absent")
	args := []string{"--mode=root", "--format=directory", "--variant=essential", "--architectures=amd64",
		"--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", "--hook-dir=/usr/share/mmdebstrap/hooks/file-mirror-automount",
		"--include=" + strings.Join(packages, ",")}
	for _, option := range leftOut {
		args = append(args, "--dpkgopt="+option)
	}
	if !fresh {
		pins := dir + ".preferences"
		if err := os.WriteFile(pins, []byte(locks.preferences()), 0o644); err != nil {
			return nil, err
		}
		defer os.Remove(pins)
		args = append(args, fmt.Sprintf(`--setup-hook=install -D -m 0644 %s "$1/etc/apt/preferences.d/gpulab-lock"`, pins))
	}
	args = append(args, suite, dir)
	env := append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", epoch.Unix()))
	if err := execute(ctx, log, env, "mmdebstrap", append(args, sources...)...); err != nil {
		return nil, err
	}
	// Debian compiles by the sources' times, which all become epoch.
	compile := `find /usr/lib/python3* /usr/share/python3 -name __pycache__ -prune -exec rm -r {} + &&
		python3 -m compileall -q -j 1 --invalidation-mode unchecked-hash /usr/lib/python3 /usr/lib/python3.11`
	if err := (root{dir}).run(ctx, invocation{args: []string{"/bin/sh", "-c", compile}, log: log}); err != nil {
		return nil, fmt.Errorf("compiling Python's library: %w", err)
	}
	return installed(ctx, dir)
}

// standIns makes an empty package of version 0 for each name in the list, if there is
// one, and returns where they are. A package that depends on them can be installed.
func standIns(ctx context.Context, list, dir string) ([]string, error) {
	names, err := readList(list)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var files []string
	for _, name := range names {
		content := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Join(content, "DEBIAN"), 0o755); err != nil {
			return nil, err
		}
		control := "Package: " + name + "\nVersion: 0\nArchitecture: amd64\nMaintainer: gpulab\n" +
			"Description: stands in for a package that nothing in this image uses\n"
		if err := os.WriteFile(filepath.Join(content, "DEBIAN/control"), []byte(control), 0o644); err != nil {
			return nil, err
		}
		file := content + ".deb"
		if _, err := output(ctx, "", "dpkg-deb", "--build", content, file); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// debianContent installs the packages of a part and of the layers below into a
// fresh root; what the layers below do not have is the part. Two whole installs
// need no package manager inside the images.
func (b *builder) debianContent(ctx context.Context, p part, below []layer, work string, log io.Writer) (tree, []string, error) {
	dir := filepath.Join(work, "root")
	got, err := b.debootstrap(ctx, dir, append(slices.Clone(p.on), p.folder), false, log)
	if err != nil {
		return nil, nil, err
	}
	for _, lower := range p.on {
		lock, err := readAptLock(filepath.Join(b.source, lower, "packages.lock"))
		if err != nil {
			return nil, nil, err
		}
		got = got.without(lock)
	}
	lock, err := readAptLock(filepath.Join(b.source, p.folder, "packages.lock"))
	if err != nil {
		return nil, nil, err
	}
	lower, err := stacked(below)
	if err != nil {
		return nil, nil, err
	}
	t, err := readTree(dir)
	if err != nil {
		return nil, nil, err
	}
	return t.diff(lower), lock.drift(got), nil
}

// installed asks a root's package database. Architecture suffixes are left out:
// an image has one architecture.
func installed(ctx context.Context, dir string) (aptLock, error) {
	out, err := output(ctx, "", "dpkg-query", "--admindir="+filepath.Join(dir, "var/lib/dpkg"),
		"-W", "-f", "${Package} ${Version}\n")
	if err != nil {
		return nil, err
	}
	return parseAptLock(strings.NewReader(out))
}
