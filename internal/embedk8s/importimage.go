package embedk8s

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Import brings in the images of an archive, as `docker save` or buildah write
// it (Docker's or OCI's layout, as one tar file), unpacked and pinned. as names
// the image; "" takes the names in the archive. An archive that is broken or
// not read to its end leaves nothing behind. own tells names that are not to be
// taken.
func (l *LabImages) Import(ctx context.Context, r io.Reader, as string, own func(ref string) bool) ([]LabImage, error) {
	if as != "" {
		var err error
		if as, err = fullName(as); err != nil {
			return nil, err
		}
	}
	if !l.busy.TryLock() {
		return nil, errImagesBusy
	}
	defer l.busy.Unlock()
	ctx, release, err := l.lease(quietly(ctx))
	if err != nil {
		return nil, err
	}
	defer release()
	found, err := readArchive(ctx, l.client.ContentStore(), r)
	if err != nil {
		return nil, err
	}
	if found, err = nameImages(found, as); err != nil {
		return nil, err
	}
	for _, f := range found {
		if own(f.ref) {
			return nil, fmt.Errorf("%s is gpulab's own image; import yours under another name with --as", f.ref)
		}
	}
	var list []LabImage
	for _, f := range found {
		img, err := l.keep(ctx, f.ref, f.target, nil)
		if err != nil {
			return list, err
		}
		list = append(list, img)
	}
	return list, nil
}

// archived is an image in an archive.
type archived struct {
	ref    string // full name, "" for none
	target ocispec.Descriptor
}

// readArchive copies an archive's parts into the content store and finds the
// images in it that are for machines like this one, all of whose parts are there.
func readArchive(ctx context.Context, cs content.Store, r io.Reader) ([]archived, error) {
	store := ownWrites{Store: cs}
	store.prefix, _ = leases.FromContext(ctx)
	index, err := archive.ImportIndex(ctx, store, r)
	if err != nil {
		return nil, archiveError(err)
	}
	var list ocispec.Index
	if err := readBlob(ctx, cs, index, &list); err != nil {
		return nil, archiveError(err)
	}
	handler := images.FilterPlatforms(images.ChildrenHandler(cs), platforms.Default())
	if err := images.Walk(ctx, images.SetChildrenLabels(cs, handler), index); err != nil {
		return nil, archiveError(err)
	}
	var found []archived
	for _, target := range list.Manifests {
		if _, about := target.Annotations[images.AnnotationManifestSubject]; about {
			continue // a signature or the like
		}
		if target.Platform != nil && !platforms.Default().Match(*target.Platform) {
			continue
		}
		if err := checkComplete(ctx, cs, target); err != nil {
			return nil, err
		}
		ref, err := archivedName(target.Annotations)
		if err != nil {
			return nil, err
		}
		found = append(found, archived{ref, target})
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("this file holds no image for this kind of machine (%s)",
			platforms.Format(platforms.DefaultSpec()))
	}
	return found, nil
}

// checkComplete looks whether all parts of an image are there, and whether it
// says what is in it.
func checkComplete(ctx context.Context, cs content.Store, target ocispec.Descriptor) error {
	_, _, _, missing, err := images.Check(ctx, cs, target, platforms.Default())
	if err != nil {
		return archiveError(err)
	}
	if len(missing) > 0 {
		if missing[0].Digest == target.Digest {
			return fmt.Errorf("this file holds no image for this kind of machine (%s)",
				platforms.Format(platforms.DefaultSpec()))
		}
		return fmt.Errorf("this file is not complete: the image in it lacks the part %s; make or copy it again",
			missing[0].Digest)
	}
	if _, err := environment(ctx, cs, target); err != nil {
		return archiveError(err)
	}
	return nil
}

// archivedName is the full name that an archive gives an image. What has no
// registry or tag is a tag alone in OCI's layout, which names nothing.
func archivedName(annotations map[string]string) (string, error) {
	name := annotations[images.AnnotationImageName]
	if tag := annotations[ocispec.AnnotationRefName]; name == "" && strings.ContainsAny(tag, "/:@") {
		name = tag
	}
	if name == "" {
		return "", nil
	}
	return fullName(name)
}

// nameImages decides which image gets which name.
func nameImages(found []archived, as string) ([]archived, error) {
	if as != "" {
		for _, f := range found {
			if f.target.Digest != found[0].target.Digest {
				return nil, errors.New("this file holds several images, so --as cannot name them; import it without --as")
			}
		}
		return []archived{{as, found[0].target}}, nil
	}
	var named []archived
	for _, f := range found {
		if f.ref != "" {
			named = append(named, f)
		}
	}
	if len(named) == 0 {
		return nil, errors.New("the image in this file has no name; give it one, for example with --as lab.example/cuda:1")
	}
	return named, nil
}

// archiveError says what is wrong with a file.
func archiveError(err error) error {
	var syntax *json.SyntaxError
	var types *json.UnmarshalTypeError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("this file is cut short; make or copy it again")
	case errors.Is(err, tar.ErrHeader), strings.Contains(err.Error(), "unrecognized image format"):
		return errors.New("this is no container image: an archive is wanted as `docker save -o FILE IMAGE` writes it, not " +
			"compressed")
	case errors.As(err, &syntax), errors.As(err, &types), errdefs.IsNotFound(err), errdefs.IsInvalidArgument(err),
		errdefs.IsFailedPrecondition(err):
		return fmt.Errorf("this file is damaged; make or copy it again (%w)", err)
	}
	return fmt.Errorf("the image could not be read: %w", err)
}

// readBlob reads a small JSON part.
func readBlob(ctx context.Context, provider content.Provider, desc ocispec.Descriptor, v any) error {
	if desc.Size > maxDocument {
		return fmt.Errorf("the part %s is too large to be a description", desc.Digest)
	}
	data, err := content.ReadBlob(ctx, provider, desc)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// maxDocument bounds an image's manifest or configuration, in bytes.
const maxDocument = 8 << 20

// ownWrites keeps what this import writes apart from what another one, that
// was killed, has left of parts with the same file name.
type ownWrites struct {
	content.Store
	prefix string
}

// Writer implements content.Ingester.
func (o ownWrites) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var w content.WriterOpts
	for _, opt := range opts {
		if err := opt(&w); err != nil {
			return nil, err
		}
	}
	return o.Store.Writer(ctx, append(opts, content.WithRef("gpulab-"+o.prefix+"-"+w.Ref))...)
}
