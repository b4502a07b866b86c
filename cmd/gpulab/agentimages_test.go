package main

import (
	"testing"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/nodeapi"
)

func TestImageSentence(t *testing.T) {
	const gib = int64(1) << 30
	for _, c := range []struct {
		state *nodeapi.ImageState
		want  string
	}{
		{nil, ""},
		{&nodeapi.ImageState{Have: []string{"sha256:0123"}}, ""},
		{&nodeapi.ImageState{Loading: "notebook", Done: gib / 2, Total: 2 * gib}, "b gets images from the head: notebook, 25 % of 2 GiB."},
		{&nodeapi.ImageState{Loading: "notebook", Done: 2 * gib, Total: 2 * gib, Unpacking: true}, "b gets images from the head: notebook, unpacking."},
		{&nodeapi.ImageState{Loading: "notebook"}, "b gets images from the head: notebook, 0 % of 0 MiB."},
		{&nodeapi.ImageState{Failed: "the head does not answer"}, "b lacks images of the pool: the head does not answer. It tries again by itself."},
	} {
		if got := imageSentence("b", toldImages(c.state)); got != c.want {
			t.Errorf("%+v: %q, want %q", c.state, got, c.want)
		}
	}
}

// An image is taken as what it is, by the name and the manifest that the head said;
// what is no image of its list is nobody's.
func TestImageOffer(t *testing.T) {
	offer := &imageOffer{images: nodeapi.Images{List: []nodeapi.Image{{Ref: "gpulab.local/pause:1", Digest: "sha256:ab"}}}}
	if img, ok := offer.of("gpulab.local/pause:1"); !ok || img.Digest != "sha256:ab" {
		t.Errorf("%+v", img)
	}
	for _, o := range []*imageOffer{nil, {}, offer} {
		if _, ok := o.of("lab.example/none:1"); ok {
			t.Error("an image that nobody offers is offered")
		}
	}
	var none *ctl.NodeImages
	if loadingWords(none) != "" {
		t.Error("nothing is under way, and it is said to be")
	}
}
