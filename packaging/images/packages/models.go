package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// models answers as the hub of models does, at the same paths. Every question goes
// on to the hub, with the token of whoever asks, so that nobody gets here what the
// hub would not give them; large files alone, to which the hub leads with their
// SHA-256 whoever may have them, come from what is kept.
type models struct {
	*files
	hub    *url.URL
	hosts  []string // that files may be on besides the hub's
	client *http.Client

	questions, sendings *places // without and with a body
}

// Limits of what goes to the hub.
const (
	questionsAtOnce = 256
	questionsEach   = 64
	sendingsAtOnce  = 32
	sendingsEach    = 4
	small           = 1 << 20          // bytes of a question that counts as one without a body
	mostQuestion    = 8 << 10          // bytes of an address: the hub's lead on with addresses in addresses
	hubPatience     = 10 * time.Minute // for its answer to what was sent, which it may work on
)

func newModels(kept *store, hub string, hosts []string, through *http.Transport, log *slog.Logger) (*models, error) {
	u, err := addressOf(hub)
	if err != nil {
		return nil, fmt.Errorf("-hub should be an address such as https://huggingface.co: %w", err)
	}
	m := &models{
		hub: u, hosts: hosts,
		questions: newPlaces(questionsAtOnce, questionsEach), sendings: newPlaces(sendingsAtOnce, sendingsEach),
	}
	asking := through.Clone()
	asking.ResponseHeaderTimeout = hubPatience
	m.client = &http.Client{Transport: asking, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	m.files = newFiles(kept, &http.Client{Transport: alone(through), CheckRedirect: keepTo(m.has)}, log)
	return m, nil
}

// has tells whether the hub has files there.
func (m *models) has(u *url.URL) bool {
	return u.Scheme == m.hub.Scheme && (u.Host == m.hub.Host || slices.ContainsFunc(m.hosts, func(host string) bool {
		return u.Host == host || strings.HasPrefix(host, ".") && strings.HasSuffix(u.Host, host)
	}))
}

func (m *models) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w = newSteady(w)
	if !badAddress(w, r, mostQuestion) {
		m.answer(w, r)
	}
}

// answer asks the hub, and passes its answer on; of a large file the content comes
// from what is kept.
func (m *models) answer(w http.ResponseWriter, r *http.Request) {
	u := *m.hub
	u.Path, u.RawPath, u.RawQuery = m.hub.Path+r.URL.Path, m.hub.EscapedPath()+r.URL.EscapedPath(), r.URL.RawQuery
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	places := m.questions
	if r.ContentLength < 0 || r.ContentLength > small {
		places = m.sendings
	}
	leave, err := places.take(ctx, hostOf(r.RemoteAddr))
	if err != nil {
		m.away(w, r, &u, err)
		return
	}
	defer leave()
	question, err := http.NewRequestWithContext(ctx, r.Method, u.String(), nil)
	if err != nil {
		http.Error(w, "That is no address.", http.StatusBadRequest)
		return
	}
	if hasBody(r) {
		question.Body, question.ContentLength = &steadyBody{ReadCloser: r.Body, control: http.NewResponseController(w)}, r.ContentLength
	}
	question.Header.Set("Accept-Encoding", "identity")
	for name, values := range r.Header {
		if slices.Contains(handedOn, name) || strings.HasPrefix(name, "X-Hf-") {
			question.Header[name] = values
		}
	}
	response, err := m.client.Do(question)
	if err != nil {
		m.away(w, r, &u, err)
		return
	}
	defer response.Body.Close()
	for name, values := range response.Header {
		if slices.Contains(passedOn, name) || strings.HasPrefix(name, "X-Hf-") || strings.HasPrefix(name, "X-Xet-") {
			w.Header()[name] = values
		}
	}
	m.leadHere(w.Header(), r, response)
	if want, ok := m.largeFile(r, response); ok {
		_ = response.Body.Close()
		leave()
		m.large(w, r, want)
		return
	}
	w.WriteHeader(response.StatusCode)
	if _, err := io.Copy(told(w, response), awake(response.Body, cancel)); err != nil {
		// Too late to say so, but not to keep it from looking whole.
		panic(http.ErrAbortHandler)
	}
}

// handedOn are the clients' headers that the hub reads, passedOn the hub's that
// its clients read, beside those that are the hub's alone.
var handedOn = []string{
	"Accept", "Accept-Encoding", "Authorization", "Content-Encoding", "Content-Type", "If-None-Match", "If-Range", "Range", "User-Agent",
}

var passedOn = []string{
	"Accept-Ranges", "Allow", "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Length", "Content-Range", "Content-Type", "Etag", "Last-Modified",
	"Ratelimit", "Ratelimit-Policy", "Retry-After", "Www-Authenticate",
	"X-Error-Code", "X-Error-Message", "X-Linked-Etag", "X-Linked-Size", "X-Repo-Commit", "X-Request-Id", "X-Total-Count",
}

// told writes each piece of news at once where they come one by one.
func told(w http.ResponseWriter, response *http.Response) io.Writer {
	if !strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
		return w
	}
	return flushing{w, http.NewResponseController(w)}
}

type flushing struct {
	io.Writer
	control *http.ResponseController
}

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.Writer.Write(p)
	return n, errors.Join(err, f.control.Flush())
}

// leadHere passes on where the hub sends a client to, or says that more is, with
// addresses of the hub made into ones of the cache.
func (m *models) leadHere(header http.Header, r *http.Request, response *http.Response) {
	if to, err := response.Location(); err == nil && response.Header.Get("Location") != "" {
		lead := to.String()
		if path, own := strings.CutPrefix(to.EscapedPath(), m.hub.EscapedPath()); own && to.Host == m.hub.Host && strings.HasPrefix(path, "/") {
			lead = path
			if to.RawQuery != "" {
				lead += "?" + to.RawQuery
			}
		}
		header.Set("Location", lead)
	}
	for _, link := range response.Header.Values("Link") {
		// Clients take it as it is, so it has to be a whole one.
		header.Add("Link", strings.ReplaceAll(link, "<"+m.hub.String()+"/", "<http://"+r.Host+"/"))
	}
}

var sha256Digits = regexp.MustCompile(`^[0-9a-f]{64}$`)

// largeFile is a file that the hub has elsewhere; false where the response is
// something else.
func (m *models) largeFile(r *http.Request, response *http.Response) (wanted, bool) {
	sum := strings.Trim(strings.TrimPrefix(response.Header.Get("X-Linked-Etag"), "W/"), `"`)
	if r.Method != http.MethodGet && r.Method != http.MethodHead || !isRedirect(response.StatusCode) || !sha256Digits.MatchString(sum) {
		return wanted{}, false
	}
	// Of a repository that has another name now, and below /api, the hub is asked once
	// more, with the token; a bucket's files have other sums.
	to, err := response.Location()
	if err != nil || !m.has(to) || strings.Contains(to.Path, "/resolve/") || strings.HasPrefix(to.Path, m.hub.Path+"/api/") || strings.HasPrefix(r.URL.Path, "/buckets/") {
		return wanted{}, false
	}
	return wanted{key: "sha256:" + sum, from: to, sum: sum}, true
}

// large answers with a file that the hub has just let the client have.
func (m *models) large(w http.ResponseWriter, r *http.Request, want wanted) {
	header := w.Header()
	for name := range header {
		// The hub's newer way of moving files, Xet, would lead past the cache.
		if slices.Contains([]string{"Location", "Link", "Content-Encoding", "Content-Length", "Content-Type"}, name) || strings.HasPrefix(name, "X-Xet-") {
			header.Del(name)
		}
	}
	header.Set("ETag", want.etag())
	if r.Method == http.MethodHead {
		if size := header.Get("X-Linked-Size"); size != "" {
			header.Set("Content-Length", size)
		}
		header.Set("Accept-Ranges", "bytes")
		header.Set("Content-Type", "application/octet-stream")
		w.WriteHeader(http.StatusOK)
		return
	}
	// Whoever wants a part would wait here for all that comes before it, or have all of it fetched.
	switch part := r.Header.Get("Range"); {
	case part == "" || part == "bytes=0-" || m.reached(want.key, startOf(part)):
		m.file(w, r, want)
	case m.isWrong(want.key):
		http.Error(w, "The lab's cache has just got something else for this than its SHA-256 says; get it anew.", http.StatusBadGateway)
	default:
		m.through(w, r, want)
	}
}

// startOf is the first byte that a Range asks for, -1 where it is not so simple.
func startOf(ranged string) int64 {
	first, _, _ := strings.Cut(strings.TrimPrefix(ranged, "bytes="), "-")
	at, err := strconv.ParseInt(first, 10, 64)
	if err != nil || at < 0 {
		return -1
	}
	return at
}
