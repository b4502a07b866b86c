package webui_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webui"
)

// A stream is a live connection inside a synctest bubble, where time passes
// only while everybody waits.
type stream struct {
	users     *fakeUsers
	notebooks *fakeNotebooks
	fleet     *fakeFleet
	token     string
	out       *recorder
	ended     chan struct{}
	stop      func()
	pages     http.Handler
	request   *http.Request
}

// recorder is a response that can be read while it is written.
type recorder struct {
	mu     sync.Mutex
	header http.Header
	status int
	text   strings.Builder
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}
func (r *recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}
func (r *recorder) Flush() {}

// take returns what was written since the last call.
func (r *recorder) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := r.text.String()
	r.text.Reset()
	return text
}

// open connects a person to a page's live parts.
func open(t *testing.T, handle, query string, prepare func(*stream)) *stream {
	t.Helper()
	s := &stream{users: newFakeUsers(people...), notebooks: &fakeNotebooks{}, fleet: &fakeFleet{},
		out: &recorder{header: http.Header{}}, ended: make(chan struct{})}
	if prepare != nil {
		prepare(s)
	}
	pages, err := webui.New(webui.Config{Users: s.users, Notebooks: s.notebooks, Fleet: s.fleet, Status: &fakeStatus{},
		History: &fakeHistory{}, LendGPU: (&fakeLending{}).set, CheckGPU: func(context.Context) (string, error) { return "", nil }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.stop = cancel
	go func() { _ = pages.Run(ctx) }()
	person, err := s.users.ByHandle(ctx, handle)
	if err != nil {
		t.Fatal(err)
	}
	if s.token, err = s.users.StartSession(ctx, person.ID, users.SessionMeta{}); err != nil {
		t.Fatal(err)
	}
	request := httptest.NewRequestWithContext(ctx, "GET", "https://lab.example/events?"+query, nil)
	request.AddCookie(&http.Cookie{Name: "__Host-gpulab", Value: s.token})
	s.pages, s.request = pages, request
	go func() {
		defer close(s.ended)
		pages.ServeHTTP(s.out, request)
	}()
	synctest.Wait()
	return s
}

var targetOf = regexp.MustCompile(`data: <hx-partial hx-target="#([^"]+)"`)

// targets lists the elements that messages replace, in order.
func targets(text string) string {
	var list []string
	for _, found := range targetOf.FindAllStringSubmatch(text, -1) {
		list = append(list, found[1])
	}
	return strings.Join(list, " ")
}

const gpu0, gpu1 = "gpu-GPU-5f0c1a7e-0000-4000-8000-000000000000", "gpu-GPU-5f0c1a7e-0000-4000-8000-000000000001"

func TestStreamSendsEverythingThenChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, "ben", "view=gpus", func(s *stream) { s.fleet.publish(snapshotAt(time.Now(), 2, "ada")) })
		defer s.stop()
		if kind := s.out.header.Get("Content-Type"); kind != "text/event-stream; charset=utf-8" {
			t.Errorf("Content-Type %q", kind)
		}
		if got, want := targets(s.out.take()), "machines machine-gpu-box-head "+gpu0+" "+gpu1; got != want {
			t.Errorf("first: %s, want %s", got, want)
		}

		time.Sleep(1500 * time.Millisecond)
		if text := s.out.take(); text != "" {
			t.Errorf("nothing changed, but was sent: %s", text)
		}

		// The idle GPU reads the same; only the busy one is sent.
		s.fleet.publish(snapshotAt(time.Now().Add(time.Second), 2, "ada"))
		time.Sleep(200 * time.Millisecond)
		if got := targets(s.out.take()); !strings.HasPrefix(got, gpu0) || strings.Contains(got, "machines") {
			t.Errorf("after a reading: %s", got)
		}

		// A GPU more changes the frame around them.
		s.fleet.publish(snapshotAt(time.Now(), 3, "ada"))
		time.Sleep(200 * time.Millisecond)
		if got := targets(s.out.take()); !strings.HasPrefix(got, "machines ") {
			t.Errorf("after a new GPU: %s", got)
		}
	})
}

func TestStreamSaysWhenReadingsAreOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, "ben", "view=gpus", func(s *stream) { s.fleet.publish(snapshotAt(time.Now(), 1)) })
		defer s.stop()
		if strings.Contains(s.out.take(), "last seen") {
			t.Error("fresh readings are called old")
		}
		time.Sleep(8100 * time.Millisecond)
		if text := s.out.take(); !strings.Contains(text, "last seen 8 s ago") || !strings.Contains(text, "card gpu stale") {
			t.Errorf("after 8 seconds of silence: %s", text)
		}
		s.fleet.publish(gpu.Snapshot{Node: "gpu-box", Error: "The probe cannot read the driver. Run gpulab status."})
		time.Sleep(1100 * time.Millisecond)
		if text := s.out.take(); !strings.Contains(text, "The probe cannot read the driver") || strings.Contains(text, "last seen") {
			t.Errorf("after an error: %s", text)
		}
	})
}

func TestStreamBeatsAndEndsWithItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, "ben", "view=home", nil)
		defer s.stop()
		s.out.take()
		time.Sleep(16 * time.Second)
		if text := s.out.take(); !strings.Contains(text, "event: beat\n") {
			t.Errorf("no heartbeat in 16 seconds: %q", text)
		}
		if err := s.users.EndSession(t.Context(), s.token); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		select {
		case <-s.ended:
		default:
			t.Error("the stream goes on after signing out")
		}
	})
}

// A server's limit for a request to arrive does not end a stream, with either
// version of HTTP.
func TestStreamOutlivesTheReadTimeout(t *testing.T) {
	l := newLab(t)
	server := httptest.NewUnstartedServer(l.pages)
	server.Config.ReadTimeout = 200 * time.Millisecond
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	ben, err := l.users.ByHandle(t.Context(), "ben")
	if err != nil {
		t.Fatal(err)
	}
	token, err := l.users.StartSession(t.Context(), ben.ID, users.SessionMeta{})
	if err != nil {
		t.Fatal(err)
	}
	for _, http2 := range []bool{false, true} {
		transport := server.Client().Transport.(*http.Transport).Clone()
		if !http2 {
			transport.TLSClientConfig.NextProtos = []string{"http/1.1"}
			transport.ForceAttemptHTTP2 = false
		}
		client := &http.Client{Transport: transport}
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/events?view=home", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.AddCookie(&http.Cookie{Name: "__Host-gpulab", Value: token})
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, response.Body)
		if ctx.Err() == nil {
			t.Errorf("%s: the stream ended before its reader did: %v", response.Proto, err)
		}
		_ = response.Body.Close()
		stop()
	}
}

// TestStreamNoticesASessionThatExpired has nobody tell the page.
func TestStreamNoticesASessionThatExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, "ben", "view=home", nil)
		defer s.stop()
		s.users.mu.Lock()
		delete(s.users.sessions, s.token)
		s.users.mu.Unlock()
		time.Sleep(16 * time.Second)
		select {
		case <-s.ended:
		default:
			t.Error("the stream outlives its session")
		}
	})
}

func TestStreamOfALaunch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, "ben", "view=launch&id=1", func(s *stream) {
			s.notebooks.change(func(list *[]notebooks.Launch) {
				*list = []notebooks.Launch{{ID: 1, UserID: 2, Handle: "ben", Title: "x", Profile: "cpu", State: notebooks.Starting,
					Requested: time.Now(), Started: time.Now(), URL: "/user/ben/cpu/", Detail: []notebooks.Step{{Name: notebooks.StepPod, State: "active", Text: "Starting."}}}}
			})
		})
		defer s.stop()
		if text := s.out.take(); !strings.Contains(text, "Container (pod)") || strings.Contains(text, "data-open-when-ready") {
			t.Errorf("at first: %s", text)
		}
		time.Sleep(2100 * time.Millisecond)
		if text := s.out.take(); !strings.Contains(text, "2 s") || targets(text) != "launch-clock launch-clock" {
			t.Errorf("two seconds later: %s", text)
		}
		s.notebooks.change(func(list *[]notebooks.Launch) { (*list)[0].State, (*list)[0].Ready = notebooks.Running, time.Now() })
		time.Sleep(200 * time.Millisecond)
		text := s.out.take()
		if !strings.Contains(text, `data-open-when-ready="1"`) || !strings.Contains(text, "https://lab.example:8443/user/ben/cpu/lab") {
			t.Errorf("when ready: %s", text)
		}
	})
}

func TestStreamsOfOneSessionAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, "ben", "view=gpus", nil)
		defer s.stop()
		for range 30 {
			out := &recorder{header: http.Header{}}
			go s.pages.ServeHTTP(out, s.request)
			synctest.Wait()
			if out.status == http.StatusTooManyRequests {
				return
			}
		}
		t.Error("one session keeps 31 streams")
	})
}

func TestStreamsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := func(s *stream) {
			s.notebooks.change(func(list *[]notebooks.Launch) {
				*list = []notebooks.Launch{{ID: 1, UserID: 1, State: notebooks.Running}}
			})
		}
		for query, status := range map[string]int{"view=launch&id=1": 404, "view=launch&id=x": 404, "view=status": 403, "view=": 404} {
			s := open(t, "ben", query, mine)
			if s.out.status != status {
				t.Errorf("%s: status %d, want %d", query, s.out.status, status)
			}
			s.stop()
		}
	})
}
