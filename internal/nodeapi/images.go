package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/nodes"
)

// Images are the container images that every machine of a pool is to have.
type Images struct {
	// Version changes with the list; it is in the head's orders.
	Version string  `json:"version"`
	List    []Image `json:"list"`
}

// Image is one of them.
type Image struct {
	Name      string `json:"name"` // short, for people
	Ref       string `json:"ref"`
	Own       bool   `json:"own,omitempty"` // it is a part of gpulab
	MediaType string `json:"mediaType"`     // of its manifest, as the next two
	Digest    string `json:"digest"`
	Manifest  int64  `json:"manifest"` // bytes
	Size      int64  `json:"size"`     // bytes of all its parts, compressed
}

// ImageState is how far a machine is with the pool's images.
type ImageState struct {
	// Have are the digests of those that are there whole, cut to DigestLength.
	Have []string `json:"have,omitempty"`
	// Loading is the name of the one under way, "" without one; Done of its Total
	// bytes are there, and with Unpacking all.
	Loading   string `json:"loading,omitempty"`
	Done      int64  `json:"done,omitempty"`
	Total     int64  `json:"total,omitempty"`
	Unpacking bool   `json:"unpacking,omitempty"`
	// Failed is why the latest try ended, until one goes well.
	Failed string `json:"failed,omitempty"`
}

// DigestLength is how much of a digest tells images of a pool apart.
const DigestLength = len("sha256:") + 16

// Blob is a part of an image.
type Blob interface {
	io.ReaderAt
	Size() int64
	Close() error
}

// Limits of what machines may load at a time, so that the head has time for
// people: a pool's machines take turns.
const (
	mostTransfers     = 6
	mostTransfersEach = 3
	// An environment is packed anew for each machine, by processors on which people compute.
	mostEnvironments     = 2
	mostEnvironmentsEach = 1
	transferPiece        = 1 << 20
	transferPatience     = 30 * time.Second // for a piece of it
)

// transfers counts the parts of images, or the environments, that are under way.
type transfers struct {
	most, mostEach int

	mu   sync.Mutex
	all  int
	each map[int64]int // by the machine's ID
}

func newTransfers(most, mostEach int) *transfers {
	return &transfers{most: most, mostEach: mostEach, each: map[int64]int{}}
}

func (t *transfers) begin(n nodes.Node) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all >= t.most || t.each[n.ID] >= t.mostEach {
		return false
	}
	t.all++
	t.each[n.ID]++
	return true
}

func (t *transfers) end(n nodes.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all--
	if t.each[n.ID]--; t.each[n.ID] == 0 {
		delete(t.each, n.ID)
	}
}

var blobDigest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// blob hands over a part of an image, from where the machine has it.
func (h *handler) blob(w http.ResponseWriter, r *http.Request) {
	n, err := h.member(r)
	if err != nil {
		h.answer(w, nil, err)
		return
	}
	digest := r.PathValue("digest")
	offset, err := rangeStart(r.Header.Get("Range"))
	if err != nil || !blobDigest.MatchString(digest) {
		h.answer(w, nil, &Problem{Message: "that is no part of an image", Status: http.StatusBadRequest})
		return
	}
	if !h.transfers.begin(n) {
		h.later(w)
		return
	}
	defer h.transfers.end(n)
	b, err := h.Head.Blob(r.Context(), digest)
	if err != nil {
		h.answer(w, nil, &Problem{Message: err.Error(), Status: http.StatusNotFound})
		return
	}
	defer b.Close()
	if offset > b.Size() {
		h.answer(w, nil, &Problem{Message: "that part is not as long", Status: http.StatusRequestedRangeNotSatisfiable})
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(b.Size()-offset, 10))
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", offset, max(b.Size()-1, 0), b.Size()))
	w.WriteHeader(http.StatusPartialContent)
	if err := send(w, b, offset); err != nil {
		h.Log.Debug("a part of an image was not handed over whole", "machine", n.Name, "part", digest, "err", err)
	}
}

// later is what a machine hears whose turn it is not.
func (h *handler) later(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	h.answer(w, nil, &Problem{Message: "other machines load; it is tried again", Status: http.StatusServiceUnavailable})
}

// send writes a part piece by piece. A machine that takes none of it any more
// gives its turn to others.
func send(w http.ResponseWriter, b Blob, offset int64) error {
	control, piece := http.NewResponseController(w), make([]byte, transferPiece)
	for offset < b.Size() {
		k, err := b.ReadAt(piece[:min(int64(len(piece)), b.Size()-offset)], offset)
		if err != nil && (!errors.Is(err, io.EOF) || k == 0) {
			return err
		}
		if err := control.SetWriteDeadline(time.Now().Add(transferPatience)); err != nil {
			return err
		}
		if _, err := w.Write(piece[:k]); err != nil {
			return err
		}
		offset += int64(k)
	}
	return nil
}

// rangeStart reads "bytes=N-"; "" begins at the beginning.
func rangeStart(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	text, is := strings.CutPrefix(text, "bytes=")
	text, open := strings.CutSuffix(text, "-")
	n, err := strconv.ParseInt(text, 10, 64)
	if !is || !open || err != nil || n < 0 {
		return 0, errors.New("a range of another kind")
	}
	return n, nil
}

// Images asks which images every machine is to have.
func (c *Client) Images(ctx context.Context) (Images, error) {
	return call[Images](ctx, c, http.MethodGet, "/v1/images", nil)
}

// Blob asks for a part of an image from an offset on. While other machines load
// theirs it waits for its turn.
func (c *Client) Blob(ctx context.Context, digest string, offset int64) (io.ReadCloser, error) {
	return c.inTurn(ctx, "/v1/blobs/"+digest, http.Header{"Range": {fmt.Sprintf("bytes=%d-", offset)}})
}

// inTurn asks for something large, again and again while it is the turn of others.
func (c *Client) inTurn(ctx context.Context, path string, header http.Header) (io.ReadCloser, error) {
	for {
		resp, err := c.send(ctx, c.bulk, http.MethodGet, path, nil, header)
		if p := (*Problem)(nil); errors.As(err, &p) && p.Status == http.StatusServiceUnavailable {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(time.Second/2 + rand.N(time.Second)):
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		return resp.Body, nil
	}
}
