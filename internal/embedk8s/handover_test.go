package embedk8s

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
)

// handedBy is a source of what another machine has. Where spoil is set, it may
// change what arrives.
func handedBy(s *store, sent *atomic.Int64, spoil func(part string, r io.Reader) io.Reader) Source {
	return func(ctx context.Context, part string, size, offset int64) (io.ReadCloser, error) {
		ra, err := s.Part(ctx, part)
		if err != nil {
			return nil, err
		}
		if ra.Size() != size {
			return nil, errors.New("another size")
		}
		var r io.Reader = io.NewSectionReader(ra, offset, size-offset)
		if spoil != nil {
			r = spoil(part, r)
		}
		return struct {
			io.Reader
			io.Closer
		}{io.TeeReader(r, counter{sent}), ra}, nil
	}
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) { c.n.Add(int64(len(p))); return len(p), nil }

// offered is the one image that a store has to hand over.
func offered(t *testing.T, s *store) SharedImage {
	t.Helper()
	list, err := s.Shared(t.Context())
	if err != nil || len(list) != 1 || !list[0].Pinned || list[0].Size == 0 {
		t.Fatalf("%+v, %v", list, err)
	}
	return list[0]
}

func nothing(PullProgress) {}

func TestHandOver(t *testing.T) {
	t.Parallel()
	from, to := newStore(t), newStore(t)
	if _, err := from.Import(t.Context(), strings.NewReader(string(dockerArchive(t, "lab/x:1", picture(t, "A=b")))), "", nobodys); err != nil {
		t.Fatal(err)
	}
	img := offered(t, from)
	if to.Has(t.Context(), img) {
		t.Error("it is here before it came")
	}
	var sent atomic.Int64
	unpacking := false
	if err := to.Take(t.Context(), img, handedBy(from, &sent, nil), func(p PullProgress) { unpacking = unpacking || p.Unpacking }); err != nil {
		t.Fatal(err)
	}
	if !to.Has(t.Context(), img) || !unpacking || sent.Load() != img.Size {
		t.Errorf("here: %v, unpacked: %v, %d of %d bytes", to.Has(t.Context(), img), unpacking, sent.Load(), img.Size)
	}
	if there := offered(t, to); there.Size != img.Size || !slices.Equal(there.Parts, img.Parts) {
		t.Errorf("%+v, and not %+v", there, img)
	}
	if env, err := to.Environment(t.Context(), img.Ref); err != nil || !slices.Contains(env, "A=b") {
		t.Errorf("%v, %v", env, err)
	}
	if err := to.Take(t.Context(), img, handedBy(from, &sent, nil), nothing); err != nil || sent.Load() != img.Size {
		t.Errorf("taken again: %v, %d bytes", err, sent.Load())
	}
}

// What arrived before an interruption is not sent again, to the byte.
func TestHandOverInterrupted(t *testing.T) {
	t.Parallel()
	from, to := newStore(t), newStore(t)
	if _, err := from.Import(t.Context(), strings.NewReader(string(dockerArchive(t, "lab/x:1", picture(t)))), "", nobodys); err != nil {
		t.Fatal(err)
	}
	img := offered(t, from)
	var sent atomic.Int64
	cut := func(_ string, r io.Reader) io.Reader {
		return io.MultiReader(io.LimitReader(r, 100), failing{})
	}
	for tries := 0; !to.Has(t.Context(), img); tries++ {
		err := to.Take(t.Context(), img, handedBy(from, &sent, cut), nothing)
		if err == nil {
			break
		}
		if tries > int(img.Size)/100+10 {
			t.Fatalf("it never ends: %v", err)
		}
	}
	if !to.Has(t.Context(), img) || sent.Load() != img.Size {
		t.Errorf("here: %v, after %d bytes of %d", to.Has(t.Context(), img), sent.Load(), img.Size)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the connection is gone") }

// A part that is not what its digest says is refused, leaves nothing, and is
// taken when it comes right.
func TestHandOverDamaged(t *testing.T) {
	t.Parallel()
	from, to := newStore(t), newStore(t)
	if _, err := from.Import(t.Context(), strings.NewReader(string(dockerArchive(t, "lab/x:1", picture(t)))), "", nobodys); err != nil {
		t.Fatal(err)
	}
	img := offered(t, from)
	var sent atomic.Int64
	last := img.Parts[len(img.Parts)-1]
	flip := func(part string, r io.Reader) io.Reader {
		if part != last {
			return r
		}
		data, err := io.ReadAll(r)
		if err != nil || len(data) == 0 {
			return failing{}
		}
		data[len(data)/2] ^= 1
		return strings.NewReader(string(data))
	}
	for range 2 { // it does not get stuck
		if err := to.Take(t.Context(), img, handedBy(from, &sent, flip), nothing); !errors.Is(err, ErrDamaged) {
			t.Fatalf("a damaged part: %v", err)
		}
		if to.Has(t.Context(), img) || len(to.refs()) != 0 {
			t.Fatalf("half of an image is here: %v", to.refs())
		}
	}
	if err := to.Take(t.Context(), img, handedBy(from, &sent, nil), nothing); err != nil || !to.Has(t.Context(), img) {
		t.Errorf("when it comes right: %v", err)
	}
}

// What the other machine has no more goes, but for what is in use here or came by
// itself; and what is left of it goes with it.
func TestSweep(t *testing.T) {
	t.Parallel()
	from, to := newStore(t), newStore(t)
	var sent atomic.Int64
	for _, ref := range []string{"lab/used:1", "lab/stale:1"} {
		if _, err := from.Import(t.Context(), strings.NewReader(string(dockerArchive(t, ref, picture(t, "I="+ref)))), "", nobodys); err != nil {
			t.Fatal(err)
		}
	}
	list, err := from.Shared(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	for _, img := range list {
		if err := to.Take(t.Context(), img, handedBy(from, &sent, nil), nothing); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := to.Import(t.Context(), strings.NewReader(string(dockerArchive(t, "lab/own:1", picture(t, "I=own")))), "", nobodys); err != nil {
		t.Fatal(err)
	}
	used := "docker.io/lab/used:1"
	if _, err := to.client.ContainerService().Create(to.ctx, containers.Container{ID: "c", Image: used, Runtime: containers.RuntimeInfo{Name: "r"}, Spec: emptySpec{}}); err != nil {
		t.Fatal(err)
	}
	stale := func(_ string, handedOver bool) bool { return handedOver }
	removed, inUse, err := to.Sweep(t.Context(), stale)
	if err != nil || inUse != 1 || !slices.Equal(removed, []string{"docker.io/lab/stale:1"}) {
		t.Errorf("removed %v, %v", removed, err)
	}
	if err := to.client.ContainerService().Delete(to.ctx, "c"); err != nil {
		t.Fatal(err)
	}
	if removed, inUse, err = to.Sweep(t.Context(), stale); err != nil || inUse != 0 || !slices.Equal(removed, []string{used}) {
		t.Errorf("when nothing uses it: removed %v, %v", removed, err)
	}
	if got := to.refs(); !slices.Equal(got, []string{"docker.io/lab/own:1"}) {
		t.Errorf("%v are left", got)
	}
}

type emptySpec struct{}

func (emptySpec) GetTypeUrl() string { return "test/spec" }
func (emptySpec) GetValue() []byte   { return nil }

// Of a folder of images on this machine, what is whole is used and all else asked for.
func TestLying(t *testing.T) {
	t.Parallel()
	asked := 0
	from := Lying(t.TempDir(), func(context.Context, string, int64, int64) (io.ReadCloser, error) {
		asked++
		return io.NopCloser(strings.NewReader("x")), nil
	})
	if _, err := from(t.Context(), "sha256:"+strings.Repeat("0", 64), 1, 0); err != nil || asked != 1 {
		t.Errorf("%d, %v", asked, err)
	}
	if _, err := from(t.Context(), "../../etc/passwd", 1, 0); err == nil || asked != 1 {
		t.Errorf("what is no digest: %d, %v", asked, err)
	}
}
