//go:build e2e

package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// process is a program on a test host and its memory in MB (10⁶ bytes). Pages
// that several processes share count in pss by the share of each, in rss fully.
type process struct {
	part     string
	pss, rss float64
}

// settleFor is how long a host rests before its memory is read.
const settleFor = 30 * time.Second

func settledMemory(ctx context.Context, t *testing.T, l *lab.Lab) []process {
	t.Helper()
	select {
	case <-time.After(settleFor):
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
	var list []process
	folders, _ := filepath.Glob(l.Path("/proc") + "/[0-9]*")
	for _, folder := range folders {
		part := partOf(folder)
		if part == "" {
			continue
		}
		p := process{part: part}
		for line := range lines(filepath.Join(folder, "smaps_rollup")) {
			p.pss += kilobytes(line, "Pss:")
			p.rss += kilobytes(line, "Rss:")
		}
		list = append(list, p)
	}
	return list
}

// partOf names the part of the lab that a process belongs to, "" for those of
// the test host itself.
func partOf(folder string) string {
	content, err := os.ReadFile(filepath.Join(folder, "cmdline"))
	if err != nil || len(content) == 0 {
		return ""
	}
	args := strings.Split(string(bytes.TrimRight(content, "\x00")), "\x00")
	// k3s and containerd write "k3s server" and blanks over what they were started with.
	name, _, _ := strings.Cut(args[0], " ")
	switch program := filepath.Base(name); {
	case program == "gpulab" && len(args) > 1 && args[1] == "serve":
		return "gpulab"
	case program == "gpulab-probe":
		return "probe"
	case program == "k3s", program == "containerd":
		return "k3s and containerd"
	case program == "containerd-shim-runc-v2":
		return "shims of pods"
	case program == "bash", program == "sleep", program == "sh", program == "env":
		return ""
	case strings.Contains(strings.Join(args, " "), "/opt/hub/"):
		return "hub"
	default:
		return "other pods"
	}
}

func lines(path string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		file, err := os.Open(path)
		if err != nil {
			return // the process has ended
		}
		defer file.Close()
		for scanner := bufio.NewScanner(file); scanner.Scan() && yield(scanner.Text()); {
		}
	}
}

func kilobytes(line, field string) float64 {
	rest, found := strings.CutPrefix(line, field)
	if !found {
		return 0
	}
	kib, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	return kib * 1024 / 1e6
}

func sum(list []process, parts ...string) (all process) {
	for _, p := range list {
		for _, part := range parts {
			if p.part == part || part == "" {
				all.pss += p.pss
				all.rss += p.rss
			}
		}
	}
	return all
}

// printMemory prints what an idle lab with nobody's notebook needs beside k3s.
func printMemory(ours, alone []process) {
	fmt.Printf("\nMemory of an idle lab, %s after its start, in MB (PSS: shared pages divided)\n", settleFor)
	fmt.Printf("  %-40s %8s %8s\n", "", "PSS", "RSS")
	row := func(name string, p process) { fmt.Printf("  %-40s %8.0f %8.0f\n", name, p.pss, p.rss) }
	for _, part := range []string{"gpulab", "probe", "hub"} {
		row(part, sum(ours, part))
	}
	row("gpulab, probe and hub", sum(ours, "gpulab", "probe", "hub"))
	row("other pods (DNS, line, GPU plugin)", sum(ours, "other pods"))
	row("shims of pods", sum(ours, "shims of pods"))
	row("k3s and containerd, below gpulab", sum(ours, "k3s and containerd"))
	row("k3s and containerd, alone", sum(alone, "k3s and containerd"))
	all, bare := sum(ours, ""), sum(alone, "")
	row("everything above k3s alone", process{pss: all.pss - bare.pss, rss: all.rss - bare.rss})
}
