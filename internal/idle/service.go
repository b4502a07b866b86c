package idle

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/units"
)

// Config wires a Service. All but Every and Log are required.
type Config struct {
	DB *sql.DB
	// Running are the notebooks that run, each with the policy that holds for it.
	Running func(ctx context.Context) ([]Notebook, error)
	// Queue is who waits for GPUs.
	Queue func(ctx context.Context) (Queue, error)
	// Measure is what pods have used so far, by UID; those that it knows nothing of are left out. It may return what it
	// found together with an error.
	Measure func(ctx context.Context) (map[string]Usage, error)
	// Ask asks a notebook's own server what it does.
	Ask func(ctx context.Context, n Notebook) (Claims, error)
	// Stop stops a notebook for the reason given to its owner; one that has ended is no error.
	Stop func(ctx context.Context, launch int64, cause Cause, reason string) error
	// Audit records what was done.
	Audit func(ctx context.Context, e audit.Entry) error
	// Changed is called after each look and each extension: what people see may have changed.
	Changed func()
	// Every is how often notebooks are looked at, 0 for 15 s.
	Every time.Duration
	Log   *slog.Logger
}

// Service looks after the GPUs that nobody uses. Its methods may be called from any goroutine; things happen while Run
// runs.
type Service struct {
	cfg  Config
	now  func() time.Time
	gpus *watcher

	looking sync.Mutex // one look at a time

	mu       sync.Mutex
	holdings []Holding
	served   map[int64]string // why it was their turn, by launch
	known    map[int64]bool   // launches that this process has looked at before
	usage    map[string]Usage // latest, by pod
	measured map[string]measured
}

// measured is what the latest comparison of a pod's usage gave.
type measured struct {
	at           time.Time // when something new was measured
	cpu, network bool
}

// New returns a service that does nothing before Run.
func New(cfg Config) *Service {
	if cfg.Every == 0 {
		cfg.Every = 15 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Service{cfg: cfg, now: time.Now, gpus: newWatcher(), served: map[int64]string{}, known: map[int64]bool{},
		usage: map[string]Usage{}, measured: map[string]measured{}}
}

// Run looks after notebooks until ctx ends. snapshots are the readings of GPUs.
func (s *Service) Run(ctx context.Context, snapshots <-chan gpu.Snapshot) error {
	var readings sync.WaitGroup
	defer readings.Wait()
	readings.Go(func() { s.gpus.run(ctx, snapshots, s.now) })
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var next time.Time
	failing := ""
	for {
		if now := s.now(); !now.Before(next) || s.due(now) {
			next = now.Add(s.cfg.Every)
			if err := s.look(ctx); err != nil && ctx.Err() == nil {
				if err.Error() != failing {
					failing = err.Error()
					s.cfg.Log.Warn("idle GPUs are not looked after; trying again", "err", err)
				}
			} else {
				failing = ""
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// due tells whether a countdown is over.
func (s *Service) due(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.holdings, func(h Holding) bool { return h.State == Warned && !now.Before(h.Ends) })
}

// Holdings are the running notebooks as they were at the last look, those that have been idle longest first.
func (s *Service) Holdings() []Holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.holdings)
}

// Of is what is known of one running notebook.
func (s *Service) Of(launch int64) (Holding, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.holdings, func(h Holding) bool { return h.Launch == launch })
	if i < 0 {
		return Holding{}, false
	}
	return s.holdings[i], true
}

// effect is what follows from a look once it is written down.
type effect struct {
	entry *audit.Entry
	stop  *Holding // with the reason
	why   string
}

// look measures every running notebook, and does what is to be done.
func (s *Service) look(ctx context.Context) error {
	s.looking.Lock()
	defer s.looking.Unlock()
	running, err := s.cfg.Running(ctx)
	if err != nil {
		return err
	}
	queue, err := s.cfg.Queue(ctx)
	if err != nil {
		return err
	}
	s.measure(ctx)
	claims := s.ask(ctx, running)
	now := s.now()
	effects, err := s.settle(ctx, now, running, queue, claims)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range effects {
		if e.stop != nil {
			errs = append(errs, s.cfg.Stop(ctx, e.stop.Launch, e.stop.Cause, e.why))
		}
		if e.entry != nil {
			errs = append(errs, s.cfg.Audit(ctx, *e.entry))
		}
	}
	s.cfg.Changed()
	return errors.Join(errs...)
}

// measure compares what pods have used with the time before.
func (s *Service) measure(ctx context.Context) {
	usage, err := s.cfg.Measure(ctx)
	if err != nil && ctx.Err() == nil {
		s.cfg.Log.Debug("some notebooks cannot be measured", "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, u := range usage {
		before, ok := s.usage[uid]
		if !ok {
			s.usage[uid] = u
			continue
		}
		cpu, network, known := rates(before, u)
		if u.CPU < before.CPU {
			s.usage[uid] = u // its container began anew
		}
		if known {
			s.usage[uid], s.measured[uid] = u, measured{s.now(), cpu, network}
		}
	}
}

// askTime is how long a notebook has to answer.
const askTime = 4 * time.Second

// ask asks the notebooks' servers what they do; those that do not answer are left out.
func (s *Service) ask(ctx context.Context, running []Notebook) map[int64]*Claims {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	atOnce := make(chan struct{}, 16)
	out := map[int64]*Claims{}
	for _, n := range running {
		if n.GPUs == 0 || n.Policy.Act == Never {
			continue
		}
		all.Go(func() {
			atOnce <- struct{}{}
			defer func() { <-atOnce }()
			c, err := s.cfg.Ask(ctx, n)
			if err != nil {
				s.cfg.Log.Debug("a notebook does not say what it does", "launch", n.Launch, "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out[n.Launch] = &c
		})
	}
	all.Wait()
	return out
}

// readWithin is how fresh the readings of GPUs have to be.
const readWithin = 30 * time.Second

// sight is what was seen of a notebook since the last look.
func (s *Service) sight(n Notebook, r *row, now time.Time, claims *Claims) sight {
	if !s.known[n.Launch] {
		s.known[n.Launch] = true
		return sight{browsed: n.Browsed} // gpulab has just begun: nobody has watched before
	}
	if n.GPUs == 0 {
		return sight{watched: true, browsed: n.Browsed}
	}
	on, m := s.gpus.of(n.PodUID), s.measured[n.PodUID]
	return sight{
		watched: now.Sub(on.read) <= readWithin && now.Sub(m.at) <= tooLong && (claims == nil || !claims.CannotAsk),
		gpu:     on.busy.After(r.looked),
		cpu:     m.cpu && m.at.After(r.looked),
		network: m.network && m.at.After(r.looked),
		claims:  claims,
		browsed: n.Browsed,
	}
}

// settle writes a look down and decides what follows, all in one transaction.
func (s *Service) settle(ctx context.Context, now time.Time, running []Notebook, queue Queue,
	claims map[int64]*Claims) (effects []effect, err error) {
	tx, err := s.cfg.DB.BeginTx(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("look at what is idle: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	rows, err := load(ctx, tx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	for i := range running {
		n := &running[i]
		r, ok := rows[n.Launch]
		if !ok {
			r = begin(*n, now)
			s.known[n.Launch] = true
		}
		r.look(now, s.sight(*n, &r, now, claims[n.Launch]))
		rows[n.Launch] = r
	}
	s.mu.Unlock()
	wanted := match(queue, candidates(now, running, rows))
	for _, n := range running {
		r := rows[n.Launch]
		more, err := s.step(ctx, tx, now, n, &r, wanted)
		if err != nil {
			return nil, err
		}
		if err := save(ctx, tx, r); err != nil {
			return nil, err
		}
		rows[n.Launch] = r
		effects = append(effects, more...)
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM idle WHERE launch_id NOT IN (SELECT id FROM launches WHERE state <> "+
		"'ended')"); err != nil {
		return nil, fmt.Errorf("forget what has ended: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return nil, fmt.Errorf("look at what is idle: %w", err)
	}
	served, err := s.servedNow(ctx)
	if err != nil {
		return nil, err
	}
	s.keep(running, rows, served)
	return effects, nil
}

// keep remembers what pages ask for.
func (s *Service) keep(running []Notebook, rows map[int64]row, served map[int64]string) {
	list := make([]Holding, 0, len(running))
	for _, n := range running {
		r := rows[n.Launch]
		list = append(list, r.holding(n))
	}
	slices.SortStableFunc(list, func(a, b Holding) int { return int(min(max(b.Idle-a.Idle, -1), 1)) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holdings, s.served = list, served
	known, pods := map[int64]bool{}, map[string]bool{}
	for _, n := range running {
		known[n.Launch], pods[n.PodUID] = true, true
	}
	maps.DeleteFunc(s.known, func(launch int64, _ bool) bool { return !known[launch] })
	gone := func(uid string) bool { return !pods[uid] }
	maps.DeleteFunc(s.usage, func(uid string, _ Usage) bool { return gone(uid) })
	maps.DeleteFunc(s.measured, func(uid string, _ measured) bool { return gone(uid) })
}

// candidates are the notebooks that have not been used for long enough.
func candidates(now time.Time, running []Notebook, rows map[int64]row) []candidate {
	var list []candidate
	for _, n := range running {
		r := rows[n.Launch]
		if !r.idly(n, now) {
			continue
		}
		list = append(list, candidate{launch: n.Launch, node: n.Node, gpus: n.GPUs, warned: r.state == Warned &&
			r.cause == CauseIdle,
			anyway: n.Policy.Act == Always, idle: int64(now.Sub(r.used(n.Policy)))})
	}
	return list
}

// idly tells whether a notebook may be warned, or stay warned, for not being used.
func (r *row) idly(n Notebook, now time.Time) bool {
	return n.GPUs > 0 && n.Policy.Act != Never && r.state != Stopped && !now.Before(r.until) &&
		(now.Sub(r.used(n.Policy)) >= n.Policy.After || r.forgotten(n, now))
}

// old tells whether a notebook has to be warned for its age.
func (r *row) old(n Notebook, now time.Time) bool {
	return n.Policy.MaxAge > 0 && now.Sub(r.began) >= n.Policy.MaxAge-n.Policy.Countdown
}

// step takes one notebook where it belongs.
func (s *Service) step(ctx context.Context, tx *sql.Tx, now time.Time, n Notebook, r *row,
	wanted map[int64]Waiting) ([]effect, error) {
	w, isWanted := wanted[n.Launch]
	idle := r.idly(n, now) && (isWanted || n.Policy.Act == Always)
	old := r.old(n, now)
	switch r.state {
	case Stopped: // and gpulab was interrupted before it could do so
		h := r.holding(n)
		return []effect{{stop: &h, why: r.reason}}, nil
	case Warned:
		r.wantedLaunch, r.wantedBy = w.Launch, w.Handle
		switch {
		case r.cause == CauseIdle && !idle, r.cause == CauseAge && !old:
			return []effect{{entry: r.withdraw(n, now)}}, nil
		case now.Before(r.ends):
			return nil, nil
		}
		h := r.holding(n)
		reason := stopWords(h)
		done, err := decide(ctx, tx, r, h, r.cause, reason, "system", now)
		if err != nil || !done {
			return nil, err
		}
		h.State = Stopped
		return []effect{{stop: &h, why: reason, entry: &audit.Entry{Actor: "system", Action: "idle.stop", Target: n.Handle,
			Detail: audited(h)}}}, nil
	}
	if r.extensions > 0 && !old && now.Sub(r.used(n.Policy)) < n.Policy.After && !r.forgotten(n, now) {
		r.extensions, r.until = 0, time.Time{} // it is in use again
	}
	switch {
	case old && !now.Before(r.until):
		r.cause = CauseAge
	case idle:
		r.cause, r.wantedLaunch, r.wantedBy = CauseIdle, w.Launch, w.Handle
	default:
		return nil, nil
	}
	r.state, r.warned, r.ends = Warned, now, now.Add(n.Policy.Countdown)
	if r.cause == CauseIdle && r.forgotten(n, now) {
		r.ends = later(r.began.Add(n.Policy.Unopened), now.Add(n.Policy.Unopened/2))
	}
	h := r.holding(n)
	return []effect{{entry: &audit.Entry{Actor: "system", Action: "idle.warn", Target: n.Handle, Detail: audited(h)}}}, nil
}

// withdraw takes a warning back.
func (r *row) withdraw(n Notebook, now time.Time) *audit.Entry {
	why := "nobody waits any more"
	if now.Sub(r.used(n.Policy)) < n.Policy.After {
		why = "in use again"
		r.extensions, r.until = 0, time.Time{}
	}
	if now.Equal(r.opened) {
		why = "it was opened"
	}
	r.state, r.cause, r.warned, r.ends, r.wantedLaunch, r.wantedBy = Free, "", time.Time{}, time.Time{}, 0, ""
	return &audit.Entry{
		Actor: "system", Action: "idle.withdraw", Target: n.Handle, Detail: fmt.Sprintf("launch %d, %s", n.Launch, why),
	}
}

// Extend keeps a warned notebook for a while longer, because its owner still needs it. Whose it is, the caller checks.
// Asked twice in a moment it does it once. Errors: ErrNotWarned, ErrNoMore, ErrTooLate.
func (s *Service) Extend(ctx context.Context, launch int64) (Holding, error) {
	h, ok := s.Of(launch)
	if !ok {
		return Holding{}, s.tooLate(ctx, launch)
	}
	now := s.now()
	until := now.Add(h.Policy.Extend)
	res, err := s.cfg.DB.ExecContext(ctx, `UPDATE idle
		SET state = 'free', cause = '', warned_at = 0, ends_at = 0, wanted_launch = 0, wanted_by = '',
		until = ?, extensions = extensions + 1 WHERE launch_id = ? AND state = 'warned'
		AND extensions < ?`, milli(until), launch, h.Policy.Extensions)
	if err != nil {
		return Holding{}, fmt.Errorf("keep launch %d: %w", launch, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return Holding{}, fmt.Errorf("keep launch %d: %w", launch, err)
	}
	h, err = s.reread(ctx, h.Notebook)
	switch {
	case err != nil:
		return Holding{}, err
	case n == 1:
		s.cfg.Changed()
		return h, nil
	case h.State == Stopped:
		return h, ErrTooLate
	case h.State == Warned:
		return h, ErrNoMore
	case h.Until.After(now):
		return h, nil // a second click
	}
	return h, ErrNotWarned
}

// tooLate tells of a notebook that does not run whether it was taken back.
func (s *Service) tooLate(ctx context.Context, launch int64) error {
	list, err := s.reclaims(ctx, "launch_id = ?", launch)
	if err != nil {
		return err
	}
	if len(list) > 0 {
		return ErrTooLate
	}
	return ErrNotWarned
}

// reread takes one notebook's row from the database into what pages see.
func (s *Service) reread(ctx context.Context, n Notebook) (Holding, error) {
	r, err := scan(s.cfg.DB.QueryRowContext(ctx, "SELECT "+columns+" FROM idle WHERE launch_id = ?", n.Launch))
	if errors.Is(err, sql.ErrNoRows) {
		return Holding{}, s.tooLate(ctx, n.Launch)
	}
	if err != nil {
		return Holding{}, fmt.Errorf("read launch %d: %w", n.Launch, err)
	}
	h := r.holding(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.holdings, func(o Holding) bool { return o.Launch == n.Launch }); i >= 0 {
		s.holdings[i] = h
	}
	return h, nil
}

// Free stops a notebook whose GPUs nobody uses, because somebody decided so. Whether they may, the caller checks; it
// also records it. Errors: ErrNotIdle, ErrTooLate for one that is stopped already.
func (s *Service) Free(ctx context.Context, launch int64, by string) (Holding, error) {
	s.looking.Lock()
	defer s.looking.Unlock()
	h, ok := s.Of(launch)
	if !ok {
		return Holding{}, s.tooLate(ctx, launch)
	}
	tx, err := s.cfg.DB.BeginTx(ctx, nil)
	if err != nil {
		return h, fmt.Errorf("free launch %d: %w", launch, err)
	}
	defer func() { _ = tx.Rollback() }()
	rows, err := load(ctx, tx)
	if err != nil {
		return h, err
	}
	r, ok := rows[launch]
	if !ok || r.state == Stopped {
		return h, ErrTooLate
	}
	// It may be in use again since the last look, or that may have been long ago.
	if h = r.holding(h.Notebook); !h.Idly() || s.gpus.of(h.PodUID).busy.After(r.looked) ||
		s.now().Sub(r.looked) > 2*s.cfg.Every+readWithin {
		return h, ErrNotIdle
	}
	reason := fmt.Sprintf("It was stopped by %s: nobody had used its GPU for %s. %s", by, units.Lasting(h.Idle), homeStays)
	done, err := decide(ctx, tx, &r, h, CauseFreed, reason, by, s.now())
	if err != nil {
		return h, err
	}
	if !done {
		return h, ErrTooLate
	}
	if err := tx.Commit(); err != nil {
		return h, fmt.Errorf("free launch %d: %w", launch, err)
	}
	h.State, h.Cause = Stopped, CauseFreed
	if err := s.cfg.Stop(ctx, launch, CauseFreed, reason); err != nil {
		return h, err // the next look does it
	}
	s.cfg.Changed()
	return h, nil
}

// servedNow says of launches that have not ended why it was their turn.
func (s *Service) servedNow(ctx context.Context) (map[int64]string, error) {
	list, err := s.reclaims(ctx, "wanted_launch IN (SELECT id FROM launches WHERE state <> 'ended') ORDER BY id")
	if err != nil {
		return nil, err
	}
	served := map[int64]string{}
	for _, r := range list {
		served[r.ForLaunch] = fmt.Sprintf("It got the GPU of a notebook of %s that was stopped for it: nobody had used "+
			"it for %s.",
			r.User, units.Lasting(r.Idle))
	}
	return served, nil
}
