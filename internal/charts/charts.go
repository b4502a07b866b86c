// Package charts brings the cluster's add-ons to what this version of gpulab
// wants and keeps them there: CoreDNS, NVIDIA's device plugin,
// GPU feature discovery, the hub, Kueue, the package cache, and the few objects they share.
//
// It is the only home of the Helm SDK. The charts are embedded; nothing is
// fetched. [Plan] turns what is known about this machine into releases,
// [Manager.Apply] makes the cluster match them. Apply converges: a release that
// is as wanted is left alone, one that somebody edited or deleted parts of is
// repaired, one that a kill left half-done is finished, and one that does not
// become ready is taken back to its last good revision.
//
// The package imports nothing of gpulab but the embedded files.
package charts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// defaultTimeout is how long a release may take to become ready where it names
// no time itself. Images are on the node before, so minutes mean a fault.
const defaultTimeout = 3 * time.Minute

// Release is one chart as it should stand in the cluster.
type Release struct {
	Name      string
	Namespace string         // made if it is missing
	Chart     string         // folder below the embedded charts
	Values    map[string]any // over the chart's own; never logged
	After     []string       // releases that must be ready before this one starts
	Timeout   time.Duration  // until ready; zero means three minutes
	Absent    bool           // the release must not exist

	// Background releases are written, but not waited for and not taken back:
	// nothing needs them, and they would only make everything else wait.
	// Status tells whether they run.
	Background bool

	// Replace writes changed objects whole, where Helm would write what has
	// changed: Kubernetes keeps a copy of some fields under an older name, and
	// brings back what was removed under the newer one only.
	Replace bool
}

// Manager applies releases to one cluster. It holds no connection between
// calls, so it survives restarts of the API server and a renewed kubeconfig.
type Manager struct {
	kubeconfig string
	log        *slog.Logger

	// applying serialises Apply and Remove: Helm has no lock of its own that
	// would outlive a kill, so gpulab, the only writer, must not compete with
	// itself.
	applying sync.Mutex
}

// New returns a Manager for the cluster that the kubeconfig file describes. The
// file is read at every call. Helm's own messages go to log at debug level.
func New(kubeconfig string, log *slog.Logger) *Manager {
	return &Manager{kubeconfig: kubeconfig, log: log.With("part", "charts")}
}

// Phase says what is being done to a release.
type Phase string

// The phases of a release, in the order in which they can follow each other.
const (
	Checking    Phase = "checking"     // comparing with the cluster
	Applying    Phase = "applying"     // objects are being written
	Waiting     Phase = "waiting"      // objects are written, not all are ready
	Unchanged   Phase = "unchanged"    // end: it was as wanted
	Installed   Phase = "installed"    // end: it is new and ready
	Upgraded    Phase = "upgraded"     // end: it changed and is ready
	Repaired    Phase = "repaired"     // end: it had drifted and is as wanted again
	Removed     Phase = "removed"      // end: it is gone
	RollingBack Phase = "rolling back" // it did not become ready
	Failed      Phase = "failed"       // end: see Err
	Skipped     Phase = "skipped"      // end: a release it needs has failed
)

// A TakenBackError is why a release did not become ready; the revision before
// it runs again. Another Apply would end that one once more.
type TakenBackError struct{ Err error }

func (e *TakenBackError) Error() string { return e.Err.Error() }

func (e *TakenBackError) Unwrap() error { return e.Err }

// Done reports whether no further event follows for the release.
func (p Phase) Done() bool {
	switch p {
	case Unchanged, Installed, Upgraded, Repaired, Removed, Failed, Skipped:
		return true
	}
	return false
}

// Event is one step of an Apply, for a person who watches.
type Event struct {
	Release string
	Phase   Phase
	Detail  string        // what it waits for or what was mended, in plain words; may be empty
	Elapsed time.Duration // since work on this release began
	Err     error         // with Failed only
}

// Apply brings every release to its wanted state and returns when all are ready
// or one has failed. Releases start in the order given as far as After allows,
// independent ones run side by side. One failure does not stop its neighbours;
// the error joins all of them. When ctx ends, Apply returns soon with its error
// and leaves what is written in place: the next Apply goes on from there.
//
// progress may be nil; it is called from one goroutine at a time.
func (m *Manager) Apply(ctx context.Context, releases []Release, progress func(Event)) error {
	if err := checkOrder(releases); err != nil {
		return err
	}
	m.applying.Lock()
	defer m.applying.Unlock()

	s, err := m.open()
	if err != nil {
		return err
	}
	if err := s.ensureNamespaces(ctx, releases); err != nil {
		return err
	}

	report := serialised(progress)
	finished := make(map[string]*outcome, len(releases))
	for _, r := range releases {
		finished[r.Name] = &outcome{done: make(chan struct{})}
	}
	for _, r := range releases {
		go func() {
			out := finished[r.Name]
			defer close(out.done)
			out.err = s.applyInTurn(ctx, r, finished, report)
		}()
	}
	var errs []error
	for _, r := range releases {
		<-finished[r.Name].done
		if err := finished[r.Name].err; err != nil && !errors.Is(err, errSkipped) {
			errs = append(errs, err)
		}
	}
	if ctx.Err() != nil {
		// Every release reports the same interruption; once is enough.
		return fmt.Errorf("applying charts: %w", ctx.Err())
	}
	return errors.Join(errs...)
}

// outcome is how work on one release ended; err may be read once done is closed.
type outcome struct {
	done chan struct{}
	err  error
}

var errSkipped = errors.New("a release it needs has failed")

// applyInTurn waits for what r needs, then applies it and reports how it ended.
func (s *session) applyInTurn(ctx context.Context, r Release, others map[string]*outcome, report func(Event)) error {
	for _, name := range r.After {
		select {
		case <-others[name].done:
			if others[name].err != nil {
				report(Event{Release: r.Name, Phase: Skipped, Detail: name + " has failed"})
				return errSkipped
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	job := &job{session: s, release: r, started: time.Now(), report: report}
	phase, detail, err := job.run(ctx)
	if err != nil {
		err = fmt.Errorf("chart %s: %w", r.Name, err)
		job.event(Failed, "", err)
		return err
	}
	job.event(phase, detail, nil)
	return nil
}

// checkOrder refuses releases that name each other in a circle, twice, or not at all.
func checkOrder(releases []Release) error {
	seen := map[string]bool{}
	for _, r := range releases {
		if seen[r.Name] {
			return fmt.Errorf("release %s is given twice", r.Name)
		}
		for _, name := range r.After {
			if !seen[name] {
				return fmt.Errorf("release %s must come after %s, which does not stand before it", r.Name, name)
			}
		}
		seen[r.Name] = true
	}
	return nil
}

// serialised makes calls to progress follow one another; a nil one is left out.
func serialised(progress func(Event)) func(Event) {
	if progress == nil {
		return func(Event) {}
	}
	var mu sync.Mutex
	return func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		progress(e)
	}
}
