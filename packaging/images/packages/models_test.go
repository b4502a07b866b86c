package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// hub is Hugging Face's, as its clients know it: repositories with small files of
// its own and large ones on another machine.
type hub struct {
	*httptest.Server
	elsewhere *httptest.Server
	content   []byte // of the large file
	sent      []byte // what comes instead of it, nil for itself

	mu      sync.Mutex
	asked   map[string]int // by method and path
	fetched int            // from the other machine
	ranges  []string       // that it was asked for
	cuts    int            // how many times it ends in the middle
	slow    chan struct{}  // the other machine waits for it after a half
	tokens  []string       // that the other machine was shown
	commits []string       // tokens and bodies
}

const token = "Bearer hf_mine"

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{asked: map[string]int{}, content: []byte(strings.Repeat("0123456789abcdef", 1<<14))}
	h.Server = httptest.NewServer(http.HandlerFunc(h.answer))
	h.elsewhere = httptest.NewServer(http.HandlerFunc(h.file))
	t.Cleanup(h.Close)
	t.Cleanup(h.elsewhere.Close)
	return h
}

func (h *hub) sum() string { return fmt.Sprintf("%x", sha256.Sum256(h.content)) }

func (h *hub) answer(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked[r.Method+" "+r.URL.Path]++
	w.Header().Set("X-Repo-Commit", strings.Repeat("c", 40))
	w.Header().Set("Set-Cookie", "who=somebody")
	switch r.URL.Path {
	case "/lab/open/resolve/main/config.json":
		w.Header().Set("ETag", `"small"`)
		_, _ = io.WriteString(w, `{"layers": 2}`)
	case "/lab/old/resolve/main/config.json":
		w.Header().Set("Location", "/lab/open/resolve/main/config.json")
		w.WriteHeader(http.StatusTemporaryRedirect)
	case "/lab/older/resolve/main/config.json":
		w.Header().Set("Location", h.URL+"/lab/open/resolve/main/config%20x.json?download=true")
		w.WriteHeader(http.StatusTemporaryRedirect)
	case "/lab/gated/resolve/main/model.safetensors":
		if r.Header.Get("Authorization") != token {
			w.Header().Set("X-Error-Code", "GatedRepo")
			http.Error(w, "Access is restricted.", http.StatusUnauthorized)
			return
		}
		h.large(w, h.elsewhere.URL)
	case "/lab/open/resolve/main/model.safetensors":
		h.large(w, h.elsewhere.URL)
	case "/buckets/lab/open/resolve/model.safetensors":
		h.large(w, h.elsewhere.URL)
	case "/lab/moved/resolve/main/model.safetensors":
		w.Header().Set("X-Linked-Etag", `"`+h.sum()+`"`)
		w.Header().Set("Location", "/api/resolve-cache/models/lab/moved/model.safetensors")
		w.WriteHeader(http.StatusTemporaryRedirect)
	case "/lab/open/resolve/refs/pr/1/a b#c.json":
		_, _ = io.WriteString(w, r.URL.EscapedPath())
	case "/api/models/lab/open/events":
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		h.mu.Unlock()
		<-r.Context().Done()
		h.mu.Lock()
	case "/lab/odd/resolve/main/model.safetensors":
		h.large(w, "http://elsewhere.example")
	case "/api/models/lab/open/tree/main":
		w.Header().Set("Link", "<"+h.URL+`/api/models/lab/open/tree/main?cursor=2>; rel="next"`)
		_, _ = io.WriteString(w, "[]")
	case "/api/models/lab/open/commit/main":
		body, _ := io.ReadAll(r.Body)
		h.commits = append(h.commits, r.Header.Get("Authorization")+" "+string(body))
		w.WriteHeader(http.StatusCreated)
	default:
		http.NotFound(w, r)
	}
}

func (h *hub) large(w http.ResponseWriter, on string) {
	w.Header().Set("X-Linked-Etag", `"`+h.sum()+`"`)
	w.Header().Set("X-Linked-Size", strconv.Itoa(len(h.content)))
	w.Header().Set("X-Xet-Hash", strings.Repeat("e", 64))
	w.Header().Set("Link", "<"+h.URL+`/api/models/lab/open/xet-read-token/c>; rel="xet-auth"`)
	w.Header().Set("Location", on+"/blob?Signature=secret")
	w.WriteHeader(http.StatusFound)
	_, _ = io.WriteString(w, "Found. Redirecting")
}

func (h *hub) file(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.fetched++
	if asked := r.Header.Get("Range"); asked != "" {
		h.ranges = append(h.ranges, asked)
	}
	slow, cut := h.slow, h.cuts > 0
	if h.cuts--; cut {
		defer panic(http.ErrAbortHandler)
	}
	h.tokens = append(h.tokens, r.Header.Get("Authorization"))
	content := h.content
	if h.sent != nil {
		content = h.sent
	}
	h.mu.Unlock()
	if r.URL.Query().Get("Signature") != "secret" {
		http.Error(w, "", http.StatusForbidden)
		return
	}
	if cut {
		at := startOf(r.Header.Get("Range"))
		if w.Header().Set("Content-Length", strconv.Itoa(len(content)-int(max(at, 0)))); at > 0 {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", at, len(content)-1, len(content)))
			w.WriteHeader(http.StatusPartialContent)
		}
		_, _ = w.Write(content[max(at, 0):][:5000])
		w.(http.Flusher).Flush()
		return
	}
	if slow != nil {
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = w.Write(content[:len(content)/2])
		w.(http.Flusher).Flush()
		<-slow
		_, _ = w.Write(content[len(content)/2:])
		return
	}
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(content)))
}

func (h *hub) times(what string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked[what]
}

func (h *hub) fetches() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fetched
}

// heard is what a log was told.
type heard struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *heard) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *heard) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// newModelCache is a cache of h of so many bytes, and what it logs.
func newModelCache(t *testing.T, h *hub, most int64) (*httptest.Server, *heard) {
	t.Helper()
	kept, said := newStore(t, t.TempDir(), most), &heard{}
	m, err := newModels(kept, h.URL+"/", []string{strings.TrimPrefix(h.elsewhere.URL, "http://")}, transport(), slog.New(slog.NewTextHandler(said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)
	return server, said
}

// ask is send where the answer may break off.
func ask(t *testing.T, method, address, body string, header ...string) (*http.Response, string) {
	t.Helper()
	response, got, _ := send(t, method, address, body, header...)
	return response, got
}

const model = "/lab/open/resolve/main/model.safetensors"

// Questions share a connection to the hub, and each file has its own.
func TestModelFilesShareNoConnection(t *testing.T) {
	h := &hub{asked: map[string]int{}, content: []byte("weights")}
	var questions, files atomic.Int32
	server := func(answer http.HandlerFunc, version *atomic.Int32) *httptest.Server {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			version.Store(int32(r.ProtoMajor))
			answer(w, r)
		}))
		s.EnableHTTP2 = true
		s.StartTLS()
		t.Cleanup(s.Close)
		return s
	}
	h.Server, h.elsewhere = server(h.answer, &questions), server(h.file, &files)
	kept := newStore(t, t.TempDir(), 1<<20)
	m, err := newModels(kept, h.URL, []string{strings.TrimPrefix(h.elsewhere.URL, "https://")}, trusting(h.Server), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	cache := httptest.NewServer(m)
	defer cache.Close()
	if response, got := ask(t, http.MethodGet, cache.URL+model, ""); response.StatusCode != http.StatusOK || got != string(h.content) {
		t.Fatalf("%s, %q", response.Status, got)
	}
	if questions.Load() != 2 || files.Load() != 1 {
		t.Errorf("questions go over HTTP/%d and files over HTTP/%d", questions.Load(), files.Load())
	}
}

// A large file comes once, and the hub is asked every time.
func TestModelIsFetchedOnce(t *testing.T) {
	h := newHub(t)
	cache, said := newModelCache(t, h, 1<<30)
	head, _ := ask(t, http.MethodHead, cache.URL+model, "")
	for name, want := range map[string]string{
		"Content-Length": strconv.Itoa(len(h.content)), "X-Linked-Size": strconv.Itoa(len(h.content)), "X-Linked-Etag": `"` + h.sum() + `"`,
		"Etag": `"` + h.sum() + `"`, "X-Repo-Commit": strings.Repeat("c", 40), "Location": "", "X-Xet-Hash": "", "Link": "", "Set-Cookie": "",
	} {
		if got := head.Header.Get(name); head.StatusCode != http.StatusOK || got != want {
			t.Errorf("HEAD gives %s with %s %q, not %q", head.Status, name, got, want)
		}
	}
	if h.fetches() != 0 {
		t.Error("a HEAD has fetched the file")
	}
	for i := range 3 {
		response, got := ask(t, http.MethodGet, cache.URL+model, "")
		if response.StatusCode != http.StatusOK || got != string(h.content) || response.Header.Get("Etag") != `"`+h.sum()+`"` || response.Header.Get("Location") != "" {
			t.Fatalf("GET %d gives %s, %d bytes, %v", i, response.Status, len(got), response.Header)
		}
		for end := time.Now().Add(time.Minute); i == 0 && !strings.Contains(said.String(), "msg=kept"); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("it is not kept")
			}
		}
	}
	if fetched, asked := h.fetches(), h.times("GET "+model); fetched != 1 || asked != 3 {
		t.Errorf("the file was fetched %d times, and the hub asked %d times", fetched, asked)
	}
	// A part of it, as whoever goes on asks for.
	response, got := ask(t, http.MethodGet, cache.URL+model, "", "Range", "bytes=262100-")
	if response.StatusCode != http.StatusPartialContent || got != string(h.content[262100:]) || h.fetches() != 1 {
		t.Errorf("from its middle: %s, %d bytes, fetched %d times", response.Status, len(got), h.fetches())
	}
	if strings.Contains(said.String(), "secret") {
		t.Errorf("what lets somebody in is in the log: %s", said)
	}
}

// Whoever goes on in the middle of what is not kept gets that from the hub.
func TestModelGoneOnWith(t *testing.T) {
	h := newHub(t)
	cache, _ := newModelCache(t, h, 1<<30)
	response, got := ask(t, http.MethodGet, cache.URL+model, "", "Range", "bytes=1000-")
	if response.StatusCode != http.StatusPartialContent || got != string(h.content[1000:]) {
		t.Errorf("%s, %d bytes", response.Status, len(got))
	}
	if ranges := h.ranges; len(ranges) != 1 || ranges[0] != "bytes=1000-" {
		t.Errorf("the hub was asked for %q", ranges)
	}
	// While it comes, what is here already comes from here.
	h.slow = make(chan struct{})
	release := sync.OnceFunc(func() { close(h.slow) })
	defer release()
	first := begin(t, cache.URL+model, "")
	if _, err := io.ReadFull(first.Body, make([]byte, 2000)); err != nil {
		t.Fatal(err)
	}
	later := begin(t, cache.URL+model, "bytes=1000-")
	if _, err := io.ReadFull(later.Body, make([]byte, 1)); err != nil || later.StatusCode != http.StatusPartialContent {
		t.Fatal(later.Status, err)
	}
	release()
	rest, err := io.ReadAll(later.Body)
	if err != nil || string(rest) != string(h.content[1001:]) || h.fetches() != 2 {
		t.Errorf("while it comes: %d bytes, %v, fetched %d times", len(rest), err, h.fetches())
	}
}

// begin asks for a file, whose content is still to be read.
func begin(t *testing.T, address, part string) *http.Response {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	if part != "" {
		r.Header.Set("Range", part)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

// A part of a file, as readers of its first bytes want it, does not have all of it fetched.
func TestModelPart(t *testing.T) {
	h := newHub(t)
	cache, said := newModelCache(t, h, 1<<30)
	for _, part := range []string{"bytes=0-99", "bytes=-100", "bytes=5-6"} {
		response, got := ask(t, http.MethodGet, cache.URL+model, "", "Range", part)
		if response.StatusCode != http.StatusPartialContent || len(got) > 100 || response.Header.Get("Etag") != `"`+h.sum()+`"` {
			t.Errorf("%s: %s, %d bytes", part, response.Status, len(got))
		}
	}
	if strings.Contains(said.String(), "kept") || fmt.Sprint(h.ranges) != "[bytes=0-99 bytes=-100 bytes=5-6]" {
		t.Errorf("the hub was asked for %q: %s", h.ranges, said)
	}
}

// A download that is cut off goes on where it was, and who reads it does not notice.
func TestModelCutOff(t *testing.T) {
	h := newHub(t)
	h.cuts = 2
	cache, said := newModelCache(t, h, 1<<30)
	if _, got := ask(t, http.MethodGet, cache.URL+model, ""); got != string(h.content) {
		t.Errorf("%d bytes came", len(got))
	}
	for end := time.Now().Add(time.Minute); !strings.Contains(said.String(), "msg=kept"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it is not kept: %s", said)
		}
	}
	if h.fetches() != 3 {
		t.Errorf("it was fetched %d times", h.fetches())
	}
}

// Below a path a hub leads on below it.
func TestModelsBelowAPath(t *testing.T) {
	below := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", map[string]string{"/hub/a": "/hub/b?c=d", "/hub/b": "/hubs/b", "/hub/c": "/"}[r.URL.Path])
		w.WriteHeader(http.StatusFound)
	}))
	defer below.Close()
	kept := newStore(t, t.TempDir(), 1<<30)
	m, err := newModels(kept, below.URL+"/hub/", nil, transport(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	cache := httptest.NewServer(m)
	defer cache.Close()
	for from, want := range map[string]string{"/a": "/b?c=d", "/b": below.URL + "/hubs/b", "/c": below.URL + "/"} {
		if response, _ := ask(t, http.MethodGet, cache.URL+from, ""); response.Header.Get("Location") != want {
			t.Errorf("%s leads to %q", from, response.Header.Get("Location"))
		}
	}
}

// News come one by one.
func TestModelNews(t *testing.T) {
	h := newHub(t)
	cache, _ := newModelCache(t, h, 1<<30)
	response, err := http.Get(cache.URL + "/api/models/lab/open/events")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	first := make([]byte, 9)
	if _, err := io.ReadFull(response.Body, first); err != nil || string(first) != "data: 1\n\n" {
		t.Errorf("%q, %v", first, err)
	}
}

// What is kept of a restricted repository is nobody's whom the hub does not let in.
func TestModelOfOthers(t *testing.T) {
	h := newHub(t)
	cache, _ := newModelCache(t, h, 1<<30)
	const gated = "/lab/gated/resolve/main/model.safetensors"
	if response, got := ask(t, http.MethodGet, cache.URL+gated, "", "Authorization", token); response.StatusCode != http.StatusOK || got != string(h.content) {
		t.Fatalf("with a token: %s, %d bytes", response.Status, len(got))
	}
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		for _, shown := range []string{"", "Bearer hf_yours"} {
			response, got := ask(t, method, cache.URL+gated, "", "Authorization", shown)
			if response.StatusCode != http.StatusUnauthorized || response.Header.Get("X-Error-Code") != "GatedRepo" || len(got) > 100 {
				t.Errorf("%s with the token %q: %s, %q", method, shown, response.Status, got)
			}
		}
	}
	for _, path := range []string{"/sha256:" + h.sum(), "/blob", "/blob?Signature=secret", "/-/health"} {
		if response, got := ask(t, http.MethodGet, cache.URL+path, ""); response.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s, %d bytes", path, response.Status, len(got))
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.tokens) != 1 || h.tokens[0] != "" {
		t.Errorf("the machine with the files was shown %q", h.tokens)
	}
}

// What is not what its SHA-256 says is not kept.
func TestModelIsAnother(t *testing.T) {
	h := newHub(t)
	h.sent = []byte(strings.Repeat("x", len(h.content)))
	cache, said := newModelCache(t, h, 1<<30)
	if _, got := ask(t, http.MethodGet, cache.URL+model, ""); len(got) == len(h.content) {
		t.Error("it looks whole")
	}
	if response, got := ask(t, http.MethodGet, cache.URL+model, "", "Range", fmt.Sprintf("bytes=%d-", len(h.content)-1)); response.StatusCode != http.StatusBadGateway {
		t.Errorf("its last byte: %s, %q", response.Status, got)
	}
	for end := time.Now().Add(time.Minute); !strings.Contains(said.String(), "not what its SHA-256 says"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("nobody has noticed: %s", said)
		}
	}
	h.mu.Lock()
	h.sent = nil
	h.mu.Unlock()
	if _, got := ask(t, http.MethodGet, cache.URL+model, ""); got != string(h.content) || h.fetches() != 2 {
		t.Errorf("afterwards %d bytes come, fetched %d times", len(got), h.fetches())
	}
}

// Everything else is the hub's to say.
func TestModelsPassOn(t *testing.T) {
	h := newHub(t)
	cache, _ := newModelCache(t, h, 1<<30)
	if response, got := ask(t, http.MethodGet, cache.URL+"/lab/open/resolve/main/config.json", ""); got != `{"layers": 2}` || response.Header.Get("Etag") != `"small"` || response.Header.Get("Set-Cookie") != "" {
		t.Errorf("a small file: %s %q %v", response.Status, got, response.Header)
	}
	for from, want := range map[string]string{
		"/lab/old/resolve/main/config.json":           "/lab/open/resolve/main/config.json",
		"/lab/older/resolve/main/config.json":         "/lab/open/resolve/main/config%20x.json?download=true",
		"/lab/odd/resolve/main/model.safetensors":     "http://elsewhere.example/blob?Signature=secret",
		"/lab/moved/resolve/main/model.safetensors":   "/api/resolve-cache/models/lab/moved/model.safetensors",
		"/buckets/lab/open/resolve/model.safetensors": h.elsewhere.URL + "/blob?Signature=secret",
		"/lab/none/resolve/main/model.safetensors":    "",
	} {
		if response, _ := ask(t, http.MethodGet, cache.URL+from, ""); response.Header.Get("Location") != want || (want == "") != (response.StatusCode == http.StatusNotFound) {
			t.Errorf("%s: %s to %q, not %q", from, response.Status, response.Header.Get("Location"), want)
		}
	}
	if response, _ := ask(t, http.MethodGet, cache.URL+"/api/models/lab/open/tree/main", ""); response.Header.Get("Link") != "<"+cache.URL+`/api/models/lab/open/tree/main?cursor=2>; rel="next"` {
		t.Errorf("more is at %q", response.Header.Get("Link"))
	}
	const escaped = "/lab/open/resolve/refs%2Fpr%2F1/a%20b%23c.json"
	if _, got := ask(t, http.MethodGet, cache.URL+escaped, ""); got != escaped {
		t.Errorf("the hub was asked for %s", got)
	}
	response, _ := ask(t, http.MethodPost, cache.URL+"/api/models/lab/open/commit/main", "a file", "Authorization", token)
	if response.StatusCode != http.StatusCreated || len(h.commits) != 1 || h.commits[0] != token+" a file" {
		t.Errorf("a commit: %s, the hub read %q", response.Status, h.commits)
	}
}

// What is no address does not reach the hub.
func TestModelsRefuse(t *testing.T) {
	h := newHub(t)
	cache, _ := newModelCache(t, h, 1<<30)
	for path, want := range map[string]int{
		"/lab/%2e%2e/%2e%2e/x":          http.StatusBadRequest,
		"/lab/..;/x":                    http.StatusBadRequest,
		"/" + strings.Repeat("x", 9000): http.StatusRequestURITooLong,
	} {
		if response, _ := ask(t, http.MethodGet, cache.URL+path, ""); response.StatusCode != want {
			t.Errorf("%.30s: %s", path, response.Status)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.asked) != 0 {
		t.Errorf("the hub was asked: %v", h.asked)
	}
}

// The whole file goes past a cache that has no room for it, and one that keeps nothing.
func TestModelsWithoutRoom(t *testing.T) {
	for _, most := range []int64{0, 300 << 10} {
		h := newHub(t)
		cache, said := newModelCache(t, h, most)
		for range 2 {
			if response, got := ask(t, http.MethodGet, cache.URL+model, ""); response.StatusCode != http.StatusOK || got != string(h.content) || response.Header.Get("X-Repo-Commit") == "" {
				t.Errorf("with %d bytes of room: %s, %d bytes", most, response.Status, len(got))
			}
		}
		if h.fetches() < 2 || strings.Contains(said.String(), "msg=kept") {
			t.Errorf("with %d bytes of room it was fetched %d times: %s", most, h.fetches(), said)
		}
	}
}
