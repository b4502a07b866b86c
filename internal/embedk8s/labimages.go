package embedk8s

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"
)

// snapshotter is what k3s's containerd unpacks images with.
const snapshotter = "overlayfs"

// leaseFor is how long containerd keeps parts of an image that no name leads
// to yet; whoever was killed meanwhile leaves them behind for that long.
const leaseFor = 6 * time.Hour

// ErrNoImage says that this machine has no image of that name.
var ErrNoImage = errors.New("this machine has no such image; `gpulab images list` lists those it has")

// LabImages are the container images that notebooks of this machine can start
// from, gpulab's own among them. References are full ones, with registry and
// tag or digest.
type LabImages struct {
	client      *containerd.Client
	snapshotter string
	resolve     docker.RegistryHosts
	// busy is held while an image is brought in or removed.
	busy  sync.Mutex
	env   environments
	known knownParts
}

// LabImage is one image on this machine.
type LabImage struct {
	Ref string
	// Size is in bytes, compressed.
	Size int64
	// Pinned says that the kubelet does not remove it when the disk is short.
	Pinned bool
	// Env is the environment that it sets, nil where that cannot be read.
	Env []string
}

// LabImages opens the images of this machine; containerd need not answer yet.
// Registries and mirrors are those that k3s was given.
func (c *Cluster) LabImages() (*LabImages, error) {
	client, err := containerd.New(containerdSocket, containerd.WithTimeout(time.Second))
	if err != nil {
		return nil, fmt.Errorf("containerd: %w", err)
	}
	certs := config.HostDirFromRoot(c.k3sDir() + "/agent/etc/containerd/certs.d")
	return newLabImages(client, snapshotter,
		config.ConfigureHosts(context.Background(), config.HostOptions{HostDir: certs})), nil
}

func newLabImages(client *containerd.Client, snapshotter string, hosts docker.RegistryHosts) *LabImages {
	return &LabImages{client: client, snapshotter: snapshotter, resolve: hosts}
}

// quietly is ctx for the kubelet's images. containerd's client would write to
// standard error what it tells its caller too.
func quietly(ctx context.Context) context.Context {
	silent := logrus.New()
	silent.SetOutput(io.Discard)
	return namespaces.WithNamespace(log.WithLogger(ctx, logrus.NewEntry(silent)), imageNamespace)
}

// Close lets go of containerd.
func (l *LabImages) Close() error { return l.client.Close() }

// List returns the images by reference.
func (l *LabImages) List(ctx context.Context) ([]LabImage, error) {
	ctx = quietly(ctx)
	records, err := l.client.ImageService().List(ctx)
	if err != nil {
		return nil, l.trouble(err)
	}
	named := map[string]bool{} // digests that a tag leads to
	for _, r := range records {
		named[r.Target.Digest.String()] = named[r.Target.Digest.String()] || !byDigest(r.Name)
	}
	var list []LabImage
	for _, r := range records {
		// The kubelet's side names each image by its digests too.
		if strings.HasPrefix(r.Name, "sha256:") || byDigest(r.Name) && named[r.Target.Digest.String()] {
			continue
		}
		list = append(list, l.describe(ctx, r))
	}
	slices.SortFunc(list, func(a, b LabImage) int { return cmp.Compare(a.Ref, b.Ref) })
	return list, nil
}

// byDigest tells names that the kubelet's side makes from those of people.
func byDigest(name string) bool {
	return strings.HasPrefix(name, "sha256:") || strings.Contains(name, "@sha256:")
}

func (l *LabImages) describe(ctx context.Context, r images.Image) LabImage {
	img := LabImage{Ref: r.Name, Pinned: r.Labels[pinned] == "pinned"}
	if size, err := containerd.NewImage(l.client, r).Size(ctx); err == nil {
		img.Size = size
	}
	if env, err := environment(ctx, l.client.ContentStore(), r.Target); err == nil {
		img.Env = env
	}
	return img
}

// Remove takes an image off this machine. Its space is free when it returns,
// but for parts that other images, or running containers, have in common.
func (l *LabImages) Remove(ctx context.Context, ref string) error {
	if !l.busy.TryLock() {
		return errImagesBusy
	}
	defer l.busy.Unlock()
	ctx = quietly(ctx)
	record, err := l.client.ImageService().Get(ctx, ref)
	if errdefs.IsNotFound(err) {
		return ErrNoImage
	} else if err != nil {
		return l.trouble(err)
	}
	if err := l.client.ImageService().Delete(ctx, ref, images.SynchronousDelete()); err != nil &&
		!errdefs.IsNotFound(err) {
		return l.trouble(err)
	}
	return l.forget(ctx, record.Target)
}

// forget removes the names by digest of what no name of people leads to any
// more; otherwise its parts would stay for ever.
func (l *LabImages) forget(ctx context.Context, target ocispec.Descriptor) error {
	records, err := l.client.ImageService().List(ctx, "target.digest=="+target.Digest.String())
	if err != nil {
		return l.trouble(err)
	}
	if slices.ContainsFunc(records, func(r images.Image) bool { return !byDigest(r.Name) }) {
		return nil
	}
	for _, r := range records {
		if err := l.client.ImageService().Delete(ctx, r.Name, images.SynchronousDelete()); err != nil &&
			!errdefs.IsNotFound(err) {
			return l.trouble(err)
		}
	}
	return nil
}

// errImagesBusy keeps two from changing images at once.
var errImagesBusy = errors.New("another image is being imported, pulled or removed; try again when that has ended")

// keep names an image whose parts are all there and unpacks it first, so that
// nobody finds half of one. What had the name before goes. labels are those it
// has beside the one that pins it.
func (l *LabImages) keep(ctx context.Context, ref string, target ocispec.Descriptor,
	labels map[string]string) (LabImage, error) {
	target.Annotations = nil
	record := images.Image{Name: ref, Target: target, Labels: map[string]string{pinned: "pinned"}}
	maps.Copy(record.Labels, labels)
	config, err := configuration(ctx, l.client.ContentStore(), target)
	if err != nil {
		return LabImage{}, fmt.Errorf("the image %s is damaged: %w", ref, err)
	}
	if config.OS != "" && !platforms.Default().Match(platforms.Normalize(config.Platform)) {
		return LabImage{}, fmt.Errorf("the image %s is made for other machines (%s) than this one (%s)", ref,
			platforms.Format(config.Platform), platforms.Format(platforms.DefaultSpec()))
	}
	img := containerd.NewImage(l.client, record)
	if err := img.Unpack(ctx, l.snapshotter); err != nil {
		return LabImage{}, fmt.Errorf("the image %s cannot be unpacked: %w", ref, err)
	}
	before, err := l.client.ImageService().Get(ctx, ref)
	replaces := err == nil && before.Target.Digest != target.Digest
	if _, err = l.client.ImageService().Create(ctx, record); errdefs.IsAlreadyExists(err) {
		_, err = l.client.ImageService().Update(ctx, record)
	}
	if err != nil {
		return LabImage{}, l.trouble(err)
	}
	if replaces {
		if err := l.forget(ctx, before.Target); err != nil {
			return LabImage{}, err
		}
	}
	return l.describe(ctx, record), nil
}

// lease keeps the collector from taking parts that no name leads to yet. What
// is left without a name when it ends is gone then.
func (l *LabImages) lease(ctx context.Context) (context.Context, func(), error) {
	manager := l.client.LeasesService()
	made, err := manager.Create(ctx, leases.WithRandomID(), leases.WithExpiration(leaseFor))
	if err != nil {
		return ctx, nil, l.trouble(err)
	}
	end := context.WithoutCancel(ctx)
	return leases.WithLease(ctx, made.ID), func() { _ = manager.Delete(end, made, leases.SynchronousDelete) }, nil
}

// trouble says what it means that containerd does not do what it should.
func (l *LabImages) trouble(err error) error {
	if errdefs.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded) {
		return errors.New("containerd, which holds the images, does not answer; see `gpulab status`")
	}
	return fmt.Errorf("containerd: %w", err)
}

// fullName is the reference that the kubelet looks for.
func fullName(ref string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("%q is no name of a container image: %w", ref, err)
	}
	return named.String(), nil
}

// configuration reads what an image says of itself on machines like this one.
func configuration(ctx context.Context, provider content.Provider,
	target ocispec.Descriptor) (image ocispec.Image, err error) {
	desc, err := images.Config(ctx, provider, target, platforms.Default())
	if err != nil {
		return image, err
	}
	return image, readBlob(ctx, provider, desc, &image)
}

// environment reads the environment that an image sets, not nil.
func environment(ctx context.Context, provider content.Provider, target ocispec.Descriptor) ([]string, error) {
	image, err := configuration(ctx, provider, target)
	if err != nil {
		return nil, err
	}
	return slices.Concat([]string{}, image.Config.Env), nil
}
