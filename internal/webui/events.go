package webui

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"net/http"
	"slices"
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
	// writeTimeout ends a stream whose reader does not take a piece in time.
	writeTimeout = 20 * time.Second
	writePiece   = 64 << 10 // bytes
)

// A part is one element of a page that changes by itself. Its component's root
// has the part's ID as element ID.
type part struct {
	id   string
	body templ.Component
	// shape, if not empty, is what decides whether the part is sent again,
	// instead of its content: a frame around parts that are sent themselves.
	shape string
	// same is with whom the part is shared: where two streams of a view have the
	// same ID and the same here, one rendering serves both. Empty: with nobody.
	// What holds a form must not be shared: its token is its visitor's.
	same string
}

// parts lists the live parts of a page in the order in which they are sent.
type parts func(ctx context.Context, t *tick) ([]part, error)

// events streams a page's live parts: every part at first, then each part
// whose content changed, as a partial that htmx swaps in by element ID.
func (s *Server) events(w http.ResponseWriter, r *http.Request, v visitor) error {
	// A page shows what belongs to its own session: the browser's may have become another since.
	if of := r.URL.Query().Get("session"); of != "" && of != v.session.ID {
		return errSignInFirst
	}
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

	header, query := w.Header(), r.URL.Query()
	header.Set("Content-Type", "text/event-stream; charset=utf-8")
	header.Set("X-Accel-Buffering", "no")
	stream := &eventStream{
		w: w, control: http.NewResponseController(w), view: query.Get("view") + " " + query.Get("id"),
		sent: map[string]uint64{},
	}
	// The server's limit for a request to arrive would end the stream with it.
	_ = stream.control.SetReadDeadline(time.Time{})
	w.WriteHeader(http.StatusOK)

	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		t := s.board.now()
		current, err := view(ctx, t)
		if moved, _ := s.elsewhere(r); s.cfg.Elsewhere != nil {
			current = append(current, part{id: "moved", body: movedNotice(moved), same: "moved " + moved})
		}
		if err == nil {
			err = stream.send(ctx, t, current)
		}
		if err != nil {
			// The answer has begun; the browser connects again and then sees
			// what is wrong.
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.over:
		case <-beat.C:
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
	case "pool":
		if !v.may(users.ActionManageLab) {
			return nil, errNotAllowed
		}
		return s.poolParts(p), nil
	case "environments":
		return s.environmentsParts(v, p), nil
	case "environment":
		if _, err := s.environmentByID(r.Context(), query.Get("id")); err != nil {
			return nil, err
		}
		return s.environmentParts(v, p, query.Get("id")), nil
	case "jobs":
		return s.jobsParts(v, p), nil
	case "job":
		if _, err := s.jobFor(r.Context(), v, query.Get("id")); err != nil {
			return nil, err
		}
		return s.jobParts(v, p, query.Get("id")), nil
	case "services":
		return s.servicesParts(r, v, p), nil
	case "service":
		if _, err := s.serviceFor(r.Context(), v, query.Get("id")); err != nil {
			return nil, err
		}
		return s.serviceParts(r, v, p, query.Get("id")), nil
	case "launch":
		if _, err := s.launchFor(r.Context(), v, query.Get("id")); err != nil {
			return nil, err
		}
		return s.launchParts(r, v, p, query.Get("id")), nil
	}
	return nil, errNoPage
}

// eventStream writes parts to one browser and remembers what it has.
type eventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	view    string
	sent    map[string]uint64 // part → hash of what was sent
}

// A fragment is a rendered part, as it is sent.
type fragment struct {
	hash    uint64 // of the content
	message []byte
}

// fragmentKey is a part that is shared.
type fragmentKey struct{ view, id, same string }

var hashSeed = maphash.MakeSeed()

// send writes the parts that changed, one message each, in order.
func (e *eventStream) send(ctx context.Context, t *tick, current []part) error {
	var changed [][]byte
	for _, p := range current {
		old, had := e.sent[p.id]
		hash := maphash.String(hashSeed, p.shape)
		if p.shape != "" && had && old == hash {
			continue
		}
		f, err := e.fragment(ctx, t, p)
		if err != nil {
			return err
		}
		if p.shape == "" {
			hash = f.hash
		}
		if had && old == hash {
			continue
		}
		e.sent[p.id] = hash
		changed = append(changed, f.message)
	}
	if len(changed) == 0 {
		return nil
	}
	return e.write(slices.Concat(changed...))
}

// fragment renders a part, or takes what another stream has rendered.
func (e *eventStream) fragment(ctx context.Context, t *tick, p part) (*fragment, error) {
	if p.same == "" {
		return render(ctx, p)
	}
	return t.fragments.get(fragmentKey{e.view, p.id, p.same}, func() (*fragment, error) {
		return render(context.WithoutCancel(ctx), p)
	})
}

func render(ctx context.Context, p part) (*fragment, error) {
	var html bytes.Buffer
	if err := p.body.Render(ctx, &html); err != nil {
		return nil, fmt.Errorf("render %s: %w", p.id, err)
	}
	return &fragment{hash: maphash.Bytes(hashSeed, html.Bytes()), message: partial(p.id, html.Bytes())}, nil
}

// beat writes a named event, which htmx does not swap but the page hears.
func (e *eventStream) beat() error { return e.write([]byte("event: beat\ndata:\n\n")) }

func (e *eventStream) write(text []byte) error {
	for piece := range slices.Chunk(text, writePiece) {
		// Not every writer has deadlines (tests); a stuck one then ends with
		// its connection.
		_ = e.control.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := e.w.Write(piece); err != nil {
			return err
		}
	}
	return e.control.Flush()
}

// partial is one server-sent event that replaces the element with this ID.
func partial(id string, html []byte) []byte {
	html = slices.Concat([]byte(`<hx-partial hx-target="#`+id+`" hx-swap="outerMorph">`), html, []byte("</hx-partial>"))
	message := make([]byte, 0, len(html)+16)
	// A carriage return ends a line of a stream too, and what somebody has
	// called a program must not begin another field.
	for line := range bytes.Lines(bytes.ReplaceAll(html, []byte("\r"), []byte("&#13;"))) {
		message = append(message, "data: "...)
		message = append(message, bytes.TrimRight(line, "\n")...)
		message = append(message, '\n')
	}
	return append(message, '\n')
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
