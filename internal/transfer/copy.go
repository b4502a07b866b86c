package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/pkg/sftp"
)

const (
	// inFlight is how many pieces of a file are under way at a time, of pieceSize bytes each.
	inFlight  = 64
	pieceSize = 32 << 10
	// rewind is how much of what has arrived is sent once more: the last pieces may have arrived out of order, and
	// the connection have ended between them.
	rewind = 2 * inFlight * pieceSize
)

// errChanged is of a source that somebody writes to.
var errChanged = errors.New("it changed while it was copied; copy it again when nothing writes to it")

// copyOne copies a file unless it is there.
func (r *Run) copyOne(ctx context.Context, j *job) error {
	if j.there != nil && j.there.isFolder() {
		return errInTheWay
	}
	if j.there != nil && j.of.same(*j.there) {
		if same, err := r.checked(ctx, j); err != nil || same {
			r.done.Add(j.of.size)
			r.unchanged.Add(1)
			return err
		}
	}
	part := path.Join(path.Dir(j.to), partialName(j.of, path.Base(j.to)))
	for tries := 1; ; tries++ {
		if err := r.move(ctx, &job{from: j.from, to: part, of: j.of}); err != nil {
			return err
		}
		if now, err := r.reader.stat(ctx, j.from); err != nil || !j.of.untouched(now) {
			_ = r.writer.remove(ctx, part)
			return errors.Join(errChanged, err)
		}
		same, err := r.checked(ctx, &job{from: j.from, to: part})
		if err != nil {
			return err
		}
		if same {
			break
		}
		// What was found of an earlier run, or the way here, was damaged.
		if err := r.writer.remove(ctx, part); err != nil {
			return err
		}
		r.done.Add(-j.of.size)
		if tries == 2 {
			return errors.New("the copy is not the same as the source, twice; does something change it meanwhile?")
		}
	}
	if err := r.writer.finish(ctx, part, j.to, j.of); err != nil {
		return err
	}
	for _, old := range j.stale {
		_ = r.writer.remove(ctx, old) // of no use any more, and no reason to fail
	}
	r.copied.Add(1)
	return nil
}

// checked compares checksums, where that is asked for.
func (r *Run) checked(ctx context.Context, j *job) (bool, error) {
	if !r.opts.Check {
		return true, nil
	}
	want, err := r.sourceSum(ctx, j.from)
	if err != nil {
		return false, err
	}
	got, err := r.destSum(ctx, j.to)
	return got == want, err
}

// resumeAt is from where to go on with a copy of which size bytes are there.
func resumeAt(size int64, of entry) int64 {
	if size > of.size {
		return 0
	}
	return max(0, size-rewind)
}

// tally counts what of one file is there, also when it is done again.
type tally struct {
	run     *Run
	counted int64
}

func (t *tally) set(to int64) {
	t.run.done.Add(to - t.counted)
	t.counted = to
}

func (t *tally) add(n int) {
	t.run.done.Add(int64(n))
	t.run.sent.Add(int64(n))
	t.counted += int64(n)
	t.run.link.moved()
}

// send copies a file of this computer into the lab.
func (r *Run) send(ctx context.Context, j *job) error {
	from, err := os.Open(j.from)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	count := &tally{run: r}
	first := true
	err = r.link.do(ctx, func(c *sftp.Client) error {
		have, err := c.Lstat(j.to)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		flags, at := os.O_WRONLY|os.O_CREATE, int64(0)
		if err == nil {
			if !have.Mode().IsRegular() {
				return errInTheWay
			}
			at = resumeAt(have.Size(), j.of)
		}
		if at == 0 {
			flags |= os.O_TRUNC
		}
		to, err := c.OpenFile(j.to, flags)
		if err != nil {
			return err
		}
		defer func() { _ = to.Close() }()
		if first {
			r.kept.Add(at)
			first = false
		}
		count.set(at)
		if _, err := to.Seek(at, io.SeekStart); err != nil {
			return err
		}
		source := &reading{ctx: ctx, from: io.NewSectionReader(from, at, j.of.size-at), count: count}
		if _, err := to.ReadFromWithConcurrency(source, inFlight); err != nil {
			return err
		}
		return to.Close()
	})
	if err != nil {
		count.set(0)
		return err
	}
	arrived, err := r.writer.lstat(ctx, j.to)
	if err == nil && arrived.size != j.of.size {
		err = errChanged
	}
	return err
}

// reading counts what is read, and ends with its context.
type reading struct {
	ctx   context.Context
	from  io.Reader
	count *tally
}

func (r *reading) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	n, err := r.from.Read(p)
	r.count.add(n)
	return n, err
}

// receive copies a file of the lab to this computer.
func (r *Run) receive(ctx context.Context, root *os.Root, j *job) error {
	name := filepath.FromSlash(j.to)
	if info, err := root.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return errInTheWay
	}
	to, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }()
	count := &tally{run: r}
	first := true
	err = r.link.do(ctx, func(c *sftp.Client) error {
		have, err := to.Stat()
		if err != nil {
			return err
		}
		at := resumeAt(have.Size(), j.of)
		if err := to.Truncate(at); err != nil {
			return err
		}
		if first {
			r.kept.Add(at)
			first = false
		}
		count.set(at)
		from, err := c.Open(j.from)
		if err != nil {
			return err
		}
		defer func() { _ = from.Close() }()
		if _, err := from.Seek(at, io.SeekStart); err != nil {
			return err
		}
		if _, err := to.Seek(at, io.SeekStart); err != nil {
			return err
		}
		_, err = from.WriteTo(&writing{ctx: ctx, to: to, room: j.of.size - at, count: count})
		return err
	})
	if err == nil {
		err = to.Close()
	}
	if err != nil {
		count.set(0)
		return err
	}
	arrived, err := root.Lstat(name)
	if err == nil && arrived.Size() != j.of.size {
		err = errChanged
	}
	return err
}

// writing counts what is written, takes no more than there should be, and ends with its context.
type writing struct {
	ctx   context.Context
	to    io.Writer
	room  int64
	count *tally
}

func (w *writing) Write(p []byte) (int, error) {
	if w.ctx.Err() != nil {
		return 0, context.Cause(w.ctx)
	}
	if w.room -= int64(len(p)); w.room < 0 {
		return 0, fmt.Errorf("%w: it grew", errChanged)
	}
	n, err := w.to.Write(p)
	w.count.add(n)
	return n, err
}
