package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/packaging/gobuild"
)

const source = ".."

func TestPlanIsWhole(t *testing.T) {
	for name, p := range parts {
		if p.folder != name {
			t.Errorf("part %s is made from the folder %s", name, p.folder)
		}
		if _, err := os.Stat(filepath.Join(source, p.folder)); err != nil {
			t.Error(err)
		}
		for _, lower := range p.on {
			if _, ok := parts[lower]; !ok {
				t.Errorf("part %s lies on %s, which there is not", name, lower)
			}
		}
	}
	for _, img := range images {
		if proofs[img.name] == nil {
			t.Errorf("image %s: nothing proves that it works", img.name)
		}
		for i, l := range img.layers {
			p, ok := parts[l]
			if !ok {
				t.Errorf("image %s has a layer %s, which there is not", img.name, l)
			}
			// A layer that changes a root must lie on the very layers it was made on.
			if p.kind != compiled && strings.Join(p.on, " ") != strings.Join(img.layers[:i], " ") {
				t.Errorf("image %s: layer %s was made on %v", img.name, l, p.on)
			}
		}
	}
}

// pins reads "name==version" of a Python lock and requires hashes for each.
func pins(t *testing.T, file string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(source, file))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, block := range regexp.MustCompile(`(?m)^([a-z0-9][a-z0-9.-]*)==(\S+)((?: \\\n    --hash=\S+)*)`).FindAllStringSubmatch(string(data), -1) {
		if !strings.Contains(block[3], "--hash=sha256:") {
			t.Errorf("%s: %s has no hash", file, block[1])
		}
		out[block[1]] = block[2]
	}
	if len(out) == 0 {
		t.Fatalf("%s: no pins found", file)
	}
	return out
}

func TestPythonLocksAgree(t *testing.T) {
	hub, lab, kernel := pins(t, "hub/requirements.txt"), pins(t, "notebook/lab.txt"), pins(t, "notebook/kernel.txt")
	if hub["jupyterhub"] == "" || hub["jupyterhub"] != lab["jupyterhub"] {
		t.Errorf("the hub has jupyterhub %q, the notebook %q; they must be the same", hub["jupyterhub"], lab["jupyterhub"])
	}
	for name, version := range kernel {
		if other, ok := lab[name]; ok && other != version {
			t.Errorf("%s is %s for the kernel and %s for the server, which share it", name, version, other)
		}
	}
	for _, name := range []string{"ipykernel", "nvidia-ml-py", "pip"} {
		if kernel[name] == "" {
			t.Errorf("the kernel has no %s", name)
		}
	}
	if lab["jupyterlab"] == "" {
		t.Error("the notebook has no jupyterlab")
	}
}

func TestAptLocksCoverTheLists(t *testing.T) {
	base, err := readAptLock(filepath.Join(source, "base", "packages.lock"))
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range parts["notebook"].on {
		lock, err := readAptLock(filepath.Join(source, folder, "packages.lock"))
		if err != nil {
			t.Fatal(err)
		}
		list, err := readList(filepath.Join(source, folder, "packages.txt"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range list {
			if lock[name] == "" {
				t.Errorf("%s: %s is not locked; run the builder with -refresh", folder, name)
			}
		}
		for name := range lock {
			if folder != "base" && base[name] != "" {
				t.Errorf("%s is locked in base and in %s", name, folder)
			}
		}
	}
}

// The device plugin's image and its chart must be one version.
func TestDevicePluginVersion(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(source, "nvidia", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), "github.com/NVIDIA/k8s-device-plugin v0.19.0\n") {
		t.Error("the device plugin is no longer v0.19.0; the chart must move with it")
	}
}

func TestImagesNamed(t *testing.T) {
	got, err := imagesNamed([]string{"hub", "pause"})
	if err != nil || len(got) != 2 || got[0].name != "hub" {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := imagesNamed([]string{"hubb"}); err == nil || !strings.Contains(err.Error(), "there are notebook, hub") {
		t.Errorf("a wrong name: %v", err)
	}
}

// Kueue, CoreDNS, NVIDIA's programs and gpulab share compiled packages: where two of them use a module, its version is
// the same.
func TestImagesShareModulesWithGpulab(t *testing.T) {
	modules := func(folder, cgo string, mains ...string) map[string]string {
		const format = "{{with .Module}}{{.Path}} {{.Version}}{{end}}"
		list := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps", "-f", format}, mains...)...)
		list.Dir, list.Env = folder, append(os.Environ(), "CGO_ENABLED="+cgo)
		lines, err := list.Output()
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for line := range strings.Lines(string(lines)) {
			if module, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
				found[module] = version
			}
		}
		return found
	}
	gpulab := modules("../../..", "0", "./cmd/gpulab")
	for name, mains := range map[string][]string{
		"kueue": {parts["kueue"].of.main}, "coredns": {parts["coredns"].of.main},
		"nvidia": {"github.com/NVIDIA/k8s-device-plugin/cmd/..."},
	} {
		cgo := "0"
		if parts[name].kind == compiled {
			cgo = "1"
		}
		image := modules(filepath.Join("..", name), cgo, mains...)
		if len(image) < 20 {
			t.Fatalf("%s uses %d modules", name, len(image))
		}
		for module, version := range image {
			if module == "github.com/NVIDIA/go-nvml" {
				continue // the plugin does not compile with gpulab's version
			}
			if other, both := gpulab[module]; both && other != version {
				t.Errorf("%s: gpulab uses %s, %s uses %s; run `go get` and `go mod tidy` in the folder with the older one, "+
					"or exclude the newer one", module, other, name, version)
			}
		}
	}
}

// Kueue is built without what gpulab does not use of it.
func TestKueueWithoutWhatIsNotUsed(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(source, "kueue", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, name), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	kueue := parts["kueue"].of
	modfile, remove, err := gobuild.ApplyPatches(t.Context(), folder, kueue.patches)
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	list, err := output(t.Context(), folder, "go", "list", "-mod=readonly", "-modfile="+modfile, "-deps", kueue.main)
	if err != nil {
		t.Fatal(err)
	}
	for _, left := range []string{"jobs/rayjob", "jobs/statefulset", "k8s.io/client-go/kubernetes/fake"} {
		if strings.Contains(list, left) {
			t.Errorf("Kueue has %s", left)
		}
	}
	if !strings.Contains(list, "sigs.k8s.io/kueue/pkg/controller/jobs/job\n") {
		t.Error("Kueue cannot queue jobs")
	}
}
