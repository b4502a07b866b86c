package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress tells a person what the build does, one line a layer.
type progress struct {
	w      io.Writer
	layers int
}

// begin shows, on a terminal only, what is being made now.
func (p *progress) begin(name string) {
	if f, ok := p.w.(*os.File); ok && isTerminal(f) {
		fmt.Fprintf(p.w, "  %-16s making …\r", name)
	}
}

func (p *progress) made(name string, l layer, took time.Duration) {
	p.layers++
	fmt.Fprintf(p.w, "  %-16s made in %.0f s, %s (%s compressed)\n", name, took.Seconds(), megabytes(l.Tar), megabytes(l.Size))
}

func (p *progress) cached(name string, l layer) {
	fmt.Fprintf(p.w, "  %-16s from the cache, %s (%s compressed)\n", name, megabytes(l.Tar), megabytes(l.Size))
}

func (p *progress) note(format string, args ...any) {
	fmt.Fprintf(p.w, "  note: "+format+"\n", args...)
}

func (p *progress) summary(out string, built []builtImage, changed bool) {
	for _, b := range built {
		fmt.Fprintf(p.w, "  %s (%s)\n", b.listed.Ref, megabytes(b.listed.Size))
	}
	word := "written to"
	if !changed {
		word = "unchanged in"
	}
	fmt.Fprintf(p.w, "images: %d of %d %s %s, %d layers made\n", len(built), len(images), word, out, p.layers)
}

func megabytes(n int64) string {
	if n < 1e6 {
		return fmt.Sprintf("%.2f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.0f MB", float64(n)/1e6)
}

// isTerminal reports whether f is a terminal rather than a file or a pipe.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && f.Name() != os.DevNull
}
