package main

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// check inspects the layout in out and tries its programs. Every complaint is
// printed; the error says only how many there were.
func (b *builder) check(ctx context.Context, out string) error {
	found, complaints, err := inspectLayout(out)
	if err != nil {
		return err
	}
	for i := range found {
		f := &found[i]
		began := time.Now()
		bad := inspectImage(out, f)
		if len(bad) == 0 {
			if err := b.prove(ctx, *f); err != nil {
				bad = append(bad, err.Error())
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		word := "good"
		if len(bad) > 0 {
			word = "bad"
		}
		b.progress.Line("%-21s %s, %.1f s", f.listed.Name, word, time.Since(began).Seconds())
		for _, c := range bad {
			complaints = append(complaints, f.listed.Name+": "+c)
		}
	}
	for _, c := range complaints {
		b.progress.Line("bad: %s", c)
	}
	if len(complaints) > 0 {
		return fmt.Errorf("%s: %d complaints", out, len(complaints))
	}
	b.progress.Line("images: %d checked in %s", len(found), out)
	return nil
}

// inspectLayout compares the index, images.json and the plan, and hashes every blob.
func inspectLayout(out string) ([]builtImage, []string, error) {
	p, err := layout.FromPath(out)
	if err != nil {
		return nil, nil, fmt.Errorf("%s holds no images: %w; build them first", out, err)
	}
	index, err := p.ImageIndex()
	if err != nil {
		return nil, nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, nil, err
	}
	names, err := readImages(out)
	if err != nil {
		return nil, nil, err
	}
	var found []builtImage
	var bad []string
	for _, spec := range images {
		n := slices.IndexFunc(names.Images, func(l listedImage) bool { return l.Name == spec.name })
		if n < 0 {
			bad = append(bad, spec.name+": not in images.json")
			continue
		}
		listed := names.Images[n]
		m := slices.IndexFunc(manifest.Manifests, func(d v1.Descriptor) bool { return d.Annotations[refAnnotation] == listed.Ref })
		if m < 0 || manifest.Manifests[m].Digest.String() != listed.Digest {
			bad = append(bad, fmt.Sprintf("%s: the index has no %s with digest %s", spec.name, listed.Ref, listed.Digest))
			continue
		}
		img, err := p.Image(manifest.Manifests[m].Digest)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", spec.name, err)
		}
		found = append(found, builtImage{spec: spec, img: img, listed: listed})
	}
	if len(manifest.Manifests) != len(names.Images) {
		bad = append(bad, fmt.Sprintf("the index has %d images, images.json %d", len(manifest.Manifests), len(names.Images)))
	}
	blobs, err := badBlobs(filepath.Join(out, "blobs", "sha256"))
	return found, append(bad, blobs...), err
}

// badBlobs returns a complaint for each file whose content is not what its name says.
func badBlobs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var bad []string
	for _, e := range entries {
		sum, err := fileSum(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		if sum != e.Name() {
			bad = append(bad, "blob "+e.Name()+" has another content than its name says")
		}
	}
	return bad, nil
}

// inspectImage fills in b.layers from the layout and returns what is wrong with
// the image: its reference, its user, its start, and the files in it.
func inspectImage(out string, b *builtImage) []string {
	bad, t, err := inspectLayers(out, b)
	if err != nil {
		return append(bad, err.Error())
	}
	config, err := b.img.ConfigFile()
	if err != nil {
		return append(bad, err.Error())
	}
	again, err := describe(b.spec.name, b.img)
	if err != nil {
		return append(bad, err.Error())
	}
	if again != b.listed {
		bad = append(bad, fmt.Sprintf("listed as %+v, is %+v", b.listed, again))
	}
	uid, _, _ := strings.Cut(config.Config.User, ":")
	if root := uid == "0" || uid == ""; root != b.spec.root {
		bad = append(bad, fmt.Sprintf("runs as user %q", config.Config.User))
	}
	for _, start := range [][]string{config.Config.Entrypoint, config.Config.Cmd} {
		if len(start) > 0 && !t.executable(start[0]) {
			bad = append(bad, start[0]+" is not a program in it")
		}
	}
	return append(bad, t.complaints()...)
}

// inspectLayers stacks the layers of b and compares each with what the
// configuration says its content is.
func inspectLayers(out string, b *builtImage) ([]string, tree, error) {
	manifest, err := b.img.Manifest()
	if err != nil {
		return nil, nil, err
	}
	config, err := b.img.ConfigFile()
	if err != nil {
		return nil, nil, err
	}
	if len(manifest.Layers) != len(config.RootFS.DiffIDs) || len(manifest.Layers) != len(b.spec.layers) {
		return nil, nil, errors.New("manifest, configuration and plan disagree about the layers")
	}
	var bad []string
	t := tree{}
	for i, d := range manifest.Layers {
		l := layer{Digest: d.Digest.Hex, Size: d.Size, Created: b.spec.layers[i], path: filepath.Join(out, "blobs", "sha256", d.Digest.Hex)}
		sum, err := tarSum(l)
		if err != nil {
			return bad, nil, err
		}
		if sum != config.RootFS.DiffIDs[i].Hex {
			bad = append(bad, "layer "+l.Created+" has another content than the configuration says")
		}
		if err := t.overlay(l.path); err != nil {
			return bad, nil, err
		}
		b.layers = append(b.layers, l)
	}
	return bad, t, nil
}

func tarSum(l layer) (string, error) {
	r, err := imageLayer{l}.Uncompressed()
	if err != nil {
		return "", err
	}
	defer r.Close()
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// executable follows links, inside the tree only, to a file that may be executed.
func (t tree) executable(name string) bool {
	resolved, ok := t.resolve(strings.TrimPrefix(name, "/"), 0)
	return ok && t[resolved].header.Typeflag != tar.TypeDir && t[resolved].header.Mode&0o111 == 0o111
}

// resolve returns the name of the entry that a path leads to.
func (t tree) resolve(name string, depth int) (string, bool) {
	if depth > 40 {
		return "", false
	}
	done := ""
	parts := strings.Split(path.Clean(name), "/")
	for i, part := range parts {
		done = path.Join(done, part)
		e, ok := t[done]
		if !ok {
			return "", false
		}
		if e.header.Typeflag == tar.TypeSymlink {
			target := e.header.Linkname
			if !path.IsAbs(target) {
				target = path.Join("/", path.Dir(done), target)
			}
			rest := path.Join(append([]string{target}, parts[i+1:]...)...)
			return t.resolve(strings.TrimPrefix(rest, "/"), depth+1)
		}
	}
	return done, true
}

// complaints are about files that no image of ours may have.
func (t tree) complaints() []string {
	var bad []string
	for _, name := range t.names() {
		h := t[name].header
		switch {
		case h.Mode&0o6000 != 0:
			bad = append(bad, name+" is setuid or setgid")
		case h.Typeflag != tar.TypeSymlink && h.Mode&0o002 != 0 && h.Mode&0o1000 == 0:
			bad = append(bad, name+" can be written to by everybody")
		case !h.ModTime.Equal(epoch):
			bad = append(bad, fmt.Sprintf("%s has a time of its own, %s", name, h.ModTime))
		case isDropped(name):
			bad = append(bad, name+" belongs to the building, not to the image")
		case len(h.PAXRecords) > 0 && strings.Contains(fmt.Sprint(h.PAXRecords), "SCHILY.xattr"):
			bad = append(bad, name+" has extended attributes")
		}
	}
	return bad
}
