package client

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/gpulab/gpulab/internal/transfer"
	"github.com/gpulab/gpulab/internal/units"
)

// meter shows how far a copy is, on a terminal only, and lines that stay anywhere.
type meter struct {
	show bool

	mu    sync.Mutex
	out   io.Writer
	drawn bool // a line of progress stands where the next text belongs
}

func newMeter(out io.Writer, quiet bool) *meter {
	file, is := out.(*os.File)
	return &meter{out: out, show: !quiet && is && term.IsTerminal(int(file.Fd()))}
}

// note shows a line that stays.
func (m *meter) note(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.erase()
	fmt.Fprintf(m.out, "gpulab: %s\n", plain(text))
}

func (m *meter) erase() {
	if m.drawn {
		fmt.Fprint(m.out, "\r\x1b[K")
	}
	m.drawn = false
}

func (m *meter) draw(line string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.erase()
	fmt.Fprint(m.out, line)
	m.drawn = true
}

// watch shows progress until the function that it returns is called.
func (m *meter) watch(run *transfer.Run) (done func()) {
	if !m.show {
		return func() {}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		var speed pace
		for {
			select {
			case now := <-tick.C:
				p := run.Progress()
				m.draw(progressWords(p, speed.of(p.Sent, now)))
			case <-stop:
				m.mu.Lock()
				defer m.mu.Unlock()
				m.erase()
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

// pace is how fast bytes move, over the last seconds.
type pace struct{ samples []sample }

type sample struct {
	at   time.Time
	sent int64
}

// paceOver is how far back the pace looks.
const paceOver = 10 * time.Second

// of takes a reading and returns bytes per second; 0 while that is not known.
func (p *pace) of(sent int64, now time.Time) float64 {
	p.samples = append(p.samples, sample{now, sent})
	for len(p.samples) > 2 && now.Sub(p.samples[0].at) > paceOver {
		p.samples = p.samples[1:]
	}
	first := p.samples[0]
	if over := now.Sub(first.at).Seconds(); over > 0.5 {
		return float64(sent-first.sent) / over
	}
	return 0
}

// progressWords are one line of a terminal.
func progressWords(p transfer.Progress, perSecond float64) string {
	found := byteWords(p.Found)
	files := strconv.FormatInt(p.FilesFound, 10)
	if p.Looking {
		found, files = found+"+", files+"+"
	}
	line := fmt.Sprintf("%d of %s files, %s of %s", p.Files, files, byteWords(p.Done), found)
	switch {
	case p.Lost:
		return line + ", waiting for the connection"
	case perSecond >= 1:
		line += ", " + byteWords(int64(perSecond)) + "/s"
		if !p.Looking {
			left := time.Duration(float64(p.Found-p.Done) / perSecond * float64(time.Second))
			line += ", " + units.Lasting(left) + " left"
		}
	}
	return line
}

// byteWords writes an amount in the units of the lab's pages.
func byteWords(n int64) string {
	value, unit := float64(n), 0
	names := []string{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"}
	for value >= 1023.5 && unit < len(names)-1 {
		value /= 1024
		unit++
	}
	switch {
	case unit == 0:
		return fmt.Sprintf("%d bytes", n)
	case value < 9.95:
		return fmt.Sprintf("%.1f %s", value, names[unit])
	}
	return fmt.Sprintf("%.0f %s", value, names[unit])
}

// summaryWords say what was done.
func summaryWords(s transfer.Summary) string {
	parts := []string{fmt.Sprintf("%s copied (%s)", filesWord(s.Copied), byteWords(s.Bytes))}
	if s.Seconds >= 1 && s.Bytes > 0 {
		parts[0] = fmt.Sprintf("%s copied (%s, %s/s)", filesWord(s.Copied), byteWords(s.Bytes),
			byteWords(int64(float64(s.Bytes)/s.Seconds)))
	}
	if s.Unchanged > 0 {
		parts = append(parts, fmt.Sprintf("%d there already", s.Unchanged))
	}
	if s.Kept > 0 {
		parts = append(parts, byteWords(s.Kept)+" from an earlier try")
	}
	if s.Links > 0 {
		parts = append(parts, fmt.Sprintf("%d symbolic links made", s.Links))
	}
	if len(s.Skipped) > 0 {
		parts = append(parts, fmt.Sprintf("%d left out", len(s.Skipped)))
	}
	return strings.Join(parts, ", ") + "."
}

func filesWord(n int64) string {
	if n == 1 {
		return "1 file"
	}
	return strconv.FormatInt(n, 10) + " files"
}
