package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// upstream is an index with files on the same machine, that counts what it is asked.
type upstream struct {
	*httptest.Server
	mu     sync.Mutex
	pages  map[string]string
	files  map[string][]byte
	asked  map[string]int
	slow   chan struct{} // files wait for it after their first half
	status int           // what it answers with instead, zero for nothing
	cache  string        // Cache-Control of pages
	seen   []http.Header
}

func newUpstream(t *testing.T) *upstream {
	t.Helper()
	u := &upstream{pages: map[string]string{}, files: map[string][]byte{}, asked: map[string]int{}, cache: "max-age=600"}
	u.Server = httptest.NewServer(u)
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	u.asked[r.URL.Path]++
	u.seen = append(u.seen, r.Header.Clone())
	page, isPage := u.pages[r.URL.Path]
	file, isFile := u.files[r.URL.Path]
	slow, status, cache := u.slow, u.status, u.cache
	u.mu.Unlock()
	switch {
	case status != 0:
		http.Error(w, "", status)
	case isPage && strings.HasPrefix(page, "->"):
		http.Redirect(w, r, page[2:], http.StatusMovedPermanently)
	case isPage:
		etag := fmt.Sprintf(`"%x"`, sha256.Sum256([]byte(page)))[:20] + `"`
		w.Header().Set("ETag", etag)
		w.Header().Set("Cache-Control", cache)
		if r.Header.Get("If-None-Match") == etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=UTF-8")
		_, _ = io.WriteString(w, page)
	case isFile:
		w.Header().Set("Content-Length", strconv.Itoa(len(file)))
		_, _ = w.Write(file[:len(file)/2])
		if slow != nil {
			w.(http.Flusher).Flush()
			<-slow
		}
		if _, cut := r.URL.Query()["cut"]; cut {
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(file[len(file)/2:])
	default:
		http.NotFound(w, r)
	}
}

func (u *upstream) times(path string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked[path]
}

func (u *upstream) set(change func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	change()
}

// newCache is a cache of u in dir, of so many bytes.
func newCache(t *testing.T, u *upstream, dir string, most int64, hosts ...string) *httptest.Server {
	t.Helper()
	p, err := newProxy(newStore(t, dir, most), u.URL+"/simple", hosts, transport(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	return server
}

// The cache keeps nothing on a disk that is nearly full, where tests would wait for what never comes.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "room-")
	if err != nil {
		panic(err)
	}
	kept, err := openStore(dir, 4<<30)
	if err == nil {
		err = kept.room(1 << 30)
	}
	_ = os.RemoveAll(dir)
	if err != nil {
		fmt.Fprintf(os.Stderr, "these tests need 1 GiB on the disk of %s beyond what the cache leaves free: %v\n", os.TempDir(), err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// newStore is a store in dir of so many bytes. After the test it waits until nothing is being written to dir.
func newStore(t *testing.T, dir string, most int64) *store {
	t.Helper()
	kept, err := openStore(dir, most)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { settled(t, dir) })
	return kept
}

// settled waits until nothing is being written.
func settled(t *testing.T, dir string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		coming, err := filepath.Glob(filepath.Join(dir, "*"+partial))
		if err != nil {
			t.Fatal(err)
		}
		if len(coming) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("still written: %v", coming)
		}
	}
}

func get(t *testing.T, address string, header ...string) (int, string, http.Header) {
	t.Helper()
	response, body, err := send(t, http.MethodGet, address, "", header...)
	if err != nil {
		t.Fatalf("%s after %d bytes: %v", address, len(body), err)
	}
	return response.StatusCode, body, response.Header
}

// send asks without following to where it is sent; err is of reading the answer.
func send(t *testing.T, method, address, body string, header ...string) (response *http.Response, got string, err error) {
	t.Helper()
	r, err := http.NewRequest(method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if response, err = client.Do(r); err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	return response, string(all), err
}

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

const wheel = "/packages/ab/demo-1.0-py3-none-any.whl"

func TestFileIsFetchedOnce(t *testing.T) {
	u, dir := newUpstream(t), t.TempDir()
	u.files[wheel] = noise(300_000)
	c := newCache(t, u, dir, 1<<20)
	for range 3 {
		if status, body, header := get(t, c.URL+wheel); status != http.StatusOK || body != string(u.files[wheel]) || header.Get("Cache-Control") != "no-store" {
			t.Fatalf("%d, %d bytes, %v", status, len(body), header)
		}
	}
	if n := u.times(wheel); n != 1 {
		t.Errorf("the index was asked %d times", n)
	}
	if status, body, _ := get(t, c.URL+wheel, "Range", "bytes=1000-1999"); status != http.StatusPartialContent || body != string(u.files[wheel][1000:2000]) {
		t.Errorf("a part: %d, %d bytes", status, len(body))
	}
	// It outlives the process, and needs no index.
	settled(t, dir)
	u.Close()
	again := newCache(t, u, dir, 1<<20)
	if status, body, _ := get(t, again.URL+wheel); status != http.StatusOK || body != string(u.files[wheel]) {
		t.Errorf("after a new start: %d, %d bytes", status, len(body))
	}
	if status, body, _ := get(t, again.URL+"/packages/other.whl"); status != http.StatusBadGateway || !strings.Contains(body, "The lab's cache does not get this from ") {
		t.Errorf("what is not kept, without an index: %d %s", status, body)
	}
}

func TestManyAtOnce(t *testing.T) {
	u := newUpstream(t)
	u.files[wheel], u.slow = noise(400_000), make(chan struct{})
	c := newCache(t, u, t.TempDir(), 1<<20)
	var group sync.WaitGroup
	var whole, first atomic.Int32
	for range 20 {
		group.Go(func() {
			response, err := http.Get(c.URL + wheel)
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			half := make([]byte, 150_000)
			if _, err := io.ReadFull(response.Body, half); err != nil {
				t.Error(err)
				return
			}
			first.Add(1) // it comes while it is being fetched
			rest, err := io.ReadAll(response.Body)
			if err == nil && bytes.Equal(slices.Concat(half, rest), u.files[wheel]) {
				whole.Add(1)
			}
		})
	}
	for end := time.Now().Add(time.Minute); first.Load() < 20 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if n := first.Load(); n != 20 {
		t.Errorf("%d of 20 had the first half before the second was there", n)
	}
	close(u.slow)
	group.Wait()
	if whole.Load() != 20 || u.times(wheel) != 1 {
		t.Errorf("%d of 20 have the file, and the index was asked %d times", whole.Load(), u.times(wheel))
	}
}

// Who began a download may go; the others, and the cache, get it all the same.
func TestWhoBeganItLeaves(t *testing.T) {
	u := newUpstream(t)
	u.files[wheel], u.slow = noise(400_000), make(chan struct{})
	c := newCache(t, u, t.TempDir(), 1<<20)
	ctx, leave := context.WithCancel(context.Background())
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+wheel, nil)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	response.Body.Close()
	close(u.slow)
	if status, body, _ := get(t, c.URL+wheel); status != http.StatusOK || body != string(u.files[wheel]) {
		t.Errorf("%d, %d bytes", status, len(body))
	}
	if u.times(wheel) != 1 {
		t.Errorf("the index was asked %d times", u.times(wheel))
	}
}

// What is cut off never looks whole, is not kept, and is fetched anew.
func TestCutOff(t *testing.T) {
	u, dir := newUpstream(t), t.TempDir()
	u.files[wheel] = noise(400_000)
	c := newCache(t, u, dir, 1<<20)
	response, err := http.Get(c.URL + wheel + "?cut")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err == nil {
		t.Errorf("half a file came without an error, %d bytes", len(body))
	}
	settled(t, dir)
	if sizeOf(t, dir) != 0 {
		t.Error("half a file is kept")
	}
	if status, body, _ := get(t, c.URL+wheel); status != http.StatusOK || body != string(u.files[wheel]) {
		t.Errorf("%d, %d bytes", status, len(body))
	}
}

func TestPages(t *testing.T) {
	u, files := newUpstream(t), newUpstream(t)
	host := strings.TrimPrefix(files.URL, "http://")
	files.files[wheel] = noise(5000)
	u.pages["/simple/demo/"] = `<a href="` + files.URL + wheel + `#sha256=00">demo</a><a href="` + u.URL + `/packages/own.whl">own</a><a href="../../packages/rel.whl">rel</a>`
	u.pages["/simple/Demo/"] = "->/simple/demo/"
	c := newCache(t, u, t.TempDir(), 1<<20, host)
	for range 2 {
		status, body, header := get(t, c.URL+"/simple/demo/")
		want := `<a href="/-/` + host + wheel + `#sha256=00">demo</a><a href="/packages/own.whl">own</a><a href="../../packages/rel.whl">rel</a>`
		if status != http.StatusOK || body != want || !strings.HasPrefix(header.Get("Content-Type"), "text/html") || header.Get("ETag") == "" {
			t.Fatalf("%d %s %v", status, body, header)
		}
	}
	if n := u.times("/simple/demo/"); n != 1 {
		t.Errorf("the index was asked for a page %d times", n)
	}
	if status, body, _ := get(t, c.URL+"/-/"+host+wheel); status != http.StatusOK || body != string(files.files[wheel]) {
		t.Errorf("a file elsewhere: %d, %d bytes", status, len(body))
	}
	if status, _, header := get(t, c.URL+"/simple/Demo/"); status != http.StatusFound || header.Get("Location") != "/simple/demo/" {
		t.Errorf("another spelling: %d %v", status, header)
	}
	if status, _, _ := get(t, c.URL+"/simple/nobody-has-it/"); status != http.StatusNotFound {
		t.Errorf("a package that does not exist: %d", status)
	}
	_, _, header := get(t, c.URL+"/simple/demo/")
	if status, _, _ := get(t, c.URL+"/simple/demo/", "If-None-Match", header.Get("ETag")); status != http.StatusNotModified {
		t.Errorf("a page that the client has: %d", status)
	}
}

// A page that is no longer fresh is asked for again, and stands in where the index
// does not answer.
func TestStalePages(t *testing.T) {
	u, dir := newUpstream(t), t.TempDir()
	const page = "/simple/demo/"
	u.pages[page], u.cache = "one", "max-age=0"
	c := newCache(t, u, dir, 1<<20)
	read := func() string {
		t.Helper()
		status, body, _ := get(t, c.URL+page)
		return fmt.Sprint(status, " ", body)
	}
	if got := read() + read(); got != "200 one200 one" || u.times(page) != 2 {
		t.Errorf("%s after asking %d times", got, u.times(page))
	}
	u.set(func() { u.pages[page] = "two" })
	if got := read(); got != "200 two" {
		t.Error(got)
	}
	u.set(func() { u.status = http.StatusNotFound }) // taken back there
	if got := read(); !strings.HasPrefix(got, "404") {
		t.Error(got)
	}
	u.set(func() { u.status = http.StatusServiceUnavailable })
	before := u.times(page)
	for range 3 {
		if got := read(); got != "200 two" {
			t.Errorf("while the index is overloaded: %s", got)
		}
	}
	if n := u.times(page) - before; n != 1 {
		t.Errorf("an index that had just not answered was asked %d times", n)
	}
	u.Close()
	if status, body, _ := get(t, newCache(t, u, dir, 1<<20).URL+page); status != http.StatusOK || body != "two" {
		t.Errorf("without an index: %d %s", status, body)
	}
}

// JSON and HTML are two things.
func TestForms(t *testing.T) {
	u := newUpstream(t)
	u.pages["/simple/demo/"] = "page"
	c := newCache(t, u, t.TempDir(), 1<<20)
	get(t, c.URL+"/simple/demo/")
	get(t, c.URL+"/simple/demo/", "Accept", jsonPage+", text/html;q=0.1")
	if len(u.seen) != 2 || u.seen[0].Get("Accept") != htmlPage || !strings.HasPrefix(u.seen[1].Get("Accept"), jsonPage) {
		t.Errorf("the index was asked with %v", u.seen)
	}
}

func TestOtherPath(t *testing.T) {
	u := newUpstream(t)
	u.pages["/team/+simple/demo/"] = `<a href="../../+f/demo.whl">demo</a>`
	kept := newStore(t, t.TempDir(), 1<<20)
	p, err := newProxy(kept, u.URL+"/team/+simple/", nil, transport(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c := httptest.NewServer(p)
	defer c.Close()
	_, _, header := get(t, c.URL+"/simple/demo/")
	if status, body, _ := get(t, c.URL+header.Get("Location")); status != http.StatusOK || body != u.pages["/team/+simple/demo/"] {
		t.Errorf("at %q: %d %s", header.Get("Location"), status, body)
	}
}

// Nothing is kept beyond the bound, what was used least goes first, and what is too
// large for it, or of unknown size, passes through.
func TestBound(t *testing.T) {
	u, dir := newUpstream(t), t.TempDir()
	const most = 200_000
	name := func(i int) string { return fmt.Sprintf("/packages/p%d.whl", i) }
	for i := range 12 {
		u.files[name(i)] = noise(30_000)
	}
	u.files["/packages/large.whl"] = noise(150_000)
	c := newCache(t, u, dir, most)
	for i := range 12 {
		get(t, c.URL+name(i))
		get(t, c.URL+name(0)) // used all along
		settled(t, dir)
		if size := sizeOf(t, dir); size > most {
			t.Fatalf("%d bytes are kept after %d files", size, i+1)
		}
	}
	if n := u.times(name(0)); n != 1 {
		t.Errorf("what is used all along was fetched %d times", n)
	}
	get(t, c.URL+name(1))
	if n := u.times(name(1)); n != 2 {
		t.Errorf("what was used least was fetched %d times", n)
	}
	for range 2 {
		if status, body, _ := get(t, c.URL+"/packages/large.whl"); status != http.StatusOK || body != string(u.files["/packages/large.whl"]) {
			t.Errorf("a large file: %d, %d bytes", status, len(body))
		}
	}
	if sizeOf(t, dir) > most || u.times(name(0)) != 1 {
		t.Error("a large file drove out others")
	}
	// A smaller bound holds from the next start on; none keeps nothing, and gives all.
	settled(t, dir)
	newCache(t, u, dir, 70_000)
	if size := sizeOf(t, dir); size > 70_000 {
		t.Errorf("%d bytes are kept", size)
	}
	none := newCache(t, u, dir, 0)
	if status, body, _ := get(t, none.URL+name(3)); status != http.StatusOK || body != string(u.files[name(3)]) || sizeOf(t, dir) != 0 {
		t.Errorf("without room: %d, %d bytes, %d kept", status, len(body), sizeOf(t, dir))
	}
}

// Pages of an index share a connection, and each file has its own.
func TestFilesShareNoConnection(t *testing.T) {
	u := &upstream{pages: map[string]string{"/simple/demo/": "<a href=\"/packages/demo.whl\">demo</a>"}, files: map[string][]byte{"/packages/demo.whl": noise(10_000)}, asked: map[string]int{}}
	versions := map[string]int{}
	u.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.set(func() { versions[r.URL.Path] = r.ProtoMajor })
		u.ServeHTTP(w, r)
	}))
	u.EnableHTTP2 = true
	u.StartTLS()
	defer u.Close()
	kept := newStore(t, t.TempDir(), 1<<20)
	p, err := newProxy(kept, u.URL+"/simple", nil, trusting(u.Server), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c := httptest.NewServer(p)
	defer c.Close()
	for path, version := range map[string]int{"/simple/demo/": 2, "/packages/demo.whl": 1} {
		if status, body, _ := get(t, c.URL+path); status != http.StatusOK || path != "/simple/demo/" && body != string(u.files[path]) {
			t.Errorf("%s: %d, %d bytes", path, status, len(body))
		}
		u.set(func() {
			if versions[path] != version {
				t.Errorf("%s came over HTTP/%d", path, versions[path])
			}
		})
	}
}

// trusting is the usual way to others, on which a server of the test is trusted.
func trusting(s *httptest.Server) *http.Transport {
	t := transport()
	t.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool()}
	t.TLSClientConfig.RootCAs.AddCert(s.Certificate())
	return t
}

// On a disk that others fill, the cache gives way to them, and everybody still gets
// their files.
func TestFullDisk(t *testing.T) {
	u, dir := newUpstream(t), t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); errors.Is(err, syscall.EPERM) {
		t.Skip("only root can make a small disk")
	} else if err != nil {
		t.Fatal(err)
	}
	name := func(i int) string { return fmt.Sprintf("/packages/p%d.whl", i) }
	for i := range 40 {
		u.files[name(i)] = noise(90_000)
	}
	c := newCache(t, u, dir, 1<<30)
	t.Cleanup(func() { // before the cache settles
		c.Close()
		settled(t, dir)
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	all := func() {
		t.Helper()
		for i := range 40 {
			if status, body, _ := get(t, c.URL+name(i)); status != http.StatusOK || body != string(u.files[name(i)]) {
				t.Fatalf("file %d: %d, %d bytes", i, status, len(body))
			}
			settled(t, dir)
		}
	}
	free := func() int64 {
		var disk syscall.Statfs_t
		if err := syscall.Statfs(dir, &disk); err != nil {
			t.Fatal(err)
		}
		return int64(disk.Bavail) * disk.Bsize
	}
	all()
	if left := free(); left < 1<<21/20 || sizeOf(t, dir) < 1<<20 {
		t.Errorf("%d bytes are left, %d kept", left, sizeOf(t, dir))
	}
	get(t, c.URL+name(39))
	if n := u.times(name(39)); n != 1 {
		t.Errorf("what came last was fetched %d times", n)
	}
	// Somebody else takes all that is left: what is kept makes room for them.
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, make([]byte, free()), 0o600); err != nil {
		t.Fatal(err)
	}
	all()
	if left := free(); left < 1<<21/20 {
		t.Errorf("beside another's file %d bytes are left", left)
	}
	// There is no room even with nothing kept.
	if err := os.WriteFile(other, make([]byte, 1<<21-sizeOf(t, dir)+1<<20), 0o600); err == nil {
		t.Fatal("the disk is larger than it should be")
	}
	all()
}

func sizeOf(t *testing.T, dir string) (total int64) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if info, err := e.Info(); err == nil {
			total += info.Size()
		}
	}
	return total
}

// A file that is damaged, cut short or gone is fetched anew; what a killed process
// left unfinished goes.
func TestDamaged(t *testing.T) {
	for what, damage := range map[string]func(path string) error{
		"its beginning": func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("x"), 9000), 0o600) },
		"cut short":     func(path string) error { return os.Truncate(path, 100) },
		"gone":          os.Remove,
	} {
		t.Run(what, func(t *testing.T) {
			u, dir := newUpstream(t), t.TempDir()
			u.files[wheel] = noise(50_000)
			c := newCache(t, u, dir, 1<<20)
			get(t, c.URL+wheel)
			settled(t, dir)
			path := filepath.Join(dir, nameOf(u.URL+wheel))
			if err := damage(path); err != nil {
				t.Fatal(err)
			}
			if status, body, _ := get(t, c.URL+wheel); status != http.StatusOK || body != string(u.files[wheel]) {
				t.Errorf("%d, %d bytes", status, len(body))
			}
		})
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "123"+partial), noise(10), 0o600); err != nil {
		t.Fatal(err)
	}
	newCache(t, newUpstream(t), dir, 1<<20)
	if sizeOf(t, dir) != 0 {
		t.Error("what was unfinished is still there")
	}
}

// It leads nowhere but to the index, hands on nothing of who asks, and takes nothing.
func TestNowhereElse(t *testing.T) {
	u, other := newUpstream(t), newUpstream(t)
	other.files["/secret.whl"] = []byte("secret")
	u.pages["/packages/away.whl"] = "->" + other.URL + "/secret.whl"
	u.pages["/simple/away/"] = "->" + other.URL + "/secret.whl"
	u.pages["/simple/demo/"] = "page"
	c := newCache(t, u, t.TempDir(), 1<<20)
	host := strings.TrimPrefix(other.URL, "http://")
	for path, want := range map[string]int{
		"/-/" + host + "/secret.whl": http.StatusNotFound,
		"/-/":                        http.StatusNotFound,
		"/packages/away.whl":         http.StatusFound, // whoever wants it goes there itself
		"/simple/away/":              http.StatusFound,
		"/simple/":                   http.StatusNotFound,
		"/":                          http.StatusNotFound,
		"/admin/secret":              http.StatusNotFound,
		"/simple/../../etc":          http.StatusBadRequest,
	} {
		r := &http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "http", Host: strings.TrimPrefix(c.URL, "http://"), Opaque: path}, Header: http.Header{}}
		response, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: %d, not %d", path, response.StatusCode, want)
		}
	}
	if n := other.times("/secret.whl"); n != 0 {
		t.Errorf("another machine was asked %d times", n)
	}
	for _, method := range []string{http.MethodPut, http.MethodPost, http.MethodDelete, http.MethodPatch} {
		for body, want := range map[string]int{"": http.StatusMethodNotAllowed, "x": http.StatusBadRequest} {
			r, _ := http.NewRequest(method, c.URL+"/simple/demo/", strings.NewReader(body))
			response, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if response.StatusCode != want {
				t.Errorf("%s %q: %d", method, body, response.StatusCode)
			}
		}
	}
	get(t, c.URL+"/simple/demo/", "Authorization", "Basic c2VjcmV0", "Cookie", "a=b", "X-Forwarded-For", "10.0.0.1")
	for _, name := range []string{"Authorization", "Cookie", "X-Forwarded-For"} {
		if got := u.seen[len(u.seen)-1].Get(name); got != "" {
			t.Errorf("the index got %s: %s", name, got)
		}
	}
	for _, index := range []string{"", "pypi.org", "ftp://pypi.org/simple", "https://pypi.org/simple?a=b", "https://me:secret@pypi.org/simple"} {
		if _, err := newProxy(nil, index, nil, &http.Transport{}, nil); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("the index %q: %v", index, err)
		}
	}
}

// Some servers tell + from %2B in the names of files.
func TestPlus(t *testing.T) {
	var asked atomic.Value
	u := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.RequestURI)
		_, _ = io.WriteString(w, "wheel")
	}))
	defer u.Close()
	c := newCache(t, &upstream{Server: u}, t.TempDir(), 1<<20)
	for _, path := range []string{"/whl/torch-2.9.0%2Bcu130-cp311-none-any.whl", "/whl/torch-2.9.0+cu130-cp311-none-any.whl"} {
		if status, body, _ := get(t, c.URL+path); status != http.StatusOK || body != "wheel" || asked.Load() != path {
			t.Errorf("%s: %d %s, asked for as %v", path, status, body, asked.Load())
		}
	}
}

// A page where a file should be, as networks with a sign-in of their own give it, is not kept.
func TestPageInPlaceOfFile(t *testing.T) {
	signIn := true
	u := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if signIn {
			w.Header().Set("Content-Type", "text/html")
		}
		fmt.Fprint(w, signIn)
	}))
	defer u.Close()
	c := newCache(t, &upstream{Server: u}, t.TempDir(), 1<<20)
	get(t, c.URL+wheel)
	signIn = false
	if status, body, _ := get(t, c.URL+wheel); status != http.StatusOK || body != "false" {
		t.Errorf("%d %s", status, body)
	}
}

// One address cannot take all places, nor all connections.
func TestBoundsEach(t *testing.T) {
	u := newUpstream(t)
	u.slow = make(chan struct{})
	const many = filesEach + 4
	for i := range many {
		u.files[fmt.Sprintf("/packages/p%d.whl", i)] = noise(100_000)
	}
	c := newCache(t, u, t.TempDir(), 1<<30)
	var statuses [600]atomic.Int32
	var group sync.WaitGroup
	for i := range many {
		group.Go(func() {
			response, err := http.Get(fmt.Sprintf("%s/packages/p%d.whl", c.URL, i))
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			statuses[response.StatusCode].Add(1)
			if response.StatusCode == http.StatusTooManyRequests && response.Header.Get("Retry-After") == "" {
				t.Error("no word on when to try again")
			}
			_, _ = io.Copy(io.Discard, response.Body)
		})
	}
	for end := time.Now().Add(time.Minute); statuses[200].Load()+statuses[429].Load() < many && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	close(u.slow)
	group.Wait()
	if statuses[200].Load() != filesEach || statuses[429].Load() != many-filesEach {
		t.Errorf("%d downloads at once, %d sent away", statuses[200].Load(), statuses[429].Load())
	}
	for i := range many { // they end, and give back their places
		if status, _, _ := get(t, fmt.Sprintf("%s/packages/p%d.whl", c.URL, i)); status != http.StatusOK {
			t.Fatalf("afterwards: %d", status)
		}
	}
}

func TestCrowd(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ConnState = (&crowd{connections: map[string]int{}}).watch
	server.Start()
	defer server.Close()
	answered := func(c net.Conn) bool {
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, err := c.Read(make([]byte, 1))
		return err == nil
	}
	var open []net.Conn
	for i := range connectionsEach + 1 {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if got := answered(c); got != (i < connectionsEach) {
			t.Fatalf("connection %d is answered: %v", i+1, got)
		}
		open = append(open, c)
	}
	open[0].Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if answered(c) {
			c.Close()
			return
		}
		c.Close()
		if time.Now().After(end) {
			t.Fatal("a connection that was closed still counts")
		}
	}
}

// What somebody else has put into the folder is nothing of the cache's.
func TestFilesOfOthers(t *testing.T) {
	u, dir := newUpstream(t), t.TempDir()
	others := filepath.Join(dir, "model.safetensors")
	if err := os.WriteFile(others, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	u.files["/packages/a.whl"], u.files["/packages/b.whl"] = make([]byte, 100<<10), make([]byte, 100<<10)
	c := newCache(t, u, dir, 300<<10)
	for _, path := range []string{"/packages/a.whl", "/packages/b.whl"} {
		if status, _, _ := get(t, c.URL+path); status != http.StatusOK {
			t.Errorf("%s: %d", path, status)
		}
	}
	if _, err := os.Stat(others); err != nil {
		t.Error(err)
	}
}
