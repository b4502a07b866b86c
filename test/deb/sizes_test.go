//go:build deb

package deb

import (
	"archive/tar"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/gpulab/gpulab/packaging/runtime/manifest"
)

// goals are how large the packages may be, in MB (10⁶ bytes).
var goals = map[string]float64{"gpulab_": 110, "gpulab-images_": 300}

// content is a part of a package, with its size there in bytes.
type content struct {
	name string
	size int64
}

// testSizes prints what is in the packages, largest first, and holds them
// against their goals.
func testSizes(t *testing.T, packages string) {
	for prefix, goal := range goals {
		found, err := filepath.Glob(filepath.Join(packages, prefix+"*.deb"))
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %v", prefix, found, err)
		}
		size := sizeOf(t, found[0])
		list := programContent(t)
		if prefix == "gpulab-images_" {
			list = imagesContent(t)
		}
		report := fmt.Sprintf("%s: %.1f MB of %.0f\n", filepath.Base(found[0]), mega(size), goal)
		for _, c := range largestFirst(list) {
			report += fmt.Sprintf("  %6.1f MB  %s\n", mega(c.size), c.name)
		}
		t.Log(report)
		if mega(size) > goal {
			t.Errorf("%s is larger than %.0f MB", filepath.Base(found[0]), goal)
		}
	}
	report := "in the runtime bundle, unpacked:\n"
	for _, c := range largestFirst(bundleContent(t)) {
		report += fmt.Sprintf("  %6.1f MB  %s\n", mega(c.size), c.name)
	}
	t.Log(report)
}

func mega(bytes int64) float64 { return float64(bytes) / 1e6 }

func largestFirst(list []content) []content {
	return slices.SortedFunc(slices.Values(list), func(a, b content) int { return cmp.Compare(b.size, a.size) })
}

func sizeOf(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// programContent is what a release's gpulab is made of: what it embeds is as large in the
// package, being compressed; gzip makes its code smaller.
func programContent(t *testing.T) []content {
	list := []content{{"the runtime bundle: k3s, containerd, CNI, NVIDIA's parts", sizeOf(t, release(t)+"/runtime.tar.zst")}}
	clients, err := filepath.Glob(repository + "/assets/clients/*.zst")
	if err != nil {
		t.Fatal(err)
	}
	code := sizeOf(t, release(t)+"/gpulab") - list[0].size
	for _, client := range clients {
		list = append(list, content{"for people's own computers: " + filepath.Base(client), sizeOf(t, client)})
		code -= sizeOf(t, client)
	}
	return append(list, content{"gpulab itself, before the package compresses it", code})
}

// imagesContent lists the layers by the images that have them.
func imagesContent(t *testing.T) []content {
	layout := repository + "/bin/images"
	var list struct {
		Images []struct{ Name, Digest string }
	}
	readJSON(t, layout+"/images.json", &list)
	names, sizes := map[string][]string{}, map[string]int64{}
	for _, image := range list.Images {
		var m struct {
			Layers []struct {
				Digest string
				Size   int64
			}
		}
		readJSON(t, layout+"/blobs/"+strings.Replace(image.Digest, ":", "/", 1), &m)
		for _, layer := range m.Layers {
			names[layer.Digest] = append(names[layer.Digest], image.Name)
			sizes[layer.Digest] = layer.Size
		}
	}
	var contents []content
	for digest, users := range names {
		contents = append(contents, content{"a layer of " + strings.Join(users, ", "), sizes[digest]})
	}
	return contents
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// bundleContent lists what the runtime bundle unpacks to.
func bundleContent(t *testing.T) (list []content) {
	file, err := os.Open(release(t) + "/runtime.tar.zst")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := zstd.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	archive := tar.NewReader(z)
	if header, err := archive.Next(); err != nil || header.Name != manifest.Name {
		t.Fatalf("the bundle begins with %v, %v", header, err)
	}
	text, err := io.ReadAll(archive)
	if err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range m.Files {
		list = append(list, content{strings.TrimSpace(f.Name + " " + f.Version), f.Size})
	}
	return list
}
