package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// proxy answers as the index does, at the same paths; what the index has on other
// machines is below elsewhere, by their names.
type proxy struct {
	*files
	index *url.URL
	hosts []string // that files may be on besides the index's

	paging     *http.Client
	pagePlaces *places

	mu        sync.Mutex
	pages     map[string]*asking
	awayUntil time.Time // the index has just not answered: earlier pages stand in at once
}

const (
	simple    = "/simple/" // where pip is told to ask
	elsewhere = "/-/"
	health    = "/-/health"
)

// Limits.
const (
	mostAddress = 1024             // bytes
	mostPage    = 24 << 20         // bytes
	mostPages   = 256              // that are asked for, or wait for it
	mostFresh   = 10 * time.Minute // as PyPI says itself
	patience    = time.Minute      // without a byte
	impatience  = 5 * time.Second  // for the answer, where an earlier one stands in
	awayFor     = 30 * time.Second
)

// Forms of a page.
const (
	jsonPage = "application/vnd.pypi.simple.v1+json"
	htmlPage = "text/html"
)

func newProxy(kept *store, index string, hosts []string, through *http.Transport, log *slog.Logger) (*proxy, error) {
	u, err := addressOf(index)
	if err != nil {
		return nil, fmt.Errorf("-index should be an address such as https://pypi.org/simple: %w", err)
	}
	p := &proxy{
		index: u, hosts: hosts,
		pagePlaces: newPlaces(pagesAtOnce, pagesEach), pages: map[string]*asking{},
	}
	p.paging = &http.Client{Transport: through, CheckRedirect: keepTo(p.has)}
	p.files = newFiles(kept, &http.Client{Transport: alone(through), CheckRedirect: keepTo(p.has)}, log)
	return p, nil
}

// addressOf is one of another machine.
func addressOf(text string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(text, "/"))
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return nil, errors.New("it begins with https:// or http://, and has neither a name nor a password")
	}
	return u, nil
}

// transport leads to other machines, and bounds what a connection to them may take.
func transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	t.ResponseHeaderTimeout, t.MaxIdleConnsPerHost = patience, 16
	t.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 256 << 10}
	return t
}

// alone is a way on which each answer has its connection: bounded as they are, the
// streams of a shared one are slow over far ways, which large files feel.
func alone(through *http.Transport) *http.Transport {
	t := through.Clone()
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	if t.TLSClientConfig != nil {
		t.TLSClientConfig.NextProtos = nil // the copy would still offer HTTP/2, and not understand it
	}
	return t
}

// has tells whether the index has files there.
func (p *proxy) has(u *url.URL) bool {
	return u.Scheme == p.index.Scheme && (u.Host == p.index.Host || slices.Contains(p.hosts, u.Host))
}

// keepTo follows redirects to where files may be alone. Whoever asks is told of
// other places, and goes there without the cache.
func keepTo(has func(*url.URL) bool) func(*http.Request, []*http.Request) error {
	return func(r *http.Request, via []*http.Request) error {
		if len(via) > 5 {
			return errors.New("it leads on and on")
		}
		if !has(r.URL) {
			return http.ErrUseLastResponse
		}
		return nil
	}
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if hasBody(r) {
		refuseBody(w, "The package cache takes nothing.")
		return
	}
	w = newSteady(w)
	path, escaped := r.URL.Path, r.URL.EscapedPath()
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "The package cache only gives.", http.StatusMethodNotAllowed)
	case badAddress(w, r, mostAddress):
	case path == health:
		_, _ = io.WriteString(w, "ok\n")
	case strings.HasPrefix(escaped, elsewhere):
		host, rest, _ := strings.Cut(strings.TrimPrefix(escaped, elsewhere), "/")
		if !slices.Contains(p.hosts, host) {
			http.Error(w, "The package cache knows no such machine.", http.StatusNotFound)
			return
		}
		p.fileOf(w, r, p.address(host, "/"+rest, r.URL.RawQuery))
	case strings.HasPrefix(path, simple) && p.index.Path+"/" != simple && (p.index.Path == "" || !strings.HasPrefix(path, p.index.Path+"/")):
		// Relative links of the index's pages are right from its own path only.
		http.Redirect(w, r, p.index.EscapedPath()+"/"+strings.TrimPrefix(escaped, simple), http.StatusFound)
	case isFile(path):
		p.fileOf(w, r, p.address(p.index.Host, escaped, r.URL.RawQuery))
	case p.isPage(path):
		p.page(w, r, p.address(p.index.Host, escaped, ""))
	default:
		http.NotFound(w, r)
	}
}

// fileOf answers with a file of the index, which is the same for ever.
func (p *proxy) fileOf(w http.ResponseWriter, r *http.Request, u *url.URL) {
	p.file(w, r, wanted{key: u.String(), from: u})
}

// address is one of the index's scheme; escaped is written as the client wrote it,
// since some servers tell + from %2B.
func (p *proxy) address(host, escaped, query string) *url.URL {
	u := &url.URL{Scheme: p.index.Scheme, Host: host, RawPath: escaped, RawQuery: query}
	u.Path, _ = url.PathUnescape(escaped) // it was read as one
	return u
}

// isPage tells the pages of single packages, which are all that pip asks for.
func (p *proxy) isPage(path string) bool {
	name, below := strings.CutPrefix(path, p.index.Path+"/")
	name = strings.TrimSuffix(name, "/")
	return below && name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune("._-", r)
	})
}

// isFile tells files, which never change, from pages.
func isFile(path string) bool {
	for _, end := range []string{".whl", ".tar.gz", ".zip", ".tar.bz2", ".tgz", ".metadata", ".asc"} {
		if strings.HasSuffix(path, end) {
			return true
		}
	}
	return false
}

// asking is one page that is being fetched, for all who want it meanwhile.
type asking struct {
	done chan struct{}
	answer
}

// answer is a page, or why there is none.
type answer struct {
	meta
	status int
	body   []byte
	to     string // path that the index has it at instead
	err    error
}

// page answers with a page of the index: as it was kept while that is fresh, or
// while the index cannot be reached.
func (p *proxy) page(w http.ResponseWriter, r *http.Request, u *url.URL) {
	form := htmlPage
	if strings.Contains(r.Header.Get("Accept"), jsonPage) {
		form = jsonPage
	}
	key := form + " " + u.String()
	if o := p.store.open(key); o != nil {
		defer o.Close()
		p.mu.Lock()
		away := time.Now().Before(p.awayUntil)
		p.mu.Unlock()
		if age := time.Since(o.Fetched); away || age >= 0 && age < o.Fresh {
			pageHeaders(w, o.meta)
			http.ServeContent(w, r, "", time.Time{}, o.content())
			return
		}
	}
	p.mu.Lock()
	a := p.pages[key]
	if a == nil && len(p.pages) >= mostPages {
		p.mu.Unlock()
		p.away(w, r, u, errTooMany)
		return
	}
	if a == nil {
		a = &asking{done: make(chan struct{})}
		p.pages[key] = a
		go func() {
			a.answer = p.fetch(u, form, key, hostOf(r.RemoteAddr))
			p.mu.Lock()
			delete(p.pages, key)
			p.mu.Unlock()
			close(a.done)
		}()
	}
	p.mu.Unlock()
	select {
	case <-a.done:
	case <-r.Context().Done():
		return
	}
	switch {
	case a.err != nil:
		p.away(w, r, u, a.err)
	case a.to != "":
		http.Redirect(w, r, a.to, http.StatusFound)
	case a.status != http.StatusOK:
		http.Error(w, http.StatusText(a.status), a.status)
	default:
		pageHeaders(w, a.meta)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.body))
	}
}

func pageHeaders(w http.ResponseWriter, m meta) {
	w.Header().Set("Content-Type", cmp.Or(m.Type, htmlPage))
	w.Header().Set("Vary", "Accept")
	w.Header().Set("Cache-Control", "no-cache") // asking here costs nothing
	if m.ETag != "" {
		w.Header().Set("ETag", m.ETag)
	}
}

// fetch asks the index for a page and keeps it. One that is kept already stands in
// where the index does not answer, however old it is. who asked first.
func (p *proxy) fetch(u *url.URL, form, key, who string) answer {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	header := http.Header{"Accept": {form}}
	if form == jsonPage {
		header.Set("Accept", jsonPage+", "+htmlPage+";q=0.5")
	}
	old := p.store.open(key)
	if old != nil {
		defer old.Close()
		if old.ETag != "" {
			header.Set("If-None-Match", old.ETag)
		}
	}
	leave, err := p.pagePlaces.take(ctx, who)
	if err != nil {
		return answer{err: err}
	}
	defer leave()
	a := p.fetched(ctx, u, header, old)
	a.Key, a.Fetched = key, time.Now()
	failed := a.err != nil || a.status >= http.StatusInternalServerError || a.status == http.StatusTooManyRequests
	p.mu.Lock()
	if p.awayUntil = (time.Time{}); failed {
		p.awayUntil = time.Now().Add(awayFor)
	}
	p.mu.Unlock()
	if failed && old != nil {
		whole, err := io.ReadAll(old.content())
		if err != nil {
			return a
		}
		p.log.Warn("the index does not answer; an earlier page stands in", "address", u.String(), "fetched", old.Fetched, "status", a.status, "err", fmt.Sprint(a.err))
		return answer{meta: old.meta, status: http.StatusOK, body: whole}
	}
	if a.err == nil && a.status == http.StatusOK && a.to == "" {
		if err := p.keepPage(a); err != nil && !errors.Is(err, errNoRoom) {
			p.log.Warn("not kept", "address", u.String(), "err", err.Error())
		}
	}
	return a
}

func (p *proxy) keepPage(a answer) error {
	writing, err := p.store.create(a.meta, int64(len(a.body)))
	if err != nil {
		return err
	}
	defer writing.file.Close()
	if _, err := writing.Write(a.body); err != nil {
		writing.discard()
		return err
	}
	return writing.keep()
}

// fetched is what the index says now; old is what it said before, or nil.
func (p *proxy) fetched(ctx context.Context, u *url.URL, header http.Header, old *object) (a answer) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hurry := time.AfterFunc(2*patience, cancel)
	if old != nil {
		hurry.Reset(impatience)
	}
	response, err := askElsewhere(ctx, p.paging, http.MethodGet, u, header)
	hurry.Stop()
	if err != nil {
		return answer{err: err}
	}
	defer response.Body.Close()
	a.status, a.Fresh = response.StatusCode, freshFor(response.Header.Get("Cache-Control"))
	switch {
	case a.status == http.StatusNotModified && old != nil:
		a.status, a.Type, a.ETag = http.StatusOK, old.Type, old.ETag
		a.body, a.err = io.ReadAll(old.content())
		return a
	case isRedirect(a.status):
		a.to = elsewhereOf(response)
		return a
	case a.status != http.StatusOK:
		return a
	}
	if now := response.Request.URL; now.Host == u.Host && now.Path != u.Path {
		a.to = now.EscapedPath()
		return a
	}
	a.Type, a.ETag = response.Header.Get("Content-Type"), response.Header.Get("ETag")
	a.body, a.err = io.ReadAll(io.LimitReader(response.Body, mostPage+1))
	if len(a.body) > mostPage {
		a.body, a.err = nil, errors.New("the page is larger than 24 MiB")
	}
	a.body = p.ownAddresses(a.body)
	return a
}

// ownAddresses makes whole addresses of files in a page lead through the cache.
func (p *proxy) ownAddresses(page []byte) []byte {
	own := func(host, path string) {
		if whole := []byte(p.index.Scheme + "://" + host + "/"); bytes.Contains(page, whole) {
			page = bytes.ReplaceAll(page, whole, []byte(path))
		}
	}
	for _, host := range p.hosts {
		own(host, elsewhere+host+"/")
	}
	own(p.index.Host, "/")
	return page
}

func isRedirect(status int) bool {
	return status > 300 && status < 400 && status != http.StatusNotModified
}

// elsewhereOf is where a response sends to, "" where it does not say.
func elsewhereOf(response *http.Response) string {
	to, err := response.Location()
	if err != nil {
		return ""
	}
	return to.String()
}

// freshFor is for how long a page need not be asked for again.
func freshFor(cacheControl string) time.Duration {
	for directive := range strings.SplitSeq(cacheControl, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(directive), "=")
		switch strings.ToLower(name) {
		case "no-store", "no-cache":
			return 0
		case "max-age":
			if seconds, err := strconv.Atoi(strings.Trim(value, `"`)); err == nil && seconds >= 0 {
				return min(time.Duration(min(seconds, 3600))*time.Second, mostFresh)
			}
		}
	}
	return time.Minute
}
