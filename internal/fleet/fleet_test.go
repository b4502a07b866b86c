package fleet

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

func snapshot(node string, n int) gpu.Snapshot {
	return gpu.Snapshot{Node: node, Time: time.Unix(int64(n), 0)}
}

func next(t *testing.T, c <-chan gpu.Snapshot) gpu.Snapshot {
	t.Helper()
	select {
	case s, ok := <-c:
		if !ok {
			t.Fatal("the channel is closed")
		}
		return s
	case <-time.After(time.Minute):
		t.Fatal("nothing came")
	}
	return gpu.Snapshot{}
}

func TestSnapshots(t *testing.T) {
	f := New()
	f.Update(snapshot("b", 1))
	f.Update(snapshot("a", 1))
	f.Update(snapshot("b", 2))
	got := f.Snapshots()
	if len(got) != 2 || got[0].Node != "a" || got[1].Time.Unix() != 2 {
		t.Errorf("got %+v", got)
	}
	f.Forget("b")
	if got := f.Snapshots(); len(got) != 1 {
		t.Errorf("after forgetting a node: %+v", got)
	}
}

func TestSubscriberStartsWithWhatIsKnown(t *testing.T) {
	f := New()
	f.Update(snapshot("b", 1))
	f.Update(snapshot("a", 2))
	c := f.Subscribe(t.Context())
	for _, want := range []string{"a", "b"} {
		if s := next(t, c); s.Node != want {
			t.Errorf("got %s, want %s", s.Node, want)
		}
	}
	f.Update(snapshot("a", 3))
	if s := next(t, c); s.Time.Unix() != 3 {
		t.Errorf("got %+v", s)
	}
}

// A reader that sleeps through a thousand updates of two nodes gets the newest
// of each, with at most one older one that was already on its way.
func TestSlowReader(t *testing.T) {
	f := New()
	c := f.Subscribe(t.Context())
	for n := range 1000 {
		f.Update(snapshot("a", n))
		f.Update(snapshot("b", n))
	}
	newest := make(map[string]int64)
	read := 0
	for newest["a"] != 999 || newest["b"] != 999 {
		s := next(t, c)
		if s.Time.Unix() < newest[s.Node] {
			t.Errorf("%s went back from %d to %d", s.Node, newest[s.Node], s.Time.Unix())
		}
		newest[s.Node] = s.Time.Unix()
		read++
	}
	if read > 3 {
		t.Errorf("it had to read %d snapshots", read)
	}
}

// Events happen once: they outlast the snapshots that a reader misses, within
// bounds, and other readers' snapshots are left alone.
func TestSlowReaderMissesNoEvent(t *testing.T) {
	f := New()
	c := f.Subscribe(t.Context())
	for n := range 100 {
		s := snapshot("a", n)
		s.Events = []gpu.XIDEvent{{XID: uint64(n)}}
		f.Update(s)
	}
	var xids []uint64
	for len(xids) < 100 {
		for _, e := range next(t, c).Events {
			xids = append(xids, e.XID)
		}
	}
	for n, xid := range xids {
		if xid != uint64(n) {
			t.Fatalf("event %d is %d", n, xid)
		}
	}
	if got := f.Snapshots()[0].Events; len(got) != 1 {
		t.Errorf("the latest snapshot has %d events of its own", len(got))
	}
	f.Update(snapshot("a", 0))
	next(t, c)
	storm := make([]gpu.XIDEvent, 7000)
	for n := range 10 {
		s := snapshot("a", n)
		s.Events, s.EventsDropped = storm, 3
		f.Update(s)
	}
	total := 0
	for s := next(t, c); ; s = next(t, c) {
		if len(s.Events) > mostEvents {
			t.Errorf("%d events wait", len(s.Events))
		}
		total += len(s.Events) + s.EventsDropped
		if s.Time.Unix() == 9 {
			break
		}
	}
	if total != 10*7003 {
		t.Errorf("%d events are told or counted", total)
	}
}

func TestSubscriptionEnds(t *testing.T) {
	f := New()
	ctx, cancel := context.WithCancel(t.Context())
	c := f.Subscribe(ctx)
	f.Update(snapshot("a", 1)) // nobody takes it
	cancel()
	for range c {
	}
	f.Update(snapshot("a", 2))
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.subscribers) != 0 {
		t.Errorf("%d subscribers are left", len(f.subscribers))
	}
}

func TestManySubscribers(t *testing.T) {
	f := New()
	var channels []<-chan gpu.Snapshot
	for range 50 {
		channels = append(channels, f.Subscribe(t.Context()))
	}
	f.Update(snapshot("a", 7))
	for i, c := range channels {
		if s := next(t, c); s.Time.Unix() != 7 {
			t.Error(fmt.Sprint("subscriber ", i, ": ", s))
		}
	}
}

// A GPU is one machine's; a card that was moved is heard of again.
func TestClaim(t *testing.T) {
	f := New()
	cards := func(uuids ...string) (list []gpu.GPU) {
		for _, uuid := range uuids {
			list = append(list, gpu.GPU{Device: gpu.Device{UUID: uuid}})
		}
		return list
	}
	f.Update(gpu.Snapshot{Node: "a", GPUs: cards("GPU-1", "GPU-2", "")})
	f.Update(gpu.Snapshot{Node: "b", GPUs: cards("GPU-3", "")})
	if err := f.Claim("b", cards("GPU-3", "GPU-2")); err == nil || err.Error() != "the machine b told of the GPU GPU-2, which is a's" {
		t.Errorf("another machine's GPU: %v", err)
	}
	if err := f.Claim("b", cards("GPU-4", "GPU-4")); err == nil {
		t.Error("a GPU stands twice in a list")
	}
	for _, fine := range [][]gpu.GPU{cards("GPU-3"), cards("", ""), cards("GPU-4"), nil} {
		if err := f.Claim("b", fine); err != nil {
			t.Error(err)
		}
	}
	f.Update(gpu.Snapshot{Node: "a", GPUs: cards("GPU-1", "GPU-2"), Error: "it is lost"})
	if err := f.Claim("b", cards("GPU-1")); err != nil {
		t.Errorf("from a machine that is lost: %v", err)
	}
	f.Update(gpu.Snapshot{Node: "b", GPUs: cards("GPU-1")})
	if err := f.Claim("c", cards("GPU-1")); err == nil {
		t.Error("the card was moved, and is a third machine's")
	}
	// Whoever tells of another's cards while that is away does not keep it out.
	if err := f.Claim("a", cards("GPU-1")); err != nil {
		t.Errorf("from where it was first: %v", err)
	}
	f.Update(gpu.Snapshot{Node: "a", GPUs: cards("GPU-1", "GPU-2")})
	if err := f.Claim("b", cards("GPU-1")); err == nil {
		t.Error("the card is back where it was, and another machine's still")
	}
	f.Forget("b")
	if err := f.Claim("a", cards("GPU-1")); err != nil {
		t.Errorf("from a machine that was removed: %v", err)
	}
}

// Each GPU that is new costs the history memory: a machine cannot make up any number of them.
func TestClaimOfEverNewCards(t *testing.T) {
	f := New()
	var err error
	n := 0
	for ; n < 10_000 && err == nil; n++ {
		err = f.Claim("b", []gpu.GPU{{Device: gpu.Device{UUID: fmt.Sprint("GPU-", n)}}})
	}
	if err == nil || n < mostCards || n > mostCards+1 {
		t.Errorf("after %d: %v", n, err)
	}
	if err := f.Claim("b", []gpu.GPU{{Device: gpu.Device{UUID: "GPU-7"}}}); err != nil {
		t.Errorf("one that it has told of: %v", err)
	}
	if err := f.Claim("a", []gpu.GPU{{Device: gpu.Device{UUID: "GPU-new"}}}); err != nil {
		t.Errorf("of another machine: %v", err)
	}
	f.Forget("b")
	if err := f.Claim("b", []gpu.GPU{{Device: gpu.Device{UUID: "GPU-new2"}}}); err != nil {
		t.Errorf("after it was removed and joined again: %v", err)
	}
}

func TestCordon(t *testing.T) {
	f := New()
	f.Update(snapshot("a", 1))
	f.Update(snapshot("b", 1))
	c := f.Subscribe(t.Context())
	next(t, c)
	next(t, c)
	f.Cordon(map[string]string{"b": "b takes no new work."})
	if s := next(t, c); s.Node != "b" || s.Cordoned != "b takes no new work." {
		t.Errorf("%+v", s)
	}
	lie := snapshot("a", 2)
	lie.Cordoned = "what a machine says of itself"
	f.Update(lie)
	f.Update(snapshot("b", 2))
	if got := f.Snapshots(); got[0].Cordoned != "" || got[1].Cordoned == "" || got[1].Time.Unix() != 2 {
		t.Errorf("%+v", got)
	}
	f.Cordon(nil)
	if got := f.Snapshots(); got[1].Cordoned != "" {
		t.Errorf("%+v", got)
	}
}

// What a node is shown as stands in its snapshots, whatever it says itself.
func TestTitles(t *testing.T) {
	f := New()
	f.Update(gpu.Snapshot{Node: "b", Title: "the head"})
	f.Update(gpu.Snapshot{Node: "c"})
	if list := f.Snapshots(); list[0].Machine() != "b" {
		t.Errorf("%+v", list)
	}
	f.Titles(map[string]string{"b": "By the door"})
	f.Update(gpu.Snapshot{Node: "c"})
	if list := f.Snapshots(); list[0].Machine() != "By the door" || list[1].Machine() != "c" {
		t.Errorf("%+v", list)
	}
	f.Titles(nil)
	if list := f.Snapshots(); list[0].Machine() != "b" {
		t.Errorf("%+v", list)
	}
}
