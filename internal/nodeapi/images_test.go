package nodeapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/nodes"
)

// memoryBlob is a part of an image. Where gate is set, its second piece and all
// after it wait until that is closed.
type memoryBlob struct {
	*bytes.Reader
	gate chan struct{}
}

func (b memoryBlob) Close() error { return nil }
func (b memoryBlob) ReadAt(p []byte, at int64) (int, error) {
	if b.gate != nil && at > 0 {
		<-b.gate
	}
	return b.Reader.ReadAt(p, at)
}

func blobOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (h *head) Images(context.Context) (Images, error) {
	return Images{Version: "7", List: []Image{{Name: "pause", Ref: "gpulab.local/pause:1", Own: true}}}, nil
}

func (h *head) Blob(_ context.Context, digest string) (Blob, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	data, ok := h.blobs[digest]
	if !ok {
		return nil, errors.New("the head has no such part of an image")
	}
	return memoryBlob{bytes.NewReader(data), h.gate}, nil
}

// A part comes whole, and from any place on; what is no part, and who is no
// machine of the pool, gets nothing.
func TestImages(t *testing.T) {
	l := newLab(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 3*transferPiece/16)
	data = append(data, "the end"...)
	digest := blobOf(data)
	l.blobs = map[string][]byte{digest: data}
	c, _ := l.join(t, "b")
	if list, err := c.Images(t.Context()); err != nil || list.Version != "7" || len(list.List) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	for _, offset := range []int{0, 1, transferPiece, len(data) - 3, len(data)} {
		r, err := c.Blob(t.Context(), digest, int64(offset))
		if err != nil {
			t.Fatalf("from %d: %v", offset, err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, data[offset:]) {
			t.Errorf("from %d: %d bytes of %d, %v", offset, len(got), len(data)-offset, err)
		}
		_ = r.Close()
	}
	refused := func(c *Client, digest string, offset int64, status int) {
		t.Helper()
		r, err := c.Blob(t.Context(), digest, offset)
		var p *Problem
		if !errors.As(err, &p) || p.Status != status {
			t.Errorf("%s from %d: %v", digest, offset, err)
		}
		if err == nil {
			_ = r.Close()
		}
	}
	refused(c, digest, int64(len(data))+1, http.StatusRequestedRangeNotSatisfiable)
	refused(c, digest, -1, http.StatusBadRequest)
	refused(c, blobOf(nil), 0, http.StatusNotFound)
	for _, no := range []string{"sha256:..", "gpulab.db", "sha256:" + strings.Repeat("A", 64), "..%2f..%2fetc%2fshadow"} {
		refused(c, no, 0, http.StatusBadRequest)
	}
	refused(Stranger(l.invite(t)), digest, 0, http.StatusUnauthorized)
	if _, err := Stranger(l.invite(t)).Images(t.Context()); err == nil {
		t.Error("a stranger is told of images")
	}
	if _, err := l.registry.Remove(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	refused(c, digest, 0, http.StatusForbidden)
}

// Machines take turns: more than so many parts are not under way at a time, and
// who waits for a turn gets it.
func TestTransfersTakeTurns(t *testing.T) {
	l := newLab(t)
	data := bytes.Repeat([]byte("x"), 8*transferPiece)
	digest := blobOf(data)
	l.blobs, l.gate = map[string][]byte{digest: data}, make(chan struct{})
	c, _ := l.join(t, "b")
	var open []io.ReadCloser
	for range mostTransfersEach {
		r, err := c.Blob(t.Context(), digest, 0)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, r)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.Blob(ctx, digest, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one more than a machine may: %v", err)
	}
	// The head hears the machine all the while.
	if _, err := c.Images(t.Context()); err != nil {
		t.Error(err)
	}
	var others []io.ReadCloser
	d, _ := l.join(t, "d")
	for range mostTransfers - mostTransfersEach {
		r, err := d.Blob(t.Context(), digest, 0)
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, r)
	}
	e, _ := l.join(t, "e")
	waits := make(chan error, 1)
	go func() {
		r, err := e.Blob(t.Context(), digest, 0)
		if err == nil {
			_, err = io.Copy(io.Discard, r)
			_ = r.Close()
		}
		waits <- err
	}()
	select {
	case err := <-waits:
		t.Fatalf("a part more than the head hands over at a time: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	close(l.gate)
	for _, r := range append(open, others...) {
		if n, err := io.Copy(io.Discard, r); err != nil || n != int64(len(data)) {
			t.Errorf("%d bytes, %v", n, err)
		}
		_ = r.Close()
	}
	if err := <-waits; err != nil {
		t.Error(err)
	}
}

func TestRangeStart(t *testing.T) {
	for text, want := range map[string]int64{"": 0, "bytes=0-": 0, "bytes=12-": 12} {
		if got, err := rangeStart(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"bytes=1-2", "bytes=-5", "bytes=a-", "1-", "bytes=1-,3-", "bytes=99999999999999999999-"} {
		if _, err := rangeStart(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// What a machine tells of its images is bounded.
func TestTooManyImages(t *testing.T) {
	r := &Report{Snapshot: gpu.Snapshot{Node: "b"}, Images: &ImageState{Have: make([]string, mostImages)}}
	if err := believable(nodes.Node{Name: "b"}, r); err != nil {
		t.Error(err)
	}
	r.Images.Have = append(r.Images.Have, "one more")
	if err := believable(nodes.Node{Name: "b"}, r); err == nil {
		t.Error("more images than a lab has are believed")
	}
}
