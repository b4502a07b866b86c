package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// files are fetched once for all who want them, and kept.
type files struct {
	store    *store
	upstream *http.Client
	log      *slog.Logger
	places   *places

	downloading sync.Mutex
	downloads   map[string]*download
	wrong       map[string]time.Time // when something else came under a key than its SHA-256 says
}

func newFiles(kept *store, upstream *http.Client, log *slog.Logger) *files {
	return &files{store: kept, upstream: upstream, log: log, places: newPlaces(filesAtOnce, filesEach), downloads: map[string]*download{}, wrong: map[string]time.Time{}}
}

// wanted is a file, which is the same for ever.
type wanted struct {
	key  string
	from *url.URL
	sum  string // SHA-256 in hexadecimal digits, "" where it is not known
}

// etag is what a file is called that has a sum, wherever it comes from.
func (w wanted) etag() string { return `"` + w.sum + `"` }

// askElsewhere sends a request to another machine.
func askElsewhere(ctx context.Context, client *http.Client, method string, u *url.URL, header http.Header) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	r.Header = header
	r.Header.Set("User-Agent", "gpulab-packages")
	return client.Do(r)
}

// openly is an address without what may let somebody in.
func openly(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// away tells a client that it does not get something, and why.
func (f *files) away(w http.ResponseWriter, r *http.Request, u *url.URL, err error) {
	switch {
	case r.Context().Err() != nil:
		return // it has gone itself
	case errors.Is(err, errTooMany):
		w.Header().Set("Retry-After", "5")
		http.Error(w, "The lab's cache: "+err.Error(), http.StatusTooManyRequests)
		return
	}
	var of *url.Error
	if errors.As(err, &of) {
		err = of.Err
	}
	f.log.Warn("not reached", "address", openly(u), "err", err.Error())
	http.Error(w, fmt.Sprintf("The lab's cache does not get this from %s: %v", u.Host, err), http.StatusBadGateway)
}

// file answers with a file: as it is kept, as it comes from elsewhere, for all who
// want it at once, or else straight from there.
func (f *files) file(w http.ResponseWriter, r *http.Request, want wanted) {
	u := want.from
	if o := f.store.open(want.key); o != nil {
		defer o.Close()
		fileHeaders(w, o.meta)
		http.ServeContent(w, r, "", time.Time{}, o.content())
		return
	}
	if r.Method == http.MethodHead {
		f.through(w, r, want)
		return
	}
	d := f.join(want, hostOf(r.RemoteAddr))
	defer d.leave()
	select {
	case <-d.begun:
	case <-r.Context().Done():
		return
	}
	switch {
	case d.kept:
		f.file(w, r, want)
	case d.direct:
		f.through(w, r, want)
	case d.failed != nil:
		f.away(w, r, u, d.failed)
	case d.to != "":
		http.Redirect(w, r, d.to, http.StatusFound)
	case d.status != http.StatusOK:
		http.Error(w, http.StatusText(d.status), d.status)
	default:
		fileHeaders(w, d.meta)
		http.ServeContent(w, r, "", time.Time{}, &follower{d: d})
	}
}

func fileHeaders(w http.ResponseWriter, m meta) {
	w.Header().Set("Content-Type", cmp.Or(m.Type, "application/octet-stream"))
	// It is kept here: a copy in every home would only take room there.
	w.Header().Set("Cache-Control", "no-store")
	if m.ETag != "" {
		w.Header().Set("ETag", m.ETag)
	}
}

// through passes a file on without keeping it.
func (f *files) through(w http.ResponseWriter, r *http.Request, want wanted) {
	u := want.from
	header := http.Header{"Accept-Encoding": {"identity"}}
	for _, name := range []string{"Range", "If-Range", "If-None-Match"} {
		// That of a sum is not what the file is called elsewhere.
		if value := r.Header.Get(name); value != "" && (want.sum == "" || value != want.etag()) {
			header.Set(name, value)
		}
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	leave, err := f.places.take(ctx, hostOf(r.RemoteAddr))
	if err != nil {
		f.away(w, r, u, err)
		return
	}
	defer leave()
	response, err := askElsewhere(ctx, f.upstream, r.Method, u, header)
	if err != nil {
		f.away(w, r, u, err)
		return
	}
	defer response.Body.Close()
	if to := elsewhereOf(response); isRedirect(response.StatusCode) && to != "" {
		http.Redirect(w, r, to, http.StatusFound)
		return
	}
	for _, name := range []string{"Content-Type", "Content-Length", "Content-Range", "Accept-Ranges", "ETag", "Last-Modified", "Cache-Control"} {
		if value := response.Header.Get(name); value != "" {
			w.Header().Set(name, value)
		}
	}
	if want.sum != "" {
		w.Header().Set("ETag", want.etag())
	}
	if f.store.most > 0 {
		w.Header().Set("Cache-Control", "no-store") // as with what is kept
	}
	w.WriteHeader(response.StatusCode)
	if _, err := io.Copy(w, awake(response.Body, cancel)); err != nil {
		// Too late to say so, but not to keep it from looking whole.
		panic(http.ErrAbortHandler)
	}
}

// awake ends a transfer that has stood still for too long.
func awake(r io.Reader, end func()) io.Reader {
	return &watched{r, time.AfterFunc(patience, end)}
}

type watched struct {
	io.Reader
	timer *time.Timer
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if err != nil {
		w.timer.Stop()
	} else {
		w.timer.Reset(patience)
	}
	return n, err
}

// download is a file that comes from the index, and is read meanwhile.
type download struct {
	// begun is closed once what follows is known.
	begun  chan struct{}
	kept   bool   // it has just been
	direct bool   // it is not kept: everybody fetches it for themselves
	failed error  // it did not come
	to     string // where it is instead, on another machine
	status int
	meta   meta
	size   int64 // bytes
	// checked is whether its last byte is held back until it is known to be what it should be.
	checked bool

	mu    sync.Mutex
	more  *sync.Cond
	file  *os.File
	have  int64
	ended bool
	err   error // why it ended early
	users int   // readers, and who writes
	end   context.CancelFunc
	alone *time.Timer // ends it when nobody has read it for a while
}

// lonely is for how long a download goes on that nobody reads: who wanted it may
// ask again.
const lonely = 30 * time.Second

// join is the download of a file, begun now if it is not under way.
func (f *files) join(want wanted, who string) *download {
	f.downloading.Lock()
	defer f.downloading.Unlock()
	d := f.downloads[want.key]
	if d == nil {
		ctx, cancel := context.WithCancel(context.Background())
		d = &download{begun: make(chan struct{}), users: 1, end: cancel}
		d.more, d.alone = sync.NewCond(&d.mu), time.AfterFunc(lonely, cancel)
		f.downloads[want.key] = d
		go func() {
			defer cancel()
			if leave, err := f.places.take(ctx, who); err != nil {
				d.failed = err
				close(d.begun)
			} else {
				f.download(ctx, d, want, leave)
				leave()
			}
			f.over(d, want.key)
			d.leave()
		}()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.users++
	d.alone.Stop()
	return d
}

// leave closes the file after the last who used it.
func (d *download) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.users--
	switch d.users {
	case 1:
		d.alone.Reset(lonely)
	case 0:
		d.alone.Stop()
		if d.file != nil {
			_ = d.file.Close()
		}
	}
}

// over is when nobody may join a download any more.
func (f *files) over(d *download, key string) {
	f.downloading.Lock()
	defer f.downloading.Unlock()
	if f.downloads[key] == d {
		delete(f.downloads, key)
	}
}

// wrongFor is for how long nobody goes on with what had another SHA-256.
const wrongFor = time.Minute

// markWrong remembers that something else came under a key than its SHA-256 says.
func (f *files) markWrong(key string) {
	f.downloading.Lock()
	defer f.downloading.Unlock()
	maps.DeleteFunc(f.wrong, func(_ string, at time.Time) bool { return time.Since(at) > wrongFor })
	f.wrong[key] = time.Now()
}

// isWrong tells whether that has just happened.
func (f *files) isWrong(key string) bool {
	f.downloading.Lock()
	defer f.downloading.Unlock()
	at, ok := f.wrong[key]
	return ok && time.Since(at) <= wrongFor
}

// reached tells whether a byte of a file is here already.
func (f *files) reached(key string, at int64) bool {
	if o := f.store.open(key); o != nil {
		o.Close()
		return true
	}
	f.downloading.Lock()
	d := f.downloads[key]
	f.downloading.Unlock()
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return at >= 0 && at < d.have
}

// download fetches a file, until ctx ends, and calls came once nothing more comes.
func (f *files) download(ctx context.Context, d *download, want wanted, came func()) {
	if o := f.store.open(want.key); o != nil { // since somebody looked
		o.Close()
		d.kept = true
		close(d.begun)
		return
	}
	began := time.Now()
	first, stop := context.WithCancel(ctx)
	defer stop()
	response, err := askElsewhere(first, f.upstream, http.MethodGet, want.from, http.Header{"Accept-Encoding": {"identity"}})
	if err != nil {
		d.failed = err
		close(d.begun)
		return
	}
	defer response.Body.Close()
	d.status, d.size = response.StatusCode, response.ContentLength
	if d.status != http.StatusOK {
		if isRedirect(d.status) {
			d.to = elsewhereOf(response)
		}
		came()
		close(d.begun)
		return
	}
	d.meta = meta{Key: want.key, Type: response.Header.Get("Content-Type"), ETag: response.Header.Get("ETag"), Fetched: time.Now()}
	if want.sum != "" {
		d.meta.ETag = want.etag()
	}
	var writing *writing
	// A page in place of a file is of something on the way, such as a sign-in to a network.
	if d.size >= 0 && !strings.HasPrefix(d.meta.Type, htmlPage) {
		if writing, err = f.store.create(d.meta, d.size); err != nil && !errors.Is(err, errNoRoom) {
			f.log.Warn("not kept", "address", openly(want.from), "err", err.Error())
		}
	}
	if writing == nil {
		d.direct = true
		_ = response.Body.Close()
		came()
		close(d.begun)
		return
	}
	d.file, d.checked = writing.file, want.sum != ""
	close(d.begun)
	sum := sha256.New()
	into := io.MultiWriter(&feeding{writing, d}, sum)
	err = fill(into, response.Body, stop)
	for try := 0; want.sum != "" && errors.As(err, new(cutError)) && try < goOns && later(ctx, time.Second<<try); try++ {
		err = f.goOn(ctx, into, want.from, writing.wrote, d.size)
	}
	came() // whoever has the last byte asks for the next file
	if err == nil && want.sum != "" && hex.EncodeToString(sum.Sum(nil)) != want.sum {
		err = errors.New("it is not what its SHA-256 says")
		f.markWrong(want.key)
		d.mu.Lock()
		d.have = 0
		d.mu.Unlock()
	}
	if err == nil {
		d.whole()
		err = writing.keep()
	} else {
		writing.discard()
	}
	f.over(d, want.key)
	d.mu.Lock()
	d.ended, d.err = true, err
	d.more.Broadcast()
	d.mu.Unlock()
	if err != nil {
		f.log.Warn("a download has ended early", "address", openly(want.from), "err", err.Error())
		return
	}
	f.log.Info("kept", "address", openly(want.from), "bytes", d.size, "seconds", time.Since(began).Seconds())
}

// goOns is how many times a download goes on that was cut off.
const goOns = 4

// cutError is that no more came.
type cutError struct{ error }

// fill writes what comes, and ends a transfer that has stood still for too long.
func fill(into io.Writer, body io.Reader, stop func()) error {
	from := &cut{Reader: awake(body, stop)}
	if _, err := io.Copy(into, from); from.err == nil {
		return err
	}
	return cutError{from.err}
}

// cut remembers why no more came.
type cut struct {
	io.Reader
	err error
}

func (c *cut) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

// goOn asks for the rest of a file that its SHA-256 tells from others.
func (f *files) goOn(ctx context.Context, into io.Writer, u *url.URL, at, size int64) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	response, err := askElsewhere(ctx, f.upstream, http.MethodGet, u, http.Header{"Accept-Encoding": {"identity"}, "Range": {fmt.Sprintf("bytes=%d-", at)}})
	if err != nil {
		return cutError{err}
	}
	defer response.Body.Close()
	if rest := fmt.Sprintf("bytes %d-%d/%d", at, size-1, size); response.StatusCode != http.StatusPartialContent || response.Header.Get("Content-Range") != rest {
		return fmt.Errorf("it was cut off, and its rest did not come: %s", response.Status)
	}
	return fill(into, response.Body, stop)
}

// later waits, and tells whether ctx has not ended meanwhile.
func later(ctx context.Context, wait time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

// whole says that all of it is here.
func (d *download) whole() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.have = d.size
	d.more.Broadcast()
}

// feeding writes, and wakes who waits for it.
type feeding struct {
	*writing
	d *download
}

func (f *feeding) Write(p []byte) (int, error) {
	n, err := f.writing.Write(p)
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.d.have = f.wrote; f.d.checked {
		f.d.have = min(f.wrote, f.d.size-1)
	}
	f.d.more.Broadcast()
	return n, err
}

// follower reads a download from its beginning while it comes.
type follower struct {
	d  *download
	at int64
}

func (f *follower) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += f.at
	case io.SeekEnd:
		offset += f.d.size
	}
	if offset < 0 {
		return 0, errors.New("before the beginning")
	}
	f.at = offset
	return offset, nil
}

func (f *follower) Read(p []byte) (int, error) {
	if f.at >= f.d.size {
		return 0, io.EOF
	}
	f.d.mu.Lock()
	for f.at >= f.d.have && !f.d.ended {
		f.d.more.Wait()
	}
	have, err := f.d.have, f.d.err
	f.d.mu.Unlock()
	if f.at >= have {
		return 0, cmp.Or(err, io.ErrUnexpectedEOF)
	}
	n, err := f.d.file.ReadAt(p[:min(int64(len(p)), have-f.at)], block+f.at)
	f.at += int64(n)
	return n, err
}
