package history

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/store"
)

// holding is a card held for its i-th second.
func holding(int) gpu.Snapshot { return snap(heldBy(idle(), "ada")) }

// intact fails for a database in which SQLite finds a fault.
func intact(t *testing.T, dbs ...*sql.DB) {
	t.Helper()
	for _, db := range dbs {
		var verdict string
		if err := db.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
			t.Errorf("integrity: %s, %v", verdict, err)
		}
	}
}

// checkFull records over a time in which the disk is full, and until there is
// room again: all of it is there then, once.
func checkFull(t *testing.T, l *lab, fill, empty func()) {
	t.Helper()
	l.Add(holding(0))
	l.seconds(40, holding)
	fill()
	var err error
	seconds := 0
	for range 1000 {
		// New people need new pages sooner or later.
		who := fmt.Sprintf("p%d%s", seconds, strings.Repeat("x", 100))
		for range 8 {
			l.second(snap(heldBy(idle(), "ada", who)))
			seconds++
		}
		if err = l.Flush(t.Context()); err != nil {
			break
		}
	}
	if !store.Full(err) {
		t.Fatalf("flushing gave %v", err)
	}
	p, bad := l.Problem()
	if !bad || !strings.Contains(p.Text, "disk is full") || !strings.Contains(p.NextStep, "room") || !p.Since.Equal(l.wall) {
		t.Errorf("problem: %+v", p)
	}
	// Readings go on, and the last minutes can be seen.
	for range 5 {
		for range 8 {
			l.second(holding(0))
			seconds++
		}
		if err := l.Flush(t.Context()); err == nil {
			t.Error("there is room?")
		}
	}
	if s := l.series(l.wall.Add(-20*time.Second), l.wall, 20); len(s.Points) != 20 {
		t.Errorf("%d points of the last seconds", len(s.Points))
	}
	empty()
	l.flush()
	if p, bad := l.Problem(); bad {
		t.Errorf("there is room, and still: %+v", p)
	}
	near(t, "ada's held time", l.of(KindUser, "ada").Held, float64(40+seconds), 1e-6)
	intact(t, l.store.DB(), l.store.Metrics())
}

func TestFullDatabase(t *testing.T) {
	l := newLab(t)
	dbs := []*sql.DB{l.store.DB(), l.store.Metrics()}
	limit := func(pages string) {
		for _, db := range dbs {
			db.SetMaxOpenConns(1) // the limit is a connection's
			if _, err := db.Exec("PRAGMA max_page_count = " + pages); err != nil {
				t.Fatal(err)
			}
		}
	}
	checkFull(t, l, func() { limit("1") /* as many as there are */ }, func() { limit("1000000") })
}

func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=6m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	checkFull(t, openLab(t, dir), func() {
		f, err := os.Create(ballast)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}, func() {
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
	})
}

// What waits for a disk stays small, also for days, and says so.
func TestWaitingIsBounded(t *testing.T) {
	l := newLab(t)
	l.store.Metrics().SetMaxOpenConns(1)
	if _, err := l.store.Metrics().Exec("PRAGMA query_only = 1"); err != nil {
		t.Fatal(err)
	}
	for i := range 3 * waitingSlots {
		l.pass(10 * time.Second)
		l.Add(ramp(i))
		if i%1000 == 999 {
			if err := l.Flush(t.Context()); err == nil {
				t.Fatal("it could write")
			}
		}
	}
	if n := len(l.pending.readings.tens); n > waitingSlots {
		t.Errorf("%d slots wait", n)
	}
	if p, _ := l.Problem(); !strings.Contains(p.Text, "dropped") {
		t.Errorf("%+v", p)
	}
	if _, err := l.store.Metrics().Exec("PRAGMA query_only = 0"); err != nil {
		t.Fatal(err)
	}
	l.flush()
	if s := l.series(l.wall.Add(-time.Hour), l.wall, 400); len(s.Points) != 360 {
		t.Errorf("%d points of the last hour", len(s.Points))
	}
}

// A history that is damaged is set aside, whenever that is found; the ledger
// and what comes after are not touched.
func TestDamagedHistory(t *testing.T) {
	junk := []byte(strings.Repeat("this is not a database\n", 4000))
	t.Run("when it is opened", func(t *testing.T) {
		dir := t.TempDir()
		l := openLab(t, dir)
		l.Add(holding(0))
		l.seconds(20, holding)
		if err := l.store.Close(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, store.MetricsFile)
		if err := os.WriteFile(path, junk, 0o600); err != nil {
			t.Fatal(err)
		}
		l = openLab(t, dir)
		checkSetAside(t, l, dir, string(junk))
		near(t, "ada's held time", l.of(KindUser, "ada").Held, 30, 1e-6)
	})
	t.Run("while it is used", func(t *testing.T) {
		dir := t.TempDir()
		l := openLab(t, dir)
		l.Add(holding(0))
		l.seconds(20, holding)
		path := filepath.Join(dir, store.MetricsFile)
		if _, err := l.store.Metrics().Exec("PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		size, err := f.Seek(0, 2)
		if err != nil {
			t.Fatal(err)
		}
		for at := int64(4096); at < size; at += 4096 { // all pages but the first
			if _, err := f.WriteAt(junk[:4096], at); err != nil {
				t.Fatal(err)
			}
		}
		f.Close()
		l.start()
		// The pages that are in use are still in memory of the open connections.
		l.store.Metrics().SetMaxIdleConns(0)
		checkSetAside(t, l, dir, "SQLite format 3")
		if s := l.series(noon, noon.Add(time.Minute), 10); len(s.Points) != 0 {
			t.Errorf("rows of the time before: %+v", s.Points)
		}
		near(t, "ada's held time", l.of(KindUser, "ada").Held, 30, 1e-6)
	})
}

// A damaged history that cannot be begun anew at once is as soon as it can.
func TestDamagedHistoryThatCannotBeMoved(t *testing.T) {
	dir := t.TempDir()
	l := openLab(t, dir)
	l.Add(holding(0))
	l.seconds(20, holding)
	path := filepath.Join(dir, store.MetricsFile)
	// What lies in the way cannot be renamed over, as on a disk that refuses.
	if err := os.MkdirAll(filepath.Join(dir, store.DamagedMetricsFile, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	l.damaged.Store(l.store.Metrics())
	for range 2 {
		l.second(holding(0))
		if err := l.Flush(t.Context()); err == nil {
			t.Fatal("it was begun anew")
		}
	}
	if err := os.RemoveAll(filepath.Join(dir, store.DamagedMetricsFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	checkSetAside(t, l, dir, "SQLite format 3")
	near(t, "ada's held time", l.of(KindUser, "ada").Held, 32, 1e-6)
}

// Damage among rows that are read and never written is found as well.
func TestDamageFoundByReader(t *testing.T) {
	dir := t.TempDir()
	l := openLab(t, dir)
	l.Recorder.cfg.Limit = time.Hour
	for i := range 300 * 24 * 2 {
		l.pass(30 * time.Minute)
		l.Add(ramp(i))
	}
	l.flush()
	var page, pageSize int64
	if err := l.store.Metrics().QueryRow("SELECT min(pageno), min(pgsize) FROM dbstat WHERE name = 'readings_5min' AND pagetype = 'leaf' AND ncell > 10").Scan(&page, &pageSize); err != nil {
		t.Fatal(err)
	}
	if _, err := l.store.Metrics().Exec("PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		t.Fatal(err)
	}
	l.store.Metrics().SetMaxIdleConns(0) // what is in memory is not damaged
	f, err := os.OpenFile(filepath.Join(dir, store.MetricsFile), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte(strings.Repeat("x", int(pageSize))), (page-1)*pageSize); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := l.Series(t.Context(), "GPU-a", noon, l.wall, 1000); !store.Damaged(err) {
		t.Fatalf("reading a damaged page gave %v", err)
	}
	l.second(ramp(0))
	l.flush()
	if s := l.series(noon, l.wall.Add(time.Second), 1000); len(s.Points) != 1 {
		t.Errorf("%d points", len(s.Points))
	}
	if p, bad := l.Problem(); !bad || !strings.Contains(p.Text, "begun anew") {
		t.Errorf("%+v", p)
	}
}

func checkSetAside(t *testing.T, l *lab, dir, begins string) {
	t.Helper()
	l.wall = noon.Add(time.Hour)
	l.Add(holding(0))
	l.seconds(10, holding)
	if s := l.series(noon.Add(30*time.Second), l.wall.Add(time.Second), 5000); len(s.Points) != 2 || s.Points[0].Time.Before(noon.Add(time.Hour)) {
		t.Errorf("rows of the time after: %+v", s.Points)
	}
	intact(t, l.store.Metrics(), l.store.DB())
	aside := filepath.Join(dir, store.DamagedMetricsFile)
	if kept, err := os.ReadFile(aside); err != nil || !strings.HasPrefix(string(kept), begins) {
		t.Errorf("what was set aside: %.40q, %v", kept, err)
	}
	p, bad := l.Problem()
	if !bad || !strings.Contains(p.Text, "begun anew") || !strings.Contains(p.NextStep, aside) {
		t.Errorf("problem: %+v", p)
	}
}

// A damaged gpulab.db is never set aside, by no way.
func TestDamagedLedgerIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	junk := strings.Repeat("this is not a database\n", 4000)
	if err := os.WriteFile(filepath.Join(dir, store.MainFile), []byte(junk), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(t.Context(), dir); !errors.Is(err, store.ErrDamaged) {
		t.Fatalf("got %v", err)
	}
	if kept, err := os.ReadFile(filepath.Join(dir, store.MainFile)); err != nil || string(kept) != junk {
		t.Error("it was touched")
	}
}

// Run writes by itself, and what is left when it ends.
func TestRun(t *testing.T) {
	s, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	r := New(Config{Store: s, FlushEvery: 20 * time.Millisecond})
	ctx, stop := context.WithCancel(t.Context())
	snapshots := make(chan gpu.Snapshot)
	done := make(chan error)
	go func() { done <- r.Run(ctx, snapshots) }()
	snapshots <- holding(0)
	time.Sleep(10 * time.Millisecond)
	snapshots <- holding(0)
	held := func() float64 {
		list, err := r.Usage(t.Context(), Filter{User: "ada"}, ByUser)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 0 {
			return 0
		}
		return list[0].Held
	}
	for end := time.Now().Add(time.Minute); held() == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing is written")
		}
	}
	before := held()
	for range 3 {
		time.Sleep(time.Millisecond)
		snapshots <- holding(0)
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if held() <= before {
		t.Error("what was left was not written")
	}
	if _, bad := r.Problem(); bad {
		t.Error("there is a problem")
	}
}

// TestKilled kills a recorder in full flight: what it had seen is in the ledger
// but for the time between two writes, by default within the ten seconds that
// are promised.
func TestKilled(t *testing.T) {
	const every = 500 * time.Millisecond
	if dir := os.Getenv("GPULAB_HISTORY_CRASH_DIR"); dir != "" {
		recordUntilKilled(dir, every)
		return
	}
	if d := New(Config{}).cfg.FlushEvery; d > 9*time.Second {
		t.Errorf("it writes every %v", d)
	}
	dir := t.TempDir()
	var told float64 // seconds the child had seen
	for range 2 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), "GPULAB_HISTORY_CRASH_DIR="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var seen float64
		for lines := bufio.NewScanner(out); seen < 2 && lines.Scan(); {
			if text, ok := strings.CutPrefix(lines.Text(), "seen "); ok {
				if seen, err = strconv.ParseFloat(text, 64); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if seen < 2 {
			t.Fatal("the child has ended by itself")
		}
		told += seen
		l := openLab(t, dir)
		// It may have seen a little more than it told, and a busy machine writes late.
		if held := l.of(KindUser, "ada").Held; held < told-2*(every.Seconds()+0.5) || held > told+1 {
			t.Errorf("%.3f s of %.3f s are in the ledger", held, told)
		}
		intact(t, l.store.DB(), l.store.Metrics())
		if err := l.store.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func recordUntilKilled(dir string, every time.Duration) {
	s, err := store.Open(context.Background(), dir)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	r := New(Config{Store: s, FlushEvery: every})
	snapshots := make(chan gpu.Snapshot)
	go func() { _ = r.Run(context.Background(), snapshots) }()
	var began time.Time
	for {
		snapshots <- holding(0)
		if began.IsZero() {
			began = time.Now()
		}
		fmt.Println("seen", time.Since(began).Seconds())
		time.Sleep(20 * time.Millisecond)
	}
}
