package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/units"
)

// environmentKeeper keeps the lab's environments on a joined machine as the head
// has them: what is missing the head hands over, what it has no more goes.
type environmentKeeper struct {
	dir     string
	service *environments.Service // opened by watch, who then closes ready
	ready   chan struct{}
	list    func(context.Context) (nodeapi.Environments, error)
	get     func(ctx context.Context, id string) (io.ReadCloser, error)
	free    func() (bytes int64, known bool)
	wake    chan struct{} // has room for one

	mu     sync.Mutex
	want   string // the version of the head's list, as it said last; "" before, and of a head that hands over none
	state  nodeapi.EnvironmentState
	looked bool // who uses them is known
}

// spareRoom is what an environment has to leave free on a machine's disk.
const spareRoom = 1 << 30

// usesEvery is how often a machine looks which of its pods use environments.
const usesEvery = 3 * time.Second

// mostUses bounds what the head is told of that: people choose what their programs
// say of themselves.
const mostUses = 500

func (g *agent) newEnvironmentKeeper() *environmentKeeper {
	dir := filepath.Join(g.cfg.DataDir, "environments")
	return &environmentKeeper{
		dir: dir, list: g.client.Environments, get: g.client.Environment,
		free: func() (int64, bool) {
			free, _, known := roomIn(dir)
			return int64(free), known
		},
		wake: make(chan struct{}, 1), ready: make(chan struct{}),
	}
}

// obey takes from the head's orders which list of environments is the newest.
func (k *environmentKeeper) obey(version string) {
	k.mu.Lock()
	news := version != "" && version != k.want
	k.want = version
	k.mu.Unlock()
	if news {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}

// told is what the head is told of it; nil before that is known.
func (k *environmentKeeper) told() *nodeapi.EnvironmentState {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.looked {
		return nil
	}
	s := k.state
	s.Have, s.Uses = slices.Clone(s.Have), slices.Clone(s.Uses)
	return &s
}

func (k *environmentKeeper) note(change func(*nodeapi.EnvironmentState)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.state)
}

func (k *environmentKeeper) wanted() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.want
}

// run keeps the environments right until ctx ends.
func (k *environmentKeeper) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-k.ready:
	}
	pause := imagesEvery
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
		case <-time.After(pause):
		}
		if k.wanted() == "" {
			continue
		}
		err := k.converge(ctx)
		if ctx.Err() != nil {
			return nil
		}
		k.note(func(s *nodeapi.EnvironmentState) {
			s.Loading, s.Done, s.Failed = "", 0, ""
			if err != nil {
				s.Failed = err.Error()
			}
		})
		switch {
		case err == nil:
			pause = imagesEvery
		case pause == imagesEvery:
			slog.Warn("this machine lacks environments of the lab; trying again", "err", err)
			pause = imagesAgain
		default:
			pause = min(2*pause, imagesAgainAtMost)
		}
	}
}

// open waits until the folders are there; ctx ended says that they are not.
func (k *environmentKeeper) open(ctx context.Context) error {
	for {
		var err error
		if k.service, err = environments.New(ctx, environments.Config{Dir: k.dir, Log: slog.Default()}); err == nil {
			k.note(func(s *nodeapi.EnvironmentState) { s.Failed = "" })
			close(k.ready)
			return nil
		}
		slog.Warn("this machine can have no environments; trying again", "err", err)
		k.mu.Lock()
		k.state.Failed, k.looked = err.Error(), true // where there is no folder, nothing is used
		k.mu.Unlock()
		if !sleep(ctx, imagesAgainAtMost) {
			return ctx.Err()
		}
	}
}

// watch opens this machine's environments, and keeps an eye on which pods use them,
// until ctx ends.
func (k *environmentKeeper) watch(ctx context.Context) error {
	if err := k.open(ctx); err != nil {
		return nil //nolint:nilerr // it has ended before
	}
	tidy := make(chan error, 1)
	go func() { tidy <- k.service.Run(ctx) }()
	said := ""
	for {
		err := k.lookForUses()
		if err == nil {
			said = ""
		} else if said != err.Error() {
			said = err.Error()
			slog.Warn("who uses environments on this machine is not known", "err", err)
		}
		if !sleep(ctx, usesEvery) {
			return <-tidy
		}
	}
}

func (k *environmentKeeper) lookForUses() error {
	uses, err := k.uses("/proc")
	if err == nil {
		k.mu.Lock()
		k.state.Uses, k.looked = uses, true
		k.mu.Unlock()
	}
	return err
}

// uses are the pods here in which programs of environments run that are here.
func (k *environmentKeeper) uses(proc string) (uses []nodeapi.EnvironmentUse, err error) {
	list, err := k.look()
	if err != nil || len(list) == 0 {
		return nil, err
	}
	pods, err := environmentPods(proc, "")
	for _, p := range pods {
		if len(uses) < mostUses && slices.ContainsFunc(list, func(e environments.Environment) bool {
			return e.ID() == p.environment
		}) {
			uses = append(uses, nodeapi.EnvironmentUse{ID: p.environment, Pod: p.uid})
		}
	}
	return uses, err
}

// converge removes what is wanted no more, and then brings in what is missing, the
// smallest first.
func (k *environmentKeeper) converge(ctx context.Context) error {
	want, err := k.list(ctx)
	if err != nil {
		return err
	}
	have, err := k.service.List()
	if err != nil {
		return err
	}
	for i := range have {
		e := &have[i]
		if slices.ContainsFunc(want.List, func(w nodeapi.Environment) bool { return w.Mark == e.Mark() }) {
			continue
		}
		// Whether somebody uses it was asked on the head.
		if _, err := k.service.Remove(ctx, e.ID(), true); err != nil {
			return err
		}
		slog.Info("an environment was removed that the lab has no more", "environment", e.ID())
	}
	broken, err := k.service.Broken()
	if err != nil {
		return err
	}
	for _, id := range broken {
		if slices.ContainsFunc(want.List, func(w nodeapi.Environment) bool { return w.ID == id }) {
			continue // see take
		}
		if err := k.service.Discard(ctx, id); err != nil {
			return err
		}
		slog.Info("what could not be read was removed, and the lab has no such environment", "environment", id)
	}
	if _, err := k.look(); err != nil {
		return err
	}
	slices.SortStableFunc(want.List, func(a, b nodeapi.Environment) int { return cmp.Compare(a.Size, b.Size) })
	var errs []error // one that cannot be had holds up no other
	for _, w := range want.List {
		if k.has(w.Mark) {
			continue
		}
		if err := k.take(ctx, w); err != nil {
			errs = append(errs, fmt.Errorf("the environment %s: %w", w.ID, err))
			continue
		}
		if _, err := k.look(); err != nil {
			return err
		}
	}
	return errors.Join(append(errs, k.choose(ctx, want.Default))...)
}

func (k *environmentKeeper) has(mark string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Contains(k.state.Have, mark)
}

// look notes which environments are here, and lists them.
func (k *environmentKeeper) look() ([]environments.Environment, error) {
	list, err := k.service.List()
	if err != nil {
		return nil, err
	}
	var have []string
	for i := range list {
		have = append(have, list[i].Mark())
	}
	k.note(func(s *nodeapi.EnvironmentState) { s.Have = have })
	return list, nil
}

// take brings in one environment.
func (k *environmentKeeper) take(ctx context.Context, w nodeapi.Environment) error {
	if free, known := k.free(); known && free < w.Size+spareRoom {
		return fmt.Errorf("it takes %s, and %s are free; make room on this machine's disk",
			units.Bytes(uint64(max(w.Size, 0))), units.Bytes(uint64(max(free, 0))))
	}
	began := time.Now()
	k.note(func(s *nodeapi.EnvironmentState) { s.Loading, s.Done = w.ID, 0 })
	file, err := k.get(ctx, w.ID)
	if err != nil {
		return err
	}
	defer file.Close()
	coming := &coming{r: file, free: k.free, at: func(n int64) {
		k.note(func(s *nodeapi.EnvironmentState) { s.Done = n })
	}}
	e, err := k.service.Import(ctx, coming)
	switch {
	case coming.err != nil:
		return coming.err // what Import says comes of it
	case errors.Is(err, environments.ErrExists):
		if _, err := k.look(); err != nil || k.has(w.Mark) {
			return err // it could not be read for a moment
		}
		return errors.Join(errors.New("what lay in its place could not be read; it is brought in anew"),
			k.service.Discard(ctx, w.ID))
	case err != nil:
		return err
	case e.Mark() != w.Mark:
		_, err := k.service.Remove(ctx, e.ID(), true)
		return errors.Join(errors.New("the head has another one by now"), err)
	}
	slog.Info("an environment was handed over", "environment", w.ID, "size", w.Size, "took",
		time.Since(began).Round(time.Millisecond))
	return nil
}

// coming is what the head hands over. It ends when the disk gets full: what else
// writes there matters more.
type coming struct {
	r      io.Reader
	free   func() (bytes int64, known bool)
	at     func(n int64)
	n      int64
	looked int64 // after how many bytes it was last looked
	err    error // why it ended before its end
}

// lookAfter is after how many bytes, packed, it is looked again how much room there is.
const lookAfter = 32 << 20

func (c *coming) Read(p []byte) (int, error) {
	if c.n == 0 || c.n-c.looked >= lookAfter {
		c.looked = c.n
		if free, known := c.free(); known && free < spareRoom {
			c.err = fmt.Errorf("this machine's disk got too full for it, with %s free; make room there",
				units.Bytes(uint64(max(free, 0))))
			return 0, c.err
		}
	}
	n, err := c.r.Read(p)
	c.n += int64(n)
	c.at(c.n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = fmt.Errorf("the connection to the head broke off: %w", err)
	}
	return n, err
}

// choose makes an environment the one that new notebooks here begin with, "" none,
// once it is here.
func (k *environmentKeeper) choose(ctx context.Context, id string) error {
	list, err := k.service.List()
	if err != nil {
		return err
	}
	before := ""
	for i := range list {
		if list[i].Default {
			before = list[i].ID()
		}
	}
	if before == id || id != "" && !slices.ContainsFunc(list, func(e environments.Environment) bool {
		return e.ID() == id
	}) {
		return nil
	}
	_, err = k.service.SetDefault(ctx, id)
	return err
}
