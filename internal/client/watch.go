package client

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// A watcher shows one job until it ends.
type watcher struct {
	*Session
	c       *cobra.Command
	j       job
	out     io.Writer
	at      int64 // of the log
	said    string
	missing bool // the log is not there
	// onlyLog says that nobody waits for its end: it is not asked about, and its
	// exit code is not this program's.
	onlyLog bool
}

type jobLog struct {
	Data    []byte `json:"data"`
	Next    int64  `json:"next"`
	LeftOut int64  `json:"leftOut"`
	Missing bool   `json:"missing"`
	End     bool   `json:"end"`
}

// watch shows what happens with a job and what it says until it ends. Interrupted, it asks what to do.
func (s *Session) watch(c *cobra.Command, j job, onlyLog bool) error {
	w := &watcher{Session: s, c: c, j: j, out: terminalSafe(c.OutOrStdout()), onlyLog: onlyLog}
	// The first interruption ends the command's context, further ones come here.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	interrupted := c.Context().Done()
	for {
		ctx, stop := context.WithCancel(context.WithoutCancel(c.Context()))
		done := make(chan error, 1)
		go func() { done <- w.follow(ctx) }()
		select {
		case err := <-done:
			stop()
			return err
		case <-interrupted:
			interrupted = nil
		case <-interrupts:
		}
		stop()
		if err := <-done; err == nil {
			return nil // it has just ended
		}
		drainSignals(interrupts)
		if onlyLog {
			return nil // Ctrl-C is how one leaves it
		}
		goOn, err := w.ask(interrupts)
		if err != nil || !goOn {
			return err
		}
	}
}

func drainSignals(c chan os.Signal) {
	select {
	case <-c:
	default:
	}
}

// ask is what somebody wants who has pressed Ctrl-C.
func (w *watcher) ask(interrupts <-chan os.Signal) (goOn bool, err error) {
	leave := fail(130, "job %d goes on by itself; `gpulab logs -f %[1]d` shows it, and `gpulab cancel %[1]d` cancels it",
		w.j.ID)
	//nolint:gosec // a file descriptor is small
	if in, ok := w.c.InOrStdin().(*os.File); ok && !term.IsTerminal(int(in.Fd())) {
		return false, leave
	}
	fmt.Fprintf(w.c.ErrOrStderr(), "\nCancel job %d? [y]es, [n]o and go on watching, [l]eave it running: ", w.j.ID)
	answers := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(w.c.InOrStdin()).ReadString('\n') // the end of input is no answer
		answers <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-interrupts:
		fmt.Fprintln(w.c.ErrOrStderr())
		return false, leave
	case answer := <-answers:
		switch {
		case strings.HasPrefix(answer, "y"):
			err := w.Do(context.WithoutCancel(w.c.Context()), http.MethodDelete, w.j.path(), nil, nil)
			if err == nil {
				err = fail(130, "job %d is being cancelled", w.j.ID)
			}
			return false, err
		case strings.HasPrefix(answer, "n"):
			return true, nil
		}
		return false, leave
	}
}

// follow shows the job until it ends.
func (w *watcher) follow(ctx context.Context) error {
	for waits := true; waits; {
		if err := w.again(ctx, func() error { return w.look(ctx) }); err != nil {
			return err
		}
		waits = w.j.State == "waiting" || w.j.State == "starting"
	}
	for more := true; more; {
		err := w.again(ctx, func() (err error) {
			more, err = w.piece(ctx, waitAtOnce)
			return err
		})
		if err != nil {
			return err
		}
	}
	w.j.Version = ""
	if err := w.again(ctx, func() error { return w.look(ctx) }); err != nil {
		return err
	}
	return w.outcome()
}

// again tries until the lab answers: it may be restarted while somebody watches, and the job goes on.
func (w *watcher) again(ctx context.Context, try func() error) error {
	for lost := false; ; lost = true {
		err := try()
		if ctx.Err() != nil || ExitCode(err) != ExitNotReached {
			return err
		}
		if !lost {
			fmt.Fprintf(w.c.ErrOrStderr(), "%v. Trying again …\n", err)
		}
		pause(ctx, 2*time.Second)
	}
}

// look asks how the job is, and waits for a change of what is known.
func (w *watcher) look(ctx context.Context) error {
	path := w.j.path()
	if w.said != "" && w.j.Version != "" {
		path += "?" + url.Values{"wait": {strconv.Itoa(waitAtOnce)}, "seen": {w.j.Version}}.Encode()
	}
	var j job
	if err := w.Get(ctx, path, &j); err != nil {
		return err
	}
	w.j = j
	if text := j.says(); text != w.said && !j.ended() && (j.State != "running" || j.Try > 1) {
		fmt.Fprintln(w.c.ErrOrStderr(), text)
	}
	w.said = j.says()
	return nil
}

// piece shows the next piece of the log, and tells whether there may be more.
func (w *watcher) piece(ctx context.Context, wait int) (more bool, err error) {
	var p jobLog
	query := url.Values{"from": {strconv.FormatInt(w.at, 10)}, "wait": {strconv.Itoa(wait)}}
	if err := w.Get(ctx, w.j.path()+"/log?"+query.Encode(), &p); err != nil {
		return false, err
	}
	if p.LeftOut > 0 {
		fmt.Fprintf(w.c.ErrOrStderr(), "[%d bytes are left out here: of a long log the beginning and the end are kept]\n",
			p.LeftOut)
	}
	w.at, w.missing = p.Next, p.Missing
	if _, err := w.out.Write(p.Data); err != nil {
		return false, err
	}
	if p.End && p.Missing && wait > 0 && w.j.Array == "" {
		fmt.Fprintf(w.c.ErrOrStderr(), "[its log, %s in your home, is not there]\n", plain(w.j.Output))
	}
	return !p.End && (wait > 0 || len(p.Data) > 0), nil
}

// outcome is how the job ended, as an exit code and a sentence.
func (w *watcher) outcome() error {
	if w.onlyLog {
		fmt.Fprintf(w.c.ErrOrStderr(), "[job %d: %s]\n", w.j.ID, w.j.says())
		return nil
	}
	code := ExitFailure
	switch {
	case w.j.State == "succeeded":
		return nil
	case w.j.ExitCode != nil && *w.j.ExitCode != 0:
		code = *w.j.ExitCode
	case w.j.State == "timed out":
		code = 124
	case w.j.State == "cancelled":
		code = 130
	case w.j.EndCode == "oom":
		code = 137
	case w.j.EndCode == "failed", w.j.State == "not run":
		code = ExitNotStarted
	}
	return fail(code, "job %d: %s", w.j.ID, w.j.says())
}
