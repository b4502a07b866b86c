package notebooks

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// routesPath is where the REST API of configurable-http-proxy lives below its mount point.
const routesPath = "/api/routes"

const maxRouteBody = 64 << 10 // bytes

// isoMillis is the form in which JavaScript, and so the hub, writes a time.
const isoMillis = "2006-01-02T15:04:05.000Z07:00"

// route is one entry of the table. Its data are the hub's own and given back as they came.
type route struct {
	data   map[string]json.RawMessage // without last_activity
	server podKey                     // zero for a route that is no server
	*traffic
}

// traffic is what went through a route. It stays when the hub sends the route again.
type traffic struct {
	last atomic.Int64 // unix nanoseconds
	in   atomic.Int64 // bytes towards the server
	out  atomic.Int64 // bytes towards the browser
}

func (t *traffic) touch() { t.last.Store(time.Now().UnixNano()) }

func (t *traffic) lastActivity() time.Time { return time.Unix(0, t.last.Load()) }

func (r *route) MarshalJSON() ([]byte, error) {
	m := make(map[string]any, len(r.data)+1)
	for k, v := range r.data {
		m[k] = v
	}
	m["last_activity"] = r.lastActivity().UTC().Format(isoMillis)
	return json.Marshal(m)
}

// routeTable is what the hub has told its proxy. Readers never wait.
type routeTable struct {
	file    string // where the table is kept, "" for nowhere
	boot    string // identity of the machine's current run
	changes chan struct{}

	mu     sync.Mutex // writers
	tables atomic.Pointer[routeIndex]
}

type routeIndex struct {
	paths   map[string]*route // keys unescaped, without a trailing slash
	servers map[podKey]*route
}

func newRouteTable(file, boot string) *routeTable {
	t := &routeTable{file: file, boot: boot, changes: make(chan struct{}, 1)}
	t.tables.Store(&routeIndex{paths: map[string]*route{}, servers: map[podKey]*route{}})
	return t
}

func (t *routeTable) get(path string) (*route, bool) {
	r, ok := t.tables.Load().paths[path]
	return r, ok
}

func (t *routeTable) server(handle, name string) (*route, bool) {
	r, ok := t.tables.Load().servers[podKey{handle, name}]
	return r, ok
}

// put adds or replaces a route. What was counted for it stays.
func (t *routeTable) put(path string, data map[string]json.RawMessage) error {
	delete(data, "last_activity")
	return t.change(func(paths map[string]*route) {
		r := &route{data: data, server: serverOf(path), traffic: &traffic{}}
		if old := paths[path]; old != nil {
			r.traffic = old.traffic
		}
		r.touch()
		paths[path] = r
	})
}

// remove reports whether there was such a route.
func (t *routeTable) remove(path string) (bool, error) {
	if _, ok := t.get(path); !ok {
		return false, nil
	}
	return true, t.change(func(paths map[string]*route) { delete(paths, path) })
}

func (t *routeTable) change(edit func(map[string]*route)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	paths := maps.Clone(t.tables.Load().paths)
	edit(paths)
	t.tables.Store(index(paths))
	select {
	case t.changes <- struct{}{}:
	default:
	}
	return t.save(paths)
}

func index(paths map[string]*route) *routeIndex {
	idx := &routeIndex{paths: paths, servers: make(map[podKey]*route, len(paths))}
	for _, r := range paths {
		if r.server != (podKey{}) {
			idx.servers[r.server] = r
		}
	}
	return idx
}

// serverOf reads /user/<handle>/<server>; other paths are nobody's server.
func serverOf(path string) podKey {
	rest, ok := strings.CutPrefix(path, "/user/")
	if !ok {
		return podKey{}
	}
	handle, name, ok := strings.Cut(rest, "/")
	if !ok || !validName(name) {
		return podKey{}
	}
	return podKey{handle, name}
}

// keptRoutes is the table's file. Routes of an earlier boot are not taken up:
// no pod of theirs is left.
type keptRoutes struct {
	Boot   string                                `json:"boot"`
	Routes map[string]map[string]json.RawMessage `json:"routes"`
}

func (t *routeTable) save(paths map[string]*route) error {
	if t.file == "" {
		return nil
	}
	kept := keptRoutes{Boot: t.boot, Routes: make(map[string]map[string]json.RawMessage, len(paths))}
	for p, r := range paths {
		kept.Routes[p] = r.data
	}
	b, err := json.Marshal(kept)
	if err != nil {
		return fmt.Errorf("keep the routes: %w", err)
	}
	tmp := t.file + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("keep the routes: %w", err)
	}
	if err := os.Rename(tmp, t.file); err != nil {
		return fmt.Errorf("keep the routes: %w", err)
	}
	return nil
}

// load takes up what an earlier run kept; a file that cannot be used is no
// reason to stop, since the hub sends everything again.
func (t *routeTable) load() error {
	if t.file == "" {
		return nil
	}
	b, err := os.ReadFile(filepath.Clean(t.file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var kept keptRoutes
	if err == nil {
		err = json.Unmarshal(b, &kept)
	}
	if err != nil {
		return fmt.Errorf("read the kept routes: %w", err)
	}
	if kept.Boot != t.boot {
		return nil
	}
	paths := make(map[string]*route, len(kept.Routes))
	for p, data := range kept.Routes {
		r := &route{data: data, server: serverOf(p), traffic: &traffic{}}
		r.touch()
		paths[p] = r
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tables.Store(index(paths))
	return nil
}

// routesAPI is the REST API by which the hub runs its proxy.
type routesAPI struct {
	table *routeTable
	token [sha256.Size]byte
	fault func(error)
}

var tokenPattern = regexp.MustCompile(`token\s+(\S+)`)

func (a *routesAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A connection that the hub keeps for later leads nowhere once this machine
	// has another address, and the hub would wait for minutes on it.
	w.Header().Set("Connection", "close")
	if !a.authorized(r) {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	path, ok := routeKey(r.URL)
	if !ok {
		plain(w, http.StatusNotFound, "Not Found")
		return
	}
	switch r.Method {
	case http.MethodGet:
		a.get(w, r, path)
	case http.MethodPost:
		a.post(w, r, path)
	case http.MethodDelete:
		a.delete(w, path)
	default:
		plain(w, http.StatusMethodNotAllowed, "Method not supported")
	}
}

func (a *routesAPI) authorized(r *http.Request) bool {
	m := tokenPattern.FindStringSubmatch(r.Header.Get("Authorization"))
	if m == nil {
		return false
	}
	given := sha256.Sum256([]byte(m[1]))
	return subtle.ConstantTimeCompare(given[:], a.token[:]) == 1
}

// routeKey is the unescaped path after /api/routes, "/" for the whole table,
// in the form in which routes are kept: with a leading, without a trailing slash.
func routeKey(u *url.URL) (string, bool) {
	escaped := u.EscapedPath()
	_, rest, ok := strings.Cut(escaped, routesPath)
	if !ok || rest != "" && rest[0] != '/' {
		return "", false
	}
	rest, err := url.PathUnescape(rest)
	if err != nil {
		return "", false
	}
	if len(rest) > 1 {
		rest = strings.TrimSuffix(rest, "/")
	}
	if rest == "" {
		rest = "/"
	}
	return rest, true
}

func (a *routesAPI) get(w http.ResponseWriter, r *http.Request, path string) {
	if path != "/" {
		found, ok := a.table.get(path)
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		a.json(w, found)
		return
	}
	since, bad := inactiveSince(r.URL.Query())
	if bad != "" {
		plain(w, http.StatusBadRequest, fmt.Sprintf("Invalid datestamp '%s' must be ISO8601.", bad))
		return
	}
	all := a.table.tables.Load().paths
	if since.IsZero() {
		a.json(w, all)
		return
	}
	idle := map[string]*route{}
	for p, r := range all {
		if r.lastActivity().Before(since) {
			idle[p] = r
		}
	}
	a.json(w, idle)
}

// inactiveSince reads the filter by time in both spellings; bad is a value that is no time.
func inactiveSince(q url.Values) (since time.Time, bad string) {
	value := q.Get("inactiveSince")
	if value == "" {
		value = q.Get("inactive_since")
	}
	if value == "" {
		return time.Time{}, ""
	}
	// "+" of an offset arrives as a space unless the client escaped it.
	value = strings.Replace(value, " ", "+", 1)
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04", time.DateOnly} {
		if t, err := time.Parse(layout, value); err == nil {
			return t, ""
		}
	}
	return time.Time{}, value
}

func (a *routesAPI) post(w http.ResponseWriter, r *http.Request, path string) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRouteBody))
	if err != nil {
		plain(w, http.StatusBadRequest, "Body could not be read")
		return
	}
	data := map[string]json.RawMessage{}
	if !json.Valid(body) {
		plain(w, http.StatusBadRequest, "Body not valid JSON")
		return
	}
	var target string
	// Valid JSON that is no object has no target either.
	_ = json.Unmarshal(body, &data)
	if raw := bytes.TrimSpace(data["target"]); len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &target) != nil {
		plain(w, http.StatusBadRequest, "Must specify 'target' as string")
		return
	}
	if err := a.table.put(path, data); err != nil {
		a.fault(err)
	}
	w.WriteHeader(http.StatusCreated)
}

func (a *routesAPI) delete(w http.ResponseWriter, path string) {
	found, err := a.table.remove(path)
	if err != nil {
		a.fault(err)
	}
	if !found {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (a *routesAPI) json(w http.ResponseWriter, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		a.fault(err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b)
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}
