package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

// eventually waits for something that has to come true.
func eventually(t *testing.T, what string, within time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

// numbered makes snapshots of b fast, each with an event that bears its number.
func numbered(ctx context.Context, every time.Duration, size int) <-chan gpu.Snapshot {
	out := make(chan gpu.Snapshot)
	go func() {
		defer close(out)
		for i := uint64(1); ; i++ {
			s := gpu.Snapshot{Node: "b", Time: time.Now(), DriverVersion: strings.Repeat("x", size), Events: []gpu.XIDEvent{{XID: i, Time: time.Now()}}}
			select {
			case out <- s:
			case <-ctx.Done():
				return
			}
			select {
			case <-time.After(every):
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

func plain(s gpu.Snapshot) Report { return Report{Snapshot: s} }

// A head that cannot follow gets few readings, each of them new, and no event
// is lost.
func TestSlowHead(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	oldest := time.Duration(0)
	l.slow = func() {
		l.mu.Lock()
		oldest = max(oldest, time.Since(l.reports[len(l.reports)-1].Snapshot.Time))
		l.mu.Unlock()
		time.Sleep(500 * time.Millisecond)
	}
	c, _ := l.join(t, "b")
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
	defer stop()
	// 40 KB each, so that what the connection holds would be seconds old.
	_ = c.Stream(ctx, "1", Newest(ctx, numbered(ctx, 40*time.Millisecond, 40_000), plain), func(Orders) {})
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.reports) < 3 || len(l.reports) > 12 {
		t.Errorf("%d readings of about 120 came", len(l.reports))
	}
	if oldest > 3*time.Second {
		t.Errorf("a reading was %s old when the head took it", oldest)
	}
	next := uint64(1)
	for _, r := range l.reports {
		for _, e := range r.Snapshot.Events {
			if e.XID != next {
				t.Fatalf("event %d is followed by %d", next-1, e.XID)
			}
			next++
		}
	}
	if next < 10 {
		t.Errorf("only %d events came", next-1)
	}
}

// While the head is away, only the newest reading waits.
func TestNewest(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	snapshots := make(chan gpu.Snapshot)
	reports := Newest(ctx, snapshots, func(s gpu.Snapshot) Report {
		return Report{Snapshot: s, Features: map[string]string{"a": "b"}}
	})
	const n = 50
	for i := range n {
		snapshots <- gpu.Snapshot{Node: fmt.Sprint(i), Events: []gpu.XIDEvent{{XID: uint64(i)}}}
	}
	r := <-reports
	if r.Snapshot.Node != fmt.Sprint(n-1) || r.Features["a"] != "b" || len(r.Snapshot.Events) != n {
		t.Errorf("of %d the one that waits is %s, with %d events and %v", n, r.Snapshot.Node, len(r.Snapshot.Events), r.Features)
	}
	for i, e := range r.Snapshot.Events {
		if e.XID != uint64(i) {
			t.Errorf("event %d is in place %d", e.XID, i)
		}
	}
	select {
	case r := <-reports:
		t.Errorf("it comes twice: %+v", r)
	case <-time.After(50 * time.Millisecond):
	}
	stop()
	for range reports { // until it is closed
	}
}

// raw sends what no machine of ours would, and returns when the head has ended it.
func raw(t *testing.T, c *Client, body io.Reader) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	resp, err := c.do(ctx, http.MethodPost, "/v1/stream", body, http.Header{"Gpulab-Version": {"1"}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, ctx.Err())
}

// endless repeats a text.
type endless struct {
	text string
	left int // bytes
	sent int
}

func (e *endless) Read(p []byte) (n int, err error) {
	for n < len(p) && e.left > 0 {
		k := copy(p[n:min(len(p), n+e.left)], e.text[e.sent%len(e.text):])
		n, e.left, e.sent = n+k, e.left-k, e.sent+k
	}
	if e.left == 0 {
		err = io.EOF
	}
	return n, err
}

// Whatever a machine sends costs the head little, and what none of ours sends is
// told of.
func TestNonsense(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	c, _ := l.join(t, "b")
	features := make([]string, mostFeatures+1)
	for i := range features {
		features[i] = fmt.Sprintf(`"nvidia.com/%d":""`, i)
	}
	for _, lie := range []struct {
		says string
		body io.Reader
	}{
		{"sent a reading of more than 1048 kB", &endless{text: "x", left: 10 << 20}},
		{"sent what is no reading", strings.NewReader("hello\n")},
		{"told of 65 features", strings.NewReader(`{"snapshot":{"node":"b"},"features":{` + strings.Join(features, ",") + "}}\n")},
		{"sent more readings than one can have", &endless{text: `{"snapshot":{"node":"b"}}` + "\n", left: 26_000_000}},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		_ = raw(t, c, lie.body)
		runtime.GC()
		runtime.ReadMemStats(&after)
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s: it went on for %s", lie.says, took)
		}
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
			t.Errorf("%s: the head has %d MB more", lie.says, grown>>20)
		}
		eventually(t, lie.says, 20*time.Second, func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.refused) > 0 && strings.HasPrefix(l.refused[len(l.refused)-1], "b: ") && strings.Contains(l.refused[len(l.refused)-1], lie.says)
		})
	}
	if n := len(l.heard()); n > 100 {
		t.Errorf("%d readings of a million were handed on", n)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.refused) != 4 {
		t.Errorf("%q", l.refused)
	}
}

// from makes a client speak from another address.
func from(c *Client, address string) *Client {
	c.http.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).DialContext(ctx, network, c.places.Addresses[0].String())
	}
	return c
}

// Of two machines with one key, as copies of a disk have, the one that is there
// is heard, and the other is told what to do.
func TestCopies(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	c, key := l.join(t, "b")
	_, authority, err := c.Hello(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := l.authority.Sign(requestFor(t, key), "b")
	if err != nil {
		t.Fatal(err)
	}
	other := from(l.member(t, authority, key, text), "127.0.0.2")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- c.Stream(ctx, "1", Newest(ctx, numbered(ctx, 500*time.Millisecond, 0), plain), func(Orders) {})
	}()
	eventually(t, "the machine is heard", 5*time.Second, func() bool { return len(l.heard()) > 0 })
	reports := make(chan Report, 1)
	for name, ask := range map[string]func() error{
		"stream": func() error { return other.Stream(t.Context(), "1", reports, func(Orders) {}) },
		"token":  func() error { _, err := other.Token(t.Context()); return err },
		"leave":  func() error { return other.Leave(t.Context()) },
	} {
		var p *Problem
		if err := ask(); !errors.As(err, &p) || p.Status != http.StatusConflict || p.Removed || !strings.Contains(p.Message, "copy of its disk, run `gpulab leave` here") {
			t.Errorf("%s of a copy: %v", name, err)
		}
	}
	l.mu.Lock()
	if len(l.left) != 0 || len(l.refused) != 3 || !strings.Contains(l.refused[0], "has its key") {
		t.Errorf("left: %q, refused: %q", l.left, l.refused)
	}
	l.mu.Unlock()
	select {
	case err := <-ended:
		t.Errorf("the machine's own stream has ended: %v", err)
	default:
	}
	// From the same address, as after a restart, a newer stream takes the place.
	again, end := context.WithCancel(t.Context())
	defer end()
	connected := make(chan struct{}, 100)
	go func() {
		_ = l.member(t, authority, key, text).Stream(again, "1", make(chan Report), func(Orders) { connected <- struct{}{} })
	}()
	<-connected
	select {
	case err := <-ended:
		t.Log("the stream before has ended:", err)
	case <-time.After(time.Minute):
		t.Error("a machine has two streams")
	}
	// That says nothing: the machine may be elsewhere now.
	stop()
	eventually(t, "it is believed to be elsewhere", aliveFor+5*time.Second, func() bool { _, err := other.Token(t.Context()); return err == nil })
}

// A machine's clock matters to nobody but its own people.
func TestClock(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name  string
		off   time.Duration
		shown time.Duration
	}{
		{"right", 0, 0},
		{"a little off", time.Second, 0},
		{"ahead", 2 * time.Hour, 2 * time.Hour},
		{"behind", -2 * time.Hour, -2 * time.Hour},
	} {
		k := &clock{}
		for i, ms := range []int{300, 20, 900, 20, 50, 4000, 20} {
			way := time.Duration(ms) * time.Millisecond
			sampled := now.Add(time.Duration(i) * time.Second)
			s := gpu.Snapshot{Time: sampled.Add(c.off), Events: []gpu.XIDEvent{{Time: sampled.Add(c.off)}}}
			ahead := k.set(&s, sampled.Add(way))
			if (ahead - c.shown).Abs() > time.Second {
				t.Errorf("%s: %s ahead", c.name, ahead)
			}
			if d := s.Time.Sub(sampled); d.Abs() > 1100*time.Millisecond || !s.Events[0].Time.Equal(s.Time) {
				t.Errorf("%s: a reading that took %s is told %s late", c.name, way, d)
			}
		}
	}
	// Set while the stream goes on.
	k := &clock{}
	for i := range 40 {
		off := time.Duration(0)
		if i >= 10 {
			off = -time.Hour
		}
		at := now.Add(time.Duration(i) * time.Second)
		s := gpu.Snapshot{Time: at.Add(off)}
		k.set(&s, at)
		if d := s.Time.Sub(at); d.Abs() > time.Second && (i < 10 || i >= 10+len(k.recent)) {
			t.Errorf("reading %d is told %s late", i, d)
		}
	}
	// The time of a reading that failed is that of the one before.
	s := gpu.Snapshot{Time: now.Add(-time.Hour), Error: "the driver hangs"}
	if ahead := (&clock{}).set(&s, now); ahead != 0 || !s.Time.Equal(now.Add(-time.Hour)) {
		t.Errorf("%s, %s", ahead, s.Time)
	}
}

// A head that was restored from before a machine joined says so.
func TestRestoredHead(t *testing.T) {
	l := newLab(t)
	c, _ := l.join(t, "b")
	if _, err := l.db.ExecContext(t.Context(), `DELETE FROM join_codes; DELETE FROM nodes`); err != nil {
		t.Fatal(err)
	}
	var p *Problem
	if err := c.Stream(t.Context(), "1", nil, func(Orders) {}); !errors.As(err, &p) || p.Removed || p.Status != http.StatusForbidden || !strings.Contains(p.Message, "restore of a backup") {
		t.Errorf("%v", err)
	}
}
