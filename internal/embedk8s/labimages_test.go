package embedk8s

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/snapshots/native"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	ocidigest "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
)

// store is containerd without its daemon: its own databases, stores and
// collector of garbage, in a folder. Layers are unpacked without mounts, which
// would need root.
type store struct {
	*LabImages
	t       *testing.T
	ctx     context.Context
	db      *metadata.DB
	content content.Store // what lies on disk, named or not
}

func newStore(t *testing.T) *store {
	t.Helper()
	dir := t.TempDir()
	cs, err := local.NewStore(filepath.Join(dir, "content"))
	if err != nil {
		t.Fatal(err)
	}
	sn, err := native.NewSnapshotter(filepath.Join(dir, "snapshots"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := bolt.Open(filepath.Join(dir, "meta.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	db := metadata.NewDB(file, cs, map[string]snapshots.Snapshotter{"native": sn})
	if err := db.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	client, err := containerd.New("", containerd.WithServices(
		containerd.WithContentStore(db.ContentStore()),
		containerd.WithContainerStore(metadata.NewContainerStore(db)),
		containerd.WithImageStore(collectingImages{metadata.NewImageStore(db), db}),
		containerd.WithLeasesService(collectingLeases{metadata.NewLeaseManager(db), db}),
		containerd.WithSnapshotters(db.Snapshotters()),
		containerd.WithDiffService(plainUnpacker{cs: db.ContentStore()}),
	))
	if err != nil {
		t.Fatal(err)
	}
	return &store{newLabImages(client, "native", docker.ConfigureDefaultRegistries(docker.WithPlainHTTP(docker.MatchLocalhost))),
		t, namespaces.WithNamespace(t.Context(), imageNamespace), db, cs}
}

// collectingImages and collectingLeases collect garbage when asked to, as
// containerd's services do.
type collectingImages struct {
	images.Store
	db *metadata.DB
}

func (c collectingImages) Delete(ctx context.Context, name string, opts ...images.DeleteOpt) error {
	if err := c.Store.Delete(ctx, name, opts...); err != nil {
		return err
	}
	_, err := c.db.GarbageCollect(ctx)
	return err
}

type collectingLeases struct {
	leases.Manager
	db *metadata.DB
}

func (c collectingLeases) Delete(ctx context.Context, l leases.Lease, opts ...leases.DeleteOpt) error {
	if err := c.Manager.Delete(ctx, l, opts...); err != nil {
		return err
	}
	_, err := c.db.GarbageCollect(ctx)
	return err
}

type plainUnpacker struct {
	diff.Comparer
	cs content.Store
}

func (u plainUnpacker) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, _ ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	ra, err := u.cs.ReaderAt(ctx, desc)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer ra.Close()
	plain, err := compression.DecompressStream(content.NewReader(ra))
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer plain.Close()
	digester := ocidigest.Canonical.Digester()
	r := io.TeeReader(plain, digester.Hash())
	n, err := archive.Apply(ctx, mounts[0].Source, r, archive.WithNoSameOwner())
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return ocispec.Descriptor{}, err
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digester.Digest(), Size: n}, nil
}

// left counts what the store has on disk: parts of images, half-written ones
// and unpacked layers.
func (s *store) left() (n int) {
	s.t.Helper()
	count := func(err error) {
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // nothing was ever written
			s.t.Error(err)
		}
	}
	count(s.content.Walk(s.ctx, func(content.Info) error { n++; return nil }))
	writing, err := s.content.ListStatuses(s.ctx)
	count(err)
	count(s.db.Snapshotter("native").Walk(s.ctx, func(context.Context, snapshots.Info) error { n++; return nil }))
	return n + len(writing)
}

func (s *store) refs() []string {
	s.t.Helper()
	list, err := s.List(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	refs := []string{}
	for _, img := range list {
		refs = append(refs, img.Ref)
	}
	return refs
}

// picture is a small image for this kind of machine.
func picture(t *testing.T, env ...string) v1.Image {
	t.Helper()
	img, err := random.Image(4<<10, 2)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config.Env = "linux", runtime.GOARCH, env
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

// dockerArchive is what `docker save` writes.
func dockerArchive(t *testing.T, ref string, img v1.Image) []byte {
	t.Helper()
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := tarball.Write(tag, img, &buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// ociArchive is an image in OCI's layout, named by an annotation if it has a name.
func ociArchive(t *testing.T, annotations map[string]string, imgs ...v1.Image) []byte {
	t.Helper()
	dir := t.TempDir()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	for _, img := range imgs {
		if err := path.AppendImage(img, layout.WithAnnotations(annotations)); err != nil {
			t.Fatal(err)
		}
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func nobodys(string) bool { return false }

func TestImportImage(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for what, c := range map[string]struct {
		file []byte
		as   string
		want string
	}{
		"Docker's archive":                  {dockerArchive(t, "lab/torch:1", picture(t, "CUDA_VERSION=12.4.1")), "", "docker.io/lab/torch:1"},
		"Docker's archive under a new name": {dockerArchive(t, "lab/torch:1", picture(t, "CUDA_VERSION=12.4.1")), "lab.example/torch", "lab.example/torch:latest"},
		"OCI's layout":                      {ociArchive(t, map[string]string{images.AnnotationImageName: "lab.example/oci:2"}, picture(t, "CUDA_VERSION=12.4.1")), "", "lab.example/oci:2"},
		"OCI's layout with a full name":     {ociArchive(t, map[string]string{ocispec.AnnotationRefName: "lab.example/oci:3"}, picture(t, "CUDA_VERSION=12.4.1")), "", "lab.example/oci:3"},
		"OCI's layout with a tag alone":     {ociArchive(t, map[string]string{ocispec.AnnotationRefName: "v4"}, picture(t, "CUDA_VERSION=12.4.1")), "lab.example/oci:4", "lab.example/oci:4"},
	} {
		for _, again := range []string{"", ", again"} {
			list, err := s.Import(t.Context(), bytes.NewReader(c.file), c.as, nobodys)
			if err != nil || len(list) != 1 || list[0].Ref != c.want || !list[0].Pinned || list[0].Size < 8<<10 || !slices.Contains(list[0].Env, "CUDA_VERSION=12.4.1") {
				t.Errorf("%s%s: %+v, %v", what, again, list, err)
				continue
			}
			env, err := s.Environment(t.Context(), c.want)
			if err != nil || !slices.Contains(env, "CUDA_VERSION=12.4.1") {
				t.Errorf("%s%s: its environment is %v, %v", what, again, env, err)
			}
		}
	}
	if got := s.refs(); len(got) != 5 {
		t.Errorf("the images are %v", got)
	}
}

// A file that is no whole image leaves nothing behind, and what was there stays.
func TestImportOfABrokenFile(t *testing.T) {
	t.Parallel()
	good := ociArchive(t, map[string]string{images.AnnotationImageName: "lab.example/x:1"}, picture(t))
	otherMachine := func(img v1.Image) v1.Image {
		config, _ := img.ConfigFile()
		config = config.DeepCopy()
		config.Architecture = "s390x"
		img, _ = mutate.ConfigFile(img, config)
		return img
	}
	for what, c := range map[string]struct {
		file []byte
		as   string
		says string
	}{
		"nothing at all":       {nil, "", "no container image"},
		"no archive":           {bytes.Repeat([]byte("no tar "), 1000), "", "no container image"},
		"another archive":      {tarOf(t, map[string]string{"README": "hello"}), "", "no container image"},
		"compressed":           {[]byte("\x1f\x8b\x08\x00 and so on"), "", "cut short"},
		"cut short":            {good[:len(good)*2/3], "", "cut short"},
		"a part is missing":    {without(t, good, "blobs/sha256/"), "", "not complete"},
		"a manifest is wrong":  {edited(t, good, `"layers":`, `"leyars":`), "", "damaged"},
		"no list of images":    {tarOf(t, map[string]string{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`}), "", "could not be read"},
		"a list that is none":  {tarOf(t, map[string]string{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`, "index.json": "{"}), "", ""},
		"Docker's list, empty": {tarOf(t, map[string]string{"manifest.json": `[{"Config":"none.json"}]`}), "", "could not be read"},
		"for other machines":   {ociArchive(t, map[string]string{images.AnnotationImageName: "lab.example/x:1"}, otherMachine(picture(t))), "", "made for other machines (linux/s390x)"},
		"without a name":       {ociArchive(t, map[string]string{ocispec.AnnotationRefName: "v1"}, picture(t)), "", "--as"},
		"two under one name":   {ociArchive(t, nil, picture(t), picture(t)), "lab.example/x:1", "several images"},
		"a name that is none":  {good, "Lab/X", "no name of a container image"},
		"gpulab's own name":    {good, "gpulab.local/notebook:1", "gpulab's own image"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			if _, err := s.Import(t.Context(), bytes.NewReader(dockerArchive(t, "lab.example/x:1", picture(t, "OLD=1"))), "", nobodys); err != nil {
				t.Fatal(err)
			}
			before := s.left()
			_, err := s.Import(t.Context(), bytes.NewReader(c.file), c.as, func(ref string) bool { return strings.HasPrefix(ref, "gpulab.local/") })
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("it says %v, want %q", err, c.says)
			}
			if now := s.left(); now != before {
				t.Errorf("%d things are on disk, %d were before", now, before)
			}
			if env, err := s.Environment(t.Context(), "lab.example/x:1"); err != nil || !slices.Contains(env, "OLD=1") {
				t.Errorf("the image of that name was touched: %v, %v", env, err)
			}
		})
	}
}

// One that is interrupted leaves nothing, and the next one works.
func TestImportInterrupted(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	file := dockerArchive(t, "lab.example/x:1", picture(t))
	ctx, stop := context.WithCancel(t.Context())
	_, err := s.Import(ctx, io.MultiReader(bytes.NewReader(file[:len(file)/2]), stopper{stop}), "", nobodys)
	if err == nil || s.left() != 0 || len(s.refs()) != 0 {
		t.Errorf("interrupted: %v, %d things are left", err, s.left())
	}
	if _, err := s.Import(t.Context(), bytes.NewReader(file), "", nobodys); err != nil {
		t.Error(err)
	}
	if got := s.refs(); !slices.Equal(got, []string{"lab.example/x:1"}) {
		t.Errorf("the images are %v", got)
	}
}

// stopper ends a context instead of reading.
type stopper struct{ stop func() }

func (s stopper) Read([]byte) (int, error) { s.stop(); return 0, errors.New("the sender went away") }

// A new image under an old name takes the old one's place on disk; removing it
// frees everything, the names that the kubelet's side gave it included.
func TestReplaceAndRemoveImage(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, env := range []string{"N=1", "N=2"} {
		if _, err := s.Import(t.Context(), bytes.NewReader(dockerArchive(t, "lab.example/x:1", picture(t, env))), "", nobodys); err != nil {
			t.Fatal(err)
		}
		record, err := s.client.ImageService().Get(s.ctx, "lab.example/x:1")
		if err != nil {
			t.Fatal(err)
		}
		record.Name = "sha256:" + strings.Repeat(env[2:], 64)
		if _, err := s.client.ImageService().Create(s.ctx, record); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.refs(); !slices.Equal(got, []string{"lab.example/x:1"}) {
		t.Errorf("the images are %v", got)
	}
	if records, err := s.client.ImageService().List(s.ctx); err != nil || len(records) != 2 {
		t.Errorf("names after the second import: %v, %v", records, err)
	}
	if env, err := s.Environment(t.Context(), "lab.example/x:1"); err != nil || !slices.Contains(env, "N=2") {
		t.Errorf("the environment is %v, %v", env, err)
	}
	if err := s.Remove(t.Context(), "lab.example/x:1"); err != nil {
		t.Fatal(err)
	}
	if n := s.left(); n != 0 {
		t.Errorf("%d things are left on disk", n)
	}
	if err := s.Remove(t.Context(), "lab.example/x:1"); !errors.Is(err, ErrNoImage) {
		t.Errorf("removed twice: %v", err)
	}
}

// library is a registry that counts what it is asked.
type library struct {
	*httptest.Server
	asked atomic.Int64
	fail  atomic.Int64 // status of every answer, 0 for none
}

func newLibrary(t *testing.T) *library {
	l := &library{}
	books := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.asked.Add(1)
		if status := l.fail.Load(); status != 0 {
			w.WriteHeader(int(status))
			return
		}
		books.ServeHTTP(w, r)
	}))
	t.Cleanup(l.Close)
	return l
}

func (l *library) push(t *testing.T, path string, img v1.Image) (ref string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	name, tag, _ := strings.Cut(path, ":")
	put := func(where, mediaType string, body []byte) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, l.URL+"/v2/"+name+where, bytes.NewReader(body))
		must(err)
		r.Header.Set("Content-Type", mediaType)
		answer, err := http.DefaultClient.Do(r)
		must(err)
		must(answer.Body.Close())
		if answer.StatusCode != http.StatusCreated {
			t.Fatalf("the registry answers %s", answer.Status)
		}
	}
	blob := func(data []byte) {
		put("/blobs/uploads/1?digest="+ocidigest.FromBytes(data).String(), "application/octet-stream", data)
	}
	layers, err := img.Layers()
	must(err)
	for _, layer := range layers {
		r, err := layer.Compressed()
		must(err)
		data, err := io.ReadAll(r)
		must(err)
		blob(data)
	}
	config, err := img.RawConfigFile()
	must(err)
	blob(config)
	manifest, err := img.RawManifest()
	must(err)
	mediaType, err := img.MediaType()
	must(err)
	put("/manifests/"+tag, string(mediaType), manifest)
	return strings.TrimPrefix(l.URL, "http://") + "/" + path
}

func TestPullImage(t *testing.T) {
	t.Parallel()
	s, l := newStore(t), newLibrary(t)
	ref := l.push(t, "lab/x:1", picture(t, "CUDA_VERSION=13.0.0"))
	env, err := s.Environment(t.Context(), ref)
	if err != nil || !slices.Contains(env, "CUDA_VERSION=13.0.0") || s.left() != 0 {
		t.Fatalf("asked from afar: %v, %v; %d things are here", env, err, s.left())
	}
	asked := l.asked.Load()
	if _, err := s.Environment(t.Context(), ref); err != nil || l.asked.Load() != asked {
		t.Errorf("asked again: %v, %d more requests", err, l.asked.Load()-asked)
	}
	unpacking := false
	img, err := s.Pull(t.Context(), ref, func(p PullProgress) { unpacking = unpacking || p.Unpacking })
	if err != nil || img.Ref != ref || !img.Pinned || !unpacking || !slices.Contains(img.Env, "CUDA_VERSION=13.0.0") {
		t.Errorf("pulled: %+v, %v", img, err)
	}
	if _, err := s.Pull(t.Context(), ref, func(PullProgress) {}); err != nil {
		t.Errorf("pulled again: %v", err)
	}
	if err := s.Remove(t.Context(), ref); err != nil || s.left() != 0 {
		t.Errorf("removed: %v, %d things are left", err, s.left())
	}
}

func TestRegistryThatDoesNotHelp(t *testing.T) {
	t.Parallel()
	s, l := newStore(t), newLibrary(t)
	host := strings.TrimPrefix(l.URL, "http://")
	check := func(what, ref, says string) {
		t.Helper()
		if _, err := s.Pull(t.Context(), ref, func(PullProgress) {}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: pull says %v, want %q", what, err, says)
		}
		if _, err := s.Environment(t.Context(), ref); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", what, err, says)
		}
	}
	check("no such image", host+"/lab/none:1", "the registry "+host+" has no image")
	for status, says := range map[int]string{http.StatusForbidden: "not signed in", http.StatusTooManyRequests: "try again later"} {
		l.fail.Store(int64(status))
		check(http.StatusText(status), fmt.Sprintf("%s/lab/x:%d", host, status), says)
	}
	l.Close()
	check("nobody listens", host+"/lab/x:2", "cannot be reached")
	if n := s.left(); n != 0 {
		t.Errorf("%d things are left", n)
	}
}

// tarOf is an archive with these files.
func tarOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	return rewritten(t, nil, func(*tar.Header, []byte) ([]byte, bool) { return nil, true }, files)
}

// without drops a layer: the first compressed file below the prefix.
func without(t *testing.T, archive []byte, prefix string) []byte {
	t.Helper()
	gone := false
	return rewritten(t, archive, func(h *tar.Header, data []byte) ([]byte, bool) {
		if !gone && strings.HasPrefix(h.Name, prefix) && bytes.HasPrefix(data, []byte("\x1f\x8b")) {
			gone = true
			return nil, false
		}
		return data, true
	}, nil)
}

// edited replaces a text in all files.
func edited(t *testing.T, archive []byte, old, text string) []byte {
	t.Helper()
	return rewritten(t, archive, func(_ *tar.Header, data []byte) ([]byte, bool) {
		return bytes.ReplaceAll(data, []byte(old), []byte(text)), true
	}, nil)
}

func rewritten(t *testing.T, archive []byte, change func(*tar.Header, []byte) ([]byte, bool), more map[string]string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	add := func(h *tar.Header, data []byte) {
		h.Size = int64(len(data))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if archive != nil {
		for r := tar.NewReader(bytes.NewReader(archive)); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			if data, keep := change(h, data); keep {
				add(h, data)
			}
		}
	}
	for file, text := range more {
		add(&tar.Header{Name: file, Mode: 0o644, Typeflag: tar.TypeReg}, []byte(text))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
