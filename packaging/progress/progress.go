// Package progress shows a person who waits for a build what it does: one line for each finished part, and on a terminal
// one line below them for what is still at work. A program that runs others shows their parts on its own screen.
package progress

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// environment is the variable that makes a program report to the one that started it: its parts are then lines of JSON,
// not of text.
const environment = "GPULAB_PROGRESS"

const (
	redrawEvery = time.Second // the line for what is at work, on a terminal
	tellEvery   = time.Minute // the same where lines stay, in a log
)

// event is one line between two programs.
type event struct {
	Part string `json:"part,omitempty"`
	// State is "begin", "status", "done", "cached" or "gone" for a part, "line" for a text and "download" for a module.
	State string `json:"state"`
	Text  string `json:"text,omitempty"`
}

// Reporter tells about the parts of a build. Its methods may be called side by side; those of nil tell nothing.
type Reporter struct {
	mu        sync.Mutex
	out       io.Writer
	machine   bool // out is another program
	width     int  // columns of the terminal, 0 where out is none
	drawn     bool // the terminal's last line is the status
	running   []*running
	cached    []string
	downloads int
	since     time.Time
	stop      chan struct{}
	stopped   sync.WaitGroup
}

// running is a part at work.
type running struct {
	name, status string
	since        time.Time
}

// New returns a reporter that writes to out. Close ends it.
func New(out *os.File) *Reporter {
	r := &Reporter{out: out, machine: os.Getenv(environment) == "json", since: time.Now(), stop: make(chan struct{})}
	if r.machine {
		return r
	}
	r.width = columns(out)
	interval := tellEvery
	if r.width > 0 {
		interval = redrawEvery
	}
	r.stopped.Go(func() { r.repeat(interval) })
	return r
}

// Close clears the line for what is at work. What came from the cache is told now, in one line.
func (r *Reporter) Close() {
	if r == nil || r.machine {
		return
	}
	close(r.stop)
	r.stopped.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clear()
	if len(r.cached) > 0 {
		r.print("from the cache: " + strings.Join(r.cached, ", "))
		r.cached = nil
	}
}

func (r *Reporter) repeat(interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-tick.C:
			r.mu.Lock()
			r.status()
			r.mu.Unlock()
		}
	}
}

// Line shows a text that belongs to no part.
func (r *Reporter) Line(format string, args ...any) {
	r.tell(event{State: "line", Text: fmt.Sprintf(format, args...)})
}

// Part is one part of a build.
type Part struct {
	r    *Reporter
	name string
}

// Begin says that a part is being built now.
func (r *Reporter) Begin(name string) Part {
	r.tell(event{Part: name, State: "begin"})
	return Part{r, name}
}

// Status says how far the part is, in a few words.
func (p Part) Status(format string, args ...any) {
	p.r.tell(event{Part: p.name, State: "status", Text: fmt.Sprintf(format, args...)})
}

// Done says that the part is built, and what it is.
func (p Part) Done(format string, args ...any) {
	p.r.tell(event{Part: p.name, State: "done", Text: fmt.Sprintf(format, args...)})
}

// Failed says that the part is no longer at work; the error tells the rest.
func (p Part) Failed() { p.r.tell(event{Part: p.name, State: "gone"}) }

// Cached says that a part was built before.
func (r *Reporter) Cached(name string) { r.tell(event{Part: name, State: "cached"}) }

// tell takes in an event, or hands it on to the program that shows it.
func (r *Reporter) tell(e event) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.machine {
		line, _ := json.Marshal(e) // of strings, which cannot fail
		fmt.Fprintf(r.out, "%s\n", line)
		return
	}
	at := slices.IndexFunc(r.running, func(p *running) bool { return p.name == e.Part })
	switch e.State {
	case "begin":
		r.running = append(r.running, &running{name: e.Part, since: time.Now()})
	case "status":
		if at >= 0 {
			r.running[at].status = e.Text
		}
	case "done":
		took := ""
		if at >= 0 {
			took = "built in " + span(time.Since(r.running[at].since))
			r.running = slices.Delete(r.running, at, at+1)
		}
		text := strings.Join(slices.DeleteFunc([]string{took, e.Text}, func(s string) bool { return s == "" }), ", ")
		r.print(fmt.Sprintf("%-12s %s", e.Part, text))
	case "gone":
		if at >= 0 {
			r.running = slices.Delete(r.running, at, at+1)
		}
	case "cached":
		r.cached = append(r.cached, e.Part)
	case "download":
		r.downloads++
	case "line":
		r.print(e.Text)
	}
}

// print writes lines that stay.
func (r *Reporter) print(text string) {
	r.clear()
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		fmt.Fprint(r.out, "  ", line)
	}
}

func (r *Reporter) clear() {
	if r.drawn {
		fmt.Fprint(r.out, "\r\x1b[K")
		r.drawn = false
	}
}

// status writes what is at work: over its earlier self on a terminal, as one more line elsewhere.
func (r *Reporter) status() {
	if len(r.running) == 0 {
		r.clear()
		return
	}
	fields := []string{span(time.Since(r.since))}
	for _, p := range r.running {
		fields = append(fields, strings.TrimSpace(p.name+" "+p.status))
	}
	if r.downloads > 0 {
		fields = append(fields, fmt.Sprintf("%d modules downloaded", r.downloads))
	}
	text := "  " + strings.Join(fields, " · ")
	if r.width == 0 {
		fmt.Fprintln(r.out, text)
		return
	}
	if letters := []rune(text); len(letters) >= r.width {
		text = string(letters[:max(0, r.width-2)]) + "…"
	}
	fmt.Fprint(r.out, "\r\x1b[K", text)
	r.drawn = true
}

// span is a duration as people say it, to the second.
func span(d time.Duration) string {
	d = d.Round(time.Second)
	if d < time.Minute {
		return fmt.Sprintf("%d s", int(d.Seconds()))
	}
	return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
}
