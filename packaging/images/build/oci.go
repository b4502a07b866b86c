package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
)

// registry is the host part of every reference: no such host exists, so nothing
// can ever be pulled by mistake.
const registry = "gpulab.local"

// refAnnotation holds an image's full reference in an OCI layout's index.
const refAnnotation = "org.opencontainers.image.ref.name"

// builtImage is an image with what its neighbours need to know about it.
type builtImage struct {
	spec   image
	img    v1.Image
	layers []layer
	listed listedImage
}

// listedImage is an image in images.json.
type listedImage struct {
	Name   string `json:"name"`
	Ref    string `json:"ref"`
	Digest string `json:"digest"` // of the manifest
	Size   int64  `json:"size"`   // bytes of manifest, configuration and compressed layers
}

// list is images.json: what gpulab reads to know the references.
type list struct {
	Images []listedImage `json:"images"`
}

// imageLayer makes a layer of the cache a layer of an image.
type imageLayer struct{ layer }

func (l imageLayer) Digest() (v1.Hash, error) {
	return v1.Hash{Algorithm: "sha256", Hex: l.layer.Digest}, nil
}
func (l imageLayer) DiffID() (v1.Hash, error) {
	return v1.Hash{Algorithm: "sha256", Hex: l.layer.DiffID}, nil
}
func (l imageLayer) Size() (int64, error)                { return l.layer.Size, nil }
func (l imageLayer) MediaType() (types.MediaType, error) { return types.OCILayerZStd, nil }
func (l imageLayer) Compressed() (io.ReadCloser, error)  { return os.Open(l.path) }

func (l imageLayer) Uncompressed() (io.ReadCloser, error) {
	f, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	z, err := zstd.NewReader(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{z, closers{z.IOReadCloser(), f}}, nil
}

type closers []io.Closer

func (c closers) Close() error {
	var errs []error
	for _, one := range c {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// image makes all layers of spec and puts them together.
func (b *builder) image(ctx context.Context, spec image) (builtImage, error) {
	layers, err := b.layers(ctx, spec.layers)
	if err != nil {
		return builtImage{}, err
	}
	img, err := assemble(spec, layers)
	if err != nil {
		return builtImage{}, err
	}
	listed, err := describe(spec.name, img)
	if err != nil {
		return builtImage{}, err
	}
	return builtImage{spec: spec, img: img, layers: layers, listed: listed}, nil
}

// assemble is the image of spec on the given layers; equal input, equal digest.
func assemble(spec image, layers []layer) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range layers {
		var err error
		img, err = mutate.Append(img, mutate.Addendum{
			Layer:     imageLayer{l},
			MediaType: types.OCILayerZStd,
			History:   v1.History{Created: v1.Time{Time: epoch}, CreatedBy: l.Created},
		})
		if err != nil {
			return nil, err
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS, config.Created = "amd64", "linux", v1.Time{Time: epoch}
	config.Config = *spec.config.DeepCopy()
	config.Config.Labels = map[string]string{
		"org.opencontainers.image.title":       "gpulab " + spec.name,
		"org.opencontainers.image.description": spec.about,
	}
	return mutate.ConfigFile(img, config)
}

// describe computes the reference of an image: its tag is the start of the
// digest. Two images with the same name never share a reference, even if they
// differ only in compression: a rollback has to find its own blobs.
func describe(name string, img v1.Image) (listedImage, error) {
	digest, err := img.Digest()
	if err != nil {
		return listedImage{}, err
	}
	manifest, err := img.Manifest()
	if err != nil {
		return listedImage{}, err
	}
	size, err := img.Size()
	if err != nil {
		return listedImage{}, err
	}
	size += manifest.Config.Size
	for _, l := range manifest.Layers {
		size += l.Size
	}
	return listedImage{Name: name, Ref: reference(name, digest), Digest: digest.String(), Size: size}, nil
}

func reference(name string, digest v1.Hash) string {
	return fmt.Sprintf("%s/%s:%s", registry, name, digest.Hex[:12])
}

// publish writes built into the layout out, beside the images of other names
// that are there already, and reports whether anything changed. The folder is
// exchanged as a whole, and not touched at all when it is already right.
func publish(out string, built []builtImage) (bool, error) {
	kept, err := others(out, built)
	if err != nil {
		return false, err
	}
	all := slices.Concat(built, kept)
	slices.SortFunc(all, func(a, b builtImage) int { return strings.Compare(a.listed.Name, b.listed.Name) })

	next, old := out+".new", out+".old"
	for _, dir := range []string{next, old} {
		if err := os.RemoveAll(dir); err != nil {
			return false, err
		}
	}
	if err := writeLayout(next, out, all); err != nil {
		return false, err
	}
	if sameFile(filepath.Join(next, "index.json"), filepath.Join(out, "index.json")) &&
		sameFile(filepath.Join(next, "images.json"), filepath.Join(out, "images.json")) && sameBlobs(next, out) {
		return false, os.RemoveAll(next)
	}
	if err := os.Rename(out, old); err != nil && !os.IsNotExist(err) {
		return false, err
	}
	if err := os.Rename(next, out); err != nil {
		return false, err
	}
	return true, os.RemoveAll(old)
}

// others reads the images of out that built does not replace.
func others(out string, built []builtImage) ([]builtImage, error) {
	known, err := readImages(out)
	if err != nil {
		return nil, err
	}
	p, err := layout.FromPath(out)
	if err != nil {
		return nil, nil // no layout yet
	}
	var kept []builtImage
	for _, l := range known.Images {
		if slices.ContainsFunc(built, func(b builtImage) bool { return b.listed.Name == l.Name }) {
			continue
		}
		spec, err := imagesNamed([]string{l.Name})
		if err != nil {
			continue // an image that gpulab no longer has
		}
		hash, err := v1.NewHash(l.Digest)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", out, err)
		}
		img, err := p.Image(hash)
		if err != nil {
			return nil, fmt.Errorf("%s lists %s but does not hold it: %w; remove the folder and build again", out, l.Name, err)
		}
		kept = append(kept, builtImage{spec: spec[0], img: img, listed: l})
	}
	return kept, nil
}

// readImages reads images.json; a layout that is not there has no images.
func readImages(out string) (list, error) {
	data, err := os.ReadFile(filepath.Join(out, "images.json"))
	if os.IsNotExist(err) {
		return list{}, nil
	}
	if err != nil {
		return list{}, err
	}
	var l list
	if err := json.Unmarshal(data, &l); err != nil {
		return list{}, fmt.Errorf("%s: %w", filepath.Join(out, "images.json"), err)
	}
	return l, nil
}

// writeLayout makes the layout dir. Blobs are linked from the cache, or from
// the layout prev that dir is about to replace, where the disk allows it.
func writeLayout(dir, prev string, all []builtImage) error {
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return err
	}
	var names list
	for _, b := range all {
		manifest, err := b.img.Manifest()
		if err != nil {
			return err
		}
		for i, l := range manifest.Layers {
			from := filepath.Join(prev, "blobs", "sha256", l.Digest.Hex)
			if b.layers != nil {
				from = b.layers[i].path
			}
			// Where linking fails (another disk), AppendImage copies.
			_ = os.Link(from, filepath.Join(blobs, l.Digest.Hex))
		}
		annotations := map[string]string{refAnnotation: b.listed.Ref}
		if err := p.AppendImage(b.img, layout.WithAnnotations(annotations)); err != nil {
			return fmt.Errorf("%s: %w", b.listed.Name, err)
		}
		names.Images = append(names.Images, b.listed)
	}
	data, err := json.MarshalIndent(names, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "images.json"), append(data, '\n'), 0o644)
}

func sameFile(a, b string) bool {
	x, errX := os.ReadFile(a)
	y, errY := os.ReadFile(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// sameBlobs reports whether b holds every blob of a, by name and size.
func sameBlobs(a, b string) bool {
	entries, err := os.ReadDir(filepath.Join(a, "blobs", "sha256"))
	if err != nil {
		return false
	}
	for _, e := range entries {
		x, errX := e.Info()
		y, errY := os.Stat(filepath.Join(b, "blobs", "sha256", e.Name()))
		if errX != nil || errY != nil || x.Size() != y.Size() {
			return false
		}
	}
	return true
}
