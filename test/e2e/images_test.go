//go:build e2e

package e2e

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// torchImage is what the profile torch of this lab starts from.
const torchImage = "lab.example/torch:1"

// testImageNeedsNewerDriver: an image from a file, which asks for more than the
// driver offers; its successor under the same name does not.
func testImageNeedsNewerDriver(t *testing.T, a *appliance) {
	const why = "The image " + torchImage + " needs CUDA 99.0 or newer; the driver of this machine ("
	b := a.guest.For(t)
	b.Open(pages + "/")
	b.WaitText(".launches", "PyTorch notebook") // nothing is known against it: it is not here

	file, size := writeImage(t, a, "NVIDIA_REQUIRE_CUDA=cuda>=99.0", "CUDA_VERSION=99.0.0")
	a.MustRun(a.ctx, "sh", "-c", "head -c $(($1 / 2)) $0 > $0.cut", file, size)
	checkFailure(t, a.Gpulab(a.ctx, "images", "import", file+".cut"), exitFailure, "this file is cut short")
	if list := a.MustGpulab(a.ctx, "images", "list"); strings.Contains(list, torchImage) || !strings.Contains(list, "part of gpulab") {
		t.Errorf("the images after a broken import:\n%s", list)
	}
	if got := a.MustGpulab(a.ctx, "images", "import", file); !strings.Contains(got, torchImage+" is on this machine. It needs CUDA 99.0 or newer.") {
		t.Errorf("gpulab images import says %q", got)
	}
	b.WaitText(".launches", why)
	b.Pictures("image-needs-newer-driver")
	b.WaitFor("no button that would fail", `!document.querySelector("form:has(input[value=torch])").checkVisibility() && document.querySelector("form:has(input[value=cpu])").checkVisibility()`)
	status, body := sendForm(t, signIn(t, a, guestHandle, guestPassword), "/", "/launch", url.Values{"profile": {"torch"}})
	if status != http.StatusConflict || !strings.Contains(body, "The image "+torchImage+" needs CUDA 99.0 or newer") {
		t.Errorf("a launch past the page: status %d\n%.1000s", status, body)
	}
	checkFailure(t, a.Gpulab(a.ctx, "images", "remove", torchImage), exitFailure, `the profile "torch" starts from `+torchImage)

	file, _ = writeImage(t, a, "CUDA_VERSION=13.0.1")
	a.MustGpulab(a.ctx, "images", "import", file)
	b.WaitFor("the button is back", `document.querySelector("form:has(input[value=torch])").checkVisibility()`)
	launch(b, "torch", "Fitting")
	waitJupyterLab(b, guestHandle)
	if got := newKernel(b).run(t, "import os; print(os.environ['CUDA_VERSION'])"); got != "13.0.1" {
		t.Errorf("in the notebook CUDA_VERSION is %q", got)
	}
	b.Open(pages + "/")
	b.Click("#mine", "Stop Fitting")
	b.Click("dialog[open]", "Stop")
	waitGone(b, "Fitting")

	a.MustGpulab(a.ctx, "images", "import", "--as", "lab.example/spare:1", file)
	a.MustGpulab(a.ctx, "images", "remove", "lab.example/spare:1")
	if list := a.MustGpulab(a.ctx, "images", "list"); strings.Contains(list, "spare") || !strings.Contains(list, torchImage) {
		t.Errorf("the images at last:\n%s", list)
	}
	a.MustRun(a.ctx, "rm", file, file+".cut")
}

// writeImage writes gpulab's own image of notebooks with more environment, as an
// OCI archive that names it torchImage; it returns where, and how many bytes.
func writeImage(t *testing.T, a *appliance, env ...string) (file, size string) {
	t.Helper()
	type object = map[string]any
	dir := filepath.Join(filepath.Dir(a.Binary()), "images")
	read := func(name string, v any) {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = json.Unmarshal(data, v)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var list struct {
		Images []struct{ Name, Digest string }
	}
	read("images.json", &list)
	digest := ""
	for _, i := range list.Images {
		if i.Name == "notebook" {
			digest = i.Digest
		}
	}
	blob := func(digest string) string { return "blobs/sha256/" + strings.TrimPrefix(digest, "sha256:") }
	var manifest struct {
		SchemaVersion int      `json:"schemaVersion"`
		MediaType     string   `json:"mediaType"`
		Config        object   `json:"config"`
		Layers        []object `json:"layers"`
	}
	read(blob(digest), &manifest)
	config := object{}
	read(blob(manifest.Config["digest"].(string)), &config)
	inner := config["config"].(object)
	for _, e := range env {
		inner["Env"] = append(inner["Env"].([]any), e)
	}

	file = "/root/torch.tar"
	out, err := os.Create(a.Path(file))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	w := tar.NewWriter(out)
	add := func(name string, size int64, r io.Reader) {
		t.Helper()
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size})
		if err == nil {
			_, err = io.Copy(w, r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	addJSON := func(name string, v any) object {
		t.Helper()
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		digest := "sha256:" + hex.EncodeToString(sum[:])
		if name == "" {
			name = blob(digest)
		}
		add(name, int64(len(data)), strings.NewReader(string(data)))
		return object{"digest": digest, "size": len(data)}
	}
	for _, layer := range manifest.Layers {
		name := blob(layer["digest"].(string))
		in, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		add(name, int64(layer["size"].(float64)), in)
		in.Close()
	}
	described := addJSON("", config)
	manifest.Config["digest"], manifest.Config["size"] = described["digest"], described["size"]
	target := addJSON("", manifest)
	target["mediaType"] = manifest.MediaType
	target["annotations"] = object{"org.opencontainers.image.ref.name": torchImage}
	addJSON("index.json", object{"schemaVersion": 2, "manifests": []any{target}})
	addJSON("oci-layout", object{"imageLayoutVersion": "1.0.0"})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := out.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return file, strconv.FormatInt(info.Size(), 10)
}
