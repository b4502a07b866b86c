// Package diskspace watches the file systems that hold a lab: how much room is left on each, and what follows from
// that. It also holds some room back, which it gives to the databases when there is none left, says on which file
// systems a database cannot be, and counts what the room goes to.
//
// It imports units alone; any package may import it.
package diskspace

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/units"
)

// Level is how short of room a file system is, and thereby what gpulab does.
type Level int

// The levels, from good to bad.
const (
	Fine     Level = iota
	Notice         // administrators are told
	Refusing       // no notebook starts, no image is brought in; what runs goes on
	Full           // the room that was held back is being used up
	ReadOnly       // the kernel lets nobody write
)

var levelNames = [...]string{"fine", "notice", "refusing", "full", "read-only"}

// String is the level in one word.
func (l Level) String() string { return levelNames[l] }

// MarshalText writes the word.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads it.
func (l *Level) UnmarshalText(text []byte) error {
	i := slices.Index(levelNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("%q is no level of a disk", text)
	}
	*l = Level(i)
	return nil
}

// A level begins when less is free than a share of the file system, but not before it is less than an amount: 5 % of a
// very large disk are room for years.
const (
	noticeShare, noticeBytes, noticeFiles = 0.15, 500 << 30, 1_000_000
	refuseShare, refuseBytes, refuseFiles = 0.05, 100 << 30, 200_000
	fullShare, fullBytes, fullFiles       = 0.01, 64 << 20, 1000
	// slack is by how much more must be free for a level to end than for it to begin.
	slack = 1.1
)

// levelOf judges what is free of a total; factor moves the limits.
func levelOf(free, total uint64, limits [3]float64, shares [3]float64, factor float64) Level {
	for i, level := range []Level{Full, Refusing, Notice} {
		if float64(free) < min(shares[i]*float64(total), limits[i])*factor {
			return level
		}
	}
	return Fine
}

var shares = [3]float64{fullShare, refuseShare, noticeShare}

// judge says which level a file system is at that was at another one.
func judge(s space, was Level) Level {
	if s.readOnly {
		return ReadOnly
	}
	at := func(factor float64) Level {
		level := levelOf(s.free, s.free+s.used, [3]float64{fullBytes, refuseBytes, noticeBytes}, shares, factor)
		if s.files > 0 {
			level = max(level, levelOf(s.filesFree, s.files, [3]float64{fullFiles, refuseFiles, noticeFiles}, shares, factor))
		}
		return level
	}
	now := at(1)
	if now < was && was != ReadOnly {
		return min(was, at(slack))
	}
	return now
}

// Place is a folder that the lab writes to. It need not exist yet.
type Place struct {
	Name string // in plain words: "homes"
	Path string
}

// Filesystem is one of those that hold the lab, as last looked at.
type Filesystem struct {
	Path  string   `json:"path"`  // the first of the places that lie on it
	Holds []string `json:"holds"` // the names of those places
	Level Level    `json:"level"`
	// Free and Used are in bytes. Free is what is left for everybody; what the file system keeps for root alone is
	// neither, and what was held back for the databases and given to them is not free.
	Free uint64 `json:"free"`
	Used uint64 `json:"used"`
	// FilesFree is how many more files there may be, of Files; both are 0 where the file system has no such limit.
	FilesFree uint64 `json:"filesFree,omitempty"`
	Files     uint64 `json:"files,omitempty"`
	// Silent says that it has not answered for a while, as one on a failed disk does.
	Silent bool `json:"silent,omitempty"`

	only bool // all places lie on it
}

// Percent is how full it is, as df shows it.
func (f *Filesystem) Percent() int {
	total := f.Free + f.Used
	if total == 0 {
		return 0
	}
	return int((f.Used*100 + total - 1) / total)
}

// Words says in one sentence how full it is.
func (f *Filesystem) Words() string {
	what := "The disk with " + units.List(f.Holds)
	if f.only {
		what = "The lab's disk"
	}
	switch {
	case f.Silent:
		return what + " does not answer."
	case f.Level == ReadOnly:
		return what + " can only be read, not written."
	case f.filesShort():
		return fmt.Sprintf("%s has room for %d more files of %d, whatever their size.", what, f.FilesFree, f.Files)
	}
	return fmt.Sprintf("%s is %d %% full: %s of %s are free.", what, f.Percent(), units.Bytes(f.Free),
		units.Bytes(f.Free+f.Used))
}

// filesShort tells whether it is the number of files that is short, not their size.
func (f *Filesystem) filesShort() bool {
	return f.Level > Fine && f.Files > 0 && f.Level > levelOf(f.Free, f.Free+f.Used,
		[3]float64{fullBytes, refuseBytes, noticeBytes}, shares, slack)
}

// Config describes a Watch. Places is needed.
type Config struct {
	// Places are looked at; the first one holds the databases, and what is held back for them.
	Places []Place
	// Changed is called after a level has changed. Nil: nobody asks.
	Changed func()
	Log     *slog.Logger // default slog.Default()
}

// Times of looking.
const (
	every     = 5 * time.Second
	everySoon = time.Second // while there is little room
	patience  = 2 * time.Second
	silence   = 30 * time.Second
)

// Watch knows how much room there is. Its methods may be called from any goroutine.
type Watch struct {
	cfg     Config
	look    func(path string) (space, error)
	now     func() time.Time
	reserve *reserve
	files   reserveFiles

	mu   sync.Mutex
	seen []seen // as Places
}

// seen is what is known of a place.
type seen struct {
	space
	level Level
	at    time.Time // zero: never looked at
	err   error
}

// New looks at the places once, and makes room for databases that have none.
func New(cfg Config) *Watch { return newWatch(cfg, lookAt) }

func newWatch(cfg Config, look func(string) (space, error)) *Watch {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	w := &Watch{cfg: cfg, look: look, now: time.Now, seen: make([]seen, len(cfg.Places)),
		reserve: &reserve{path: filepath.Join(cfg.Places[0].Path, reserveFile)},
		files:   reserveFiles{filepath.Join(cfg.Places[0].Path, reserveFolder)}}
	w.lookOnce(0)
	var rest sync.WaitGroup
	for i := range cfg.Places[1:] {
		rest.Go(func() { w.lookOnce(i + 1) })
	}
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		rest.Wait()
	}()
	select {
	case <-looked:
	case <-time.After(patience): // one that other machines serve may be away
	}
	return w
}

// Run goes on looking until ctx ends. Each place is looked at apart from the others, for a disk that has failed may
// never answer.
func (w *Watch) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for i := range w.cfg.Places {
		looking := make(chan struct{})
		go func() {
			defer close(looking)
			for {
				pause := every
				if w.lookOnce(i) >= Refusing {
					pause = everySoon
				}
				select {
				case <-ctx.Done():
					return
				case <-time.After(pause):
				}
			}
		}()
		all.Go(func() {
			select {
			case <-looking:
			case <-ctx.Done(): // whoever hangs in the kernel is left there
			}
		})
	}
	all.Wait()
	return nil
}

// lookOnce looks at a place and returns its level.
func (w *Watch) lookOnce(i int) Level {
	s, err := w.look(w.cfg.Places[i].Path)
	if err == nil && i == 0 && !s.readOnly {
		s = w.keepReserveFiles(w.keepReserve(s))
	}
	w.mu.Lock()
	before := w.seen[i]
	now := seen{space: s, level: judge(s, before.level), at: w.now(), err: err}
	if err != nil {
		now.space, now.level, now.at = before.space, before.level, before.at
	}
	w.seen[i] = now
	w.mu.Unlock()
	if now.level != before.level {
		f := w.filesystem(i)
		w.cfg.Log.Warn("the room on a disk is another matter now", "holds", f.Holds, "was", before.level.String(), "is",
			now.level.String(), "free", units.Bytes(f.Free))
		if w.cfg.Changed != nil && !before.at.IsZero() {
			w.cfg.Changed()
		}
	}
	return now.level
}

// keepReserve gives room to the databases where there is none, and holds it back again where there is. It returns the
// space without what it has given away.
func (w *Watch) keepReserve(s space) space {
	want := reserveFor(s.free + s.used)
	have, err := w.reserve.size()
	switch {
	case err != nil:
	case s.free < lowRoom(want) && have > 0:
		give := min(have, (want+reserveSteps-1)/reserveSteps)
		w.cfg.Log.Warn("the disk is full: the databases get room that was held back for them", "given", units.Bytes(give),
			"left", units.Bytes(have-give))
		if err = w.reserve.shrink(have - give); err == nil {
			have, s.free, s.used = have-give, s.free+give, s.used-min(s.used, give)
		}
	case have < want && s.free-min(s.free, want-have) > roomAgain(want):
		if err = w.reserve.fill(want); err == nil {
			s.free, s.used = s.free-(want-have), s.used+(want-have)
			have = want
		}
	case have > want+want/2: // the file system has become smaller, or is another one
		if err = w.reserve.shrink(want); err == nil {
			have = want
		}
	}
	if err != nil {
		w.cfg.Log.Warn("room for the databases cannot be held back", "err", err)
		return s
	}
	if missing := want - min(have, want); missing > 0 {
		s.free, s.used = s.free-min(s.free, missing), s.used+min(s.free, missing)
	}
	return s
}

// Filesystems are those that hold the places, the one with the databases first.
func (w *Watch) Filesystems() []Filesystem {
	var list []Filesystem
	for i := range w.cfg.Places {
		f := w.filesystem(i)
		if f.Path == w.cfg.Places[i].Path {
			list = append(list, f)
		}
	}
	return list
}

// filesystem describes the one on which a place lies.
func (w *Watch) filesystem(place int) Filesystem {
	w.mu.Lock()
	defer w.mu.Unlock()
	var f Filesystem
	for i, p := range w.cfg.Places {
		s := w.seen[i]
		if i != place && (s.at.IsZero() || s.device != w.seen[place].device) {
			continue
		}
		if f.Path == "" {
			f = Filesystem{Path: p.Path, Free: s.free, Used: s.used, FilesFree: s.filesFree, Files: s.files}
		}
		f.Holds = append(f.Holds, p.Name)
		f.Level = max(f.Level, s.level)
		f.Silent = f.Silent || s.err != nil || w.now().Sub(s.at) > silence
	}
	f.only = len(f.Holds) == len(w.cfg.Places)
	return f
}

// Worst is the file system that is shortest of room.
func (w *Watch) Worst() Filesystem {
	list := w.Filesystems()
	return slices.MaxFunc(list, func(a, b Filesystem) int { return int(a.Level) - int(b.Level) })
}

// Refusal says in plain words why no notebook starts and no image is brought in, "" when they may.
func (w *Watch) Refusal() string {
	f := w.Worst()
	switch {
	case f.Level < Refusing:
		return ""
	case f.Level == ReadOnly:
		return f.Words() + " Nothing new starts; an administrator has to look at the machine."
	}
	return f.Words() + " Nothing new starts before there is more room; what runs goes on. Deleting files that nobody " +
		"needs helps."
}
