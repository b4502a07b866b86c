package embedk8s

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"
)

// PullProgress says how far a pull is, in bytes; Total is 0 until it is known.
type PullProgress struct {
	Done, Total int64
	// Unpacking says that everything is here and is being unpacked.
	Unpacking bool
}

// parallelLayers is how many parts of an image are loaded at a time.
const parallelLayers = 3

// Pull loads an image from its registry, unpacked and pinned. What an
// interrupted pull has loaded is not loaded again within leaseFor.
func (l *LabImages) Pull(ctx context.Context, ref string, progress func(PullProgress)) (LabImage, error) {
	ref, err := fullName(ref)
	if err != nil {
		return LabImage{}, err
	}
	if !l.busy.TryLock() {
		return LabImage{}, errImagesBusy
	}
	defer l.busy.Unlock()
	ctx = quietly(ctx)
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: l.resolve})
	_, target, err := resolver.Resolve(ctx, ref)
	if err != nil {
		return LabImage{}, registryError(ref, err)
	}
	fetcher, err := resolver.Fetcher(ctx, ref)
	if err != nil {
		return LabImage{}, registryError(ref, err)
	}
	img, err := l.bring(ctx, ref, target, fetcher, nil, progress)
	if errors.As(err, new(*loadError)) {
		err = registryError(ref, errors.Unwrap(err))
	}
	return img, err
}

// loadError is of the loading of an image's parts, rather than of what is done
// with them here.
type loadError struct{ error }

func (e *loadError) Unwrap() error { return e.error }

// bring loads an image's parts, unpacks it, and keeps it under its name. What an
// interrupted call has loaded is not loaded again within leaseFor.
func (l *LabImages) bring(ctx context.Context, ref string, target ocispec.Descriptor, fetcher remotes.Fetcher,
	labels map[string]string, progress func(PullProgress)) (LabImage, error) {
	sum := sha256.Sum256([]byte(ref))
	lease := leases.Lease{ID: "gpulab-pull-" + hex.EncodeToString(sum[:8])}
	if _, err := l.client.LeasesService().Create(ctx, leases.WithID(lease.ID),
		leases.WithExpiration(leaseFor)); err != nil && !errdefs.IsAlreadyExists(err) {
		return LabImage{}, l.trouble(err)
	}
	ctx = leases.WithLease(ctx, lease.ID)
	if err := l.fetch(ctx, ref, target, fetcher, progress); err != nil {
		return LabImage{}, &loadError{err}
	}
	progress(PullProgress{Unpacking: true})
	img, err := l.keep(ctx, ref, target, labels)
	if err != nil {
		return img, err
	}
	return img, l.client.LeasesService().Delete(context.WithoutCancel(ctx), lease, leases.SynchronousDelete)
}

// fetch copies what an image consists of into the content store.
func (l *LabImages) fetch(ctx context.Context, ref string, target ocispec.Descriptor, fetcher remotes.Fetcher,
	progress func(PullProgress)) error {
	cs := l.client.ContentStore()
	var mu sync.Mutex
	var parts []ocispec.Descriptor
	note := images.HandlerFunc(func(_ context.Context, d ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		mu.Lock()
		defer mu.Unlock()
		if images.IsLayerType(d.MediaType) {
			parts = append(parts, d)
		}
		return nil, nil
	})
	children := images.SetChildrenLabels(cs, images.ChildrenHandler(cs))
	children = images.LimitManifests(images.FilterPlatforms(children, platforms.Default()), platforms.Default(), 1)
	source, err := docker.AppendDistributionSourceLabel(cs, ref)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		ended <- images.Dispatch(ctx, images.Handlers(note, whole(cs, remotes.FetchHandler(cs, fetcher)), children, source),
			semaphore.NewWeighted(parallelLayers), target)
	}()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-tick.C:
			mu.Lock()
			now := parts
			mu.Unlock()
			progress(loaded(ctx, cs, now))
		}
	}
}

// whole lets go of a part that is not what its digest says: it would be gone on
// with for ever.
func whole(cs content.Store, fetch images.HandlerFunc) images.HandlerFunc {
	return func(ctx context.Context, d ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		list, err := fetch(ctx, d)
		if errdefs.IsFailedPrecondition(err) {
			_ = cs.Abort(context.WithoutCancel(ctx), remotes.MakeRefKey(ctx, d))
			err = fmt.Errorf("the part %s arrived damaged: %w", d.Digest, err)
		}
		return list, err
	}
}

// loaded counts what of an image's parts is here.
func loaded(ctx context.Context, cs content.Store, parts []ocispec.Descriptor) PullProgress {
	var p PullProgress
	for _, d := range parts {
		p.Total += d.Size
		if s, err := cs.Status(ctx, remotes.MakeRefKey(ctx, d)); err == nil {
			p.Done += s.Offset
		} else if _, err := cs.Info(ctx, d.Digest); err == nil {
			p.Done += d.Size
		}
	}
	return p
}

// registryError says why a registry did not hand over an image.
func registryError(ref string, err error) error {
	registry, _, _ := strings.Cut(ref, "/")
	var network net.Error
	var operation *net.OpError
	var status remoteerrors.ErrUnexpectedStatus
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &unknown):
		return fmt.Errorf("the certificate of the registry %s is not trusted on this machine", registry)
	case errors.As(err, &operation), errors.As(err, &network), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the registry %s cannot be reached from this machine; with a file of the image, use `gpulab "+
			"images import` (%w)", registry, err)
	case errors.As(err, &status) && status.StatusCode == http.StatusTooManyRequests:
		return fmt.Errorf("the registry %s lets nobody load more for now; try again later", registry)
	case errors.As(err, &status) && (status.StatusCode == http.StatusUnauthorized ||
		status.StatusCode == http.StatusForbidden), errors.Is(err, docker.ErrInvalidAuthorization):
		return fmt.Errorf("the registry %s gives %s to nobody who is not signed in, or has no image of this name", registry,
			ref)
	case errdefs.IsNotFound(err) && strings.Contains(err.Error(), "platform"):
		return fmt.Errorf("%s is not made for this kind of machine (%s)", ref, platforms.Format(platforms.DefaultSpec()))
	case errdefs.IsNotFound(err):
		return fmt.Errorf("the registry %s has no image %s", registry, ref)
	}
	return fmt.Errorf("%s could not be loaded: %w", ref, err)
}

// remote reads an image's descriptions straight from its registry.
type remote struct{ fetcher remotes.Fetcher }

// ReaderAt implements content.Provider.
func (r remote) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	if desc.Size > maxDocument {
		return nil, fmt.Errorf("the part %s is too large to be a description", desc.Digest)
	}
	body, err := r.fetcher.Fetch(ctx, desc)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, maxDocument))
	if err != nil {
		return nil, err
	}
	if desc.Digest.Algorithm().FromBytes(data) != desc.Digest {
		return nil, fmt.Errorf("the part %s arrived damaged", desc.Digest)
	}
	return inMemory{bytes.NewReader(data)}, nil
}

type inMemory struct{ *bytes.Reader }

func (inMemory) Close() error { return nil }
