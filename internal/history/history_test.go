package history

import (
	"context"
	"io"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/store"
)

// noon is when simulated days begin.
var noon = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

// lab is a recorder on real databases with a clock that the test turns.
type lab struct {
	*Recorder
	t       *testing.T
	store   *store.Store
	wall    time.Time
	running time.Duration
}

func newLab(t *testing.T) *lab {
	t.Helper()
	return openLab(t, t.TempDir())
}

func openLab(t *testing.T, dir string) *lab {
	t.Helper()
	s, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	l := &lab{t: t, store: s, wall: noon}
	l.start()
	return l
}

// start begins a recorder on the same databases, as after a crash: what the one
// before had not written is gone.
func (l *lab) start() {
	l.Recorder = New(Config{
		Store: l.store, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Clock: func() (time.Time, time.Duration) { return l.wall, l.running },
	})
}

func (l *lab) pass(d time.Duration) { l.wall, l.running = l.wall.Add(d), l.running+d }

// second adds a snapshot a second after the one before.
func (l *lab) second(s gpu.Snapshot) {
	l.pass(time.Second)
	l.Add(s)
}

// seconds adds n of them and flushes as often as Run does.
func (l *lab) seconds(n int, s func(i int) gpu.Snapshot) {
	l.t.Helper()
	for i := range n {
		l.second(s(i))
		if i%8 == 7 {
			l.flush()
		}
	}
	l.flush()
}

func (l *lab) flush() {
	l.t.Helper()
	if err := l.Flush(context.Background()); err != nil {
		l.t.Fatalf("flush: %v", err)
	}
}

func (l *lab) usage(f Filter, by By) []Usage {
	l.t.Helper()
	list, err := l.Usage(l.t.Context(), f, by)
	if err != nil {
		l.t.Fatal(err)
	}
	return list
}

// of returns somebody's row.
func (l *lab) of(kind Kind, name string) Usage {
	l.t.Helper()
	for _, u := range l.usage(Filter{}, ByUser) {
		if u.Kind == kind && u.Name == name {
			return u
		}
	}
	return Usage{}
}

func (l *lab) card() Usage {
	l.t.Helper()
	list := l.usage(Filter{}, ByGPU)
	if len(list) != 1 {
		l.t.Fatalf("%d cards: %+v", len(list), list)
	}
	return list[0]
}

func (l *lab) series(from, to time.Time, points int) Series {
	l.t.Helper()
	s, err := l.Series(l.t.Context(), "GPU-a", from, to, points)
	if err != nil {
		l.t.Fatal(err)
	}
	return s
}

func ptr[T any](v T) *T { return &v }

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance {
		t.Errorf("%s is %.6f, want %.6f", what, got, want)
	}
}

func nearPtr(t *testing.T, what string, got *float64, want, tolerance float64) {
	t.Helper()
	if got == nil {
		t.Errorf("%s is not known, want %.6f", what, want)
		return
	}
	near(t, what, *got, want, tolerance)
}

// snap is a snapshot of one machine.
func snap(gpus ...gpu.GPU) gpu.Snapshot { return gpu.Snapshot{Node: "box", GPUs: gpus} }

// idle is a card that does nothing and can tell everything.
func idle() gpu.GPU {
	return gpu.GPU{
		Device:  gpu.Device{UUID: "GPU-a", Name: "Card"},
		Reading: gpu.Reading{Utilization: ptr(0.0), Power: ptr(20.0), Temperature: ptr(40.0), SMClock: ptr(300.0), MemoryUsed: ptr(uint64(1 << 30))},
	}
}

func heldBy(g gpu.GPU, handles ...string) gpu.GPU {
	for _, h := range handles {
		g.Holders = append(g.Holders, gpu.Holder{PodRef: pod(h)})
	}
	return g
}

func pod(handle string) gpu.PodRef {
	return gpu.PodRef{UID: "uid-" + handle, Namespace: "user-" + handle, Name: "notebook", User: handle, Notebook: "n"}
}

// process is one of a person's.
func process(handle string, sm *float64, memory *uint64) gpu.Process {
	return gpu.Process{PID: 1, SMUtilization: sm, MemoryUsed: memory, Pod: pod(handle), UnixUser: "20000"}
}

func TestTidy(t *testing.T) {
	for in, want := range map[string]string{
		"ada": "ada", "a\x1b[31md\na": "a[31mda", "\xff\xfe": "\uFFFD", " x ": "x", "Zoë 東京": "Zoë 東京",
		strings.Repeat("é", 500): strings.Repeat("é", 128), "\u202eevil": "evil",
	} {
		if got := tidy(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}
