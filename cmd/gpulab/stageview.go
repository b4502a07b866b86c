package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
)

// stageView shows stages as they go: on a terminal each stage has one line
// that changes; elsewhere a line is printed when a stage ends, and when it
// says something new after a while.
type stageView struct {
	out      io.Writer
	live     bool
	printed  map[string]bool   // stages whose last line stands
	said     map[string]string // last detail printed, elsewhere than a terminal
	saidAt   map[string]time.Time
	drawn    int // live lines on the screen
	lastBoot string
}

func newStageView(out io.Writer) *stageView {
	return &stageView{
		out: out, live: isTerminal(out), printed: map[string]bool{}, said: map[string]string{},
		saidAt: map[string]time.Time{},
	}
}

// patience is how long a stage may take before its reason is worth a line.
const patience = 5 * time.Second

func (v *stageView) show(b ctl.Boot) {
	if b.Serving != v.lastBoot { // another daemon took over: its stages are new
		v.lastBoot = b.Serving
		v.printed = map[string]bool{}
	}
	v.erase()
	var active []string
	for _, s := range b.Stages {
		switch {
		case s.State == "active":
			active = append(active, v.line("·", s))
			v.sayWhy(s)
		case (s.State == "done" || s.State == "failed") && !v.printed[s.Name]:
			v.printed[s.Name] = true
			mark := "✓"
			if s.State == "failed" {
				mark = "✗"
			}
			fmt.Fprintln(v.out, v.line(mark, s))
		}
	}
	if v.live {
		for _, l := range active {
			fmt.Fprintln(v.out, l)
		}
		v.drawn = len(active)
	}
}

// sayWhy prints a slow stage's reason where lines cannot change.
func (v *stageView) sayWhy(s ctl.Stage) {
	if v.live || s.Elapsed < patience || s.Detail == "" || v.said[s.Name] == s.Detail ||
		time.Since(v.saidAt[s.Name]) < patience {
		return
	}
	v.said[s.Name], v.saidAt[s.Name] = s.Detail, time.Now()
	fmt.Fprintln(v.out, v.line("·", s))
}

func (v *stageView) line(mark string, s ctl.Stage) string {
	line := fmt.Sprintf("%s %-12s %7s", mark, s.Name, seconds(s.Elapsed))
	if s.Detail != "" {
		line += "  " + s.Detail
	}
	if v.live && len([]rune(line)) > 100 {
		line = string([]rune(line)[:99]) + "…"
	}
	return strings.TrimRight(line, " ")
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// erase takes the changing lines off the terminal.
func (v *stageView) erase() {
	if v.drawn > 0 {
		fmt.Fprintf(v.out, "\x1b[%dA\x1b[J", v.drawn)
		v.drawn = 0
	}
}

func (v *stageView) close() { v.erase() }
