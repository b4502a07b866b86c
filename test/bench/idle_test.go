//go:build e2e

package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// idleFor is how long an idle lab's use of processors is watched.
const idleFor = time.Minute

// ticks is the processor time of a process and of its children that have ended,
// in the kernel's hundredths of a second.
type ticks struct {
	part string
	used int
}

// ticksPerSecond is USER_HZ, which is 100 on every Linux that Go knows.
const ticksPerSecond = 100

// processorTime reads what each process of the host has used so far.
func processorTime(l *lab.Lab) map[string]ticks {
	used := map[string]ticks{}
	folders, _ := filepath.Glob(l.Path("/proc") + "/[0-9]*")
	for _, folder := range folders {
		part := partOf(folder)
		content, err := os.ReadFile(filepath.Join(folder, "stat"))
		if part == "" || err != nil {
			continue
		}
		// The name of the program may hold anything, blanks too.
		fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
		const utime, cstime = 11, 14 // counted behind the name
		sum := ticks{part: part}
		for _, field := range fields[utime : cstime+1] {
			n, _ := strconv.Atoi(field)
			sum.used += n
		}
		used[filepath.Base(folder)] = sum
	}
	return used
}

// printIdle prints how much of one processor an idle lab uses, part by part.
func printIdle(ctx context.Context, t *testing.T, l *lab.Lab) {
	t.Helper()
	before, began := processorTime(l), time.Now()
	select {
	case <-time.After(idleFor):
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
	took := time.Since(began).Seconds()
	percent, all := map[string]float64{}, 0.0
	for pid, now := range processorTime(l) {
		p := 100 * float64(now.used-before[pid].used) / ticksPerSecond / took
		percent[now.part] += p
		all += p
	}
	var parts []string
	for part := range percent {
		parts = append(parts, part)
	}
	slices.SortFunc(parts, func(a, b string) int { return int(1000 * (percent[b] - percent[a])) })
	fmt.Printf("\nProcessors of an idle lab, over %s, in %% of one\n", idleFor)
	for _, part := range parts {
		fmt.Printf("  %-40s %8.1f\n", part, percent[part])
	}
	fmt.Printf("  %-40s %8.1f\n", "everything", all)
}
