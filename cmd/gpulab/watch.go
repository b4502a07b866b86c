package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/units"
)

// watchEvery is the pace of readings.
const watchEvery = time.Second

// The terminal's other screen, so that what stood there comes back at the end;
// home and clear to the end draw without a flicker.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	homeCursor  = "\x1b[H"
	clearLine   = "\x1b[K"
	clearRest   = "\x1b[J"
)

// watchGPUs shows the GPUs every second until ctx ends: on a terminal as one
// screen that changes, elsewhere as one table, or one line of JSON, after the
// other.
func watchGPUs(ctx context.Context, client ctl.Daemon, out io.Writer, asJSON bool) error {
	screen, _ := out.(*os.File)
	live := !asJSON && isTerminal(out)
	if live {
		fmt.Fprint(out, enterScreen)
		defer fmt.Fprint(out, leaveScreen)
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	lines := json.NewEncoder(out)
	seen := false
	for {
		s, err := client.Status(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && live && seen: // as while gpulab is started anew
			err = draw(out, err.Error()+"\n\nTrying again.\n", 80, 24)
		case err != nil:
			return err
		case asJSON:
			err = lines.Encode(s.GPUs)
		case live:
			width, height, sizeErr := term.GetSize(int(screen.Fd()))
			if sizeErr != nil {
				width, height = 80, 24
			}
			err = draw(out, watchView(s.GPUs), width, height)
			seen = true
		default:
			_, err = fmt.Fprintf(out, "%s\n", watchView(s.GPUs))
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// watchView is everything that is worth a look, as text.
func watchView(snapshots []gpu.Snapshot) string {
	var b bytes.Buffer
	for _, s := range snapshots {
		title := []string{s.Machine()}
		if s.DriverVersion != "" {
			title = append(title, "driver "+s.DriverVersion)
		}
		if s.CUDAVersion != "" {
			title = append(title, "CUDA "+s.CUDAVersion)
		}
		if s.Simulated {
			title = append(title, "simulated")
		}
		fmt.Fprintf(&b, "%s   %s\n", strings.Join(title, ", "), s.Time.Local().Format("15:04:05"))
	}
	fmt.Fprintln(&b)
	_ = printGPUs(&b, snapshots) // a buffer takes everything
	if rows := processRows(snapshots); len(rows) > 1 {
		fmt.Fprintln(&b)
		_ = table(&b, rows)
	}
	return b.String()
}

// processRows lists who uses which GPU.
func processRows(snapshots []gpu.Snapshot) [][]string {
	rows := [][]string{{"GPU", "WHO", "PID", "USE", "MEMORY", "PROGRAM"}}
	for _, s := range snapshots {
		for _, g := range s.GPUs {
			where := fmt.Sprint(g.Index)
			if len(snapshots) > 1 {
				where = s.Machine() + "/" + where
			}
			for _, p := range g.Processes {
				used := "?"
				if p.MemoryUsed != nil {
					used = units.Bytes(*p.MemoryUsed)
				}
				rows = append(rows, []string{
					where, whoRuns(p), fmt.Sprint(p.PID), unit(p.SMUtilization, "%.0f %%"), used, visibly(p.Name),
				})
			}
		}
	}
	return rows
}

func whoRuns(p gpu.Process) string {
	switch {
	case p.Pod.User != "":
		return strings.Trim(p.Pod.User+"/"+p.Pod.Notebook, "/")
	case p.Pod != gpu.PodRef{}:
		return "pod " + p.Pod.Namespace + "/" + p.Pod.Name
	case p.UnixUser != "":
		return p.UnixUser + " (outside gpulab)"
	}
	return "?"
}

// visibly replaces what would act on a terminal: a program chooses its name.
func visibly(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// draw writes a text over the one that stands on the screen, cut to its size.
func draw(out io.Writer, text string, width, height int) error {
	var b bytes.Buffer
	b.WriteString(homeCursor)
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) > height-1 {
		lines = append(lines[:max(height-2, 0)], "…")
	}
	for _, line := range lines {
		if utf8.RuneCountInString(line) > width {
			line = string([]rune(line)[:max(width-1, 0)]) + "…"
		}
		b.WriteString(line + clearLine + "\n")
	}
	b.WriteString(clearRest)
	_, err := out.Write(b.Bytes())
	return err
}
