package progress

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
)

// Show makes cmd report to r: its parts appear among r's own, modules that it downloads are counted, and everything else
// that it prints stays a line. The returned function is to be called when cmd has ended.
func (r *Reporter) Show(cmd *exec.Cmd) (ended func()) {
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, environment+"=json")
	out, errs := &lines{take: r.reported}, r.Go(nil)
	cmd.Stdout, cmd.Stderr = out, errs
	return func() { _, _ = out.Close(), errs.Close() }
}

// reported takes in one line of a program that reports.
func (r *Reporter) reported(line string) {
	var e event
	if json.Unmarshal([]byte(line), &e) != nil || e.State == "" {
		e = event{State: "line", Text: line}
	}
	r.tell(e)
}

const downloading = "go: downloading "

// Go returns a writer for what the go command prints to its standard error: modules that it downloads are counted, and
// all the rest is written to rest, or shown if that is nil.
func (r *Reporter) Go(rest io.Writer) io.WriteCloser { return r.downloaded(rest) }

func (r *Reporter) downloaded(rest io.Writer) *lines {
	return &lines{take: func(line string) {
		switch {
		case strings.HasPrefix(line, downloading):
			r.tell(event{State: "download", Text: strings.TrimPrefix(line, downloading)})
		case rest != nil:
			fmt.Fprintln(rest, line)
		default:
			r.Line("%s", line)
		}
	}}
}

// Go is the reporter's, for a part that does no more than list or download.
func (p Part) Go(rest io.Writer) io.WriteCloser { return p.r.downloaded(rest) }

// aPackage is what `go build -v` prints of each package that it compiles.
var aPackage = regexp.MustCompile(`^[A-Za-z0-9._~/+@-]+$`)

// Build returns a writer for what `go build -v` prints to its standard error: the part's status is label, if any, and
// how many of total packages are compiled. All but these lines and downloads is written to rest.
func (p Part) Build(label string, total int, rest io.Writer) io.WriteCloser {
	compiled := 0
	next := p.r.downloaded(rest)
	return &lines{take: func(line string) {
		if !aPackage.MatchString(line) {
			next.take(line)
			return
		}
		compiled++
		p.Status("%s", strings.TrimSpace(fmt.Sprintf("%s %d of %d packages", label, min(compiled, total), total)))
	}}
}

// lines hands on whole lines of what is written.
type lines struct {
	mu   sync.Mutex
	part []byte
	take func(string)
}

func (l *lines) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.part = append(l.part, text...)
	for {
		line, rest, whole := bytes.Cut(l.part, []byte("\n"))
		if !whole {
			return len(text), nil
		}
		l.take(strings.TrimRight(string(line), "\r"))
		l.part = rest
	}
}

// Close hands on a last line that nothing ended.
func (l *lines) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.part) > 0 {
		l.take(string(l.part))
		l.part = nil
	}
	return nil
}
