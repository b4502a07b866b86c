package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/units"
)

// imageKeeper keeps the container images of a joined machine as the head wants
// them: what is missing the head hands over, what it has no more goes.
type imageKeeper struct {
	images *embedk8s.LabImages
	list   func(context.Context) (nodeapi.Images, error)
	blob   func(ctx context.Context, digest string, offset int64) (io.ReadCloser, error)
	local  string // folder of the package gpulab-images on this machine, "" without
	inUse  string // what this machine's Kubernetes was started with, which stays
	free   func() (bytes int64, known bool)
	wake   chan struct{} // has room for one

	mu    sync.Mutex
	want  string // the version of the head's list, as it said last
	state nodeapi.ImageState
}

// Image versions are looked at when the head says that they changed, and every
// now and then all the same: somebody may have removed one here.
const (
	imagesEvery       = 10 * time.Minute
	imagesAgain       = 5 * time.Second // after a failure, or what was in use, and twice as long after each
	imagesAgainAtMost = 2 * time.Minute
)

// unpackedFor is how many bytes of disk a byte of an image takes at most: itself,
// and what is in it.
const unpackedFor = 4

// newKeeper opens this machine's images.
func (g *agent) newKeeper(cluster *embedk8s.Cluster) (*imageKeeper, error) {
	images, err := cluster.LabImages()
	if err != nil {
		return nil, err
	}
	return &imageKeeper{
		images: images, list: g.client.Images, blob: g.client.Blob, local: g.images.Dir, inUse: g.pauseImage(),
		free: func() (int64, bool) {
			h := g.busy.latest.Load()
			if h == nil || h.DiskTotal == 0 {
				return 0, false
			}
			return h.DiskFree, true
		},
		wake: make(chan struct{}, 1),
	}, nil
}

// obey takes from the head's orders which list of images is the newest.
func (k *imageKeeper) obey(version string) {
	k.mu.Lock()
	news := version != "" && version != k.want
	if news {
		k.want = version
	}
	k.mu.Unlock()
	if news {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}

// told is what the head is told of it.
func (k *imageKeeper) told() *nodeapi.ImageState {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.state
	s.Have = slices.Clone(s.Have)
	return &s
}

func (k *imageKeeper) note(change func(*nodeapi.ImageState)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.state)
}

// run keeps the images right until ctx ends.
func (k *imageKeeper) run(ctx context.Context) error {
	pause := imagesEvery
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
		case <-time.After(pause):
		}
		inUse, err := k.converge(ctx)
		if err != nil && pause == imagesEvery && ctx.Err() == nil {
			slog.Warn("this machine lacks images of the pool; trying again", "err", err)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && inUse == 0:
			pause = imagesEvery
		case pause == imagesEvery:
			pause = imagesAgain
		default:
			pause = min(2*pause, imagesAgainAtMost)
		}
	}
}

// converge brings in all that is missing and removes what is wanted no more; inUse
// counts what cannot be removed yet.
func (k *imageKeeper) converge(ctx context.Context) (inUse int, err error) {
	_, _, err = k.get(ctx, func(nodeapi.Image) bool { return true }, func(string, ...any) {})
	if err == nil {
		inUse, err = k.sweep(ctx)
	}
	return inUse, err
}

// get brings in the missing ones of those images of the head's that are wanted,
// the smallest first, and returns how many there are and how many were missing.
func (k *imageKeeper) get(ctx context.Context, wanted func(nodeapi.Image) bool,
	say func(string, ...any)) (count, missing int, err error) {
	list, err := k.list(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer func() {
		k.note(func(s *nodeapi.ImageState) {
			s.Loading, s.Done, s.Total, s.Unpacking, s.Failed = "", 0, 0, false, ""
			if err != nil && ctx.Err() == nil {
				s.Failed = err.Error()
			}
		})
	}()
	k.look(ctx, list.List)
	slices.SortStableFunc(list.List, func(a, b nodeapi.Image) int { return cmp.Compare(a.Size, b.Size) })
	var errs []error // one that cannot be had holds up no other
	for _, img := range list.List {
		if !wanted(img) {
			continue
		}
		if count++; k.images.Has(ctx, sharedImage(img)) {
			continue
		}
		missing++
		if err := k.take(ctx, img, say); err != nil {
			errs = append(errs, err)
			continue
		}
		k.look(ctx, list.List)
	}
	return count, missing, errors.Join(errs...)
}

// look notes which images are here.
func (k *imageKeeper) look(ctx context.Context, list []nodeapi.Image) {
	var have []string
	for _, img := range list {
		if k.images.Has(ctx, sharedImage(img)) {
			have = append(have, shortDigest(img.Digest))
		}
	}
	k.note(func(s *nodeapi.ImageState) { s.Have = have })
}

func shortDigest(d string) string { return d[:min(len(d), nodeapi.DigestLength)] }

// take brings in one image.
func (k *imageKeeper) take(ctx context.Context, img nodeapi.Image, say func(string, ...any)) error {
	if free, known := k.free(); known && free < img.Size*unpackedFor {
		return fmt.Errorf("the image %s takes up to %s here, and %s are free; make room on this machine's disk", img.Name,
			units.Bytes(uint64(img.Size*unpackedFor)), units.Bytes(uint64(max(free, 0))))
	}
	from := embedk8s.Source(func(ctx context.Context, part string, _, offset int64) (io.ReadCloser, error) {
		if offset > 0 {
			slog.Info("a part of an image goes on where it stopped", "image", img.Name, "part", part, "offset", offset)
		}
		return k.blob(ctx, part, offset)
	})
	if k.local != "" {
		from = embedk8s.Lying(k.local, from)
	}
	began := time.Now()
	show := func(p embedk8s.PullProgress) {
		k.note(func(s *nodeapi.ImageState) {
			s.Loading, s.Done, s.Total, s.Unpacking = img.Name, min(p.Done, img.Size), img.Size, p.Unpacking
		})
		if p.Unpacking {
			say("unpacking %s", img.Name)
		} else {
			say("loading %s: %s of %s", img.Name, units.Bytes(uint64(p.Done)), units.Bytes(uint64(img.Size)))
		}
	}
	show(embedk8s.PullProgress{})
	if err := k.images.Take(ctx, sharedImage(img), from, show); err != nil {
		if errors.Is(err, embedk8s.ErrDamaged) {
			err = fmt.Errorf("%w; see `gpulab doctor images` on the head", err)
		}
		return fmt.Errorf("the image %s: %w", img.Name, err)
	}
	slog.Info("an image was handed over", "image", img.Name, "size", img.Size, "took",
		time.Since(began).Round(time.Millisecond))
	return nil
}

// sweep removes images that the head has no more, once nothing here uses them.
func (k *imageKeeper) sweep(ctx context.Context) (inUse int, err error) {
	list, err := k.list(ctx)
	if err != nil {
		return 0, err
	}
	removed, inUse, err := k.images.Sweep(ctx, func(ref string, handedOver bool) bool {
		if !handedOver && !strings.HasPrefix(ref, ownRegistry) || ref == k.inUse {
			return false
		}
		return !slices.ContainsFunc(list.List, func(img nodeapi.Image) bool { return img.Ref == ref })
	})
	if len(removed) > 0 {
		slog.Info("images were removed that the pool has no more", "images", removed)
	}
	return inUse, err
}

// sharedImage is an image as containerd knows it.
func sharedImage(img nodeapi.Image) embedk8s.SharedImage {
	return embedk8s.SharedImage{
		Ref: img.Ref, Size: img.Size, Target: ocispec.Descriptor{
			MediaType: img.MediaType, Digest: digest.Digest(img.Digest), Size: img.Manifest,
		},
	}
}

// pauseImage holds pods together; the kubelet has to find it by the name it was
// started with.
func (g *agent) pauseImage() string { return g.file.Settings.Images["pause"] }

// handOver is a stage in which this machine gets images from its head.
func (g *agent) handOver(ctx context.Context, name string, wanted func(nodeapi.Image) bool) error {
	keeper := g.keeper.Load()
	before := false // the head is of a version that hands over none
	err := g.boot.do(name, func(st *stage) error {
		count, n, err := keeper.get(ctx, wanted, st.say)
		if p := (*nodeapi.Problem)(nil); errors.As(err, &p) && p.Status == http.StatusNotFound {
			if before = g.images.Dir != ""; before {
				return nil
			}
			return errors.New("the head's gpulab is an earlier one that hands over no images; upgrade it, or install the " +
				"head's package gpulab-images on this machine")
		}
		if n > 0 {
			st.changed()
		}
		if err != nil {
			return err
		}
		if count == 0 {
			return errors.New("the head is still bringing in its own images")
		}
		st.say("%d new, %d there before", n, count-n)
		return nil
	})
	if err != nil || !before {
		return err
	}
	set := g.images.Without(notebookImage, "hub")
	if name == stageNotebook {
		set = g.images.Only(notebookImage)
	}
	return g.importImages(ctx, name, set)
}
