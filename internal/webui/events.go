package webui

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/a-h/templ"

	"github.com/gpulab/gpulab/internal/users"
)

const (
	// heartbeat is how often a silent stream says that it is alive, and checks
	// that its session still is.
	heartbeat = 15 * time.Second
	// streamsPerSession bounds what one browser can keep open.
	streamsPerSession = 16
	// writeTimeout ends a stream whose reader takes nothing any more.
	writeTimeout = 20 * time.Second
	// settle gathers the changes of several machines into one answer.
	settle = 100 * time.Millisecond
)

// A part is one element of a page that changes by itself. Its component's root
// has the part's ID as element ID.
type part struct {
	id   string
	body templ.Component
	// shape, if not empty, is what decides whether the part is sent again,
	// instead of its content: a frame around parts that are sent themselves.
	shape string
}

// parts renders the live parts of a page as they are now. A view that reads
// slow data keeps it between calls and reads it again when fresh is true.
type parts func(ctx context.Context, fresh bool) ([]part, error)

// events streams a page's live parts: every part at first, then each part
// whose content changed, as a partial that htmx swaps in by element ID.
func (s *Server) events(w http.ResponseWriter, r *http.Request, v visitor) error {
	view, err := s.liveView(r, v)
	if err != nil {
		return err
	}
	ctx, leave, ok := s.streams.join(r.Context(), v)
	if !ok {
		return &problem{status: http.StatusTooManyRequests, title: "Too many open pages",
			text: "Close some tabs of this lab; this page then goes on by itself."}
	}
	defer leave()

	header := w.Header()
	header.Set("Content-Type", "text/event-stream; charset=utf-8")
	header.Set("X-Accel-Buffering", "no")
	stream := &eventStream{w: w, control: http.NewResponseController(w), sent: map[string]uint64{}}
	// The server's limit for a request to arrive would end the stream with it.
	_ = stream.control.SetReadDeadline(time.Time{})
	w.WriteHeader(http.StatusOK)

	changed := s.cfg.Notebooks.Subscribe(ctx)
	readings := s.cfg.Fleet.Subscribe(ctx)
	second := time.NewTicker(time.Second)
	defer second.Stop()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()

	fresh := true
	for {
		current, err := view(ctx, fresh)
		if err == nil {
			err = stream.send(ctx, current)
		}
		if err != nil {
			// The answer has begun; the browser connects again and then sees
			// what is wrong.
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case _, open := <-changed:
			fresh = true
			if !open {
				changed = nil
			}
			pause(ctx, settle)
		case _, open := <-readings:
			fresh = false
			if !open {
				readings = nil
			}
			pause(ctx, settle)
		case <-second.C:
			fresh = false
		case <-beat.C:
			fresh = true
			if !s.visitor(r).signedIn || stream.beat() != nil {
				return nil
			}
		}
	}
}

// liveView finds the parts of the view that a stream asks for.
func (s *Server) liveView(r *http.Request, v visitor) (parts, error) {
	p := page{CSRF: v.session.CSRF, Visitor: v}
	query := r.URL.Query()
	switch query.Get("view") {
	case "home":
		return s.homeParts(r, v, p), nil
	case "gpus":
		return s.gpusParts(v), nil
	case "gpu":
		return s.gpuParts(p, v, query.Get("id")), nil
	case "status":
		if !v.may(users.ActionManageLab) {
			return nil, errNotAllowed
		}
		return s.statusParts(), nil
	case "launch":
		if _, err := s.launchFor(r.Context(), v, query.Get("id")); err != nil {
			return nil, err
		}
		return s.launchParts(r, v, p, query.Get("id")), nil
	}
	return nil, errNoPage
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// eventStream writes parts to one browser and remembers what it has.
type eventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	sent    map[string]uint64 // part → hash of what was sent
	buffer  bytes.Buffer
}

var hashSeed = maphash.MakeSeed()

// send writes the parts that changed, one message each, in order.
func (e *eventStream) send(ctx context.Context, current []part) error {
	wrote := false
	for _, p := range current {
		e.buffer.Reset()
		if err := p.body.Render(ctx, &e.buffer); err != nil {
			return fmt.Errorf("render %s: %w", p.id, err)
		}
		content := e.buffer.Bytes()
		if p.shape != "" {
			content = []byte(p.shape)
		}
		hash := maphash.Bytes(hashSeed, content)
		if old, ok := e.sent[p.id]; ok && old == hash {
			continue
		}
		e.sent[p.id] = hash
		if err := e.write(partial(p.id, e.buffer.String())); err != nil {
			return err
		}
		wrote = true
	}
	if !wrote {
		return nil
	}
	return e.control.Flush()
}

// beat writes a named event, which htmx does not swap but the page hears.
func (e *eventStream) beat() error {
	if err := e.write("event: beat\ndata:\n\n"); err != nil {
		return err
	}
	return e.control.Flush()
}

func (e *eventStream) write(text string) error {
	// Not every writer has deadlines (tests); a stuck one then ends with its
	// connection.
	_ = e.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := e.w.Write([]byte(text))
	return err
}

// partial is one server-sent event that replaces the element with this ID.
func partial(id, html string) string {
	var text strings.Builder
	for line := range strings.Lines(`<hx-partial hx-target="#` + id + `" hx-swap="outerMorph">` + html + `</hx-partial>`) {
		text.WriteString("data: ")
		text.WriteString(strings.TrimRight(line, "\r\n"))
		text.WriteByte('\n')
	}
	text.WriteByte('\n')
	return text.String()
}

// streams are the open live connections, so that they end with their session.
type streams struct {
	mu     sync.Mutex
	closed bool
	next   int
	open   map[int]openStream
}

type openStream struct {
	userID    int64
	sessionID string
	end       context.CancelFunc
}

func newStreams() *streams { return &streams{open: map[int]openStream{}} }

// join registers a stream of the visitor's session. The returned context ends
// with the session; leave must be called.
func (s *streams) join(parent context.Context, v visitor) (ctx context.Context, leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := 0
	for _, stream := range s.open {
		if stream.sessionID == v.session.ID {
			open++
		}
	}
	if s.closed || open >= streamsPerSession {
		return nil, nil, false
	}
	ctx, cancel := context.WithCancel(parent)
	s.next++
	number := s.next
	s.open[number] = openStream{userID: v.session.User.ID, sessionID: v.session.ID, end: cancel}
	return ctx, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, number)
	}, true
}

// end ends the streams of one session, or of all of a user's when sessionID is
// empty.
func (s *streams) end(userID int64, sessionID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stream := range s.open {
		if stream.userID == userID && (sessionID == "" || stream.sessionID == sessionID) {
			stream.end()
		}
	}
}

// close ends every stream and lets no new one in.
func (s *streams) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, stream := range s.open {
		stream.end()
	}
}
