package embedk8s

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// SharedImage is an image as one machine hands it over to another.
type SharedImage struct {
	Ref    string
	Target ocispec.Descriptor // its manifest, or the list of those for several kinds of machine
	Size   int64              // bytes of all its parts, compressed
	Parts  []string           // digests of all of them, the target's among them
	Pinned bool
}

// Shared are the images of this machine that have a name and are whole, with all
// that another machine needs to ask for.
func (l *LabImages) Shared(ctx context.Context) ([]SharedImage, error) {
	ctx = quietly(ctx)
	records, err := l.client.ImageService().List(ctx)
	if err != nil {
		return nil, l.trouble(err)
	}
	var list []SharedImage
	for _, r := range records {
		if byDigest(r.Name) {
			continue
		}
		img := SharedImage{Ref: r.Name, Target: r.Target, Pinned: r.Labels[pinned] == "pinned"}
		if img.Parts, img.Size, err = l.parts(ctx, r.Target); err != nil {
			continue // it is being replaced, or was made for other machines
		}
		list = append(list, img)
	}
	slices.SortFunc(list, func(a, b SharedImage) int { return strings.Compare(a.Ref, b.Ref) })
	return list, nil
}

// knownParts remembers what images consist of, by digest, which never changes.
type knownParts struct {
	mu   sync.Mutex
	list map[digest.Digest]imageParts
}

type imageParts struct {
	digests []string
	size    int64
}

// mostKnownParts bounds what is remembered of images that came and went.
const mostKnownParts = 1000

func (l *LabImages) parts(ctx context.Context, target ocispec.Descriptor) ([]string, int64, error) {
	l.known.mu.Lock()
	defer l.known.mu.Unlock()
	if p, ok := l.known.list[target.Digest]; ok {
		return p.digests, p.size, nil
	}
	var p imageParts
	cs := l.client.ContentStore()
	note := images.HandlerFunc(func(_ context.Context, d ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		p.digests, p.size = append(p.digests, d.Digest.String()), p.size+d.Size
		return nil, nil
	})
	children := images.LimitManifests(images.FilterPlatforms(images.ChildrenHandler(cs), platforms.Default()),
		platforms.Default(), 1)
	if err := images.Walk(ctx, images.Handlers(note, children), target); err != nil {
		return nil, 0, err
	}
	if l.known.list == nil || len(l.known.list) >= mostKnownParts {
		l.known.list = map[digest.Digest]imageParts{}
	}
	l.known.list[target.Digest] = p
	return p.digests, p.size, nil
}

// Part opens one part of an image.
func (l *LabImages) Part(ctx context.Context, name string) (content.ReaderAt, error) {
	d, err := digest.Parse(name)
	if err != nil {
		return nil, err
	}
	ra, err := l.client.ContentStore().ReaderAt(quietly(ctx), ocispec.Descriptor{Digest: d})
	if errdefs.IsNotFound(err) {
		return nil, ErrNoImage
	}
	return ra, err
}

// handed marks images that another machine of the pool handed over: they go when
// that has them no more.
const handed = "gpulab.dev/handed-over"

// ErrDamaged says that a part of an image is not what its digest says.
var ErrDamaged = errors.New("it arrived damaged")

// Source hands over a part of an image from an offset on.
type Source func(ctx context.Context, part string, size, offset int64) (io.ReadCloser, error)

// Take brings in an image that another machine hands over: part by part, each of
// which is compared with its digest, unpacked and pinned. What an interrupted call
// has loaded is not loaded again within leaseFor, to the byte.
func (l *LabImages) Take(ctx context.Context, img SharedImage, from Source, progress func(PullProgress)) error {
	if !l.busy.TryLock() {
		return errImagesBusy
	}
	defer l.busy.Unlock()
	_, err := l.bring(quietly(ctx), img.Ref, img.Target, fetchFrom(from), map[string]string{handed: "yes"}, progress)
	if errdefs.IsFailedPrecondition(err) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// fetchFrom makes containerd's fetcher of a source. Nothing is asked for before
// it is read, since only then it is known where to begin.
func fetchFrom(from Source) remotes.Fetcher {
	return remotes.FetcherFunc(func(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
		return &partReader{ctx: ctx, from: from, part: d}, nil
	})
}

type partReader struct {
	ctx    context.Context
	from   Source
	part   ocispec.Descriptor
	offset int64
	open   io.ReadCloser
}

// Seek implements io.Seeker for where reading begins.
func (r *partReader) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekStart || r.open != nil || offset < 0 || offset > r.part.Size {
		return 0, errors.New("a part is read from one place on")
	}
	r.offset = offset
	return offset, nil
}

func (r *partReader) Read(p []byte) (int, error) {
	if r.open == nil {
		var err error
		if r.open, err = r.from(r.ctx, r.part.Digest.String(), r.part.Size, r.offset); err != nil {
			return 0, err
		}
	}
	return r.open.Read(p)
}

func (r *partReader) Close() error {
	if r.open == nil {
		return nil
	}
	return r.open.Close()
}

// Lying is a source of the parts that lie in a folder of images on this machine;
// what does not is another's to hand over.
func Lying(dir string, otherwise Source) Source {
	return func(ctx context.Context, part string, size, offset int64) (io.ReadCloser, error) {
		d, err := digest.Parse(part)
		if err != nil {
			return nil, err
		}
		f, err := os.Open(blobPath(dir, ocispec.Descriptor{Digest: d}))
		if err != nil {
			return otherwise(ctx, part, size, offset)
		}
		if info, err := f.Stat(); err != nil || info.Size() != size {
			_ = f.Close() // cut short
			return otherwise(ctx, part, size, offset)
		}
		_, err = f.Seek(offset, io.SeekStart)
		return f, err
	}
}

// Has tells whether an image is here whole: under its name, pinned and unpacked.
func (l *LabImages) Has(ctx context.Context, img SharedImage) bool {
	ctx = quietly(ctx)
	record, err := l.client.ImageService().Get(ctx, img.Ref)
	if err != nil || record.Target.Digest != img.Target.Digest || record.Labels[pinned] != "pinned" {
		return false
	}
	ok, err := containerd.NewImage(l.client, record).IsUnpacked(ctx, l.snapshotter)
	return err == nil && ok
}

// Sweep removes images that stale says are wanted no more, but for those that a
// container here uses, and returns what it removed and how many are in use still.
// handedOver tells stale that the image came from another machine of the pool.
func (l *LabImages) Sweep(ctx context.Context,
	stale func(ref string, handedOver bool) bool) (removed []string, inUse int, err error) {
	records, err := l.client.ImageService().List(quietly(ctx))
	if err != nil {
		return nil, 0, l.trouble(err)
	}
	var used map[digest.Digest]bool
	for _, r := range records {
		if byDigest(r.Name) || r.Labels[pinned] != "pinned" || !stale(r.Name, r.Labels[handed] != "") {
			continue
		}
		if used == nil {
			if used, err = l.used(ctx, records); err != nil {
				return removed, inUse, err
			}
		}
		if used[r.Target.Digest] {
			inUse++
			continue
		}
		if err := l.Remove(ctx, r.Name); err != nil && !errors.Is(err, ErrNoImage) {
			return removed, inUse, err
		}
		removed = append(removed, r.Name)
	}
	return removed, inUse, nil
}

// used are the images, by their target, of which there are containers, running
// or not.
func (l *LabImages) used(ctx context.Context, records []images.Image) (map[digest.Digest]bool, error) {
	targets := map[string]digest.Digest{}
	for _, r := range records {
		targets[r.Name] = r.Target.Digest
	}
	list, err := l.client.ContainerService().List(quietly(ctx))
	if err != nil {
		return nil, l.trouble(err)
	}
	used := map[digest.Digest]bool{}
	for _, c := range list {
		if d, ok := targets[c.Image]; ok {
			used[d] = true
		}
	}
	return used, nil
}
