package embedk8s

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// Image is one container image that comes with gpulab.
type Image struct {
	Name   string `json:"name"`   // short name, for example "hub"
	Ref    string `json:"ref"`    // full reference with a content-derived tag
	Digest string `json:"digest"` // of its manifest
	Size   int64  `json:"size"`   // bytes, compressed
}

// ImageSet is a folder with container images in the OCI layout.
type ImageSet struct {
	Dir    string
	Images []Image
}

// OpenImages reads the list of a folder of images, which must hold those named.
func OpenImages(dir string, names ...string) (ImageSet, error) {
	data, err := os.ReadFile(filepath.Join(dir, "images.json"))
	if err != nil {
		return ImageSet{}, fmt.Errorf("container images: %w", err)
	}
	var list struct {
		Images []Image `json:"images"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return ImageSet{}, fmt.Errorf("%s: %w", filepath.Join(dir, "images.json"), err)
	}
	set := ImageSet{Dir: dir, Images: list.Images}
	refs := set.Refs()
	for _, n := range names {
		if refs[n] == "" {
			return ImageSet{}, fmt.Errorf("the container image %s is missing in %s; build the images again (`go tool task "+
				"images`) or reinstall the package gpulab-images", n, dir)
		}
	}
	return set, nil
}

// Refs maps short names to full references.
func (s ImageSet) Refs() map[string]string {
	refs := map[string]string{}
	for _, i := range s.Images {
		refs[i.Name] = i.Ref
	}
	return refs
}

// Only returns the set's images of those names.
func (s ImageSet) Only(names ...string) ImageSet {
	return s.where(func(i Image) bool { return slices.Contains(names, i.Name) })
}

// Without returns the set's images of all other names.
func (s ImageSet) Without(names ...string) ImageSet {
	return s.where(func(i Image) bool { return !slices.Contains(names, i.Name) })
}

func (s ImageSet) where(wanted func(Image) bool) ImageSet {
	out := ImageSet{Dir: s.Dir}
	for _, i := range s.Images {
		if wanted(i) {
			out.Images = append(out.Images, i)
		}
	}
	return out
}

// imageNamespace is where the kubelet's images live in containerd.
const imageNamespace = "k8s.io"

// pinned keeps the kubelet from collecting an image as garbage.
const pinned = "io.cri-containerd.pinned"

// ImportImages brings the images into containerd, unpacked and pinned, and
// returns how many were missing. It can be interrupted and run again: a blob
// that is there is not copied twice. Images are unpacked side by side, the
// largest first: each keeps one core busy. progress is called with the images
// under way and how many are done.
func (c *Cluster) ImportImages(ctx context.Context, set ImageSet,
	progress func(underWay []string, done, total int)) (imported int, err error) {
	client, err := containerd.New(containerdSocket, containerd.WithDefaultNamespace(imageNamespace))
	if err != nil {
		return 0, fmt.Errorf("containerd: %w", err)
	}
	defer client.Close()
	g, ctx := errgroup.WithContext(namespaces.WithNamespace(ctx, imageNamespace))
	g.SetLimit(max(2, min(runtime.NumCPU(), 4)))
	var mu sync.Mutex
	var underWay []string
	done := 0
	change := func(update func()) {
		mu.Lock()
		defer mu.Unlock()
		update()
		progress(slices.Clone(underWay), done, len(set.Images))
	}
	for _, img := range slices.SortedFunc(slices.Values(set.Images), func(a, b Image) int {
		return cmp.Compare(b.Size, a.Size)
	}) {
		g.Go(func() error {
			change(func() { underWay = append(underWay, img.Name) })
			did, err := importImage(ctx, client, set.Dir, img)
			if err != nil {
				return fmt.Errorf("importing image %s: %w", img.Name, err)
			}
			change(func() {
				underWay = slices.DeleteFunc(underWay, func(n string) bool { return n == img.Name })
				done++
				if did {
					imported++
				}
			})
			return nil
		})
	}
	err = g.Wait()
	return imported, err
}

func importImage(ctx context.Context, client *containerd.Client, dir string, img Image) (bool, error) {
	if have, err := client.GetImage(ctx, img.Ref); err == nil && have.Target().Digest.String() == img.Digest &&
		have.Labels()[pinned] == "pinned" {
		if ok, err := have.IsUnpacked(ctx, "overlayfs"); err == nil && ok {
			return false, nil
		}
	}
	// A lease keeps the collector from taking blobs that no image names yet.
	ctx, release, err := client.WithLease(ctx, leases.WithRandomID())
	if err != nil {
		return false, err
	}
	defer func() { _ = release(context.WithoutCancel(ctx)) }()

	target, err := copyManifest(ctx, client.ContentStore(), dir, img)
	if err != nil {
		return false, err
	}
	record := images.Image{Name: img.Ref, Target: target, Labels: map[string]string{pinned: "pinned"}}
	if _, err := client.ImageService().Create(ctx, record); errdefs.IsAlreadyExists(err) {
		_, err = client.ImageService().Update(ctx, record)
		if err != nil {
			return false, err
		}
	} else if err != nil {
		return false, err
	}
	return true, containerd.NewImage(client, record).Unpack(ctx, "overlayfs")
}

// copyManifest copies the image's blobs into the content store, children
// first, with the labels that keep them and let other nodes fetch them.
func copyManifest(ctx context.Context, cs content.Store, dir string, img Image) (ocispec.Descriptor, error) {
	var index ocispec.Index
	if err := readJSON(filepath.Join(dir, "index.json"), &index); err != nil {
		return ocispec.Descriptor{}, err
	}
	var target ocispec.Descriptor
	for _, d := range index.Manifests {
		if d.Digest.String() == img.Digest {
			target = d
		}
	}
	if target.Digest == "" {
		return target, fmt.Errorf("%s lists %s, but index.json does not; build the images again", dir, img.Digest)
	}
	target.Annotations = nil
	var manifest ocispec.Manifest
	if err := readJSON(blobPath(dir, target), &manifest); err != nil {
		return target, err
	}
	repo, _, _ := strings.Cut(img.Ref, ":")
	registry, name, _ := strings.Cut(repo, "/")
	source := map[string]string{"containerd.io/distribution.source." + registry: name}
	refs := map[string]string{"containerd.io/gc.ref.content.config": manifest.Config.Digest.String()}
	for i, l := range manifest.Layers {
		refs[fmt.Sprintf("containerd.io/gc.ref.content.l.%d", i)] = l.Digest.String()
		if err := copyBlob(ctx, cs, dir, l, source); err != nil {
			return target, err
		}
	}
	if err := copyBlob(ctx, cs, dir, manifest.Config, source); err != nil {
		return target, err
	}
	for k, v := range source {
		refs[k] = v
	}
	return target, copyBlob(ctx, cs, dir, target, refs)
}

func copyBlob(ctx context.Context, cs content.Store, dir string, d ocispec.Descriptor, labels map[string]string) error {
	f, err := os.Open(blobPath(dir, d))
	if err != nil {
		return err
	}
	defer f.Close()
	err = content.WriteBlob(ctx, cs, "gpulab-"+d.Digest.String(), f, d, content.WithLabels(labels))
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s is cut short; build or install the images again", f.Name())
	}
	return err
}

func blobPath(dir string, d ocispec.Descriptor) string {
	return filepath.Join(dir, "blobs", d.Digest.Algorithm().String(), d.Digest.Encoded())
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
