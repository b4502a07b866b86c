package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/upgrade"
	"github.com/gpulab/gpulab/internal/version"
)

// ownRegistry begins the names of gpulab's own images; no such host exists.
const ownRegistry = "gpulab.local/"

// headOnly are images of gpulab's that run on the head alone.
var headOnly = []string{"hub"}

// imageOffer is what the head hands over to the pool's machines: its own images,
// and those that admins brought in or profiles start from.
type imageOffer struct {
	images nodeapi.Images
	parts  map[string]bool // by digest; nothing else is handed over
}

// of finds an image by its name.
func (o *imageOffer) of(ref string) (nodeapi.Image, bool) {
	if o != nil {
		for _, img := range o.images.List {
			if img.Ref == ref {
				return img, true
			}
		}
	}
	return nodeapi.Image{}, false
}

// lookAtImages finds out what there is to hand over.
func (p *pool) lookAtImages(ctx context.Context) (*imageOffer, error) {
	parts := p.lab.attached.Load()
	if parts == nil {
		return nil, errStarting
	}
	list, err := parts.images.Shared(ctx)
	if err != nil {
		return nil, err
	}
	own := map[string]string{}
	for name, ref := range p.lab.images.Refs() {
		own[ref] = name
	}
	offer := &imageOffer{images: nodeapi.Images{List: []nodeapi.Image{}}, parts: map[string]bool{}}
	sum := sha256.New()
	for _, img := range list {
		name, isOwn := own[img.Ref]
		switch {
		// of another version of gpulab
		case slices.Contains(headOnly, name), !isOwn && strings.HasPrefix(img.Ref, ownRegistry):
			continue
		case !isOwn && !img.Pinned && len(p.lab.startedFrom(img.Ref)) == 0: // it came by itself, and goes by itself
			continue
		case !isOwn:
			name = img.Ref
		}
		offer.images.List = append(offer.images.List, nodeapi.Image{
			Name: name, Ref: img.Ref, Own: isOwn, MediaType: img.Target.MediaType, Digest: img.Target.Digest.String(),
			Manifest: img.Target.Size, Size: img.Size,
		})
		for _, d := range img.Parts {
			offer.parts[d] = true
		}
		fmt.Fprintln(sum, img.Ref, img.Target.Digest)
	}
	offer.images.Version = hex.EncodeToString(sum.Sum(nil)[:8])
	if before := p.offer.Swap(offer); before == nil || before.images.Version != offer.images.Version {
		slog.Info("images for the pool's machines", "count", len(offer.images.List), "version", offer.images.Version)
		p.lab.poolChanged()
	}
	return offer, nil
}

// Images implements nodeapi.Head.
func (p *pool) Images(ctx context.Context) (nodeapi.Images, error) {
	offer, err := p.lookAtImages(ctx)
	if err != nil {
		return nodeapi.Images{}, err
	}
	return offer.images, nil
}

// errNoPart is said of everything that is no part of an image for the pool.
var errNoPart = errors.New("the head has no such part of an image")

// Blob implements nodeapi.Head.
func (p *pool) Blob(ctx context.Context, digest string) (nodeapi.Blob, error) {
	offer, parts := p.offer.Load(), p.lab.attached.Load()
	if offer == nil || parts == nil || !offer.parts[digest] {
		return nil, errNoPart
	}
	return parts.images.Part(ctx, digest)
}

// lacking are the machines that do not have an image yet, "" for gpulab's own. One
// that the head does not have either, machines get from its registry.
func (l *appliance) lacking(image string) []string {
	members := l.pool.list()
	if len(members) == 0 {
		return nil
	}
	name, err := notebooks.ImageName(l.imageOr(image))
	if err != nil {
		return nil
	}
	img, ok := l.pool.offer.Load().of(name)
	for _, own := range l.images.Images {
		if !ok && own.Ref == name { // it was not looked at since the head's upgrade
			img, ok = nodeapi.Image{Ref: name, Own: true, Digest: own.Digest}, true
		}
	}
	if !ok {
		return nil
	}
	var list []string
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	for _, n := range members {
		m := l.pool.heard[n.Name]
		switch {
		case m == nil:
		case m.images == nil && img.Own && n.Version != version.Version:
			continue // it is of a version that does not tell, and brought them itself
		case m.images != nil && slices.Contains(m.images.Have, shortDigest(img.Digest)):
			continue
		}
		list = append(list, n.Name)
	}
	return list
}

// getting says for people who wait how far a machine is with an image, or an environment.
func (l *appliance) getting(machine string) string {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	m := l.pool.heard[machine]
	if m == nil {
		return ""
	}
	return cmp.Or(loadingWords(toldImages(m.images)), environmentWords(toldEnvironments(m.environments)))
}

// toldImages is a machine's way to the pool's images, nil while it has nothing to tell.
func toldImages(s *nodeapi.ImageState) *ctl.NodeImages {
	if s == nil || s.Loading == "" && s.Failed == "" {
		return nil
	}
	return &ctl.NodeImages{Loading: s.Loading, Done: s.Done, Total: s.Total, Unpacking: s.Unpacking, Failed: s.Failed}
}

// loadingWords says what of the images is under way: "notebook, 43 % of 1.2 GiB".
func loadingWords(s *ctl.NodeImages) string {
	switch {
	case s == nil || s.Loading == "":
		return ""
	case s.Unpacking:
		return s.Loading + ", unpacking"
	}
	return fmt.Sprintf("%s, %d %% of %s", s.Loading, 100*s.Done/max(s.Total, 1), units.Bytes(uint64(max(s.Total, 0))))
}

// imageSentence says how a machine is with the pool's images, "" where it has all.
func imageSentence(name string, s *ctl.NodeImages) string {
	switch words := loadingWords(s); {
	case words != "":
		return fmt.Sprintf("%s gets images from the head: %s.", name, words)
	case s != nil && s.Failed != "":
		return fmt.Sprintf("%s lacks images of the pool: %s. It tries again by itself.", name,
			strings.TrimRight(s.Failed, "."))
	}
	return ""
}

// sweepImages removes images of earlier versions of gpulab from this machine, once
// nothing uses them, until ctx ends. A version that is gone back to brings its own, or
// has borrowed them.
func (l *appliance) sweepImages(ctx context.Context) error {
	for {
		var removed []string
		borrowed, err := upgrade.Borrowed(l.cfg.DataDir)
		if err == nil {
			removed, _, err = l.attached.Load().images.Sweep(ctx, func(ref string, _ bool) bool {
				return strings.HasPrefix(ref, ownRegistry) && !l.ownImage(ref) && !slices.Contains(borrowed, ref)
			})
		}
		if err != nil && ctx.Err() == nil {
			slog.Warn("images of earlier versions could not be removed", "err", err)
		}
		if len(removed) > 0 {
			slog.Info("images of earlier versions were removed", "images", removed)
		}
		if !sleep(ctx, time.Hour) {
			return nil
		}
	}
}
