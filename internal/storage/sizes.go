package storage

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// Size is how much something takes on disk.
type Size struct {
	Bytes int64     `json:"bytes"`
	Files int64     `json:"files"`
	At    time.Time `json:"at"` // when it was measured
}

// What a size is of, as the table has it.
const (
	ofHome   = "home"
	ofFolder = "folder"
)

type target struct {
	what string
	id   int64
}

// atLeastEvery is how old a size becomes of what is not in use.
const atLeastEvery = 24 * time.Hour

// use notes that somebody's home is in use, touch that a folder is.
func (s *Service) use(user int64) { s.noteUse(target{ofHome, user}) }
func (s *Service) touch(id int64) { s.noteUse(target{ofFolder, id}) }

func (s *Service) noteUse(t target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used[t] = true
}

func (s *Service) nudge() {
	select {
	case s.ask <- struct{}{}:
	default:
	}
}

// MeasureHome has somebody's home measured soon.
func (s *Service) MeasureHome(user int64) { s.measureSoon(target{ofHome, user}) }

func (s *Service) measureSoon(t target) {
	s.mu.Lock()
	s.due[t] = true
	s.mu.Unlock()
	s.nudge()
}

// HomeSize is somebody's home as it was measured last, nil while that is not known.
func (s *Service) HomeSize(ctx context.Context, user int64) (*Size, error) {
	size, _, err := s.size(ctx, target{ofHome, user})
	return size, err
}

// HomeSizes are those of everybody whose home was measured, by ID.
func (s *Service) HomeSizes(ctx context.Context) (map[int64]Size, error) {
	type owned struct {
		Size
		owner int64
	}
	list, err := store.All(ctx, s.cfg.DB, func(row store.Row) (o owned, err error) {
		var at int64
		err = row.Scan(&o.owner, &o.Bytes, &o.Files, &at)
		o.At = time.UnixMilli(at).UTC()
		return o, err
	}, "SELECT id, bytes, files, at FROM sizes WHERE what = 'home'")
	if err != nil {
		return nil, fmt.Errorf("read the sizes of homes: %w", err)
	}
	sizes := map[int64]Size{}
	for _, o := range list {
		sizes[o.owner] = o.Size
	}
	return sizes, nil
}

// size reads what was measured, with the largest that is in it.
func (s *Service) size(ctx context.Context, t target) (*Size, []Entry, error) {
	var size Size
	var at int64
	var largest string
	err := s.cfg.DB.QueryRowContext(ctx, "SELECT bytes, files, at, largest FROM sizes WHERE what = ? AND id = ?", t.what,
		t.id).Scan(&size.Bytes, &size.Files, &at, &largest)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read a size: %w", err)
	}
	size.At = time.UnixMilli(at).UTC()
	var list []Entry
	if err := json.Unmarshal([]byte(largest), &list); err != nil {
		return nil, nil, fmt.Errorf("read a size: %w", err)
	}
	return &size, list, nil
}

// rest lets others have the disk for as long as a walk had it.
func rest(d time.Duration) { time.Sleep(min(d, time.Second)) }

// keepMeasuring measures what needs it, one after the other, until ctx ends.
func (s *Service) keepMeasuring(ctx context.Context) {
	stop := s.lowly()
	defer stop()
	tick := time.NewTicker(min(s.cfg.MeasureEvery, 15*time.Second))
	defer tick.Stop()
	for {
		if err := s.measureAll(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn("not all sizes were measured; trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.ask:
		}
	}
}

// lowly gives walks a thread of their own that steps back for everybody else. The database is not used on it: who
// waits for a lock must not wait for it. Stop ends it.
func (s *Service) lowly() (stop func()) {
	jobs := make(chan func())
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		if err := stepBack(); err != nil {
			s.cfg.Log.Warn("sizes are measured at the usual priority", "err", err)
		}
		for do := range jobs {
			do()
		}
	}()
	s.low = func(do func()) {
		done := make(chan struct{})
		jobs <- func() {
			defer close(done)
			do()
		}
		<-done
	}
	return func() { close(jobs) }
}

// stepBack makes this thread one that takes processor and disk only where nobody else wants them.
func stepBack() error {
	const whoProcess, classIdle = 1, 3
	tid := unix.Gettid()
	err := unix.Setpriority(unix.PRIO_PROCESS, tid, 19)
	if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, whoProcess, uintptr(tid), classIdle<<13); errno != 0 {
		err = errors.Join(err, errno)
	}
	return err
}

func (s *Service) measureAll(ctx context.Context) error {
	targets, err := s.stale(ctx)
	for _, t := range targets {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		err = errors.Join(err, s.measure(ctx, t))
	}
	return err
}

// stale lists what is to be measured now: what a notebook has just left first.
func (s *Service) stale(ctx context.Context) ([]target, error) {
	people, err := s.cfg.People.List(ctx)
	if err != nil {
		return nil, err
	}
	folders, err := s.folders(ctx, " AND f.gid IS NOT NULL")
	if err != nil {
		return nil, err
	}
	homes, err := s.HomeSizes(ctx)
	if err != nil {
		return nil, err
	}
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	var soon, later []target
	look := func(t target, measured *time.Time) {
		switch {
		case s.due[t]:
			soon = append(soon, t)
		case measured == nil, s.used[t] && now.Sub(*measured) >= s.cfg.MeasureEvery, now.Sub(*measured) >= atLeastEvery:
			later = append(later, t)
		}
	}
	for i := range people {
		var at *time.Time
		if size, known := homes[people[i].ID]; known {
			at = &size.At
		}
		look(target{ofHome, people[i].ID}, at)
	}
	for i := range folders {
		var at *time.Time
		if folders[i].Size != nil {
			at = &folders[i].Size.At
		}
		look(target{ofFolder, folders[i].ID}, at)
	}
	return append(soon, later...), nil
}

// measure walks one and keeps what it came to. What could not be measured keeps the size it had.
func (s *Service) measure(ctx context.Context, t target) error {
	s.mu.Lock()
	delete(s.due, t) // before the walk: what comes meanwhile is seen by the next one
	delete(s.used, t)
	s.mu.Unlock()
	path, largest := s.folder(t.id), false
	if t.what == ofHome {
		path, largest = s.Home(t.id), true
	}
	var result found
	var err error
	for range 3 {
		s.low(func() { result, err = walk(ctx, path, rest, nil, nil) })
		if !errors.Is(err, errMoving) {
			break
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		result, err = found{}, nil // nobody has been there yet
	}
	if err != nil {
		return err
	}
	if !largest {
		result.largest = nil
	}
	result.largest = slices.DeleteFunc(result.largest, func(e Entry) bool { return !clearable(string(e.Path)) })
	list, err := json.Marshal(slices.Clip(append([]Entry{}, result.largest...)))
	if err != nil {
		return err
	}
	_, err = s.cfg.DB.ExecContext(ctx, `INSERT INTO sizes (what, id, bytes, files, largest, at) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET bytes = excluded.bytes, files = excluded.files, largest = excluded.largest,
		at = excluded.at`,
		t.what, t.id, result.bytes, result.files, string(list), s.now().UnixMilli())
	if err != nil {
		return fmt.Errorf("keep a size: %w", err)
	}
	return nil
}

// HomeUse is how much somebody's home takes: what the file system counts where it does (kept), otherwise as
// measured; nil while that is not known.
func (s *Service) HomeUse(ctx context.Context, u users.User) (size *Size, kept bool, err error) {
	measured, err := s.HomeSize(ctx, u.ID)
	if err != nil {
		return nil, false, err
	}
	kept, err = s.isProject(ctx, u.ID)
	if err != nil || !kept {
		return measured, false, err
	}
	bytes, files, err := projectUse(s.cfg.HomesDir, u.UID)
	if err != nil {
		return measured, false, nil // quotas were turned off under us
	}
	return &Size{Bytes: bytes, Files: files, At: s.now().UTC()}, true, nil
}
