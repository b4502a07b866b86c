package webui_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpulab/gpulab/internal/api/apitest"
	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webui"
)

// A stream is a live connection inside a synctest bubble, where time passes
// only while everybody waits.
type stream struct {
	users        *testUsers
	notebooks    *fakeNotebooks
	fleet        *fakeFleet
	environments *apitest.Environments
	ctx          context.Context
	token        string
	out          *recorder
	ended        chan struct{}
	stop         func()
	pages        http.Handler
	request      *http.Request
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

// portByID is a port that follows from the person's number.
func portByID(_ context.Context, host string, user int64) (string, error) {
	return host + ":" + strconv.Itoa(21000+int(user)), nil
}

// open connects a person to a page's live parts.
func open(t *testing.T, handle, query string, prepare func(*stream)) *stream {
	t.Helper()
	s := &stream{users: newUsers(t), notebooks: &fakeNotebooks{}, fleet: &fakeFleet{}, environments: apitest.NewEnvironments(t),
		out: &recorder{header: http.Header{}}, ended: make(chan struct{})}
	if prepare != nil {
		prepare(s)
	}
	quotas, files := newQuotas(t, s.users, s.notebooks)
	pages, err := webui.New(webui.Config{Users: s.users, Audit: s.users.AuditLog(), Notebooks: s.notebooks,
		Machines: apitest.NewMachines(), Environments: s.environments, Fleet: s.fleet, Status: &fakeStatus{},
		History: &fakeHistory{}, Quotas: quotas, Storage: files, LendGPU: (&fakeLending{}).set, CheckGPU: func(context.Context) (string, error) { return "", nil }, NotebooksAt: portByID})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.ctx, s.stop, s.pages = ctx, cancel, pages
	go func() { _ = pages.Run(ctx) }()
	s.connect(t, handle, query)
	return s
}

// connect begins the stream of somebody's page.
func (s *stream) connect(t *testing.T, handle, query string) {
	t.Helper()
	person, err := s.users.ByHandle(s.ctx, handle)
	if err != nil {
		t.Fatal(err)
	}
	if s.token, err = s.users.StartSession(s.ctx, person.ID, users.SessionMeta{}); err != nil {
		t.Fatal(err)
	}
	s.request = httptest.NewRequestWithContext(s.ctx, "GET", "https://lab.example/events?"+query, nil)
	s.request.AddCookie(&http.Cookie{Name: cookies.Session, Value: s.token})
	go func() {
		defer close(s.ended)
		s.pages.ServeHTTP(s.out, s.request)
	}()
	synctest.Wait()
}

// beside opens another page of the same lab.
func (s *stream) beside(t *testing.T, handle, query string) *stream {
	t.Helper()
	other := *s
	other.out, other.ended = &recorder{header: http.Header{}}, make(chan struct{})
	other.connect(t, handle, query)
	return &other
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
		request.AddCookie(&http.Cookie{Name: cookies.Session, Value: token})
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
		s.users.exec(t, "DELETE FROM sessions")
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
		if !strings.Contains(text, `data-open-when-ready="1"`) || !strings.Contains(text, "https://lab.example:21002/user/ben/cpu/lab") {
			t.Errorf("when ready: %s", text)
		}
	})
}

// A reading is not held back; many in a row are gathered, and none of the last
// ones is lost.
func TestReadingsAreSentAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, "ben", "view=gpus", func(s *stream) { s.fleet.publish(snapshotAt(time.Now(), 1, "ada")) })
		defer s.stop()
		time.Sleep(1500 * time.Millisecond)
		s.out.take()
		watts := func(w float64) gpu.Snapshot {
			snapshot := snapshotAt(time.Now(), 1, "ada")
			snapshot.GPUs[0].Power = &w
			return snapshot
		}
		s.fleet.publish(watts(111))
		synctest.Wait()
		if text := s.out.take(); !strings.Contains(text, "111 <span class=\"unit\">W") {
			t.Errorf("at once there is only: %s", text)
		}
		for i := range 19 {
			time.Sleep(5 * time.Millisecond)
			s.fleet.publish(watts(float64(200 + i)))
		}
		time.Sleep(100 * time.Millisecond)
		text := s.out.take()
		if n := strings.Count(targets(text), gpu0); n > 2 {
			t.Errorf("20 readings within 100 ms were sent %d times", n)
		}
		if !strings.Contains(text, "218 <span class=\"unit\">W") {
			t.Errorf("the last reading was not sent: %s", text)
		}
	})
}

// What streams share must not be seen: in a crowd everybody is sent what they
// are sent alone, with nobody else's form tokens.
func TestPeopleInACrowdSeeWhatTheySeeAlone(t *testing.T) {
	prepare := func(s *stream) {
		s.fleet.publish(snapshotAt(time.Now(), 3, "ada", "ben"))
		s.notebooks.change(func(list *[]notebooks.Launch) {
			for i, person := range people[:3] {
				*list = append(*list, notebooks.Launch{ID: int64(i + 1), UserID: int64(i + 1), Handle: person.Handle, Title: "work of " + person.Handle, Profile: "gpu", Name: "gpu",
					GPUs: 1, State: notebooks.Running, Requested: time.Now(), Started: time.Now(), Ready: time.Now(), URL: "/user/" + person.Handle + "/gpu/"})
			}
		})
	}
	change := func(s *stream) {
		s.fleet.publish(snapshotAt(time.Now().Add(time.Minute), 3, "ada", "ben"))
		withheld := snapshotAt(time.Now().Add(time.Minute), 3, "ada", "ben")
		withheld.GPUs[0].Withheld = "Somebody uses it."
		s.fleet.publish(withheld)
		s.notebooks.change(func(list *[]notebooks.Launch) { (*list)[1].State = notebooks.Stopping })
		time.Sleep(300 * time.Millisecond)
	}
	type page struct{ handle, query string }
	var pages []page
	for _, query := range []string{"view=home", "view=gpus", "view=gpu&id=" + testGPU, "view=launch&id=2", "view=status"} {
		for _, person := range people {
			pages = append(pages, page{person.Handle, query}, page{person.Handle, query})
		}
	}
	// told is what a stream was sent, with its own token by another name.
	told := func(s *stream) string {
		session, err := s.users.SessionUser(s.ctx, s.token)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(s.out.take(), session.CSRF, "OWN-TOKEN")
	}
	alone := map[page][2]string{}
	for _, p := range pages {
		synctest.Test(t, func(t *testing.T) {
			s := open(t, p.handle, p.query, prepare)
			defer s.stop()
			first := told(s)
			change(s)
			alone[p] = [2]string{first, told(s)}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		s := open(t, "gus", "view=home", prepare)
		defer s.stop()
		var crowd []*stream
		for _, p := range pages {
			crowd = append(crowd, s.beside(t, p.handle, p.query))
		}
		for round := range 2 {
			if round == 1 {
				change(s)
			}
			for i, p := range pages {
				text := told(crowd[i])
				if text != alone[p][round] {
					t.Errorf("%s, %s, round %d: in a crowd\n%s\nalone\n%s", p.handle, p.query, round, text, alone[p][round])
				}
				if strings.Count(text, `name="csrf"`) != strings.Count(text, "OWN-TOKEN") {
					t.Errorf("%s, %s: somebody else's token: %s", p.handle, p.query, text)
				}
			}
		}
	})
	for p, said := range map[page]string{{"ada", "view=gpus"}: "<strong>you</strong>", {"ada", "view=home"}: "OWN-TOKEN", {"ada", "view=gpu&id=" + testGPU}: "OWN-TOKEN", {"lea", "view=gpus"}: "<strong>ben</strong>"} {
		if !strings.Contains(alone[p][1], said) {
			t.Errorf("%v proves nothing: there is no %s in\n%s", p, said, alone[p][1])
		}
	}
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
