package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// file answers with a file, which is the same for ever: as it is kept, as it comes
// from the index, for all who want it at once, or else straight from there.
func (p *proxy) file(w http.ResponseWriter, r *http.Request, u *url.URL) {
	key := u.String()
	if o := p.store.open(key); o != nil {
		defer o.Close()
		fileHeaders(w, o.meta)
		http.ServeContent(w, r, "", time.Time{}, o.content())
		return
	}
	if r.Method == http.MethodHead {
		p.through(w, r, u)
		return
	}
	d := p.join(key, u, hostOf(r.RemoteAddr))
	defer d.leave()
	select {
	case <-d.begun:
	case <-r.Context().Done():
		return
	}
	switch {
	case d.kept:
		p.file(w, r, u)
	case d.direct:
		p.through(w, r, u)
	case d.failed != nil:
		p.away(w, u, d.failed)
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
func (p *proxy) through(w http.ResponseWriter, r *http.Request, u *url.URL) {
	header := http.Header{"Accept-Encoding": {"identity"}}
	for _, name := range []string{"Range", "If-Range", "If-None-Match"} {
		if value := r.Header.Get(name); value != "" {
			header.Set(name, value)
		}
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	leave, err := p.filePlaces.take(ctx, hostOf(r.RemoteAddr))
	if err != nil {
		p.away(w, u, err)
		return
	}
	defer leave()
	response, err := p.ask(ctx, r.Method, u, header)
	if err != nil {
		p.away(w, u, err)
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
	if p.store.most > 0 {
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
func (p *proxy) join(key string, u *url.URL, who string) *download {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.downloads[key]
	if d == nil {
		ctx, cancel := context.WithCancel(context.Background())
		d = &download{begun: make(chan struct{}), users: 1, end: cancel}
		d.more, d.alone = sync.NewCond(&d.mu), time.AfterFunc(lonely, cancel)
		p.downloads[key] = d
		go func() {
			defer cancel()
			if leave, err := p.filePlaces.take(ctx, who); err != nil {
				d.failed = err
				close(d.begun)
			} else {
				p.download(ctx, d, key, u)
				leave()
			}
			p.mu.Lock()
			delete(p.downloads, key)
			p.mu.Unlock()
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

// download fetches a file, until ctx ends.
func (p *proxy) download(ctx context.Context, d *download, key string, u *url.URL) {
	if o := p.store.open(key); o != nil { // since somebody looked
		o.Close()
		d.kept = true
		close(d.begun)
		return
	}
	began := time.Now()
	response, err := p.ask(ctx, http.MethodGet, u, http.Header{"Accept-Encoding": {"identity"}})
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
		close(d.begun)
		return
	}
	d.meta = meta{Key: key, Type: response.Header.Get("Content-Type"), ETag: response.Header.Get("ETag"), Fetched: time.Now()}
	var writing *writing
	// A page in place of a file is of something on the way, such as a sign-in to a network.
	if d.size >= 0 && !strings.HasPrefix(d.meta.Type, htmlPage) {
		if writing, err = p.store.create(d.meta, d.size); err != nil && !errors.Is(err, errNoRoom) {
			p.log.Warn("not kept", "address", key, "err", err.Error())
		}
	}
	if writing == nil {
		d.direct = true
		close(d.begun)
		return
	}
	d.file = writing.file
	close(d.begun)
	_, err = io.Copy(&feeding{writing, d}, awake(response.Body, d.end))
	if err == nil {
		err = writing.keep()
	} else {
		writing.discard()
	}
	d.mu.Lock()
	d.ended, d.err = true, err
	d.more.Broadcast()
	d.mu.Unlock()
	if err != nil {
		p.log.Warn("a download has ended early", "address", key, "err", err.Error())
		return
	}
	p.log.Info("kept", "address", key, "bytes", d.size, "seconds", time.Since(began).Seconds())
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
	f.d.have += int64(n)
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
