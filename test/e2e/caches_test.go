//go:build e2e

package e2e

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/test/lab"
)

// TestCaches is a lab that fetches packages and models once for all: for kernels and for jobs, for who may have them,
// and while their index is away.
//
//test:about packaging/images/packages
func TestCaches(t *testing.T) {
	t.Parallel()
	a := readyIndex(t)
	a.second = work(a.guest.For(t), guestHandle, "Ben's")
	a.live(t, []chapter{
		{"a cache of packages", testPackageCache, false},
		{"a cache of models", testModelCache, false},
	})
}

// testPackageCache: what pip has fetched for one is there for all, and while the index is away; nobody can put anything
// into the cache, nor reach anything by it but the index.
func testPackageCache(t *testing.T, a *appliance) {
	cell := "%pip install inflection\nimport inflection\nprint(inflection.pluralize('house'))"
	if said := a.second.in(t).run(t, cell); !strings.Contains(said, "houses") {
		t.Fatalf("after %%pip install, the kernel does not have the package: %s", said)
	}
	l := newLaptopFor(t, a, a.guest.For(t).Tab(), guestHandle, "launch")
	job := func(script string, words ...string) {
		t.Helper()
		l.gpulab(t, 0, []string{"run", "--", "sh", "-ec", script}, words...)
	}
	const (
		cache   = "http://packages.gpulab-system.svc"
		install = `python -m venv /tmp/v
HOME=/tmp /tmp/v/bin/pip install --no-deps inflection
/tmp/v/bin/python -c 'import inflection; print(inflection.pluralize("house"))'
`
	)
	job(install, "houses")
	if n := a.index.asked(t, "inflection"); n != 1 {
		t.Errorf("for a kernel and a job the index was asked for a package %d times", n)
	}
	a.index.close()
	job(install+"curl -s "+cache+"/simple/never-asked-for/",
		"houses", "The lab's cache does not get this from 203.0.113.7:8090")
	a.index.start(t, a)
	// Its folder is its own, and no home keeps a second copy.
	job(`ask() { curl -s --retry 20 --retry-delay 1 --retry-connrefused "$@"; }
ask -T /etc/hostname `+cache+`/simple/inflection/
ask -k `+cache+`/-/`+lab.Address+`/healthz
grep -rl ^PK ~/.cache/pip | wc -l`,
		"The package cache takes nothing.", "The package cache knows no such machine.", "\n0\n")
	if got := strings.TrimSpace(a.MustRun(a.ctx, "stat", "-c", "%u %a", "/var/lib/gpulab/packages")); got != "65001 700" {
		t.Errorf("its folder is of %s", got)
	}
	if got := a.MustGpulab(a.ctx, "disk"); !strings.Contains(got, "cache of packages") {
		t.Errorf("gpulab disk does not tell of it:\n%s", got)
	}
}

// testModelCache: a model that a job has got is there for a kernel, and a restricted one for who may have it alone.
func testModelCache(t *testing.T, a *appliance) {
	a.index.add(t, testWheels(t, "hub"))
	log := filepath.Join(t.TempDir(), "asked")
	hub := a.VisitorCommand(a.ctx, "python3", "testdata/hub.py", "203.0.113.7", "8091", log)
	if err := hub.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hub.Process.Kill(); _ = hub.Wait() })
	asked := func(what string) int {
		t.Helper()
		lines, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(lines), what)
	}
	l := newLaptopFor(t, a, a.guest.For(t).Tab(), guestHandle, "launch")

	// Each time into a folder of its own, as everybody's home is.
	get := func(name, token string) string {
		return `rm -rf /tmp/models; HF_HUB_CACHE=/tmp/models HF_TOKEN=` + token + ` ~/hf/bin/python -c 'import hashlib, huggingface_hub as h, pathlib as p
where = p.Path(h.snapshot_download("` + name + `"))
print(sorted(f.name for f in where.iterdir()), hashlib.sha256((where / "model.safetensors").read_bytes()).hexdigest())'`
	}
	whole := fmt.Sprintf("['config.json', 'model.safetensors'] %x", sha256.Sum256(bytes.Repeat(allBytes(), 16<<10)))
	const install = "python -m venv ~/hf && ~/hf/bin/pip install -q huggingface_hub && "
	l.gpulab(t, 0, []string{"run", "--", "sh", "-c", install + get("lab/tiny", "")}, whole)
	if got := a.second.in(t).run(t, fmt.Sprintf("import subprocess; print(subprocess.run(['sh', '-c', %q], capture_output=True, text=True).stdout)", get("lab/tiny", ""))); !strings.Contains(got, whole) {
		t.Errorf("a kernel got %s", got)
	}
	const large = "GET /blob?Signature=s3cret "
	if got := asked(large); got != 1 {
		t.Errorf("for a kernel and a job the hub was asked for a large file %d times", got)
	}
	l.gpulab(t, 1, []string{"run", "--", "sh", "-c", get("lab/gated", "hf_another")}, "Access to this model is restricted")
	l.gpulab(t, 0, []string{"run", "--", "sh", "-c", get("lab/gated", "hf_allowed")}, whole)
	if got := asked(large); got != 1 {
		t.Errorf("for a file that the cache has, the hub was asked %d times", got)
	}
	if asked(large+"Bearer") != 0 || asked("Bearer hf_another") == 0 {
		t.Error("the token goes to the hub, and nowhere else")
	}

	if got := strings.TrimSpace(a.MustRun(a.ctx, "stat", "-c", "%u %a", "/var/lib/gpulab/models")); got != "65001 700" {
		t.Errorf("its folder is of %s", got)
	}
	if got := a.MustGpulab(a.ctx, "disk"); !strings.Contains(got, "cache of models") {
		t.Errorf("gpulab disk does not tell of it:\n%s", got)
	}
	said := a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "logs", "deployment/packages")
	if !strings.Contains(said, "/blob") || strings.Contains(said, "hf_a") || strings.Contains(said, "s3cret") {
		t.Errorf("the log of the cache tells of no download, or a secret:\n%s", said)
	}
}

// allBytes are the 256 bytes.
func allBytes() (all []byte) {
	for i := range 256 {
		all = append(all, byte(i))
	}
	return all
}
