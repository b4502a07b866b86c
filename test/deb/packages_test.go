//go:build deb

package deb

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/test/lab"
)

const repository = "../.." // of the sources

// sources is where apt finds the repository and its key, as docs/install.md has it.
const sources = "/etc/apt/sources.list.d/gpulab.sources"

// TestPackages tells the life of the packages, from the build to the purge.
//
//test:about packaging/deb
func TestPackages(t *testing.T) {
	packages := current(t)
	t.Run("are small", func(t *testing.T) { testSizes(t, packages) })
	t.Run("are the same when they are built again", func(t *testing.T) { testReproducible(t) })
	t.Run("depend on what a machine needs", func(t *testing.T) { testDepends(t, packages) })
	t.Run("have nothing that lintian finds", func(t *testing.T) { testLintian(t, packages) })
	key := newKey(t)
	server := serve(t, packages, key)
	t.Run("are refused without the right signature", func(t *testing.T) { testForeignKey(t, server) })
	t.Run("are installed and leave nothing", func(t *testing.T) { testLife(t, server) })
	t.Run("keep people's work", func(t *testing.T) { testPurge(t, server) })
	t.Run("are installed on Debian 13", func(t *testing.T) { testTrixie(t, packages) })
}

// current returns the folder of the packages of this checkout, as they are released.
func current(t *testing.T) string {
	t.Helper()
	return lab.Kept(t, "packages", madeFrom(t), func(folder string) { build(t, folder, "", release(t)+"/gpulab", "") })
}

// release returns a folder with the gpulab of this checkout and its runtime bundle, which are packed as for a release.
func release(t *testing.T) string {
	t.Helper()
	return lab.Kept(t, "release", lab.Contents(t, repository+"/bin/gpulab"), func(folder string) {
		var about struct{ Version string }
		printed := must(t, exec.Command(repository+"/bin/gpulab", "version", "--json"))
		if err := json.Unmarshal([]byte(printed), &about); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("go", "run", "./packaging/build", "-small", "-version", about.Version,
			"-out", filepath.Join(folder, "gpulab"), "runtime", "program")
		cmd.Dir = repository
		t.Log(must(t, cmd))
	})
}

// quick returns the folder of the same packages, which are packed in less time and larger.
func quick(t *testing.T) string {
	t.Helper()
	return lab.Kept(t, "packages-quick", madeFrom(t), func(folder string) {
		build(t, folder, "", repository+"/bin/gpulab", fast)
	})
}

// newer returns the folder of packages of another version, of the program that makes writes.
func newer(t *testing.T, version, kind string, program func() string) string {
	t.Helper()
	return lab.Kept(t, "packages-"+kind, version+madeFrom(t), func(folder string) {
		build(t, folder, version, program(), fast)
	})
}

// madeFrom is a text that changes with what packages are made of.
func madeFrom(t *testing.T) string {
	t.Helper()
	list := exec.Command("git", "ls-files", "packaging/deb", "docs", "README.md", "cmd/gpulab/*.service")
	list.Dir = repository
	paths := []string{repository + "/bin/gpulab", repository + "/bin/images/images.json"}
	for file := range strings.Lines(must(t, list)) {
		paths = append(paths, filepath.Join(repository, strings.TrimSpace(file)))
	}
	head := exec.Command("git", "rev-parse", "HEAD") // its time is the packages'
	head.Dir = repository
	return must(t, head) + lab.Contents(t, paths...)
}

// fast is a compression of packages that nobody keeps.
const fast = "gzip:1"

// build makes the packages of a program, in another version than this checkout's and with another compression than a
// release's where these are not "".
func build(t *testing.T, into, version, program, compression string) {
	t.Helper()
	path, err := filepath.Abs(program)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("packaging/deb/build.sh", into)
	cmd.Dir = repository
	cmd.Env = append(os.Environ(), "VERSION="+version, "PROGRAM="+path, "COMPRESSION="+compression)
	t.Log(must(t, cmd))
}

func debs(t *testing.T, folder string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(folder, "gpulab*.deb"))
	if err != nil || len(found) != 2 {
		t.Fatalf("packages: %v, %v", found, err)
	}
	return found
}

// testReproducible leaves out the compression of a release, which takes minutes and depends on nothing but its input.
func testReproducible(t *testing.T) {
	again := t.TempDir()
	build(t, again, "", repository+"/bin/gpulab", fast)
	for _, first := range debs(t, quick(t)) {
		one, err1 := os.ReadFile(first)
		other, err2 := os.ReadFile(filepath.Join(again, filepath.Base(first)))
		if err1 != nil || err2 != nil || !bytes.Equal(one, other) {
			t.Errorf("%s is not the same: %v, %v", filepath.Base(first), err1, err2)
		}
	}
}

// testDepends: the package asks for what prerequisites.sh installs for a gpulab
// that was built by hand.
func testDepends(t *testing.T, packages string) {
	script, err := os.ReadFile(filepath.Join(repository, "packaging/prerequisites.sh"))
	if err != nil {
		t.Fatal(err)
	}
	list := func(name string) []string {
		found := regexp.MustCompile(`(?m)^` + name + `=\(([^)]*)\)`).FindStringSubmatch(string(script))
		if found == nil {
			t.Fatalf("prerequisites.sh has no list `%s`", name)
		}
		return slices.Sorted(slices.Values(strings.Fields(found[1])))
	}
	run, recommended := list("run"), list("recommended")
	for _, deb := range debs(t, packages) {
		if !strings.Contains(filepath.Base(deb), "gpulab_") {
			continue
		}
		var depends []string
		for _, one := range strings.Split(strings.TrimSpace(must(t, exec.Command("dpkg-deb", "--field", deb, "Depends"))), ", ") {
			if name, _, _ := strings.Cut(one, " "); name != "libc6" && name != "debconf" {
				depends = append(depends, name)
			}
		}
		slices.Sort(depends)
		if !slices.Equal(depends, run) {
			t.Errorf("the package depends on %v, and prerequisites.sh installs %v", depends, run)
		}
		recommends := must(t, exec.Command("dpkg-deb", "--field", deb, "Recommends"))
		for _, name := range recommended {
			if !slices.Contains(strings.Split(strings.TrimSpace(recommends), ", "), name) {
				t.Errorf("the package does not recommend %s, which prerequisites.sh installs: %s", name, recommends)
			}
		}
	}
}

func testLintian(t *testing.T, packages string) {
	out, err := exec.Command("lintian", append([]string{"--fail-on", "error,warning", "--tag-display-limit", "0", "--allow-root"}, debs(t, packages)...)...).CombinedOutput()
	if err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("lintian: %v\n%s", err, out)
	}
}

// newKey makes a key that signs repositories, in a file as GPULAB_APT_KEY takes it.
func newKey(t *testing.T) string {
	t.Helper()
	home, err := os.MkdirTemp("", "gpg") // gpg's socket needs a short path
	if err != nil {
		t.Fatal(err)
	}
	gpg := func(args ...string) string {
		cmd := exec.Command("gpg", append([]string{"--homedir", home, "--quiet", "--batch", "--passphrase", ""}, args...)...)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	t.Cleanup(func() {
		_ = exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run()
		_ = os.RemoveAll(home)
	})
	gpg("--quick-generate-key", "gpulab test", "ed25519", "sign", "never")
	key := filepath.Join(t.TempDir(), "key.asc")
	if err := os.WriteFile(key, []byte(gpg("--armor", "--export-secret-keys")), 0o600); err != nil {
		t.Fatal(err)
	}
	return key
}

// serve makes an apt repository and serves it as any web server would.
func serve(t *testing.T, packages, key string) *httptest.Server {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "apt")
	server := httptest.NewServer(http.FileServer(http.Dir(folder)))
	t.Cleanup(server.Close)
	makeRepository(t, packages, folder, key, server.URL)
	return server
}

func makeRepository(t *testing.T, packages, folder, key, url string) {
	t.Helper()
	cmd := exec.Command("packaging/deb/apt-repo.sh", packages, folder)
	cmd.Dir = repository
	cmd.Env = append(os.Environ(), "GPULAB_APT_KEY="+key, "GPULAB_APT_URL="+url)
	t.Log(must(t, cmd))
}

// addRepository is the line that README.md and docs/install.md have people type,
// with another address.
func (r root) addRepository(server *httptest.Server) {
	r.t.Helper()
	for _, page := range []string{"README.md", "docs/install.md"} {
		text, err := os.ReadFile(filepath.Join(repository, page))
		if err != nil {
			r.t.Fatal(err)
		}
		if !strings.Contains(string(text), "\nsudo curl -fsSLo "+sources+" https://apt.example.org/"+filepath.Base(sources)+"\n") {
			r.t.Fatalf("%s does not say how to add the repository", page)
		}
	}
	must(r.t, exec.Command("curl", "-fsSLo", filepath.Join(r.dir, sources), server.URL+"/"+filepath.Base(sources)))
}

// testForeignKey: whoever has another key than the repository's gets nothing.
func testForeignKey(t *testing.T, server *httptest.Server) {
	r := newRoot(t)
	r.addRepository(server)
	secret := newKey(t)
	home := filepath.Join(t.TempDir(), "g")
	must(t, exec.Command("mkdir", "-m", "700", home))
	must(t, exec.Command("gpg", "--homedir", home, "--quiet", "--batch", "--import", secret))
	r.write("/etc/other.asc", must(t, exec.Command("gpg", "--homedir", home, "--quiet", "--armor", "--export")))
	must(t, exec.Command("gpgconf", "--homedir", home, "--kill", "all"))
	r.run("sed -i '/^Signed-By:/,$d' " + sources + " && echo 'Signed-By: /etc/other.asc' >>" + sources)
	if out, err := r.try("apt-get -q update -o APT::Update::Error-Mode=any"); err == nil || !strings.Contains(out, "NO_PUBKEY") {
		t.Errorf("apt update with another key: %v\n%s", err, out)
	}
	if out, err := r.try("apt-get -q -y install gpulab"); err == nil {
		t.Errorf("installed all the same:\n%s", out)
	}
}

// conffiles stay at a removal, as Debian has it, and go at a purge.
var conffiles = []string{"new: /etc/ufw", "new: /etc/ufw/applications.d", "new: /etc/ufw/applications.d/gpulab"}

// testLife: from the signed repository onto a bare machine and off it again.
func testLife(t *testing.T, server *httptest.Server) {
	r := newRoot(t)
	before := r.files()
	r.addRepository(server)
	withRepository := r.files()
	r.run("apt-get -q update")
	out := r.run("apt-get -q -y install gpulab")
	if !strings.Contains(out, "Next: sudo gpulab init") {
		t.Errorf("the installation does not say what is next:\n%s", out)
	}
	if got := r.run("gpulab version"); !strings.HasPrefix(got, "gpulab ") {
		t.Errorf("gpulab version: %q", got)
	}
	// The recommended images have come along, where gpulab looks for them.
	r.run("test -s /usr/share/gpulab/images/images.json")
	for _, file := range []string{
		"/usr/lib/systemd/system/gpulab.service", "/usr/lib/systemd/system/gpulab-pods.service",
		"/usr/share/man/man1/gpulab.1.gz", "/usr/share/man/man1/gpulab-init.1.gz",
		"/usr/share/bash-completion/completions/gpulab", "/usr/share/zsh/vendor-completions/_gpulab", "/usr/share/fish/vendor_completions.d/gpulab.fish",
		"/usr/share/doc/gpulab/copyright", "/usr/share/doc/gpulab/changelog.gz", "/usr/share/doc/gpulab/docs/signin.md",
	} {
		if _, err := os.Stat(filepath.Join(r.dir, file)); err != nil {
			t.Error(err)
		}
	}
	if out := r.run("find /etc/systemd /var/lib/gpulab /etc/gpulab /run/gpulab -name '*gpulab*' 2>/dev/null || true"); out != "" {
		t.Errorf("an installation alone enables or makes something:\n%s", out)
	}
	if out, err := r.verifyUnits(); err != nil || out != "" {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	r.run("apt-get -q -y remove gpulab gpulab-images")
	if left := changes(withRepository, r.files()); !slices.Equal(left, conffiles) {
		t.Errorf("a removal of a gpulab that was never used leaves:\n%s", strings.Join(left, "\n"))
	}
	r.run("apt-get -q -y purge gpulab gpulab-images")
	r.run("rm " + sources)
	if left := changes(before, r.files()); len(left) > 0 {
		t.Errorf("the purge leaves:\n%s", strings.Join(left, "\n"))
	}
	if out := r.run("debconf-show gpulab; dpkg-query -W 'gpulab*' 2>/dev/null || true"); strings.Contains(out, "gpulab") {
		t.Errorf("debconf or dpkg still know gpulab:\n%s", out)
	}
}

// testTrixie: the two files go onto Debian 13 and off it again too.
func testTrixie(t *testing.T, packages string) {
	r := newRootOf(t, "trixie")
	before := r.files()
	must(t, exec.Command("cp", "-r", packages, filepath.Join(r.dir, "packages")))
	r.run("apt-get -q -y install /packages/*.deb")
	r.run("rm -r /packages")
	if got := r.run("gpulab version"); !strings.HasPrefix(got, "gpulab ") {
		t.Errorf("gpulab version: %q", got)
	}
	r.run("apt-get -q -y purge gpulab gpulab-images")
	if left := changes(before, r.files()); len(left) > 0 {
		t.Errorf("the purge leaves:\n%s", strings.Join(left, "\n"))
	}
}

// verifyUnits has this machine's systemd read the units.
func (r root) verifyUnits() (string, error) {
	folder := r.t.TempDir()
	args := []string{"verify", "--man=no"}
	for _, name := range []string{"gpulab.service", "gpulab-pods.service"} {
		unit, err := os.ReadFile(filepath.Join(r.dir, "usr/lib/systemd/system", name))
		if err != nil {
			return "", err
		}
		// Their program is in the root, and systemd here.
		text := strings.ReplaceAll(string(unit), "/usr/bin/gpulab", filepath.Join(r.dir, "usr/bin/gpulab"))
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return "", err
		}
		args = append(args, path)
	}
	out, err := exec.Command("systemd-analyze", args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// testPurge: what people have made goes only when somebody says so.
func testPurge(t *testing.T, server *httptest.Server) {
	for _, c := range []struct {
		name, dataDir, slash, before string
		keeps                        bool
	}{
		{"nobody asked", "/var/lib/gpulab", "", "", true},
		{"another folder", "/srv/lab", "/", "", true},
		{"everything", "/var/lib/gpulab", "", "echo gpulab gpulab/purge-homes boolean true | debconf-set-selections", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRoot(t)
			r.addRepository(server)
			before := r.files()
			r.run("apt-get -q update && apt-get -q -y --no-install-recommends install gpulab")
			r.write("/etc/gpulab/config.yaml", "lab: \"Kino\"\ndataDir: \""+c.dataDir+c.slash+"\"\n")
			r.write("/etc/gpulab/university.secret", "s")
			for _, file := range []string{"gpulab.db", "k3s/server/db/state.db", "tls/ca.key", ".hidden", "homes/7/work.ipynb", "folders/3/data.csv",
				"before-restore-20260101-000000/homes/8/old.ipynb", "before-restore-20260101-000000/gpulab.db", "before-restore-20260202-000000/tls/ca.key"} {
				r.write(c.dataDir+"/"+file, file)
			}
			r.write("/etc/rancher/node/password", "p")
			used := r.files()
			r.run("apt-get -q -y remove gpulab")
			r.keeps(t, used, "a removal", "/etc/gpulab/", c.dataDir+"/", "/etc/rancher/node/")
			r.run(c.before)
			r.run("apt-get -q -y purge gpulab")
			kept := changes(before, r.files())
			slices.Sort(kept)
			var want []string
			if c.keeps {
				for _, path := range []string{"", "/before-restore-20260101-000000", "/before-restore-20260101-000000/homes", "/before-restore-20260101-000000/homes/8",
					"/before-restore-20260101-000000/homes/8/old.ipynb", "/folders", "/folders/3", "/folders/3/data.csv", "/homes", "/homes/7", "/homes/7/work.ipynb"} {
					want = append(want, "new: "+c.dataDir+path)
				}
			}
			if !slices.Equal(kept, want) {
				t.Errorf("the purge leaves:\n%s\nwant:\n%s", strings.Join(kept, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// keeps checks that nothing below the folders has changed.
func (r root) keeps(t *testing.T, before map[string]string, what string, folders ...string) {
	t.Helper()
	after := r.files()
	for name, was := range before {
		for _, folder := range folders {
			if strings.HasPrefix(name, folder) && after[name] != was {
				t.Errorf("%s does not keep %s", what, name)
			}
		}
	}
}
