package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"
)

// fake builds an image of spec from one file.
func fake(t *testing.T, name, content string) builtImage {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, map[string]string{"file": content})
	spec, err := imagesNamed([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	l := mustLayer(t, mustTree(t, dir))
	img, err := assemble(spec[0], []layer{l})
	if err != nil {
		t.Fatal(err)
	}
	listed, err := describe(name, img)
	if err != nil {
		t.Fatal(err)
	}
	return builtImage{spec: spec[0], img: img, layers: []layer{l}, listed: listed}
}

func TestReferencesFollowContent(t *testing.T) {
	one, same, other := fake(t, "pause", "1"), fake(t, "pause", "1"), fake(t, "pause", "2")
	if one.listed != same.listed {
		t.Errorf("equal images: %+v, %+v", one.listed, same.listed)
	}
	if one.listed.Ref == other.listed.Ref {
		t.Errorf("different images are both %s", one.listed.Ref)
	}
	// A lab that goes back to an earlier version looks for the blobs of that one.
	before := compress
	t.Cleanup(func() { compress = before })
	compress = append(slices.Clone(before), "--no-check")
	if packed := fake(t, "pause", "1"); packed.listed.Digest == one.listed.Digest || packed.listed.Ref == one.listed.Ref {
		t.Errorf("an image that is packed otherwise is %+v, too", packed.listed)
	}
	if !regexp.MustCompile(`^gpulab\.local/pause:[0-9a-f]{12}$`).MatchString(one.listed.Ref) {
		t.Errorf("reference %q", one.listed.Ref)
	}
}

func TestPublish(t *testing.T) {
	out := filepath.Join(t.TempDir(), "bin", "images")
	step := func(what string, want bool, built ...builtImage) {
		t.Helper()
		if changed, err := publish(out, built); err != nil || changed != want {
			t.Fatalf("%s: changed %v, %v", what, changed, err)
		}
	}
	step("first", true, fake(t, "pause", "1"), fake(t, "hub", "1"))
	step("again", false, fake(t, "pause", "1"), fake(t, "hub", "1"))
	step("one of two, same", false, fake(t, "pause", "1"))
	step("one of two, changed", true, fake(t, "pause", "2"))

	found, bad, err := inspectLayout(out)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 2 {
		t.Errorf("found %d images, want hub and pause", len(found))
	}
	if len(bad) != len(images)-2 {
		t.Errorf("complaints: %q", bad)
	}
	blobs, err := os.ReadDir(filepath.Join(out, "blobs", "sha256"))
	if err != nil {
		t.Fatal(err)
	}
	if len(blobs) != 6 {
		t.Errorf("%d blobs, want 6: what nothing refers to must be gone", len(blobs))
	}
	var index struct {
		Manifests []struct{ Annotations map[string]string }
	}
	data, err := os.ReadFile(filepath.Join(out, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &index); err != nil {
		t.Fatal(err)
	}
	if ref := index.Manifests[1].Annotations[refAnnotation]; ref != fake(t, "pause", "2").listed.Ref {
		t.Errorf("the index names %q", ref)
	}
}

func TestCheckSeesDamage(t *testing.T) {
	out := filepath.Join(t.TempDir(), "images")
	img := fake(t, "pause", "1")
	if _, err := publish(out, []builtImage{img}); err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(out, "blobs", "sha256", img.layers[0].Digest)
	data, err := os.ReadFile(blob)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.Remove(blob); err != nil { // it is the cache's file too
		t.Fatal(err)
	}
	if err := os.WriteFile(blob, data, 0o644); err != nil {
		t.Fatal(err)
	}
	bad, err := badBlobs(filepath.Join(out, "blobs", "sha256"))
	if err != nil || len(bad) != 1 {
		t.Errorf("complaints %q, %v", bad, err)
	}
}

func TestCache(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	c, err := openCache()
	if err != nil {
		t.Fatal(err)
	}
	release, err := c.lock(context.Background(), &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.lock(ctx, &bytes.Buffer{}); err == nil {
		t.Error("two builds hold the lock")
	}
	defer release()

	dir := t.TempDir()
	write(t, dir, map[string]string{"file": "1"})
	l := mustLayer(t, mustTree(t, dir))
	l.Drift = []string{"x is 2, locked 1"}
	if _, err := c.put("key", l); err != nil {
		t.Fatal(err)
	}
	got, ok := c.get("key")
	if !ok || got.Digest != l.Digest || len(got.Drift) != 1 {
		t.Errorf("got %+v, %v", got, ok)
	}
	if err := os.Truncate(got.path, 3); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.get("key"); ok {
		t.Error("a cut-off blob was served")
	}
	old := time.Now().Add(-keepUnused - time.Hour)
	if err := os.Chtimes(filepath.Dir(got.path), old, old); err != nil {
		t.Fatal(err)
	}
	if err := c.prune(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(got.path); !os.IsNotExist(err) {
		t.Errorf("an old layer was kept: %v", err)
	}
}

func TestKeysAreFramed(t *testing.T) {
	var one, two keyer
	one.add("ab", "c")
	two.add("a", "bc")
	if one.sum() == two.sum() {
		t.Error("two different inputs give one key")
	}
}
