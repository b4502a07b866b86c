package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// suite is the Debian release that images are made of.
const (
	suite         = "trixie"
	debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// A folder with a file of this name takes some packages from an older release. Each line is a package of that release, or
// a pattern for several. A line that begins with "unpack" names a package whose dependencies the current release does not
// have: it is unpacked without them, and its scripts do not run.
const (
	olderFile  = "older.txt"
	olderSuite = "bookworm"
)

// sourcesOf are where packages of a release come from; Debian keeps only the newest version of a package in each.
func sourcesOf(release string) []string {
	signed := "deb [signed-by=" + debianKeyring + "] "
	return []string{
		signed + "http://deb.debian.org/debian " + release + " main",
		signed + "http://deb.debian.org/debian " + release + "-updates main",
		signed + "http://deb.debian.org/debian-security " + release + "-security main",
	}
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
	"path-exclude=/usr/lib/python3.*/config-3.*/*.a",
	"path-exclude=/usr/lib/x86_64-linux-gnu/libpython3.*.a",
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
	fmt.Fprintf(&s, "# Debian packages of the layer %q as served on %s.\n", folder, day.Format(time.DateOnly))
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
	var past older
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
		if err := past.read(filepath.Join(b.source, folder, olderFile)); err != nil {
			return nil, err
		}
		lock, err := readAptLock(filepath.Join(b.source, folder, "packages.lock"))
		if err != nil {
			return nil, err
		}
		for name, version := range lock {
			locks[name] = version
		}
	}
	defer os.RemoveAll(dir + ".absent")
	defer os.RemoveAll(dir + ".older")
	args := []string{"--mode=root", "--format=directory", "--variant=essential", "--architectures=amd64",
		"--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", "--hook-dir=/usr/share/mmdebstrap/hooks/file-mirror-automount",
		"--include=" + strings.Join(packages, ",")}
	for _, option := range leftOut {
		args = append(args, "--dpkgopt="+option)
	}
	preferences, sources := past.preferences(), sourcesOf(suite)
	if !fresh {
		preferences += locks.preferences()
	}
	pins := dir + ".preferences"
	if err := os.WriteFile(pins, []byte(preferences), 0o644); err != nil {
		return nil, err
	}
	defer os.Remove(pins)
	args = append(args, fmt.Sprintf(`--setup-hook=install -D -m 0644 %s "$1/etc/apt/preferences.d/gpulab"`, pins))
	if len(past.pinned) > 0 {
		sources = append(sources, sourcesOf(olderSuite)...)
	}
	if len(past.unpacked) > 0 {
		if err := os.Mkdir(dir+".older", 0o755); err != nil {
			return nil, err
		}
		args = append(args, fmt.Sprintf("--customize-hook=cd %s && APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -q download %s",
			dir+".older", strings.Join(past.unpacked, " ")))
	}
	args = append(args, suite, dir)
	env := append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", epoch.Unix()))
	// What it mounts does not outlive it, also when it is interrupted.
	args = append([]string{"--mount", "--propagation", "private", "mmdebstrap"}, append(args, sources...)...)
	if err := execute(ctx, log, env, "unshare", args...); err != nil {
		return nil, err
	}
	unpacked, err := past.unpack(ctx, dir+".older", dir, log)
	if err != nil {
		return nil, err
	}
	// Debian compiles by the sources' times, which all become epoch. Every Python has its own compiled files.
	compile := `set -e
		find /usr/lib/python3* /usr/share/python3 -name __pycache__ -prune -exec rm -r {} +
		for library in /usr/lib/python3.[0-9]*; do
			"${library##*/}" -m compileall -q -j 1 --invalidation-mode unchecked-hash "$library"
		done
		python3 -m compileall -q -j 1 --invalidation-mode unchecked-hash /usr/lib/python3`
	if err := (root{dir}).run(ctx, invocation{args: []string{"/bin/sh", "-c", compile}, log: log}); err != nil {
		return nil, fmt.Errorf("compiling Python's library: %w", err)
	}
	got, err := installed(ctx, dir)
	if err != nil {
		return nil, err
	}
	maps.Copy(got, unpacked)
	return got, nil
}

// older is what folders take from olderSuite.
type older struct {
	pinned   []string // names or patterns of packages that apt takes from there
	unpacked []string // names of those that are unpacked, not installed
}

// read adds what a file says; one that is not there says nothing.
func (o *older) read(file string) error {
	lines, err := readList(file)
	if os.IsNotExist(err) {
		return nil
	}
	for _, line := range lines {
		name, unpacked := strings.CutPrefix(line, "unpack ")
		if o.pinned = append(o.pinned, name); unpacked {
			o.unpacked = append(o.unpacked, name)
		}
	}
	return err
}

// preferences tell apt to take nothing else from olderSuite.
func (o *older) preferences() string {
	if len(o.pinned) == 0 {
		return ""
	}
	var s strings.Builder
	for _, release := range []string{olderSuite, olderSuite + "-updates", olderSuite + "-security"} {
		fmt.Fprintf(&s, "Package: *\nPin: release n=%s\nPin-Priority: -1\n\n", release)
		fmt.Fprintf(&s, "Package: %s\nPin: release n=%s\nPin-Priority: 500\n\n", strings.Join(o.pinned, " "), release)
	}
	return s.String()
}

// unpack unpacks the packages in a folder into a root, without manuals and changelogs, and returns their versions.
func (o *older) unpack(ctx context.Context, from, dir string, log io.Writer) (aptLock, error) {
	got := aptLock{}
	files, err := filepath.Glob(filepath.Join(from, "*.deb"))
	if err != nil {
		return nil, err
	}
	if len(files) != len(o.unpacked) {
		return nil, fmt.Errorf("apt downloaded %d of the %d packages to unpack", len(files), len(o.unpacked))
	}
	for _, file := range files {
		line, err := output(ctx, "", "dpkg-deb", "--show", "--showformat", "${Package} ${Version}\n", file)
		if err != nil {
			return nil, err
		}
		lock, err := parseAptLock(strings.NewReader(line))
		if err != nil {
			return nil, err
		}
		maps.Copy(got, lock)
		script := `dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" --exclude=./usr/share/man --exclude=./usr/share/lintian \
			--exclude=changelog.* --exclude=README.*`
		if err := execute(ctx, log, os.Environ(), "bash", "-o", "pipefail", "-c", script, "unpack", file, dir); err != nil {
			return nil, err
		}
	}
	return got, nil
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
