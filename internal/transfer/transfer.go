// Package transfer copies files and folders between this computer and a lab over SFTP, and goes on where it stopped.
//
// A file is copied to a name of its own beside the target, NAME.ID.partial, and gets its name when it is complete;
// ID is made of the source's name, size and time, so that what is found again is of the same source. A file that is
// there already with the same size and time is left as it is.
//
// It knows nothing of gpulab but the subsystem for checksums, and builds for Linux, macOS and Windows. internal/client
// imports it.
package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
)

// Links says what becomes of symbolic links that a folder holds.
type Links string

// The choices. What is named on the command line itself is always followed.
const (
	LinksCopy   Links = "copy"   // as links, with the same text
	LinksFollow Links = "follow" // what they lead to
	LinksSkip   Links = "skip"
)

// AllLinks lists the choices, the usual one first.
func AllLinks() []Links { return []Links{LinksCopy, LinksFollow, LinksSkip} }

// Options say how to copy. The zero value works.
type Options struct {
	Recursive bool
	// Check compares checksums of both sides, also of files that seem the same.
	Check bool
	Links Links
	// AtOnce is how many files are under way at a time.
	AtOnce int
	// Patience is how long a connection that was lost is tried again without anything moving.
	Patience time.Duration
	// Note hears, in words, of what went wrong and was left out as it happens.
	Note func(text string)
}

func (o Options) orUsual() Options {
	if o.Links == "" {
		o.Links = LinksCopy
	}
	if o.AtOnce == 0 {
		o.AtOnce = 8
	}
	if o.Patience == 0 {
		o.Patience = 10 * time.Minute
	}
	if o.Note == nil {
		o.Note = func(string) {}
	}
	return o
}

// Dial connects and signs in to the lab. An error that is a *Refusal is not tried again.
type Dial func(ctx context.Context) (*ssh.Client, error)

// Refusal is a connection that will not come about however often it is tried.
type Refusal struct{ Cause error }

func (r *Refusal) Error() string { return r.Cause.Error() }
func (r *Refusal) Unwrap() error { return r.Cause }

// Failure is something that was not copied, or left out, and why.
type Failure struct {
	Path  string `json:"path"`
	Error string `json:"error"`
}

// Summary is what a run came to.
type Summary struct {
	Copied    int64 `json:"copied"`    // files
	Unchanged int64 `json:"unchanged"` // files that were there already
	Links     int64 `json:"links"`
	Folders   int64 `json:"folders"` // that were made
	// Bytes were sent in this run; Kept had arrived in an earlier one, of files that were not complete then.
	Bytes    int64     `json:"bytes"`
	Kept     int64     `json:"kept"`
	Seconds  float64   `json:"seconds"`
	Reopened int64     `json:"reconnects"`
	Skipped  []Failure `json:"skipped"`
	Failed   []Failure `json:"failed"`
}

// Progress is how far a run is.
type Progress struct {
	Files, FilesFound int64
	// Done counts all bytes that are there, Found all of the sources, Sent those of this run.
	Done, Found, Sent int64
	// Looking is true while not all of the sources are found.
	Looking bool
	// Lost is true while there is no connection.
	Lost bool
}

// maxFailures ends a run in which nothing goes well.
const maxFailures = 100

// errTooMany ends it.
var errTooMany = fmt.Errorf("%d files could not be copied, so the rest was not tried", maxFailures)

// Run is one run of copying. It is used once.
type Run struct {
	opts Options
	link *link

	files, filesFound  atomic.Int64
	done, found, sent  atomic.Int64
	copied, unchanged  atomic.Int64
	links, folders     atomic.Int64
	kept               atomic.Int64
	looking            atomic.Bool
	local              map[string]string // names by how a file system that ignores case sees them
	mu                 sync.Mutex
	skipped, failed    []Failure
	began              time.Time
	stop               context.CancelCauseFunc
	reader             source
	writer             target
	move               func(ctx context.Context, j *job) error
	jobs               chan *job
	sourceSum, destSum func(ctx context.Context, path string) (string, error)
}

// New prepares a run.
func New(dial Dial, opts Options) *Run {
	opts = opts.orUsual()
	r := &Run{opts: opts, local: map[string]string{}, jobs: make(chan *job, 4096)}
	r.link = newLink(dial, opts.Patience, opts.Note)
	return r
}

// Progress is how far the run is now. It may be called from any goroutine.
func (r *Run) Progress() Progress {
	return Progress{Files: r.files.Load(), FilesFound: r.filesFound.Load(), Done: r.done.Load(), Found: r.found.Load(),
		Sent:    r.sent.Load(),
		Looking: r.looking.Load(), Lost: r.link.lost.Load()}
}

// run walks the sources and copies what they hold.
func (r *Run) run(ctx context.Context, walk func(ctx context.Context) error) (Summary, error) {
	defer r.link.close()
	ctx, r.stop = context.WithCancelCause(ctx)
	defer r.stop(nil)
	stopLink := context.AfterFunc(ctx, r.link.close)
	defer stopLink()
	r.began = time.Now()
	r.looking.Store(true)
	var workers sync.WaitGroup
	for range r.opts.AtOnce {
		workers.Go(func() {
			for j := range r.jobs {
				if ctx.Err() == nil {
					r.work(ctx, j)
				}
			}
		})
	}
	err := walk(ctx)
	r.looking.Store(false)
	close(r.jobs)
	workers.Wait()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return r.summary(), err
}

func (r *Run) summary() Summary {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Summary{Copied: r.copied.Load(), Unchanged: r.unchanged.Load(), Links: r.links.Load(), Folders: r.folders.Load(),
		Bytes: r.sent.Load(),
		Kept:  r.kept.Load(), Seconds: time.Since(r.began).Seconds(), Reopened: r.link.reopened.Load(), Skipped: r.skipped,
		Failed: r.failed}
	if s.Skipped == nil {
		s.Skipped = []Failure{}
	}
	if s.Failed == nil {
		s.Failed = []Failure{}
	}
	return s
}

// work copies one file, and notes what came of it.
func (r *Run) work(ctx context.Context, j *job) {
	err := r.copyOne(ctx, j)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		r.files.Add(1)
	default:
		r.fail(j.from, err)
		var refusal *Refusal
		if errors.As(err, &refusal) {
			r.stop(err)
		}
	}
}

// fail notes a failure and goes on, up to a point.
func (r *Run) fail(path string, err error) {
	r.mu.Lock()
	r.failed = append(r.failed, Failure{path, err.Error()})
	n := len(r.failed)
	r.mu.Unlock()
	r.opts.Note(fmt.Sprintf("%s was not copied: %v", path, err))
	if n >= maxFailures && r.stop != nil {
		r.stop(errTooMany)
	}
}

// skip notes what is left out on purpose.
func (r *Run) skip(path, why string) {
	r.mu.Lock()
	r.skipped = append(r.skipped, Failure{path, why})
	r.mu.Unlock()
	r.opts.Note(fmt.Sprintf("%s was left out: %s", path, why))
}
